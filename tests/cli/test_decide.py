"""`stowplan decide`: every line gets an answer, whatever the others are."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stowplan.cli import stowplan

NODE = {
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
}
POD = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}


def decided(*lines: object) -> tuple[list[dict], int, str]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    result = CliRunner().invoke(stowplan, ["decide"], input=text)
    return [json.loads(line) for line in result.stdout.splitlines()], result.exit_code, result.stderr


def test_pods_are_placed_one_after_another():
    one, two = ({**POD, "metadata": {"name": name}} for name in ("one", "two"))
    small = {**NODE, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "1"}}}
    (answer,), code, _ = decided({"name": "a", "objects": [small], "pending": [one, two]})
    first, second = answer["decisions"]
    assert (code, answer["name"], first["chosen"]) == (0, "a", "n1")
    assert second["rejected"]["n1"] == {
        "code": "Unschedulable", "plugin": "NodeResourcesFit", "reasons": ["Too many pods"]
    }  # fmt: skip


def test_a_feature_that_is_off_decides_otherwise():
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"extendedResourceName": "x.io/gpu"},
    }
    devices = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "s"},
        "spec": {
            "driver": "x.io",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d0"}],
        },
    }
    wanted = {"resources": {"requests": {"x.io/gpu": "1"}, "limits": {"x.io/gpu": "1"}}}
    pod = {**POD, "spec": {"containers": [{"name": "c", **wanted}]}}
    case = {"objects": [NODE, device_class, devices], "pending": [pod]}
    on, off, wrong = decided(
        case,
        {**case, "featureGates": {"DRAExtendedResource": False}},
        {**case, "featureGates": {"DRADeviceTaints": False}},
    )[0]
    assert on["decisions"][0]["chosen"] == "n1"
    rejected = off["decisions"][0]["rejected"]["n1"]
    assert (rejected["plugin"], rejected["reasons"]) == ("NodeResourcesFit", ["Insufficient x.io/gpu"])
    assert wrong["error"].startswith("cannot set feature gate DRADeviceTaints to false: ")


def test_kinds_that_plugins_watch_are_read():
    amounts = {"capacity": "4", "allocatable": "4", "available": "1"}
    zones = [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", **amounts}]}]
    topology = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "n1"},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "zones": zones,
    }
    wanted = {"cpu": "2", "memory": "1Gi"}
    resources = {"requests": wanted, "limits": wanted}
    pod = {**POD, "spec": {"containers": [{"name": "c", "resources": resources}]}}
    enabled = [{"name": "NodeResourceTopologyMatch"}]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"enabled": enabled}}}],
    }
    (answer,), _, _ = decided({"config": config, "objects": [NODE, topology], "pending": [pod]})
    assert answer["decisions"][0]["rejected"]["n1"]["reasons"] == ["cannot align pod"]


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        pytest.param({"objects": [{"a": 1}]}, "objects[0]: is not a Kubernetes object", id="no object"),
        pytest.param(
            {"objects": [{"kind": "Node"}]}, "objects[0]: Node without a name: metadata.name", id="no name"
        ),
        pytest.param({"pending": [NODE]}, "pending: expected only pods", id="a node is pending"),
        pytest.param(
            {"pending": [{**POD, "spec": {"schedulerName": "other"}}]},
            "Pod default/p: spec.schedulerName: no profile has the name 'other', there is default-scheduler",
            id="a pod of another scheduler",
        ),
        pytest.param({"config": {"kind": "Secret"}}, "Object 'apiVersion' is missing", id="no configuration"),
        pytest.param(
            {"pending": [{**POD, "spec": {"overhead": {"cpu": "1.5.3"}}}]},
            "pending[0]: Pod p: spec.overhead.cpu: '1.5.3' is not a quantity",
            id="no quantity",
        ),
    ],
)
def test_a_scenario_at_fault_is_answered_with_its_error(scenario, error):
    answers, code, _ = decided(
        {"name": "bad", **scenario}, {"name": "good", "objects": [NODE], "pending": [POD]}
    )
    assert code == 0
    assert error in answers[0]["error"]
    assert answers[1]["decisions"][0]["chosen"] == "n1"


def test_a_line_that_is_not_json_is_answered_and_makes_the_exit_status_1():
    answers, code, _ = decided("{", "[]", {"name": "good", "objects": [NODE], "pending": [POD]})
    assert code == 1
    assert [answer["name"] for answer in answers] == [None, None, "good"]
    assert all(answer["error"].startswith("not a scenario: ") for answer in answers[:2])
    assert answers[2]["decisions"][0]["chosen"] == "n1"


def test_an_old_configuration_is_warned_about_on_standard_error():
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1beta2", "kind": "KubeSchedulerConfiguration"}
    answers, code, errors = decided({"name": "old", "config": config, "objects": [NODE], "pending": [POD]})
    assert (code, answers[0]["decisions"][0]["chosen"]) == (0, "n1")
    assert errors.startswith("old: converted from kubescheduler.config.k8s.io/v1beta2")
    assert errors.count("\n") == 1
