"""HTTP/1.1 to one server, straight on asyncio's protocols.

Small requests and long watches are all there is to do, and for those a general client takes twice the CPU.
Every request has a connection to itself while it lasts; connections are kept for the next one.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import ssl
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit

import httptools

from stowplan.client.errors import Unreachable
from stowplan.client.tls_stream import READ_BYTES, TlsStream, Transport
from stowplan.client.turns import Turns
from stowplan.errors import InputError

IDLE_SECONDS = 60.0  # API servers close connections after 90
MAX_HEAD_BYTES = 1 << 20
"""No server needs more for a status line and headers; also allowed for the framing of a chunked body."""

OnData = Callable[[bytes], None]


class Reply(NamedTuple):
    status: int
    data: bytes
    retry_after: float | None = None


class Pool(Protocol):
    """What carries requests to one server."""

    @property
    def at_once(self) -> int:
        """How many requests are under way at the same time before others wait for their turn."""
        ...

    async def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
        *,
        timeout: float,
        before: Callable[[], None] = ...,
    ) -> Reply:
        """The whole answer, within `timeout` seconds of waiting for it.

        `before` is called at the last moment before the request is sent; if it raises, it is not sent.
        """
        ...

    async def stream(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        on_data: OnData,
        *,
        timeout: float,
        silence: float,
        open_seconds: float,
    ) -> Reply:
        """Hands a good answer on as it comes, until its end; a refusal is returned whole.

        `on_data` is called first with nothing, when the head of a good answer is there, which may take
        `open_seconds`; after that, nothing coming for `silence` seconds ends it.
        """
        ...

    def drop_idle(self) -> None:
        """Makes new connections for the next requests: those kept may have broken without a word."""
        ...

    async def close(self) -> None: ...


class BrokenError(Exception):
    """The connection is no more, or what came was no HTTP."""


class TooLargeError(Exception):
    """The answer is larger than allowed; the rest of it was not read."""


class HttpPool:
    """Connections to one server, made when needed."""

    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        proxy: str = "",
        idle_seconds: float = IDLE_SECONDS,
        max_body_bytes: float = math.inf,
    ) -> None:
        self._server, self._url = server, urlsplit(server)
        self._tls = (ssl_context or ssl.create_default_context()) if self._url.scheme == "https" else None
        self._server_hostname = server_hostname or self._url.hostname or ""
        self._proxy = urlsplit(proxy) if proxy else None
        self._idle_seconds, self._max_body_bytes = idle_seconds, max_body_bytes
        self._idle: list[_Channel] = []
        self._open: set[_Channel] = set()
        self._turns = Turns()

    @property
    def at_once(self) -> int:
        return self._turns.at_once

    async def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
        *,
        timeout: float,
        before: Callable[[], None] = lambda: None,
    ) -> Reply:
        head = self._head(method, path, headers, body)
        await self._turns.take()
        try:
            return await self._exchange(method, path, head, timeout=timeout, before=before)
        finally:
            self._turns.give_back()

    async def stream(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        on_data: OnData,
        *,
        timeout: float,
        silence: float,
        open_seconds: float,
    ) -> Reply:
        head = self._head("GET", path, headers, None)
        return await self._exchange(
            "GET",
            path,
            head,
            timeout=timeout,
            on_data=on_data,
            silence=silence,
            open_seconds=open_seconds,
        )

    def drop_idle(self, heard_before: float = math.inf) -> None:
        kept = [channel for channel in self._idle if channel.heard_at >= heard_before]
        for channel in set(self._idle).difference(kept):
            channel.abort()
        self._idle = kept

    async def close(self) -> None:
        channels = list(self._open)
        for channel in channels:
            channel.abort()
        if channels:
            await asyncio.wait([channel.closed for channel in channels], timeout=1)

    async def _exchange(
        self,
        method: str,
        path: str,
        message: bytes,
        *,
        timeout: float,
        on_data: OnData | None = None,
        silence: float = 0,
        open_seconds: float = 0,
        before: Callable[[], None] = lambda: None,
    ) -> Reply:
        channel = None
        try:
            channel = self._kept()
            if channel is None:
                async with asyncio.timeout(timeout if on_data is None else open_seconds):
                    channel = await self._connect()
            before()
            reply = channel.send(message, on_data, max_body_bytes=self._max_body_bytes)
            if on_data is not None:
                channel.watch_silence(silence, open_seconds)
            else:
                channel.give_up_after(timeout)
            found = await reply
        except (BrokenError, TooLargeError, OSError, ssl.CertificateError) as error:  # OSError: time-outs too
            if isinstance(error, TimeoutError) and channel is not None:
                # What broke this connection without a word may have broken the others: a firewall or a NAT
                # that forgot them, a machine that is gone. Those heard since the request are fine.
                self.drop_idle(channel.sent_at)
            raise Unreachable(
                f"{method} {self._server}{path.partition('?')[0]}: {_in_words(error)}"
            ) from error
        finally:
            if channel is not None:
                self._release(channel)
        return found

    def _head(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
        target = self._url.path + path
        if self._proxy is not None and self._tls is None:
            target = f"{self._url.scheme}://{self._url.netloc}{target}"
            headers = (*headers, *_proxy_authorization(self._proxy))
        first = f"{method} {target} HTTP/1.1"
        if not (first.isascii() and first.isprintable()):
            raise InputError("a path has characters that HTTP does not allow")
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        text = f"{first}\r\n{_lines(self._url.netloc, tuple(headers))}{length}\r\n"
        return text.encode() + (body or b"")

    def _kept(self) -> _Channel | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            channel = self._idle.pop()
            if channel.is_usable and now - channel.heard_at < self._idle_seconds:
                return channel
            channel.abort()
        return None

    def _release(self, channel: _Channel) -> None:
        if channel.is_usable and channel.is_free:
            self._idle.append(channel)
        else:
            channel.abort()

    async def _connect(self) -> _Channel:
        if self._proxy is not None:
            return await self._connect_by(self._proxy)
        return await self._dial(self._url, self._tls, self._server_hostname)

    async def _connect_by(self, proxy: SplitResult) -> _Channel:
        proxy_tls = ssl.create_default_context() if proxy.scheme == "https" else None
        channel = await self._dial(proxy, proxy_tls, proxy.hostname or "")
        if self._tls is None:
            return channel
        place = f"{self._url.hostname}:{_port(self._url)}"
        asked = f"CONNECT {place} HTTP/1.1\r\n{_lines(place, tuple(_proxy_authorization(proxy)))}\r\n"
        try:
            reply = await channel.send(asked.encode(), is_tunnel=True)
            if reply.status != 200:
                raise BrokenError(f"proxy {proxy.hostname} answered with status {reply.status}")
            await channel.secure(self._tls, self._server_hostname)
        except BaseException:
            channel.abort()
            raise
        return channel

    async def _dial(self, url: SplitResult, tls: ssl.SSLContext | None, name: str) -> _Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(_Channel, url.hostname or "", _port(url))
        self._keep_track(channel)
        if tls is not None:
            try:
                await channel.secure(tls, name)
            except BaseException:
                channel.abort()
                raise
        return channel

    def _keep_track(self, channel: _Channel) -> None:
        self._open.add(channel)
        channel.closed.add_done_callback(lambda _: self._open.discard(channel))


class _Channel(asyncio.Protocol):
    """One connection. The parser calls `on_…` back for what it finds in an answer."""

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
        self._deadline = 0.0
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
        self._reply = self._loop.create_future()
        self.sent_at = self._loop.time()
        self._transport.write(message)
        return self._reply

    def watch_silence(self, seconds: float, open_seconds: float) -> None:
        """Gives up once nothing has come for so long, or no head of an answer within `open_seconds`."""

        def check() -> None:
            end = self.heard_at + seconds if self._status else self.sent_at + open_seconds
            left = end - self._loop.time()
            if left <= 0:
                self._fail(TimeoutError())
            else:
                self._silence = self._loop.call_later(left, check)

        self._silence = self._loop.call_later(min(seconds, open_seconds), check)

    def give_up_after(self, seconds: float) -> None:
        """Gives up if the answer is not whole by then."""
        # The timer is left running for the answers that follow: one for each of them would cost more.
        self._deadline = self._loop.time() + seconds
        timer = self._deadline_timer
        if timer is None or timer.when() > self._deadline:
            self._end_deadline()
            self._deadline_timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline_timer = None
        if self._reply is None:
            return
        if self._loop.time() < self._deadline:
            self._deadline_timer = self._loop.call_at(self._deadline, self._check_deadline)
        else:
            self._fail(TimeoutError())

    async def secure(self, tls: ssl.SSLContext, name: str) -> None:
        """From now on all goes through TLS; where it did before, through both."""
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
        """Bytes from the network, so that neither headers nor the framing of chunks are without end."""
        if not self._status:
            return MAX_HEAD_BYTES + READ_BYTES  # the first part of the body may have come with the head
        return math.inf if self._on_data is not None else MAX_HEAD_BYTES + READ_BYTES + self._max_body_bytes

    def _too_large(self) -> TooLargeError:
        if not self._status:
            return TooLargeError(f"the head of the answer is larger than {MAX_HEAD_BYTES} bytes")
        return TooLargeError(f"the answer is larger than {self._max_body_bytes:.0f} bytes")

    def _is_plain(self, data: bytes) -> bool:
        """Takes a good answer that came whole, as nearly all do: a parser would ask back for each header."""
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
    """How long a good answer is whose head, in small letters, has nothing else to obey; -1 for others."""
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


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _proxy_authorization(proxy: SplitResult) -> Iterable[tuple[str, str]]:
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        yield "Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"


@lru_cache(maxsize=64)
def _lines(host: str, headers: tuple[tuple[str, str], ...]) -> str:
    """The same for most requests."""
    lines = [f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise InputError(
            "a header of the request has characters that HTTP does not allow; check the credentials"
        )
    return "".join(f"{line}\r\n" for line in lines)


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the API server's certificate is not trusted ({error.verify_message}); set "
            "certificate-authority or certificate-authority-data of the cluster in the kubeconfig to the "
            "authority that signed it"
        )
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, TooLargeError):
        return str(error)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, BrokenError, ssl.SSLError)):
        return f"the connection broke ({error or type(error).__name__})"
    number = getattr(error, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else getattr(error, "strerror", "") or error
    return f"cannot connect ({reason}); is the server's address right, and is it running?"
