"""The HTTPS front: `serve` puts an API server behind a port, with TLS and a token.

A bare asyncio protocol on httptools. Answers that need no waiting are written at once, without a task;
streams are sent in chunks as fast as the reader takes them; who takes nothing for long is dropped.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from stowplan.apiserver.failures import Failure
from stowplan.apiserver.messages import Answer, Request, Stream
from stowplan.apiserver.server import ApiServer
from stowplan.serving.certificates import self_signed

Handler = Callable[[Request], Awaitable[Answer | Stream]]

MAX_BODY = 3 * 1024 * 1024
MAX_HEADERS = 64 * 1024
MAX_WAITING = 64
"""Requests that may wait behind one that takes its time."""
SLOW_READER_SECONDS = 30.0
IDLE_SECONDS = 180.0
WRITE_HIGH_WATER = 4 * 1024 * 1024
_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
_REASONS = {
    200: "OK",
    201: "Created",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
}


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
    server: ApiServer, host: str = "127.0.0.1", port: int = 0, *, tls: Pair | None = None, token: str = ""
) -> AsyncIterator[Front]:
    """Serve until the end of the `async with`; without `tls` in plain HTTP, without a token for everybody."""
    server.token = token
    connections: set[_Connection] = set()
    loop = asyncio.get_running_loop()
    context = _context(tls) if tls is not None else None
    listener = await loop.create_server(
        lambda: _Connection(server.handle, token, connections), host, port, ssl=context, backlog=1024
    )
    try:
        yield Front(host, listener.sockets[0].getsockname()[1], tls.certificate if tls else b"")
    finally:
        listener.close()
        for connection in list(connections):
            connection.abort()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(listener.wait_closed(), 1)


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

    def __init__(self, handle: Handler, token: str, all_of_them: set[_Connection]) -> None:
        self._handle, self._all = handle, all_of_them
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool, Answer | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._transport: Any = None
        self._idle: asyncio.TimerHandle | None = None
        self._begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(WRITE_HIGH_WATER)
        self._all.add(self)
        self._watch_idleness()

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        self._transport = None
        self._can_write.set()
        if self._idle is not None:
            self._idle.cancel()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Failure(400, "BadRequest", "no upgrades are served"))
        except httptools.HttpParserError:
            self._refuse(Failure(400, "BadRequest", "the request is not HTTP"))

    def _watch_idleness(self) -> None:
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        self._idle = loop.call_later(IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._task is None and self._transport is not None:
            self._transport.close()

    # What httptools calls.

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = self._header_size = 0
        self._given = b""

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        key = name.decode("latin-1").lower()
        if key == "authorization":
            self._given = value
        self._headers[key] = value.decode("latin-1")
        if key == "expect" and value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count_header(self, size: int) -> None:
        self._header_size += size
        if self._header_size > MAX_HEADERS:
            self._refuse(Failure(431, "", "request header fields too large"))

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_BODY:
            self._body.append(data)

    def on_message_complete(self) -> None:
        path, _, query = self._url.decode("latin-1").partition("?")
        method = self._parser.get_method().decode("ascii")
        request = Request(method, unquote(path), query, self._headers, b"".join(self._body))
        refusal = self._refusal(request)
        self._waiting.append((request, bool(self._parser.should_keep_alive()), refusal))
        if self._task is None:
            self._work()
        elif len(self._waiting) > MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()

    def _refusal(self, request: Request) -> Answer | None:
        is_known = not self._authorization or hmac.compare_digest(self._given, self._authorization)
        if not is_known and not request.path.startswith(_OPEN_PATHS):
            return Answer.refusal(Failure(401, "Unauthorized", "Unauthorized"))
        if self._size > MAX_BODY:
            said = f"Request entity too large: limit is {MAX_BODY}"
            return Answer.refusal(Failure(413, "RequestEntityTooLarge", said, details={}))
        return None

    # Answering.

    def _work(self) -> None:
        """Answer what waits; what cannot be answered at once goes on in a task."""
        while self._waiting and self._transport is not None:
            request, keeps_alive, refusal = self._waiting.popleft()
            if refusal is not None:
                self._write(refusal, keeps_alive)
                continue
            answering = self._handle(request)
            step = answering.__await__()
            try:
                waits_for = next(step)
            except StopIteration as done:
                if isinstance(done.value, Answer):
                    self._write(done.value, keeps_alive, request.method == "HEAD")
                    continue
                self._task = asyncio.ensure_future(self._stream(done.value, keeps_alive))
                self._task.add_done_callback(self._next)
                return
            self._task = asyncio.ensure_future(self._rest(step, waits_for, keeps_alive))
            self._task.add_done_callback(self._next)
            return
        self._watch_idleness()

    def _next(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            self.abort()
        if self._transport is not None:
            self._transport.resume_reading()
            self._work()

    async def _rest(self, step: Any, waits_for: Any, keeps_alive: bool) -> None:
        answer = await _Resumed(step, waits_for)
        if isinstance(answer, Stream):
            await self._stream(answer, keeps_alive)
        else:
            self._write(answer, keeps_alive)

    def _refuse(self, failure: Failure) -> None:
        self._write(Answer.refusal(failure), keeps_alive=False)

    def _write(self, answer: Answer, keeps_alive: bool, is_head: bool = False) -> None:
        if self._transport is None:
            return
        end = "" if keeps_alive else "Connection: close\r\n"
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n{extra}"
            f"{end}\r\n"
        ).encode("latin-1", "replace")
        self._transport.write(head if is_head else head + answer.body)
        if not keeps_alive:
            self._transport.close()

    async def _stream(self, stream: Stream, keeps_alive: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {stream.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        transport.write(head.encode("latin-1"))
        async for chunk in stream.chunks:
            if self._transport is None:
                return
            transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if not self._can_write.is_set():
                try:
                    await asyncio.wait_for(self._can_write.wait(), SLOW_READER_SECONDS)
                except TimeoutError:
                    transport.abort()
                    return
        if self._transport is not None:
            transport.write(b"0\r\n\r\n")
            if not keeps_alive:
                transport.close()


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
