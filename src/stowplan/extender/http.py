"""A bare HTTP/1.1 server: a body comes in, an answer goes out, the connection stays for the next one.

kube-scheduler waits for every answer, so what a request costs besides the plugins is kept small. Nobody can
hold it up: what is too large is refused before it is read, and a request that never ends is cut.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import httptools

from stowplan import log
from stowplan.errors import InputError

GOODBYE_SECONDS = 2.0
LARGE = 2**18
"""Bytes that are better sent by themselves than copied once more."""
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


class Answer(NamedTuple):
    body: bytes
    status: int = 200
    content_type: str = JSON


class Route(NamedTuple):
    """What a path does with a body; an answer that is awaited lets others be answered meanwhile."""

    answer: Callable[[bytes], Answer | Awaitable[Answer]]
    method: bytes = b"POST"


class Limits(NamedTuple):
    """What a client may take."""

    body_bytes: int = 100 * 2**20
    request_seconds: float = 30
    """From the first byte of a request to its last."""
    idle_seconds: float = 150
    """Between requests: longer than a Go client keeps a connection, so that it is the one to end it."""
    connections: int = 512


class HttpServer:
    """An async context: answers while inside."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        self._host, self._port, self.routes, self._tls, self.limits = host, port, routes, tls, limits
        self.connections: dict[Connection, None] = {}

    async def __aenter__(self) -> HttpServer:
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Connection(self), self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            raise InputError(
                f"cannot listen: {error.strerror or error}; choose another address or port",
                where=f"{self._host}:{self._port}",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for connection in tuple(self.connections):
            connection.close()

    @property
    def port(self) -> int:
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def answer(self, method: bytes, path: str, body: bytes) -> Answer | Awaitable[Answer]:
        route = self.routes.get(path)
        if route is None:
            known = ", ".join(self.routes)
            return text(404, f"nothing is served at {path}; there is {known}")
        if method != route.method:
            return text(405, f"{path} takes {route.method.decode()}, not {method.decode()}")
        try:
            return route.answer(body)
        except Exception as error:
            return failed(error, path)


def text(status: int, words: str) -> Answer:
    return Answer(f"{words}\n".encode(), status, TEXT)


def failed(error: Exception, path: str) -> Answer:
    """For what nobody foresaw."""
    log.error("Request failed", error, path=path)
    return text(500, f"{type(error).__name__}: {error}")


class Connection(asyncio.Protocol):
    """One client. The parser calls `on_…` back for what it finds in a request."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._url, self._refused = b"", False
        self._chunks: list[bytes] = []
        self._size = self._announced = self._length = 0
        """What has come of the body, how long it says it is, and the same once all headers are there."""

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connections = self._server.connections
        connections[self] = None
        if len(connections) > self._server.limits.connections:
            next(iter(connections)).abort()  # the oldest: a flood must not keep out who comes now
        self._wait(self._server.limits.request_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._size + len(data) <= self._length:
            self._take_body(data)
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self._send(text(400, f"that is not HTTP/1.1: {error}"), keep=False)

    def on_message_begin(self) -> None:
        self._begin()
        self._wait(self._server.limits.request_seconds)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length" and value.isdigit():
            self._announced = int(value)
            self._limit(self._announced)
        elif name == b"expect" and not self._refused:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._length = self._announced

    def on_body(self, data: bytes) -> None:
        if not self._refused:
            self._chunks.append(data)
            self._size += len(data)
            self._limit(self._size)

    def _take_body(self, data: bytes) -> None:
        """More of a body whose length is known: there is nothing to parse, and a whole node list is large."""
        self.on_body(data)
        if self._size == self._length and not self._refused:
            self._parser, old = httptools.HttpRequestParser(self), self._parser
            self._answer(old)

    def _limit(self, size: int) -> None:
        most = self._server.limits.body_bytes
        if size > most and not self._refused:
            self._refuse(413, f"the body is larger than {most // 2**20} MiB; --max-body changes that")

    def on_message_complete(self) -> None:
        if self._refused:
            self._transport.close()
        else:
            self._answer(self._parser)

    def _answer(self, parser: httptools.HttpRequestParser) -> None:
        keep, path = parser.should_keep_alive(), httptools.parse_url(self._url).path.decode(errors="replace")
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._begin()
        answer = self._server.answer(parser.get_method(), path, body)
        if isinstance(answer, Answer):
            self._send(answer, keep)
        else:
            self._transport.pause_reading()  # one request at a time
            self._task = self._loop.create_task(self._send_later(answer, path, keep))

    async def _send_later(self, awaited: Awaitable[Answer], path: str, keep: bool) -> None:
        self._stop_waiting()
        try:
            answer = await awaited
        except Exception as error:
            answer = failed(error, path)
        self._task = None
        self._send(answer, keep)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _send(self, answer: Answer, keep: bool) -> None:
        if self._transport.is_closing():
            return
        ending = b"" if keep else b"Connection: close\r\n"
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        )
        first = b"".join((head.encode(), ending, b"\r\n"))
        if len(answer.body) < LARGE:
            self._transport.write(first + answer.body)
        else:
            self._transport.write(first)
            self._transport.write(answer.body)
        self._wait(self._server.limits.idle_seconds)
        if not keep and not self._refused:
            self._transport.close()

    def _refuse(self, status: int, words: str) -> None:
        """Answers now, and drops what still comes for a moment: closed at once, many clients hear nothing."""
        self._refused, self._chunks = True, []
        self._send(text(status, words), keep=False)
        self._wait(GOODBYE_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Cuts the connection unless something ends the wait by then."""
        # A timer for each request would cost more than one that looks whether it is time yet.
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._stop_waiting()
            self._timer = self._loop.call_at(self._deadline, self._check)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check)
        else:
            self._transport.abort()
