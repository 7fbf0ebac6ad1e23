"""The extender: how long an answer takes, and what kube-scheduler loses by asking.

First the calls alone: a process serves the default profile over nodes it was told of, four pods on each,
while 300 more a second come as a watch would bring them; we ask filter, then prioritize, on one connection.
Then kube-scheduler on a real control plane: alone, with an extender that does nothing, with ours.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from cluster import (
    ADMIN,
    SCHEDULER,
    STEADY_PODS,
    STEADY_RATE,
    UNLIMITED,
    Bench,
    ControlPlane,
    Result,
    cpu_ms,
    medians,
)
from controlplane.control_plane import free_ports
from controlplane.process import Process
from stowplan.api.extender import ExtenderArgs, ExtenderFilterResult, HostPriority, read, write
from stowplan.api.kinds import object_of
from stowplan.bench.memory import plain_node
from stowplan.bench.workloads import Workload, fill_template, read_workloads
from stowplan.client.api import ApiClient
from stowplan.client.kubeconfig import load
from stowplan.config import KubeSchedulerConfiguration
from stowplan.extender.options import ExtenderOptions, StanzaOptions, configuration, extenders
from stowplan.extender.routes import LIMITS, Route, Routes
from stowplan.extender.service import Extender
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.http11.messages import Response
from stowplan.http11.server import listen
from stowplan.scheduler.scheduler import settle_memory

Json = dict[str, Any]
PROFILE = "default-scheduler"
COMING_SECONDS = 1 / 300
SHUFFLES = 50
ALONE, NOTHING, OURS = "kube-scheduler", "with an extender that does nothing", "with Stowplan's"
VERBS = ("filter", "prioritize")


class Calls(NamedTuple):
    nodes: int
    form: str
    kilobytes: float
    pairs_per_second: float
    p50: float
    p99: float
    cpu: float
    """Milliseconds of the server's for a pair."""


# The calls alone


def serve_calls(nodes: list[bytes], template: Json, ready: Connection) -> None:
    """In a process of its own."""

    async def serve() -> None:
        extender = Extender(ExtenderOptions(config=KubeSchedulerConfiguration(), port=0), _Recorder())  # type: ignore[arg-type]
        scheduler = extender.scheduler
        assert scheduler is not None
        see = partial(scheduler.handlers.on_event, "added", None)
        for text in nodes:
            see(object_of(msgspec.json.decode(text)))
        names = scheduler.cluster.nodes.names
        for number in range(4 * len(nodes)):
            see(_placed(template, number, names[number % len(names)]))
        scheduler.follower.is_synced = True
        settle_memory()
        async with extender.listening() as server:
            ready.send(server.port)
            for number in range(10**9):
                await asyncio.sleep(COMING_SECONDS)
                see(_placed(template, 10**6 + number, random.choice(names)))

    asyncio.run(serve())


class _Recorder:
    """Stands where the API server would: nothing is read from it or written to it here."""

    stored: Any = None


def _placed(template: Json, number: int, node: str) -> Any:
    return object_of(_pod(template, number, nodeName=node))


def _pod(template: Json, number: int, **spec: Any) -> Json:
    made = fill_template(template, number)
    meta = {**made.get("metadata", {}), "name": f"p-{number}", "namespace": "default", "uid": f"uid-{number}"}
    return {"kind": "Pod", "metadata": meta, "spec": {**made["spec"], **spec}}


class Client:
    """One connection that asks and waits, with as little work of its own as can be."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(2**26))

    def ask(self, verb: str, body: bytes) -> memoryview:
        head = f"POST /{PROFILE}/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode())
        self._socket.sendall(body)
        got = end = 0
        while not end:
            got += self._socket.recv_into(self._buffer[got:])
            end = bytes(self._buffer[:200]).find(b"\r\n\r\n") + 4 if got > 100 else 0
        answer = bytes(self._buffer[:end])
        assert answer.startswith(b"HTTP/1.1 200"), answer
        whole = end + int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while got < whole:
            got += self._socket.recv_into(self._buffer[got:])
        return self._buffer[end:whole]

    def close(self) -> None:
        self._socket.close()


def measure_calls(nodes: int, pairs: int, *, is_whole: bool) -> Calls:
    (workload,) = [each for each in read_workloads() if each.name == "plain"]
    made = [msgspec.json.encode(plain_node(number)) for number in range(nodes)]
    ours, theirs = multiprocessing.Pipe()
    serving = multiprocessing.get_context("spawn").Process(
        target=serve_calls, args=(made, workload.pod_template, theirs), daemon=True
    )
    serving.start()
    try:
        return _asked(ours.recv(), serving.pid or 0, made, workload.pod_template, pairs, is_whole)
    finally:
        serving.kill()


def _asked(port: int, pid: int, nodes: list[bytes], template: Json, pairs: int, is_whole: bool) -> Calls:
    ends = [_nodes(nodes, is_whole) for _ in range(3 if is_whole else SHUFFLES)]
    times: list[float] = []
    client = Client(port)
    for number in range(pairs + 20):
        if number == 20:  # warm
            times, began, cpu = [], time.perf_counter(), cpu_ms(pid)
        body = b'{"Pod":' + msgspec.json.encode(_pod(template, 10**7 + number)) + random.choice(ends)
        for verb in VERBS:
            at = time.perf_counter()
            answer = client.ask(verb, body)
            times.append(time.perf_counter() - at)
    seconds, used = time.perf_counter() - began, cpu_ms(pid) - cpu
    assert len(msgspec.json.decode(answer)) == len(nodes)
    client.close()
    return Calls(
        len(nodes),
        "whole nodes" if is_whole else "names",
        len(body) / 1000,
        pairs / seconds,
        statistics.median(times) * 1000,
        statistics.quantiles(times, n=100)[98] * 1000,
        used / pairs,
    )


def _nodes(nodes: list[bytes], is_whole: bool) -> bytes:
    """How a request goes on after the pod: in another order each time, as kube-scheduler's are."""
    shuffled = random.sample(nodes, len(nodes))
    if is_whole:
        items = b",".join(shuffled)
        return b',"Nodes":{"metadata":{},"items":[' + items + b']},"NodeNames":null}'
    names = [msgspec.json.decode(node)["metadata"]["name"] for node in shuffled]
    return b',"Nodes":null,"NodeNames":' + msgspec.json.encode(names) + b"}"


# Through kube-scheduler


def do_nothing(port: int) -> None:
    """In a process of its own: takes every node, and has no favourite."""

    def filter_(body: bytes) -> Response:
        args = read(ExtenderArgs, body)
        return Response(200, write(ExtenderFilterResult(nodes=args.nodes, node_names=args.node_names)))

    def prioritize(body: bytes) -> Response:
        names = read(ExtenderArgs, body).node_names or []
        return Response(200, write([HostPriority(host=name) for name in names]))

    async def serve() -> None:
        routes = {f"/{PROFILE}/filter": Route(filter_), f"/{PROFILE}/prioritize": Route(prioritize)}
        async with listen(Routes(routes), "127.0.0.1", port, limits=LIMITS):
            await asyncio.Event().wait()

    asyncio.run(serve())


class ExtenderBench(Bench):
    """kube-scheduler, with an extender or without."""

    @asynccontextmanager
    async def _contender(self, who: str, names: list[str]) -> AsyncIterator[Any]:
        found = [] if who == ALONE else _stanza(self.ports[who])
        running = self.control_plane.kube_scheduler(extenders=found, percentageOfNodesToScore=100)
        process = await asyncio.to_thread(running.__enter__)
        try:
            yield process
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)

    ports: dict[str, int]
    pids: dict[str, int]


def _stanza(port: int) -> list[Json]:
    options = ExtenderOptions(config=KubeSchedulerConfiguration(), verbs=VERBS)
    profiles = resolve_profiles(KubeSchedulerConfiguration(), Registry.installed())
    stanza = StanzaOptions(url=f"http://127.0.0.1:{port}")
    found: list[Json] = configuration(list(extenders(options, stanza, profiles)))["extenders"]
    return found


@contextmanager
def _served(control_plane: ControlPlane, folder: Path) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Both extenders at work: where each answers, and its process."""
    nothing, ours = free_ports(2)
    config = folder / "extender.json"
    document = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config.write_text(json.dumps(document))
    command = [sys.executable, "-m", "stowplan.cli", "extender", f"--config={config}", f"--port={ours}"]
    command += [f"--kubeconfig={control_plane.kubeconfig(SCHEDULER)}", "--verb=filter", "--verb=prioritize"]
    idle = multiprocessing.get_context("spawn").Process(target=do_nothing, args=(nothing,), daemon=True)
    extender = Process(command, folder / "extender.log", partial(_is_ready, ours))
    idle.start()
    extender.start()
    try:
        yield {NOTHING: nothing, OURS: ours}, {NOTHING: idle.pid or 0, OURS: extender.pid}
    finally:
        extender.stop()
        idle.kill()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def measure_through(nodes: int, pods: int, rounds: int) -> list[Result]:
    (workload,) = [each for each in read_workloads() if each.name == "plain"]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        control_plane = ControlPlane(Path(folder))
        await asyncio.to_thread(control_plane.start)
        try:
            async with ApiClient(
                load(str(control_plane.kubeconfig(ADMIN))), qps=UNLIMITED, burst=UNLIMITED
            ) as api:
                bench = ExtenderBench(control_plane, api, nodes)
                await bench.create_nodes(workload)
                results = await _rounds(bench, workload, pods, rounds, Path(folder))
        finally:
            await asyncio.to_thread(control_plane.stop)
    return medians(results)


async def _rounds(
    bench: ExtenderBench, workload: Workload, pods: int, rounds: int, folder: Path
) -> list[Result]:
    results = []
    for _ in range(rounds):
        served = _served(bench.control_plane, folder)
        bench.ports, bench.pids = await asyncio.to_thread(served.__enter__)
        try:
            for who in (ALONE, NOTHING, OURS):
                pid = bench.pids.get(who, 0)
                before = cpu_ms(pid)
                results.append(await bench.run(who, workload, pods, STEADY_RATE))
                used = (cpu_ms(pid) - before) / (pods + STEADY_PODS)
                told = f"{results[-1].per_second:.0f} pods/s, the extender's CPU {used:.2f} ms a pod"
                click.echo(f"{who}: {told}", err=True)
        finally:
            await asyncio.to_thread(served.__exit__, None, None, None)
    return results


def tables(calls: list[Calls], through: list[Result]) -> Iterator[str]:
    if calls:
        yield "| nodes | sent as | KB | pairs/s | p50 ms | p99 ms | CPU ms a pair |\n" + "|---" * 7 + "|"
    for each in calls:
        yield (
            f"| {each.nodes:,} | {each.form} | {each.kilobytes:,.0f} | {each.pairs_per_second:,.0f} "
            f"| {each.p50:.1f} | {each.p99:.1f} | {each.cpu:.1f} |"
        )
    if through:
        idle = next(each.per_second for each in through if each.who == NOTHING)
        yield ("\n| nodes | who | pods/s | of that with one that does nothing |\n" + "|---" * 4 + "|")
    for row in through:
        yield f"| {row.nodes:,} | {row.who} | {row.per_second:,.0f} | {row.per_second / idle:.2f} |"


@click.command()
@click.option("--pairs", default=500, show_default=True, help="Calls of filter and prioritize.")
@click.option("--nodes", default=1000, show_default=True, help="For kube-scheduler.")
@click.option("--pods", default=2000, show_default=True, help="For kube-scheduler; 0 leaves that out.")
@click.option("--rounds", default=3, show_default=True, help="The medians are shown.")
def main(pairs: int, nodes: int, pods: int, rounds: int) -> None:
    """Print what an answer takes, and what kube-scheduler loses by asking, as Markdown."""
    calls = [
        measure_calls(5000, pairs, is_whole=False),
        measure_calls(1000, max(pairs // 5, 50), is_whole=True),
    ]
    through = asyncio.run(measure_through(nodes, pods, rounds)) if pods else []
    click.echo("\n".join(tables(calls, through)))


if __name__ == "__main__":
    main()
