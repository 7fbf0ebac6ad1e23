"""Peaks: the least rise in power is best, and a node of which nothing is known never is."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from alone import plugin_of
from hypothesis import example, given
from hypothesis import strategies as st
from load_stage import NOW, OTHER_REQUESTS, answer, cpu, metric, served, stage_of

from fake_prometheus import until
from make import make_node, make_pod
from stowplan.errors import ConfigError
from stowplan.plugins.node_metrics import NodeLoad

NAME = "Peaks"
MODEL = {"k0": 100, "k1": 50, "k2": 0.01}
ADDRESS = "http://127.0.0.1:1"


def node(name: str):
    return make_node(name, allocatable={"cpu": "10", "memory": "8Gi", "pods": "110"})


def models(names: str) -> dict[str, Any]:
    return dict.fromkeys(names, MODEL)


POD = make_pod(requests={"cpu": "1"})


def loaded(percent: float) -> NodeLoad:
    return NodeLoad(last_cpu=percent, first_cpu=percent)


async def test_golden_numbers():
    names = [node(name) for name in "abc"]
    async with served(NAME, names, NodePowerModel=models("abc")) as (stage, server, _):
        server.body = answer({"a": cpu(20), "b": cpu(60), "c": cpu(40)})
        await until(lambda: stage.plugin.source.reading == 1)
        assert stage.scores(POD) == {"a": 100, "b": 0, "c": 55}


async def test_of_several_metrics_the_first_counts():
    names = [node(name) for name in "abc"]
    async with served(NAME, names, NodePowerModel=models("abc")) as (stage, server, _):
        several = [*cpu(20), metric("CPU", "Latest", 90)]
        server.body = answer({"a": several, "b": cpu(60), "c": cpu(40)})
        await until(lambda: stage.plugin.source.reading == 1)
        assert stage.scores(POD) == {"a": 100, "b": 0, "c": 55}


def test_no_metrics_no_model_and_overload_are_never_best():
    stage = stage_of(NAME, [node(name) for name in "abcde"], NodePowerModel=models("abcd"))
    loads = {"a": 20, "b": 60, "c": 95, "e": 20}
    stage.take({name: loaded(each) for name, each in loads.items()})
    assert stage.scores(POD) == {"a": 100, "b": 0, "c": 0, "d": 0, "e": 0}
    (note,) = stage.planner.decide(POD).notes
    assert note == "Peaks has no data of d, e: nodes without CPU metrics or a power model get 0."


def test_stale_metrics_make_all_nodes_equal():
    stage = stage_of(NAME, [node("a"), node("b")], NodePowerModel=models("ab"))
    stage.take({"a": loaded(20), "b": loaded(60)}, NOW - 301)
    assert stage.scores(POD) == {"a": 0, "b": 0}
    assert stage.planner.decide(POD).notes == (
        "Peaks gives every node 0: metrics of nodes are 5 minutes old.",
    )


@pytest.mark.parametrize(
    ("pod", "expected"), [(make_pod(), {"a": 0, "b": 0}), (POD, {"a": 100, "b": 100})], ids=["none", "equal"]
)
def test_equal_rises_do_not_divide_by_zero(pod, expected):
    stage = stage_of(NAME, [node("a"), node("b")], NodePowerModel=models("ab"))
    stage.take({"a": loaded(20), "b": loaded(20)})
    assert stage.scores(pod) == expected


@pytest.mark.parametrize("more", OTHER_REQUESTS)
def test_sidecars_and_resources_of_the_pod_as_a_whole_count(more):
    stage = stage_of(NAME, [node(name) for name in "abc"], NodePowerModel=models("abc"))
    stage.take({"a": loaded(20), "b": loaded(60), "c": loaded(75)})
    assert stage.scores(make_pod(requests={"cpu": "1"}, **more)) == stage.scores(
        make_pod(requests={"cpu": "3"})
    )
    assert stage.scores(make_pod(requests={"cpu": "3"}))["c"] == 0  # it would be overloaded


def test_a_pod_without_requests_makes_no_difference():
    nodes = [
        make_node(f"n{number}", allocatable={"cpu": str(number), "pods": "9"}) for number in range(1, 60)
    ]
    stage = stage_of(NAME, nodes, NodePowerModel={node.name: MODEL for node in nodes})
    stage.take({node.name: loaded(30.1 + row / 7) for row, node in enumerate(nodes)})
    assert set(stage.scores(make_pod()).values()) == {0}


def test_models_come_from_a_file_if_the_arguments_have_none(tmp_path, monkeypatch):
    path = tmp_path / "models.json"
    path.write_text(json.dumps(models("ab")))
    monkeypatch.setenv("NODE_POWER_MODEL", str(path))
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take({"a": loaded(20), "b": loaded(60)})
    assert stage.scores(POD) == {"a": 100, "b": 0}
    for text in ("{", '{"a": {"k9": 1}}', '{"a": 7}'):
        path.write_text(text)
        with pytest.raises(Exception, match="cannot read the power models of nodes in"):
            stage_of(NAME, [node("a")])


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"NodePowerModel": {}}, "WatcherAddress: Required value"),
        ({"WatcherAddress": "watcher"}, "WatcherAddress: Invalid value"),
        ({"watcherAddress": ADDRESS}, 'unknown field "watcherAddress".*WatcherAddress'),
        ({"WatcherAddress": ADDRESS, "NodePowerModel": {"a": {"k1": math.nan}}}, r"\[a\].k1: Invalid value"),
        ({"WatcherAddress": ADDRESS, "NodePowerModel": {"a": {"k9": 1}}}, "NodePowerModel: Invalid value"),
    ],
)
def test_wrong_arguments_are_rejected(args, fault):
    with pytest.raises(ConfigError, match=fault):
        plugin_of(NAME, args=args)


def slow(used: float | None, k1: float, k2: float, request: int) -> int | None:
    """The rise of one node; None for one that is not to be preferred."""
    if used is None:
        return None
    predicted = 100 * (used / 100 * 10_000 + request) / 10_000
    if predicted > 100:
        return None
    return min(int(k1 * (math.exp(k2 * predicted) - math.exp(k2 * used)) * 1e15), 2**63 - 1024)


rows = st.tuples(st.none() | st.floats(0, 110), st.floats(0, 200), st.floats(0, 0.05))


@given(st.lists(rows, min_size=2, max_size=6), st.integers(0, 3000))
@example([(0.0, 0.0, 0.0), (0.0, 153.5, 0.040148898271444904), (80.0, 146.0, 0.046875)], 1601)
def test_as_a_slow_version_for_one_node(found, request):
    power = {f"n{i}": {"k0": 1, "k1": k1, "k2": k2} for i, (_, k1, k2) in enumerate(found)}
    stage = stage_of(NAME, [node(f"n{i}") for i in range(len(found))], NodePowerModel=power)
    stage.take({f"n{i}": loaded(row[0]) for i, row in enumerate(found) if row[0] is not None})
    rises = [slow(used, k1, k2, request) for used, k1, k2 in found]
    ranked = [each for each in rises if each is not None]
    given_scores = list(stage.scores(make_pod(requests={"cpu": f"{request}m"})).values())
    if not any(ranked):
        assert set(given_scores) == {0}
        return
    least, most = min(ranked), max(ranked)
    for score, rise in zip(given_scores, rises, strict=True):
        if rise is None:
            assert score == 0
        elif most - least > 10_000:  # below that the last bits of the exponentials decide
            assert abs(score - (100 - 100 * (rise - least) // (most - least))) <= 1
