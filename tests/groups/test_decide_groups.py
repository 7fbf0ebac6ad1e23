"""Groups without a cluster: `stowplan decide`, and the Planner that it uses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from groups_staging import members, pod_group

from scheduler_staging import node, pod
from stowplan.cli.decide import decide

GATES = {"GenericWorkload": True, "GangScheduling": True}


def answers(objects, pending, **scenario):
    line = {"name": "s", "objects": objects, "pending": pending, "featureGates": GATES, **scenario}
    found = CliRunner().invoke(decide, input=json.dumps(line) + "\n")
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def test_a_gang_that_fits():
    found = answers([node("n1"), pod_group(least=3)], [*members(3), pod("later", cpu="2")])["decisions"]
    assert [each.get("chosen") for each in found] == ["n1", "n1", "n1", None]
    assert [each.get("group") for each in found] == ["g", "g", "g", None]
    assert "Insufficient cpu" in found[3]["message"]


def test_a_gang_that_does_not_fit_takes_no_room():
    found = answers([node("n1"), pod_group(least=5)], [*members(5), pod("later", cpu="4")])["decisions"]
    assert [each.get("chosen") for each in found] == [None] * 5 + ["n1"]
    assert {each["groupMessage"] for each in found[:5]} == {"pod group is unschedulable"}
    assert sum("fits" in each for each in found[:5]) == 4


def test_members_that_are_too_few():
    found = answers([node("n1"), pod_group(least=5)], members(2))["decisions"]
    text = "waiting for minCount pods from a gang to appear in scheduling queue"
    assert [each["message"] for each in found] == [text, text]


def test_a_gang_that_preempts():
    objects = [node("n1", cpu="2"), pod("low", on="n1", cpu="2"), pod_group(least=2)]
    found = answers(objects, members(2, priority=10))["decisions"]
    assert [each["groupVictims"] for each in found] == [["default/low"]] * 2
    assert "waiting for preemption" in found[0]["groupMessage"]


def test_a_domain_is_named():
    racks = [node(name) | {} for name in ("a0", "b0")]
    for plain in racks:
        plain["metadata"]["labels"] = {"rack": plain["metadata"]["name"][0]}
    group = pod_group(least=2, schedulingConstraints={"topology": [{"key": "rack"}]})
    gates = GATES | {"TopologyAwareWorkloadScheduling": True}
    found = answers([*racks, group], members(2), featureGates=gates)["decisions"]
    assert [(each["chosen"], each["placement"]) for each in found] == [("a0", "a")] * 2


def device_objects(count):
    """A node with so many devices, and a claim for one of them for each of three pods."""
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
    }
    selector = {"cel": {"expression": 'device.driver == "gpu.example"'}}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    slice_spec = {"driver": "gpu.example", "nodeName": "n1", "pool": pool, "devices": devices}
    return [
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
        {"kind": "ResourceSlice", "metadata": {"name": "n1"}, "spec": slice_spec},
        *(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": f"g{number}", "namespace": "default", "uid": f"claim-{number}"},
                "spec": {"devices": {"requests": [request]}},
            }
            for number in range(3)
        ),
    ]


@pytest.mark.parametrize(("devices", "fitting"), [(3, 3), (2, 0)])
def test_members_do_not_share_devices(devices, fitting):
    pods = members(3)
    for plain in pods:
        claim = {"name": "devices", "resourceClaimName": plain["metadata"]["name"]}
        plain["spec"]["resourceClaims"] = [claim]
    found = answers([node("n1"), *device_objects(devices), pod_group(least=3)], pods)["decisions"]
    assert sum(each.get("chosen") == "n1" for each in found) == fitting


@pytest.mark.parametrize(
    ("gates", "text"),
    [
        ({"GangScheduling": True}, "depends on features that are disabled: [GenericWorkload]"),
        (["GangScheduling"], "featureGates: expected an object of gates, each true or false"),
    ],
)
def test_gates_that_are_wrong(gates, text):
    assert text in answers([], [], featureGates=gates)["error"]
