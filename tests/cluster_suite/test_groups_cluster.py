"""Pod groups on a real control plane with their API, and kube-scheduler with its gates beside ours."""

from __future__ import annotations

import pytest

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually

GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
WAIT = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)
NO_ROOM = (
    "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
    "0/2 nodes are available: 2 No preemption victims found for incoming pod."
)


@pytest.fixture(scope="module")
def plane_with_groups(tmp_path_factory):
    plane = ControlPlane(
        tmp_path_factory.mktemp("groups"), GATES, "--runtime-config=scheduling.k8s.io/v1alpha2=true"
    )
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def plane(plane_with_groups):
    plane_with_groups.wipe()
    for item in plane_with_groups.request("GET", GROUPS)["items"]:
        path = f"{GROUPS}/{item['metadata']['name']}"
        plane_with_groups.request("PATCH", path, {"metadata": {"finalizers": None}})
        plane_with_groups.request("DELETE", path)
    return plane_with_groups


@pytest.fixture(params=["stowplan", "kube_scheduler"])
def scheduler(request, plane):
    """Ours, then kube-scheduler: what follows holds for both."""
    return getattr(plane, request.param)


def create_group(plane, count, least, name="g"):
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}},
    }
    plane.request("POST", GROUPS, group)
    member = {"schedulingGroup": {"podGroupName": name}}
    create(plane, *(pod(f"{name}{number}", requests={"cpu": "1"}, **member) for number in range(count)))


def group_condition(plane, name="g"):
    found = plane.request("GET", f"{GROUPS}/{name}").get("status", {}).get("conditions", [])
    return [(each["type"], each["status"], each["reason"], each.get("message", "")) for each in found]


async def test_scenario_3_a_gang_that_fits(plane, scheduler):
    add_nodes(plane, node("n1"), node("n2"))
    with scheduler(GATES):
        create_group(plane, 3, 3)
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        expected = [("PodGroupScheduled", "True", "Scheduled", "")]
        await eventually(lambda: group_condition(plane), lambda found: found == expected)


async def test_scenarios_5_and_6_a_gang_that_does_not_fit_and_then_does(plane, scheduler):
    add_nodes(plane, node("n1"), node("n2"))
    with scheduler(GATES):
        create_group(plane, 9, 9)
        texts = await eventually(
            lambda: sorted((condition(plane, f"g{number}") or {}).get("message", "") for number in range(9)),
            lambda found: found == [NO_ROOM] + [WAIT] * 8,
        )
        assert len(texts) == 9
        expected = [("PodGroupScheduled", "False", "Unschedulable", "pod group is unschedulable")]
        await eventually(lambda: group_condition(plane), lambda found: found == expected)
        assert not any(placed(plane).values())
        add_nodes(plane, node("n3"))
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        expected = [("PodGroupScheduled", "True", "Scheduled", "")]
        await eventually(lambda: group_condition(plane), lambda found: found == expected)


async def test_scenario_12_two_gangs_and_room_for_one(plane, scheduler):
    add_nodes(plane, node("n1"))
    with scheduler(GATES):
        create_group(plane, 3, 3, "a")
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        create_group(plane, 3, 3, "b")
        await eventually(lambda: group_condition(plane, "b"), bool)
        assert {name[0] for name, node_name in placed(plane).items() if node_name} == {"a"}
