"""The extender's paths as an HTTP application: a body comes in, a response goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from stowplan import log
from stowplan.http11.messages import TEXT, Request, Response
from stowplan.http11.server import Limits

LIMITS = Limits(connections=512, body_seconds=30, idle_seconds=150)
"""Idle for longer than a Go client keeps a connection, so that it is the one to close it."""


class Route(NamedTuple):
    """What a path does with a body; while a response is awaited, others are answered."""

    handle: Callable[[bytes], Response | Awaitable[Response]]
    method: str = "POST"


class Routes:
    """Serves each path by its route, to everybody that TLS lets in."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def authenticates(self, authorization: bytes) -> bool:
        return True

    def is_public(self, url: bytes) -> bool:
        return True

    async def handle(self, request: Request) -> Response:
        path = request.path
        route = self._routes.get(path)
        if route is None:
            return text(404, f"no such path: {path} (known: {', '.join(self._routes)})")
        if request.method != route.method:
            return text(405, f"{path} takes {route.method}, not {request.method}")
        try:
            response = route.handle(request.body)
            if isinstance(response, Response):
                return response
            return await asyncio.ensure_future(response)  # what waits may need a task, for its time-outs
        except Exception as error:
            log.error("Request failed", error, path=path)
            return text(500, f"{type(error).__name__}: {error}")

    def reject(self, status: int, limits: Limits) -> Response:
        match status:
            case 400:
                return text(400, "the request is not HTTP/1.1")
            case 413:
                return text(413, f"the body is larger than {limits.body // 2**20} MiB; see --max-body")
            case 431:
                return text(431, f"the headers are larger than {limits.headers} bytes")
        return text(status, "too many large responses have not been read yet: try again")


def text(status: int, message: str) -> Response:
    return Response(status, f"{message}\n".encode(), TEXT)
