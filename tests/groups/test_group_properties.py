"""Random groups, nodes, faults and restarts: what must hold whatever happens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from groups_staging import GANG, TOPOLOGY, WHOLE, member, pod_group

from scheduler_staging import RecordingApi, Stage, node, pod, staged
from stowplan.client.errors import Forbidden

Json = dict[str, Any]
STEPS = 15


class World:
    """What an API server and kubelets would make of the scheduler's writes."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now = draw, 1000.0
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self.refused: set[str] = set()
        self.api = RecordingApi()
        self.create, self.api.create_binding = self.api.create_binding, self.bind
        self.number = 0

    async def bind(self, found, node_name):
        if self.draw.random() < 0.03:
            self.refused.add(found.group_name)
            raise Forbidden(403, "Forbidden", "not today")
        await self.create(found, node_name)

    def objects(self) -> list[Json]:
        return [*self.nodes.values(), *self.groups.values(), *self.pods.values()]

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def add_node(self, stage: Stage) -> None:
        name = self.name("n")
        plain = node(name, cpu=str(self.draw.randint(1, 6)), pods="20")
        plain["metadata"]["labels"] = {"kubernetes.io/hostname": name, "rack": self.draw.choice("ab")}
        self.nodes[name] = plain
        stage.see(plain)

    def remove_node(self, stage: Stage) -> None:
        used = {plain["spec"]["nodeName"] for plain in self.pods.values()}
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
        self.groups[name] = pod_group(name, least=self.draw.randint(1, count), **spec)
        stage.see(self.groups[name])
        for _ in range(count):
            cpu, priority = str(self.draw.randint(1, 3)), self.draw.choice((0, 0, 10))
            self.see_pod(stage, member(self.name("m"), name, cpu=cpu, priority=priority))

    def add_plain(self, stage: Stage) -> None:
        self.see_pod(stage, pod(self.name("p"), priority=self.draw.choice((-5, 0, 5))))

    def see_pod(self, stage: Stage, plain: Json) -> None:
        self.pods[plain["metadata"]["name"]] = plain
        stage.see(plain)

    def remove_pod(self, stage: Stage) -> None:
        if self.pods:
            stage.change(self.pods.pop(self.draw.choice(sorted(self.pods))), None)

    async def echo(self, stage: Stage) -> None:
        """The watch shows what was written."""
        await stage.settle()
        for key, node_name in list(self.api.bound.items()):
            name = key.partition("/")[2]
            plain = self.pods.get(name)
            if plain is not None and not plain["spec"]["nodeName"]:
                self.pods[name] = {**plain, "spec": {**plain["spec"], "nodeName": node_name}}
                stage.change(plain, self.pods[name])
        for key in self.api.deleted:
            plain = self.pods.pop(key.partition("/")[2], None)
            if plain is not None:
                stage.change(plain, None)
        self.api.deleted.clear()
        await stage.settle()

    def check(self, stage: Stage) -> None:
        used: dict[str, int] = {}
        for plain in self.pods.values():
            name = plain["spec"]["nodeName"]
            cpu = int(plain["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            used[name] = used.get(name, 0) + cpu
        for name, plain in self.nodes.items():
            assert used.get(name, 0) <= int(plain["status"]["allocatable"]["cpu"]), "overcommitted"

    def bound_of(self, group: str) -> set[str]:
        return {
            name
            for name, plain in self.pods.items()
            if plain["spec"].get("schedulingGroup", {}).get("podGroupName") == group
            and f"default/{name}" in self.api.bound
        }


@pytest.mark.parametrize("gates", [GANG, TOPOLOGY, WHOLE, (*TOPOLOGY, WHOLE[-1])], ids=["G", "T", "W", "TW"])
@pytest.mark.parametrize("seed", range(2))
async def test_random_histories(seed, gates):
    draw = random.Random(f"{seed} {gates}")
    world = World(draw)
    moves = [
        *[world.add_group] * 3,
        *[world.add_node] * 2,
        *[world.add_plain] * 2,
        world.remove_pod,
        world.remove_node,
    ]
    for _ in range(3):  # each time with another scheduler
        world.api.deleted.clear()
        options = {"gates": gates, "draw": random.Random(seed), "api": world.api}
        async with staged(**options, now=lambda: world.now) as stage:
            stage.see(*world.objects())
            for _ in range(STEPS):
                before = {group: world.bound_of(group) for group in world.groups}
                deleted = len(world.api.deleted)
                draw.choice(moves)(stage)
                await stage.settle()
                check_groups(world, before)
                check_victims(world, stage, deleted)
                await world.echo(stage)
                world.check(stage)
                world.now += draw.choice((0, 1, 12))
                stage.scheduler.queue.flush_backoff()
                await world.echo(stage)
                world.check(stage)
            for _ in range(5):  # what was bound last has to be seen, too
                await world.echo(stage)
            assert not stage.scheduler.cluster.assumed_count
            assert not stage.scheduler.queue.in_flight


def check_groups(world: World, before: dict[str, set[str]]) -> None:
    """A group that starts has its minimum at once, unless a binding was refused."""
    for name, plain in world.groups.items():
        known, now = before.get(name, set()), world.bound_of(name)
        if not known and now and name not in world.refused:
            assert len(now) >= plain["spec"]["schedulingPolicy"]["gang"]["minCount"], name


def check_victims(world: World, stage: Stage, deleted: int) -> None:
    """Whoever is evicted, somebody is nominated."""
    if len(world.api.deleted) > deleted:
        assert stage.scheduler.shared.nominations
