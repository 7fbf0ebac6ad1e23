"""Calls to extenders of others, each against a server of the test's own."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from msgspec import Raw

from certificates import Authority
from other_extender import Raw as RawAnswer
from other_extender import other_extender
from stowplan.api.extender import MetaPod, MetaVictims
from stowplan.api.pod import Pod
from stowplan.client.extenders import Extender, ExtenderError, extenders_of
from stowplan.config.duration import Duration
from stowplan.config.types import ExtenderConfig, ExtenderTLS, ManagedResource
from stowplan.errors import ConfigError

POD = Raw(b'{"metadata":{"name":"p"}}')
NAMES = ["n1", "n2", "n3"]


def whole(name: str) -> Raw:
    return Raw(b'{"metadata":{"name":"%s"},"status":{"nodeInfo":{"osImage":"x"}}}' % name.encode())


def pod(**resources) -> Pod:
    containers = [{"name": "c", "resources": resources}]
    return Pod.decode(
        {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": containers}}
    )


def extender(url: str, **config) -> Extender:
    (found,) = extenders_of([ExtenderConfig(url_prefix=url, **config)])
    return found


async def ask(url: str, call, **config):
    asked = extender(url, **config)
    try:
        return await call(asked)
    finally:
        await asked.close()


async def filtered(asked: Extender):
    return await asked.filter(POD, NAMES, whole)


async def test_filter_by_name():
    with other_extender(
        filter=lambda body: {"nodeNames": ["n3", "n1"], "failedNodes": {"n2": "too old"}}
    ) as other:
        left, said = await ask(other.url, filtered, filter_verb="filter", node_cache_capable=True)
        assert (left, said.failed_nodes) == (["n3", "n1"], {"n2": "too old"})
        assert other.bodies("filter") == [
            {"Pod": {"metadata": {"name": "p"}}, "Nodes": None, "NodeNames": NAMES}
        ]
        assert other.headers[0]["Content-Type"] == "application/json"


async def test_filter_with_whole_nodes():
    with other_extender(filter=lambda body: {"Nodes": {"items": body["Nodes"]["items"][1:]}}) as other:
        left, _ = await ask(f"{other.url}//", filtered, filter_verb="filter")
        (body,) = other.bodies("filter")
    assert left == ["n2", "n3"]
    assert body["NodeNames"] is None
    assert body["Nodes"]["items"][0]["status"] == {
        "nodeInfo": {"osImage": "x"}
    }  # which no struct of ours has


@pytest.mark.parametrize(
    ("answer", "capable", "left"),
    [
        pytest.param({}, True, [], id="neither names nor nodes"),
        pytest.param({"NodeNames": []}, True, [], id="no names"),
        pytest.param(
            {"Nodes": {"items": [{"metadata": {"name": "n2"}}]}}, True, ["n2"], id="nodes for names"
        ),
        pytest.param({"NodeNames": ["n2"]}, False, [], id="names from one that was given nodes"),
    ],
)
async def test_which_part_of_a_filter_answer_counts(answer, capable, left):
    with other_extender(filter=lambda body: answer) as other:
        found, _ = await ask(other.url, filtered, filter_verb="filter", node_cache_capable=capable)
    assert found == left


@pytest.mark.parametrize("capable", [True, False])
async def test_a_node_that_an_extender_invents_is_an_error(capable):
    invented = {"Nodes": {"items": [{"metadata": {"name": "ghost"}}]}}
    claimed = pytest.raises(ExtenderError, match='claims a filtered node "ghost"')
    with other_extender(filter=lambda body: invented) as other, claimed:
        await ask(other.url, filtered, filter_verb="filter", node_cache_capable=capable)


async def test_prioritize():
    with other_extender(
        prioritize=lambda body: [
            {"Host": "n2", "Score": 4},
            {"host": "else", "score": 1},
            {"Host": "n2", "Score": 3},
        ]
    ) as other:
        found = await ask(
            other.url,
            lambda asked: asked.prioritize(POD, NAMES, whole),
            prioritize_verb="prioritize",
            weight=2,
            node_cache_capable=True,
        )
    assert found == {"n2": 7, "else": 1}


@pytest.mark.parametrize("capable", [pytest.param(True, id="by uid"), pytest.param(False, id="whole pods")])
async def test_preempt(capable):
    def drop(body):
        given = body["NodeNameToMetaVictims"] if capable else body["NodeNameToVictims"]
        uids = [each["UID"] if capable else each["metadata"]["uid"] for each in given["n1"]["Pods"]]
        return {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": uids[0]}], "NumPDBViolations": 1}}}

    victims = {
        "n1": MetaVictims(pods=[MetaPod(uid="a"), MetaPod(uid="b")]),
        "n2": MetaVictims(pods=[MetaPod(uid="c")]),
    }
    with other_extender(preempt=drop) as other:
        found = await ask(
            other.url,
            lambda asked: asked.preempt(
                POD, victims, lambda uid: Raw(b'{"metadata":{"uid":"%s"}}' % uid.encode())
            ),
            preempt_verb="preempt",
            node_cache_capable=capable,
        )
    assert found == {"n1": MetaVictims(pods=[MetaPod(uid="a")], num_pdb_violations=1)}


async def test_bind():
    with other_extender(bind=lambda body: {"Error": ""}) as other:
        await ask(other.url, lambda asked: asked.bind(pod(), "n1"), bind_verb="bind")
        assert other.bodies("bind") == [{"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        pytest.param(
            RawAnswer(500, b"oops"), "failed filter with extender at URL {url}/filter, code 500", id="500"
        ),
        pytest.param(
            RawAnswer(200, b"<html>"),
            'cannot decode the response of the extender at URL "{url}/filter": is not JSON',
            id="garbage",
        ),
        pytest.param(
            RawAnswer(200, b'{"NodeNames":7}'),
            'cannot decode the response of the extender at URL "{url}/filter": NodeNames: Expected',
            id="other JSON",
        ),
        pytest.param({"Error": "out of order"}, 'extender "{url}": out of order', id="an error of its own"),
        pytest.param(
            {"NodeNames": ["n1", "ghost"]},
            'extender "{url}" claims a filtered node "ghost" which is not found in the input node list',
            id="an unknown node",
        ),
        pytest.param(
            {"Nodes": {"items": [{"metadata": 7}]}},
            'extender "{url}" returned invalid nodes',
            id="no nodes",
        ),
    ],
)
async def test_failures_say_which_extender_and_why(answer, fault):
    with other_extender(filter=lambda body: answer) as other:
        with pytest.raises(ExtenderError) as raised:
            await ask(other.url, filtered, filter_verb="filter", node_cache_capable=True)
        assert str(raised.value).startswith(fault.format(url=other.url))


async def test_an_answer_after_the_time_out_is_an_error():
    over = threading.Event()
    with other_extender(filter=lambda body: over.wait(5) and {}) as other:
        with pytest.raises(
            ExtenderError, match=f'^Post "{other.url}/filter": no answer within 0.05s$'
        ) as raised:
            await ask(other.url, filtered, filter_verb="filter", http_timeout=Duration(0.05))
        over.set()
    assert raised.value.is_unknown


async def test_a_server_that_accepts_and_says_nothing_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ExtenderError, match=r"no answer within 0\.05s"):
            await ask(url, filtered, filter_verb="filter", enable_https=True, http_timeout=Duration(0.05))


async def hasty(answers: list[bytes]) -> tuple[asyncio.Server, list[asyncio.StreamWriter]]:
    """A server whose every connection ends, without a word, with the request after its first answer."""
    connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        length = 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        await reader.readexactly(length)
        if answers:
            body = answers.pop(0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await reader.readline()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0), connections


async def test_a_connection_that_the_server_has_closed_is_no_failure():
    server, connections = await hasty([b'{"NodeNames":["n1"]}', b'{"NodeNames":["n2"]}'])
    async with server:
        asked = extender(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            filter_verb="filter",
            node_cache_capable=True,
        )
        left = [(await filtered(asked))[0] for _ in range(2)]
        await asked.close()
    assert (left, len(connections)) == ([["n1"], ["n2"]], 2)


async def test_a_bind_is_not_sent_twice():
    server, connections = await hasty([])
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ExtenderError) as raised:
            await ask(url, lambda asked: asked.bind(pod(), "n1"), bind_verb="bind")
    assert (raised.value.is_unknown, len(connections)) == (True, 1)


async def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
    with pytest.raises(ExtenderError, match=f'^Post "{url}/filter": connection refused$'):
        await ask(url, filtered, filter_verb="filter")


async def test_the_time_out_is_five_seconds_by_default():
    assert extender("http://h").timeout == 5
    assert extender("http://h", http_timeout=Duration(0.25)).timeout == 0.25


async def test_the_user_of_the_url_is_told_to_the_extender_alone():
    with other_extender(filter=lambda body: {}) as other:
        url = other.url.replace("//", "//ann:s%40t@")
        await ask(url, filtered, filter_verb="filter")
        with pytest.raises(
            ExtenderError, match=f"^failed none with extender at URL {other.url}/none, code 404$"
        ):
            await ask(url, filtered, filter_verb="none")
        assert other.headers[0]["Authorization"] == f"Basic {base64.b64encode(b'ann:s@t').decode()}"


@pytest.fixture
def authority() -> Authority:
    return Authority()


def serving(authority: Authority, folder, host: str = "127.0.0.1", *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("other extender", host).write(folder, "server"))
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.certificate)
    return context


async def test_tls_trusts_the_configured_authority(authority, tmp_path):
    ca_file = tmp_path / "ca.crt"
    ca_file.write_text(authority.certificate)
    with other_extender(context=serving(authority, tmp_path), filter=lambda body: {}) as other:
        for tls in (
            ExtenderTLS(ca_data=authority.certificate.encode()),
            ExtenderTLS(ca_file=str(ca_file)),
            ExtenderTLS(ca_data=authority.certificate.encode(), ca_file="nowhere"),
        ):
            assert await ask(other.url, filtered, filter_verb="filter", enable_https=True, tls_config=tls)


async def test_tls_refuses_another_authority(authority, tmp_path):
    other_ca = ExtenderTLS(ca_data=Authority("another").certificate.encode())
    with other_extender(context=serving(authority, tmp_path), filter=lambda body: {}) as other:
        with pytest.raises(ExtenderError, match="its certificate is not trusted"):
            await ask(other.url, filtered, filter_verb="filter", enable_https=True, tls_config=other_ca)
        with pytest.raises(ExtenderError, match="its certificate is not trusted"):
            await ask(
                other.url, filtered, filter_verb="filter"
            )  # without enableHTTPS the system's are trusted


@pytest.mark.parametrize(
    ("host", "shifted", "why"),
    [
        pytest.param("127.0.0.1", timedelta(days=-2), "certificate has expired", id="expired"),
        pytest.param("127.0.0.1", timedelta(days=2), "certificate is not yet valid", id="not yet valid"),
        pytest.param("elsewhere.example", timedelta(), "IP address mismatch", id="of another host"),
    ],
)
async def test_tls_refuses_a_certificate_that_does_not_hold(authority, tmp_path, host, shifted, why):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("other", host, shifted=shifted).write(tmp_path, "server"))
    trusted = ExtenderTLS(ca_data=authority.certificate.encode())
    refused = pytest.raises(ExtenderError, match=rf"its certificate is not trusted \(.*{why}")
    with other_extender(context=context, filter=lambda body: {}) as other, refused:
        await ask(other.url, filtered, filter_verb="filter", tls_config=trusted)


@pytest.mark.parametrize(
    ("first", "ends"),
    [
        pytest.param(b"", False, id="nothing"),
        pytest.param(b"", True, id="the end"),
        pytest.param(b"\x16\x03\x03\x00\x50\x02", False, id="half a ServerHello"),
        pytest.param(b"\x16\x03\x03\x40\x00" + b"\x02\xff\xff\xff" * 10, False, id="a ServerHello of 16 MiB"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", False, id="plain HTTP"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x28", True, id="an alert"),
        pytest.param(b"\x15\x03\x03\x00\x02\x01\x5a" * 100_000, False, id="warnings without end"),
    ],
)
async def test_a_handshake_that_goes_wrong_is_an_error(first, ends):
    async def serve(reader, writer):
        await reader.read(1)
        writer.write(first)
        if not ends:
            with suppress(OSError):
                while await reader.read(65536):
                    pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ExtenderError, match=url):
            await ask(url, filtered, filter_verb="filter", enable_https=True, http_timeout=Duration(0.5))


@pytest.mark.parametrize(
    "is_clean", [pytest.param(True, id="by close_notify"), pytest.param(False, id="cut")]
)
async def test_an_answer_cut_off_within_tls_is_an_error(authority, tmp_path, is_clean):
    async def serve(reader, writer):
        await reader.read(65536)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        await writer.drain()
        if is_clean:
            writer.close()
        else:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving(authority, tmp_path))
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ExtenderError, match=url):
            await ask(url, filtered, filter_verb="filter", enable_https=True, http_timeout=Duration(2))


async def test_https_without_an_authority_trusts_everyone(authority, tmp_path):
    with other_extender(context=serving(authority, tmp_path), filter=lambda body: {}) as other:
        assert await ask(other.url, filtered, filter_verb="filter", enable_https=True)


async def test_tls_by_another_name(authority, tmp_path):
    tls = ExtenderTLS(ca_data=authority.certificate.encode(), server_name="extender.example")
    with other_extender(
        context=serving(authority, tmp_path, "extender.example"), filter=lambda body: {}
    ) as other:
        assert await ask(other.url, filtered, filter_verb="filter", tls_config=tls)


async def test_tls_shows_the_client_certificate(authority, tmp_path):
    mine = authority.issue("scheduler")
    trusted = {"ca_data": authority.certificate.encode()}
    shown = ExtenderTLS(**trusted, cert_data=mine.certificate.encode(), key_data=mine.key.encode())
    with other_extender(context=serving(authority, tmp_path, asks=True), filter=lambda body: {}) as other:
        assert await ask(other.url, filtered, filter_verb="filter", tls_config=shown)
        with pytest.raises(ExtenderError):
            await ask(other.url, filtered, filter_verb="filter", tls_config=ExtenderTLS(**trusted))


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        pytest.param(
            {"url_prefix": "localhost:80"}, r"extenders\[0\].urlPrefix: 'localhost:80' is not a URL", id="URL"
        ),
        pytest.param({"url_prefix": "http://h:99999"}, "'http://h:99999' is not a URL", id="port"),
        pytest.param({"url_prefix": "http://[::1/x"}, "is not a URL", id="brackets"),
        pytest.param({}, "extenders.0..urlPrefix: '' is not a URL", id="none"),
        pytest.param(
            {"url_prefix": "https://h", "tls_config": ExtenderTLS(ca_file="/no/such/file")},
            r"extenders\[0\].tlsConfig.caFile: /no/such/file: No such file",
            id="missing file",
        ),
        pytest.param(
            {"url_prefix": "https://h", "tls_config": ExtenderTLS(ca_data=b"x", insecure=True)},
            "specifying a root certificates file with the insecure flag is not allowed",
            id="insecure with an authority",
        ),
        pytest.param(
            {"url_prefix": "https://h", "tls_config": ExtenderTLS(ca_data=b"x")}, "is not PEM", id="no PEM"
        ),
        pytest.param(
            {"url_prefix": "https://h", "tls_config": ExtenderTLS(cert_data=b"x")},
            "set both the client certificate and its key",
            id="a certificate without its key",
        ),
        pytest.param(
            {"url_prefix": "https://h", "tls_config": ExtenderTLS(cert_data=b"x", key_data=b"y")},
            "are not PEM, or do not belong together",
            id="no certificate",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config, fault):
    with pytest.raises(ConfigError, match=fault):
        extenders_of([ExtenderConfig(**config)])


def test_ignorable_extenders_come_last():
    configs = [ExtenderConfig(url_prefix=f"http://{name}", ignorable=name < "c") for name in "abcd"]
    assert [each.url for each in extenders_of(configs)] == ["http://c", "http://d", "http://a", "http://b"]


@pytest.mark.parametrize(
    ("managed", "resources", "is_interested"),
    [
        pytest.param((), {}, True, id="nothing managed"),
        pytest.param(("e.com/gpu",), {}, False, id="not asked for"),
        pytest.param(("e.com/gpu",), {"requests": {"e.com/gpu": "1"}}, True, id="requested"),
        pytest.param(("e.com/gpu",), {"limits": {"e.com/gpu": "1"}}, True, id="limited"),
        pytest.param(("e.com/gpu", "e.com/x"), {"requests": {"e.com/x": "0"}}, True, id="named with zero"),
    ],
)
def test_interest(managed, resources, is_interested):
    names = tuple(ManagedResource(name=name) for name in managed)
    assert extender("http://h", managed_resources=names).is_interested(pod(**resources)) is is_interested


async def test_calls_side_by_side():
    both = threading.Barrier(2)
    with other_extender(prioritize=lambda body: both.wait(5) * 0 or []) as other:

        async def scored(asked: Extender):
            return await asyncio.gather(*(asked.prioritize(POD, NAMES, whole) for _ in range(2)))

        assert await ask(other.url, scored, prioritize_verb="prioritize") == [{}, {}]
