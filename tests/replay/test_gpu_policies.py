"""The policies of the FGD paper as plugins, on a small made-up trace in the format of OpenB."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fgd
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, replay

MODELS = ("T4", "V100")
SIZES = {0: (32000, 2), 1: (64000, 4), 2: (96000, 8)}
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"node-{number:02},{SIZES[number % 3][0]},131072,{SIZES[number % 3][1]},{MODELS[number % 2]}\n"
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


def test_traces_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(fgd, "PLACES", ())
    with pytest.raises(SystemExit, match="the OpenB traces were not found; give their folder with --traces"):
        fgd.find_traces(str(tmp_path))


def test_the_example_is_where_the_benchmark_looks():
    assert Path(fgd.EXAMPLE, "openb.yaml").exists()
