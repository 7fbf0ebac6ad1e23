"""Requests and responses, whatever transport carries them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from stowplan.apiserver.failures import Failure

Json = dict[str, Any]
Headers = tuple[tuple[str, str], ...]

JSON = "application/json"


class Request(msgspec.Struct):
    """`headers` are named in lower case; `query` is what follows the question mark, still encoded.

    Only callers in this process can ask for bare objects: in HTTP there is no word for it.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    is_bare: bool = False
    """Whether to leave out managed fields; working them out is most of the work of a write."""

    @classmethod
    def of(cls, method: str, target: str, body: Any = None, **headers: str) -> Request:
        """As callers in this process write it: a target with its query, a body as plain data."""
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(method, unquote(path), query, named, data)


class Query:
    """The parameters of a request, each read once."""

    def __init__(self, text: str) -> None:
        self._values = parse_qs(text, keep_blank_values=True) if text else {}

    def __call__(self, name: str) -> str:
        return self._values[name][0] if name in self._values else ""

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def flag(self, name: str) -> bool:
        return name in self._values and self(name).lower() not in ("0", "false")

    def has(self, name: str) -> bool:
        return name in self._values


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

    @classmethod
    def failure(cls, failure: Failure) -> Response:
        return cls.of(failure.code, failure.status, failure.headers)


class Stream(msgspec.Struct):
    """An answer that goes on: chunks of whole lines, until the server ends it or the reader goes away."""

    chunks: AsyncIterator[bytes]
    content_type: str = JSON
