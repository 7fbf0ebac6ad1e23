"""Random groups, nodes, faults and restarts: what must hold whatever happens.

`EXAMPLES_TIMES=10 pytest tests/groups/test_group_properties.py` draws ten times as many histories.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from groups_staging import GANG, TOPOLOGY, WHOLE, member, pod_group

from scheduler_staging import RecordingApi, Stage, node, pod, staged
from stowplan.client.api import PODS
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound

Json = dict[str, Any]
STEPS = 15
SEEDS = max(1, int(3 * float(os.environ.get("EXAMPLES_TIMES", "1"))))
BOTH = (*TOPOLOGY, WHOLE[-1])


def group_of(plain: Json) -> str:
    return plain["spec"].get("schedulingGroup", {}).get("podGroupName", "")


def cpu_of(plain: Json) -> int:
    return int(plain["spec"]["containers"][0]["resources"]["requests"]["cpu"])


class World(RecordingApi):
    """An API server that has faults, and kubelets that end pods at once; it notes what must not happen."""

    def __init__(self, draw: random.Random, gates: tuple[str, ...]) -> None:
        super().__init__()
        self.draw, self.gates, self.now = draw, gates, 1000.0
        self.nodes: dict[str, Json] = {}
        self.pods_by_name: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self.excused: set[str] = set()
        """Groups of which a binding failed, or that lost their scheduler while they were bound."""
        self.unreported: set[str] = set()
        """Pods whose binding failed, until that is said."""
        self.spared: set[str] = set()
        """Victims whose eviction failed."""
        self.wrong: list[str] = []
        self.is_calm = False
        self.number = 0
        self.patched = 0

    # What the scheduler writes

    def has_fault(self, share: float) -> bool:
        return not self.is_calm and self.draw.random() < share

    async def create_binding(self, pod, node_name):
        plain = self.pods_by_name.get(pod.name)
        if plain is None:
            raise NotFound(404, "NotFound", "no such pod")
        if pod.key in self.bound:
            self.wrong.append(f"{pod.name} is bound twice")
            raise Conflict(409, "Conflict", "it has a node")
        if self.has_fault(0.03):
            self.excused.add(group_of(plain))
            self.unreported.add(pod.name)
            raise Forbidden(403, "Forbidden", "not today")
        if node_name not in self.nodes:
            self.wrong.append(f"{pod.name} is bound to {node_name}, which is gone")
        await super().create_binding(pod, node_name)
        path = PODS.item("default", pod.name)
        self.pods[path] = {**plain, "spec": {**plain["spec"], "nodeName": node_name}}
        if self.has_fault(0.03):
            raise ApiError(500, "InternalError", "the answer is lost")

    async def patch_pod_status(self, pod, patch):
        if any("not today" in each.get("message", "") for each in patch["status"].get("conditions", ())):
            self.unreported.discard(pod.name)
        if self.has_fault(0.02):
            self.spared.add(pod.name)
            raise ApiError(500, "InternalError", "try again")
        await super().patch_pod_status(pod, patch)

    async def delete(self, item, **options):
        if self.has_fault(0.03):
            self.spared.add(item.name)
            raise ApiError(500, "InternalError", "try again")
        await super().delete(item, **options)

    # What happens

    def objects(self) -> list[Json]:
        return [*self.nodes.values(), *self.groups.values(), *self.pods_by_name.values()]

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def add_node(self, stage: Stage, cpu: int | None = None, rack: str = "", pods: int = 20) -> None:
        name = self.name("n")
        plain = node(name, cpu=str(cpu or self.draw.randint(1, 6)), pods=str(pods))
        labels = {"kubernetes.io/hostname": name, "rack": rack or self.draw.choice("ab")}
        plain["metadata"]["labels"] = labels
        self.nodes[name] = plain
        stage.see(plain)

    def remove_node(self, stage: Stage) -> None:
        used = set(self.placed().values())
        free = [name for name in self.nodes if name not in used]
        if free:
            stage.change(self.nodes.pop(self.draw.choice(free)), None)

    def add_group(self, stage: Stage) -> None:
        name, count = self.name("g"), self.draw.randint(1, 6)
        spec: Json = {"priority": self.draw.choice((0, 0, 100))}
        if self.draw.random() < 0.3:
            spec["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
        if self.draw.random() < 0.3:
            spec["disruptionMode"] = "PodGroup"
        least = None if self.draw.random() < 0.1 else self.draw.randint(1, count)
        group = self.groups[name] = pod_group(name, least=least, **spec)
        parts: list[Json] = [group]
        is_alike, cpu = self.draw.random() < 0.5, str(self.draw.randint(1, 3))
        for _ in range(count):
            cpu = cpu if is_alike else str(self.draw.randint(1, 3))
            priority = 0 if is_alike else self.draw.choice((0, 0, 10))
            plain = member(self.name("m"), name, cpu=cpu, priority=priority)
            if self.draw.random() < 0.1:
                plain["spec"]["affinity"] = _apart_from(name)
            plain["metadata"]["labels"] = {"of": name}
            self.pods_by_name[plain["metadata"]["name"]] = plain
            parts.append(plain)
        if self.draw.random() < 0.2:
            self.draw.shuffle(parts)  # pods may come before their group
        stage.see(*parts)

    def add_member(self, stage: Stage) -> None:
        if self.groups:
            name = self.draw.choice(sorted(self.groups))
            plain = member(self.name("m"), name, cpu=str(self.draw.randint(1, 3)))
            self.pods_by_name[plain["metadata"]["name"]] = plain
            stage.see(plain)

    def renew_group(self, stage: Stage) -> None:
        """Delete a group and create it again, as a controller does that starts over."""
        if self.groups:
            group = self.groups[self.draw.choice(sorted(self.groups))]
            stage.change(group, None)
            stage.see(group)

    def add_plain(self, stage: Stage) -> None:
        plain = pod(self.name("p"), priority=self.draw.choice((-5, 0, 5)))
        self.pods_by_name[plain["metadata"]["name"]] = plain
        stage.see(plain)

    def remove_pod(self, stage: Stage) -> None:
        if self.pods_by_name:
            plain = self.pods_by_name.pop(self.draw.choice(sorted(self.pods_by_name)))
            key = f"default/{plain['metadata']['name']}"
            self.deleted[:] = [each for each in self.deleted if each != key]
            stage.change(plain, None)

    async def echo(self, stage: Stage | None) -> None:
        """The watch shows what was written; without a stage, the next list will."""
        if stage is not None:
            await stage.settle()
        for key, node_name in list(self.bound.items()):
            name = key.partition("/")[2]
            plain = self.pods_by_name.get(name)
            if plain is not None and not plain["spec"]["nodeName"]:
                placed = {**plain, "spec": {**plain["spec"], "nodeName": node_name}}
                self.pods_by_name[name] = placed
                if stage is not None:
                    stage.change(plain, placed)
        for key in tuple(self.deleted):
            name = key.partition("/")[2]
            plain = self.pods_by_name.get(name)
            if plain is not None and self.has_fault(0.4):  # it takes its time
                if "deletionTimestamp" not in plain["metadata"]:
                    self.pods_by_name[name] = _leaving(plain)
                    if stage is not None:
                        stage.change(plain, self.pods_by_name[name])
                continue
            self.deleted.remove(key)
            if plain is not None:
                del self.pods_by_name[name]
                if stage is not None:
                    stage.change(plain, None)
        for path, body in self.group_patches[self.patched :]:
            if not path.endswith("/status"):
                continue  # of an event
            name = path.split("/")[-2]
            condition = body["status"]["conditions"][0]
            group = self.groups.get(name)
            if group is not None and condition["type"] == "PodGroupScheduled":
                self.groups[name] = {**group, "status": {"conditions": [condition]}}
                if stage is not None:
                    stage.change(group, self.groups[name])
        self.patched = len(self.group_patches)
        if stage is not None:
            await stage.settle()

    # What is so

    def placed(self) -> dict[str, str]:
        """The node of every pod that has one, whether or not the watch has shown it."""
        found = {}
        for name, plain in self.pods_by_name.items():
            node_name = plain["spec"]["nodeName"] or self.bound.get(f"default/{name}", "")
            if node_name:
                found[name] = node_name
        return found

    def placed_of(self, group: str) -> set[str]:
        return {name for name in self.placed() if group_of(self.pods_by_name[name]) == group}

    def least_of(self, group: str) -> int:
        return self.groups[group]["spec"]["schedulingPolicy"].get("gang", {}).get("minCount", 1)

    def was_scheduled(self, group: str) -> bool:
        return any(each["status"] == "True" for each in self.groups[group]["status"]["conditions"])

    def is_whole(self, group: str) -> bool:
        return self.groups.get(group, {}).get("spec", {}).get("disruptionMode") == "PodGroup"


def _leaving(plain: Json) -> Json:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    metadata = {**plain["metadata"], "deletionTimestamp": "2026-11-15T22:00:00Z"}
    return {**plain, "metadata": metadata, "status": {"conditions": [condition]}}


def _apart_from(group: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"of": group}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def nominated_in(world: World, stage: Stage) -> dict[str, str]:
    """The nodes that pods are nominated to."""
    nominations = stage.scheduler.shared.nominations
    found = ((each.name, on) for on in world.nodes for each in nominations.on(on))
    return {name: on for name, on in found if name in world.pods_by_name}


class Before:
    """What was so before a step."""

    def __init__(self, world: World, stage: Stage) -> None:
        self.placed, self.nominated = world.placed(), nominated_in(world, stage)
        self.groups = {group: world.placed_of(group) for group in world.groups}
        self.started = {group for group in world.groups if world.was_scheduled(group)}
        self.known = set(world.deleted)
        """The victims until then."""


def check(world: World, stage: Stage, before: Before) -> None:
    assert world.wrong == []
    assert not world.unreported & world.pods_by_name.keys(), "a binding failed, and nobody said so"
    check_nodes(world)
    check_groups(world, before)
    check_racks(world)
    check_victims(world, stage, before)


def check_nodes(world: World) -> None:
    """No node is overcommitted, also while victims are still on it; nobody is beside whom he avoids."""
    used: dict[str, int] = {}
    counts: dict[str, int] = {}
    for name, node_name in world.placed().items():
        used[node_name] = used.get(node_name, 0) + cpu_of(world.pods_by_name[name])
        counts[node_name] = counts.get(node_name, 0) + 1
    for name, plain in world.nodes.items():
        offered = plain["status"]["allocatable"]
        assert used.get(name, 0) <= int(offered["cpu"]), f"{name} is overcommitted"
        assert counts.get(name, 0) <= int(offered["pods"]), f"{name} has too many pods"
    for name, node_name in world.placed().items():
        plain = world.pods_by_name[name]
        if "affinity" in plain["spec"]:
            others = world.placed_of(group_of(plain)) - {name}
            labelled = {each for each in others if "labels" in world.pods_by_name[each]["metadata"]}
            assert node_name not in {world.placed()[each] for each in labelled}, f"{name} is not alone"


def check_groups(world: World, before: Before) -> None:
    """A group that gets members onto nodes has its minimum there, unless a binding failed."""
    for group in world.groups:
        known, now = before.groups.get(group, set()), world.placed_of(group)
        if now - known and group not in world.excused | before.started:
            assert len(now) >= world.least_of(group), f"{group}: {sorted(now)} of {world.least_of(group)}"


def check_racks(world: World) -> None:
    if TOPOLOGY[-1] not in world.gates:
        return
    for group, plain in world.groups.items():
        if plain["spec"].get("schedulingConstraints"):
            nodes = {world.placed()[name] for name in world.placed_of(group)}
            racks = {world.nodes[name]["metadata"]["labels"]["rack"] for name in nodes}
            assert len(racks) <= 1, f"{group} is in racks {sorted(racks)}"


def check_victims(world: World, stage: Stage, before: Before) -> None:
    """Whoever is evicted makes room for somebody, and for all that a group needs."""
    fresh = {key.partition("/")[2] for key in world.deleted if key not in before.known}
    fresh &= world.pods_by_name.keys()
    if not fresh:
        return
    nominated = nominated_in(world, stage)
    placed = world.placed()
    gone = {key.partition("/")[2] for key in world.deleted}
    useful = {name for name in fresh if placed.get(name) in nominated.values()}
    for name in fresh:
        group = group_of(world.pods_by_name[name])
        together = {each for each in fresh if group_of(world.pods_by_name[each]) == group}
        is_along = world.is_whole(group) and bool(together & useful)
        assert name in useful or is_along, f"{name} was evicted for nobody"
        if world.is_whole(group) and not world.placed_of(group) & world.spared:
            assert world.placed_of(group) <= gone, f"{group} is evicted in part"
    clearing = {placed[name] for name in useful}
    for group in world.groups:
        mine = {name: on for name, on in nominated.items() if group_of(world.pods_by_name[name]) == group}
        if not clearing & set(mine.values()) or mine.items() <= before.nominated.items():
            continue  # they are not for this group
        have = len(world.placed_of(group)) + len(mine)  # members that end count until they are gone
        if group not in world.excused | before.started:
            assert have >= world.least_of(group), f"victims for {group}, of which {have} have a place"
        for node_name in clearing & set(mine.values()):
            # Pods of higher priority may have come since; those that were there must leave enough room.
            ends = gone | world.spared  # all that were to end
            stays = [name for name, on in before.placed.items() if on == node_name and name not in ends]
            taken = sum(cpu_of(world.pods_by_name[name]) for name in stays if name in world.pods_by_name)
            wanted = sum(cpu_of(world.pods_by_name[name]) for name, on in mine.items() if on == node_name)
            offered = int(world.nodes[node_name]["status"]["allocatable"]["cpu"])
            assert taken + wanted <= offered, f"victims on {node_name} do not make room for {group}"


@pytest.mark.parametrize("gates", [GANG, TOPOLOGY, WHOLE, BOTH], ids=["G", "T", "W", "TW"])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_histories(seed, gates):
    draw = random.Random(f"{seed} {gates}")
    world = World(draw, gates)
    moves = [
        *[world.add_group] * 4,
        *[world.add_node] * 3,
        *[world.add_plain] * 2,
        world.add_member,
        world.renew_group,
        world.remove_pod,
        world.remove_node,
    ]
    for _ in range(3):  # each time with another scheduler
        world.is_calm = False
        options = {"gates": gates, "draw": random.Random(seed), "api": world}
        async with staged(**options, now=lambda: world.now) as stage:
            stage.see(*world.objects())
            for _ in range(STEPS):
                before = Before(world, stage)
                draw.choice(moves)(stage)
                await stage.settle()
                check(world, stage, before)
                if draw.random() < 0.8:  # else the watch is late
                    await echo_and_check(world, stage)
                world.now += draw.choice((0, 1, 12))
                before = Before(world, stage)
                stage.scheduler.queue.flush_backoff()
                await stage.settle()
                check(world, stage, before)
            await check_end(world, stage)
            world.excused.clear()  # all are complete again
            before = Before(world, stage)
            for _ in range(3):  # it ends while it decides and binds these
                draw.choice(moves)(stage)
            for _ in range(draw.randint(0, 8)):
                await asyncio.sleep(0)
        world.unreported.clear()  # as nobody is left to say it
        excuse_interrupted(world, before)
        await world.echo(None)


async def echo_and_check(world: World, stage: Stage) -> None:
    before = Before(world, stage)
    await world.echo(stage)
    before.known &= set(world.deleted)
    check(world, stage, before)


def excuse_interrupted(world: World, before: Before) -> None:
    """What was bound before the scheduler ended stays; the next one continues from there."""
    for group in world.groups:
        if world.placed_of(group) - before.groups.get(group, set()):
            world.excused.add(group)


async def check_end(world: World, stage: Stage) -> None:
    """With nothing more to happen nothing is held; with room for all, all that are complete start."""
    world.is_calm = True
    for _ in range(5):
        await world.echo(stage)
    assert not stage.scheduler.cluster.assumed_count
    assert not len(stage.scheduler.queue.in_flight)
    assert not list(stage.scheduler.waiting)
    for rack in "ab":
        for _ in range(8):
            world.add_node(stage, cpu=100, rack=rack, pods=200)
    for _ in range(6):
        world.now += 400
        before = Before(world, stage)
        stage.scheduler.queue.flush_backoff()  # and no flush of those that wait too long: events must do
        await stage.settle()
        check(world, stage, before)
        await echo_and_check(world, stage)
    placed = world.placed()
    for name, plain in world.pods_by_name.items():
        group = group_of(plain)
        known = sum(1 for each in world.pods_by_name.values() if group_of(each) == group)
        if not group or known >= world.least_of(group) or world.was_scheduled(group):
            assert name in placed, f"{name} of {group or 'no group'} never starts"
    for name in [name for name in world.nodes if world.nodes[name]["status"]["allocatable"]["cpu"] == "100"]:
        if name not in world.placed().values():
            stage.change(world.nodes.pop(name), None)
    await world.echo(stage)
