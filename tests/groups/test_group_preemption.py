"""Groups that make room for themselves: no victim is evicted unless the whole group fits then."""

from __future__ import annotations

import random

import pytest
from groups_staging import (
    GANG,
    UNSCHEDULABLE,
    WAIT,
    WHOLE,
    attempts,
    group_condition,
    holds_nothing,
    last_text,
    member,
    members,
    pod_group,
)

from scheduler_staging import node, pod, staged

WAITING = f"{UNSCHEDULABLE}, pod group is waiting for preemption to complete"
LABELS = {"kubernetes.io/hostname": "n1"}


def nominations(stage):
    return {
        key.partition("/")[2]: status["nominatedNodeName"]
        for key, status in stage.api.patches
        if status.get("nominatedNodeName")
    }


def stage_of(gates, **options):
    return staged(gates=gates, draw=random.Random(1), **options)


def low_pods(*names, on="n1", **spec):
    return [pod(name, on=on, **spec) for name in names]


def two_full_nodes(**spec):
    return [
        node("n1", cpu="2"),
        node("n2", cpu="2"),
        *low_pods("a", "b", on="n1", **spec),
        *low_pods("c", "d", on="n2", **spec),
    ]


async def evict_all(stage, plain):
    """The kubelets end the victims that were deleted."""
    for each in plain:
        if f"default/{each['metadata']['name']}" in stage.api.deleted:
            stage.change(each, None)
    await stage.settle()


async def test_scenario_39_each_member_preempts_and_all_are_nominated():
    now = [1000.0]
    async with stage_of(GANG, now=lambda: now[0]) as stage:
        cluster = two_full_nodes()
        stage.see(*cluster, pod_group(least=2), *members(2, cpu="2", priority=10))
        await stage.settle()
        assert sorted(stage.api.deleted) == ["default/a", "default/b", "default/c", "default/d"]
        assert sorted(nominations(stage).values()) == ["n1", "n2"]
        assert {last_text(stage, f"g{number}") for number in range(2)} == {
            "0/2 nodes are available: 2 Insufficient cpu."
        }
        assert group_condition(stage) == ("False", "Unschedulable", WAITING)
        assert attempts(stage) == {"waiting_on_preemption": 1}
        assert holds_nothing(stage)
        now[0] += 5
        await evict_all(stage, cluster[2:])
        assert len(stage.api.bound) == 2
        assert len(stage.api.deleted) == 4


async def test_scenario_40_nobody_is_evicted_in_vain():
    async with stage_of(GANG) as stage:
        stage.see(*two_full_nodes(), pod_group(least=3), *members(3, cpu="2", priority=10))
        await stage.settle()
        assert (stage.api.deleted, stage.api.bound, nominations(stage)) == ([], {}, {})
        texts = sorted(last_text(stage, f"g{number}") for number in range(3))
        assert texts[0].startswith("0/2 nodes are available: 2 Insufficient cpu. ")
        assert texts[1:] == [WAIT, WAIT]
        assert group_condition(stage) == ("False", "Unschedulable", UNSCHEDULABLE)
        assert len(list(stage.scheduler.cluster.pods())) == 4


async def test_members_use_room_that_victims_of_others_leave():
    """One large victim makes room for both members."""
    async with stage_of(GANG) as stage:
        stage.see(
            node("n1", cpu="2"), *low_pods("big", cpu="2"), pod_group(least=2), *members(2, priority=10)
        )
        await stage.settle()
        assert stage.api.deleted == ["default/big"]
        assert list(nominations(stage).values()) == ["n1", "n1"]


async def test_members_of_lower_priority_are_not_evicted_for_others_of_their_group():
    async with stage_of(GANG) as stage:
        own = member("own", on="n1", cpu="4")
        stage.see(node("n1"), pod_group(least=2), own, member("new", cpu="4", priority=10))
        await stage.settle()
        assert (stage.api.deleted, stage.api.bound) == ([], {})


async def test_scenario_67b_a_surplus_member_that_could_preempt_holds_nobody_back():
    async with stage_of(GANG) as stage:
        stage.see(node("n1", cpu="2"), node("n2", cpu="1"), *low_pods("a", on="n2"))
        stage.see(pod_group(least=2), *members(3, priority=10))
        await stage.settle()
        assert len(stage.api.bound) == 2
        assert attempts(stage) == {"scheduled": 1}
        assert stage.api.deleted == ["default/a"]
        assert list(nominations(stage).values()) == ["n2"]


async def test_scenario_56_a_group_preempts_by_its_own_class():
    now = [1000.0]
    async with stage_of(WHOLE, now=lambda: now[0]) as stage:
        cluster = two_full_nodes()
        stage.see(*cluster, pod_group(least=2, priority=1000), *members(2))
        await stage.settle()
        assert len(stage.api.deleted) == 2
        assert {each[8:] for each in stage.api.deleted} in ({"a", "b"}, {"c", "d"})
        notes = stage.notes("Preempted")
        assert notes == ["Preempted by podgroup uid-g on node cluster"] * 2
        (condition,) = stage.api.conditions(stage.api.deleted[0])
        assert condition["message"] == (
            "default-scheduler: preempting to accommodate a higher priority podgroup"
        )
        assert len(nominations(stage)) == 2
        assert group_condition(stage) == ("False", "Unschedulable", UNSCHEDULABLE)
        assert attempts(stage) == {"waiting_on_preemption": 1}
        now[0] += 5
        await evict_all(stage, cluster[2:])
        assert len(stage.api.bound) == 2
        assert len(stage.api.deleted) == 2


async def test_scenario_57_all_members_are_nominated_also_the_one_that_fitted():
    async with stage_of(WHOLE) as stage:
        stage.see(node("n1", cpu="1"), node("n2", cpu="1"), *low_pods("a"))
        stage.see(pod_group(least=2, priority=1000), *members(2))
        await stage.settle()
        assert stage.api.deleted == ["default/a"]
        assert sorted(nominations(stage).values()) == ["n1", "n2"]


async def test_scenario_58_a_class_of_the_pods_does_not_count():
    async with stage_of(WHOLE) as stage:
        stage.see(*two_full_nodes(), pod_group(least=2), *members(2, priority=1000))
        await stage.settle()
        assert stage.api.deleted == []
        text = f"{UNSCHEDULABLE}, No preemption victims found for incoming preemptor"
        assert group_condition(stage) == ("False", "Unschedulable", text)
        assert last_text(stage, "g0").endswith("not eligible due to workload aware preemption enabled")


async def test_scenario_59_members_that_never_preempt():
    async with stage_of(WHOLE) as stage:
        pods = members(2, preemptionPolicy="Never")
        stage.see(*two_full_nodes(), pod_group(least=2, priority=1000), *pods)
        await stage.settle()
        assert stage.api.deleted == []
        text = f"{UNSCHEDULABLE}, not eligible due to preemptionPolicy=Never."
        assert group_condition(stage) == ("False", "Unschedulable", text)


async def test_scenario_60_a_group_that_is_evicted_as_a_whole():
    async with stage_of(WHOLE) as stage:
        victims = [member(name, "v", on="n1") for name in ("x", "y", "z")]
        stage.see(node("n1", cpu="3"), pod_group("v", least=1, disruptionMode="PodGroup"), *victims)
        stage.see(pod_group(least=1, priority=1000), member("g0"))
        await stage.settle()
        assert sorted(stage.api.deleted) == ["default/x", "default/y", "default/z"]
        condition = group_condition(stage, "v")
        assert condition is not None
        assert condition[:2] == ("True", "PreemptionByScheduler")


async def test_a_group_of_higher_priority_keeps_its_members_of_lower_priority():
    async with stage_of(WHOLE) as stage:
        safe = pod_group("v", least=1, disruptionMode="PodGroup", priority=2000)
        stage.see(node("n1", cpu="1"), safe, member("x", "v", on="n1"))
        stage.see(pod_group(least=1, priority=1000), member("g0"))
        await stage.settle()
        assert stage.api.deleted == []


async def test_scenario_61_own_members_are_never_victims():
    async with stage_of(WHOLE) as stage:
        own = [member(f"own{number}", on="n1") for number in range(2)]
        stage.see(node("n1", cpu="2"), pod_group(least=1, priority=1000), *own, member("new"))
        await stage.settle()
        assert (stage.api.deleted, stage.api.bound) == ([], {})
        text = f"{UNSCHEDULABLE}, No preemption victims found for incoming preemptor"
        assert group_condition(stage) == ("False", "Unschedulable", text)


async def test_scenario_62_a_group_that_the_cluster_cannot_hold():
    async with stage_of(WHOLE) as stage:
        stage.see(*two_full_nodes(), pod_group(least=5, priority=1000), *members(5))
        await stage.settle()
        assert stage.api.deleted == []
        text = f"{UNSCHEDULABLE}, {UNSCHEDULABLE}"
        assert group_condition(stage) == ("False", "Unschedulable", text)
        assert len(list(stage.scheduler.cluster.pods())) == 4


def budget(labels):
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": 0},
    }


@pytest.mark.parametrize("covered", ["ab", "abcd"], ids=["scenario 63", "scenario 64"])
async def test_budgets_are_respected_where_possible(covered):
    async with stage_of(WHOLE) as stage:
        cluster = two_full_nodes()
        for plain in cluster[2:]:
            if plain["metadata"]["name"] in covered:
                plain["metadata"]["labels"] = {"app": "safe"}
        stage.see(budget({"app": "safe"}), *cluster, pod_group(least=2, priority=1000), *members(2))
        await stage.settle()
        assert len(stage.api.deleted) == 2
        if covered == "ab":
            assert sorted(stage.api.deleted) == ["default/c", "default/d"]


async def test_scenario_66_a_lone_pod_evicts_a_group_as_a_whole_or_not_at_all():
    async with stage_of(WHOLE) as stage:
        whole = pod_group("v", least=1, disruptionMode="PodGroup", priority=5)
        victims = [member(name, "v", on="n1") for name in ("x", "y")]
        stage.see(node("n1", cpu="2"), whole, *victims, pod("high", priority=10))
        await stage.settle()
        assert sorted(stage.api.deleted) == ["default/x", "default/y"]
    async with stage_of(WHOLE) as stage:
        whole = pod_group("v", least=1, disruptionMode="PodGroup", priority=50)
        stage.see(node("n1", cpu="2"), whole, *victims, pod("high", priority=10))
        await stage.settle()
        assert stage.api.deleted == []


PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def leaving(plain, condition=PREEMPTED):
    """A victim that takes its time to end."""
    return {
        **plain,
        "metadata": {**plain["metadata"], "deletionTimestamp": "2026-11-15T22:00:00Z"},
        "status": {"conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("condition", "cordoned", "waits"),
    [
        pytest.param(PREEMPTED, False, True, id="evicted: wait for them"),
        pytest.param(PREEMPTED | {"status": "False"}, False, False, id="a disruption that is off"),
        pytest.param(PREEMPTED | {"reason": "DeletionByTaintManager"}, False, False, id="somebody else's"),
        pytest.param(PREEMPTED, True, False, id="their node takes no pods any more"),
    ],
)
async def test_a_group_waits_for_the_victims_on_its_nodes(condition, cordoned, waits):
    """n1 was to be cleared for it; n2 has pods to evict, too."""
    async with stage_of(WHOLE) as stage:
        ending = [leaving(plain, condition) for plain in low_pods("a", "b")]
        nodes = [node("n1", cpu="2", spec={"unschedulable": cordoned}), node("n2", cpu="2")]
        nominated = [{**plain, "status": {"nominatedNodeName": "n1"}} for plain in members(2)]
        others = low_pods("c", "d", on="n2")
        stage.see(*nodes, *ending, *others, pod_group(least=2, priority=1000), *nominated)
        await stage.settle()
        assert (stage.api.deleted == []) == waits
        if cordoned:
            assert sorted(stage.api.deleted) == ["default/c", "default/d"]


async def test_scenario_67_the_room_is_held_while_victims_end():
    now = [1000.0]
    async with stage_of(WHOLE, now=lambda: now[0]) as stage:
        victims = low_pods("a", "b")
        stage.see(node("n1", cpu="2"), *victims, pod_group(least=2, priority=1000), *members(2))
        await stage.settle()
        assert sorted(stage.api.deleted) == ["default/a", "default/b"]
        ending = [leaving(plain) for plain in victims]
        for old, new in zip(victims, ending, strict=True):
            stage.change(old, new)
        stage.see(*(pod(f"middle{number}", priority=500) for number in range(2)))
        for _ in range(3):
            now[0] += 12
            stage.scheduler.queue.flush_backoff()
            await stage.settle()
        assert (stage.api.bound, len(stage.api.deleted)) == ({}, 2)
        stage.change(ending[0], None)  # the first half of the room is free, and is kept for the group
        now[0] += 12
        await stage.settle()
        assert stage.api.bound == {}
        stage.change(ending[1], None)
        now[0] += 12
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert stage.api.bound == {"default/g0": "n1", "default/g1": "n1"}


async def test_scenario_67a_a_third_member_arrives_while_victims_end():
    now = [1000.0]
    async with stage_of(WHOLE, now=lambda: now[0]) as stage:
        cluster = two_full_nodes()
        stage.see(*cluster, pod_group(least=2, priority=1000), *members(2))
        await stage.settle()
        gone = list(stage.api.deleted)
        assert len(gone) == 2
        victims = [each for each in cluster[2:] if f"default/{each['metadata']['name']}" in gone]
        for plain in victims:
            stage.change(plain, leaving(plain))
        tried = sum(attempts(stage).values())
        stage.see(member("g2"))
        for _ in range(20):
            now[0] += 0.5
            stage.scheduler.queue.flush_backoff()
            await stage.settle()
        assert stage.api.deleted == gone
        assert sum(attempts(stage).values()) <= tried + 3  # no loop until they are gone
        now[0] += 12
        for plain in victims:
            stage.change(leaving(plain), None)
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert {"default/g0", "default/g1"} <= stage.api.bound.keys()
