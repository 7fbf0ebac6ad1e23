"""TargetLoadPacking: nodes fill up to the target, and no data are neither best nor worst."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from alone import plugin_of
from hypothesis import given
from hypothesis import strategies as st
from load_stage import NOW, STALE, WITHOUT_DATA, answer, cpu, half_up, metric, served, stage_of

from fake_prometheus import until
from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.api.node import NodeObject
from stowplan.errors import ConfigError
from stowplan.framework import CycleState
from stowplan.plugins.node_metrics import NodeLoad

NAME = "TargetLoadPacking"
GOLDEN = {0: 40, 10: 55, 25: 78, 40: 100, 40.5: 40, 55: 30, 70: 20, 90: 7, 100: 0, 120: 0}


def node(name: str, cores: str = "100") -> NodeObject:
    return make_node(name, allocatable={"cpu": cores, "memory": "8Gi", "pods": "110"})


def limited(millis: int, name: str = "pod", **more: object):
    container = {"name": "main", "resources": {"limits": {"cpu": f"{millis}m"}}}
    return make_pod(name, containers=[container], **more)


def known(**percent: float) -> dict[str, NodeLoad]:
    return {name: NodeLoad(cpu=each, last_cpu=each) for name, each in percent.items()}


async def test_the_golden_curve_from_a_load_watcher():
    nodes = [node(f"n{number}") for number in range(len(GOLDEN))]
    async with served(NAME, nodes) as (stage, _, tell):
        await tell(answer({f"n{number}": cpu(used) for number, used in enumerate(GOLDEN)}))
        assert list(stage.scores(limited(0)).values()) == list(GOLDEN.values())
        assert stage.counted(WITHOUT_DATA) == stage.counted(STALE) == 0


async def test_the_last_average_or_current_value_counts():
    async with served(NAME, [node("a"), node("b")]) as (stage, _, tell):
        both = [metric("CPU", "AVG", 10), metric("CPU", "Latest", 25), metric("CPU", "STD", 90)]
        await tell(answer({"a": both, "b": [*both[1:2], *both[:1]]}))
        assert stage.scores(limited(0)) == {"a": 78, "b": 55}


@pytest.mark.parametrize(
    ("resources", "args", "expected"),
    [
        pytest.param({"limits": {"cpu": "10"}, "requests": {"cpu": "1"}}, {}, 55, id="limit"),
        pytest.param({"requests": {"cpu": "10"}}, {}, 63, id="request times 1.5"),
        pytest.param({"requests": {"cpu": "10"}}, {"defaultRequestsMultiplier": "1"}, 55, id="multiplier"),
        pytest.param({}, {}, 42, id="default request of 1"),
        pytest.param({}, {"defaultRequests": {"cpu": "10"}}, 55, id="default request of 10"),
        pytest.param({}, {"defaultRequests": {"memory": "1Gi"}}, 40, id="no default request of CPU"),
        pytest.param({"limits": {"cpu": "10"}}, {"targetUtilization": 10}, 100, id="target"),
        pytest.param({"limits": {"cpu": "10"}}, {"targetUtilization": 0}, 55, id="no target is 40"),
        pytest.param({"limits": {"cpu": "100"}}, {"targetUtilization": 100}, 100, id="target of 100"),
    ],
)
def test_what_a_pod_is_expected_to_use(resources, args, expected):
    stage = stage_of(NAME, [node("a"), node("b")], **args)
    stage.take(known(a=0, b=0))
    pod = make_pod(containers=[{"name": "main", "resources": resources}])
    assert stage.scores(pod) == {"a": expected, "b": expected}


def test_overhead_counts_and_init_containers_do_not():
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take(known(a=0, b=0))
    init = [{"name": "init", "resources": {"limits": {"cpu": "50"}}}]
    pod = limited(5000, initContainers=init, overhead={"cpu": "5"})
    assert stage.scores(pod)["a"] == 55


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"limits": {"cpu": "10"}}, 55, id="limit of the pod"),
        pytest.param({"requests": {"cpu": "10"}}, 63, id="request of the pod, times 1.5"),
        pytest.param({"limits": {"memory": "1Gi"}}, 48, id="memory alone: its containers count"),
    ],
)
def test_resources_of_the_pod_as_a_whole_count_instead_of_those_of_containers(spec, expected):
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take(known(a=0, b=0))
    assert stage.scores(limited(5000, resources=spec)) == {"a": expected, "b": expected}


def test_sidecars_count():
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take(known(a=0, b=0))
    sidecar = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "5"}}}
    assert stage.scores(limited(5000, initContainers=[sidecar])) == {"a": 55, "b": 55}


def test_capacity_counts_and_not_what_is_allocatable():
    plain = {
        "kind": "Node",
        "metadata": {"name": "a"},
        "status": {"capacity": {"cpu": "100", "memory": "1Gi"}, "allocatable": {"cpu": "50", "pods": "9"}},
    }
    stage = stage_of(NAME, [object_of(plain), node("b")])
    stage.take(known(a=0, b=0))
    assert stage.scores(limited(10_000)) == {"a": 55, "b": 55}


def test_pods_bound_since_the_reading_count():
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take(known(a=0, b=0))
    plugin = stage.plugin
    assert stage.scores(limited(0)) == {"a": 40, "b": 40}
    plugin.pod_added(limited(10_000, "first", node="a"))
    stage.planner.cluster.apply(limited(10_000, "first", node="a"))
    assert stage.scores(limited(0)) == {"a": 55, "b": 40}
    stage.time += 100
    stage.take(known(a=0, b=0), stage.time)  # by now the metrics have it
    assert stage.scores(limited(0)) == {"a": 40, "b": 40}


@pytest.mark.parametrize(("after", "expected"), [(0, 55), (59, 55), (60, 40)])
def test_pods_bound_less_than_a_minute_before_the_reading_ended_count(after, expected):
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.plugin.pod_added(limited(10_000, "first", node="a"))
    stage.time += after
    stage.take(known(a=0, b=0), stage.time)
    assert stage.scores(limited(0)) == {"a": expected, "b": 40}


def test_a_pod_counts_from_when_it_is_placed_until_it_is_gone():
    stage = stage_of(NAME, [node("a"), node("b")])
    stage.take(known(a=0, b=10))
    decision = stage.planner.decide(limited(30_000, "one"))
    assert decision.chosen == "b"
    stage.planner.carry_out(decision)
    stage.plugin.reserve(decision.state, decision.pod, "b")
    assert stage.scores(limited(0))["b"] == 100
    stage.plugin.pod_updated(decision.pod, decision.pod.on("b"))
    assert stage.scores(limited(1))["b"] == 40  # counted once: 40.001 %, just above the target
    stage.plugin.pod_deleted(decision.pod.on("b"))
    stage.plugin.pod_deleted(decision.pod.on("b"))
    stage.planner.cluster.remove_pod(stage.planner.cluster.pod(decision.pod.uid))
    assert stage.scores(limited(0))["b"] == 55


def test_pods_that_ran_before_the_start_are_in_the_metrics():
    stage = stage_of(NAME, [node("a"), node("b")])
    started = {"startTime": "1970-01-01T00:00:00Z", "phase": "Running"}
    stage.plugin.pod_added(limited(10_000, "old", node="a", status=started))
    stage.take(known(a=0, b=0))
    assert stage.scores(limited(0)) == {"a": 40, "b": 40}


@pytest.mark.parametrize("was_read", [False, True], ids=["never read", "not read any more"])
def test_nodes_that_come_and_go_while_no_metrics_are_read_are_forgotten(was_read):
    stage = stage_of(NAME, [node("a"), node("b")])
    if was_read:
        stage.take(known(a=0, b=0))
        stage.plugin.pod_added(limited(10_000, "first", node="b"))
        assert stage.scores(limited(0)) == {"a": 40, "b": 55}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    pod, state = limited(1000, "job"), CycleState()
    for number in range(20_000):
        stage.plugin.reserve(state, pod, f"node-of-a-large-cluster-that-is-scaled-{number}")
        stage.plugin.unreserve(state, pod, f"node-of-a-large-cluster-that-is-scaled-{number}")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000
    stage.plugin.reserve(state, limited(10_000, "second"), "a")
    stage.take(known(a=0, b=0))
    assert stage.scores(limited(0)) == {"a": 55, "b": 55 if was_read else 40}


def test_a_node_without_data_gets_the_median_and_explain_says_so():
    stage = stage_of(NAME, [node(name) for name in "abcd"])
    stage.take(known(a=0, b=40, c=70))
    assert stage.scores(limited(0)) == {"a": 40, "b": 100, "c": 20, "d": 40}
    (note,) = stage.planner.decide(limited(0)).notes
    assert note == f"{NAME} has no data of d: such nodes get the median score of the others."


async def test_nodes_without_data_are_counted_once_a_reading():
    async with served(NAME, [node(name) for name in "abc"]) as (stage, watcher, tell):
        await tell(answer({"a": cpu(10)}))
        counted, asked = stage.counted(WITHOUT_DATA), watcher.asked
        assert counted >= 2
        for number in range(50):
            stage.scores(limited(number))
        assert stage.counted(WITHOUT_DATA) == counted
        await until(lambda: watcher.asked >= asked + 2)
        assert counted < stage.counted(WITHOUT_DATA) <= counted + 2 * (watcher.asked - asked + 1)


BAD = [
    pytest.param({"body": "<html>"}, "not a response from a load-watcher", id="HTML"),
    pytest.param({"body": "", "status": 503}, "HTTP 503", id="503"),
    pytest.param({"body": answer({})}, "no metrics of any node", id="no nodes"),
    pytest.param({"body": "[" * 100_000}, "not a response from a load-watcher", id="deep"),
    pytest.param(
        {"body": answer({"a": cpu(1)}, NOW + 600)},
        "ends 600 s in the future: compare the clocks",
        id="future",
    ),
    pytest.param({"body": answer({"a": cpu(1)}, NOW - 900)}, "the window ended 900 s ago", id="old"),
]


@pytest.mark.parametrize(("how", "said"), BAD)
async def test_a_source_that_fails_is_believed_until_it_is_stale_and_then_nodes_are_equal(how, said, caplog):
    async with served(NAME, [node("a"), node("b")], neutralScore=30) as (stage, _, tell):
        await tell(answer({"a": cpu(0), "b": cpu(40)}))
        await tell(**how)
        assert stage.scores(limited(0)) == {"a": 40, "b": 100}
        assert stage.counted(STALE) == 0
        stage.time += 301
        if "window" not in said and "ends" not in said:
            await tell(**how)
            assert stage.counted(STALE) > 0
        assert stage.scores(limited(0)) == {"a": 30, "b": 30}
        (note,) = stage.planner.decide(limited(0)).notes
        assert note.startswith(f"{NAME} gives every node 30: metrics of nodes are 5 minutes old (")
        errors = [record.fields["err"] for record in caplog.records if record.levelname == "ERROR"]
        assert any(said in each for each in errors)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("-1", [40, 100, 70], id="negative"),
        pytest.param("null", [40, 100, 70], id="null"),
        pytest.param("1e999", [50, 50, 50], id="not a JSON number: the whole answer is rejected"),
        pytest.param("NaN", [50, 50, 50], id="NaN"),
    ],
)
async def test_impossible_values_count_as_missing(value, expected):
    async with served(NAME, [node(name) for name in "abc"]) as (stage, _, tell):
        good = answer({"a": cpu(0), "b": cpu(40), "c": [metric("CPU", "AVG", "BAD")]})
        await tell(good.replace('"BAD"', value))
        assert list(stage.scores(limited(0)).values()) == expected


async def test_series_that_name_no_node_are_told(caplog):
    async with served(NAME, [node("a"), node("b")]) as (stage, _, tell):
        await tell(answer({"x": cpu(0)}))
        await tell(answer({"x": cpu(0)}))
        assert stage.scores(limited(0)) == {"a": 50, "b": 50}
    assert caplog.records[-1].fields["err"] == "the source names no node of the cluster, but x"


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"watcherAddress": "load-watcher:2020"}, "watcherAddress: Invalid value"),
        ({"metricProvider": {"type": "SignalFx"}}, "metricProvider.type: Unsupported value"),
        ({"metricProvider": {"type": "Prometheus"}}, "metricProvider.address: Required value"),
        (
            {"metricProvider": {"type": "Prometheus", "address": "prometheus"}},
            "metricProvider.address: Invalid",
        ),
        ({"metricProvider": {"token": "a", "tokenFile": "b"}}, "metricProvider.tokenFile: Invalid value"),
        ({"metricProvider": {"tokn": "a"}}, 'unknown field "metricProvider.tokn"'),
        ({"targetUtilization": 101}, "targetUtilization: Invalid value: 101"),
        ({"defaultRequestsMultiplier": "much"}, "defaultRequestsMultiplier: Invalid value"),
        ({"defaultRequestsMultiplier": "-1"}, "defaultRequestsMultiplier: Invalid value"),
        ({"defaultRequests": {"cpu": "-1"}}, r"defaultRequests\[cpu\]: Invalid value"),
        ({"defaultRequests": {"cpu": "lots"}}, r"defaultRequests\[cpu\]: Invalid value"),
        ({"neutralScore": 101}, "neutralScore: Invalid value"),
        ({"staleAfterSeconds": math.nan}, "staleAfterSeconds: Invalid value"),
    ],
)
def test_wrong_arguments_are_rejected(args, fault):
    with pytest.raises(ConfigError, match=fault):
        plugin_of(NAME, args=args)


def test_two_profiles_keep_their_own_arguments():
    one, other = (stage_of(NAME, [node("a"), node("b")], targetUtilization=each) for each in (40, 80))
    for stage in (one, other):
        stage.take(known(a=40, b=80))
    assert one.scores(limited(0)) == {"a": 100, "b": 13}
    assert other.scores(limited(0)) == {"a": 90, "b": 100}


def slow(used: float | None, cores: int, pod: int, target: int) -> int | None:
    if used is None:
        return None
    capacity = cores * 1000
    predicted = 100 * (used / 100 * capacity + pod) / capacity if capacity else 0
    if predicted <= target:
        return half_up((100 - target) * predicted / target + target)
    return half_up(target * (100 - predicted) / (100 - target)) if predicted <= 100 else 0


@given(
    st.lists(st.tuples(st.none() | st.floats(0, 150), st.integers(0, 64)), min_size=2, max_size=8),
    st.integers(0, 20_000),
    st.integers(1, 100),
)
def test_as_a_slow_version_for_one_node(rows, pod, target):
    nodes = [node(f"n{number}", str(cores)) for number, (_, cores) in enumerate(rows)]
    stage = stage_of(NAME, nodes, targetUtilization=target)
    loads = {f"n{number}": used for number, (used, _) in enumerate(rows) if used is not None}
    stage.take(known(**loads) or {"other": NodeLoad()})
    found = list(stage.scores(limited(pod)).values())
    expected = [slow(used, cores, pod, target) for used, cores in rows]
    ranked = sorted(each for each in expected if each is not None)
    middle = 50
    if ranked:
        middle = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) // 2
    assert found == [middle if each is None else each for each in expected]
