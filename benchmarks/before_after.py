"""Compare the CPU of two versions of Stowplan on the same workloads, and fail if one got slower.

    python benchmarks/before_after.py main~20
    python benchmarks/before_after.py v0.1.0 --cluster

Rounds are interleaved so that a busy machine slows both versions: decisions are measured in two processes
that take turns on one CPU every few milliseconds; a control plane serves the two in alternating order, and
its own CPU tells how fast the machine was in each run: for equal calls it does equal work, but two runs of
one version were seen to differ by 20 %, the control plane's CPU with them.
The result of a workload is the median of its rounds' ratios. A workload over the limit is measured for as
many rounds again before it counts as slower.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
Pair = tuple[float, float]
"""CPU before and after, of one round."""
WARM_UP = 10
SAME_CALLS = 0.02
"""Up to this difference in calls a pod the control plane does the same work for both versions."""
Measure = Callable[[int], Pair]
"""Run one round; its number decides which version goes first."""


@contextmanager
def checkout(before: str) -> Iterator[Path]:
    """Yield the folder of the other version: `before` itself, or a temporary worktree of that revision."""
    if Path(before, "src/stowplan").is_dir():
        yield Path(before).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        add = ["git", "worktree", "add", "--quiet", "--detach", folder, before]
        if subprocess.run(add, cwd=ROOT, check=False).returncode:
            raise click.BadParameter(
                f"{before!r} is neither a checkout nor a git revision", param_hint="BEFORE"
            )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


class Decider:
    """A process of one version that decides the next few pods of a workload when it is told to."""

    SCRIPT = """
import gc, sys, time
from stowplan.bench import decisions as bench
from stowplan.bench.workloads import read_workloads
[workload] = [each for each in read_workloads() if each.name == sys.argv[1]]
try:
    cluster = bench.build(workload, int(sys.argv[2]), workload.measured)
except TypeError:  # older versions have no objects that belong to pods
    cluster = bench.build(workload, int(sys.argv[2]))
planner = bench.Planner(cluster)
if hasattr(bench, "nominated"):
    planner.keep_nominations(bench.nominated(workload, int(sys.argv[2])))
pods = list(bench.pending(workload, workload.measured))
gc.collect()
gc.freeze()
slice = len(pods) // 100
for first in range(0, len(pods), slice):
    sys.stdin.readline()
    began = time.process_time_ns()
    for pod in pods[first : first + slice]:
        bench._place(planner, pod)
    print((time.process_time_ns() - began) / 1000 / slice, first + slice >= len(pods), flush=True)
"""

    def __init__(self, version: Path, workload: str, nodes: int, cpu: str) -> None:
        command = ["taskset", "-c", cpu, sys.executable, "-c", self.SCRIPT, workload, str(nodes)]
        environment = {**os.environ, "PYTHONPATH": str(version / "src")}
        self.done = False
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def decide(self) -> float:
        """Return the CPU of a decision in this turn, in µs."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        cpu, done = self._process.stdout.readline().split()
        self.done = done == "True"
        return float(cpu)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def decision_rows(
    before: Path, nodes: tuple[int, ...], only: tuple[str, ...]
) -> Iterator[tuple[str, Measure]]:
    """Yield the workloads of `stowplan bench decisions`; CPU in µs a decision."""
    sys.path.insert(0, str(ROOT / "src"))
    from stowplan.bench.workloads import read_workloads

    cpus = sorted(os.sched_getaffinity(0))

    def measure(workload: str, size: int, number: int) -> Pair:
        cpu = str(cpus[number % len(cpus)])
        was, now = (Decider(version, workload, size, cpu) for version in (before, ROOT))
        for _ in range(WARM_UP):
            was.decide(), now.decide()
        pairs = []
        while not (was.done or now.done):
            first, second = (was, now) if len(pairs) % 2 else (now, was)
            spent = {first: first.decide(), second: second.decide()}
            pairs.append((spent[was], spent[now]))
        was.stop(), now.stop()
        return tuple(statistics.median(side) for side in zip(*pairs, strict=True))

    known = (before / "src/stowplan/bench/workloads.yaml").read_text()
    names = [each.name for each in read_workloads()]
    if new := [name for name in names if f"- name: {name}\n" not in known]:
        click.echo(f"Not in the other version: {', '.join(new)}", err=True)
    for size in nodes:
        for workload in names:
            if workload not in new and (not only or workload in only):
                name = f"{workload}, {size:,} nodes, µs a decision"
                yield name, lambda number, w=workload, s=size: measure(w, s, number)  # type: ignore[misc]


def cluster_rows(before: Path, size: int, only: tuple[str, ...], pods: int) -> Iterator[tuple[str, Measure]]:
    """Yield the workloads of benchmarks/cluster.py, on a real control plane; CPU in ms a pod."""
    sys.path.insert(0, str(Path(__file__).parent))
    from cluster import BEFORE, STOWPLAN, WORKLOADS

    def measure(workload: str, number: int) -> Pair:
        # One, other, other, one: what drifts during a round slows both.
        who = (BEFORE, STOWPLAN, STOWPLAN, BEFORE) if number % 2 else (STOWPLAN, BEFORE, BEFORE, STOWPLAN)
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "benchmarks/cluster.py"), "-o", "json", "--rounds=1"),
                *(f"--nodes={size}", f"--pods={pods}", f"--workloads={workload}"),
                *(f"--who={','.join(who)}", f"--before={before / 'src'}"),
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        own, control_plane, calls = (
            {side: sum(value(row) for row in rows if row["who"] == side) / 2 for side in (BEFORE, STOWPLAN)}
            for value in (
                lambda row: row["cpu"],
                lambda row: row["api_server_cpu"],
                lambda row: sum(row["work"]["calls"].values()),
            )
        )
        if abs(calls[STOWPLAN] / calls[BEFORE] - 1) > SAME_CALLS:
            return own[BEFORE], own[STOWPLAN]
        return own[BEFORE], own[STOWPLAN] * control_plane[BEFORE] / control_plane[STOWPLAN]

    for workload in WORKLOADS:
        if not only or workload in only:
            name = f"{workload}, {size:,} nodes on a control plane, ms a pod"
            yield name, lambda number, w=workload: measure(w, number)  # type: ignore[misc]


def compare(measure: Measure, rounds: int, limit: float) -> list[Pair]:
    """Measure the rounds, and as many again if the ratio is over the limit by then."""
    pairs = [measure(number) for number in range(rounds)]
    if ratio(pairs) > limit:
        pairs += [measure(number) for number in range(rounds, 2 * rounds)]
    return pairs


def ratio(pairs: list[Pair]) -> float:
    return statistics.median(after / before for before, after in pairs)


@click.command()
@click.argument("before")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds per workload.")
@click.option("--nodes", type=click.IntRange(1), multiple=True, default=(5000,), show_default=True)
@click.option("--workload", "only", multiple=True, help="Measure only this workload; repeat for more.")
@click.option("--cluster", is_flag=True, help="Also measure on a real control plane, at the first --nodes.")
@click.option("--decisions/--no-decisions", default=True, help="Measure `stowplan bench decisions`.")
@click.option(
    "--pods", type=click.IntRange(100), default=2000, show_default=True, help="Pods with --cluster."
)
@click.option("--limit", default=3.0, show_default=True, help="Allowed increase of CPU, in percent.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    before: str,
    rounds: int,
    nodes: tuple[int, ...],
    only: tuple[str, ...],
    cluster: bool,
    decisions: bool,
    pods: int,
    limit: float,
    output: str,
) -> None:
    """Compare this working tree with BEFORE, a git revision or the folder of another checkout.

    Exits with 1 if a workload uses more CPU than --limit allows.
    """
    slower = []
    with checkout(before) as folder:
        rows: list[tuple[str, Measure]] = []
        if decisions:
            rows += decision_rows(folder, nodes, only)
        if cluster:
            rows += cluster_rows(folder, nodes[0], only, pods)
        if not rows:
            raise click.UsageError("nothing to measure: no workload has that name")
        if output == "table":
            click.echo("| workload | before | after | after/before | rounds |\n|---|---|---|---|---|")
        for name, measure in rows:
            pairs = compare(measure, rounds, 1 + limit / 100)
            was, now = (statistics.median(side) for side in zip(*pairs, strict=True))
            if output == "table":
                click.echo(f"| {name} | {was:.2f} | {now:.2f} | {ratio(pairs):.3f} | {len(pairs)} |")
            else:
                click.echo(json.dumps({"workload": name, "ratio": round(ratio(pairs), 4), "rounds": pairs}))
            if ratio(pairs) > 1 + limit / 100:
                slower.append(name)
    if slower:
        click.echo(f"More than {limit:g} % more CPU: {'; '.join(slower)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
