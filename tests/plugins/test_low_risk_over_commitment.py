"""LowRiskOverCommitment: fewer limits beyond capacity, and less load beyond requests, are better."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from alone import plugin_of
from hypothesis import given
from hypothesis import strategies as st
from load_stage import NOW, answer, cpu, half_up, served, stage_of

from make import make_node, make_pod
from stowplan.errors import ConfigError
from stowplan.plugins.community.low_risk_over_commitment import (
    beta_cdf,
    beta_cdfs,
    chance_below,
    demand_of,
    load_risk,
    load_risks,
)
from stowplan.plugins.node_metrics import NodeLoad

NAME = "LowRiskOverCommitment"


def pod(name: str, request: int, limit: int, on: str = "", **spec: Any):
    resources = {"requests": {"cpu": f"{request}m"}, "limits": {"cpu": f"{limit}m"}}
    return make_pod(name, node=on, containers=[{"name": "main", "resources": resources}], **spec)


def node(name: str, cores: int = 8):
    return make_node(name, allocatable={"cpu": cores, "memory": "64Gi", "pods": "110"})


@pytest.mark.parametrize(
    ("running", "pending", "metrics", "expected"),
    [
        pytest.param((5000, 10_000), (1000, 2000), cpu(50, 5), 60, id="risk .4019"),
        pytest.param((2000, 3000), (1000, 1000), cpu(30, 4), 69, id="risk .3080"),
    ],
)
async def test_golden_numbers(running, pending, metrics, expected):
    async with served(NAME, [node("a"), node("b")]) as (stage, _, tell):
        stage.planner.cluster.apply(pod("old", *running, on="a"))
        await tell(answer({"a": metrics, "b": metrics}))
        assert stage.scores(pod("new", *pending))["a"] == expected


@pytest.mark.parametrize("deviation", [0, 1])
@pytest.mark.parametrize("count", [2, 20])  # few and many are computed in different ways
def test_a_load_above_all_limits_is_a_risk(deviation, count):
    stage = stage_of(NAME, [node(f"n{i}") for i in range(count)])
    stage.planner.cluster.apply(pod("old", 500, 1000, on="n0"))
    stage.take({f"n{i}": NodeLoad(cpu=90, cpu_deviation=deviation) for i in range(count)})
    found = stage.scores(pod("new", 100, 100))
    assert found["n0"] == 50
    assert found["n1"] == 100  # without pods there is nothing to compare with


def test_golden_risks():
    assert load_risk(8000, 5000, 10_000, 0.5, 0.05 * math.sqrt(5)) == pytest.approx(0.1372, abs=1e-4)
    assert load_risk(8000, 2000, 3000, 0.3, 0.04 * math.sqrt(5)) == pytest.approx(0.6161, abs=1e-4)


async def test_a_best_effort_pod_gets_nothing_and_stale_metrics_make_nodes_equal():
    async with served(NAME, [node(name) for name in "abc"]) as (stage, _, tell):
        await tell(answer({"a": cpu(0), "b": cpu(90, 3)}))
        assert set(stage.scores(make_pod()).values()) == {0}
        found = stage.scores(pod("new", 100, 100))
        assert found["b"] <= found["c"] <= found["a"]
        stage.time = NOW + 301
        assert set(stage.scores(pod("new", 100, 100)).values()) == {50}


def test_placing_a_pod_changes_the_score_of_its_node():
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take({"a": NodeLoad(cpu=10), "b": NodeLoad(cpu=10)})
    before = stage.scores(pod("new", 100, 16_000))
    stage.planner.cluster.apply(pod("old", 100, 16_000, on="a"))
    after = stage.scores(pod("new", 100, 16_000))
    assert after["a"] < before["a"]
    assert after["b"] == before["b"]


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 9000)), min_size=1, max_size=3),
    st.floats(0, 110),
    st.floats(0, 60),
)
def test_a_single_changed_node_is_scored_as_all_are(placed, used, deviation):
    load = NodeLoad(cpu=used, cpu_deviation=deviation)
    changed, fresh = (stage_of(NAME, [node(name) for name in "abcdefgh"]) for _ in range(2))
    for stage in (changed, fresh):
        stage.take(dict.fromkeys("abcdefgh", load))
    changed.scores(pod("new", 500, 900))
    for number, (request, limit) in enumerate(placed):
        for stage in (changed, fresh):
            stage.planner.cluster.apply(pod(f"old{number}", request, limit, on="c"))
    assert changed.scores(pod("new", 500, 900)) == fresh.scores(pod("new", 500, 900))


def test_limits_are_counted_as_requests_are():
    sidecar = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
    init = {"name": "init", "resources": {"limits": {"cpu": "9"}}}
    assert demand_of(pod("x", 100, 50)).cpu_limit == 100  # raised to the request
    assert demand_of(pod("x", 100, 2000, initContainers=[sidecar])).cpu_limit == 3000
    assert demand_of(pod("x", 100, 2000, initContainers=[sidecar, init])).cpu_limit == 10_000
    assert demand_of(pod("x", 100, 2000, overhead={"cpu": "1"})).cpu_limit == 3000
    whole = {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}
    assert demand_of(pod("x", 100, 2000, resources=whole))[::2] == (3000, 4000)


def test_arguments():
    args = plugin_of(
        NAME, args={"smoothingWindowSize": 0, "riskLimitWeights": {"cpu": 7, "memory": 0.2}}
    ).args
    assert (args.smoothing_window_size, args.risk_limit_weights) == (5, {"cpu": 0.5, "memory": 0.2})
    with pytest.raises(ConfigError, match="riskLimitWeights"):
        plugin_of(NAME, args={"riskLimitWeights": {"cpu": math.nan}})


@pytest.mark.parametrize(
    ("weights", "expected"), [({"cpu": 0}, 75), ({"memory": 1}, 50), ({"memory": 0}, 100)]
)
def test_a_resource_without_a_weight_counts_half(weights, expected):
    """The limit is 128 of 64 GiB, so the risk is 64/127. How much memory is in use is not known."""
    stage = stage_of(NAME, [node("a"), node("b")], riskLimitWeights=weights)
    stage.take(dict.fromkeys("ab", NodeLoad(cpu=0, cpu_deviation=0, last_cpu=0)))
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": "128Gi"}}
    found = stage.scores(make_pod("new", containers=[{"name": "main", "resources": resources}]))
    assert found == {"a": expected, "b": expected}


@pytest.mark.parametrize(
    ("a", "b", "x", "expected"),
    [
        (1, 1, 0.3, 0.3),
        (2, 1, 0.5, 0.25),
        (1, 3, 0.5, 0.875),
        (0.5, 0.5, 0.5, 0.5),
        (2, 2, 0.25, 0.15625),
        (2, 3, 0.0, 0),
        (2, 3, 0.1, 0.0523),
        (2, 3, 0.9, 0.9963),
        (2, 3, 1.0, 1),
        (0.5, 0.5, 0.3, 2 / math.pi * math.asin(math.sqrt(0.3))),
    ],
)
def test_the_beta_distribution(a, b, x, expected):
    assert beta_cdf(a, b, x) == pytest.approx(expected, abs=1e-12)


def test_the_beta_distribution_where_its_tails_meet():
    a, b = 0.027483604668162357, 1.9973673963408445
    beyond = math.nextafter((a + 1) / (a + b + 2), 1)
    assert beta_cdf(a, b, beyond) == pytest.approx(beta_cdf(a, b, beyond - 1e-12), abs=1e-9)


@pytest.mark.parametrize(
    ("mean", "deviation", "chance"),
    [
        (0, 0.3, 1),
        (0.5, 0, 1),
        (0.95, 0, 0),
        (0.5, 0.5, 0),
        (1, 0.1, 0),
        (0.6, 0.1, 1 - 0.000101),
        (0.5, 1e-190, 1),
        (0.95, 1e-190, 0),
        (1, 1e-190, 0),
    ],
)
def test_the_chance_of_a_load_below_a_threshold(mean, deviation, chance):
    assert chance_below(mean, deviation, 0.9) == pytest.approx(chance, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.02, 500), st.floats(0.02, 500), st.floats(0, 1)), min_size=1))
def test_columns_of_beta_distributions_are_as_single_ones(rows):
    a, b, x = (np.array(column) for column in zip(*rows, strict=True))
    assert beta_cdfs(a, b, x) == pytest.approx([beta_cdf(*row) for row in rows], abs=1e-9)


shares = st.floats(0, 1.2) | st.just(math.nan)
amounts = st.integers(0, 10_000)
risk_rows = st.tuples(amounts, amounts, amounts, shares, st.floats(0, 1))


@given(st.lists(risk_rows, min_size=17, max_size=20))
def test_columns_of_risks_are_as_single_ones(rows):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    expected = [load_risk(*row) for row in rows]
    assert load_risks(*columns) == pytest.approx(expected, abs=1e-9, nan_ok=True)
    assert all(math.isnan(each) or 0 <= each <= 1 for each in expected)


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 20_000), st.floats(0, 110), st.floats(0, 60)),
        min_size=2,
        max_size=6,
    ),
    st.tuples(st.integers(1, 5000), st.integers(0, 9000)),
    st.floats(0, 1),
)
def test_as_a_slow_version_for_one_node(rows, wanted, weight):
    stage = stage_of(NAME, [node(f"n{i}") for i in range(len(rows))], riskLimitWeights={"cpu": weight})
    for i, (request, limit, _, _) in enumerate(rows):
        stage.planner.cluster.apply(pod(f"old{i}", request, limit, on=f"n{i}"))
    stage.take({f"n{i}": NodeLoad(cpu=row[2], cpu_deviation=row[3]) for i, row in enumerate(rows)})
    for found, (request, limit, used, deviation) in zip(
        stage.scores(pod("new", *wanted)).values(), rows, strict=True
    ):
        limits, all_limits = max(request, limit), max(request, limit) + max(wanted)
        requests = min(request + wanted[0], 8000)
        over = (all_limits - 8000) / (all_limits - requests) if all_limits > 8000 else 0
        load = load_risk(8000, request, limits, used / 100, deviation / 100 * math.sqrt(5))
        right = (1 - min(max(weight * over + (1 - weight) * load, 0), 1)) * 100
        assert found in {half_up(right - 1e-6), half_up(right + 1e-6)}
