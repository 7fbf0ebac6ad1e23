"""NetworkTraffic: less traffic is better, no data are neither good nor bad, and no answer does any harm."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from alone import plugin_of, scores
from hypothesis import given
from hypothesis import strategies as st

from fake_prometheus import FakePrometheus, fake_prometheus, running, samples, until, vector
from make import REGISTRY, make_node, make_pod
from stowplan.api.node import NodeAddress, NodeObject
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.errors import ConfigError
from stowplan.plugins.prometheus import PrometheusError, run_query

NAME = "NetworkTraffic"
MB = 1_000_000
WITHOUT_DATA = "stowplan_network_traffic_nodes_without_data_total"
STALE = "stowplan_network_traffic_stale_total"


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Stage:
    """A planner with the plugin alone at score, the plugin, a Prometheus and a clock of the test's own."""

    def __init__(self, prometheus: FakePrometheus, nodes: list[NodeObject], args: dict[str, Any]) -> None:
        args = {"prometheusAddress": prometheus.url, "refreshSeconds": 0.01} | args
        profile = {
            "plugins": {
                "multiPoint": {"enabled": [{"name": NAME}]},
                "score": {"disabled": [{"name": "*"}], "enabled": [{"name": NAME}]},
            },
            "pluginConfig": [{"name": NAME, "args": args}],
        }
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        config = load(kind | {"profiles": [profile]}, REGISTRY).config
        self.prometheus, self.clock = prometheus, Clock()
        prometheus.now = self.clock
        self.planner = Planner(Cluster.of(nodes), config, registry=REGISTRY, now=self.clock)
        self.plugin: Any = self.planner.profiles["default-scheduler"].plugins[NAME]

    def scores(self) -> list[int]:
        found = scores(self.planner.decide(make_pod()))
        return [found[name] for name in sorted(found)]

    def counted(self, name: str) -> float:
        return self.plugin.handle.counter(name, "")[()]

    async def told(self, answer: str | bytes, *, status: int = 200, delay: float = 0) -> None:
        """Prometheus answers this from now on, and the plugin has taken it in."""
        told = self.prometheus
        told.answer, told.status, told.delay = answer, status, delay
        asked = len(told.queries)
        await until(lambda: len(told.queries) >= asked + 2)


@asynccontextmanager
async def staged(*nodes: str | NodeObject, prefix: str = "", **args: Any) -> AsyncIterator[Stage]:
    made = [make_node(node) if isinstance(node, str) else node for node in nodes]
    async with fake_prometheus(prefix) as prometheus:
        stage = Stage(prometheus, made, args)
        async with running(stage.plugin):
            yield stage


def at(node: NodeObject, **addresses: str) -> NodeObject:
    """The node with addresses by their type."""
    found = tuple(NodeAddress(kind, address) for kind, address in addresses.items())
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, addresses=found))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([1 * MB, 1.2 * MB, 1.4 * MB], [29, 15, 0], id="the tutorial's"),
        pytest.param([0, 50, 100], [100, 50, 0], id="none is best"),
        pytest.param([7, 7, 7], [0, 0, 0], id="all equal"),
        pytest.param([0, 0, 0], [100, 100, 100], id="all zero"),
        pytest.param([1e18, 5e17, 0], [0, 50, 100], id="numbers too large for a hundredfold"),
        pytest.param([1e300, 0, 1e300], [0, 100, 0], id="numbers too large for anything"),
    ],
)
async def test_less_traffic_is_better(values, expected):
    async with staged("a", "b", "c") as stage:
        await stage.told(vector(dict(zip("abc", values, strict=True))))
        assert stage.scores() == expected
        assert stage.counted(WITHOUT_DATA) == stage.counted(STALE) == 0


async def test_the_least_loaded_node_is_chosen():
    async with staged("a", "b", "c") as stage:
        await stage.told(vector({"a": 30, "b": 10, "c": 20}))
        assert stage.planner.decide(make_pod()).chosen == "b"
        await stage.told(vector({"a": 5, "b": 10, "c": 20}))
        assert stage.planner.decide(make_pod()).chosen == "a"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(
            {},
            'sum by (instance) (rate(node_network_receive_bytes_total{device="ens192"}[5m])'
            ' + rate(node_network_transmit_bytes_total{device="ens192"}[5m]))',
            id="rates of both directions",
        ),
        pytest.param(
            {"networkInterface": "eth0", "timeRangeInMinutes": 3, "nodeLabel": "node"},
            'sum by (node) (rate(node_network_receive_bytes_total{device="eth0"}[3m])'
            ' + rate(node_network_transmit_bytes_total{device="eth0"}[3m]))',
            id="as the arguments say",
        ),
        pytest.param(
            {"compat": True},
            'sum_over_time(node_network_receive_bytes_total{kubernetes_node!="",device="ens192"}[5m])',
            id="the tutorial's",
        ),
        pytest.param(
            {"compat": True, "nodeLabel": "node", "networkInterface": 'a"b\\'},
            'sum_over_time(node_network_receive_bytes_total{node!="",device="a\\"b\\\\"}[5m])',
            id="quoted",
        ),
    ],
)
async def test_one_query_asks_for_all_nodes(args, expected):
    async with staged("a", "b", "c", **args) as stage:
        await stage.told(vector({}))
        assert set(stage.prometheus.queries) == {expected}


async def test_deciding_asks_nothing():
    async with staged("a", "b", refreshSeconds=60) as stage:
        await until(lambda: len(stage.prometheus.queries) == 1)
        for _ in range(20):
            stage.planner.decide(make_pod())
            await asyncio.sleep(0)
        assert len(stage.prometheus.queries) == 1


async def test_prometheus_may_be_below_a_path():
    async with staged("a", "b", prefix="/prometheus") as stage:
        await stage.told(vector({"a": 1, "b": 2}))
        assert stage.scores() == [50, 0]


@pytest.mark.parametrize(
    "instance",
    [
        pytest.param("a", id="name"),
        pytest.param("a:9100", id="name and port"),
        pytest.param("10.0.0.1:9100", id="internal IP and port"),
        pytest.param("10.0.0.1", id="internal IP"),
        pytest.param("[fd00::1]:9100", id="IPv6 and port"),
        pytest.param("[fd00::1]", id="IPv6 in brackets"),
        pytest.param("fd00::1", id="IPv6"),
        pytest.param("a.example.com:9100", id="hostname and port"),
    ],
)
async def test_a_series_names_its_node(instance):
    addresses = {"InternalIP": "10.0.0.1", "ExternalIP": "fd00::1", "Hostname": "a.example.com"}
    async with staged(at(make_node("a"), **addresses), at(make_node("b"), InternalIP="10.0.0.11")) as stage:
        await stage.told(vector({instance: 1, "10.0.0.11:9100": 4}))
        assert stage.scores() == [75, 0]


@pytest.mark.parametrize(
    ("answer", "expected", "missing"),
    [
        pytest.param(vector({"a": 0, "b": 40, "c": 100}), [100, 60, 0, 60], 1, id="the median of three"),
        pytest.param(vector({"a": 0, "b": 100}), [100, 0, 50, 50], 2, id="the median of two"),
        pytest.param(vector({"c": 5}), [0, 0, 0, 0], 3, id="one known"),
        pytest.param(vector({"a": 0, "b": "NaN", "c": 100}), [100, 50, 0, 50], 2, id="NaN"),
        pytest.param(vector({"a": 0, "b": "+Inf", "c": 100}), [100, 50, 0, 50], 2, id="infinite"),
        pytest.param(vector({"a": 0, "b": -7, "c": 100}), [100, 50, 0, 50], 2, id="negative"),
        pytest.param(vector({"a": 0, "b": "lots", "c": 100}), [100, 50, 0, 50], 2, id="no number"),
        pytest.param(
            samples(({"instance": "a"}, 0), ({}, 500), ({"instance": "c"}, 100), ({"instance": "x"}, 900)),
            [100, 50, 0, 50],
            2,
            id="series of no node, or of an unknown one",
        ),
        pytest.param(
            samples(({"instance": "a"}, 50), ({"instance": "a:9100"}, 0), ({"instance": "b"}, 100)),
            [50, 0, 25, 25],
            2,
            id="of two that name one node the larger",
        ),
    ],
)
async def test_a_node_without_data_gets_the_median(answer, expected, missing):
    async with staged("a", "b", "c", "d", refreshSeconds=0.05) as stage:
        await stage.told(answer)
        assert stage.scores() == stage.scores() == expected
        assert stage.counted(WITHOUT_DATA) == missing


async def test_a_node_that_comes_later_has_its_traffic_at_once():
    async with staged("a", "b") as stage:
        await stage.told(vector({"a": 10, "b": 20, "late": 5}))
        assert stage.scores() == [50, 0]
        stage.planner.cluster.apply(make_node("late"))
        assert stage.scores() == [50, 0, 75]


NONSENSE = [
    pytest.param({"answer": "<html>Welcome</html>"}, "not a response from Prometheus", id="HTML"),
    pytest.param({"answer": "", "status": 500}, "HTTP 500", id="500"),
    pytest.param({"answer": "<h1>Bad gateway 4711</h1>", "status": 502}, "HTTP 502", id="502 of a proxy"),
    pytest.param(
        {"answer": '{"status":"error","errorType":"bad_data","error":"parse error"}', "status": 400},
        "HTTP 400 parse error",
        id="400 with a reason",
    ),
    pytest.param({"answer": "[]"}, "Expected `object`, got `array`", id="an array"),
    pytest.param({"answer": "{}"}, "missing required field `data`", id="an empty object"),
    pytest.param({"answer": '{"data":{"result":null}}'}, "Expected `array`, got `null`", id="no result"),
    pytest.param(
        {"answer": '{"data":{"resultType":"scalar","result":[1,"2"]}}'}, "Expected `object`", id="a scalar"
    ),
    pytest.param(
        {"answer": '{"data":{"result":[{"metric":{},"values":[[1,"2"]]}]}}'},
        "missing required field `value`",
        id="a matrix",
    ),
    pytest.param(
        {"answer": '{"data":{"result":[{"metric":{"instance":7},"value":[1,"2"]}]}}'},
        "Expected `str`, got `int`",
        id="a label that is no text",
    ),
    pytest.param({"answer": b"\xff\xfe\x00"}, "not a response from Prometheus", id="bytes"),
    pytest.param({"answer": '{"x":' + "[" * 100_000}, "not a response from Prometheus", id="deep"),
    pytest.param({"answer": vector({})}, "no data for sum by (instance)", id="no series"),
    pytest.param({"answer": vector({"a": "NaN"})}, "no data for sum by (instance)", id="nothing but NaN"),
    pytest.param({"answer": vector({"a": 1}), "delay": 1}, "no answer within 0.1 s", id="slow"),
]


async def test_an_answer_that_would_fill_the_memory_is_not_read():
    async with fake_prometheus() as fake, aiohttp.ClientSession() as session:
        fake.answer = b" " * (2**25 + 1)
        with pytest.raises(PrometheusError, match="the response has more than 32 MiB"):
            await run_query(session, fake.url, "up")


@pytest.mark.parametrize(("how", "said"), NONSENSE)
async def test_a_bad_answer_is_told_once_and_what_was_read_before_counts_until_it_is_stale(how, said, caplog):
    caplog.set_level("INFO", "stowplan")
    async with staged("a", "b", timeoutSeconds=0.1) as stage:
        assert stage.scores() == [0, 0]
        await stage.told(vector({"a": 10, "b": 20}))
        await stage.told(**how)
        await stage.told(**how)
        assert stage.scores() == [50, 0]
        assert stage.counted(STALE) == 0
        stage.clock.time += 121
        assert stage.scores() == [0, 0]
        await stage.told(**how)
        assert stage.counted(STALE) > 0
        await stage.told(vector({"a": 20, "b": 10}))
        assert stage.scores() == [0, 50]
        stale = stage.counted(STALE)
        await stage.told(vector({"a": 20, "b": 10}))
        assert stage.counted(STALE) == stale
    errors = [record.fields["err"] for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) <= 2  # at the start there were no data at all
    assert said in errors[-1]
    assert caplog.messages[-1] == "Reading network traffic of nodes"


@pytest.mark.parametrize(
    ("ahead", "fault"),
    [
        (-121, "Prometheus has answered as of more than 120 s ago: compare the clocks, and look for caches"),
        (61, "Prometheus has answered as of more than 60 s in the future: compare the clocks"),
    ],
)
async def test_answers_as_of_another_time_are_not_believed(ahead, fault):
    async with staged("a", "b") as stage:
        stage.prometheus.now = lambda: stage.clock.time + ahead
        await stage.told(vector({"a": 10, "b": 20}))
        assert stage.scores() == [0, 0]
        assert stage.counted(STALE) > 0
        note = f"{NAME} gives every node 0: network traffic of nodes were not read yet ({fault})."
        assert note in stage.planner.decide(make_pod()).notes


async def test_an_answer_is_used_from_the_time_that_it_is_as_of():
    async with staged("a", "b") as stage:
        stage.prometheus.now = lambda: 950.0
        await stage.told(vector({"a": 10, "b": 20}))
        assert stage.scores() == [50, 0]
        stage.clock.time = 1069.0
        assert stage.scores() == [50, 0]
        stage.clock.time = 1071.0
        assert stage.scores() == [0, 0]


async def test_prometheus_is_down_and_comes_up(caplog):
    async with fake_prometheus() as gone:
        pass
    stage = Stage(gone, [make_node("a"), make_node("b")], {})
    async with running(stage.plugin) as work:
        await until(lambda: stage.counted(STALE) >= 3)
        assert stage.scores() == [0, 0]
        assert not work.done()
    assert len(caplog.records) == 1
    assert "Cannot connect to host 127.0.0.1" in caplog.records[0].fields["err"]


async def test_series_that_name_no_node_are_told(caplog):
    async with staged("a", "b") as stage:
        await stage.told(vector({"10.9.9.9:9100": 5}))
        await stage.told(vector({"10.9.9.9:9100": 6}))
        assert stage.scores() == [0, 0]
    assert caplog.records[-1].fields["err"] == "label instance has no node's name or address, but 10.9.9.9"


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        pytest.param({}, "prometheusAddress: Required value: such as http://", id="no address"),
        pytest.param(
            {"prometheusAddress": "prometheus:9090"}, "prometheusAddress: Invalid value", id="no scheme"
        ),
        pytest.param({"address": "http://"}, "address: Invalid value", id="no host"),
        pytest.param({"address": "http://x:y"}, "address: Invalid value", id="no port"),
        pytest.param(
            {"address": "http://a", "prometheusAddress": "http://b"}, "address: Forbidden", id="two addresses"
        ),
        pytest.param({"timeRangeInMinutes": 0}, "timeRangeInMinutes: Invalid value: 0", id="no time"),
        pytest.param({"refreshSeconds": -1}, "refreshSeconds: Invalid value: -1", id="negative"),
        pytest.param({"staleAfterSeconds": math.inf}, "staleAfterSeconds: Invalid value", id="infinite"),
        pytest.param({"timeoutSeconds": math.nan}, "timeoutSeconds: Invalid value", id="no number"),
        pytest.param({"networkInterface": ""}, "networkInterface: Required value", id="no interface"),
        pytest.param({"nodeLabel": 'x"} or up{'}, "nodeLabel: Invalid value", id="no label"),
        pytest.param(
            {"interface": "eth0"}, 'unknown field "interface".*networkInterface', id="unknown field"
        ),
    ],
)
def test_wrong_arguments_are_refused(args, fault):
    has_address = not args or args.keys() & {"address", "prometheusAddress"}
    with pytest.raises(ConfigError, match=fault):
        plugin_of(NAME, args=args if has_address else args | {"address": "http://a"})


def test_address_is_another_name_and_defaults_are_the_tutorials():
    args = plugin_of(NAME, args={"address": "http://prometheus"}).args
    assert (args.network_interface, args.time_range_in_minutes, args.node_label) == ("ens192", 5, "instance")


amounts = st.one_of(
    st.none(),
    st.integers(0, 10),
    st.floats(0, 1e7),
    st.sampled_from(["NaN", "-Inf", "+Inf", "-3", "1e15", "?"]),
)


@given(st.dictionaries(st.sampled_from("abcdefg"), amounts, min_size=2), st.sampled_from(["", "a", "bc"]))
def test_as_a_slow_obvious_version_would(values, tainted):
    async def check():
        nodes = [
            make_node(name, taints=["only:NoSchedule"] if name in tainted else ()) for name in sorted(values)
        ]
        async with fake_prometheus() as prometheus:
            stage = Stage(prometheus, nodes, {})
            prometheus.answer = vector({name: value for name, value in values.items() if value is not None})
            async with running(stage.plugin):
                await until(lambda: len(prometheus.queries) >= 2)
                feasible = {name: values[name] for name in sorted(values) if name not in tainted}
                if len(feasible) > 1:
                    assert stage.scores() == slowly(feasible)

    asyncio.run(check())


def slowly(values: dict[str, Any]) -> list[int]:
    known = {}
    for name, value in values.items():
        try:
            amount = math.nan if value is None else float(value)
        except ValueError:
            continue
        if math.isfinite(amount) and amount >= 0:
            known[name] = int(amount)
    highest = max(known.values(), default=0)
    points = {name: 100 - amount * 100 // highest if highest else 100 for name, amount in known.items()}
    middle = int(statistics.median(points.values())) if points else 0
    return [points.get(name, middle) for name in values]
