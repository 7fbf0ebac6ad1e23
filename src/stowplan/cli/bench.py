"""`stowplan bench`: measures on this machine what docs/performance.md claims."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from stowplan.bench.decisions import Measurement, measure
from stowplan.bench.memory import measure_memory
from stowplan.bench.workloads import read_workloads
from stowplan.errors import InputError

HEADER = (
    f"{'workload':20}{'nodes':>7}{'decisions/s':>13}{'p50 µs':>10}{'p99 µs':>10}{'cpu µs':>10}{'RSS MB':>9}"
)


@click.group()
def bench() -> None:
    """Measure how fast decisions are made."""


@bench.command()
@click.option("--nodes", type=click.IntRange(1), multiple=True, default=(5000,), show_default=True)
@click.option("--workload", "names", multiple=True, help="Only this one; may be given again.")
@click.option("--count", type=click.IntRange(1), help="Pods to measure instead of the workload's own number.")
@click.option(
    "--workloads", "file", type=click.Path(exists=True, path_type=Path), help="Another file of them."
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def decisions(
    nodes: tuple[int, ...], names: tuple[str, ...], count: int | None, file: Path | None, output: str
) -> None:
    """Decide and place pods of each workload, every node scored, on one thread.

    Times are in microseconds for a decision with placing the pod. The table shows them as they are measured;
    with -o json each measurement is an object on a line of its own.
    """
    workloads = read_workloads(file.read_text() if file else None)
    unknown = set(names) - {workload.name for workload in workloads}
    if unknown:
        known = ", ".join(workload.name for workload in workloads)
        raise InputError(f"there is no workload {', '.join(sorted(unknown))}; there are {known}")
    if output == "table":
        click.echo(HEADER)
    for size in nodes:
        for workload in workloads:
            if not names or workload.name in names:
                _show(measure(workload, size, count), output)


def _show(found: Measurement, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    click.echo(
        f"{found.workload:20}{found.nodes:>7}{found.per_second:>13,.0f}{found.p50:>10,.1f}{found.p99:>10,.1f}"
        f"{found.cpu:>10,.1f}{found.rss_mb:>9,.0f}"
    )


@bench.command()
@click.option("--nodes", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=50000, show_default=True)
def memory(nodes: int, pods: int) -> None:
    """Read a cluster from JSON, node by node and pod by pod, and say how much memory holds it."""
    found = measure_memory(nodes, pods)
    click.echo(
        f"{found.nodes} nodes and {found.pods} pods of {found.pod_bytes} bytes of JSON: "
        f"{found.rss_mb} MB resident ({found.before_mb} MB before), read in {found.seconds} s"
    )
