"""Our own HTTP: connections kept, broken, tunnelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from api_server import ScriptedServer, answer, serving

from certificates import Authority, server_context
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection, HttpPool, tls_context
from stowplan.client.errors import Unreachable
from stowplan.errors import InputError


@asynccontextmanager
async def talking(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Where someone listens who talks like that."""
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def raw_server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers one connection after the other with these bytes and closes it; what it was sent is kept."""
    rest, heard = list(answers), list[bytes]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(rest.pop(0))
        await writer.drain()
        writer.close()

    async with talking(talk) as place:
        yield f"http://{place}", heard


@asynccontextmanager
async def pool_of(url: str, **settings) -> AsyncIterator[HttpPool]:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    pool = HttpPool(url, **settings)
    try:
        yield pool
    finally:
        await asyncio.wait_for(pool.close(), 0.9)  # it would wait longer for a connection that is never over
    assert not faults


async def get(pool: HttpPool, path: str = "/", **settings):
    return await pool.request("GET", path, settings.pop("headers", ()), None, **{"timeout": 5} | settings)


@pytest.mark.parametrize(
    ("sent", "status", "data"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", id="with a length"),
        pytest.param(
            b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
            201,
            b"hi",
            id="in chunks",
        ),
        pytest.param(b"HTTP/1.0 502 Bad Gateway\r\n\r\nhi", 502, b"hi", id="ended with the connection"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", id="empty"),
        pytest.param(
            b"HTTP/1.1 409 Conflict\r\nA: b\r\nContent-Length: 2\r\n\r\nhi", 409, b"hi", id="a refusal"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 2\r\nC: d\r\n\r\nhi",
            200,
            b"hi",
            id="in small letters",
        ),
    ],
)
async def test_answers(sent, status, data):
    async with raw_server(sent) as (url, _), pool_of(url) as pool:
        found = await get(pool)
    assert (found.status, found.data) == (status, data)


@pytest.mark.parametrize("cut", [5, 17, 30, 36, 39])
async def test_an_answer_in_two_pieces(cut):
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent[:cut])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(sent[cut:])
        writer.close()

    async with talking(talk) as place, pool_of(f"http://{place}") as pool:
        assert (await get(pool)).data == (await get(pool)).data == b"hi"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
            "what came is not HTTP",
            id="two lengths",
        ),
        pytest.param(b"", r"the connection broke \(closed by the other side\)", id="nothing"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", "the connection broke", id="less than said"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Enc", "the connection broke", id="half a head"),
        pytest.param(b"220 mail.example.org ready\r\n\r\n", "what came is not HTTP", id="something else"),
    ],
)
async def test_broken_answers(sent, words):
    async with raw_server(sent) as (url, _), pool_of(url) as pool:
        with pytest.raises(Unreachable, match=words):
            await get(pool, "/x?token=secret")


async def test_a_connection_is_used_again(server: ScriptedServer):
    server.answers = [answer({})] * 5
    ports = set[str]()

    async with pool_of(server.url) as pool:
        for _ in range(3):
            await get(pool)
            ports.add(server.from_port)
        assert len(ports) == 1
        await asyncio.gather(get(pool), get(pool))
        assert server.from_port not in ports


async def test_a_pool_beside_another_uses_its_connections_and_leaves_them_open(server: ScriptedServer):
    server.answers = [answer({})] * 4
    async with pool_of(server.url) as pool:
        await get(pool)
        port, beside = server.from_port, pool.beside()
        await get(beside)
        assert server.from_port == port
        await beside.close()
        await get(pool)
        assert server.from_port == port
        beside.drop_idle()
        await get(pool)
        assert server.from_port != port


async def test_a_client_beside_another_uses_its_connections(server: ScriptedServer):
    server.answers = [answer({})] * 2
    where = Connection(server.url)
    async with ApiClient(where) as api, ApiClient(where, beside=api) as events_api:
        await api.request("GET", "/")
        port = server.from_port
        await events_api.request("GET", "/")
        assert server.from_port == port


async def test_a_pool_beside_another_has_a_limit_of_its_own():
    arrived, may_answer = list[object](), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            arrived.append(writer)
            await may_answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with talking(talk) as place, pool_of(f"http://{place}") as pool, asyncio.timeout(5):
        requests = [asyncio.create_task(get(pool)) for _ in range(pool.at_once + 1)]
        while len(arrived) < pool.at_once:
            await asyncio.sleep(0.01)
        requests.append(asyncio.create_task(get(pool.beside())))
        while len(arrived) < pool.at_once + 1:
            await asyncio.sleep(0.01)
        may_answer.set()
        await asyncio.gather(*requests)


async def test_connections_opened_ahead_are_used(server: ScriptedServer):
    ports, all_came = set[str](), asyncio.Barrier(2)

    async def together(request):
        ports.add(server.from_port)
        await all_came.wait()
        return await answer({})(request)

    server.answers = [together] * 2
    opened = list[object]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        there = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    async with talking(accept) as place, pool_of(f"http://{place}") as pool:
        await pool.open_ahead(2, timeout=5)
        await pool.open_ahead(1, timeout=5)  # there are enough
        await asyncio.gather(get(pool), get(pool))
        assert (len(ports), len(opened)) == (2, 2)


async def test_requests_that_did_not_wait_count_among_the_connections_opened_ahead():
    opened, may_answer = list[object](), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await may_answer.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with talking(talk) as place, pool_of(f"http://{place}") as pool, asyncio.timeout(5):
        requests = [asyncio.create_task(get(pool)) for _ in range(2)]
        while len(opened) < 2:
            await asyncio.sleep(0.01)
        await pool.open_ahead(3, timeout=5)
        await asyncio.sleep(0.05)
        assert len(opened) == 3
        may_answer.set()
        await asyncio.gather(*requests)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


async def test_opening_ahead_leaves_it_to_the_next_request_to_report_a_server_that_is_gone():
    async with pool_of("http://127.0.0.1:1") as pool:
        await pool.open_ahead(3, timeout=5)
        with pytest.raises(Unreachable):
            await get(pool)


async def test_opening_ahead_does_not_wait_forever_for_a_server_that_says_nothing():
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with talking(listen) as place, pool_of(f"https://{place}") as pool, asyncio.timeout(5):
        await pool.open_ahead(2, timeout=0.1)


@pytest.mark.parametrize(
    "farewell",
    [pytest.param(b"Connection: close\r\n", id="saying so"), pytest.param(b"", id="without a word")],
)
async def test_a_connection_that_the_server_closes_is_not_used_again(farewell):
    last = b"HTTP/1.1 200 OK\r\n" + farewell + b"Content-Length: 0\r\n\r\n"
    async with raw_server(last, last) as (url, heard), pool_of(url) as pool:
        await get(pool)
        await asyncio.sleep(0.05)  # for the end of the connection to arrive
        await get(pool)
    assert len(heard) == 2


async def test_a_connection_unused_for_long_is_not_trusted(server: ScriptedServer):
    server.answers = [answer({})] * 2
    async with pool_of(server.url, idle_seconds=0) as pool:
        await get(pool)
        port = server.from_port
        await get(pool)
        assert server.from_port != port


async def test_a_request_given_up_leaves_its_connection_unused(server: ScriptedServer):
    async def later(request):
        await asyncio.sleep(0.1)
        return await answer({"to": "the first"})(request)

    server.answers = [later, answer({"to": "the second"})]
    async with pool_of(server.url) as pool:
        with pytest.raises(Unreachable, match="no response in time"):
            await get(pool, timeout=0.02)
        assert (await get(pool)).data == b'{"to": "the second"}'


@pytest.mark.parametrize(
    "before",
    [pytest.param(5, id="sooner than the one before"), pytest.param(0.04, id="later than the one before")],
)
async def test_each_request_on_a_connection_has_its_own_time(server: ScriptedServer, before):
    async def later(request):
        await asyncio.sleep(0.1)
        return await answer({})(request)

    server.answers = [answer({}), later, later]
    async with pool_of(server.url) as pool:
        await get(pool, timeout=before)
        port = server.from_port
        await get(pool, timeout=1)
        assert server.from_port == port
        with pytest.raises(Unreachable, match="no response in time"):
            await get(pool, timeout=0.02)


async def test_a_stream_is_not_bound_by_the_time_of_a_request_before_it():
    """A watch often gets a connection that was used for short requests."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.15)
        writer.write(b"3\r\nend\r\n0\r\n\r\n")
        writer.close()

    received: list[bytes] = []
    async with talking(talk) as place, pool_of(f"http://{place}") as pool:
        await get(pool, timeout=0.05)
        await pool.stream("/", (), received.append, silence=5, open_seconds=5)
    assert b"".join(received) == b"end"


async def test_idle_connections_are_not_trusted_once_a_stream_has_fallen_silent():
    """What made it silent may have broken them, too: a request on one of them would wait for its time-out."""
    opened: list[object] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                is_watch = b"/watch" in await reader.readuntil(b"\r\n\r\n")
                kind = b"Transfer-Encoding: chunked\r\n\r\n" if is_watch else b"Content-Length: 2\r\n\r\nhi"
                writer.write(b"HTTP/1.1 200 OK\r\n" + kind)
        writer.close()

    async with talking(talk) as place, pool_of(f"http://{place}") as pool:
        stream = asyncio.create_task(
            pool.stream("/watch", (), lambda data: None, silence=0.2, open_seconds=5)
        )
        await asyncio.sleep(0.05)
        await get(pool)
        with pytest.raises(Unreachable):
            await stream
        await get(pool)
    assert len(opened) == 3


@pytest.mark.parametrize("value", ["a\r\nHost: evil", "a\nb", "ä"])
async def test_headers_cannot_be_smuggled(server: ScriptedServer, value):
    async with pool_of(server.url) as pool:
        with pytest.raises(InputError, match="check the credentials"):
            await get(pool, headers=[("Authorization", f"Bearer {value}")])
    assert not server.asked


@asynccontextmanager
async def tunnel(status: bytes = b"200 OK") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that does what CONNECT asks for, or refuses it."""
    heads = list[bytes]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if status.startswith(b"200"):
            host, _, port = heads[-1].split()[1].decode().partition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)
        writer.close()

    async with talking(talk) as place:
        yield f"http://joe:a%20b@{place}", heads


@pytest.fixture
def both_sides(tmp_path):
    """What a server and its client need for TLS."""
    authority = Authority()
    tls = server_context(tmp_path, authority.issue("server", "127.0.0.1"))
    return tls, tls_context(authority_text=authority.certificate)


async def test_large_bodies_over_tls(both_sides):
    tls, trust = both_sides
    body = b'"' + b"x" * 900_000 + b'"'
    async with serving(ScriptedServer(), tls) as server:
        server.answers = [answer("y" * 3_000_000)] * 2
        async with pool_of(server.url, ssl_context=trust) as pool:
            for _ in range(2):
                found = await pool.request("POST", "/", (), body, timeout=20)
                assert len(found.data) == 3_000_002
    assert [asked.body for asked in server.asked] == ["x" * 900_000] * 2


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="hangs up"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="speaks without TLS"),
    ],
)
async def test_a_server_that_does_not_shake_hands(both_sides, sent):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with talking(talk) as place, pool_of(f"https://{place}", ssl_context=both_sides[1]) as pool:
        with pytest.raises(Unreachable, match="the connection broke"):
            await get(pool)


async def test_a_server_silent_during_the_handshake_is_given_up(both_sides):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with talking(talk) as place, pool_of(f"https://{place}", ssl_context=both_sides[1]) as pool:
        with pytest.raises(Unreachable, match="no response in time"):
            await get(pool, timeout=0.05)


async def test_tls_through_a_proxy(both_sides):
    tls, trust = both_sides
    async with serving(ScriptedServer(), tls) as server, tunnel() as (proxy, heads):
        server.answers = [answer({"by": "tunnel"})] * 2
        async with pool_of(server.url, ssl_context=trust, proxy=proxy) as pool:
            assert (await get(pool)).data == (await get(pool)).data == b'{"by": "tunnel"}'
    (head,) = heads
    place = server.url.removeprefix("https://").encode()
    assert head == (
        b"CONNECT "
        + place
        + b" HTTP/1.1\r\nHost: "
        + place
        + b"\r\nProxy-Authorization: Basic am9lOmEgYg==\r\n\r\n"
    )


async def test_a_proxy_that_refuses():
    refusing = tunnel(b"407 Proxy Authentication Required")
    async with refusing as (proxy, _), pool_of("https://api.example.org", proxy=proxy) as pool:
        with pytest.raises(Unreachable, match=r"proxy 127\.0\.0\.1 answered with status 407"):
            await get(pool)
