"""Reproduces a paper's table with the replay: GPU fragmentation by policy, on the OpenB traces.

    python benchmarks/fgd.py                  # all three tables
    python benchmarks/fgd.py --table 1 --policy FGD --trace default --seeds 42

The paper is "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC 2023); `docs/replay.md` tells what the tables show. The traces are read from `--traces`, by
default from $STOWPLAN_TRACES or `../shared/traces/openb` beside the repository."""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np

from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.replay import Event, ReplayOptions, Results, Trace, read_trace, replay

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "gpu-sharing"
PLACES = (os.environ.get("STOWPLAN_TRACES", ""), HERE.parents[1] / "shared" / "traces" / "openb")
POLICIES = ("Random", "DotProd", "Clustering", "Packing", "BestFit", "FGD")
PUBLISHED = {
    "default": (12.53, 9.15, 8.12, 8.00, 6.92, 4.61),
    "gpushare100": (20.56, 17.58, 17.35, 17.43, 14.99, 13.10),
    "gpuspec33": (13.54, 10.86, 7.88, 6.78, 6.91, 5.45),
    "multigpu50": (9.73, 5.15, 4.19, 3.82, 4.26, 2.82),
}
"""Unallocated GPU in percent, mean of ten seeds, in the order of POLICIES."""
TIMED = ("default", "gpushare100", "gpuspec33")
SEEDS = range(42, 52)
LOAD = 1.3
TYPICAL_SHARE = 0.95
TITLES = {
    1: "Unallocated GPU in % when 130 % of the GPUs were asked for; ties go to the first node by name",
    2: "The same, with ties drawn at random as kube-scheduler does",
    3: "With departures: pods arrive as fast as would take 130 % of the GPUs, and run as long as recorded",
}


class Pod(NamedTuple):
    event: Event
    cpu: int
    count: int
    milli: int
    models: str

    @property
    def gpu(self) -> int:
        return self.count * self.milli


class Run(NamedTuple):
    table: int
    trace: str
    policy: str
    seed: int


class Outcome(NamedTuple):
    run: Run
    unallocated: float
    seconds: float
    cpu_seconds: float
    decisions: int


@lru_cache(maxsize=1)
def read_pods(folder: Path, name: str) -> tuple[list[Event], list[Pod], int]:
    """The nodes, the pods sorted by name, and how many GPUs there are."""
    file = folder / f"openb_pod_list_{name}.csv"
    events = read_trace(file, EXAMPLE / "openb.yaml").events
    nodes = [event for event in events if event.kind == "Node"]
    by_name = {event.name: event for event in events if event.kind == "Pod"}
    pods = []
    with file.open(newline="") as stream:
        for row in csv.DictReader(stream):
            cpu, count, milli = (int(row[key]) for key in ("cpu_milli", "num_gpu", "gpu_milli"))
            pods.append(Pod(by_name[row["name"]], cpu, count, milli, row.get("gpu_spec") or ""))
    allocatable = (msgspec.json.decode(bytes(node.object))["status"]["allocatable"] for node in nodes)
    capacity = sum(int(each["example.com/gpu"]) for each in allocatable)
    return nodes, sorted(pods, key=lambda pod: pod.event.name), capacity


def typical_pods(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """The most frequent shapes, until they cover 95 % of the pods."""
    counts = Counter((pod.cpu, pod.count, pod.milli if pod.count else 0, pod.models) for pod in pods)
    chosen, covered = [], 0
    for shape, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= TYPICAL_SHARE * len(pods):
            break
        chosen.append((shape, number))
        covered += number
    return [
        {
            "weight": number,
            "cpu": cpu,
            "count": count,
            "milli": milli,
            "models": models.split("|") if models else [],
        }
        for (cpu, count, milli, models), number in chosen
    ]


def draw_pods(pods: Sequence[Pod], seed: int) -> Iterator[Pod]:
    """All pods in a random order, and then random ones again and again."""
    generator = random.Random(seed)
    shuffled = list(pods)
    generator.shuffle(shuffled)
    yield from shuffled
    while True:
        yield generator.choice(pods)


def rename_nodes(nodes: Sequence[Event], seed: int) -> Iterator[Event]:
    """Put a random number before each node's name. Ties go to the first name, and the CSV file lists nodes of
    one kind together, so with names as they are small nodes would win most ties. The paper's runs draw the
    order of names for each seed, too."""
    numbers = list(range(len(nodes)))
    random.Random(f"nodes {seed}").shuffle(numbers)
    for number, node in zip(numbers, nodes, strict=True):
        name, item = f"{number:04}-{node.name}", msgspec.json.decode(bytes(node.object))
        item["metadata"]["name"] = item["metadata"]["labels"]["kubernetes.io/hostname"] = name
        yield msgspec.structs.replace(
            node, time=0.0, name=name, object=msgspec.Raw(msgspec.json.encode(item))
        )


def make_trace(run: Run, folder: Path) -> tuple[Trace, list[Pod]]:
    nodes, pods, capacity = read_pods(folder, run.trace)
    wanted = LOAD * capacity * 1000
    arrivals: list[Pod] = []
    drawn, asked = draw_pods(pods, run.seed), 0.0
    if run.table < 3:
        while asked < wanted:
            arrivals.append(next(drawn))
            asked += arrivals[-1].gpu
        times = [float(number) for number in range(1, len(arrivals) + 1)]
    else:
        arrivals = [next(drawn) for _ in range(3 * len(pods))]
        step = find_step(arrivals, wanted)
        times = [number * step for number in range(1, len(arrivals) + 1)]
    events = list(rename_nodes(nodes, run.seed))
    for number, (pod, at) in enumerate(zip(arrivals, times, strict=True)):
        event = pod.event
        seconds = event.run_seconds if run.table == 3 else None
        events.append(
            msgspec.structs.replace(event, time=at, uid=f"{event.name}#{number}", run_seconds=seconds)
        )
    return Trace(events, run.trace), arrivals


def find_step(arrivals: Sequence[Pod], wanted: float) -> float:
    """The time between two arrivals at which all pods together would use so much, on average over the second
    half, if each found room at once. A few pods run far longer than the replay, so the mean of run times will
    not do."""
    gpu = np.array([pod.gpu for pod in arrivals], float)
    seconds = np.array([pod.event.run_seconds or 0.0 for pod in arrivals])
    numbers = np.arange(1, len(arrivals) + 1)

    def offered(step: float) -> float:
        start, end, half = numbers * step, len(arrivals) * step, len(arrivals) * step / 2
        inside = np.minimum(start + seconds, end) - np.maximum(start, half)
        return float((gpu * np.maximum(inside, 0)).sum() / (end - half))

    low, high = 1e-6, 1e6  # the longer the steps, the less is used
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if offered(middle) > wanted else (low, middle)
    return high


def config_of(policy: str, pods: Sequence[Pod], seed: int) -> dict[str, Any]:
    args: dict[str, Any] = {"seed": seed}
    if policy == "FGD":
        args["typicalPods"] = typical_pods(pods)
    fit, own = {"name": "NodeResourcesFit"}, {"name": policy}
    points = {
        "multiPoint": {"disabled": [{"name": "*"}]},
        "queueSort": {"enabled": [{"name": "PrioritySort"}]},
        "preFilter": {"enabled": [fit]},
        "filter": {"enabled": [fit, own]},
        "score": {"enabled": [own]},
        "reserve": {"enabled": [own]},
        "bind": {"enabled": [{"name": "DefaultBinder"}]},
    }
    profile = {
        "schedulerName": "default-scheduler",
        "percentageOfNodesToScore": 100,
        "plugins": points,
        "pluginConfig": [{"name": policy, "args": args}],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }


def measure(run: Run, folder: Path) -> Outcome:
    began, cpu_began = time.perf_counter(), time.process_time()
    trace, arrivals = make_trace(run, folder)
    _, pods, capacity = read_pods(folder, run.trace)
    registry = Registry.installed([EXAMPLE])
    config = load(config_of(run.policy, pods, run.seed), registry).config
    options = ReplayOptions(
        seed=run.seed if run.table == 2 else None,
        retry=False,
        departures="run-time" if run.table == 3 else "never",
        samples=0,
    )
    results = replay(trace, config, registry=registry, options=options)
    share = allocated(run, results, arrivals, trace) / (capacity * 1000)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return Outcome(run, 100 * (1 - share), seconds, cpu_seconds, len(arrivals))


def allocated(run: Run, results: Results, arrivals: Sequence[Pod], trace: Trace) -> float:
    """GPUs in use, in thousandths: at the end, or with departures the mean over the second half."""
    end, half = trace.end, trace.end / 2
    total = 0.0
    for pod, found in zip(arrivals, results.pods, strict=True):
        if found.bound is None:
            continue
        if run.table < 3:
            total += pod.gpu
        else:
            ended = end if found.ended is None else min(found.ended, end)
            total += pod.gpu * max(ended - max(found.bound, half), 0.0) / (end - half)
    return total


def find_traces(given: str | None) -> Path:
    for place in (given, *PLACES):
        if place and (Path(place) / "openb_node_list_gpu_node.csv").exists():
            return Path(place)
    sys.exit("fgd.py: the OpenB traces were not found; give their folder with --traces or $STOWPLAN_TRACES")


def print_table(number: int, outcomes: Sequence[Outcome], policies: Sequence[str]) -> None:
    click.echo(f"\nTable {number}. {TITLES[number]}\n")
    click.echo("| trace | " + " | ".join(policies) + " |")
    click.echo("|---|" + "---|" * len(policies))
    for trace in dict.fromkeys(each.run.trace for each in outcomes):
        cells = []
        for policy in policies:
            values = [
                each.unallocated for each in outcomes if each.run.trace == trace and each.run.policy == policy
            ]
            cell = f"{statistics.mean(values):.2f}"
            if len(values) > 1:
                cell += f" ± {statistics.stdev(values):.2f}"
            if number == 1:
                gap = statistics.mean(values) - PUBLISHED[trace][POLICIES.index(policy)]
                cell += f" ({gap:+.2f})"
            cells.append(cell)
        click.echo(f"| {trace} | " + " | ".join(cells) + " |")
    slowest = max(outcomes, key=lambda each: each.cpu_seconds)
    cpu = sum(each.cpu_seconds for each in outcomes)
    rate = sum(each.decisions for each in outcomes) / cpu * 60
    click.echo(f"\n{len(outcomes)} runs, {cpu:.0f} s of CPU, {rate:,.0f} decisions a minute of CPU.")
    what = f"{slowest.run.policy}, {slowest.run.trace}"
    click.echo(f"The slowest run took {slowest.cpu_seconds:.1f} s of CPU ({what}).")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", metavar="DIR", help="folder with the CSV files of the OpenB traces")
    parser.add_argument("--table", type=int, choices=TITLES, action="append", help="default: all")
    parser.add_argument("--trace", choices=PUBLISHED, action="append", help="default: all")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default: 42 to 51")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes to use (default: one per core)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the outcome of each run, too")
    given = parser.parse_args()
    folder = find_traces(given.traces)
    policies = [each for each in POLICIES if not given.policy or each in given.policy]
    began, kept = time.perf_counter(), []
    for table in given.table or TITLES:
        traces = [
            each for each in (TIMED if table == 3 else PUBLISHED) if not given.trace or each in given.trace
        ]
        runs = [
            Run(table, trace, policy, seed) for trace in traces for policy in policies for seed in given.seeds
        ]
        if not runs:
            continue
        if given.jobs == 1:
            outcomes = [measure(run, folder) for run in runs]
        else:
            with ProcessPoolExecutor(given.jobs) as pool:
                outcomes = list(pool.map(measure, runs, [folder] * len(runs)))
        print_table(table, outcomes, policies)
        kept += outcomes
    click.echo(f"{time.perf_counter() - began:.0f} s in all.")
    if given.json:
        plain = [{**each.run._asdict(), **each._asdict(), "run": None} for each in kept]
        Path(given.json).write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
