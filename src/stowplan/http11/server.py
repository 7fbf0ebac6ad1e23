"""An HTTP/1.1 server: a bare asyncio protocol on httptools, for the API server and the extender alike.

Responses that need no waiting are written at once, without a task; streams and large responses are sent as
fast as the client reads them. All that a client can make us hold is limited, before it has authenticated as
well: connections, headers, bodies, pipelined requests, unread responses.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import resource
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import httptools

from stowplan.errors import InputError
from stowplan.http11.messages import Request, Response, Stream, response_head
from stowplan.log import warn

SWEEP_SECONDS = 1.0
WRITE_HIGH_WATER = 512 * 1024
LARGE_RESPONSE = 256 * 1024
MAX_PLAIN = 64
"""Connections without TLS; beyond them the oldest is closed."""
TLS_HANDSHAKE = b"\x16"
_PIECE = 16 * 1024
"""Bytes parsed at once: all requests in them are parsed, however many wait already."""
_LARGE_PIECE = 4096


class Limits(NamedTuple):
    """How much a client can make a server hold, and for how long."""

    connections: int = 2000
    """At most, and at most half of the files that the process may open."""
    headers: int = 64 * 1024
    """Bytes of the request line and all headers."""
    header_count: int = 256
    body: int = 3 * 1024 * 1024
    waiting: int = 64
    waiting_bytes: int = 256 * 1024
    """Requests of one connection, and bytes in their bodies, that wait behind one that takes its time."""
    unread: int = 512 * 2**20
    """Bytes of large responses that clients have not yet read, over all connections."""
    handshake_seconds: float = 10.0
    header_seconds: float = 10.0
    """Time for the headers of a request, and for the first request of a connection to begin."""
    body_seconds: float = 60.0
    idle_seconds: float = 180.0
    slow_reader_seconds: float = 30.0
    """How long a reader may take next to nothing."""
    read_rate: float = 500_000
    """Bytes a second at which large responses must be read, on average and after the first minute."""
    linger_seconds: float = 1.0
    """How long to go on reading from a client whose request is rejected, so that it reads why."""


class Application(Protocol):
    """What a server asks for each request."""

    def authenticates(self, authorization: bytes) -> bool:
        """Whether this header proves who the client is; called before its body is read."""

    def is_public(self, url: bytes) -> bool:
        """Whether everybody may read this page."""

    def handle(self, request: Request) -> Awaitable[Response | Stream]: ...

    def reject(self, status: int, limits: Limits) -> Response:
        """The response to a request that is never handled: 400, 401, 413, 429 or 431."""


class Listener(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


Plain = Callable[[], asyncio.BaseProtocol]
"""Makes a protocol for a client of this machine that does not speak TLS."""


@asynccontextmanager
async def listen(
    app: Application,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    limits: Limits,
    plain: Plain | None = None,
) -> AsyncIterator[Listener]:
    """Serve until the end of the `async with`; in plain HTTP without `tls`.

    With `plain`, clients of this machine that do not speak TLS are served by its protocols, on the same port.
    """
    sockets = _listen(host, port)
    connections = _Connections(app, tls, limits, plain)
    tasks = [asyncio.ensure_future(connections.accept(each)) for each in sockets]
    tasks.append(asyncio.ensure_future(connections.sweep()))
    try:
        yield Listener(host, sockets[0].getsockname()[1])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in sockets:
            each.close()
        await connections.close()


def _listen(host: str, port: int) -> list[socket.socket]:
    found = []
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, _, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind)
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(1024)
            listener.setblocking(False)
    except OSError as error:
        for listener in found:
            listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address or port"
        ) from error
    return found


class _Connections:
    """All connections of a server, and the limits that they share."""

    def __init__(
        self, app: Application, tls: ssl.SSLContext | None, limits: Limits, plain: Plain | None
    ) -> None:
        self.app, self._tls, self.limits, self._plain = app, tls, limits, plain
        self._plain_open: deque[asyncio.Transport] = deque()
        self._open: dict[_Connection, None] = {}
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Both in the order in which they came."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max = limits.connections if files < 0 else min(limits.connections, files // 2)
        self.unread = 0
        self._warned_at = -math.inf

    async def accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in (errno.ECONNABORTED, errno.EINTR):  # such as too many open files
                    self._warn("Cannot accept connections", err=error)
                    await asyncio.sleep(0.1)
                continue
            if len(self._open) + len(self._shaking) >= self._max and not self._make_room():
                self._warn("Too many connections: closing a new one", limit=self._max)
                client.close()
                continue
            task = loop.create_task(self._connect(client))
            self._shaking[task] = None
            task.add_done_callback(self._shaking.pop)

    async def _connect(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self)
        limit = self.limits.handshake_seconds if self._tls is not None else None
        try:
            if self._plain is not None and not await self._speaks_tls(client):
                await self._connect_plainly(self._plain, client)
                return
            await loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except OSError:  # it went away, or does not speak TLS
            client.close()

    async def _speaks_tls(self, client: socket.socket) -> bool:
        """Wait for the first byte, and leave it to be read."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(client, readable.set)
        try:
            async with asyncio.timeout(self.limits.handshake_seconds):
                await readable.wait()
        except BaseException:
            loop.remove_reader(client)
            client.close()
            raise
        loop.remove_reader(client)
        return client.recv(1, socket.MSG_PEEK) in (TLS_HANDSHAKE, b"")

    async def _connect_plainly(self, plain: Plain, client: socket.socket) -> None:
        if not ipaddress.ip_address(client.getpeername()[0].partition("%")[0]).is_loopback:
            client.close()  # whoever listens on the way could read the link
            return
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(plain, client)
        self._plain_open = deque(each for each in self._plain_open if not each.is_closing())
        self._plain_open.append(transport)
        if len(self._plain_open) > MAX_PLAIN:
            self._plain_open.popleft().abort()

    def _make_room(self) -> bool:
        """Drop the oldest client that has not authenticated, else the one that has been idle for longest."""
        unknown: list[Any] = [each for each in self._open if not each.is_known]
        oldest = next(iter((*self._shaking, *unknown)), None)
        if isinstance(oldest, asyncio.Task):
            self._shaking.pop(oldest, None)
            oldest.cancel()
            return True
        idle = [each for each in self._open if each.is_idle]
        found = oldest or min(idle, key=lambda each: each.idle_since, default=None)
        if found is not None:
            self.remove(found)
            found.abort()
        return found is not None

    def _warn(self, message: str, **fields: object) -> None:
        now = asyncio.get_running_loop().time()
        if now > self._warned_at + 60:
            self._warned_at = now
            warn(message, **fields)

    def add(self, connection: _Connection) -> None:
        self._open[connection] = None

    def remove(self, connection: _Connection) -> None:
        self._open.pop(connection, None)

    def has_room_for(self, size: int) -> bool:
        """Whether a large response may be sent; a client that has been reading one for too long is dropped
        for it."""
        if self.unread and self.unread + size > self.limits.unread:
            before = asyncio.get_running_loop().time() - self.limits.header_seconds
            reading = [each for each in self._open if each.reads_since < before]
            if not reading:
                return False
            min(reading, key=lambda each: each.reads_since).abort()
        return True

    async def sweep(self) -> None:
        """Drop connections whose time is up."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for connection in [each for each in self._open if each.deadline < now]:
                connection.abort()

    async def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        for transport in self._plain_open:
            transport.abort()
        for task in list(self._shaking):
            task.cancel()
        await asyncio.gather(*self._shaking, return_exceptions=True)
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other, in the order they came.

    The parser calls `on_…` back for what it finds in a request.
    """

    def __init__(self, connections: _Connections) -> None:
        self._all, self._app, self._limits = connections, connections.app, connections.limits
        self._parser = httptools.HttpRequestParser(self)
        self._unparsed = b""
        self._waiting: deque[tuple[Request, bool, int]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        """Whether no more requests are read."""
        self.is_known = False
        """Whether the client has authenticated."""
        self.idle_since = self._loop.time()
        self.reads_since = math.inf
        """Since when it reads a large response."""
        self._began = self._blocked_since = 0.0
        self._begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER)
        self._all.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.remove(self)
        self._transport = None
        self._can_write.set()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        return self._task is None and not self._began and not self._blocked_since

    @property
    def deadline(self) -> float:
        """When to give up on this client, by the clock of the loop."""
        limits = self._limits
        if self._blocked_since:
            return self._blocked_since + limits.slow_reader_seconds
        if self._task is not None:
            return math.inf
        if self._began:
            return self._began + (limits.body_seconds if self._has_headers else limits.header_seconds)
        return self.idle_since + (limits.idle_seconds if self.is_known else limits.header_seconds)

    def pause_writing(self) -> None:
        self._can_write.clear()
        self._blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        self._can_write.set()
        self._blocked_since = 0.0
        if self._task is None and self._transport is not None:
            self._work()
            self._parse()

    # Parsing.

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._parse()

    def _take_body(self, data: bytes) -> None:
        """More of a body whose length is known: there is nothing to parse, and a list of nodes is large.

        The parser does not see it, so that another one must parse what follows.
        """
        self._keep(data)
        self._body_left -= len(data)
        if not self._body_left:
            parser, self._parser = self._parser, httptools.HttpRequestParser(self)
            self._complete(parser)

    def _parse(self) -> None:
        """Parse what was received, as long as not too much waits."""
        while self._unparsed and not self._is_ending:
            if self._is_busy:
                self._transport.pause_reading()
                return
            if self._body_left:
                piece, self._unparsed = self._unparsed[: self._body_left], self._unparsed[self._body_left :]
                self._take_body(piece)
                continue
            piece, self._unparsed = self._unparsed[:_PIECE], self._unparsed[_PIECE:]
            self._size += len(piece)
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade:  # the request is answered, but what follows is not HTTP
                self._is_ending = True
            except httptools.HttpParserError:
                if not self._is_ending:
                    self._reject(400)
            # A body may be sent in tiny chunks, with headers and trailers of their own.
            limit = 8 * self._limits.body if self._has_headers else self._limits.headers
            if self._size > limit:
                self._reject(413 if self._has_headers else 431)
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def _is_busy(self) -> bool:
        return self._transport is not None and (
            len(self._waiting) >= self._limits.waiting
            or self._waiting_bytes > self._limits.waiting_bytes
            or (self._task is None and not self._can_write.is_set())
        )

    # What httptools calls.

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._given = b""
        self._body: list[bytes | bytearray] = []
        self._body_size = self._body_left = 0
        """Bytes that must follow; known if the request has a length, once its headers are read."""
        self._size = 0
        self._has_headers = False
        self._status = 0
        """What the request is rejected with, if it is."""

    def on_message_begin(self) -> None:
        self._begin()
        self._began = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_headers or self._is_ending:  # a trailer, or too late
            return
        key = name.decode("latin-1").lower()
        if key == "authorization" and not self._given:
            self._given = value
        if key in self._headers and key.startswith("impersonate-"):  # the only ones that may be repeated
            self._headers[key] += "\n" + value.decode("latin-1")
        else:
            self._headers.setdefault(key, value.decode("latin-1"))
        if len(self._headers) > self._limits.header_count:
            self._reject(431)

    def on_headers_complete(self) -> None:
        self._has_headers, self._size = True, 0
        if self._is_ending:
            return
        if self._app.authenticates(self._given):
            self.is_known = True
        elif not self._app.is_public(self._url):
            self._status = 401
        size = int(self._headers.get("content-length") or 0)
        if not self._status and size > self._limits.body:
            self._status = 413
        if self._status and (size or "transfer-encoding" in self._headers):
            self._end_with(self._status)  # the body is not worth reading
            return
        self._body_left = size
        if self._headers.get("expect", "").lower() == "100-continue" and self._is_next:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def _is_next(self) -> bool:
        """Whether the request that is read now is answered next."""
        return self._transport is not None and self._task is None and not self._waiting

    def on_body(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._keep(data)
        if self._body_left:
            self._body_left -= len(data)
        elif self._body_size > self._limits.body:
            self._end_with(413)

    def _keep(self, data: bytes) -> None:
        """Large pieces of a body as they are; small ones joined, since each would take far more memory."""
        self._body_size += len(data)
        if len(data) >= _LARGE_PIECE:
            self._body.append(data)
        elif self._body and isinstance(self._body[-1], bytearray):
            self._body[-1] += data
        else:
            self._body.append(bytearray(data))

    def on_message_complete(self) -> None:
        if not self._is_ending:
            self._complete(self._parser)

    def _complete(self, parser: httptools.HttpRequestParser) -> None:
        self._began, self._size = 0.0, 0
        self.idle_since = self._loop.time()
        keeps_alive = bool(parser.should_keep_alive())
        if "upgrade" in self._headers and parser.should_upgrade():
            keeps_alive = False
        self._queue(self._request(parser), keeps_alive, self._status)

    def _request(self, parser: httptools.HttpRequestParser) -> Request:
        path, _, query = self._url.decode("latin-1").partition("?")
        method = parser.get_method().decode("ascii")
        body, self._body = b"".join(self._body), []
        return Request(method, unquote(path) if "%" in path else path, query, self._headers, body)

    # Answering.

    def _queue(self, request: Request, keeps_alive: bool, status: int) -> None:
        self._waiting.append((request, keeps_alive, status))
        self._waiting_bytes += len(request.body)
        if not keeps_alive:
            self._is_ending = True
        if self._task is None:
            self._work()

    def _end_with(self, status: int) -> None:
        """Reject the request in its turn, and read no more."""
        self._body.clear()
        if not self._is_ending:
            self._queue(self._request(self._parser), False, status)

    def _reject(self, status: int) -> None:
        """The same for what is not even a request."""
        if not self._is_ending:
            self._queue(Request("", ""), False, status)

    def _work(self) -> None:
        """Answer waiting requests; one that cannot be answered at once continues in a task."""
        while self._waiting and self._transport is not None and self._can_write.is_set():
            request, keeps_alive, status = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            is_head = request.method == "HEAD"
            if status:
                self._write(self._app.reject(status, self._limits), keeps_alive, is_head, lingers=True)
                continue
            step = self._app.handle(request).__await__()
            try:
                waits_for = next(step)
            except StopIteration as done:
                if isinstance(done.value, Response) and (is_head or len(done.value.body) <= LARGE_RESPONSE):
                    self._write(done.value, keeps_alive, is_head)
                    continue
                self._go_on(self._send(done.value, keeps_alive, is_head))
                return
            self._go_on(self._rest(step, waits_for, keeps_alive, is_head))
            return

    def _go_on(self, work: Any) -> None:
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._next)

    def _next(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self.idle_since = self._loop.time()
        if self._began:
            self._began = self.idle_since
        if not task.cancelled() and task.exception() is not None:
            self.abort()
        if self._transport is not None:
            self._work()
            self._parse()

    async def _rest(self, step: Any, waits_for: Any, keeps_alive: bool, is_head: bool) -> None:
        await self._send(await _Resumed(step, waits_for), keeps_alive, is_head)

    async def _send(self, response: Response | Stream, keeps_alive: bool, is_head: bool) -> None:
        if isinstance(response, Stream):
            await self._stream(response, keeps_alive, is_head)
        elif is_head or len(response.body) <= LARGE_RESPONSE:
            self._write(response, keeps_alive, is_head)
        else:
            await self._write_large(response, keeps_alive)

    def _write(
        self, response: Response, keeps_alive: bool, is_head: bool = False, lingers: bool = False
    ) -> None:
        if self._transport is None:
            return
        head = response_head(response, keeps_alive)
        self._transport.write(head if is_head else head + response.body)
        if not keeps_alive:
            # A WebSocket's client may still be sending: closed at once, it might not read what it was sent.
            is_switched = response.status == 101
            self._close(self._limits.linger_seconds if lingers or is_switched else 0)

    def _close(self, seconds: float = 0) -> None:
        """Close when all is sent; `seconds` later, if the client is still sending."""
        self._is_ending, self._unparsed = True, b""
        transport = self._transport
        if transport is not None and seconds:
            transport.resume_reading()
            self._loop.call_later(seconds, transport.close)
        elif transport is not None:
            transport.close()

    async def _write_large(self, response: Response, keeps_alive: bool) -> None:
        size = len(response.body)
        if not self._all.has_room_for(size):
            self._write(self._app.reject(429, self._limits), keeps_alive)
            return
        self._all.unread += size
        self.reads_since = self._loop.time()
        try:
            async with asyncio.timeout(self._limits.body_seconds + size / self._limits.read_rate):
                self._transport.write(response_head(response, keeps_alive))
                for start in range(0, size, LARGE_RESPONSE):
                    if self._transport is None:
                        return
                    self._transport.write(response.body[start : start + LARGE_RESPONSE])
                    await self._can_write.wait()
        except TimeoutError:
            self.abort()
            return
        finally:
            self._all.unread -= size
            self.reads_since = math.inf
        if not keeps_alive:
            self._close()

    async def _stream(self, stream: Stream, keeps_alive: bool, is_head: bool) -> None:
        if self._transport is None:
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {stream.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head.encode("latin-1"))
        if not is_head:
            async for chunk in stream.chunks:
                if self._transport is None:
                    return
                self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await self._can_write.wait()  # who takes nothing for long is dropped by the sweep
            if self._transport is not None:
                self._transport.write(b"0\r\n\r\n")
        if not keeps_alive:
            self._close()


class _Resumed:
    """Goes on with a coroutine that was stepped once already."""

    def __init__(self, step: Any, waits_for: Any) -> None:
        self._step, self._waits_for = step, waits_for

    def __await__(self) -> Any:
        sent = yield self._waits_for
        while True:
            try:
                sent = yield self._step.send(sent)
            except StopIteration as done:
                return done.value
