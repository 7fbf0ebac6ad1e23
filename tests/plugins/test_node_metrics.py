"""Where metrics of nodes come from: Prometheus, the metrics API, tokens, TLS, back-off and sharing."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from load_stage import (
    NOW,
    STALE,
    WITHOUT_DATA,
    Stage,
    answer,
    cpu,
    fake_watcher,
    planner_of,
    served,
    stage_of,
)

from certificates import Authority, server_context
from fake_prometheus import running, until
from make import make_node, make_pod, planner
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.embedded.cluster import embedded_cluster
from stowplan.errors import StowplanError
from stowplan.framework import Handle
from stowplan.plugins.node_metrics import Collector, MetricProvider, NodeLoad, SourceSettings

NAME = "LoadVariationRiskBalancing"


async def read_once(made: Planner) -> Collector:
    return await read_with(made.profiles["default-scheduler"].plugins[NAME])


async def read_with(plugin: Any) -> Collector:
    async with running(plugin):
        await until(lambda: plugin.source.poller.fault is not None)
    return plugin.source


def prometheus_answer(query: str) -> str:
    values = {
        "avg_over_time(instance:node_cpu:ratio[15m])": 0.25,
        "stddev_over_time(instance:node_cpu": 0.05,
        "max_over_time(timestamp(instance:node_cpu": NOW - 10,
    }
    found = next((value for start, value in values.items() if query.startswith(start)), None)
    if found is None:
        return "{}"
    result = [{"metric": {"instance": "a:9100"}, "value": [NOW, str(found)]}]
    return json.dumps({"data": {"result": result}})


async def test_prometheus_is_asked_for_averages_and_one_bad_query_spoils_nothing(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    seen = []

    async def respond(request: web.Request) -> web.Response:
        seen.append((request.query["query"], request.headers.get("Authorization")))
        return web.Response(text=prometheus_answer(request.query["query"]))

    async with fake_server(respond) as url:
        provider = {"type": "Prometheus", "address": url, "tokenFile": str(token)}
        nodes = [make_node("a"), make_node("b")]
        made = planner_of(NAME, nodes, {"metricProvider": provider}, lambda: NOW)
        source = await read_once(made)
    assert source.poller.fault.startswith("avg_over_time(instance:node_memory_utilisation:ratio[15m]): not a")
    note, _ = made.decide(make_pod()).notes
    assert note.startswith(
        f"{NAME} does without a part of the metrics of nodes: avg_over_time(instance:node_mem"
    )
    assert source.loads["a"][:2] == (25, 5)
    assert math.isnan(source.loads["a"].memory)
    assert [query for query, _ in seen] == [
        "avg_over_time(instance:node_cpu:ratio[15m])",
        "stddev_over_time(instance:node_cpu:ratio[15m])",
        "max_over_time(timestamp(instance:node_cpu:ratio)[15m:30s])",
        "avg_over_time(instance:node_memory_utilisation:ratio[15m])",
        "stddev_over_time(instance:node_memory_utilisation:ratio[15m])",
        "max_over_time(timestamp(instance:node_memory_utilisation:ratio)[15m:30s])",
    ]
    assert {header for _, header in seen} == {"Bearer secret"}


@asynccontextmanager
async def fake_server(
    respond: Any, context: ssl.SSLContext | None = None, path: str = "/api/v1/query"
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get(path, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Api:
    def __init__(self, items: Any) -> None:
        self.items = items

    async def get_json(self, path: str) -> Any:
        assert path == "/apis/metrics.k8s.io/v1beta1/nodes"
        if isinstance(self.items, Exception):
            raise self.items
        return {"kind": "NodeMetricsList", "items": self.items}


def usage(name: str, cpu: str, memory: str, timestamp: str = "1970-01-12T13:46:30Z") -> dict[str, Any]:
    return {"metadata": {"name": name}, "timestamp": timestamp, "usage": {"cpu": cpu, "memory": memory}}


async def read_api(items: Any, *names: str) -> Collector:
    made = planner_of(NAME, [], {}, lambda: NOW)
    plugin = made.profiles["default-scheduler"].plugins[NAME]
    cluster = Cluster.of([make_node(name) for name in names])  # plugins of one cluster share their source
    handle = Handle(cluster, now=lambda: NOW, api=Api(items))  # type: ignore[arg-type]
    return await read_with(type(plugin)(plugin.args, handle))


async def test_the_metrics_api_gives_shares_of_capacity_and_no_deviation():
    source = await read_api([usage("a", "1", "2Gi"), usage("gone", "1", "1Gi")], "a")
    assert (source.loads["a"].cpu, source.loads["a"].memory, source.loads["a"].last_cpu) == (25, 25, 25)
    assert math.isnan(source.loads["a"].cpu_deviation)
    assert set(source.loads) == {"a"}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(usage("b", "1", "1Gi", "1970-01-12T14:46:30Z"), False, id="future"),
        pytest.param(usage("b", "1", "1Gi", "1970-01-12T12:46:30Z"), False, id="old"),
        pytest.param(usage("b", "1", "1Gi", "yesterday"), False, id="no time"),
        pytest.param(usage("b", "-1", "-1Gi"), None, id="negative"),
        pytest.param({"metadata": {"name": "b"}, "timestamp": "1970-01-12T13:46:30Z"}, None, id="no usage"),
    ],
)
async def test_bad_values_of_the_metrics_api_count_as_missing(item, expected):
    source = await read_api([usage("a", "1", "2Gi"), item], "a", "b")
    assert ("b" in source.loads) == (expected is None)
    if expected is None:
        assert math.isnan(source.loads["b"].cpu)
        assert math.isnan(source.loads["b"].memory)


@pytest.mark.parametrize(
    ("items", "fault"),
    [
        (StowplanError("the server could not find the requested resource"), "could not find"),
        ([], "the source has no metrics of any node"),
        ("nonsense", "not a response of the metrics API"),
        ([usage("a", "lots", "1Gi")], "not a response of the metrics API"),
    ],
)
async def test_a_metrics_api_that_does_not_answer_is_a_fault(items, fault):
    source = await read_api(items, "a")
    assert fault in source.poller.fault
    assert source.reading == 0


async def test_plugins_share_a_collector_and_the_next_takes_over():
    async with fake_watcher() as watcher:
        watcher.body = answer({"a": cpu(1)})
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        args = {"watcherAddress": watcher.url, "refreshSeconds": 0.01}
        profiles = [
            {
                "schedulerName": name,
                "plugins": {"multiPoint": {"enabled": [{"name": NAME}]}},
                "pluginConfig": [{"name": NAME, "args": args}],
            }
            for name in ("one", "other")
        ]
        found = planner([make_node("a")], kind | {"profiles": profiles}).profiles
        one, other = found["one"].plugins[NAME], found["other"].plugins[NAME]
        assert one.source is other.source  # type: ignore[attr-defined]
        async with running(other):
            async with running(one):
                await until(lambda: watcher.asked >= 2)
            asked = watcher.asked
            await until(lambda: watcher.asked >= asked + 2)


async def test_a_source_that_fails_is_asked_less_often():
    async with served(NAME, [make_node("a")], refreshSeconds=0.05) as (_, watcher, _):
        watcher.status = 500
        await until(lambda: watcher.asked >= 5)
        asked = watcher.asked
        await asyncio.sleep(0.3)
        assert watcher.asked - asked <= 2  # six at the usual interval


def test_certificates_are_checked_as_the_arguments_say():
    def tls(watcher: str = "", **fields: Any) -> Any:
        return SourceSettings(watcher, MetricProvider("Prometheus", "https://p", **fields)).tls

    assert tls() is False  # as in scheduler-plugins
    assert tls(insecure_skip_verify=False) is True
    assert tls("https://watcher") is True
    assert tls("https://watcher", insecure_skip_verify=True) is True
    assert tls(ca_file="/nowhere", insecure_skip_verify=True) is False


async def fault_of(provider: dict[str, Any]) -> tuple[str, str]:
    """What the collector finds wrong, and what a decision says about it."""
    args = {"metricProvider": {"type": "Prometheus"} | provider}
    made = planner_of(NAME, [make_node("a"), make_node("b")], args, lambda: NOW)
    source = await read_once(made)
    assert source.reading == 0
    (note,) = made.decide(make_pod()).notes
    return source.poller.fault or "", note


async def test_a_ca_file_is_read_before_each_request_and_its_faults_are_told(tmp_path):
    authority, file = Authority(), tmp_path / "ca.crt"
    context = server_context(tmp_path, authority.issue("prometheus", "127.0.0.1"))

    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=prometheus_answer(request.query["query"]))

    async with fake_server(respond, context) as url:
        provider = {"address": url, "caFile": str(file)}
        fault, note = await fault_of(provider)
        assert fault == f"cannot use metricProvider.caFile {file}: No such file or directory"
        assert note == f"{NAME} gives every node 50: metrics of nodes were not read yet ({fault})."
        file.write_text("no certificate")
        fault, _ = await fault_of(provider)
        assert fault.startswith(f"cannot use metricProvider.caFile {file}: ")
        file.write_text(Authority("another").certificate)
        fault, _ = await fault_of(provider)
        assert "certificate verify failed" in fault
        args = {"metricProvider": {"type": "Prometheus"} | provider, "refreshSeconds": 0.01}
        made = planner_of(NAME, [make_node("a")], args, lambda: NOW)
        plugin: Any = made.profiles["default-scheduler"].plugins[NAME]
        async with running(plugin):
            await until(lambda: plugin.source.poller.fault is not None)
            assert plugin.source.reading == 0
            file.write_text(authority.certificate)
            await until(lambda: plugin.source.reading > 0)
    assert plugin.source.loads["a"].cpu == 25


async def test_a_load_watcher_is_read_over_tls_if_its_certificate_is_right(tmp_path):
    authority, file = Authority(), tmp_path / "ca.crt"
    context = server_context(tmp_path, authority.issue("watcher", "127.0.0.1"))

    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=answer({"a": cpu(25)}))

    async def read(**provider: Any) -> Collector:
        args = {"watcherAddress": url, "metricProvider": provider}
        return await read_once(planner_of(NAME, [make_node("a")], args, lambda: NOW))

    async with fake_server(respond, context, "/watcher") as url:
        source = await read(insecureSkipVerify=True)  # which is for Prometheus only
        assert "certificate verify failed" in (source.poller.fault or "")
        assert source.reading == 0
        file.write_text(authority.certificate)
        source = await read(caFile=str(file))
    assert source.loads["a"].cpu == 25


@pytest.mark.parametrize(
    ("fields", "is_read", "is_told"),
    [
        pytest.param({}, True, False, id="by default not checked, also without a token"),
        pytest.param({"insecureSkipVerify": False}, False, False, id="checked"),
        pytest.param({"token": "secret"}, True, True, id="a token that anybody may read is told"),
        pytest.param({"token": "secret", "insecureSkipVerify": False}, False, False, id="or not sent"),
    ],
)
async def test_a_certificate_that_nobody_knows(tmp_path, caplog, fields, is_read, is_told):
    context = server_context(tmp_path, Authority().issue("prometheus", "127.0.0.1"))
    tokens = []

    async def respond(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization", ""))
        return web.Response(text=prometheus_answer(request.query["query"]))

    async with fake_server(respond, context) as url:
        provider = {"type": "Prometheus", "address": url} | fields
        source = await read_once(
            planner_of(NAME, [make_node("a")], {"metricProvider": provider}, lambda: NOW)
        )
    assert (source.reading > 0) == is_read
    assert ("certificate verify failed" in (source.poller.fault or "")) != is_read
    assert set(tokens) == ({"Bearer secret" if "token" in fields else ""} if is_read else set())
    told = [each for each in caplog.records if each.getMessage().startswith("Sending a token to a server")]
    assert bool(told) == is_told


async def test_a_token_file_is_read_before_each_request(tmp_path):
    file, seen = tmp_path / "token", []
    file.write_text("first\n")

    async def respond(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(text=prometheus_answer(request.query["query"]))

    async with fake_server(respond) as url:
        provider = {"type": "Prometheus", "address": url, "tokenFile": str(file)}
        args = {"metricProvider": provider, "refreshSeconds": 0.01}
        made = planner_of(NAME, [make_node("a")], args, lambda: NOW)
        async with running(made.profiles["default-scheduler"].plugins[NAME]):
            await until(lambda: "Bearer first" in seen)
            file.write_text("second\n")
            await until(lambda: "Bearer second" in seen)


async def test_a_metrics_api_that_hangs_is_a_fault():
    class Hanging:
        async def get_json(self, path: str) -> Any:
            await asyncio.sleep(60)

    made = planner_of(NAME, [], {"timeoutSeconds": 0.05}, lambda: NOW)
    plugin = made.profiles["default-scheduler"].plugins[NAME]
    handle = Handle(Cluster.of([make_node("a")]), now=lambda: NOW, api=Hanging())  # type: ignore[arg-type]
    source = await read_with(type(plugin)(plugin.args, handle))
    assert source.poller.fault == "no answer within 0.05 s"


@pytest.mark.parametrize("value", ["NaN", "-0.1", "+Inf", "-Inf", "much", ""])
async def test_bad_values_of_prometheus_count_as_missing(value):
    """Series name nodes by a label, and by an address, as the arguments say."""

    async def respond(request: web.Request) -> web.Response:
        if "(memory" in request.query["query"]:
            return web.json_response({"data": {"result": []}})
        rows = (("10.0.0.1:9100", "0.25"), ("10.0.0.2:9100", value))
        if "timestamp" in request.query["query"]:
            rows = tuple((host, str(NOW)) for host, _ in rows)
        result = [{"metric": {"host": host}, "value": [NOW, amount]} for host, amount in rows]
        return web.json_response({"data": {"result": result}})

    def at(name: str, address: str) -> NodeObject:
        addresses = [{"type": "InternalIP", "address": address}]
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "9"}, "addresses": addresses}
        return decode(NodeObject, {"metadata": {"name": name}, "status": status})

    async with fake_server(respond) as url:
        provider = {"type": "Prometheus", "address": url}
        args = {"metricProvider": provider, "nodeLabel": "host", "cpuMetric": "cpu", "memoryMetric": "memory"}
        made = planner_of(NAME, [at("a", "10.0.0.1"), at("b", "10.0.0.2")], args, lambda: NOW)
        source = await read_once(made)
    assert source.poller.fault == ""
    nodes = made.cluster.nodes.objects
    assert source.load_of(nodes[0]).cpu == 25
    assert math.isnan(source.load_of(nodes[1]).cpu)
    (note,) = made.decide(make_pod()).notes
    assert note == f"{NAME} has no data of b: such nodes get the median score of the others."


class Series:
    """A Prometheus with a CPU series for each of `shares`; nothing is known of memory.

    `times` are those of the newest samples, and `at` is when Prometheus says that it has answered.
    """

    def __init__(self, *shares: tuple[dict[str, str], float], times: Any = (), at: float = NOW) -> None:
        self.shares, self.times, self.at = shares, times, at

    async def respond(self, request: web.Request) -> web.Response:
        query, result = request.query["query"], []
        if "node_cpu" in query and not query.startswith("stddev"):
            is_time = query.startswith("max_over_time(timestamp(")
            if is_time and self.times is None:
                return web.json_response({"error": "no subqueries"}, status=400)
            times = self.times or [NOW] * len(self.shares)
            result = [
                {"metric": labels, "value": [self.at, repr(time if is_time else share)]}
                for (labels, share), time in zip(self.shares, times, strict=True)
                if not is_time or time is not None
            ]
        return web.json_response({"data": {"result": result}})


def instance(name: str, **labels: str) -> dict[str, str]:
    return {"instance": name, **labels}


async def decided(series: Series, *names: str) -> tuple[dict[str, int], str, tuple[str, ...], float, float]:
    """Scores, the fault, what a decision says, and the counts of nodes without data and of stale data."""
    async with fake_server(series.respond) as url:
        args = {"metricProvider": {"type": "Prometheus", "address": url}}
        stage = Stage(NAME, [make_node(name) for name in names], "", args)
        source = await read_once(stage.planner)
    notes = stage.planner.decide(make_pod()).notes
    found = stage.scores(make_pod())
    return found, source.poller.fault or "", notes, stage.counted(WITHOUT_DATA), stage.counted(STALE)


THREE = ((instance("a"), 0.2), (instance("b"), 0.6), (instance("c"), 0.4))


@pytest.mark.parametrize(
    ("at", "fault"),
    [
        (
            NOW - 301,
            "Prometheus has answered as of more than 300 s ago: compare the clocks, and look for caches",
        ),
        (NOW + 61, "Prometheus has answered as of more than 60 s in the future: compare the clocks"),
    ],
)
async def test_answers_of_prometheus_as_of_another_time_are_not_believed(at, fault):
    found, said, notes, _, stale = await decided(Series(*THREE, at=at), "a", "b", "c")
    assert found == {"a": 50, "b": 50, "c": 50}
    assert said == fault
    assert notes == (f"{NAME} gives every node 50: metrics of nodes were not read yet ({fault}).",)
    assert stale == 1


async def test_an_answer_of_prometheus_counts_as_of_the_time_that_it_says():
    async with fake_server(Series(*THREE, at=NOW - 200).respond) as url:
        args = {"metricProvider": {"type": "Prometheus", "address": url}}
        stage = Stage(NAME, [make_node(name) for name in "abc"], "", args)
        await read_once(stage.planner)
    assert stage.scores(make_pod())["a"] > stage.scores(make_pod())["b"]
    stage.time += 101
    assert set(stage.scores(make_pod()).values()) == {50}


@pytest.mark.parametrize(
    "time",
    [pytest.param(NOW - 331, id="old"), pytest.param(NOW + 61, id="future"), pytest.param(None, id="none")],
)
async def test_series_whose_newest_sample_is_not_current_count_as_missing(time):
    """An average over 15 minutes goes on for 15 minutes after a node has stopped reporting."""
    # A subquery looks at multiples of its step of 30 s: the newest sample may be so much newer.
    series = Series(*THREE, times=[NOW, time, NOW - 330])
    found, fault, notes, without, stale = await decided(series, "a", "b", "c")
    exact, _, _, _, _ = await decided(Series(*THREE), "a", "b", "c")
    assert (found["a"], found["c"]) == (exact["a"], exact["c"])
    assert found["b"] == (found["a"] + found["c"]) // 2
    assert found["b"] > exact["b"]
    assert fault == ""
    assert notes == (f"{NAME} has no data of b: such nodes get the median score of the others.",)
    assert (without, stale) == (1, 0)


async def test_series_that_all_are_old_make_nodes_equal():
    found, fault, notes, _, stale = await decided(Series(*THREE, times=[NOW - 331] * 3), "a", "b", "c")
    assert found == {"a": 50, "b": 50, "c": 50}
    assert fault == "no series has a sample of the last 300 s"
    assert notes == (f"{NAME} gives every node 50: metrics of nodes were not read yet ({fault}).",)
    assert stale == 1


async def test_the_series_of_an_exporter_that_was_replaced_does_not_count():
    both = ((instance("a", pod="old"), 0.9), (instance("a", pod="new"), 0.2), (instance("b"), 0.2))
    found, *_ = await decided(Series(*both, times=[NOW - 400, NOW, NOW]), "a", "b")
    assert found["a"] == found["b"]


async def test_a_prometheus_that_cannot_say_how_old_samples_are_is_believed_and_that_is_told():
    found, fault, notes, _, _ = await decided(Series(*THREE, times=None), "a", "b", "c")
    exact, *_ = await decided(Series(*THREE), "a", "b", "c")
    assert found == exact
    assert fault == "max_over_time(timestamp(instance:node_cpu:ratio)[15m:30s]): HTTP 400 no subqueries"
    assert notes == (f"{NAME} does without a part of the metrics of nodes: {fault}.",)


@pytest.mark.parametrize("timestamp", ["1970-01-12T14:46:30Z", "1970-01-12T12:46:30Z"])
async def test_a_metrics_api_with_nothing_current_makes_nodes_equal(timestamp):
    source = await read_api([usage("a", "1", "2Gi", timestamp), usage("b", "3", "2Gi", timestamp)], "a", "b")
    assert source.poller.fault == "no item of the metrics API is of the last 300 s"
    assert source.reading == 0


async def test_the_metrics_api_counts_as_of_its_newest_item():
    source = await read_api(
        [usage("a", "1", "2Gi"), usage("b", "1", "2Gi", "1970-01-12T13:42:00Z")], "a", "b"
    )
    assert source.read_at == NOW - 10


@pytest.mark.parametrize(
    ("timestamp", "window", "expected"),
    [
        pytest.param(NOW - 100, {"end": NOW - 50}, NOW - 50, id="the window counts"),
        pytest.param(NOW - 100, {}, NOW - 100, id="a window without an end"),
        pytest.param(NOW - 100, None, NOW - 100, id="no window"),
        pytest.param(NOW + 30, None, NOW, id="a clock that is a little ahead"),
        pytest.param(NOW - 301, None, None, id="old"),
        pytest.param(NOW + 61, None, None, id="future"),
    ],
)
async def test_a_load_watcher_counts_as_of_the_end_of_its_window(timestamp, window, expected):
    body = json.loads(answer({"a": cpu(25)})) | {"timestamp": int(timestamp)}
    body.pop("window")
    if window is not None:
        body["window"] = {name: int(time) for name, time in window.items()}
    async with served(NAME, [make_node("a"), make_node("b")]) as (stage, _, tell):
        await tell(json.dumps(body))
        source = stage.plugin.source
        assert source.read_at == (-math.inf if expected is None else expected)
        assert (stage.counted(STALE) > 0) == (expected is None)
        (note,) = stage.planner.decide(make_pod()).notes
        assert ("gives every node 50" in note) == (expected is None)


@pytest.mark.parametrize("content", [b"", b"two\nlines\n", b"\xff\xfe\x00", b"nul\x00byte"])
async def test_a_token_file_that_holds_no_token_is_told(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    fault, note = await fault_of({"address": "http://127.0.0.1:1", "tokenFile": str(file)})
    assert fault == f"metricProvider.tokenFile {file} must hold one word of ASCII characters"
    assert fault in note


async def test_a_fault_of_all_queries_is_told_once():
    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"error": "bad token"}, status=401)

    async with fake_server(respond) as url:
        fault, _ = await fault_of({"address": url})
    assert fault == "HTTP 401 bad token"


def test_a_reading_that_has_nothing_of_any_node_is_told():
    stage = stage_of(NAME, [make_node("a"), make_node("b")])
    stage.take({"x": NodeLoad(cpu=20)})
    decision = stage.planner.decide(make_pod())
    assert decision.notes == (f"{NAME} gives every node 50: it has no data of any node.",)


@pytest.mark.parametrize(
    ("age", "expected"),
    [(301, "5 minutes"), (90, "90 seconds"), (720, "12 minutes"), (7200, "2 hours"), (400_000, "4 days")],
)
def test_a_decision_says_how_old_the_metrics_are(age, expected):
    stage = stage_of(NAME, [make_node("a"), make_node("b")], staleAfterSeconds=60)
    stage.take({"a": NodeLoad(cpu=20), "b": NodeLoad(cpu=60)}, NOW - age)
    assert stage.planner.decide(make_pod()).notes == (
        f"{NAME} gives every node 50: metrics of nodes are {expected} old.",
    )


def test_a_decision_with_fresh_metrics_of_all_nodes_says_nothing():
    stage = stage_of(NAME, [make_node("a"), make_node("b")])
    stage.take({"a": NodeLoad(cpu=20), "b": NodeLoad(cpu=60)})
    assert stage.planner.decide(make_pod()).notes == ()


def test_gaps_follow_nodes_and_readings():
    stage = stage_of(NAME, [make_node("a"), make_node("b")])
    stage.take({"a": NodeLoad(cpu=20)})
    says = "such nodes get the median score of the others."
    assert stage.planner.decide(make_pod()).notes == (f"{NAME} has no data of b: {says}",)
    for name in "cde":
        stage.planner.cluster.apply(make_node(name))
    assert stage.planner.decide(make_pod()).notes == (f"{NAME} has no data of b, c, d and 1 more: {says}",)
    stage.take({name: NodeLoad(cpu=20) for name in "abcd"})
    assert stage.planner.decide(make_pod()).notes == (f"{NAME} has no data of e: {says}",)


@pytest.mark.parametrize(
    "name", [NAME, "TargetLoadPacking", "LowRiskOverCommitment", "Peaks", "NetworkTraffic"]
)
async def test_a_recorded_decision_says_why_metrics_are_missing(name):
    arguments = {"watcherAddress": "http://127.0.0.1:1"}
    if name == "Peaks":
        arguments = {"WatcherAddress": "http://127.0.0.1:1", "NodePowerModel": {"x": {"k0": 1}}}
    elif name == "NetworkTraffic":
        arguments = {"prometheusAddress": "http://127.0.0.1:1"}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "plugins": {"multiPoint": {"enabled": [{"name": name}]}},
                "pluginConfig": [{"name": name, "args": arguments}],
            }
        ],
    }
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    async with embedded_cluster(2, config=config) as cluster:
        plugin: Any = cluster.scheduler.profiles["default-scheduler"].plugins[name]
        poller = plugin.poller if name == "NetworkTraffic" else plugin.source.poller
        await until(lambda: poller.fault is not None)
        await cluster.create(pod)
        await cluster.bound("p")
        told = " ".join(cluster.explain("p").split())
    score = 0 if name in ("Peaks", "NetworkTraffic") else 50
    assert f"{name} gives every node {score}: " in told
    assert "were not read yet (Cannot connect to host 127.0.0.1:1" in told
