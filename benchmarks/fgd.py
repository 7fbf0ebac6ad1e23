"""Reproduces a paper's table with the replay: GPU fragmentation by policy, on the OpenB traces.

    python benchmarks/fgd.py --results runs.jsonl        # all three tables; continues if interrupted
    python benchmarks/fgd.py --table 1 --policy FGD --trace default --seeds 42
    python benchmarks/fgd.py --results runs.jsonl --only-show --plots docs/images

The paper is "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC 2023); `docs/replay.md` tells what the tables show. The traces are read from `--traces`, by
default from $STOWPLAN_TRACES or `../shared/traces/openb` beside the repository."""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
PLUGIN = "FragmentationGradientDescent"
"""Scores as FGD; the other policies are in the example."""
NAMES = {
    "gpuResource": "example.com/gpu",
    "modelLabel": "example.com/gpu-model",
    "countAnnotation": "example.com/gpu-count",
    "milliAnnotation": "example.com/gpu-milli",
    "modelsAnnotation": "example.com/gpu-models",
    "deviceAnnotation": "",
}
"""What pods and nodes of `openb.yaml` are marked with, by the plugin's argument."""
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
LOADS = tuple(step / 20 for step in range(1, 27))
"""What was asked for so far, as a share of all GPUs, where curves have their points."""
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
    curve: tuple[float, ...] = ()
    """Unallocated GPU in percent at each of LOADS, without departures."""


@lru_cache(maxsize=4)
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
    name = policy
    args: dict[str, Any] = {"seed": seed}
    if policy == "FGD":
        name, args = PLUGIN, {**NAMES, "typicalPods": typical_pods(pods)}
    fit, own = {"name": "NodeResourcesFit"}, {"name": name}
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
        "pluginConfig": [{"name": name, "args": args}],
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
    curve = curve_of(results, arrivals, capacity * 1000) if run.table < 3 else ()
    return Outcome(run, 100 * (1 - share), seconds, cpu_seconds, len(arrivals), curve)


def curve_of(results: Results, arrivals: Sequence[Pod], capacity: int) -> tuple[float, ...]:
    asked = np.cumsum([pod.gpu for pod in arrivals])
    given = np.cumsum(
        [pod.gpu * (found.bound is not None) for pod, found in zip(arrivals, results.pods, strict=True)]
    )
    places = np.searchsorted(asked, np.array(LOADS) * capacity).clip(max=len(asked) - 1)
    return tuple((100 * (1 - given[places] / capacity)).round(3).tolist())


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
            if not values:
                cells.append("not run")
                continue
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


COLORS = dict(zip(POLICIES, ("#888888", "#b07aa1", "#59a14f", "#f28e2b", "#4e79a7", "#e15759"), strict=True))
WIDTH, HEIGHT, LEFT, TOP = 240, 190, 34, 40
"""Of one chart, and of what is left of it and above all of them."""


def draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """A file for each table, with a chart for each trace: bars of the table, and lines over what was asked
    for if there are no departures."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in dict.fromkeys(each.run.table for each in outcomes):
        found = [each for each in outcomes if each.run.table == table]
        names = {policy: (place + 0.5) / len(POLICIES) for place, policy in enumerate(POLICIES)}
        (folder / f"fgd-table-{table}.svg").write_text(draw_charts(found, draw_bars, names))
        if table < 3:
            first, last = LOADS[FIRST_DRAWN], LOADS[-1]
            loads = {f"{load:.0%}": (load - first) / (last - first) for load in LOADS[FIRST_DRAWN::2]}
            (folder / f"fgd-load-{table}.svg").write_text(draw_charts(found, draw_lines, loads))


Y = Callable[[float], float]
Values = dict[str, list[Outcome]]


def draw_charts(
    outcomes: Sequence[Outcome], draw_one: Callable[[Values, str, Y], list[str]], below: dict[str, float]
) -> str:
    """Charts of unallocated GPU in percent, one beside the other. `below` has texts for the axis below each,
    with their places from 0 to 1."""
    traces = list(dict.fromkeys(each.run.trace for each in outcomes))
    top = 1.1 * max(each.unallocated for each in outcomes)
    size = f"{len(traces) * (LEFT + WIDTH) + 10} {TOP + HEIGHT + 30}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" '
        'font-size="10"><rect width="100%" height="100%" fill="white"/>'
    ]
    legend = "  ".join(f'<tspan fill="{color}">{policy}</tspan>' for policy, color in COLORS.items())
    parts.append(f'<text x="{LEFT}" y="14" font-size="12">unallocated GPU in %: {legend}</text>')

    def y_of(value: float) -> float:
        return TOP + HEIGHT * (1 - min(value, top) / top)

    for number, trace in enumerate(traces):
        values = {
            policy: [each for each in outcomes if each.run[1:3] == (trace, policy)] for policy in POLICIES
        }
        parts.append(f'<g transform="translate({LEFT + number * (LEFT + WIDTH)} 0)">')
        parts.append(f'<text y="{TOP - 8}" font-weight="bold">{trace}</text>')
        for level in range(0, int(top) + 1, 5 if top > 12 else 2):
            y = y_of(level)
            parts.append(f'<line x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="-4" y="{y + 3:.1f}" text-anchor="end">{level}</text>')
        for text, place in below.items():
            at = f'x="{WIDTH * place:.1f}" y="{TOP + HEIGHT + 14}"'
            parts.append(f'<text {at} text-anchor="middle" font-size="8">{text}</text>')
        parts += [*draw_one(values, trace, y_of), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def draw_bars(values: Values, trace: str, y_of: Y) -> list[str]:
    """The mean, from the lowest to the highest run, and for the first table a line where it was published."""
    parts, width = [], WIDTH / len(POLICIES)
    for place, (policy, found) in enumerate(values.items()):
        if found:
            runs = [each.unallocated for each in found]
            x, y, middle = place * width + 3, y_of(statistics.mean(runs)), (place + 0.5) * width
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 6:.1f}" height="{TOP + HEIGHT - y:.1f}" '
                f'fill="{COLORS[policy]}"/><line x1="{middle:.1f}" x2="{middle:.1f}" '
                f'y1="{y_of(min(runs)):.1f}" y2="{y_of(max(runs)):.1f}" stroke="black" stroke-width="0.7"/>'
            )
            if found[0].run.table == 1:
                y = y_of(PUBLISHED[trace][POLICIES.index(policy)])
                parts.append(
                    f'<line x1="{x - 2:.1f}" x2="{x + width - 4:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                    'stroke="black" stroke-dasharray="3 2"/>'
                )
    return parts


FIRST_DRAWN = 15
"""Before that all pods fit, whatever the policy."""


def draw_lines(values: Values, trace: str, y_of: Y) -> list[str]:
    """The mean over what was asked for."""
    parts = []
    for policy, found in values.items():
        if found:
            mean = np.mean([each.curve for each in found], axis=0)[FIRST_DRAWN:].tolist()
            step = WIDTH / (len(mean) - 1)
            line = " ".join(f"{place * step:.1f},{y_of(value):.1f}" for place, value in enumerate(mean))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[policy]}"/>')
    return parts


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
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="append the outcome of each run to this file, and do not repeat runs that it has",
    )
    parser.add_argument("--only-show", action="store_true", help="run nothing, show what --results has")
    parser.add_argument("--plots", metavar="DIR", help="write plots of the tables as SVG files")
    given = parser.parse_args()
    began = time.perf_counter()
    policies = [each for each in POLICIES if not given.policy or each in given.policy]
    runs = [
        Run(table, trace, policy, seed)
        for table in given.table or TITLES
        for seed in given.seeds  # outside, so that a part of the runs has all traces and policies
        for trace in (TIMED if table == 3 else PUBLISHED)
        if not given.trace or trace in given.trace
        for policy in policies
    ]
    outcomes = read_outcomes(given.results)
    missing = [] if given.only_show else [run for run in runs if run not in outcomes]
    if missing:
        for outcome in measure_all(missing, find_traces(given.traces), given.jobs):
            outcomes[outcome.run] = outcome
            if given.results:
                with open(given.results, "a") as file:
                    file.write(json.dumps(outcome) + "\n")
    found = [outcomes[run] for run in runs if run in outcomes]
    for table in dict.fromkeys(each.run.table for each in found):
        print_table(table, [each for each in found if each.run.table == table], policies)
    if given.plots:
        draw(found, Path(given.plots))
    if missing:
        click.echo(f"{time.perf_counter() - began:.0f} s in all.")


def read_outcomes(file: str | None) -> dict[Run, Outcome]:
    lines = Path(file).read_text().splitlines() if file and Path(file).exists() else []
    found = (Outcome(Run(*run), *rest) for run, *rest in map(json.loads, lines))
    return {outcome.run: outcome for outcome in found}


def measure_all(runs: Sequence[Run], folder: Path, jobs: int) -> Iterator[Outcome]:
    """As they finish."""
    if jobs == 1:
        yield from (measure(run, folder) for run in runs)
        return
    with ProcessPoolExecutor(jobs, initializer=end_with_parent) as pool:
        for future in as_completed([pool.submit(measure, run, folder) for run in runs]):
            yield future.result()


def end_with_parent() -> None:
    """In a worker: end as soon as the process that started it has, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
