"""The fourth tutorial's files as printed (printed_4): its Policy, its old configuration, its pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from make import make_node
from stowplan.api.kinds import object_of
from stowplan.cli import stowplan
from stowplan.client.extenders import extenders_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.explain.explainer import find_objections
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles

PRINTED = Path(__file__).parent / "printed_4"
REGISTRY = Registry.installed()


def printed(name: str) -> dict:
    return yaml.safe_load((PRINTED / name).read_text())


def config_map() -> dict:
    """The Policy where the old configuration looks for it."""
    metadata = {"namespace": "default", "name": "extended-scheduler-policy"}
    text = (PRINTED / "policy.json").read_text()
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"policy.cfg": text}}


@pytest.mark.parametrize("file", ["policy.json", "config.yaml"])
def test_the_extender_of_the_policy_is_called_after_conversion(file):
    policy = config_map() if file == "config.yaml" else None
    config = load(PRINTED / file, REGISTRY, policy=policy).config
    (extender,) = extenders_of(config.extenders)
    assert extender.url == "http://localhost:30036/my_scheduler_extension"
    assert extender.config.prioritize_verb == "my_new_priorities/image_score"
    assert (extender.config.weight, extender.prioritizes, extender.filters) == (1, True, False)
    assert extender.wants_whole_nodes
    (profile,) = resolve_profiles(config, REGISTRY)
    assert profile.scheduler_name == ("extended-scheduler" if file == "config.yaml" else "default-scheduler")
    assert {"NodePorts", "NodeResourcesFit", "VolumeRestrictions", "NodeAffinity", "NodeName"} <= {
        name for name, _ in profile.points["filter"]
    }
    assert profile.args["InterPodAffinity"].as_json()["hardPodAffinityWeight"] == 10


def test_the_policy_is_converted_to_a_file_that_kube_scheduler_reads(tmp_path):
    ran = CliRunner().invoke(stowplan, ["config", "convert", str(PRINTED / "policy.json")])
    assert ran.exit_code == 0, ran.output
    written = yaml.safe_load(ran.stdout)
    assert written["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert written["extenders"] == [
        {
            "urlPrefix": "http://localhost:30036/my_scheduler_extension",
            "prioritizeVerb": "my_new_priorities/image_score",
            "weight": 1,
        }
    ]
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert load(tmp_path / "config.json", REGISTRY).warnings == []


def test_nothing_speaks_against_the_binding_by_hand():
    cluster = Cluster.of([make_node("worker-node1"), make_node("worker-node2")])
    pod, binding = object_of(printed("unassigned-pod.yaml")), printed("binding.yaml")
    assert pod.scheduler_name == "do-it-manually"
    assert find_objections(cluster, pod, binding["target"]["name"]) == []
