"""How to reach one API server: its address, TLS settings and our credentials, and a pool of connections.

Every request has a connection to itself while it lasts; connections are kept for the next one.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from ipaddress import ip_address, ip_network
from time import monotonic
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from stowplan.client.credentials import Credential
from stowplan.client.errors import Unreachable
from stowplan.errors import InputError, describe_os_error
from stowplan.http11.client import BrokenError, Channel, OnData, Reply, TooLargeError, header_lines

IDLE_SECONDS = 60.0  # API servers close connections after 90
INITIAL_REQUESTS, MAX_REQUESTS = 16, 64
LONG_WAIT_SECONDS = 0.1
"""A wait this long lets the limit grow, and it grows no more often than this."""
BUSY = 2.0
"""A server that takes so many times as long for writes as for quick ones is busy: with more requests at once,
each would take longer."""
JUDGED_WRITES = 13
"""How many writes it is judged by, the last ones: single writes may be quick or slow by chance."""
FAULTS = (BrokenError, TooLargeError, OSError, ssl.CertificateError)
"""What ends an exchange without a response; OSError includes time-outs."""


class Pool(Protocol):
    """Sends requests to one server."""

    @property
    def at_once(self) -> int:
        """How many requests may be under way at the same time; others wait."""
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
        """Send a request and return the whole response, within `timeout` seconds.

        `before` is called at the last moment before the request is sent; if it raises, it is not sent.
        """
        ...

    async def stream(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        on_data: OnData,
        *,
        silence: float,
        open_seconds: float,
    ) -> Reply:
        """Pass a successful response to `on_data` as it arrives, until its end; return any other whole.

        `on_data` is called first with nothing, when the head of a good answer is there, which may take
        `open_seconds`; after that, nothing coming for `silence` seconds ends it.
        """
        ...

    async def open_ahead(self, count: int, *, timeout: float) -> None:
        """Open connections until so many are idle or used by requests, if the server can be reached.

        Each may take `timeout` seconds.
        """
        ...

    def drop_idle(self) -> None:
        """Close idle connections, so that the next requests open new ones: the old ones may be dead."""
        ...

    def beside(self) -> Pool:
        """A pool with a limit of its own that uses the same connections, as long as this one is open."""
        ...

    async def close(self) -> None: ...


class AdaptiveSemaphore:
    """Limits how many requests are under way: first come, first served, more at once while waits are long.

    A connection costs both sides milliseconds of handshake. A quick API server needs few of them, and one
    that is busy has no use for more: they help where it waits for its storage, or is far away. So the limit
    grows by one now and then, while requests wait for long and the server takes no longer for them.
    """

    def __init__(
        self,
        initial: int = INITIAL_REQUESTS,
        maximum: int = MAX_REQUESTS,
        long_seconds: float = LONG_WAIT_SECONDS,
    ) -> None:
        self.limit = initial
        """How many may hold it at the same time, for now."""
        self.held = 0
        """How many hold it."""
        self._initial, self._maximum, self._long_seconds = initial, maximum, long_seconds
        self._grown_at, self._quick = 0.0, math.inf
        self._writes: deque[float] = deque(maxlen=JUDGED_WRITES)
        self._waiting: deque[tuple[asyncio.Future[None], float]] = deque()

    def try_acquire(self) -> bool:
        """Take it if that needs no wait."""
        if self.held < self.limit:
            self.held += 1
            return True
        return False

    async def acquire(self) -> None:
        if self.try_acquire():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, monotonic()))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come just now
                self.release()
            raise

    def release(self) -> None:
        self.held -= 1
        while self._waiting and self.held < self.limit:
            turn, since = self._waiting.popleft()
            if not turn.cancelled():
                self.held += 1
                turn.set_result(None)
                self._grow_after(since)
        if not self.held:
            # All of it is learned anew: the server may be another by then.
            self.limit, self._grown_at, self._quick = self._initial, 0.0, math.inf
            self._writes.clear()

    def write_took(self, seconds: float) -> None:
        """How long the server took for a write; reads, which it may answer from memory, say less."""
        self._writes.append(seconds)

    def _grow_after(self, since: float) -> None:
        now, is_busy = monotonic(), self._is_busy()
        is_long = now - max(since, self._grown_at) > self._long_seconds
        if is_long and not is_busy and self.limit < self._maximum:
            self.limit, self._grown_at = self.limit + 1, now

    def _is_busy(self) -> bool:
        writes, count = sorted(self._writes), len(self._writes)
        if count < 4:
            return False
        # Of the first requests, sent at once, only the first few are quick: a median would be too late.
        self._quick = min(self._quick, writes[count // 4])
        return writes[count // 2] > BUSY * self._quick


class HttpPool:
    """Connections to one server, opened on demand."""

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
        self._idle: list[Channel] = []
        self._open: set[Channel] = set()
        self._capacity = AdaptiveSemaphore()
        self._closes_connections = True

    @property
    def at_once(self) -> int:
        return self._capacity.limit

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
        message = self._head(method, path, headers, body)
        if not self._capacity.try_acquire():
            await self._capacity.acquire()
        channel = None
        try:
            channel = self._take_idle() or await self._connect_within(timeout)
            before()
            reply = channel.send(message, max_body_bytes=self._max_body_bytes)
            channel.give_up_after(timeout)
            answer = await reply
            if method != "GET" and answer.status < 300:
                self._capacity.write_took(channel.heard_at - channel.sent_at)
            return answer
        except FAULTS as error:
            raise self._unreachable(method, path, channel, error) from error
        finally:
            if channel is not None:
                self._release(channel)
            self._capacity.release()

    async def stream(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        on_data: OnData,
        *,
        silence: float,
        open_seconds: float,
    ) -> Reply:
        message = self._head("GET", path, headers, None)
        channel = None
        try:
            channel = self._take_idle() or await self._connect_within(open_seconds)
            reply = channel.send(message, on_data, max_body_bytes=self._max_body_bytes)
            channel.watch_silence(silence, open_seconds)
            return await reply
        except FAULTS as error:
            if isinstance(error, TimeoutError):
                self.drop_idle()  # a stream is sent long before it falls silent: none has been heard since
            raise self._unreachable("GET", path, channel, error) from error
        finally:
            if channel is not None:
                self._release(channel)

    async def open_ahead(self, count: int, *, timeout: float) -> None:
        with suppress(*FAULTS):  # the next request will say what is wrong
            for _ in range(count):
                if len(self._idle) + self._capacity.held >= count:  # requests did not wait for these
                    return
                self._release(await self._connect_within(timeout))

    def drop_idle(self, heard_before: float = math.inf) -> None:
        kept = [channel for channel in self._idle if channel.heard_at >= heard_before]
        for channel in set(self._idle).difference(kept):
            channel.abort()
        self._idle[:] = kept

    def beside(self) -> HttpPool:
        found = copy(self)  # with the same lists of connections
        found._capacity, found._closes_connections = AdaptiveSemaphore(), False
        return found

    async def close(self) -> None:
        channels = list(self._open) if self._closes_connections else []
        for channel in channels:
            channel.abort()
        if channels:
            await asyncio.wait([channel.closed for channel in channels], timeout=1)

    def _unreachable(self, method: str, path: str, channel: Channel | None, error: Exception) -> Unreachable:
        if isinstance(error, TimeoutError) and channel is not None:
            # What broke this connection without a word may have broken the others: a firewall or a NAT
            # that forgot them, a machine that is gone. Those heard since the request are fine.
            self.drop_idle(channel.sent_at)
        return Unreachable(f"{method} {self._server}{path.partition('?')[0]}: {_in_words(error)}")

    def _head(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> bytes:
        target = self._url.path + path
        if self._proxy is not None and self._tls is None:
            target = f"{self._url.scheme}://{self._url.netloc}{target}"
            headers = (*headers, *_proxy_authorization(self._proxy))
        first = f"{method} {target} HTTP/1.1"
        if not (first.isascii() and first.isprintable()):
            raise InputError("the path has characters that are not allowed in HTTP")
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        text = f"{first}\r\n{header_lines(self._url.netloc, tuple(headers))}{length}\r\n"
        return text.encode() + (body or b"")

    def _take_idle(self) -> Channel | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            channel = self._idle.pop()
            if channel.is_usable and now - channel.heard_at < self._idle_seconds:
                return channel
            channel.abort()
        return None

    def _release(self, channel: Channel) -> None:
        if channel.is_usable and channel.is_free:
            self._idle.append(channel)
        else:
            channel.abort()

    async def _connect_within(self, seconds: float) -> Channel:
        async with asyncio.timeout(seconds):
            return await self._connect()

    async def _connect(self) -> Channel:
        if self._proxy is not None:
            return await self._connect_by(self._proxy)
        return await self._dial(self._url, self._tls, self._server_hostname)

    async def _connect_by(self, proxy: SplitResult) -> Channel:
        proxy_tls = ssl.create_default_context() if proxy.scheme == "https" else None
        channel = await self._dial(proxy, proxy_tls, proxy.hostname or "")
        if self._tls is None:
            return channel
        place = f"{self._url.hostname}:{_port(self._url)}"
        asked = f"CONNECT {place} HTTP/1.1\r\n{header_lines(place, tuple(_proxy_authorization(proxy)))}\r\n"
        try:
            reply = await channel.send(asked.encode(), is_tunnel=True)
            if reply.status != 200:
                raise BrokenError(f"proxy {proxy.hostname} answered with status {reply.status}")
            await channel.secure(self._tls, self._server_hostname)
        except BaseException:
            channel.abort()
            raise
        return channel

    async def _dial(self, url: SplitResult, tls: ssl.SSLContext | None, name: str) -> Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(Channel, url.hostname or "", _port(url))
        self._keep_track(channel)
        if tls is not None:
            try:
                await channel.secure(tls, name)
            except BaseException:
                channel.abort()
                raise
        return channel

    def _keep_track(self, channel: Channel) -> None:
        self._open.add(channel)
        channel.closed.add_done_callback(lambda _: self._open.discard(channel))


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _proxy_authorization(proxy: SplitResult) -> Iterable[tuple[str, str]]:
    if proxy.username:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        yield "Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the API server's certificate is not trusted ({error.verify_message}); set "
            "certificate-authority or certificate-authority-data of the cluster in the kubeconfig to the "
            "authority that signed it"
        )
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, TooLargeError):
        return str(error)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, BrokenError, ssl.SSLError)):
        return f"the connection broke ({error or type(error).__name__})"
    reason = describe_os_error(error) if isinstance(error, OSError) else error
    return f"cannot connect ({reason}); is the server's address right, and is it running?"


class Connection:
    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        namespace: str = "default",
        credentials: Iterable[Credential] = (),
        fixed_headers: Iterable[tuple[str, str]] = (),
        proxy: str = "",
        server_hostname: str = "",
    ) -> None:
        self.server = _check_url(server).rstrip("/")
        self.ssl_context, self.namespace = ssl_context, namespace
        self.server_hostname = server_hostname or None
        self.proxy = proxy or proxy_of_environment(self.server)
        self._credentials, self._fixed_headers = tuple(credentials), tuple(fixed_headers)
        if self.proxy and urlsplit(self.proxy).scheme not in ("http", "https"):
            raise InputError(f"proxy {self.proxy}: only http and https proxies are supported")

    def open(self) -> Pool:
        """Open a connection pool; call it from the event loop that uses it."""
        return HttpPool(
            self.server,
            ssl_context=self.ssl_context,
            server_hostname=self.server_hostname,
            proxy=self.proxy,
        )

    @property
    def fixed_headers(self) -> Iterable[tuple[str, str]] | None:
        """The headers that authenticate us, if they are always the same; None if `headers` must be asked."""
        return None if self._credentials else self._fixed_headers

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers that authenticate us."""
        headers = list(self._fixed_headers)
        for credential in self._credentials:
            authorization = await credential.authorization()
            if authorization is not None:
                headers.append(("Authorization", authorization))
        return headers

    async def renew(self) -> bool:
        """Renew the credentials after a 401; return whether another attempt makes sense."""
        return any([await credential.renew() for credential in self._credentials])


def _check_url(server: str) -> str:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{server!r} is not the URL of an API server; expected one like https://10.0.0.1:6443"
        )
    return server


def tls_context(*, authority_text: str = "", insecure: bool = False, where: str = "") -> ssl.SSLContext:
    """Make a TLS context that trusts the CAs in the PEM text, or those of the system without one."""
    try:
        context = ssl.create_default_context(cadata=authority_text or None)
    except ssl.SSLError as error:
        raise InputError(
            f"the certificate authority is not PEM: {error.reason or error}", where=where
        ) from None
    # Certificates that Go's TLS is content with must do: without key identifiers, or trusted by themselves.
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def proxy_of_environment(server: str) -> str:
    """Return HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY matches the host or it is a loopback address."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass  # which takes longer to import than many a command

    parts = urlsplit(server)
    host, proxies = parts.hostname or "", getproxies()
    proxy = proxies.get(parts.scheme, "")
    if not proxy or host == "localhost" or proxy_bypass(parts.netloc):
        return ""
    try:
        address = ip_address(host)
    except ValueError:
        return proxy
    excepted = (entry.strip() for entry in proxies.get("no", "").split(",") if "/" in entry)
    return (
        ""
        if address.is_loopback or any(_is_within(address_range, host) for address_range in excepted)
        else proxy
    )


def _is_within(address_range: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(address_range, strict=False)
    except ValueError:
        return False
