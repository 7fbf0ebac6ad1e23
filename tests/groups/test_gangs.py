"""Gangs in the running scheduler: the scenarios of the specification, each by its number."""

from __future__ import annotations

import asyncio
import random

import pytest
from groups_staging import (
    GANG,
    TOO_FEW,
    UNSCHEDULABLE,
    WAIT,
    attempts,
    group_condition,
    holds_nothing,
    last_text,
    member,
    members,
    pod_group,
)
from slow_binding import SlowToBind, with_slow

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Status
from stowplan.client.errors import Forbidden

NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu. "


def gang_stage(**options):
    return staged(gates=GANG, draw=random.Random(1), **options)


async def report_gated(stage, now):
    now[0] += 3
    stage.scheduler.report_gated()
    await stage.settle()


def counts(stage):
    return {place: count for place, count in stage.scheduler.queue.counts().items() if count}


async def test_scenario_1_a_group_that_does_not_exist():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), member("a"))
        await stage.settle()
        assert counts(stage) == {"gated": 1}
        await report_gated(stage, now)
        await report_gated(stage, now)
        text = 'waiting for pods\'s pod group "g" to appear in scheduling queue'
        (condition,) = stage.api.conditions("default/a")
        assert (condition["reason"], condition["message"]) == ("Unschedulable", text)
        assert stage.notes("FailedScheduling") == [text]
        stage.see(pod_group(least=1))
        await stage.settle()
        assert stage.api.bound == {"default/a": "n1"}


async def test_scenarios_2_to_4_members_wait_until_enough_are_there():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        first, second, third, fourth = members(4)
        stage.see(node("n1"), node("n2"), pod_group(least=3), first, second)
        await stage.settle()
        assert counts(stage) == {"gated": 2}
        assert group_condition(stage) is None
        assert last_text(stage, "g0") == ""  # the others of the group may be on their way
        await report_gated(stage, now)
        assert {last_text(stage, name) for name in ("g0", "g1")} == {TOO_FEW}
        stage.see(third)
        await stage.settle()
        assert len(stage.api.bound) == 3
        assert group_condition(stage) == ("True", "Scheduled", "")
        assert attempts(stage) == {"scheduled": 1}
        stage.change(pod_group(least=3), pod_group(least=3, condition=True))
        stage.see(fourth)
        await stage.settle()
        assert len(stage.api.bound) == 4
        assert len(stage.api.group_patches) == 1


async def test_scenario_5_a_gang_that_does_not_fit_is_attempted_once_and_holds_nothing():
    async with gang_stage() as stage:
        stage.see(node("n1"), node("n2"), pod_group(least=9), *members(9))
        await stage.settle()
        assert stage.api.bound == {}
        texts = sorted(last_text(stage, f"g{number}") for number in range(9))
        assert texts[0].startswith(NO_ROOM)
        assert texts[0].endswith("2 No preemption victims found for incoming pod.")
        assert texts[1:] == [WAIT] * 8
        assert group_condition(stage) == ("False", "Unschedulable", UNSCHEDULABLE)
        assert attempts(stage) == {"unschedulable": 1}
        assert holds_nothing(stage)
        assert counts(stage) == {"unschedulable": 9}


async def test_scenario_6_a_node_lets_the_gang_in():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), node("n2"), pod_group(least=9), *members(9))
        await stage.settle()
        now[0] += 2
        stage.see(node("n3"))
        await stage.settle()
        assert len(stage.api.bound) == 9
        assert group_condition(stage) == ("True", "Scheduled", "")


async def test_a_group_is_not_attempted_before_its_backoff_is_over():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=5), *members(5))
        await stage.settle()
        stage.see(node("n2"))
        await stage.settle()
        assert attempts(stage) == {"unschedulable": 1}
        assert counts(stage)["backoff"] > 0
        now[0] += 3
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert len(stage.api.bound) == 5


async def test_events_that_help_no_member_wake_nobody():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=5), *members(5))
        await stage.settle()
        now[0] += 60
        stage.see(node("tiny", cpu="100m"), pod_group("other", least=1))
        await stage.settle()
        assert attempts(stage) == {"unschedulable": 1}


async def test_an_event_that_helps_a_member_that_fits_wakes_the_group():
    """A small node takes the small member, and so makes room for the large one."""
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1", cpu="4"), pod_group(least=2), member("small", cpu="1"), member("large", cpu="4"))
        await stage.settle()
        assert stage.api.bound == {}
        now[0] += 60
        stage.see(node("n2", cpu="1"))
        await stage.settle()
        assert stage.api.bound == {"default/small": "n2", "default/large": "n1"}


@pytest.mark.parametrize("least", [3, None], ids=["scenario 7", "scenario 8"])
async def test_members_beyond_the_minimum_go_along_if_they_fit(least):
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=least), *members(5))
        await stage.settle()
        assert len(stage.api.bound) == 4
        (left,) = {f"g{number}" for number in range(5)} - {key.partition("/")[2] for key in stage.api.bound}
        assert last_text(stage, left).startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert group_condition(stage) == ("True", "Scheduled", "")
        assert attempts(stage) == {"scheduled": 1}


async def test_a_late_member_does_not_undo_what_the_condition_says():
    """The watch may not have shown yet that the group was scheduled."""
    async with gang_stage() as stage:
        stage.see(node("n1", cpu="3"), pod_group(least=3), *members(3))
        await stage.settle()
        assert group_condition(stage) == ("True", "Scheduled", "")
        stage.see(member("late"))
        await stage.settle()
        assert last_text(stage, "late").startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert group_condition(stage) == ("True", "Scheduled", "")
        again = pod_group(least=3)
        again["metadata"]["uid"] = "other"  # a group of the same name is another one
        stage.change(pod_group(least=3), None)
        stage.see(again, *(member(f"new{number}", cpu="2") for number in range(3)))
        await stage.settle()
        assert group_condition(stage)[0] == "False"


async def test_scenario_9_a_group_of_one():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=1), member("a"))
        await stage.settle()
        assert stage.api.bound == {"default/a": "n1"}


async def test_scenario_10_a_group_without_pods():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=3))
        await stage.settle()
        assert (stage.api.group_patches, attempts(stage)) == ([], {})


async def test_scenario_11_fewer_pods_than_the_minimum():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=5), *members(3))
        await stage.settle()
        assert counts(stage) == {"gated": 3}
        assert attempts(stage) == {}


async def test_scenarios_12_and_13_two_groups_and_room_for_one():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        first, second = members(3, "a"), members(3, "b")
        stage.see(node("n1"), pod_group("a", least=3), pod_group("b", least=3), *first, *second)
        await stage.settle()
        assert set(stage.api.bound) == {f"default/a{number}" for number in range(3)}
        texts = sorted(last_text(stage, f"b{number}") for number in range(3))
        assert [text.startswith("0/1 nodes are available: 1 Insufficient cpu.") for text in texts] == [
            True,
            True,
            False,
        ]
        assert texts[2] == WAIT
        now[0] += 5
        for plain in first:
            placed = {**plain, "spec": {**plain["spec"], "nodeName": "n1"}}
            stage.change(plain, placed)
            stage.change(placed, None)
        await stage.settle()
        assert len(stage.api.bound) == 6


async def test_scenario_14_a_group_that_shrinks_below_its_minimum_is_not_attempted_again():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        pods = members(5)
        stage.see(node("n1"), pod_group(least=5), *pods)
        await stage.settle()
        texts = {name: last_text(stage, name) for name in ("g0", "g1", "g2", "g3")}
        stage.change(pods[4], None)
        now[0] += 5
        stage.see(node("n2"))
        await stage.settle()
        assert counts(stage) == {"gated": 4}
        assert attempts(stage) == {"unschedulable": 1}
        assert {name: last_text(stage, name) for name in texts} == texts


async def test_scenario_15_a_group_that_shrinks_and_still_has_its_minimum():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        selector = {"kubernetes.io/os": "plan9"}
        wrong = member("wrong", nodeSelector=selector)
        pods = [wrong, *members(5)]
        stage.see(node("n1"), pod_group(least=5), *pods)
        await stage.settle()
        stage.change(wrong, None)
        now[0] += 5
        stage.see(node("n2"))
        await stage.settle()
        assert len(stage.api.bound) == 5


@pytest.mark.parametrize(("least", "bound"), [(3, 0), (2, 2)], ids=["scenario 16", "scenario 17"])
async def test_a_member_that_no_node_takes(least, bound):
    async with gang_stage() as stage:
        odd = member("odd", nodeSelector={"kubernetes.io/os": "plan9"})
        stage.see(node("n1"), pod_group(least=least), odd, *members(2))
        await stage.settle()
        assert len(stage.api.bound) == bound
        text = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        assert last_text(stage, "odd").startswith(text)
        if not bound:
            assert {last_text(stage, "g0"), last_text(stage, "g1")} == {WAIT}


async def test_scenario_18_a_member_with_scheduling_gates():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        held = member("held", schedulingGates=[{"name": "later"}])
        stage.see(node("n1"), pod_group(least=2), held, member("a"))
        await stage.settle()
        assert stage.api.bound == {}
        assert last_text(stage, "a") == WAIT
        now[0] += 5
        stage.change(held, member("held"))
        await stage.settle()
        assert set(stage.api.bound) == {"default/held", "default/a"}


async def test_scenarios_19_and_20_a_member_of_another_scheduler():
    async with gang_stage() as stage:
        other = member("other", schedulerName="other")
        stage.see(node("n1"), pod_group(least=2), other, member("a"))
        await stage.settle()
        assert counts(stage) == {"gated": 1}
        stage.change(other, member("other", schedulerName="other", on="n1"))
        await stage.settle()
        assert stage.api.bound == {"default/a": "n1"}


async def test_scenario_21_members_of_two_profiles():
    config = {"profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "two"}]}
    async with gang_stage(config=config) as stage:
        stage.see(node("n1"), pod_group(least=2), member("a"), member("b", schedulerName="two"))
        await stage.settle()
        texts = {last_text(stage, name) for name in ("a", "b")}
        wanted = "all pods in a single pod group should have the same .spec.schedulerName set, got: "
        assert len(texts) == 1
        assert texts.pop().startswith(wanted)
        assert {stage.api.conditions(f"default/{name}")[-1]["reason"] for name in "ab"} == {"SchedulerError"}
        assert (group_condition(stage), attempts(stage)) == (None, {})


async def test_scenario_22_priorities_differ_and_one_fits():
    async with gang_stage() as stage:
        low, high = member("a", priority=1), member("b", priority=10)
        stage.see(node("n1", cpu="1"), pod_group(least=2), low, high)
        await stage.settle()
        assert stage.api.bound == {}
        assert last_text(stage, "b") == WAIT
        assert "Insufficient cpu" in last_text(stage, "a")


def affinity(kind, labels):
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def labelled(plain, **labels):
    plain["metadata"]["labels"] = labels
    return plain


def host(name, **options):
    found = node(name, **options)
    found["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    return found


@pytest.mark.parametrize("priority", [0, 10], ids=["scenario 23", "scenario 24"])
async def test_affinity_to_another_member(priority):
    """The follower is found a place whether or not it comes before the leader."""
    async with gang_stage() as stage:
        leader = labelled(member("leader", priority=5), role="leader")
        wants = affinity("podAffinity", {"role": "leader"})
        follower = labelled(member("follower", priority=priority, affinity=wants), role="follower")
        stage.see(host("n1"), host("n2"), pod_group(least=2), leader, follower)
        await stage.settle()
        assert len(stage.api.bound) == 2
        assert len(set(stage.api.bound.values())) == 1


async def test_scenario_25_anti_affinity_against_a_later_member():
    async with gang_stage() as stage:
        alone = affinity("podAntiAffinity", {"role": "follower"})
        leader = labelled(member("leader", priority=5, affinity=alone), role="leader")
        follower = labelled(member("follower"), role="follower")
        stage.see(host("n1"), pod_group(least=2), leader, follower)
        await stage.settle()
        assert stage.api.bound == {}
        assert last_text(stage, "leader") == WAIT
        assert "didn't satisfy existing pods anti-affinity rules" in last_text(stage, "follower")


@pytest.mark.parametrize("nodes", [1, 2], ids=["scenario 26", "scenario 27"])
async def test_mutual_anti_affinity(nodes):
    async with gang_stage() as stage:
        alone = affinity("podAntiAffinity", {"app": "x"})
        pods = [labelled(member(name, affinity=alone), app="x") for name in ("a", "b")]
        stage.see(*(host(f"n{number}") for number in range(nodes)), pod_group(least=2), *pods)
        await stage.settle()
        if nodes == 2:
            assert sorted(stage.api.bound.values()) == ["n0", "n1"]
            return
        assert stage.api.bound == {}
        texts = sorted(last_text(stage, name) for name in ("a", "b"))
        assert "didn't match pod anti-affinity rules" in texts[0]
        assert texts[1] == WAIT


async def test_scenario_28_the_group_is_removed_while_it_waits():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=5), *members(5))
        await stage.settle()
        now[0] += 5
        stage.change(pod_group(least=5), None)
        await stage.settle()
        assert counts(stage) == {"gated": 5}
        stage.see(node("n2"))
        await stage.settle()
        assert stage.api.bound == {}
        stage.see(pod_group(least=5))
        await stage.settle()
        assert len(stage.api.bound) == 5


async def test_scenario_29_a_group_that_is_being_deleted_still_schedules():
    async with gang_stage() as stage:
        leaving = pod_group(least=2)
        leaving["metadata"]["deletionTimestamp"] = "2026-11-15T22:00:00Z"
        stage.see(node("n1"), leaving, *members(2))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_scenario_30_the_binding_of_one_member_is_refused():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        pods = members(3)
        create = stage.api.create_binding

        async def refuse_first(pod, node_name):
            if pod.name == "g0" and now[0] < 1002:
                raise Forbidden(403, "Forbidden", 'pods "g0" is forbidden: no')
            await create(pod, node_name)

        stage.api.create_binding = refuse_first
        for plain in pods:
            stage.store(plain, plain)
        stage.see(node("n1"), pod_group(least=3), *pods)
        await stage.settle()
        assert set(stage.api.bound) == {"default/g1", "default/g2"}
        assert last_text(stage, "g0") == 'running Bind plugin "DefaultBinder": pods "g0" is forbidden: no'
        assert group_condition(stage) == ("True", "Scheduled", "")
        now[0] += 4
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert len(stage.api.bound) == 3


async def test_scenario_31_a_chosen_node_is_deleted_before_the_first_binding():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0], plugins={"SlowToBind": SlowToBind}, **with_slow()) as stage:
        SlowToBind.release = False
        stage.see(node("n1", cpu="2"), node("n2", cpu="2"), pod_group(least=4), *members(4))
        await stage.settle()
        assert stage.api.bound == {}
        stage.change(node("n2", cpu="2"), None)
        SlowToBind.release = True
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        assert {last_text(stage, f"g{number}") for number in range(4)} == {
            'node "n2" was deleted before the pod group could be bound'
        }
        now[0] += 3
        stage.see(node("n3", cpu="2"))
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert len(stage.api.bound) == 4


async def test_scenario_33_a_member_that_runs_already_counts():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=3), member("old", on="n1"), *members(2))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_scenario_35_members_that_succeeded_count():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=2))
        for name in ("a", "b"):
            running = member(name, on="n1")
            stage.see(running)
            stage.change(running, {**running, "status": {"phase": "Succeeded"}})
        stage.see(member("c"))
        await stage.settle()
        assert stage.api.bound == {"default/c": "n1"}


async def test_a_group_that_was_scheduled_once_is_not_held_back_again():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=2, condition=True), member("c"))
        await stage.settle()
        assert stage.api.bound == {"default/c": "n1"}


async def test_scenario_36_no_nodes():
    async with gang_stage() as stage:
        stage.see(pod_group(least=2), *members(2))
        await stage.settle()
        assert {last_text(stage, f"g{number}") for number in range(2)} == {
            "no nodes available to schedule pods"
        }
        assert group_condition(stage) == ("False", "Unschedulable", UNSCHEDULABLE)


async def test_scenario_41_a_plain_pod_is_bound_while_a_group_waits():
    async with gang_stage() as stage:
        stage.see(node("n1"), pod_group(least=5), *members(5), pod("plain"))
        await stage.settle()
        assert set(stage.api.bound) == {"default/plain"}


async def test_without_gates_members_are_plain_pods():
    async with staged() as stage:
        stage.see(node("n1"), *members(2))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_unlike_members_fit_in_another_order():
    """First come, first served leaves no node for the large one."""
    async with gang_stage() as stage:
        small = [member(f"a{number}", cpu="2") for number in range(2)]
        stage.see(node("n1", cpu="4"), node("n2", cpu="4"), pod_group(least=3), *small, member("b", cpu="4"))
        await stage.settle()
        assert len(stage.api.bound) == 3


class HeldBindings(Plugin):
    """Holds back the bindings of some pods until told otherwise."""

    held: set[str] = set()

    async def pre_bind(self, state, pod, node_name):
        while pod.name in HeldBindings.held:
            await asyncio.sleep(0)


async def test_scenario_32_a_node_is_deleted_after_two_of_four_are_bound():
    now = [1000.0]
    profile = {"plugins": {"preBind": {"enabled": [{"name": "HeldBindings"}]}}}
    options = {"config": {"profiles": [profile]}, "plugins": {"HeldBindings": HeldBindings}}
    HeldBindings.held = {"g2", "g3"}
    async with gang_stage(now=lambda: now[0], **options) as stage:
        pods = members(4)
        for number, plain in enumerate(pods):
            plain["spec"]["nodeSelector"] = {"rack": "ab"[number // 2]}
        racks = {name: node(name, cpu="2") for name in "ab"}
        for name, plain in racks.items():
            plain["metadata"]["labels"] = {"rack": name}
        group = pod_group(least=4)
        stage.see(*racks.values(), group, *pods)
        await stage.settle()
        assert stage.api.bound == {"default/g0": "a", "default/g1": "a"}
        for plain in pods[:2]:
            stage.change(plain, {**plain, "spec": {**plain["spec"], "nodeName": "a"}})
        stage.change(group, pod_group(least=4, condition=True))
        stage.change(racks["b"], None)
        HeldBindings.held = set()
        await stage.settle()
        assert len(stage.api.bound) == 2
        assert last_text(stage, "g2") == 'node "b" was deleted before the pod could be bound to it'
        assert stage.scheduler.cluster.assumed_count == 0
        now[0] += 5
        other = {**racks["b"], "metadata": {**racks["b"]["metadata"], "name": "c"}}
        stage.see(other)
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert stage.api.bound == {f"default/g{number}": "aacc"[number] for number in range(4)}
        assert stage.api.deleted == []


class HoldsMembers(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60)


async def test_scenario_34_members_show_their_node_before_they_are_bound():
    profile = {"plugins": {"permit": {"enabled": [{"name": "HoldsMembers"}]}}}
    options = {"config": {"profiles": [profile]}, "plugins": {"HoldsMembers": HoldsMembers}}
    async with gang_stage(**options) as stage:
        stage.see(node("n1", cpu="3"), node("n2", cpu="2"), pod_group(least=5), *members(5))
        await stage.settle()
        assert stage.api.bound == {}
        shown = {key: status["nominatedNodeName"] for key, status in stage.api.patches}
        for waiting in list(stage.scheduler.waiting):
            waiting.allow("HoldsMembers")
        await stage.settle()
        assert len(shown) == 5
        assert stage.api.bound == shown


async def test_scenario_45_a_gang_that_cannot_fit_is_not_attempted_without_an_event():
    """kube-scheduler attempts it again after each backoff, with SchedulerPopFromBackoffQ all the time."""
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=5), *members(5))
        await stage.settle()
        for _ in range(299):
            now[0] += 1
            stage.scheduler.queue.flush_backoff()
            stage.scheduler.queue.flush_unschedulable()
        await stage.settle()
        assert attempts(stage) == {"unschedulable": 1}
        now[0] += 2
        stage.scheduler.queue.flush_unschedulable()  # in case an event was missed
        await stage.settle()
        assert attempts(stage) == {"unschedulable": 2}


async def test_a_condition_of_its_group_is_no_event_that_helps():
    now = [1000.0]
    async with gang_stage(now=lambda: now[0]) as stage:
        group = pod_group(least=5)
        stage.see(node("n1"), group, *members(5))
        await stage.settle()
        told = {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
        stage.change(group, {**group, "status": {"conditions": [told]}})  # as it was written by ourselves
        now[0] += 20
        stage.scheduler.queue.flush_backoff()
        await stage.settle()
        assert attempts(stage) == {"unschedulable": 1}


async def test_scenario_37_members_that_share_a_claim_for_one_pod():
    async with gang_stage() as stage:
        claim = {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "pv"},
        }
        volume = {
            "kind": "PersistentVolume",
            "metadata": {"name": "pv"},
            "spec": {
                "accessModes": ["ReadWriteOncePod"],
                "claimRef": {"name": "data", "namespace": "default", "uid": ""},
            },
        }
        claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        mounts = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
        stage.see(node("n1"), volume, claim, pod_group(least=2), *members(2, volumes=mounts))
        await stage.settle()
        assert stage.api.bound == {}
        texts = sorted(last_text(stage, name) for name in ("g0", "g1"))
        text = "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
        assert text in texts[0]
        assert texts[1] == WAIT


@pytest.mark.parametrize("objects", [[pod_group(least=3)], []], ids=["scenario 42", "scenario 43"])
async def test_with_generic_workload_alone_the_minimum_has_no_effect(objects):
    async with staged(gates=("GenericWorkload",)) as stage:
        stage.see(node("n1"), *objects, *members(2))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_groups_of_1_35_and_1_37():
    async with gang_stage() as stage:
        workload = {
            "apiVersion": "scheduling.k8s.io/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": "w", "namespace": "default", "resourceVersion": "1"},
            "spec": {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 2}}}]},
        }
        replicas = {
            name: pod(name, workloadRef={"name": "w", "podGroup": "workers", "podGroupReplicaKey": key})
            for name, key in (("a0", "a"), ("a1", "a"), ("b0", "b"))
        }
        stage.see(node("n1"), workload, *replicas.values())
        await stage.settle()
        assert set(stage.api.bound) == {"default/a0", "default/a1"}
        newer = {**pod_group("n", least=1), "apiVersion": "scheduling.k8s.io/v1beta1"}
        stage.see(newer, member("n0", "n"))
        await stage.settle()
        assert "default/n0" in stage.api.bound
        ((path, body),) = stage.api.group_patches
        assert path == "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/n/status"
        assert body["status"]["conditions"][0]["type"] == "PodGroupInitiallyScheduled"


async def test_a_change_of_a_group_is_a_matter_of_its_own_pods():
    """With thousands of groups that wait, each change of one would otherwise be asked of all pods."""
    async with gang_stage() as stage:
        stage.see(node("n1"))
        for number in range(20):
            stage.see(pod_group(f"g{number}", least=5), *members(2, f"g{number}"))
        await stage.settle()
        before = hints_asked(stage)
        stage.see(pod_group("g7", least=2))
        await stage.settle()
        assert stage.api.bound == {"default/g70": "n1", "default/g71": "n1"}
        assert hints_asked(stage) - before == 2


def hints_asked(stage):
    page = stage.scheduler.metrics.render().decode()
    name = "scheduler_queueing_hint_execution_duration_seconds_count"
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith(name) and "podgroup" in line.lower()
    )
