"""An API server that says what a test tells it to, over a real socket, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.test_utils import TestServer

from stowplan.api.protobuf import CONTENT_TYPE, encode_message, encode_object
from stowplan.apiserver import protobuf

Json = dict[str, Any]
Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


class ScriptedServer:
    """Each kind of request takes the next step of its script; a watch beyond the script stays silent."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Step] = []
        self.lists: list[Step] = []
        self.watches: list[Step] = []
        self.url = ""
        self.peer: Any = None
        self.from_port = ""

    @property
    def watched(self) -> list[Asked]:
        return [asked for asked in self.asked if "watch" in asked.query]

    @property
    def listed(self) -> list[Asked]:
        return [asked for asked in self.asked if "limit" in asked.query]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        is_protobuf = request.content_type == CONTENT_TYPE
        plain = (protobuf.decode if is_protobuf else json.loads)(body) if body else None
        self.asked.append(Asked(request.method, request.path, dict(request.query), request.headers, plain))
        self.peer = request.get_extra_info("peercert")
        self.from_port = str(request.get_extra_info("peername")[1])
        if "watch" in request.query:
            return await (self.watches.pop(0) if self.watches else watch(then=hang))(request)
        return await (self.lists if "limit" in request.query else self.answers).pop(0)(request)


@asynccontextmanager
async def serving(server: ScriptedServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    listener = TestServer(app)
    await listener.start_server(ssl=tls, shutdown_timeout=0.01)
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{listener.port}"
    try:
        yield server
    finally:
        await listener.close()


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Step:
    async def step(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return step


def protobuf_status(status: int, reason: str = "", message: str = "") -> Step:
    """A Status as a kube-apiserver encodes it for those who accept protobuf."""
    fields = encode_message((1, b""), (2, "Status"), (3, message), (4, reason), (6, status))

    async def step(request: web.Request) -> web.StreamResponse:
        assert CONTENT_TYPE in request.headers["Accept"]
        body = encode_object("v1", "Status", fields)
        return web.Response(body=body, status=status, content_type=CONTENT_TYPE)

    return step


def refusal(
    status: int,
    reason: str = "",
    message: str = "",
    headers: Mapping[str, str] | None = None,
    cause: str = "",
) -> Step:
    return answer(status_of(status, reason, message, cause), status, headers)


def status_of(code: int, reason: str = "", message: str = "", cause: str = "") -> Json:
    details = {"details": {"causes": [{"reason": cause}]}} if cause else {}
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    } | details


def page(*items: Json, version: int, more: str = "") -> Step:
    return answer({"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)})


async def end(request: web.Request) -> None:
    """The server ends the watch in good order."""


async def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def hang(request: web.Request) -> None:
    """Nothing comes any more, and nobody says so; over when the client goes away."""
    while request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(0.01)


def watch(*lines: Any, then: Callable[[web.Request], Awaitable[None]] = hang) -> Step:
    """Sends events, a line each (bytes as they are), then does what `then` says."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for line in lines:
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        await then(request)
        return response

    return step


def event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": str(version)}})


def node(name: str, version: int, *, uid: str = "", labels: Mapping[str, str] | None = None) -> Json:
    meta = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Node", "metadata": meta | {"labels": dict(labels or {})}}


async def until(holds: Callable[[], bool]) -> None:
    """Waits for something that another task will bring about."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)
