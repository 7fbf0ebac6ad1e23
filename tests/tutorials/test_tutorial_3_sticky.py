"""The third tutorial's StickyJob: ours takes every object that its definition, as printed, takes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from sticky_world import TEMPLATE, World, node_with_uid
from stowplan.api.meta import decode
from stowplan.cli import stowplan
from stowplan.sticky.resources import StickyJob

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sticky"
(PRINTED,) = yaml.safe_load_all((Path(__file__).parent / "printed_3" / "stickyjob-crd.yaml").read_text())
OURS = next(
    yaml.safe_load_all(CliRunner().invoke(stowplan, ["crd", "stowplan.sticky.resources:StickyJob"]).stdout)
)


def schema_of(definition):
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def holes(theirs, ours, path=""):
    """Fields that one schema has and the other lacks, or has with another type."""
    for name, schema in theirs.get("properties", {}).items():
        mine = ours.get("properties", {}).get(name)
        if mine is None or mine["type"] != schema["type"]:
            yield f"{path}.{name}"
        else:
            yield from holes(schema, mine, f"{path}.{name}")


def test_our_definition_takes_its_place():
    assert OURS["metadata"]["name"] == PRINTED["metadata"]["name"]
    assert OURS["spec"]["names"].items() >= PRINTED["spec"]["names"].items()
    assert {name: OURS["spec"][name] for name in ("group", "scope")} == {
        name: PRINTED["spec"][name] for name in ("group", "scope")
    }
    (theirs,), (ours,) = PRINTED["spec"]["versions"], OURS["spec"]["versions"]
    for name in ("name", "served", "storage", "subresources"):
        assert ours[name] == theirs[name]


def test_no_field_of_the_tutorials_is_missing():
    assert list(holes(schema_of(PRINTED), schema_of(OURS))) == []


def test_a_template_is_kept_whole():
    template = schema_of(OURS)["properties"]["spec"]["properties"]["template"]
    assert template["x-kubernetes-preserve-unknown-fields"]
    assert template["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"]


async def test_a_manifest_with_its_two_fields_alone_is_a_sticky_job():
    manifest = {
        "apiVersion": "example.com/v1",
        "kind": "StickyJob",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": {"template": TEMPLATE},
        "status": {"lastNode": "n3"},
    }
    job = decode(StickyJob, manifest)
    assert (job.spec.template, job.status.last_node, job.spec.replicas) == (TEMPLATE, "n3", 1)
    world = World(*(node_with_uid(name) for name in ("n1", "n2", "n3")))
    world.add_job(status=manifest["status"])
    await world.reconcile()
    assert (await world.schedule("job-0")).chosen == "n3"


async def test_its_pod_deleted_comes_back_to_its_node():
    world = World(*(node_with_uid(name) for name in ("n1", "n2", "n3")))
    world.add_job()
    first = await world.come_and_go("job-0")
    assert (await world.come_and_go("job-0"), world.job().status.last_node) == (first, first)


def test_the_definitions_of_the_example_are_those_that_are_generated():
    generated = CliRunner().invoke(stowplan, ["crd", "Sticky"])
    assert generated.exit_code == 0, generated.output
    assert (EXAMPLES / "crds.yaml").read_text() == generated.stdout


@pytest.mark.parametrize("name", ["stickyjob.yaml", "required.yaml"])
def test_the_jobs_of_the_example_are_read_whole(name):
    (manifest,) = yaml.safe_load_all((EXAMPLES / name).read_text())
    job = decode(StickyJob, manifest)
    assert msgspec.to_builtins(job.spec) == manifest["spec"]


def test_the_page_shows_what_explain_says(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "tutorials" / "sticky-pods.md").read_text()
    command = "explain cache-0 -f examples/sticky/offline --config examples/sticky/scheduler.yaml"
    said = CliRunner().invoke(stowplan, command.split())
    assert f"$ stowplan {command}\n{said.stdout}```" in page
