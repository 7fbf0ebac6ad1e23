"""One connection of an HTTP/1.1 client, straight on asyncio's protocols, with TLS of its own.

Small requests and long watches are all there is to do, and for those a general client takes twice the CPU.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

import httptools

from stowplan.errors import InputError

MAX_HEAD_BYTES = 1 << 20
"""No server needs more for a status line and headers; also allowed for the framing of a chunked body."""
READ_BYTES = 256 * 1024

OnData = Callable[[bytes], None]


class Reply(NamedTuple):
    """What a client gets for a request."""

    status: int
    data: bytes
    retry_after: float | None = None


class BrokenError(Exception):
    """The connection broke, or the server did not send HTTP."""


class TooLargeError(Exception):
    """The response is larger than allowed; the rest of it was not read."""


class Channel(asyncio.Protocol):
    """One connection. The parser calls `on_…` for what it finds in a response."""

    _transport: Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self.sent_at = self._loop.time()
        self._reply: asyncio.Future[Reply] | None = None
        self._status, self._has_end = 0, False
        self._on_data: OnData | None = None
        self._retry_after: float | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._deadline = math.inf
        self._deadline_timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return not self._transport.is_closing()

    @property
    def is_free(self) -> bool:
        return self._reply is None

    def send(
        self,
        message: bytes,
        on_data: OnData | None = None,
        *,
        is_tunnel: bool = False,
        max_body_bytes: float = math.inf,
    ) -> asyncio.Future[Reply]:
        self._parser: httptools.HttpResponseParser | None = None
        self._status, self._retry_after, self._has_end = 0, None, False
        self._body: bytes | bytearray = b""
        self._received, self._max_body_bytes = 0, max_body_bytes
        self._on_data, self._is_tunnel = on_data, is_tunnel
        self._reply, self._deadline = self._loop.create_future(), math.inf
        self.sent_at = self._loop.time()
        self._transport.write(message)
        return self._reply

    def watch_silence(self, seconds: float, open_seconds: float) -> None:
        """Fail if nothing arrives for so long, or no head of a response within `open_seconds`."""

        def check() -> None:
            end = self.heard_at + seconds if self._status else self.sent_at + open_seconds
            left = end - self._loop.time()
            if left <= 0:
                self._fail(TimeoutError())
            else:
                self._silence = self._loop.call_later(left, check)

        self._silence = self._loop.call_later(min(seconds, open_seconds), check)

    def give_up_after(self, seconds: float) -> None:
        """Fail if the response is not complete by then."""
        # The timer is left running for the answers that follow: one for each of them would cost more.
        self._deadline = self._loop.time() + seconds
        timer = self._deadline_timer
        if timer is None or timer.when() > self._deadline:
            self._end_deadline()
            self._deadline_timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline_timer = None
        if self._reply is None or self._deadline == math.inf:  # a watch has no deadline
            return
        if self._loop.time() < self._deadline:
            self._deadline_timer = self._loop.call_at(self._deadline, self._check_deadline)
        else:
            self._fail(TimeoutError())

    async def secure(self, tls: ssl.SSLContext, name: str) -> None:
        """Start TLS on the connection; if it has TLS already, through a proxy, within that."""
        stream = TlsStream(self, tls, name)
        stream.start(self._transport)
        self._transport = stream
        await stream.ready

    def abort(self) -> None:
        self._end_silence()
        self._end_deadline()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        if self._reply is None:  # nobody asked
            self.abort()
            return
        if self._parser is None:
            if self._on_data is None and self._is_plain(data):
                return
            self._parser = httptools.HttpResponseParser(self)
        self._received += len(data)
        if self._received > self._max_received:
            self._fail(self._too_large())
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(BrokenError(f"what came is not HTTP: {error}"))

    @property
    def _max_received(self) -> float:
        """Limit of bytes from the network, so that headers and the framing of chunks are bounded too."""
        if not self._status:
            return MAX_HEAD_BYTES + READ_BYTES  # the first part of the body may have come with the head
        return math.inf if self._on_data is not None else MAX_HEAD_BYTES + READ_BYTES + self._max_body_bytes

    def _too_large(self) -> TooLargeError:
        if not self._status:
            return TooLargeError(f"the head of the answer is larger than {MAX_HEAD_BYTES} bytes")
        return TooLargeError(f"the answer is larger than {self._max_body_bytes:.0f} bytes")

    def _is_plain(self, data: bytes) -> bool:
        """Take a successful response that arrived whole, as nearly all do, without the parser's callbacks."""
        end = data.find(b"\r\n\r\n")
        head = data[: end + 2].lower()
        length = _length_in(head)
        if length < 0 or len(data) != end + 4 + length or length > self._max_body_bytes:
            return False
        self._status, self._has_end = int(head[9:12]), True
        self._body = data[end + 4 :]
        self._finish()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        if self._status and not self._has_end and self._on_data is None:
            self._finish()  # an answer that ends with the connection
        self._fail(error if isinstance(error, OSError) else BrokenError("closed by the other side"))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"retry-after" and value.isdigit():
            self._retry_after = float(value)
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        if self._status >= 300:
            self._on_data = None
        elif self._on_data is not None:
            self._on_data(b"")
        if self._is_tunnel:
            self._finish()

    def on_body(self, data: bytes) -> None:
        if self._on_data is None:
            if not isinstance(self._body, bytearray):
                self._body = bytearray()  # grows in place: a list of tiny chunks takes far more memory
            self._body += data
            if len(self._body) > self._max_body_bytes:
                self._fail(self._too_large())
        elif self._reply is not None:
            try:
                self._on_data(data)
            except Exception as error:
                self._fail(error)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        keep = self._parser.should_keep_alive()
        self._finish()
        if not keep:
            self.abort()

    def _finish(self) -> None:
        self._end_silence()
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(Reply(self._status, bytes(self._body), self._retry_after))
        self._reply = None

    def _fail(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        self._reply = None
        self.abort()

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _end_deadline(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None


def _length_in(head: bytes) -> int:
    """The length of a successful response whose head, in lower case, has no other framing; -1 for others."""
    before, is_given, after = head.partition(b"\r\ncontent-length: ")
    number = after[: after.find(b"\r\n")]
    is_plain = (
        is_given
        and before.startswith(b"http/1.1 2")
        and number.isdigit()
        and b"\r\ncontent-length:" not in after
        and b"\r\nconnection:" not in head
        and b"\r\ntransfer-encoding:" not in head
    )
    return int(number) if is_plain and len(number) < 12 else -1


@lru_cache(maxsize=64)
def header_lines(host: str, headers: tuple[tuple[str, str], ...]) -> str:
    """Cached: the same for most requests."""
    lines = [f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise InputError(
            "a request header has characters that are not allowed in HTTP; check the credentials"
        )
    return "".join(f"{line}\r\n" for line in lines)


class Transport(Protocol):
    """The methods of a transport that we need."""

    def write(self, data: bytes) -> None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def set_protocol(self, protocol: Any) -> None: ...


class TlsStream(asyncio.Protocol):
    """TLS on a connection, in half the steps of asyncio's own and without a buffer for each connection.

    Stands between a transport and a protocol, for which it is the transport once `ready` has a result.
    """

    def __init__(self, inner: asyncio.Protocol, tls: ssl.SSLContext, server_hostname: str) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # For the one inside

    def write(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._break(error)
        else:
            self._send()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._inner = protocol

    def start(self, transport: Transport) -> None:
        """Start the handshake on an open connection."""
        self._transport = transport
        transport.set_protocol(self)
        self._shake_hands()

    # For the one outside

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self.ready.done():
            self._shake_hands()
        elif self._decrypt():
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("closed by the other side"))
        self._inner.connection_lost(error)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError as error:  # certificates that are not trusted, too
            self._send()  # what tells the other side why
            self._break(error)
        else:
            self._send()
            self.ready.set_result(None)
            if self._decrypt():
                self._send()

    def _decrypt(self) -> bool:
        """Pass on what has arrived; return whether the connection is still open."""
        try:
            while plain := self._tls.read(READ_BYTES):
                self._inner.data_received(plain)
                if not self._incoming.pending and not self._tls.pending():
                    return True  # asked for more, it would raise
        except ssl.SSLWantReadError:
            return True
        except ssl.SSLError as error:
            self._break(error)
            return False
        self._transport.close()
        return False

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _break(self, error: ssl.SSLError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self._transport.abort()
