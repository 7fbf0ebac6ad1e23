"""Faults that `stowplan run` must survive, on a real control plane; `checking` says what holds after each."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from checking import QUICK_LEASE, settled, sound, through

from controlplane.control_plane import SCHEDULER, ControlPlane
from controlplane.objects import node, pod
from controlplane.process import Process
from controlplane.proxy import Spoilt
from controlplane.waiting import eventually
from stowplan.client.api import MERGE_PATCH, ApiClient

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
A_NODE_TAKES = 20
"""Pods of a crowd: a node has 4 cpu."""
OUTAGE_SECONDS = 8.0
HOLDING = "holding:Holding"


def slowly(control_plane: ControlPlane, qps: int = 100) -> Json:
    """Configuration of a scheduler that is still at work when a fault comes, however fast the machine."""
    kubeconfig = control_plane.kubeconfig(SCHEDULER)
    return {"clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": qps}}


async def make_nodes(api: ApiClient, *nodes: Json) -> None:
    for each in nodes:
        await api.request("POST", "/api/v1/nodes", each)
        path = f"/api/v1/nodes/{each['metadata']['name']}/status"
        await api.request("PATCH", path, {"status": each["status"]}, content_type=MERGE_PATCH)


async def make_pods(api: ApiClient, *pods: Json) -> None:
    await asyncio.gather(*(api.request("POST", PODS, each) for each in pods))


async def make_crowd(api: ApiClient, count: int, nodes: int, first: int = 0, **spec: Any) -> None:
    """More pods than the nodes can take, unless there are `A_NODE_TAKES` or fewer for each."""
    await make_nodes(api, *(node(f"n{number}") for number in range(nodes)))
    names = (f"p{number}" for number in range(first, first + count))
    await make_pods(api, *(pod(name, requests={"cpu": "200m"}, **spec) for name in names))


async def delete_pod(api: ApiClient, name: str) -> None:
    await api.request(
        "DELETE", f"{PODS}/{name}", {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
    )


def log_count(scheduler: Process, text: str) -> int:
    return scheduler.log.read_text().count(text)


async def until_bound(scheduler: Process, count: int) -> None:
    """Waits until the scheduler says to have bound so many."""
    await eventually(
        lambda: log_count(scheduler, "Successfully bound"), lambda found: found >= count, seconds=60
    )


def on_nodes(placed: dict[str, str]) -> int:
    return sum(1 for name in placed.values() if name)


async def until_on_nodes(control_plane: ControlPlane, count: int) -> dict[str, str]:
    """Waits for so many pods to have a node; those that failed back off for a while."""
    async with asyncio.timeout(120):
        while on_nodes(placed := await settled(control_plane)) < count:
            await asyncio.sleep(0.3)
    return placed


async def test_the_api_server_is_killed_amid_many_pods_and_comes_back(control_plane, api, start):
    await make_crowd(api, 1000, nodes=40)
    with start(**slowly(control_plane, 200)) as scheduler:
        await until_bound(scheduler, 100)
        control_plane.api_server.kill()
        try:
            await asyncio.sleep(OUTAGE_SECONDS)
        finally:
            control_plane.api_server.start()
        await until_on_nodes(control_plane, 40 * A_NODE_TAKES)
        await sound(control_plane, scheduler)


async def test_etcd_is_restarted_amid_many_pods(control_plane, api, start):
    await make_crowd(api, 400, nodes=16)
    with start(**slowly(control_plane)) as scheduler:
        await until_bound(scheduler, 50)
        control_plane.etcd.kill()
        control_plane.etcd.start()
        await until_on_nodes(control_plane, 16 * A_NODE_TAKES)
        await sound(control_plane, scheduler)


async def test_the_scheduler_is_killed_amid_binding_and_started_again(control_plane, api, start):
    await make_crowd(api, 400, nodes=16)
    with start(**slowly(control_plane)) as scheduler:
        await until_bound(scheduler, 50)
        scheduler.kill()
        left = control_plane.request("GET", f"{PODS}?fieldSelector=spec.nodeName=")["items"]
        assert len(left) > 400 - 16 * A_NODE_TAKES
        scheduler.start()
        await until_on_nodes(control_plane, 16 * A_NODE_TAKES)
        await sound(control_plane, scheduler)


async def test_the_leader_is_killed_and_the_other_takes_over(control_plane, api, start):
    await make_crowd(api, 400, nodes=16)
    with start("-first", leaderElection=QUICK_LEASE, **slowly(control_plane, 25)) as first:
        await until_bound(first, 10)
        with start("-second", leaderElection=QUICK_LEASE) as second:
            first.kill()
            await eventually(lambda: log_count(second, "Became leader"), bool)
            await until_on_nodes(control_plane, 16 * A_NODE_TAKES)
            await sound(control_plane, second)


async def test_the_leader_is_frozen_past_its_lease_and_binds_nothing_after(control_plane, api, start, proxy):
    """It is slow, so that it wakes up with many binds that wait for their turn."""
    await make_crowd(api, 400, nodes=16)
    with start("-first", leaderElection=QUICK_LEASE, **through(proxy, qps=25)) as first:
        await until_bound(first, 10)
        with start("-second", leaderElection=QUICK_LEASE) as second:
            os.kill(first.pid, signal.SIGSTOP)
            try:
                await eventually(lambda: log_count(second, "Became leader"), bool)
                await until_on_nodes(control_plane, 16 * A_NODE_TAKES)
                sent = len(proxy.binds)
            finally:
                os.kill(first.pid, signal.SIGCONT)
            await eventually(lambda: log_count(first, "Leaderelection lost"), bool)
            assert len(proxy.binds) == sent < 16 * A_NODE_TAKES
            assert log_count(first, "Error scheduling pod") == 0
            await sound(control_plane, second)


async def test_watches_are_cut_at_random(control_plane, api, start, proxy):
    draw, cut = random.Random(36), 0
    await make_crowd(api, 0, nodes=8)
    with start(**through(proxy)) as scheduler:
        for wave in range(10):
            await make_crowd(api, 20, nodes=0, first=20 * wave)
            cut += proxy.cut_watches(draw)
            await asyncio.sleep(0.2)
            await delete_pod(api, f"p{20 * wave + draw.randrange(20)}")
            cut += proxy.cut_watches(draw)
            await asyncio.sleep(0.2)
        assert cut > 50
        await until_on_nodes(control_plane, 8 * A_NODE_TAKES)
        await sound(control_plane, scheduler)


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(Spoilt(409, "Conflict"), id="409"),
        pytest.param(Spoilt(429, "TooManyRequests", retry_after=1), id="429 with Retry-After"),
        pytest.param(Spoilt(429, "TooManyRequests"), id="429 without Retry-After"),
        pytest.param(Spoilt(500, "InternalError"), id="500"),
        pytest.param(Spoilt(500, "InternalError", passed_on=True), id="500, yet bound"),
        pytest.param(Spoilt(504, "Timeout", passed_on=True), id="timed out, yet bound"),
        pytest.param(Spoilt(), id="no answer"),
        pytest.param(Spoilt(passed_on=True), id="no answer, yet bound"),
    ],
)
async def test_binds_that_fail_at_first(control_plane, api, start, proxy, spoilt):
    spoilt_once: set[str] = set()

    def spoil(name: str) -> Spoilt | None:
        is_first = name not in spoilt_once
        spoilt_once.add(name)
        return spoilt if is_first else None

    proxy.spoil = spoil
    await make_crowd(api, 50, nodes=2)
    with start(**through(proxy)) as scheduler:
        await eventually(lambda: len(spoilt_once), lambda count: count >= 2 * A_NODE_TAKES)
        placed = await until_on_nodes(control_plane, 2 * A_NODE_TAKES)
        if spoilt.passed_on:
            assert Counter(proxy.binds) == dict.fromkeys((name for name, at in placed.items() if at), 1)
        await sound(control_plane, scheduler)


async def test_a_node_is_deleted_while_a_pod_is_on_its_way(control_plane, api, start, proxy):
    """The API server takes binds to nodes that it does not have."""
    await make_nodes(api, node("gone"))
    proxy.open_gate.clear()
    with start(**through(proxy)) as scheduler:
        await make_pods(api, pod("p", requests={"cpu": "3"}))
        await eventually(lambda: proxy.binds, lambda binds: binds == ["p"])
        await api.request("DELETE", "/api/v1/nodes/gone")
        await make_nodes(api, node("there"))
        proxy.open_gate.set()
        await make_pods(api, pod("q", requests={"cpu": "3"}))
        assert await settled(control_plane) == {"p": "gone", "q": "there"}
        await sound(control_plane, scheduler)
        await make_nodes(api, node("gone"))
        await make_pods(api, pod("r", requests={"cpu": "3"}))
        assert (await settled(control_plane))["r"] == ""
        await sound(control_plane, scheduler)


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Json:
    """Configuration with a plugin that holds pods back by their label, until the file `released` exists."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    args = {"name": HOLDING, "args": {"released": str(tmp_path / "released")}}
    plugins = {"multiPoint": {"enabled": [{"name": HOLDING}]}}
    return {"profiles": [{"plugins": plugins, "pluginConfig": [args]}]}


async def test_a_node_is_deleted_before_the_bind_of_its_pod(control_plane, api, start, holding, tmp_path):
    await make_nodes(api, node("gone"))
    with start(**holding) as scheduler:
        await make_pods(api, pod("p", labels={"hold": "preBind"}))
        await eventually(lambda: dumped_attempts(scheduler), lambda found: "assumed:1" in found)
        await api.request("DELETE", "/api/v1/nodes/gone")
        await asyncio.sleep(0.5)
        (tmp_path / "released").touch()
        assert await settled(control_plane) == {"p": ""}
        await make_nodes(api, node("there"))
        await until_on_nodes(control_plane, 1)
        await sound(control_plane, scheduler)


def dumped_attempts(scheduler: Process) -> str:
    """The last dump that the scheduler has written; asks for the next."""
    os.kill(scheduler.pid, signal.SIGUSR2)
    found = re.findall(r"attempts: ([^\\]*)", scheduler.log.read_text())
    return found[-1] if found else ""


@pytest.mark.parametrize("phase", ["waiting", "assumed", "binding"])
async def test_a_pod_is_deleted_on_its_way(control_plane, api, start, proxy, holding, tmp_path, phase):
    """Another one waits for the room that it had."""
    await make_nodes(api, node("n1"))
    hold = {"waiting": "permit", "assumed": "preBind", "binding": ""}[phase]
    with start(**through(proxy), **holding) as scheduler:
        proxy.open_gate.clear()
        await make_pods(api, pod("p", requests={"cpu": "4"}, labels={"hold": hold}))
        await eventually(lambda: dumped_attempts(scheduler), lambda found: "assumed:1" in found)
        await make_pods(api, pod("q", requests={"cpu": "4"}))
        await eventually(lambda: log_count(scheduler, "no fit; waiting"), bool)
        await delete_pod(api, "p")
        await eventually(lambda: proxy.binds, lambda binds: binds[-1:] == ["q"])
        proxy.open_gate.set()
        (tmp_path / "released").touch()
        assert await until_on_nodes(control_plane, 1) == {"q": "n1"}
        await sound(control_plane, scheduler)


async def test_a_pod_is_bound_by_someone_else(control_plane, api, start, proxy):
    """Elsewhere, while we are binding it: another pod waits for the room that it had here."""
    theirs = node("theirs", taints=[{"key": "theirs", "effect": "NoSchedule"}])
    await make_nodes(api, node("ours"), theirs)
    proxy.open_gate.clear()
    with start(**through(proxy)) as scheduler:
        await make_pods(api, pod("p", requests={"cpu": "4"}))
        await eventually(lambda: proxy.binds, lambda binds: binds == ["p"])
        await make_pods(api, pod("q", requests={"cpu": "4"}))
        await eventually(lambda: log_count(scheduler, "no fit; waiting"), bool)
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "theirs"}}
        await api.request("POST", f"{PODS}/p/binding", binding)
        await eventually(lambda: proxy.binds, lambda binds: binds == ["p", "q"])
        proxy.open_gate.set()
        assert await until_on_nodes(control_plane, 2) == {"p": "theirs", "q": "ours"}
        assert log_count(scheduler, "Error scheduling pod") == 0
        await sound(control_plane, scheduler)


async def test_kube_scheduler_works_beside_us_under_another_name(control_plane, api, start):
    await make_crowd(api, 0, nodes=10)
    ours = {"profiles": [{"schedulerName": "stowplan"}]}
    with start(**ours) as scheduler, control_plane.kube_scheduler():
        await asyncio.gather(
            make_crowd(api, 50, nodes=0),
            make_crowd(api, 50, nodes=0, first=50, schedulerName="stowplan"),
        )
        assert on_nodes(await settled(control_plane)) == 100
        # There was room enough for both at once; what is left of it is for one alone.
        await make_crowd(api, 150, nodes=0, first=100, schedulerName="stowplan")
        assert on_nodes(await settled(control_plane)) == 10 * A_NODE_TAKES
        assert log_count(scheduler, "Successfully bound") == 150
        await sound(control_plane, scheduler, "stowplan")
