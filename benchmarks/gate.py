"""Says which workloads got slower since the baseline was recorded. For releases, on a quiet machine.

    python benchmarks/gate.py                 # exits with 1 if something got slower
    python benchmarks/gate.py --update        # records what it measures as the new baseline

Ratios are compared, not times, so that the machine matters little: the CPU of a decision against that of a
fixed computation that takes turns with it, and the CPU of a pod against kube-scheduler's in the same run.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from cluster import KUBE_SCHEDULER, STOWPLAN
from controlplane.binaries import version
from perf_files import Row, default_folder, read_rows
from scheduler_perf import Runner, compare, run_all
from stowplan.bench.workloads import read_workloads

BASELINE = Path(__file__).with_name("baseline.json")
SIZES = (5000, 50_000)
"""Nodes, as in `make bench`."""
ROWS = (
    "affinity/SchedulingPodAntiAffinity/500Nodes",
    "affinity/SchedulingPreferredPodAffinity/500Nodes",
    "dra/SchedulingWithResourceClaimTemplate/2000pods_100nodes",
    "event_handling/EventHandlingPodDelete/50Nodes_500Pods",
    "misc/PreemptionBasic/1000Nodes_QueueingHintsEnabled",
    "misc/SchedulingBasic/500Nodes",
    "misc/SchedulingWithMixedChurn/1000Nodes",
    "misc/Unschedulable/500Nodes/10Init/1kPods",
    "topology_spreading/TopologySpreading/500Nodes",
    "volumes/SchedulingCSIPVs/500Nodes",
)

DECIDE = """
import gc, statistics, sys, time
import numpy as np
from stowplan.bench import decisions as bench
from stowplan.bench.workloads import read_workloads

[workload] = [each for each in read_workloads() if each.name == sys.argv[1]]
planner = bench.Planner(bench.build(workload, int(sys.argv[2])))
pods = list(bench.pending(workload, workload.measured))
column = np.arange(5000)

def compute():
    for number in range(40):
        found = {str(each): each for each in range(200)}
        np.flatnonzero((column * number % 7 == 3) & (column > len(found)))

gc.collect()
gc.freeze()
size, ratios = max(len(pods) // 50, 1), []
for first in range(0, len(pods), size):
    part = pods[first : first + size]
    began = time.process_time_ns()
    for pod in part:
        bench._place(planner, pod)
    decided = time.process_time_ns()
    compute()
    ratios.append((decided - began) / len(part) / (time.process_time_ns() - decided))
print(statistics.median(ratios[len(ratios) // 10 :]))
"""


class Baseline(msgspec.Struct):
    """Ratios by name of the workload."""

    decisions: dict[str, float] = {}
    """CPU of a decision, in runs of the fixed computation."""
    scheduler_perf: dict[str, float] = {}
    """CPU a pod, against kube-scheduler's."""


def measure_decisions(rounds: int, only: str) -> Iterator[tuple[str, float]]:
    for size in SIZES:
        for workload in [each.name for each in read_workloads()]:
            name = f"{workload}, {size:,} nodes"
            if not re.search(only, name):
                continue
            command = [sys.executable, "-c", DECIDE, workload, str(size)]
            ratios = [
                float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                for _ in range(rounds)
            ]
            yield name, statistics.median(ratios)


def gate_rows(folder: Path | None, only: str) -> list[Row]:
    known = {row.name: row for row in read_rows(folder or default_folder(version("k8s.io/kubernetes")))}
    if missing := set(ROWS) - known.keys():
        raise click.ClickException(f"scheduler_perf has no workload {min(missing)}")
    return [known[name] for name in ROWS if re.search(only, name)]


def measure_rows(rounds: int, rows: list[Row], resume: Path | None) -> Iterator[tuple[str, float]]:
    with tempfile.TemporaryDirectory(prefix="gate-") as place:
        runner = Runner(Path(place), embedded=False, before=None, timeout=600)
        results = asyncio.run(run_all(runner, rows, [KUBE_SCHEDULER, STOWPLAN], rounds, resume, "table"))
    for each in compare(results):
        if each.cpu_ratio is None or not each.ours.is_complete:
            raise click.ClickException(f"{each.ours.row}: {each.ours.error or 'not every pod was bound'}")
        yield each.ours.row, each.cpu_ratio


def report(name: str, known: float | None, now: float, limit: float) -> str:
    """A row of the table; its last column says when the ratio has changed by more than the limit."""
    if known is None:
        return f"| {name} | | {now:.3f} | | new |"
    change = now / known - 1
    word = "**slower**" if change > limit else "faster" if change < -limit else ""
    return f"| {name} | {known:.3f} | {now:.3f} | {change:+.1%} | {word} |"


@click.command()
@click.option("--update", is_flag=True, help="Record the measured ratios as the new baseline.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds; medians count.")
@click.option("--limit", default=5.0, show_default=True, help="Allowed increase for decisions, in percent.")
@click.option(
    "--cluster-limit",
    default=15.0,
    show_default=True,
    help="Allowed increase for scheduler_perf, in percent.",
)
@click.option("--decisions/--no-decisions", default=True, help="Measure `stowplan bench decisions`.")
@click.option("--cluster/--no-cluster", default=True, help="Measure scheduler_perf on a control plane.")
@click.option("--only", default="", metavar="REGEX", help="Measure only workloads whose name matches.")
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="Folder of scheduler_perf.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE", help="As of scheduler_perf.py.")
def main(
    update: bool,
    rounds: int,
    limit: float,
    cluster_limit: float,
    decisions: bool,
    cluster: bool,
    only: str,
    folder: Path | None,
    resume: Path | None,
) -> None:
    """Compare this version with the recorded baseline; exit with 1 if a workload got slower."""
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Baseline) if BASELINE.exists() else Baseline()
    click.echo("| workload | baseline | now | change | |\n|---|---|---|---|---|")
    slower = []
    parts = []
    if decisions:
        parts.append((baseline.decisions, measure_decisions(rounds, only), limit / 100))
    if cluster:
        parts.append(
            (
                baseline.scheduler_perf,
                measure_rows(rounds, gate_rows(folder, only), resume),
                cluster_limit / 100,
            )
        )
    for known, measured, allowed in parts:
        for name, now in measured:
            line = report(name, known.get(name), now, allowed)
            click.echo(line)
            if "slower" in line:
                slower.append(name)
            if update:
                known[name] = round(now, 4)
                BASELINE.write_text(json.dumps(msgspec.to_builtins(baseline), indent=2) + "\n")
    if slower and not update:
        click.echo(f"Slower than the baseline: {'; '.join(slower)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
