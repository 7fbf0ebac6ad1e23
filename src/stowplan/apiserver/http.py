"""`serve` puts an API server behind a port, with TLS and a token."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from stowplan.apiserver.failures import Failure
from stowplan.apiserver.rbac import ADMIN, NOBODY, User
from stowplan.apiserver.server import ApiServer
from stowplan.http11.messages import Request, Response, Stream
from stowplan.http11.server import Limits, Plain, listen
from stowplan.serving.certificates import self_signed

DEFAULT_LIMITS = Limits()
MAX_BODY = DEFAULT_LIMITS.body
_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")


class Pair(NamedTuple):
    """A certificate with its key, in PEM."""

    certificate: bytes
    key: bytes


class Endpoint(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    certificate: bytes


def make_certificate() -> Pair:
    """Make a self-signed certificate for this machine."""
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
    plain: Plain | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve until the end of the `async with`; in plain HTTP without `tls`, for everybody without a token.

    `plain` serves clients of this machine that do not speak TLS.
    """
    server.access.token = token
    context = _context(tls) if tls is not None else None
    async with listen(
        _TokenAccess(server, token), host, port, tls=context, limits=limits, plain=plain
    ) as listener:
        await server.advertise(*listener)
        yield Endpoint(*listener, tls.certificate if tls else b"")


class _TokenAccess:
    """Accepts requests with the token, and service accounts with their own."""

    def __init__(self, server: ApiServer, token: str) -> None:
        self._server, self._token = server, token

    def _user(self, authorization: str) -> User | None:
        scheme, _, rest = authorization.strip().partition(" ")
        token = rest.partition(" ")[0]
        found = self._server.access.user_of(token)[0] if scheme.lower() == "bearer" and token else None
        return found if found is not None or self._token else ADMIN

    def authenticates(self, authorization: bytes) -> bool:
        return self._user(authorization.decode("latin-1")) is not None

    def is_public(self, url: bytes) -> bool:
        return unquote(url.decode("latin-1")).startswith(_OPEN_PATHS)

    def handle(self, request: Request) -> Awaitable[Response | Stream]:
        request.user = self._user(request.headers.get("authorization", "")) or NOBODY
        return self._server.handle(request)

    def reject(self, status: int, limits: Limits) -> Response:
        match status:
            case 400:
                failure = Failure(400, "BadRequest", "the request is not HTTP")
            case 401:
                failure = Failure(401, "Unauthorized", "Unauthorized")
            case 413:
                message = f"Request entity too large: limit is {limits.body}"
                failure = Failure(413, "RequestEntityTooLarge", message)
            case 429:
                message = "too many large responses have not been read yet: try again, or use limit"
                details, headers = {"retryAfterSeconds": 1}, (("Retry-After", "1"),)
                failure = Failure(429, "TooManyRequests", message, details=details, headers=headers)
            case _:
                message = f"the headers are too large: limit is {limits.headers} bytes"
                failure = Failure(status, "RequestHeaderFieldsTooLarge", message)
        return failure.response()


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
