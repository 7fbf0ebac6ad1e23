"""LoadVariationRiskBalancing: low and steady load is better."""

from __future__ import annotations

import math

import pytest
from alone import plugin_of
from hypothesis import given
from hypothesis import strategies as st
from load_stage import NOW, OTHER_REQUESTS, answer, cpu, half_up, memory, metric, served, stage_of

from make import make_node, make_pod
from stowplan.errors import ConfigError
from stowplan.plugins.node_metrics import NodeLoad

NAME = "LoadVariationRiskBalancing"
GIB = 2**30


def node(name: str, cores: int = 8, gib: int = 32):
    return make_node(name, allocatable={"cpu": cores, "memory": f"{gib}Gi", "pods": "110"})


POD = make_pod(requests={"cpu": "1", "memory": "4Gi"})


@pytest.mark.parametrize(
    ("metrics", "args", "expected"),
    [
        pytest.param(cpu(25, 5), {}, 79, id="cpu alone: 78.75"),
        pytest.param(cpu(25, 5), {"safeVarianceSensitivity": 2}, 70, id="sensitivity 2: 70.07"),
        pytest.param(cpu(25, 5), {"safeVarianceMargin": -1}, 79, id="a negative margin is 1"),
        pytest.param(cpu(25, 5), {"safeVarianceMargin": 0}, 81, id="without the deviation: 81.25"),
        pytest.param(cpu(25, 5), {"safeVarianceSensitivity": 0}, 81, id="sensitivity 0 leaves it out"),
        pytest.param(cpu(25, 100), {"safeVarianceSensitivity": 0}, 31, id="but not a deviation of 100 %"),
        pytest.param([*cpu(25, 5), *memory(50, 5)], {}, 66, id="cpu and memory: 66.25"),
        pytest.param(cpu(100, 0), {}, 50, id="full"),
        pytest.param(cpu(5000, 5000), {}, 0, id="more than all"),
        pytest.param(memory(50, 5), {}, 66, id="memory alone"),
        pytest.param([*cpu(25, 5), metric("CPU", "Latest", 90)], {}, 79, id="the average, not the latest"),
        pytest.param([metric("CPU", "Latest", 90), *cpu(25, 5)], {}, 79, id="in any order"),
        pytest.param([metric("CPU", "Latest", 25)], {}, 81, id="the latest if there is no average: 81.25"),
    ],
)
async def test_golden_numbers(metrics, args, expected):
    async with served(NAME, [node("a"), node("b")], **args) as (stage, _, tell):
        await tell(answer({"a": metrics, "b": cpu(100, 100)}))
        assert stage.scores(POD)["a"] == expected


async def test_stale_metrics_make_all_nodes_equal_and_a_missing_node_is_in_the_middle():
    async with served(NAME, [node(name) for name in "abc"]) as (stage, _, tell):
        assert set(stage.scores(POD).values()) == {50}
        await tell(answer({"a": cpu(0), "b": cpu(100)}))
        assert stage.scores(POD) == {"a": 94, "b": 50, "c": 72}
        stage.time = NOW + 301
        assert set(stage.scores(POD).values()) == {50}


@pytest.mark.parametrize("more", OTHER_REQUESTS)
def test_sidecars_and_resources_of_the_pod_as_a_whole_count(more):
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take({"a": NodeLoad(cpu=0), "b": NodeLoad(cpu=50)})
    assert stage.scores(make_pod(requests={"cpu": "1"}, **more)) == {"a": 81, "b": 56}
    assert stage.scores(make_pod(requests={"cpu": "1"})) == {"a": 94, "b": 69}


def test_a_node_that_offers_nothing_gets_nothing():
    stage = stage_of(NAME, [node("a"), node("b", 0, 0)])
    stage.take({"a": NodeLoad(cpu=0), "b": NodeLoad(cpu=0)})
    assert stage.scores(POD) == {"a": 94, "b": 0}


@pytest.mark.parametrize("name", ["safeVarianceMargin", "safeVarianceSensitivity"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_rejected(name, value):
    with pytest.raises(ConfigError, match=f"{name}: Invalid value"):
        plugin_of(NAME, args={name: value})


def slow(load: NodeLoad, cores: int, gib: int, request: tuple[int, int], margin: float, power: float):
    found = []
    for average, deviation, capacity, wanted in (
        (load.cpu, load.cpu_deviation, cores * 1000, request[0]),
        (load.memory, load.memory_deviation, gib * 1024, request[1]),
    ):
        if math.isnan(average):
            continue
        if not capacity:
            found.append(0.0)
            continue
        mu = min(max((average * capacity / 100 + wanted) / capacity, 0), 1)
        sigma = 0 if math.isnan(deviation) else min(deviation * capacity / 100 / capacity, 1)
        sigma = sigma ** (1 / power if power else math.inf)
        found.append((1 - (mu + min(sigma * margin, 1)) / 2) * 100)
    return min(found) if found else None


percent = st.just(math.nan) | st.floats(0, 120)
loads = st.builds(NodeLoad, percent, percent, percent, percent)


@given(
    st.lists(st.tuples(loads, st.integers(0, 64), st.integers(0, 64)), min_size=2, max_size=6),
    st.tuples(st.integers(0, 9000), st.integers(0, 9000)),
    st.floats(0, 3),
    st.sampled_from([0, 0.5, 1, 2, 3.5]),
)
def test_as_a_slow_version_for_one_node(rows, request, margin, power):
    nodes = [node(f"n{number}", cores, gib) for number, (_, cores, gib) in enumerate(rows)]
    stage = stage_of(NAME, nodes, safeVarianceMargin=margin, safeVarianceSensitivity=power)
    stage.take({f"n{number}": load for number, (load, _, _) in enumerate(rows)})
    pod = make_pod(requests={"cpu": f"{request[0]}m", "memory": f"{request[1]}Mi"})
    expected = [slow(load, cores, gib, request, margin, power) for load, cores, gib in rows]
    ranked = sorted(half_up(each) for each in expected if each is not None)
    middle = 50
    if ranked:
        middle = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) // 2
    for found, right in zip(stage.scores(pod).values(), expected, strict=True):
        if right is None:
            assert abs(found - middle) <= 1
        else:  # the last bit of a power may decide a tie
            assert found in {half_up(right - 1e-9), half_up(right + 1e-9)}
