"""A plugin that scores by metrics, alone in its profile, with a load-watcher and a clock of the test."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from alone import scores

from fake_prometheus import running, until
from make import REGISTRY
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.plugins.node_metrics import NodeLoad

STALE = "stowplan_node_metrics_stale_total"
WITHOUT_DATA = "stowplan_node_metrics_nodes_without_data_total"
NOW = 1_000_000.0
SIDECAR = {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}
OTHER_REQUESTS = [
    pytest.param({"initContainers": [SIDECAR]}, id="sidecar"),
    pytest.param({"resources": {"requests": {"cpu": "3"}}}, id="the pod as a whole"),
]
"""What makes three CPUs out of a container's one."""


def metric(kind: str, operator: str, value: Any) -> dict[str, Any]:
    return {"name": "x", "type": kind, "operator": operator, "rollup": "15m", "value": value}


def cpu(average: float, deviation: float = 0.0) -> list[dict[str, Any]]:
    return [metric("CPU", "AVG", average), metric("CPU", "STD", deviation)]


def memory(average: float, deviation: float = 0.0) -> list[dict[str, Any]]:
    return [metric("Memory", "AVG", average), metric("Memory", "STD", deviation)]


def answer(nodes: Mapping[str, list[dict[str, Any]]], end: float = NOW) -> str:
    found = {name: {"metrics": metrics} for name, metrics in nodes.items()}
    window = {"duration": "15m", "start": int(end) - 900, "end": int(end)}
    return json.dumps(
        {"timestamp": int(end), "window": window, "source": "x", "data": {"NodeMetricsMap": found}}
    )


class FakeWatcher:
    def __init__(self) -> None:
        self.body, self.status, self.asked, self.url = answer({}), 200, 0, ""

    async def respond(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text=self.body, status=self.status)


@asynccontextmanager
async def fake_watcher() -> AsyncIterator[FakeWatcher]:
    fake, app = FakeWatcher(), web.Application()
    app.router.add_get("/watcher", fake.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


def planner_of(name: str, nodes: list[NodeObject], args: dict[str, Any], now: Any) -> Planner:
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", name)]
    profile = {
        "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
        "pluginConfig": [{"name": name, "args": args}],
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = load(kind | {"profiles": [profile]}, REGISTRY).config
    return Planner(Cluster.of(nodes), config, registry=REGISTRY, now=now)


class Stage:
    def __init__(self, name: str, nodes: list[NodeObject], watcher: str, args: dict[str, Any]) -> None:
        self.time, self.name = NOW, name
        self.planner = planner_of(name, nodes, args, lambda: self.time)
        self.plugin: Any = self.planner.profiles["default-scheduler"].plugins[name]

    def scores(self, pod: Pod) -> dict[str, int]:
        return scores(self.planner.decide(pod))

    def counted(self, name: str) -> float:
        return self.plugin.handle.counter(name, "", "plugin")[self.name,]

    def take(self, loads: Mapping[str, NodeLoad], at: float = NOW) -> None:
        """What a reading leaves behind, for tests of many numbers that need no server."""
        self.plugin.source.loads = loads
        self.plugin.source.poller.took(at)


def stage_of(name: str, nodes: list[NodeObject], **args: Any) -> Stage:
    key = "WatcherAddress" if name == "Peaks" else "watcherAddress"
    return Stage(name, nodes, "", {key: "http://127.0.0.1:1"} | args)


@asynccontextmanager
async def served(
    name: str, nodes: list[NodeObject], **args: Any
) -> AsyncIterator[tuple[Stage, FakeWatcher, Any]]:
    """The plugin at a load-watcher; the last part makes it answer something, and waits until that is read."""
    async with fake_watcher() as watcher:
        fast = {} if name == "Peaks" else {"refreshSeconds": 0.01}
        key = "WatcherAddress" if name == "Peaks" else "watcherAddress"
        stage = Stage(name, nodes, "", {key: watcher.url} | fast | args)

        async def tell(body: str, status: int = 200) -> None:
            watcher.body, watcher.status = body, status
            asked = watcher.asked
            await until(lambda: watcher.asked >= asked + 2)

        async with running(stage.plugin):
            yield stage, watcher, tell


def half_up(number: float) -> int:
    whole = math.floor(number)
    return whole + (number - whole >= 0.5)
