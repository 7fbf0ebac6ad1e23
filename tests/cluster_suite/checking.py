"""What holds after any fault: pods placed once or with a reason, no node overfull, cache and API alike."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections import Counter, defaultdict
from os import kill
from typing import Any, NamedTuple

from controlplane.control_plane import ControlPlane
from controlplane.process import Process
from controlplane.proxy import Proxy
from controlplane.tcp_proxy import TcpProxy
from stowplan.api.quantity import milli_units, parse

Json = dict[str, Any]

JSON_LOG = "--logging-format=json"
"""For a scheduler whose dumps are to be read."""
QUICK_LEASE = {"leaderElect": True, "leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"}
NOTHING_LEFT = "assumed:0; in flight:0; waiting on permit:0; work under way:0"
PLACED = re.compile(r"(\S+): requested (\{.*?\}), allocatable .*, pods \[(.*)\]")


def through(proxy: TcpProxy | Proxy, qps: int = 5000) -> Json:
    """Configuration for a scheduler that reaches the API server through the proxy."""
    return {"clientConnection": {"kubeconfig": str(proxy.kubeconfig()), "qps": qps, "burst": qps}}


class Seen(NamedTuple):
    """Who is where and what that takes, as the API server or a scheduler has it."""

    pods: dict[str, set[str]]
    cpu: dict[str, int]
    waiting: set[str]


async def settled(control_plane: ControlPlane, *, seconds: float = 90) -> dict[str, str]:
    """Waits until every pod is on a node or says why it is not; the node of each, empty where it has none."""
    end = time.monotonic() + seconds
    while silent := [name(pod) for pod in _pods(control_plane) if not _node(pod) and not _reason(pod)]:
        assert time.monotonic() < end, f"after {seconds} s neither placed nor with a reason: {silent[:5]}"
        await asyncio.sleep(0.3)
    return {pod["metadata"]["name"]: _node(pod) for pod in _pods(control_plane)}


async def sound(
    control_plane: ControlPlane, scheduler: Process, scheduler_name: str = "default-scheduler"
) -> None:
    """Fails unless no node has more than it can take, no pod was told to be placed twice, and the scheduler
    knows of every pod and node what the API server does, with nothing left over from its attempts."""
    truth = _truth(control_plane, scheduler_name)
    _not_overfull(control_plane, truth)
    _placed_once(control_plane)
    await _agrees(control_plane, scheduler, scheduler_name)
    for fault in ("Cache mismatch", "Background work failed", "Traceback", "never retrieved"):
        assert fault not in scheduler.log.read_text(), f"{fault}: see {scheduler.log}"


def name(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _pods(control_plane: ControlPlane) -> list[Json]:
    return list(control_plane.request("GET", "/api/v1/pods")["items"])


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _reason(pod: Json) -> str:
    conditions = pod["status"].get("conditions", ())
    return next((each["message"] for each in conditions if each["type"] == "PodScheduled"), "")


def _cpu(pod: Json) -> int:
    asked = (container["resources"].get("requests", {}) for container in pod["spec"]["containers"])
    return sum(milli_units(parse(each.get("cpu", "0"))) for each in asked)


def _truth(control_plane: ControlPlane, scheduler_name: str) -> Seen:
    """By node: nodes that there are, and those that only pods know of."""
    nodes = control_plane.request("GET", "/api/v1/nodes")["items"]
    pods: dict[str, set[str]] = defaultdict(set, {node["metadata"]["name"]: set() for node in nodes})
    cpu: Counter[str] = Counter()
    waiting = set()
    for pod in _pods(control_plane):
        if _node(pod):
            pods[_node(pod)].add(name(pod))
            cpu[_node(pod)] += _cpu(pod)
        elif pod["spec"]["schedulerName"] == scheduler_name:
            waiting.add(name(pod))
    return Seen(pods, cpu, waiting)


def _not_overfull(control_plane: ControlPlane, truth: Seen) -> None:
    for node in control_plane.request("GET", "/api/v1/nodes")["items"]:
        room, named = node["status"]["allocatable"], node["metadata"]["name"]
        assert truth.cpu[named] <= milli_units(parse(room["cpu"])), f"{named} has more cpu asked than it has"
        assert len(truth.pods[named]) <= int(room["pods"]), f"{named} has too many pods"


def _placed_once(control_plane: ControlPlane) -> None:
    events = control_plane.request("GET", "/apis/events.k8s.io/v1/events")["items"]
    said = Counter(event["regarding"]["uid"] for event in events if event["reason"] == "Scheduled")
    assert not [uid for uid, times in said.items() if times > 1], "a pod was said to be scheduled twice"


async def _agrees(
    control_plane: ControlPlane, scheduler: Process, scheduler_name: str, seconds: float = 60
) -> None:
    end = time.monotonic() + seconds
    while True:
        there = {node["metadata"]["name"] for node in control_plane.request("GET", "/api/v1/nodes")["items"]}
        truth = _truth(control_plane, scheduler_name)
        dump = await read_dump(scheduler)
        known, left = _read(dump)
        expected = Seen(
            {node: pods for node, pods in truth.pods.items() if node in there},
            {node: truth.cpu[node] for node in there},
            truth.waiting,
        )
        if known == expected and left == NOTHING_LEFT:
            return
        assert time.monotonic() < end, f"the scheduler does not know what is so: {left} {known} {expected}"
        await asyncio.sleep(0.5)


async def read_dump(scheduler: Process) -> str:
    """What the scheduler writes when it is asked for all it knows."""
    start = scheduler.log.stat().st_size
    kill(scheduler.pid, signal.SIGUSR2)
    for _ in range(300):
        await asyncio.sleep(0.1)
        with scheduler.log.open("rb") as log:
            log.seek(start)
            lines = log.read().decode().splitlines(keepends=True)
        for line in lines:
            if '"Dump of cache and queue"' in line and line.endswith("\n"):
                return str(json.loads(line)["dump"])
    raise AssertionError("the scheduler does not answer SIGUSR2")


def _read(dump: str) -> tuple[Seen, str]:
    pods, cpu, waiting, left = {}, {}, set(), ""
    for line in dump.splitlines():
        if found := PLACED.fullmatch(line):
            pods[found[1]] = set(filter(None, found[3].split(", ")))
            cpu[found[1]] = json.loads(found[2].replace("'", '"')).get("cpu", 0)
        elif line.startswith("attempts: "):
            left = line.removeprefix("attempts: ")
        elif " in " in line:
            waiting.add(line.partition(" in ")[0])
    return Seen(pods, cpu, waiting), left
