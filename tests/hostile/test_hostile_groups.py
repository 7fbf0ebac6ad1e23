"""Pod groups that nobody sane would create: the scheduler goes on, plain pods are bound, nothing is held."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "groups"))

from groups_staging import GANG, TOPOLOGY, WHOLE, holds_nothing, last_text, member, members, pod_group
from slow_binding import SlowToBind, with_slow

from scheduler_staging import Stage, node, pod, staged
from stowplan import Plugin, Status

Json = dict[str, Any]
HOST = "kubernetes.io/hostname"


def hostile_stage(gates=GANG, **options):
    return staged(gates=gates, draw=random.Random(1), **options)


async def until(stage: Stage, is_so: Callable[[], bool], turns: int = 50) -> None:
    for _ in range(turns):
        if is_so():
            return
        await stage.settle()
    assert is_so()


async def check_goes_on(stage: Stage, name: str = "plain") -> None:
    """A plain pod is bound, and whatever is not bound holds nothing."""
    stage.see(pod(name, cpu="1m"))
    await until(stage, lambda: f"default/{name}" in stage.api.bound)
    assert not list(stage.scheduler.waiting)
    assert not len(stage.scheduler.queue.in_flight)
    # What is bound is assumed until the watch shows it, which nobody does here.
    assert stage.scheduler.cluster.assumed_count == len(stage.api.bound)


def newer(name: str = "g", *, least: int, **spec: Any) -> Json:
    """A PodGroup of 1.37, whose minimum may change."""
    return {**pod_group(name, least=least, **spec), "apiVersion": "scheduling.k8s.io/v1beta1"}


def x_group(name: str, least: int) -> Json:
    return {
        **pod_group(name),
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "spec": {"minMember": least},
    }


def x_members(count: int, group: str) -> list[Json]:
    found = [pod(f"{group}{number}") for number in range(count)]
    for plain in found:
        plain["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return found


async def test_thousands_of_groups_that_wait_for_members():
    async with hostile_stage() as stage:
        stage.see(node("n1"))
        # Each new PodGroup is shown to all pods that wait, so the groups come first.
        stage.see(*(pod_group(f"g{number}-", least=2) for number in range(2000)))
        for number in range(2000):
            stage.see(*members(1, f"g{number}-"))
        await check_goes_on(stage)
        assert stage.scheduler.queue.counts()["gated"] == 2000
        began = time.process_time()
        for number in range(200):  # what happens to others does not go through all of them
            stage.see(pod(f"other{number}", cpu="1m"))
        await until(stage, lambda: len(stage.api.bound) == 10)
        assert time.process_time() - began < 5


async def test_thousands_of_groups_that_do_not_fit():
    async with hostile_stage() as stage:
        stage.see(node("n1", pods="1000"))
        for number in range(300):
            stage.see(pod_group(f"g{number}-", least=2), *members(2, f"g{number}-", cpu="3"))
        await until(stage, lambda: stage.scheduler.queue.counts()["unschedulable"] == 600, turns=500)
        await check_goes_on(stage)


@pytest.mark.parametrize("least", [100_000, 2**31 - 1, 2**63])
async def test_a_minimum_that_nobody_reaches(least):
    async with hostile_stage() as stage:
        stage.see(node("n1"), pod_group(least=least))
        began = time.process_time()
        stage.see(*members(1000))
        assert time.process_time() - began < 5  # each new member must not ask all others
        await check_goes_on(stage)
        assert stage.scheduler.queue.counts()["gated"] == 1000


COSCHEDULING = {
    "config": {
        "profiles": [
            {
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                    "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
                }
            }
        ]
    }
}


async def test_a_large_group_of_scheduler_plugins_that_is_incomplete():
    async with hostile_stage((), **COSCHEDULING) as stage:
        stage.see(node("n1"), x_group("g", 2**31 - 1))
        began = time.process_time()
        stage.see(*x_members(1000, "g"))
        assert time.process_time() - began < 5
        await check_goes_on(stage)
        assert stage.scheduler.queue.counts()["gated"] == 1000


@pytest.mark.parametrize("least", [0, -1, -(2**31)])
async def test_a_minimum_below_one(least):
    """Both APIs reject it, but an object may be older than the rule."""
    async with hostile_stage(**COSCHEDULING) as stage:
        stage.see(node("n1"), pod_group("a", least=least), member("a0", "a"))
        stage.see(x_group("b", least), *x_members(1, "b"))
        await check_goes_on(stage)
        assert {"default/a0", "default/b0"} <= stage.api.bound.keys()


@pytest.mark.parametrize(
    ("resources", "gap"),
    [
        pytest.param({"cpu": "-1", "memory": "-1Gi"}, "", id="negative: nothing is needed"),
        pytest.param({"cpu": "9" * 400}, "resource gap: cpu ", id="huge"),
        pytest.param({"memory": "1e300"}, "resource gap: memory ", id="huge, with an exponent"),
        pytest.param({"": "1", "a b/c": "1"}, "resource gap: ", id="no such resources"),
    ],
)
async def test_absurd_resources_of_a_group(resources, gap):
    async with hostile_stage((), **COSCHEDULING) as stage:
        group = x_group("g", 1)
        group["spec"] |= {"minResources": resources, "scheduleTimeoutSeconds": -(2**31)}
        stage.see(node("n1"), group, *x_members(1, "g"))
        await stage.settle()
        assert ("default/g0" in stage.api.bound) is not bool(gap)
        assert last_text(stage, "g0").startswith(gap)
        await check_goes_on(stage)


async def test_a_new_member_of_a_large_group_that_waits():
    async with hostile_stage() as stage:
        stage.see(node("n1"), pod_group(least=1))
        began = time.process_time()
        for plain in members(1000, cpu="8"):
            stage.see(plain)
        await until(stage, lambda: not len(stage.scheduler.queue.in_flight))
        assert time.process_time() - began < 10
        await check_goes_on(stage)


async def test_groups_that_come_and_go():
    now = [1000.0]
    async with hostile_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), *members(5))
        for number in range(300):
            group = pod_group(least=5 + number % 2)
            stage.see(group)
            if number % 3 == 0:
                await stage.settle()
            stage.change(group, None)
            now[0] += 0.1
        await stage.settle()
        assert len(stage.api.bound) in (0, 5)
        await check_goes_on(stage)


class HoldsAll(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60) if pod.name.startswith("g") else None


class FailsToReserve(Plugin):
    def reserve(self, state, pod, node_name):
        if pod.name == "g2":
            raise RuntimeError("broken")


def with_plugin(kind: type, point: str) -> Json:
    profile = {"plugins": {point: {"enabled": [{"name": kind.__name__}]}}}
    return {"config": {"profiles": [profile]}, "plugins": {kind.__name__: kind}}


async def delete_gated(stage, group):
    stage.see(*members(2))
    await stage.settle()
    stage.change(group, None)


async def delete_when_complete(stage, group):
    stage.see(*members(3))
    stage.change(group, None)  # before anybody was decided


async def delete_while_unschedulable(stage, group):
    stage.see(*members(3, cpu="3"))
    await stage.settle()
    stage.change(group, None)


async def delete_after_binding(stage, group):
    stage.see(*members(3))
    await stage.settle()
    assert len(stage.api.bound) == 3
    stage.change(group, None)


@pytest.mark.parametrize(
    "delete", [delete_gated, delete_when_complete, delete_while_unschedulable, delete_after_binding]
)
@pytest.mark.parametrize("gates", [GANG, TOPOLOGY, WHOLE], ids=["G", "T", "W"])
async def test_a_group_is_deleted(delete, gates):
    async with hostile_stage(gates) as stage:
        group = pod_group(least=3)
        stage.see(node("n1"), group)
        await delete(stage, group)
        await check_goes_on(stage)
        assert len(stage.api.bound) in (1, 4)


async def test_a_group_is_deleted_while_its_members_are_permitted():
    async with hostile_stage(**with_plugin(HoldsAll, "permit")) as stage:
        group = pod_group(least=3)
        stage.see(node("n1"), group, *members(3))
        await stage.settle()
        held = list(stage.scheduler.waiting)
        assert len(held) == 3
        stage.change(group, None)
        await stage.settle()
        for waiting in held:
            waiting.reject("HoldsAll", "no")
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        await check_goes_on(stage)


@pytest.mark.parametrize("change", ["deleted", "raised", "lowered"])
async def test_a_group_changes_while_its_members_are_bound(change):
    async with hostile_stage(plugins={"SlowToBind": SlowToBind}, **with_slow()) as stage:
        SlowToBind.release = False
        group = newer(least=3)
        pods = members(4)
        stage.see(node("n1", cpu="5"), group, *pods[:3])
        await stage.settle()
        assert stage.api.bound == {}
        least = {"deleted": None, "raised": newer(least=2**31 - 1), "lowered": newer(least=1)}[change]
        stage.change(group, least)
        await stage.settle()
        SlowToBind.release = True
        await until(stage, lambda: len(stage.api.bound) == 3)  # it was decided before that
        stage.see(pods[3])
        await stage.settle()
        assert ("default/g3" in stage.api.bound) is (change == "lowered")
        await check_goes_on(stage)


async def test_a_node_and_members_are_deleted_while_the_group_is_bound():
    async with hostile_stage(plugins={"SlowToBind": SlowToBind}, **with_slow()) as stage:
        SlowToBind.release = False
        pods = members(4)
        stage.see(node("n1", cpu="2"), node("n2", cpu="3"), pod_group(least=4), *pods)
        await stage.settle()
        stage.change(pods[0], None)
        stage.change(node("n1", cpu="2"), None)
        SlowToBind.release = True
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        await check_goes_on(stage)


async def test_a_plugin_that_fails_for_one_member():
    async with hostile_stage(**with_plugin(FailsToReserve, "reserve")) as stage:
        stage.see(node("n1"), pod_group(least=3), *members(3))
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        assert "broken" in last_text(stage, "g2")
        await check_goes_on(stage)


@pytest.mark.parametrize("length", [2, 3, 20])
async def test_members_that_each_want_to_follow_another(length):
    """Nobody can be the first, in whatever order they are attempted."""
    async with hostile_stage() as stage:
        pods = []
        for number, plain in enumerate(members(length, cpu="1m")):
            wanted = {"matchLabels": {"is": f"m{(number + 1) % length}"}}
            term = {"labelSelector": wanted, "topologyKey": HOST}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            plain["metadata"]["labels"] = {"is": f"m{number}"}
            plain["spec"]["affinity"] = {"podAffinity": required}
            pods.append(plain)
        hosts = [node(f"n{number}", pods="100") for number in range(3)]
        for plain in hosts:
            plain["metadata"]["labels"] = {HOST: plain["metadata"]["name"]}
        stage.see(*hosts, pod_group(least=length), *pods)
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        await check_goes_on(stage)


async def test_groups_that_name_each_other():
    """The scheduler does not follow references between groups, so they cannot lead it in circles."""
    async with hostile_stage() as stage:
        first = newer("a", least=1, parentCompositePodGroupName="b")
        second = newer("b", least=1, parentCompositePodGroupName="a")
        own = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "controller": True}
        first["metadata"]["ownerReferences"] = [{**own, "name": "b", "uid": "uid-b"}]
        second["metadata"]["ownerReferences"] = [{**own, "name": "a", "uid": "uid-a"}]
        stage.see(node("n1"), first, second, member("a0", "a"), member("b0", "b"))
        await until(stage, lambda: len(stage.api.bound) == 2)
        await check_goes_on(stage)


async def test_members_of_many_schedulers():
    names = ("default-scheduler", "two", "three")
    config = {"profiles": [{"schedulerName": name} for name in names]}
    now = [1000.0]
    async with hostile_stage(config=config, now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=30))
        for number in range(60):
            stage.see(member(f"m{number}", schedulerName=(*names, "nobody")[number % 4]))
        await stage.settle()
        assert stage.api.bound == {}
        assert "should have the same .spec.schedulerName set" in last_text(stage, "m0")
        assert last_text(stage, "m3") == ""  # that of another scheduler
        for _ in range(5):
            now[0] += 30
            stage.scheduler.queue.flush_backoff()
            await stage.settle()
        await check_goes_on(stage)


async def test_a_group_and_an_extender_that_does_not_answer():
    extender = {"urlPrefix": "http://127.0.0.1:9/", "filterVerb": "filter", "ignorable": True}
    async with hostile_stage(config={"extenders": [extender]}) as stage:
        stage.see(pod_group(least=2))
        for plain in (node("n1"), *members(2), pod("plain", cpu="1m")):
            kind = plain["kind"]  # extenders get pods as the API server wrote them
            reflector = next(each for each in stage.scheduler.reflectors if each.resource.kind == kind)
            reflector.on_line(json.dumps({"type": "ADDED", "object": plain}).encode())
        for _ in range(200):
            await asyncio.sleep(0.01)  # a connection is refused in real time
            if "default/plain" in stage.api.bound:
                break
        assert set(stage.api.bound) == {"default/plain"}
        assert "extenders are not asked about groups" in last_text(stage, "g0")


async def test_a_pod_that_names_a_group_by_every_api():
    async with hostile_stage(**COSCHEDULING) as stage:
        both = member("p0", "tree")
        both["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "other"}
        both["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "third"}
        stage.see(node("n1"), pod_group("tree", least=1), x_group("other", 2**31 - 1), both)
        await stage.settle()
        assert "default/p0" in stage.api.bound
        await check_goes_on(stage)
