"""Stowplan beside kube-scheduler on one control plane, and beside loops that decide nothing.

One loop only binds. The other does all that a scheduler must besides deciding: it binds, writes an event for
each pod and reads the watch of pods. Its rate is the ceiling.

Each gets the same pods on the same nodes. First all of them wait when it starts: pods a second are those of
the middle 80% of the bindings, CPU is that from the first binding until the last events are sent, so that
starting up does not count, but deciding ahead does. Then pods come at a steady rate, for the time from
creation to bind, and for what each makes the API server do. Bindings are seen by a watch of our own; memory
is read in /proc.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

import ceiling
from api_server_work import Reading, Work, difference, moved_bytes, read, work
from ceiling import CEILING
from stowplan.bench.workloads import Workload, fill_template, read_workloads
from stowplan.client.api import ApiClient
from stowplan.client.errors import NotFound
from stowplan.client.kubeconfig import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.control_plane import ADMIN, SCHEDULER, ControlPlane
from controlplane.pod_groups import ALL, GATES, GROUPS

Json = dict[str, Any]

AT_ONCE = 64
UNLIMITED = 10_000
KUBE_SCHEDULER, STOWPLAN = "kube-scheduler", "stowplan"
BARE = "bare binding"
BEFORE = "stowplan before"
FORGETFUL, JOURNALED = "stowplan that keeps no decisions", "stowplan with a journal"
CONTENDERS = (KUBE_SCHEDULER, STOWPLAN, CEILING, BARE, BEFORE, FORGETFUL, JOURNALED)
WORKLOADS = ("plain", "hard-zone-spread", "anti-affinity")
STEADY_RATE, STEADY_PODS = 50, 200
SETTLE_SECONDS = 2.0  # for events that are sent after the last binding
PODS, EVENTS = "/api/v1/namespaces/default/pods", "/apis/events.k8s.io/v1/namespaces/default/events"
STRATEGIC = "application/strategic-merge-patch+json"
HEADER = (
    "| nodes | workload | who | pods/s | times kube-scheduler | of the ceiling | CPU ms a pod "
    "| API server's | RSS MB | p50 ms | p99 ms | calls | watch events | KB | KB in all |\n"
    + "|---" * 15
    + "|"
)


class Result(msgspec.Struct):
    """One run. CPU is in milliseconds a pod, times from creation to bind are in milliseconds."""

    nodes: int
    workload: str
    who: str
    per_second: float
    cpu: float
    api_server_cpu: float
    rss_mb: float
    events: int
    """How many there were in the end; each pod should have one that tells where it went."""
    moved_kb: float
    """What the API server reads and writes for a pod in all, answers and its talk with etcd included."""
    work: Work
    p50: float | None = None
    p99: float | None = None


class Mark(NamedTuple):
    """How far a run was at some time: pods bound, and CPU used in milliseconds."""

    bound: int
    seconds: float
    cpu: float
    api_server_cpu: float
    moved: int


class _Name(msgspec.Struct):
    name: str


class _Bound(msgspec.Struct):
    metadata: _Name


class _Event(msgspec.Struct):
    type: str
    object: _Bound


_event = msgspec.json.Decoder(_Event).decode


class Bindings:
    """When each pod was seen on a node, by our clock."""

    def __init__(self, on_count: Callable[[int], None]) -> None:
        self.seen: dict[str, float] = {}
        self.lines = self.bytes = 0
        self._on_count = on_count

    async def watch(self, api: ApiClient, version: str) -> None:
        # A pod comes into such a watch when it is bound.
        query = {"watch": "true", "fieldSelector": "spec.nodeName!=", "resourceVersion": version}
        await api.stream(PODS, self.on_line, query=query, silence=600, open_seconds=600)

    def on_line(self, line: bytes) -> None:
        self.lines, self.bytes = self.lines + 1, self.bytes + len(line) + 1
        event = _event(line)
        if event.type == "ADDED":
            self.seen[event.object.metadata.name] = time.monotonic()
            self._on_count(len(self.seen))


class Bench:
    def __init__(
        self,
        control_plane: ControlPlane,
        api: ApiClient,
        nodes: int,
        before: Path | None = None,
        gang: int = 0,
    ) -> None:
        self.control_plane, self.api, self.nodes, self.before = control_plane, api, nodes, before
        self.gang = gang
        self._created = Reading(Counter())

    async def create_nodes(self, workload: Workload) -> None:
        async def create(number: int) -> None:
            node = {"apiVersion": "v1", "kind": "Node", **fill_template(workload.node_template, number)}
            await self.api.request("POST", "/api/v1/nodes", node)
            status = node["status"] | {
                "capacity": node["status"]["allocatable"],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            }
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            await self.api.request("PATCH", path, {"status": status}, content_type=STRATEGIC)

        await in_parallel(create(number) for number in range(self.nodes))

    async def create_residents(self, workload: Workload, count: int) -> None:
        """Pods that have their nodes before any scheduler starts."""
        template = workload.initial_pods.template
        await in_parallel(
            self._create_pod(f"resident-{number}", template, number, nodeName=f"node-{number % self.nodes}")
            for number in range(count)
        )

    async def run(self, who: str, workload: Workload, pods: int, rate: int) -> Result:
        template, names = workload.pod_template, [f"pod-{number}" for number in range(pods)]
        if self.gang:
            await in_parallel(self._create_group(number) for number in range(pods // self.gang))
        await in_parallel(self._create_pod(name, template, number) for number, name in enumerate(names))
        at = (1, pods // 10, pods - pods // 10)
        marks: list[Mark] = []
        all_bound = asyncio.Event()
        others = children()

        def mark(count: int) -> None:
            pid = max(children() - others)  # it may have begun before it said that it is ready
            moved = moved_bytes(self.control_plane.api_server.pid) - bindings.bytes
            marks.append(Mark(count, time.monotonic(), cpu_ms(pid), self._control_plane_cpu(), moved))

        def on_count(count: int) -> None:
            if count in at:
                mark(count)
            if count == pods:
                all_bound.set()

        bindings = Bindings(on_count)
        async with self._watching(bindings):
            before = await self._reading(bindings)
            async with self._contender(who, names) as process:
                await asyncio.wait_for(all_bound.wait(), 60 + pods / 5)
                waits: list[float] = []
                if who != BARE:
                    await asyncio.sleep(SETTLE_SECONDS)
                mark(pods)
                rss = resident_mb(process.pid)
                if who not in (BARE, CEILING) and not self.gang:
                    before = await self._reading(bindings)
                    waits = await self._steady(bindings, template, pods, rate)
                    await asyncio.sleep(SETTLE_SECONDS)
            done = difference(before, await self._reading(bindings))
        events = await self._clear([f"pod-{number}" for number in range(pods + len(waits))])
        if self.gang:
            await in_parallel(self._delete_group(number) for number in range(pods // self.gang))
        begun, tenth, nine_tenths, ended = marks
        found = Result(
            nodes=self.nodes,
            workload=workload.name,
            who=who,
            per_second=(nine_tenths.bound - tenth.bound) / (nine_tenths.seconds - tenth.seconds),
            cpu=(ended.cpu - begun.cpu) / pods,
            api_server_cpu=(ended.api_server_cpu - begun.api_server_cpu) / pods,
            rss_mb=rss,
            events=events,
            moved_kb=round((ended.moved - begun.moved) / pods / 1000, 2),
            work=work(done, len(waits) or pods),
        )
        if waits:
            found.p50, found.p99 = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
        return found

    async def _reading(self, bindings: Bindings) -> Reading:
        """What the API server has done for others than us."""
        metrics = (await self.api.request("GET", "/metrics")).data.decode()
        ours = self._created._replace(watch_events=bindings.lines, watch_bytes=bindings.bytes)
        return difference(ours, read(metrics))

    async def _steady(self, bindings: Bindings, template: Json, first: int, rate: int) -> list[float]:
        """Pods one after another; how many milliseconds each took."""
        began, created = time.monotonic(), {}
        for number in range(first, first + STEADY_PODS):
            await asyncio.sleep(began + (number - first) / rate - time.monotonic())
            name = f"pod-{number}"
            created[name] = time.monotonic()
            await self._create_pod(name, template, number)
        while not all(name in bindings.seen for name in created):
            await asyncio.sleep(0.05)
        return [(bindings.seen[name] - at) * 1000 for name, at in created.items()]

    async def _create_pod(self, name: str, template: Json, number: int, **spec: Any) -> None:
        pod = fill_template(template, number)
        if self.gang:
            spec["schedulingGroup"] = {"podGroupName": f"gang-{number // self.gang}"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**pod.get("metadata", {}), "name": name},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                **pod["spec"],
                **spec,
            },
        }
        data = msgspec.json.encode(body)
        calls, bytes_before, *_ = self._created
        calls["POST pods"] += 1
        self._created = Reading(calls, bytes_before + len(data))
        await self.api.request("POST", PODS, data)

    async def _create_group(self, number: int) -> None:
        group = {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": f"gang-{number}"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": self.gang}}},
        }
        await self.api.request("POST", GROUPS, group)

    async def _delete_group(self, number: int) -> None:
        path = f"{GROUPS}/gang-{number}"
        await self.api.request("DELETE", path)
        body = {"metadata": {"finalizers": None}}  # no controller takes them off here
        await self.api.request("PATCH", path, body, content_type="application/merge-patch+json")

    @asynccontextmanager
    async def _watching(self, bindings: Bindings) -> AsyncIterator[None]:
        listed = await self.api.get_json(f"{PODS}?limit=1")
        watch = asyncio.create_task(bindings.watch(self.api, listed["metadata"]["resourceVersion"]))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    @asynccontextmanager
    async def _contender(self, who: str, names: list[str]) -> AsyncIterator[Any]:
        """Starts one of the three; its process. Starting and stopping wait, so they have other threads."""
        running: AbstractContextManager[Any]
        if who == BARE:
            running = self._binder(names)
        elif who == CEILING:
            running = ceiling.running(self.control_plane)
        elif who == KUBE_SCHEDULER:
            running = self.control_plane.kube_scheduler(*([GATES] if self.gang else []))
        else:
            source = self.before if who == BEFORE else None
            running = self.control_plane.stowplan(*self._flags(who), source=source)
        process = await asyncio.to_thread(running.__enter__)
        try:
            yield process
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)

    def _flags(self, who: str) -> list[str]:
        flags = [GATES] if self.gang else []
        if who == FORGETFUL:
            flags.append("--decisions-memory=0")
        elif who == JOURNALED:
            flags.append(f"--journal={self.control_plane.folder / 'journal'}")
        return flags

    @contextmanager
    def _binder(self, names: list[str]) -> Iterator[Any]:
        kubeconfig = str(self.control_plane.kubeconfig(SCHEDULER))
        nodes = [f"node-{number % self.nodes}" for number in range(len(names))]
        # Not forked: that would share our event loop's connections.
        binder = multiprocessing.get_context("spawn").Process(
            target=bind_all, args=(kubeconfig, names, nodes)
        )
        binder.start()
        yield binder
        binder.terminate()
        binder.join()

    async def _clear(self, names: list[str]) -> int:
        """No pods of the run any more, and no events; the nodes stay. How many events there were."""
        now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        events = (await self.api.get_json(EVENTS))["items"]
        await in_parallel(self.api.request("DELETE", f"{PODS}/{name}", now) for name in names)
        await in_parallel(self._delete(f"{EVENTS}/{event['metadata']['name']}") for event in events)
        return len(events)

    async def _delete(self, path: str) -> None:
        with suppress(NotFound):  # events go by themselves too
            await self.api.request("DELETE", path)

    def _control_plane_cpu(self) -> float:
        return cpu_ms(self.control_plane.api_server.pid) + cpu_ms(self.control_plane.etcd.pid)


def bind_all(kubeconfig: str, names: list[str], nodes: list[str]) -> None:
    """Bind pods, and nothing else: no watch, no decision, no event."""

    async def bind() -> None:
        async with ApiClient(load(kubeconfig), qps=UNLIMITED, burst=UNLIMITED) as api:
            await in_parallel(one(api, name, node) for name, node in zip(names, nodes, strict=True))

    async def one(api: ApiClient, name: str, node: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        await api.request("POST", f"{PODS}/{name}/binding", body)

    asyncio.run(bind())


async def in_parallel(work: Iterable[Any]) -> None:
    """All of it, so many at a time."""
    left = iter(work)

    async def take() -> None:
        for each in left:
            await each

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(take())


def children() -> set[int]:
    """The processes that we have started."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def cpu_ms(pid: int) -> float:
    """What all threads of a process have used so far, also those that have ended.

    Linux makes the number of a process's CPU clock from its pid (clock_getcpuclockid of the C library, which
    Python does not have). It counts nanoseconds, /proc/PID/stat only ticks of 10 ms.
    """
    with suppress(OSError):  # the process has ended
        return time.clock_gettime_ns(~pid << 3 | 2) / 1e6
    return 0.0


def resident_mb(pid: int) -> float:
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0  # it has ended already


def pods_for(workload: str, pods: int, nodes: int) -> int:
    """Pods that refuse to share a node cannot be more than there are nodes."""
    return min(pods, int(nodes * 0.8) - STEADY_PODS) if workload == "anti-affinity" else pods


def medians(results: list[Result]) -> list[Result]:
    """The rounds of the same run as one, field by field."""
    groups: dict[tuple[int, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.nodes, result.workload, result.who), []).append(result)
    measured = ("per_second", "cpu", "api_server_cpu", "rss_mb", "events", "moved_kb", "p50", "p99")
    return [
        msgspec.structs.replace(
            group[0], **{field: _median([getattr(result, field) for result in group]) for field in measured}
        )
        for group in groups.values()
    ]


def _median(values: list[float | None]) -> Any:
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def table(results: list[Result]) -> str:
    theirs = {(each.nodes, each.workload): each for each in results if each.who == KUBE_SCHEDULER}
    ceilings = {(each.nodes, each.workload): each for each in results if each.who == CEILING}
    rows = [HEADER]
    for each in results:
        other = theirs.get((each.nodes, each.workload))
        times = f"{each.per_second / other.per_second:.2f}" if other else ""
        limit = ceilings.get((each.nodes, each.workload))
        reached = f"{each.per_second / limit.per_second:.0%}" if limit else ""
        share = f" ({each.cpu / other.cpu:.2f})" if other and each.who != KUBE_SCHEDULER else ""
        waits = " | ".join("" if wait is None else f"{wait:,.0f}" for wait in (each.p50, each.p99))
        rows.append(
            f"| {each.nodes:,} | {each.workload} | {each.who} | {each.per_second:,.0f} | {times} "
            f"| {reached} | {each.cpu:.2f}{share} | {each.api_server_cpu:.2f} | {each.rss_mb:,.0f} | {waits} "
            f"| {each.work.call_count:.2f} | {each.work.watch_events:.2f} | {each.work.kb:.2f} "
            f"| {each.moved_kb:.1f} |"
        )
    return "\n".join(rows)


@click.command()
@click.option("--nodes", type=click.IntRange(10), multiple=True, default=(1000, 5000), show_default=True)
@click.option("--pods", type=click.IntRange(100), default=2000, show_default=True, help="Pods of each run.")
@click.option(
    "--workloads", "names", default=",".join(WORKLOADS), show_default=True, help="Divided by commas."
)
@click.option(
    "--who",
    default=f"{KUBE_SCHEDULER},{STOWPLAN},{CEILING},{BARE}",
    show_default=True,
    help=f"In this order; {FORGETFUL!r} and {JOURNALED!r} are others.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="The medians are shown.")
@click.option("--residents", default=0, show_default=True, help="Pods on their nodes before each run.")
@click.option("--rate", default=STEADY_RATE, show_default=True, help="Pods a second for p50 and p99.")
@click.option("--gang", default=0, show_default=True, help="Put so many pods at a time into a PodGroup.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where logs stay; otherwise none do.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"The src folder of another checkout, run as {BEFORE!r}.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    nodes: tuple[int, ...],
    pods: int,
    names: str,
    who: str,
    rounds: int,
    residents: int,
    rate: int,
    gang: int,
    folder: Path | None,
    before: Path | None,
    output: str,
) -> None:
    """Give the same pods to kube-scheduler, to Stowplan and to loops that decide nothing.

    The table is in Markdown, with the medians of all rounds; progress is told on standard error. With -o json
    every run is an object on a line of its own.
    """
    known = {workload.name: workload for workload in read_workloads()}
    for kind, given, possible in (("--who", who, CONTENDERS), ("--workloads", names, known)):
        if unknown := [each for each in given.split(",") if each not in possible]:
            raise click.UsageError(f"{kind}: unknown {unknown[0]!r}; known are {', '.join(possible)}")
    if BEFORE in who.split(",") and before is None:
        raise click.UsageError(f"--who names {BEFORE!r}: give that checkout's src folder with --before")
    if gang and pods % gang:
        raise click.UsageError(f"--pods must be a multiple of --gang: {pods} is not one of {gang}")
    workloads = [known[name] for name in names.split(",")]

    async def measure(control_plane: ControlPlane) -> list[Result]:
        results = []
        connection = load(str(control_plane.kubeconfig(ADMIN)))
        async with ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED, timeout=120) as api:
            for size in nodes:
                bench = Bench(control_plane, api, size, before, gang)
                control_plane.wipe()
                await bench.create_nodes(workloads[0])
                await bench.create_residents(workloads[0], residents)
                for _ in range(rounds):
                    for workload in workloads:
                        for each in who.split(","):
                            count = pods_for(workload.name, pods, size)
                            results.append(await bench.run(each, workload, count, rate))
                            tell(results[-1], output)
        return results

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        served = (ALL, "--runtime-config=scheduling.k8s.io/v1alpha2=true") if gang else ()
        control_plane = ControlPlane(Path(place), *served)
        try:
            control_plane.start()
            results = asyncio.run(measure(control_plane))
        finally:
            control_plane.stop()
    if output == "table":
        click.echo(table(medians(results)))


def tell(result: Result, output: str) -> None:
    click.echo(json.dumps(msgspec.to_builtins(result)), err=output == "table")


if __name__ == "__main__":
    main()
