"""Tutorial 0, offline: its files as printed (printed_0), the placeholders filled in, decide as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stowplan.cli import stowplan

PRINTED = Path(__file__).parent / "printed_0"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node-crd-resource-fit"
PAGE = ROOT / "docs" / "tutorials" / "node-crd-resource-fit.md"
NODES = ["aaa", "bbb", "ccc", "ddd", "eee", "fff"]
NODE_NAME = "REPLACE_ME_WITH_NODE_NAME"


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with six nodes, the tutorial's pod, and its custom resources for the last two nodes."""
    resources = (PRINTED / "clusterscopedresources-cr.yaml").read_text()
    assert resources.count(NODE_NAME) == 2
    for name in NODES[-2:]:
        resources = resources.replace(NODE_NAME, name, 1)
    (tmp_path / "resources.yaml").write_text(resources)
    (tmp_path / "pod.yaml").write_text((PRINTED / "simple-pod.yaml").read_text())
    for name in NODES:
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"capacity": capacity},
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(node))
    return tmp_path


def explain(folder: Path, *options: str):
    config = PRINTED / "scheduler-config.yaml"
    run = CliRunner().invoke(
        stowplan, ["explain", "nginx", "-f", str(folder), "--config", str(config), *options]
    )
    assert run.exit_code == 0, run.output
    return run


def test_four_nodes_are_refused_and_two_score_55(cluster):
    found = json.loads(explain(cluster, "-o", "json").stdout)["decision"]
    assert list(found["rejected"]) == NODES[:4]
    assert all(each["reasons"] == ["CRD for node not found"] for each in found["rejected"].values())
    assert found["feasible"] == NODES[4:]
    assert found["scores"] == {"NodeCRDResourceFit": {"eee": 55, "fff": 55}}
    assert found["chosen"] in NODES[4:]


@pytest.mark.parametrize("kind", ["ClusterScopedResource", "ClusterScopedResources"])
def test_the_kind_may_be_spelt_either_way(cluster, kind):
    """The Go type of the tutorial is the one, its manifests have the other."""
    file = cluster / "resources.yaml"
    file.write_text(file.read_text().replace("kind: ClusterScopedResources", f"kind: {kind}"))
    assert "Rejected: 4 of 6 nodes" in explain(cluster).stdout


def test_a_wrong_custom_resource_is_named_with_its_field(cluster):
    file = cluster / "resources.yaml"
    file.write_text(file.read_text().replace(": 55", ": many", 1))
    run = CliRunner().invoke(
        stowplan,
        ["explain", "nginx", "-f", str(cluster), "--config", str(PRINTED / "scheduler-config.yaml")],
    )
    assert run.exit_code == 1
    assert f"{file}: ClusterScopedResources eee: spec.resourcesScore" in run.stderr


def test_our_page_shows_what_the_example_gives():
    config = EXAMPLE / "scheduler.yaml"
    run = CliRunner().invoke(stowplan, ["explain", "nginx", "-f", str(EXAMPLE), "--config", str(config)])
    assert run.exit_code == 0, run.output
    assert run.stdout in PAGE.read_text()


def test_the_definition_of_the_example_is_the_generated_one():
    run = CliRunner().invoke(stowplan, ["crd", "NodeCRDResourceFit"])
    assert run.exit_code == 0, (run.output, run.exception)
    assert run.stdout == (EXAMPLE / "crd.yaml").read_text()
