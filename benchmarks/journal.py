"""What keeping decisions costs: the scheduler on a real control plane, in this process, with all of it on.

All parts are measured in one run, so that what else the machine does matters little: the processor time in
which the event loop keeps decisions, that of the thread that writes the journal, and both as a share of what
the whole scheduler takes, from the first pod to the last event, and of the time from the first pod to the
last binding: as much would be lost at most, if nothing of it went on beside.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cluster import UNLIMITED, WORKLOADS, Bench, in_parallel, pods_for
from stowplan.bench.workloads import Workload, read_workloads
from stowplan.client.api import ApiClient
from stowplan.client.kubeconfig import load
from stowplan.config import load as load_config
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.framework.registry import Registry
from stowplan.journal import Decisions
from stowplan.journal.writer import JournalWriter
from stowplan.scheduler.scheduler import Scheduler, Settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.control_plane import ADMIN, SCHEDULER, ControlPlane

HEADER = (
    "| nodes | workload | pods/s | CPU us a pod | keeping | writing | share of CPU | share of time "
    "| bytes in memory | on disk |\n" + "|---" * 10 + "|"
)


class Spent:
    """Seconds of processor time that a function took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds, self._function = 0.0, function

    def __call__(self, *arguments: Any) -> None:
        began = time.thread_time()
        self._function(*arguments)
        self.seconds += time.thread_time() - began


class MeasuredWriter(JournalWriter):
    seconds = 0.0

    def _work(self) -> None:
        spent = Spent(super()._work)
        spent()
        self.seconds += spent.seconds


async def run(bench: Bench, workload: Workload, pods: int, directory: Path) -> str:
    template = workload.pod_template
    names = [f"pod-{number}" for number in range(pods)]
    await in_parallel(bench._create_pod(name, template, number) for number, name in enumerate(names))
    connection = load(str(bench.control_plane.kubeconfig(SCHEDULER)))
    writer = MeasuredWriter(directory)
    decisions = Decisions(write=writer.add)
    keep = Spent(decisions.keep)
    decisions.keep = keep  # type: ignore[method-assign]
    registry = Registry.installed()
    async with (
        ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED) as api,
        ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED) as events,
    ):
        config = load_config(DEFAULT_CONFIG, registry).config
        scheduler = Scheduler(
            config, api, events, Settings(owns_process=True, registry=registry, decisions=decisions)
        )
        working = asyncio.create_task(scheduler.run())
        while not scheduler.is_synced:
            await asyncio.sleep(0.01)
        began, used = time.perf_counter(), time.process_time()
        scheduler.start()
        while decisions._maker.made + len(decisions._fresh) < pods:
            await asyncio.sleep(0.05)
        elapsed = time.perf_counter() - began
        await scheduler.stop(30)
        await asyncio.to_thread(writer.close)
        used = time.process_time() - used
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    await bench._clear(names)
    size = sum(each.stat().st_size for each in directory.glob("*.parquet"))
    kept, written = keep.seconds / pods * 1e6, writer.seconds / pods * 1e6
    return (
        f"| {bench.nodes:,} | {workload.name} | {pods / elapsed:,.0f} | {used / pods * 1e6:,.0f} "
        f"| {kept:.1f} | {written:.1f} | {(keep.seconds + writer.seconds) / used:.1%} "
        f"| {(keep.seconds + writer.seconds) / elapsed:.1%} "
        f"| {decisions.recent.bytes / pods:,.0f} | {size / pods:,.0f} |"
    )


@click.command()
@click.option("--nodes", type=click.IntRange(10), default=5000, show_default=True)
@click.option("--pods", type=click.IntRange(100), default=2000, show_default=True)
@click.option(
    "--workloads", "names", default=",".join(WORKLOADS), show_default=True, help="Divided by commas."
)
def main(nodes: int, pods: int, names: str) -> None:
    """Say what a pod costs the scheduler, and what part of that is keeping its decision."""
    known = {workload.name: workload for workload in read_workloads()}
    asyncio.run(measure(nodes, pods, [known[name] for name in names.split(",")]))


async def measure(nodes: int, pods: int, workloads: list[Workload]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        control_plane = ControlPlane(Path(folder))
        await asyncio.to_thread(control_plane.start)
        try:
            connection = load(str(control_plane.kubeconfig(ADMIN)))
            async with ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED) as api:
                bench = Bench(control_plane, api, nodes)
                await bench.create_nodes(workloads[0])
                click.echo(HEADER)
                for number, workload in enumerate(workloads):
                    wanted = pods_for(workload.name, pods, nodes)
                    click.echo(await run(bench, workload, wanted, Path(folder) / f"journal-{number}"))
        finally:
            await asyncio.to_thread(control_plane.stop)


if __name__ == "__main__":
    main()
