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
from load_stage import NOW, answer, cpu, fake_watcher, planner_of, served, stage_of

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
    values = {"avg_over_time(instance:node_cpu:ratio[15m])": 0.25, "stddev_over_time(instance:node_cpu": 0.05}
    found = next((value for start, value in values.items() if query.startswith(start)), None)
    if found is None:
        return "{}"
    result = [{"metric": {"instance": "a:9100"}, "value": [1, str(found)]}]
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
        "avg_over_time(instance:node_memory_utilisation:ratio[15m])",
        "stddev_over_time(instance:node_memory_utilisation:ratio[15m])",
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
        if not request.query["query"].startswith("avg_over_time(cpu["):
            return web.json_response({"data": {"result": []}})
        rows = (("10.0.0.1:9100", "0.25"), ("10.0.0.2:9100", value))
        result = [{"metric": {"host": host}, "value": [1, amount]} for host, amount in rows]
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
