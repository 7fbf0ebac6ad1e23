"""An API server in the process of a test, and what a test asks it with."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from conformance.conformance_steps import Step

from stowplan.apiserver import ApiServer, Request, Response, Stream

QUIET_SECONDS = 0.02


class Staged:
    """Asks one server: `await api("GET", "/api/v1/pods")` gives (status, body)."""

    def __init__(self, server: ApiServer | None = None) -> None:
        self.server = server or ApiServer()

    async def __call__(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer = await self.server.handle(Request.of(method, target, body, **headers))
        if isinstance(answer, Response):
            return answer.status, parsed(answer.body)
        return 200, parsed(await until_quiet(answer))

    async def step(self, step: Step) -> tuple[int, Any]:
        if step.method == "PAUSE":  # admission here sees every write at once
            return 0, None
        return await self(
            step.method,
            step.path,
            step.body,
            content_type=step.media,
            accept=step.accept,
            user_agent="conformance/1",
            **_joined(step.headers),
        )


def _joined(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Headers as the HTTP server hands them on: values of a name that is repeated, one a line."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower().replace("-", "_")
        found[key] = f"{found[key]}\n{value}" if key in found else value
    return found


async def until_quiet(stream: Stream) -> bytes:
    """What a stream says until it has nothing more to say."""
    found = b""
    chunks = aiter(stream.chunks)
    try:
        while True:
            found += await asyncio.wait_for(anext(chunks), QUIET_SECONDS)
    except (TimeoutError, StopAsyncIteration):
        return found


def parsed(body: bytes) -> Any:
    """JSON, a list of events, or text."""
    text = body.decode()
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text
