"""The HTTPS server of the scheduler's pages, with bounded connections.

A connection serves one request and lives for seconds, however slowly a client sends or reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from stowplan.errors import InputError, describe_os_error
from stowplan.log import error as log_error
from stowplan.log import log
from stowplan.serving import aiohttp_web as web
from stowplan.serving.access import (
    AccessReviewer,
    Authentication,
    Authorization,
    TokenReviewer,
    User,
)
from stowplan.serving.certificates import ServerCertificates
from stowplan.serving.options import ServingOptions
from stowplan.serving.pages import Page

REFRESH_SECONDS = 60
SHUTDOWN_SECONDS = 2
HEADERS = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}
_SANITIZED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Limits(NamedTuple):
    """Limits on what a client can use."""

    handshake_seconds: float = 10
    connection_seconds: float = 30
    """From the handshake to the last byte of the answer."""
    connections: int = 512
    """Beyond it the oldest is closed: a flood must not keep out the kubelet's probes."""


LIMITS = Limits()


class Server:
    """An async context: serves while inside. With --secure-port=0 it does nothing."""

    def __init__(
        self,
        options: ServingOptions,
        pages: Mapping[str, Page],
        *,
        tokens: TokenReviewer | None = None,
        access: AccessReviewer | None = None,
        client_ca: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        """`client_ca` is the cluster's, in PEM; --client-ca-file goes before it."""
        self._options, self._pages = options, pages
        self._authentication = Authentication(options, tokens)
        self._authorization = Authorization(options, access)
        self._limits = limits
        self._certificates = ServerCertificates(options, client_ca) if options.secure_port else None

    async def __aenter__(self) -> Server:
        options, certificates = self._options, self._certificates
        if certificates is None:
            return self
        self._connections = web.LazyServer(lambda: _make_short_lived(self._answer, self._limits))
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._connections,
                options.bind_address,
                options.secure_port,
                ssl=certificates.context,
                ssl_handshake_timeout=self._limits.handshake_seconds,
                reuse_port=options.permit_port_sharing or None,
                reuse_address=options.permit_address_sharing or None,
            )
        except OSError as error:
            address = f"{options.bind_address}:{options.secure_port}"
            raise InputError(
                f"cannot listen: {describe_os_error(error)}; choose another --bind-address or --secure-port",
                where=address,
            ) from error
        # Of our own, since those of the event loop are for it alone.
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in self._listener.sockets]
        self._refreshing = asyncio.create_task(self._refresh(certificates))
        log(0, "Serving securely", address=options.bind_address, port=options.secure_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._certificates is None:
            return
        self._refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await self._refreshing
        self._listener.close()
        for each in self._sockets:
            each.close()
        await self._connections.shutdown(SHUTDOWN_SECONDS)

    def answer_waiting(self, failed_check: str) -> None:
        """Answer waiting clients that this health check fails; for a thread that sees the event loop hang."""
        if self._certificates is not None:
            answer_waiting(self._sockets, self._certificates.context, failed_check)

    async def _refresh(self, certificates: ServerCertificates) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                certificates.refresh()
            except Exception as error:  # those in use stay, until the next time
                log_error("Cannot refresh certificates", error)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        response = await self._answer_permitted(request)
        response.headers.update(HEADERS)
        response.force_close()
        return response

    async def _answer_permitted(self, request: web.BaseRequest) -> web.Response:
        user = await self._user(request)
        if user is None:
            return status_response(401, "Unauthorized", "Unauthorized")
        path, verb = request.path, request.method.lower()
        try:
            is_allowed = await self._authorization.allows(user, path, verb)
        except Exception as error:
            log_error("Unable to authorize the request", error, user=user.name, path=path)
            what = str(error) or type(error).__name__
            text = f'Internal Server Error: "{request.raw_path}": {what}\n'
            return web.Response(status=500, text=text.translate(_SANITIZED))
        if not is_allowed:
            message = f'User "{user.name}" cannot {verb} path "{path}"'.translate(_SANITIZED)
            return status_response(403, "Forbidden", f"forbidden: {message}", details={})
        return await self._page(request)

    async def _user(self, request: web.BaseRequest) -> User | None:
        certificate = request.get_extra_info("peercert")
        try:
            return await self._authentication.user_of(certificate, request.headers.get("Authorization", ""))
        except Exception as error:
            log_error("Unable to authenticate the request", error)
            return None

    async def _page(self, request: web.BaseRequest) -> web.Response:
        page = self._pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="404 page not found\n")
        try:
            answer = page(request)
            return answer if isinstance(answer, web.Response) else await answer
        except Exception as error:
            log_error("Cannot render the page", error, path=request.path)
            return web.Response(status=500, text=f"Internal Server Error: {error}\n")


def _make_short_lived(answer: Any, limits: Limits) -> web.Server:
    """A server whose connections have a maximum age and a maximum number."""

    class ShortLived(web.Server):
        def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            super().connection_made(handler, transport)
            asyncio.get_running_loop().call_later(limits.connection_seconds, transport.abort)
            for oldest in self.connections[: -limits.connections]:
                if oldest.transport is not None:
                    oldest.transport.abort()

    # aiohttp's own lines are about what strangers sent: nothing to act on.
    quiet = logging.getLogger("stowplan.serving.connections")
    quiet.disabled = True
    return ShortLived(answer, logger=quiet, access_log=None, lingering_time=0, auto_decompress=False)


def status_response(code: int, reason: str, message: str, **details: object) -> web.Response:
    """An error, as a Kubernetes Status object."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **details,
        "code": code,
    }
    return web.Response(status=code, body=msgspec.json.encode(body) + b"\n", content_type="application/json")


CLIENT_SECONDS = 2.0
"""Handle one client while the others wait."""
MAX_REQUEST = 8192
RESPONSE = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b"
)


def answer_waiting(listeners: Iterable[socket.socket], context: ssl.SSLContext, check: str) -> None:
    """Tell every client that has connected by now that this check has failed."""
    ready, _, _ = select.select(list(listeners), [], [], 0)
    for listener in ready:
        with suppress(OSError):  # such as a failed handshake, or a client that left
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(CLIENT_SECONDS)
                with context.wrap_socket(connection, server_side=True) as channel:
                    _answer(channel, check)


def _answer(channel: ssl.SSLSocket, check: str) -> None:
    request = b""
    while b"\r\n\r\n" not in request and len(request) < MAX_REQUEST:
        data = channel.recv(MAX_REQUEST)
        if not data:
            return
        request += data
    path = request.split(b" ", 2)[1].partition(b"?")[0].strip(b"/").decode(errors="replace")
    if path in ("livez", "healthz", "readyz"):
        text = f"[-]{check} failed: reason withheld\n{path} check failed\n".encode()
        channel.sendall(RESPONSE % (len(text), text))
