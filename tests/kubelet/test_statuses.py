"""What simulated kubelets write."""

from __future__ import annotations

import pytest

from make import make_pod
from stowplan.api.kinds import object_of
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.kubelet.statuses import lease_of, node_of, running_status

NOW = 1_790_000_000.25
LITTLE, MUCH = {"cpu": "1", "pods": "10"}, {"cpu": "2", "pods": "10"}


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param({"capacity": MUCH}, 2000, id="all of the capacity is allocatable"),
        pytest.param(
            {"capacity": MUCH, "allocatable": LITTLE}, 1000, id="unless the template says otherwise"
        ),
        pytest.param({"allocatable": LITTLE}, 1000, id="a template without a capacity"),
    ],
)
def test_a_node_offers_what_its_template_says(status, cpu):
    node = node_of({"status": status}, "n1", NOW)
    assert object_of(node).allocatable == {"cpu": cpu, "pods": 10}
    assert node["status"]["capacity"] == status.get("capacity", LITTLE)


def test_a_node_has_its_own_name_and_the_rest_of_its_template():
    template = {
        "metadata": {"labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    }
    node = object_of(node_of(template, "n1", NOW))
    assert (node.name, node.labels) == ("n1", {"kubernetes.io/hostname": "n1", "zone": "a"})
    assert [taint.key for taint in node.taints] == ["k"]
    assert template["metadata"] == {"labels": {"zone": "a"}}, "the template serves the next node too"


def test_a_node_is_ready_and_under_no_pressure():
    node = decode(NodeObject, node_of({}, "n1", NOW))
    assert {condition.type: condition.status for condition in node.status.conditions} == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
    }


def test_a_lease_is_held_and_owned_by_its_node():
    node = decode(NodeObject, {"metadata": {"name": "n1", "uid": "u1"}})
    lease = lease_of(node, NOW)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert (lease["spec"]["holderIdentity"], lease["spec"]["renewTime"]) == (
        "n1",
        "2026-09-21T14:13:20.250000Z",
    )


def test_a_running_pod_has_started_and_all_its_containers_are_ready():
    status = running_status(make_pod(), NOW)
    pod = Pod.decode({"metadata": {"name": "pod"}, "status": status})
    assert (pod.phase, pod.start_time) == ("Running", 1_790_000_000)
    assert {condition["type"] for condition in status["conditions"] if condition["status"] == "True"} == {
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
    }
    assert [(entry["name"], entry["ready"]) for entry in status["containerStatuses"]] == [("main", True)]
