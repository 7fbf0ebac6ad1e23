"""Clients that flood, stall or lie to the API server's port, with and without its token."""

# ruff: noqa: E501, SIM117  one case a line

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.http import MAX_BODY, Endpoint, Pair, make_certificate, serve
from stowplan.http11.server import Limits

TOKEN = "secret"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
QUICK = Limits(
    handshake_seconds=1, header_seconds=1, body_seconds=2, slow_reader_seconds=1, linger_seconds=0.2
)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_certificate()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def of(cls, front: Endpoint) -> AsyncIterator[Client]:
        trusted = ssl.create_default_context(cadata=front.certificate.decode()) if front.certificate else None
        reader, writer = await asyncio.open_connection(front.host, front.port, ssl=trusted)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def all_said(self, seconds: float = 5) -> bytes:
        """All until the server closes the connection."""
        found = b""
        try:
            async with asyncio.timeout(seconds):
                while chunk := await self.reader.read(65536):
                    found += chunk
        except ConnectionError:
            pass
        return found

    async def answer(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
        return int(head.split()[1]), await self.reader.readexactly(length)


def request(method: str, path: str, body: bytes = b"", headers: str = "", token: str = TOKEN) -> bytes:
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{auth}{length}{headers}\r\n".encode() + body


async def is_well(front: Endpoint) -> bool:
    async with Client.of(front) as client:
        client.writer.write(request("GET", "/readyz"))
        return await client.answer() == (200, b"ok")


@pytest.fixture
async def front(pair: Pair) -> AsyncIterator[Endpoint]:
    async with serve(ApiServer(), tls=pair, token=TOKEN, limits=QUICK) as front:
        yield front
        assert await is_well(front)


# Whom it knows.


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("Authorization: bearer secret\r\n", 200),
        ("AUTHORIZATION: BEARER secret\r\n", 200),
        ("authorization:   BeArEr secret  \r\n", 200),
        ("Authorization: Bearer secret\r\nAuthorization: Bearer x\r\n", 200),
        ("Authorization: Bearer x\r\nAuthorization: Bearer secret\r\n", 401),
        ("Authorization: Bearer  secret\r\n", 401),
        ("Authorization: Basic secret\r\n", 401),
        ("Authorization: Bearersecret\r\n", 401),
        ("Authorization: secret\r\n", 401),
        ("Authorization: Bearer \r\n", 401),
        ("Authorization: Bearer s\xe9cret\r\n", 401),
    ],
)
async def test_a_bearer_is_known_as_kube_apiserver_knows_it(
    front: Endpoint, headers: str, expected: int
) -> None:
    async with Client.of(front) as client:
        client.writer.write(request("GET", "/api/v1/nodes", headers=headers, token=""))
        assert (await client.answer())[0] == expected


async def test_a_trailer_is_no_header(front: Endpoint) -> None:
    data = request("POST", CONFIG_MAPS, headers="Transfer-Encoding: chunked\r\n", token="")
    async with Client.of(front) as client:
        client.writer.write(data + b"2\r\n{}\r\n0\r\nAuthorization: Bearer secret\r\n\r\n")
        assert (await client.answer())[0] == 401


@pytest.mark.parametrize(
    "path", ["/readyz", "/version", "/api", "/api/v1/nodes", CONFIG_MAPS, "/api/v1/nodes?watch=1"]
)
@pytest.mark.parametrize("token", [TOKEN, ""])
async def test_a_head_has_no_body(front: Endpoint, path: str, token: str) -> None:
    async with Client.of(front) as client:
        client.writer.write(request("HEAD", path, token=token) + request("GET", "/readyz"))
        first = await client.reader.readuntil(b"\r\n\r\n")
        assert re.match(rb"HTTP/1.1 (200|401|405) ", first)
        assert await client.answer() == (200, b"ok")


# Too much at once.


@pytest.mark.parametrize("token", [TOKEN, ""])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_too_large_is_rejected_before_it_is_read(
    front: Endpoint, token: str, is_chunked: bool
) -> None:
    """With kube-apiserver's words; nothing beyond the limit is kept, and nothing at all without a token."""
    async with Client.of(front) as client:
        if is_chunked:
            client.writer.write(
                request("POST", CONFIG_MAPS, headers="Transfer-Encoding: chunked\r\n", token=token)
            )
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            client.writer.write(chunk * (MAX_BODY // 65536 + 1))
        else:
            lie = f"Content-Length: {10**12}\r\n"
            client.writer.write(request("POST", CONFIG_MAPS, headers=lie, token=token))
        said = await client.all_said()
    if not token:
        assert b" 401 " in said
        return
    assert b" 413 Request Entity Too Large\r\n" in said
    body = json.loads(said.partition(b"\r\n\r\n")[2])
    assert body == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Request entity too large: limit is 3145728", "reason": "RequestEntityTooLarge", "code": 413,
    }  # fmt: skip


async def test_the_largest_body_is_read(front: Endpoint) -> None:
    body = b'{"metadata":{"name":"a"}}'
    async with Client.of(front) as client:
        client.writer.write(request("POST", CONFIG_MAPS, body + b" " * (MAX_BODY - len(body))))
        assert (await client.answer())[0] == 201


@pytest.mark.parametrize("token", [TOKEN, ""])
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"GET /" + b"a" * 200_000, id="a long URL"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, id="a long header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a" * 200_000, id="a long name"),
        pytest.param(
            b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(3000)), id="many headers"
        ),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"h: x\r\n" * 30_000, id="one header often"),
    ],
)
async def test_headers_without_end_are_rejected(front: Endpoint, start: bytes, token: str) -> None:
    async with Client.of(front) as client:
        line, _, rest = start.partition(b"\r\n")
        auth = b"Authorization: Bearer " + token.encode() + b"\r\n" if rest else b""
        client.writer.write(line + (b"\r\n" + auth + rest if rest else b""))
        said = await client.all_said()
    assert b" 431 " in said


@pytest.mark.parametrize("token", [TOKEN, ""])
async def test_pipelined_requests_are_not_hoarded(pair: Pair, token: str) -> None:
    """A client that asks without reading is read from no more, before all that it asks is held."""
    server = ApiServer()
    for number in range(50):
        body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 10_000}}
        await server.handle(Request.of("POST", CONFIG_MAPS, body))
    async with serve(server, tls=pair, token=TOKEN, limits=QUICK._replace(slow_reader_seconds=60)) as front:
        async with Client.of(front) as client:
            client.writer.transport.set_write_buffer_limits(0)
            data, sent = request("GET", CONFIG_MAPS, token=token) * 100, 0
            try:
                while sent < 50_000_000:
                    client.writer.write(data)
                    sent += len(data)
                    await asyncio.wait_for(client.writer.drain(), 1)
            except TimeoutError:
                pass
            assert sent < 50_000_000
            assert await is_well(front)


async def test_requests_wait_behind_a_watch_in_bounds(front: Endpoint) -> None:
    async with Client.of(front) as client:
        client.writer.write(request("GET", "/api/v1/nodes?watch=1"))
        await client.reader.readuntil(b"\r\n\r\n")
        body = request("POST", CONFIG_MAPS, b'{"metadata":{"name":"a"},"x":"' + b"x" * 60_000 + b'"}') * 20
        sent = 0
        try:
            while sent < 50_000_000:
                client.writer.write(body)
                sent += len(body)
                await asyncio.wait_for(client.writer.drain(), 1)
        except TimeoutError:
            pass
        assert sent < 50_000_000


# Too slow.


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /readyz HTTP/1.1\r\n", id="half of the headers"),
        pytest.param(b"\r\n\r\n\r\n", id="empty lines"),
    ],
)
async def test_a_client_that_says_little_is_dropped(front: Endpoint, start: bytes) -> None:
    async with Client.of(front) as client:
        client.writer.write(start)
        began = time.monotonic()

        async def trickle() -> None:
            while True:
                await asyncio.sleep(0.2)
                if start:
                    client.writer.write(b"X-A: b\r\n" if b"GET" in start else b"\r\n")

        slowly = asyncio.ensure_future(trickle())
        await client.all_said(10)
        slowly.cancel()
        assert time.monotonic() - began < 8


async def test_a_body_that_never_ends_is_dropped(front: Endpoint) -> None:
    async with Client.of(front) as client:
        client.writer.write(request("POST", CONFIG_MAPS, headers="Content-Length: 100\r\n") + b"{")
        await client.all_said(10)


async def test_a_handshake_that_never_ends_is_dropped(front: Endpoint) -> None:
    reader, writer = await asyncio.open_connection(front.host, front.port)
    writer.write(b"\x16\x03\x01")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_reader_that_takes_nothing_is_dropped(pair: Pair) -> None:
    server = ApiServer()
    for number in range(60):
        body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 900_000}}
        await server.handle(Request.of("POST", CONFIG_MAPS, body))
    limits = QUICK._replace(unread=200_000_000)
    async with serve(server, tls=pair, token=TOKEN, limits=limits) as front:
        async with Client.of(front) as list_reader, Client.of(front) as watcher:
            list_reader.writer.write(request("GET", CONFIG_MAPS))
            watcher.writer.write(request("GET", f"{CONFIG_MAPS}?watch=1"))
            await asyncio.sleep(0.5)
            for client in (list_reader, watcher):
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(4)
            for client in (list_reader, watcher):
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                said = await client.all_said(10)
                assert len(said) < 50_000_000  # less than all of it, and the connection is closed
        assert await is_well(front)


async def test_large_answers_that_nobody_reads_are_bounded(pair: Pair) -> None:
    """Those who come when too much is unread are told to come again, unless somebody has been too slow."""
    server = ApiServer()
    for number in range(20):
        body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 900_000}}
        await server.handle(Request.of("POST", CONFIG_MAPS, body))
    limits = QUICK._replace(unread=50_000_000, header_seconds=5, slow_reader_seconds=20)
    async with serve(server, tls=pair, token=TOKEN, limits=limits) as front:
        async with Client.of(front) as one, Client.of(front) as two, Client.of(front) as three:
            for client in (one, two):
                client.writer.write(request("GET", CONFIG_MAPS))
                await client.reader.readuntil(b"\r\n\r\n")
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            three.writer.write(request("GET", CONFIG_MAPS))
            status, said = await three.answer()
            assert (status, json.loads(said)["reason"]) == (429, "TooManyRequests")
            await asyncio.sleep(5.5)
            three.writer.write(request("GET", CONFIG_MAPS))
            assert (await three.answer())[0] == 200


# Too many.


@pytest.mark.parametrize("what", ["handshakes", "silent", "without a token", "idle"])
async def test_no_number_of_connections_locks_others_out(pair: Pair, what: str) -> None:
    limits = Limits(connections=20)
    async with serve(ApiServer(), tls=pair, token=TOKEN, limits=limits) as front:
        opened = []
        for _ in range(60):
            if what == "handshakes":
                opened.append((await asyncio.open_connection(front.host, front.port))[1])
                continue
            trusted = ssl.create_default_context(cadata=front.certificate.decode())
            reader, writer = await asyncio.open_connection(front.host, front.port, ssl=trusted)
            opened.append(writer)
            if what != "silent":
                writer.write(request("GET", "/api/v1/nodes", token=TOKEN if what == "idle" else "x"))
                await reader.readuntil(b"\r\n\r\n")
        assert await is_well(front)
        for writer in opened:
            writer.transport.abort()


async def test_watches_are_not_dropped_for_newcomers(pair: Pair) -> None:
    async with serve(ApiServer(), tls=pair, token=TOKEN, limits=Limits(connections=4)) as front:
        async with Client.of(front) as watcher:
            watcher.writer.write(request("GET", "/api/v1/namespaces?watch=1"))
            await watcher.reader.readuntil(b"kube-system")
            for _ in range(20):
                assert await is_well(front)
            async with Client.of(front) as writer:
                writer.writer.write(request("POST", "/api/v1/namespaces", b'{"metadata":{"name":"new-one"}}'))
                assert (await writer.answer())[0] == 201
            await asyncio.wait_for(watcher.reader.readuntil(b'"new-one"'), 5)


# Nonsense.


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"GET /api/v1/nodes HTTP/9.9\r\n\r\n", rb"400", id="another version"),
        pytest.param(b"\x16\x03\x01\x02\x00" * 20, rb"400", id="TLS in TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", rb"400", id="HTTP/2"),
        pytest.param(request("GET", "/readyz", headers="Content-Length: 5\r\nContent-Length: 6\r\n"), rb"400", id="two lengths"),
        pytest.param(request("POST", CONFIG_MAPS, headers="Content-Length: -1\r\n"), rb"400", id="a negative length"),
        pytest.param(request("POST", CONFIG_MAPS, headers="Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), rb"400", id="length and chunks"),
        pytest.param(request("POST", CONFIG_MAPS, headers="Transfer-Encoding: chunked\r\n") + b"zz\r\n", rb"400", id="no chunk"),
        pytest.param(request("GET", "/api/v1/nodes", headers="X: a\0b\r\n"), rb"400", id="a NUL in a header"),
        pytest.param(request("GET", "/api/v1/namespaces/a%00b"), rb"404", id="a NUL in a path"),
        pytest.param(request("GET", "/api/v1/namespaces/a%ff%fe"), rb"404", id="no UTF-8 in a path"),
        pytest.param(request("GET", "/api/v1/namespaces/" + "a" * 60_000), rb"404", id="a long name"),
        pytest.param(request("CONNECT", "example.com:80"), rb"40[0-9]", id="a proxy"),
        pytest.param(request("GET", "/readyz", headers="Connection: Upgrade\r\nUpgrade: websocket\r\n") + b"\x81\x00", rb"200", id="an upgrade"),
        pytest.param(request("POST", CONFIG_MAPS, b'{"metadata":{"name":"a\r\nX-Evil: 1"},"a\r\nX-Evil: 1":1}'), rb"4..", id="lines in a name"),
    ],
)  # fmt: skip
async def test_nonsense_is_rejected(front: Endpoint, data: bytes, expected: bytes) -> None:
    async with Client.of(front) as client:
        client.writer.write(data)
        head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5)
        assert re.match(rb"HTTP/1.1 " + expected + rb" ", head), head


async def test_unknown_fields_do_not_become_headers(front: Endpoint) -> None:
    body = json.dumps({"metadata": {"name": "w"}, "a\r\nX-Evil: 1": 1, "b" * 5000: 1}).encode()
    query = "?fieldValidation=Warn"
    async with Client.of(front) as client:
        client.writer.write(request("POST", CONFIG_MAPS + query, body))
        head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5)
        assert b" 201 " in head
        assert b"\nX-Evil" not in head
        assert b"Warning: 299" in head
        assert len(head) < 2000


class _Echo(asyncio.Protocol):
    """Stands for the web page, which is served without TLS on the same port."""

    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        type(self).open += 1
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        type(self).open -= 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def test_a_flood_without_tls_leaves_room_for_those_with_it(pair: Pair) -> None:
    _Echo.open = 0
    async with serve(ApiServer(), tls=pair, token=TOKEN, limits=QUICK, plain=_Echo) as front:
        clients = [await asyncio.open_connection(front.host, front.port) for _ in range(200)]
        try:
            for _, writer in clients:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            reader, _ = clients[-1]
            assert await asyncio.wait_for(reader.read(4), 10) == b"GET "
            assert _Echo.open <= 65
            assert await is_well(front)
        finally:
            for _, writer in clients:
                writer.transport.abort()


async def test_a_client_that_says_nothing_is_dropped_on_a_port_that_serves_both(pair: Pair) -> None:
    async with serve(ApiServer(), tls=pair, token=TOKEN, limits=QUICK, plain=_Echo) as front:
        reader, writer = await asyncio.open_connection(front.host, front.port)
        began = time.monotonic()
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        finally:
            writer.transport.abort()
        assert 0.5 < time.monotonic() - began < 8
        assert await is_well(front)
