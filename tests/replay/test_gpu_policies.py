"""The policies of the FGD paper as plugins, on a small made-up trace in the format of OpenB."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import fgd
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, replay

SIZES = {0: (32000, 2), 1: (64000, 4), 2: (96000, 8)}
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"node-{number:02},{SIZES[number % 3][0]},131072,{SIZES[number % 3][1]},{('T4', 'V100')[number % 2]}\n"
    for number in range(9)
)


def pods(seed: int = 1, number: int = 120) -> str:
    draw = random.Random(seed)
    lines = [
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time"
    ]
    for index in range(number):
        count, milli = draw.choice([(0, 0), (1, 250), (1, 500), (1, 700), (1, 1000), (2, 1000), (4, 1000)])
        spec = draw.choice(["", "", "T4", "T4|V100"]) if count else ""
        start, run = 10 * index, draw.randint(50, 400)
        cpu = draw.choice([1000, 4000, 8000])
        lines.append(f"pod-{index:03},{cpu},2048,{count},{milli},{spec},{start},{start + run},{start}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(pods())
    fgd.read_pods.cache_clear()
    yield tmp_path
    fgd.read_pods.cache_clear()


@pytest.mark.parametrize("policy", fgd.POLICIES)
@pytest.mark.parametrize("table", fgd.TITLES)
def test_a_run_of_each_policy(folder, table, policy):
    run = fgd.Run(table, "default", policy, 42)
    one, two = fgd.measure(run, folder), fgd.measure(run, folder)
    assert one.unallocated == two.unallocated
    assert 0 <= one.unallocated < 60


@pytest.mark.parametrize("policy", fgd.POLICIES)
def test_no_device_is_given_away_twice(folder, policy):
    """What is placed fits by the pods' own requests, counted here once more, device by device."""
    trace, arrivals = fgd.make_trace(fgd.Run(1, "default", policy, 7), folder)
    registry = Registry.installed([fgd.EXAMPLE])
    config = load(fgd.config_of(policy, arrivals, 7), registry).config
    results = replay(trace, config, registry=registry, options=ReplayOptions(retry=False, departures="never"))
    gpus = {line.split(",")[0]: (int(line.split(",")[3]), line.split(",")[4]) for line in NODES.split()[1:]}
    used = dict.fromkeys(gpus, 0)
    for pod, found in zip(arrivals, results.pods, strict=True):
        if found.node:
            node = found.node.partition("-")[2]
            used[node] += pod.gpu
            assert not pod.count or not pod.models or gpus[node][1] in pod.models.split("|")
    assert all(used[name] <= 1000 * count for name, (count, _) in gpus.items())
    assert sum(used.values()) > 0


def test_each_seed_draws_the_order_of_node_names(folder):
    def names(seed: int) -> list[str]:
        trace, _ = fgd.make_trace(fgd.Run(1, "default", "Packing", seed), folder)
        return [event.name for event in trace.events if event.kind == "Node"]

    assert names(7) == names(7) != names(8)
    ordered = [name.partition("-")[2] for name in sorted(names(7))]
    assert sorted(ordered) == [f"node-{number:02}" for number in range(9)] != ordered


def slow_fragment(cpu: int, free: list[int], model: str, typical) -> float:
    """As the paper defines it, one pod and one device at a time."""
    total = 0.0
    for pod in typical:
        fitting = [each for each in free if each >= pod.milli]
        runs = pod.count and cpu >= pod.cpu and len(fitting) >= pod.count
        runs = runs and (not pod.models or model in pod.models)
        small = sum(each for each in free if each < pod.milli)
        total += pod.weight * (small if runs else sum(free))
    return total / sum(pod.weight for pod in typical)


def slow_scores(cpu: int, free: list[int], model: str, request, typical) -> list[int]:
    """The score for each device of a pod that shares one, -1 where it does not fit; else one score."""
    before = slow_fragment(cpu, free, model, typical)
    states = []
    if request.is_shared:
        for place, each in enumerate(free):
            fits = each >= request.milli
            states.append([*free[:place], each - request.milli, *free[place + 1 :]] if fits else None)
    else:
        left, taken = list(free), 0
        for place, each in enumerate(free):
            if each == 1000 and taken < request.count:
                left[place], taken = 0, taken + 1
        states.append(left)
    found = []
    for state in states:
        if state is None:
            found.append(-1)
            continue
        change = before - slow_fragment(cpu - request.cpu, state, model, typical)
        found.append(int(100 / (1 + math.exp(-change / 1000))))
    return found


def test_columns_score_like_one_node_at_a_time():
    Registry.installed([fgd.EXAMPLE])
    module = next(
        each
        for each in sys.modules.values()
        if getattr(each, "__file__", None) == str(fgd.EXAMPLE / "gpu_sharing.py")
    )
    draw = random.Random(5)
    shapes = [(0, 0), (1, 250), (1, 500), (1, 1000), (2, 1000), (8, 1000)]
    typical = tuple(
        module.TypicalPod(draw.randint(1, 50), draw.choice([1000, 6000, 16000]), count, milli, models)
        for count, milli in shapes
        for models in ((), ("T4",))
    )
    policy = module.FGD(module.FGDArgs(typical_pods=typical), None)
    policy._allowed = np.array(
        [
            [not each.models or name in each.models for each in typical if each.count]
            for name in ("T4", "V100", "")
        ]
    )
    for _ in range(300):
        number, cpu, model = draw.choice([1, 2, 4, 8]), draw.choice([2000, 8000, 40000]), draw.randrange(2)
        free = [draw.choice([0, 100, 250, 300, 500, 750, 1000, 1000]) for _ in range(number)]
        count, milli = draw.choice(shapes)
        if (count > 1 and free.count(1000) < count) or (count == 1 and milli == 1000 and 1000 not in free):
            continue
        request = module.Request(draw.choice([1000, 2000]), count, milli)
        column = np.array([free + [-1] * (8 - number)])
        node = module.Devices(np.array([cpu]), column, np.array([model]))
        expected = slow_scores(cpu, free, ("T4", "V100")[model], request, typical)
        assert policy._scores(node, request)[0].tolist()[: len(expected)] == expected


def test_traces_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(fgd, "PLACES", ())
    with pytest.raises(SystemExit, match="the OpenB traces were not found; give their folder with --traces"):
        fgd.find_traces(str(tmp_path))


def test_the_example_is_where_the_benchmark_looks():
    assert Path(fgd.EXAMPLE, "openb.yaml").exists()
