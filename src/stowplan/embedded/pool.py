"""An API server in the same process as its clients: their requests are calls, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from stowplan.apiserver import ApiServer, Request, Response
from stowplan.client.connection import Connection, Pool
from stowplan.http11.client import OnData, Reply

TURN_SECONDS = 0.005
"""How often requests yield to other tasks."""


class InProcess(Connection):
    """A connection to an API server in this process."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__("http://in.process")
        self._called = server

    def open(self) -> Pool:
        return _Calls(self._called)


class _Calls:
    at_once = 64
    """Nobody waits for a turn here; more at once would only take memory."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._turn_at = 0.0

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
        if self._loop.time() > self._turn_at:  # memory answers at once, and no await would ever wait
            await asyncio.sleep(0)
            self._turn_at = self._loop.time() + TURN_SECONDS
        before()
        answer = await self._server.handle(_request(method, path, headers, body))
        assert isinstance(answer, Response), "watches are for stream"
        return _reply(answer)

    async def stream(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        on_data: OnData,
        *,
        silence: float,
        open_seconds: float,
    ) -> Reply:
        answer = await self._server.handle(_request("GET", path, headers, None))
        if isinstance(answer, Response):
            return _reply(answer)
        on_data(b"")
        async for chunk in answer.chunks:
            on_data(chunk)
        return Reply(200, b"")

    async def open_ahead(self, count: int, *, timeout: float) -> None:
        """There are no connections."""

    def drop_idle(self) -> None:
        """There are no connections."""

    def beside(self) -> Pool:
        return self

    async def close(self) -> None:
        """There is nothing to close."""


def _request(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> Request:
    path, _, query = target.partition("?")
    named = {name.lower(): value for name, value in headers}
    return Request(method, unquote(path), query, named, body or b"", is_bare=True)


def _reply(answer: Response) -> Reply:
    wait = next((value for name, value in answer.headers if name == "Retry-After"), None)
    return Reply(answer.status, answer.body, None if wait is None else float(wait))
