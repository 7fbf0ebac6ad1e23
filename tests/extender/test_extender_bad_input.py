"""What comes that nobody should send, plugins that fail or hang, and clients without a certificate."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Iterator

import pytest
from extender_staging import Stage, alone, asking, binding, node, pod, reply_of, serving

from certificates import Authority
from stowplan import CycleState, Node, NodeTable, Plugin, Pod, Reject, Status

NODES = [node("n1"), node("n2")]
ERROR = "Stowplan extender /p/{}: "
BROKEN = [
    pytest.param(b"{not JSON", "is not JSON", id="no JSON"),
    pytest.param(b'{"Pod":{"metadata":{"na', "is not JSON", id="truncated"),
    pytest.param(b"", "is not JSON", id="nothing"),
    pytest.param(b"\xff\xfe{}", "is not JSON", id="not UTF-8"),
    pytest.param(b"[1, 2]", "object", id="no object"),
    pytest.param(b'{"NodeNames":["n1"]}', "pod", id="no pod"),
    pytest.param(b'{"Pod":{"metadata":{"name":5}},"NodeNames":[]}', "metadata.name", id="a pod that is none"),
    pytest.param(b'{"Pod":{},"NodeNames":["n1"]}', "metadata.name is missing", id="a pod without a name"),
    pytest.param(
        b'{"Pod":{"metadata":{"name":"a"}}}', "expected Nodes or NodeNames, got neither", id="no nodes at all"
    ),
    pytest.param(b'{"Pod":{"metadata":{"name":"a"}},"NodeNames":{"n1":1}}', "NodeNames", id="no list"),
    pytest.param(b'{"Pod":{"metadata":{"name":"a"}},"Nodes":{"items":[3]}}', "Nodes", id="no nodes in it"),
]


@pytest.mark.parametrize(("body", "words"), BROKEN)
async def test_filter_of_a_broken_body(body, words):
    async with serving(*NODES) as stage:
        reply = await stage.ask("/p/filter", body)
        assert reply.status == 200
        assert reply.json["Error"].startswith(ERROR.format("filter"))
        assert words.lower() in reply.json["Error"].lower()
        assert (await stage.ask("/p/filter", asking(pod(), "n1"))).json["NodeNames"] == ["n1"]


@pytest.mark.parametrize(("body", "words"), BROKEN)
async def test_prioritize_of_a_broken_body(body, words):
    async with serving(*NODES) as stage:
        reply = await stage.ask("/p/prioritize", body)
    assert reply.status == 400
    assert words.lower() in reply.body.decode().lower()


@pytest.mark.parametrize("body", [b"{not JSON", b"", b'{"NodeNameToMetaVictims":{}}', b'{"Pod":{}}'])
async def test_preempt_of_a_broken_body(body):
    async with serving(*NODES) as stage:
        assert (await stage.ask("/p/preempt", body)).status == 400


@pytest.mark.parametrize("body", [b"{not JSON", b"", b"[]", b'{"Node":"n1"}'])
async def test_bind_of_a_broken_body(body):
    async with serving(*NODES) as stage:
        reply = await stage.ask("/p/bind", body)
        assert reply.status == 200
        assert reply.json["Error"].startswith(ERROR.format("bind"))
        assert stage.api.bound == {}


async def test_no_nodes_and_only_unknown_ones():
    async with serving(*NODES) as stage:
        none = (await stage.ask("/p/filter", asking(pod()))).json
        assert (none["NodeNames"], none["FailedNodes"], none["Error"]) == ([], {}, "")
        assert (await stage.ask("/p/prioritize", asking(pod()))).json == []
        strange = (await stage.ask("/p/filter", asking(pod(), "x", "y"))).json
        assert strange["NodeNames"] == []
        assert strange["FailedNodes"].keys() == {"x", "y"}
        scores = (await stage.ask("/p/prioritize", asking(pod(), "x"))).json
        assert scores == [{"Host": "x", "Score": 0}]


async def test_paths_and_methods_that_are_not_served():
    async with serving(*NODES) as stage:
        reply = await stage.ask("/p/filtre", asking(pod(), "n1"))
        assert reply.status == 404
        assert "/p/filter" in reply.body.decode()
        assert (await stage.ask("/p/filter", method="GET")).status == 405
        assert (await stage.ask("/metrics", asking(pod(), "n1"))).status == 405
        assert (await stage.ask("/healthz", method="GET")).status == 200


async def test_a_body_of_200_megabytes_is_refused_before_it_is_read():
    async with serving(*NODES, max_body=2**20) as stage:
        head = b"POST /p/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 209715200\r\n\r\n{"
        reply = await stage.send(head)
        assert reply.status == 413
        assert "larger than 1 MiB" in reply.body.decode()
        chunked = b"POST /p/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reply = await stage.send(chunked + b"200000\r\n" + b" " * 0x200000 + b"\r\n")
        assert reply.status == 413
        assert (await stage.ask("/p/filter", asking(pod(), "n1"))).json["NodeNames"] == ["n1"]


async def test_what_is_not_http_is_refused():
    async with serving(*NODES) as stage:
        assert (await stage.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")).status == 400


async def test_a_connection_serves_one_request_after_another():
    async with serving(*NODES) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        for verb in ("filter", "bind", "prioritize"):
            stage.api.pods["/api/v1/namespaces/default/pods/a"] = pod()
            body = b'{"x":1}' if verb == "bind" else b'{"Pod":{"metadata":{"name":"a"}},"NodeNames":["n1"]}'
            head = f"POST /p/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await reply_of(reader)).status == 200
        writer.close()


async def test_a_request_may_come_in_any_pieces():
    body = json.dumps(asking(pod(), "n1", "n2")).encode()
    request = f"POST /p/filter HTTP/1.1\r\nContent-Length: {len(body)}\r\nHost: x\r\n\r\n".encode() + body
    async with serving(*NODES) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        for size in (1, 7, 40, 100, len(request)):
            for start in range(0, len(request), size):
                writer.write(request[start : start + size])
                await asyncio.sleep(0)
            assert (await reply_of(reader)).json["NodeNames"] == ["n1", "n2"]
        writer.write(request + request)
        for _ in range(2):
            assert (await reply_of(reader)).json["NodeNames"] == ["n1", "n2"]
        writer.close()


async def test_before_the_cluster_is_known():
    async with serving(*NODES, is_synced=False) as stage:
        reply = await stage.ask("/p/filter", asking(pod(), "n1"))
        assert reply.json["Error"] == ERROR.format("filter") + "the extender has not read the cluster yet"
        scores = await stage.ask("/p/prioritize", asking(pod(), "n1"))
        assert scores.json == [{"Host": "n1", "Score": 0}]
        bound = await stage.ask("/p/bind", binding(pod(), "n1"))
        assert "has not read the cluster yet" in bound.json["Error"]


class Raises(Plugin):
    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        raise KeyError("zone")

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        raise ZeroDivisionError("no weights")

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        raise RuntimeError("reserve broke")


class Hangs(Plugin):
    """Sleeps for longer than anyone waits."""

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        time.sleep(5)
        return iter(())

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        time.sleep(5)
        return 0


async def test_a_plugin_that_raises():
    async with serving(*NODES, plugins={"X": Raises}, profiles=[alone("X")]) as stage:
        filtered = (await stage.ask("/p/filter", asking(pod(), "n1"))).json
        assert filtered["Error"].startswith(ERROR.format("filter"))
        assert 'running "X" filter plugin: KeyError' in filtered["Error"]
        scores = (await stage.ask("/p/prioritize", asking(pod(), "n1", "n2"))).json
        assert scores == [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}]
        args = {"Pod": pod(), "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}]}}}
        assert (await stage.ask("/p/preempt", args)).status == 500
        page = (await stage.ask("/metrics", method="GET")).body.decode()
    assert 'stowplan_extender_requests_total{path="/p/filter",result="error"} 1' in page
    assert 'stowplan_extender_requests_total{path="/p/prioritize",result="error"} 1' in page


async def test_a_plugin_that_hangs_is_cut_off():
    async with serving(*NODES, plugins={"X": Hangs}, profiles=[alone("X")], budget=0.2) as stage:
        began = time.monotonic()
        filtered = (await stage.ask("/p/filter", asking(pod(), "n1"))).json
        assert "took longer than its budget of 0." in filtered["Error"]
        scores = (await stage.ask("/p/prioritize", asking(pod(), "n1"))).json
        assert scores == [{"Host": "n1", "Score": 0}]
        assert time.monotonic() - began < 3


class Slow(Plugin):
    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        await asyncio.sleep(20)
        return None


async def test_a_binding_that_takes_too_long_is_undone():
    async with serving(*NODES, plugins={"X": Slow}, profiles=[alone("X")], budget=0.2) as stage:
        await stage.ask("/p/filter", asking(pod(), "n1"))
        reply = await stage.ask("/p/bind", binding(pod(), "n1"))
        assert reply.json["Error"] == ERROR.format("bind") + "took longer than the time budget of 0.2s"
        assert stage.extender.scheduler.cluster.assumed_count == 0
        assert stage.api.bound == {}


@pytest.fixture
def pki(tmp_path):
    """Files of a server and of two clients; only one of these is of the CA that the server trusts."""
    ours, others = Authority("ours"), Authority("others")
    (tmp_path / "ca.crt").write_text(ours.certificate)
    server = ours.issue("extender", "127.0.0.1").write(tmp_path, "server")
    known = ours.issue("kube-scheduler").write(tmp_path, "known")
    stranger = others.issue("kube-scheduler").write(tmp_path, "stranger")
    files = {"tls_cert_file": str(server[0]), "tls_private_key_file": str(server[1])}
    return files | {"client_ca_file": str(tmp_path / "ca.crt")}, {"known": known, "stranger": stranger}


async def answers(port, ca, certificate):
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(*certificate)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        return (await reply_of(reader)).status == 200
    finally:
        writer.close()


async def test_only_clients_with_a_certificate_get_an_answer(pki):
    options, clients = pki
    async with serving(*NODES, **options) as stage:
        assert await answers(stage.port, options["client_ca_file"], clients["known"])
        for certificate in (None, clients["stranger"]):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await answers(stage.port, options["client_ca_file"], certificate)


async def test_tls_without_client_certificates(pki):
    options, _ = pki
    ca = options.pop("client_ca_file")
    async with serving(*NODES, **options) as stage:
        assert await answers(stage.port, ca, None)


async def test_probes_can_have_a_port_of_their_own(pki):
    options, _ = pki
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with serving(*NODES, **options, health_port=port) as stage:
        plain = Stage(stage.extender, stage.api, port)
        assert (await plain.ask("/healthz", method="GET")).status == 200
        assert (await plain.ask("/metrics", method="GET")).status == 200
        assert (await plain.ask("/p/filter", asking(pod(), "n1"))).status == 404
