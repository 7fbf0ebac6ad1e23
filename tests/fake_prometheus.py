"""A Prometheus that answers whatever a test wants, also nonsense, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

ANSWERED_AT = 1700000000.123
"""Stands in answers for the time of the answer."""


class FakePrometheus:
    """Set `answer` to the body it gives, and `status`, `delay` to how."""

    def __init__(self) -> None:
        self.answer: str | bytes = vector({})
        self.status, self.delay = 200, 0.0
        self.url = ""
        self.queries: list[str] = []
        self.now: Callable[[], float] = time.time
        """The time that answers are as of."""

    async def respond(self, request: web.Request) -> web.Response:
        self.queries.append(request.query["query"])
        await asyncio.sleep(self.delay)
        body = self.answer.encode() if isinstance(self.answer, str) else self.answer
        body = body.replace(str(ANSWERED_AT).encode(), repr(self.now()).encode())
        return web.Response(body=body, status=self.status)


def vector(values: Mapping[str, object], label: str = "instance") -> str:
    """The answer to a query: a value by what the label says."""
    return samples(*(({label: name}, value) for name, value in values.items()))


def samples(*rows: tuple[Mapping[str, str], object]) -> str:
    result = [{"metric": dict(metric), "value": [ANSWERED_AT, str(value)]} for metric, value in rows]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def fake_prometheus(prefix: str = "") -> AsyncIterator[FakePrometheus]:
    fake = FakePrometheus()
    app = web.Application()
    app.router.add_get(f"{prefix}/api/v1/query", fake.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    fake.url = f"http://127.0.0.1:{port}{prefix}"
    try:
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running(plugin: Any) -> AsyncIterator[asyncio.Task[None]]:
    """The plugin's background work, as a host would run it."""
    task = asyncio.create_task(plugin.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
