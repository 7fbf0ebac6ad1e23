"""Requests and responses of a server, whatever transport carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import msgspec

Json = dict[str, Any]
Headers = tuple[tuple[str, str], ...]

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
# As kube-apiserver writes them; Python 3.13 has other phrases for these.
_PHRASES |= {413: "Request Entity Too Large", 422: "Unprocessable Entity"}


class Request(msgspec.Struct):
    """The names of `headers` are in lower case; `query` is what follows the question mark, still encoded.

    Only callers in this process can ask for bare objects: HTTP has no way to do that.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    is_bare: bool = False
    """Whether to leave out managed fields; working them out is most of the work of a write."""
    duplicates: str = ""
    """The keys that a YAML body had twice before it was converted to JSON, as an error names them."""
    user: object = None
    """The user, where the server knows it."""
    memory: dict[str, Any] = {}
    """What a server keeps while it answers the request in several attempts."""

    @classmethod
    def of(cls, method: str, target: str, body: Any = None, **headers: str) -> Request:
        """As callers in this process write it: a target with its query, a body as plain data."""
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(method, unquote(path), query, named, data)


class Response(msgspec.Struct):
    status: int
    body: bytes
    content_type: str = JSON
    headers: Headers = ()

    def json(self) -> Json:
        found: Json = msgspec.json.decode(self.body)
        return found

    @classmethod
    def of(cls, status: int, body: Any, headers: Headers = ()) -> Response:
        return cls(status, msgspec.json.encode(body), JSON, headers)


class Stream(msgspec.Struct):
    """A streamed response: chunks of whole lines, until the server ends it or the client disconnects."""

    chunks: AsyncIterator[bytes]
    content_type: str = JSON


def response_head(response: Response, keeps_alive: bool) -> bytes:
    phrase = _PHRASES.get(response.status, "Status")
    if response.status == 101:  # what follows is of another protocol: it has no type, length or end here
        lines = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
        return f"HTTP/1.1 101 {phrase}\r\n{lines}\r\n".encode("latin-1")
    end = "" if keeps_alive else "Connection: close\r\n"
    extra = "".join(f"{name}: {value}\r\n" for name, value in response.headers) if response.headers else ""
    return (
        f"HTTP/1.1 {response.status} {phrase}\r\nContent-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n{extra}{end}\r\n"
    ).encode("latin-1", "replace")
