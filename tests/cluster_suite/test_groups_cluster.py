"""Pod groups on a real control plane with their API, and kube-scheduler with its gates beside ours."""

from __future__ import annotations

import pytest

from controlplane.objects import node, pod
from controlplane.pod_groups import (
    GATES,
    SCHEDULED,
    TOPOLOGY,
    UNSCHEDULABLE,
    WAIT,
    WHOLE,
    create_class,
    create_group,
    group_condition,
    plane_with_groups,
    victims,
    wipe,
)
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually

NO_ROOM = (
    "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
    "0/2 nodes are available: 2 No preemption victims found for incoming pod."
)


@pytest.fixture(scope="module")
def running_plane(tmp_path_factory):
    with plane_with_groups(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.fixture
def plane(running_plane):
    wipe(running_plane)
    return running_plane


@pytest.fixture(params=["stowplan", "kube_scheduler"])
def scheduler(request, plane):
    """Ours, then kube-scheduler: what follows holds for both."""
    return getattr(plane, request.param)


def fill(plane, count=4):
    """Two nodes of four CPUs, full of pods of two."""
    add_nodes(plane, node("n1"), node("n2"))
    requests = {"cpu": "2"}
    create(plane, *(pod(f"low{n}", requests=requests, nodeName=f"n{n % 2 + 1}") for n in range(count)))


async def test_scenario_3_a_gang_that_fits(plane, scheduler):
    add_nodes(plane, node("n1"), node("n2"))
    with scheduler(GATES):
        create_group(plane, 3, 3)
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        await eventually(lambda: group_condition(plane), lambda found: found == SCHEDULED)


async def test_scenarios_5_and_6_a_gang_that_does_not_fit_and_then_does(plane, scheduler):
    add_nodes(plane, node("n1"), node("n2"))
    with scheduler(GATES):
        create_group(plane, 9, 9)
        texts = await eventually(
            lambda: sorted((condition(plane, f"g{number}") or {}).get("message", "") for number in range(9)),
            lambda found: found == [NO_ROOM] + [WAIT] * 8,
        )
        assert len(texts) == 9
        await eventually(lambda: group_condition(plane), lambda found: found == UNSCHEDULABLE)
        assert not any(placed(plane).values())
        add_nodes(plane, node("n3"))
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        await eventually(lambda: group_condition(plane), lambda found: found == SCHEDULED)


async def test_scenario_12_two_gangs_and_room_for_one(plane, scheduler):
    add_nodes(plane, node("n1"))
    with scheduler(GATES):
        create_group(plane, 3, 3, "a")
        await eventually(lambda: placed(plane), lambda each: all(each.values()))
        create_group(plane, 3, 3, "b")
        await eventually(lambda: group_condition(plane, "b"), bool)
        assert {name[0] for name, node_name in placed(plane).items() if node_name} == {"a"}


async def test_scenario_46_the_rack_that_becomes_fullest(plane, scheduler):
    small = node("a0", labels={"rack": "ra"})
    large = [node(f"b{number}", labels={"rack": "rb"}) for number in range(2)]
    add_nodes(plane, small, *large)
    with scheduler(TOPOLOGY):
        create_group(plane, 4, 4, schedulingConstraints={"topology": [{"key": "rack"}]})
        found = await eventually(lambda: placed(plane), lambda each: all(each.values()))
        assert set(found.values()) == {"a0"}


async def test_scenario_40_nobody_is_evicted_in_vain(plane):
    """kube-scheduler evicts all four."""
    fill(plane)
    create_class(plane)
    with plane.stowplan(GATES):
        create_group(plane, 3, 3, cpu="4", pods={"priorityClassName": "high"})
        await eventually(lambda: group_condition(plane), lambda found: found == UNSCHEDULABLE)
        assert victims(plane) == set()


async def test_scenario_56_a_group_preempts_by_its_own_class(plane, scheduler):
    fill(plane)
    create_class(plane)
    with scheduler(WHOLE):
        create_group(plane, 2, 2, cpu="2", priorityClassName="high")
        gone = await eventually(lambda: victims(plane), lambda found: len(found) == 2)
        assert gone in ({"low0", "low2"}, {"low1", "low3"})
        await eventually(lambda: group_condition(plane), lambda found: found == UNSCHEDULABLE)
