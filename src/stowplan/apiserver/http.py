"""The HTTPS front: `serve` puts an API server behind a port, with TLS and a token.

A bare asyncio protocol on httptools. Answers that need no waiting are written at once, without a task;
streams and large answers are sent as fast as the reader takes them. All that a client can make us hold is
limited, before it has shown its token as well: connections, headers, bodies, requests that wait, answers.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import http
import math
import resource
import socket
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from stowplan.apiserver.failures import Failure
from stowplan.apiserver.messages import Request, Response, Stream
from stowplan.apiserver.server import ApiServer
from stowplan.log import warn
from stowplan.serving.certificates import self_signed

Handler = Callable[[Request], Awaitable[Response | Stream]]

MAX_BODY = 3 * 1024 * 1024
SWEEP_SECONDS = 1.0
WRITE_HIGH_WATER = 512 * 1024
LARGE_ANSWER = 256 * 1024
_PIECE = 16 * 1024
"""Bytes parsed at once: all requests in them are parsed, however many wait already."""
_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")


class Limits(NamedTuple):
    """How much a client can make a server hold, and for how long."""

    connections: int = 2000
    """At most, and at most half of the files that the process may open."""
    headers: int = 64 * 1024
    """Bytes of the request line and all headers."""
    header_count: int = 256
    body: int = MAX_BODY
    chunked: int = 8 * MAX_BODY
    """Bytes of a body as it is sent, with the headers of its chunks and its trailers."""
    waiting: int = 64
    waiting_bytes: int = 256 * 1024
    """Requests of one connection, and bytes in their bodies, that wait behind one that takes its time."""
    unread: int = 512 * 2**20
    """Bytes of large answers that clients have not yet read, over all connections."""
    handshake_seconds: float = 10.0
    header_seconds: float = 10.0
    """For the headers of a request, and until the first one."""
    body_seconds: float = 60.0
    idle_seconds: float = 180.0
    slow_reader_seconds: float = 30.0
    """How long a reader may take next to nothing."""
    read_rate: float = 500_000
    """Bytes a second at which large answers must be read, on average and after the first minute."""
    linger_seconds: float = 1.0
    """How long to go on reading from a client that is told to stop, so that it reads why."""


DEFAULT_LIMITS = Limits()


class Pair(NamedTuple):
    """A certificate with its key, in PEM."""

    certificate: bytes
    key: bytes


class Front(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    certificate: bytes


def made_pair() -> Pair:
    """A certificate for this machine alone, made now."""
    return Pair(*self_signed(datetime.now(UTC)))


@asynccontextmanager
async def serve(
    server: ApiServer,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: Pair | None = None,
    token: str = "",
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Front]:
    """Serve until the end of the `async with`; without `tls` in plain HTTP, without a token for everybody."""
    server.token = token
    context = _context(tls) if tls is not None else None
    listeners = _listen(host, port)
    connections = _Connections(server.handle, token, context, limits)
    tasks = [asyncio.ensure_future(connections.accept(listener)) for listener in listeners]
    tasks.append(asyncio.ensure_future(connections.sweep()))
    try:
        yield Front(host, listeners[0].getsockname()[1], tls.certificate if tls else b"")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in listeners:
            listener.close()
        await connections.close()


def _listen(host: str, port: int) -> list[socket.socket]:
    found = []
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, _, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind)
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(1024)
            listener.setblocking(False)
    except OSError:
        for listener in found:
            listener.close()
        raise
    return found


class _Connections:
    """All connections of a server, and the limits that they share."""

    def __init__(self, handle: Handler, token: str, context: ssl.SSLContext | None, limits: Limits) -> None:
        self._handle, self._token, self._context, self.limits = handle, token.encode(), context, limits
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
                self._warn("Too many connections: a new one is closed", limit=self._max)
                client.close()
                continue
            task = loop.create_task(self._connect(client))
            self._shaking[task] = None
            task.add_done_callback(self._shaking.pop)

    async def _connect(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self._handle, self._token, self)
        limit = self.limits.handshake_seconds if self._context is not None else None
        try:
            await loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._context, ssl_handshake_timeout=limit
            )
        except OSError:  # it went away, or does not speak TLS
            client.close()

    def _make_room(self) -> bool:
        """Drop whoever has not shown the token for the longest time, else who has been idle for longest."""
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
        """Whether a large answer may be sent; if not, whoever has read one for too long is dropped."""
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
        for task in list(self._shaking):
            task.cancel()
        await asyncio.gather(*self._shaking, return_exceptions=True)
        await asyncio.sleep(0)


def _context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    with tempfile.TemporaryDirectory() as folder:  # the ssl module reads certificates from files alone
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.touch(0o600)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
    return context


class _Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other, in the order they came."""

    def __init__(self, handle: Handler, token: bytes, connections: _Connections) -> None:
        self._handle, self._token, self._all = handle, token, connections
        self._limits = connections.limits
        self._parser = httptools.HttpRequestParser(self)
        self._unparsed = b""
        self._waiting: deque[tuple[Request, bool, Response | None]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        """Whether no more requests are read."""
        self.is_known = not token
        self.idle_since = self._loop.time()
        self.reads_since = math.inf
        """Since when it reads a large answer."""
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

    def _parse(self) -> None:
        """Parse what was received, as long as not too much waits."""
        while self._unparsed and not self._is_ending:
            if self._is_busy:
                self._transport.pause_reading()
                return
            piece, self._unparsed = self._unparsed[:_PIECE], self._unparsed[_PIECE:]
            self._size += len(piece)
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade:  # the request is answered, but what follows is not HTTP
                self._is_ending = True
            except httptools.HttpParserError:
                if not self._is_ending:
                    self._reject(Failure(400, "BadRequest", "the request is not HTTP"))
            if self._size > (self._limits.chunked if self._has_headers else self._limits.headers):
                self._reject(self._too_large() if self._has_headers else self._headers_too_large())
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
        self._body = bytearray()
        self._size = 0
        self._has_headers = False
        self._refusal: Response | None = None

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
        self._headers.setdefault(key, value.decode("latin-1"))
        if len(self._headers) > self._limits.header_count:
            self._reject(self._headers_too_large())

    def on_headers_complete(self) -> None:
        self._has_headers, self._size = True, 0
        if self._is_ending:
            return
        if not self._is_allowed():
            self._refusal = Response.failure(Failure(401, "Unauthorized", "Unauthorized"))
        length = self._headers.get("content-length", "0")
        if self._refusal is None and int(length or 0) > self._limits.body:
            self._refusal = Response.failure(self._too_large())
        has_body = length not in ("", "0") or "transfer-encoding" in self._headers
        if self._refusal is not None and has_body:
            self._end_with(self._refusal)  # what it would send is not worth reading
        elif self._headers.get("expect", "").lower() == "100-continue" and self._is_next:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def _is_next(self) -> bool:
        """Whether the request that is read now is the next one to answer."""
        return self._transport is not None and self._task is None and not self._waiting

    def on_body(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._body += data
        if len(self._body) > self._limits.body:
            self._end_with(Response.failure(self._too_large()))

    def on_message_complete(self) -> None:
        if self._is_ending:
            return
        self._began, self._size = 0.0, 0
        self.idle_since = self._loop.time()
        keeps_alive = bool(self._parser.should_keep_alive()) and not self._parser.should_upgrade()
        self._queue(self._request(), keeps_alive, self._refusal)

    def _request(self) -> Request:
        path, _, query = self._url.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("ascii")
        return Request(method, unquote(path), query, self._headers, bytes(self._body))

    def _is_allowed(self) -> bool:
        """Whether the request has the token, or asks for what everybody may know."""
        scheme, _, rest = self._given.strip().partition(b" ")
        token = rest.partition(b" ")[0]
        if not self._token or (scheme.lower() == b"bearer" and hmac.compare_digest(token, self._token)):
            self.is_known = True
            return True
        return unquote(self._url.decode("latin-1")).startswith(_OPEN_PATHS)

    # Answering.

    def _queue(self, request: Request, keeps_alive: bool, refusal: Response | None) -> None:
        self._waiting.append((request, keeps_alive, refusal))
        self._waiting_bytes += len(request.body)
        if not keeps_alive:
            self._is_ending = True
        if self._task is None:
            self._work()

    def _end_with(self, refusal: Response) -> None:
        """Response in its turn, and read no more."""
        self._body.clear()
        if not self._is_ending:
            self._queue(self._request(), False, refusal)

    def _reject(self, failure: Failure) -> None:
        """The same for what is not even a request."""
        if not self._is_ending:
            self._queue(Request("", ""), False, Response.failure(failure))

    def _too_large(self) -> Failure:
        said = f"Request entity too large: limit is {self._limits.body}"
        return Failure(413, "RequestEntityTooLarge", said)

    def _headers_too_large(self) -> Failure:
        said = f"the headers are too large: limit is {self._limits.headers} bytes"
        return Failure(431, "RequestHeaderFieldsTooLarge", said)

    def _work(self) -> None:
        """Response what waits; what cannot be answered at once goes on in a task."""
        while self._waiting and self._transport is not None and self._can_write.is_set():
            request, keeps_alive, refusal = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            is_head = request.method == "HEAD"
            if refusal is not None:
                self._write(refusal, keeps_alive, is_head, lingers=True)
                continue
            step = self._handle(request).__await__()
            try:
                waits_for = next(step)
            except StopIteration as done:
                if isinstance(done.value, Response) and (is_head or len(done.value.body) <= LARGE_ANSWER):
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

    async def _send(self, answer: Response | Stream, keeps_alive: bool, is_head: bool) -> None:
        if isinstance(answer, Stream):
            await self._stream(answer, keeps_alive, is_head)
        elif is_head or len(answer.body) <= LARGE_ANSWER:
            self._write(answer, keeps_alive, is_head)
        else:
            await self._write_large(answer, keeps_alive)

    def _head(self, answer: Response, keeps_alive: bool) -> bytes:
        end = "" if keeps_alive else "Connection: close\r\n"
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        return (
            f"HTTP/1.1 {answer.status} {_reason(answer.status)}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n{extra}"
            f"{end}\r\n"
        ).encode("latin-1", "replace")

    def _write(
        self, answer: Response, keeps_alive: bool, is_head: bool = False, lingers: bool = False
    ) -> None:
        if self._transport is None:
            return
        head = self._head(answer, keeps_alive)
        self._transport.write(head if is_head else head + answer.body)
        if not keeps_alive:
            self._close(self._limits.linger_seconds if lingers else 0)

    def _close(self, seconds: float = 0) -> None:
        """Close when all is sent; `seconds` later, if the client is still sending."""
        self._is_ending, self._unparsed = True, b""
        transport = self._transport
        if transport is not None and seconds:
            transport.resume_reading()
            self._loop.call_later(seconds, transport.close)
        elif transport is not None:
            transport.close()

    async def _write_large(self, answer: Response, keeps_alive: bool) -> None:
        size = len(answer.body)
        if not self._all.has_room_for(size):
            said = "too many large answers have not been read yet: try again, or use limit"
            details = {"retryAfterSeconds": 1}
            failure = Failure(429, "TooManyRequests", said, details=details, headers=(("Retry-After", "1"),))
            self._write(Response.failure(failure), keeps_alive)
            return
        self._all.unread += size
        self.reads_since = self._loop.time()
        try:
            async with asyncio.timeout(self._limits.body_seconds + size / self._limits.read_rate):
                self._transport.write(self._head(answer, keeps_alive))
                for start in range(0, size, LARGE_ANSWER):
                    if self._transport is None:
                        return
                    self._transport.write(answer.body[start : start + LARGE_ANSWER])
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


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Status"


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
