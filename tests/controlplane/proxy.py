"""A proxy between a scheduler and the API server that spoils answers: cuts watches, meddles with binds.

It has a thread and an event loop of its own, since tests block theirs.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from controlplane.control_plane import SCHEDULER, ControlPlane

BINDING = re.compile(r"/api/v1/namespaces/[^/]+/pods/([^/]+)/binding")
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Spoilt(NamedTuple):
    """What becomes of a bind. Without a status the connection is cut instead of an answer."""

    status: int = 0
    reason: str = ""
    retry_after: int | None = None
    passed_on: bool = False
    """Whether the API server gets it all the same, so that the bind is done and only the answer is lost."""


class Proxy:
    """Within its `with`, `url` is an API server to talk to.

    `spoil` says by the pod's name what becomes of a bind: None leaves it alone. While `open_gate` is clear,
    binds wait on their way to the API server.
    """

    def __init__(self, control_plane: ControlPlane, name: str = "proxied") -> None:
        self._control_plane, self._name = control_plane, name
        self.url = ""
        self.spoil: Callable[[str], Spoilt | None] = lambda pod: None
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.binds: list[str] = []
        """The pods whose binds arrived here, in order, as often as they did."""
        self.stalls: Callable[[str], bool] = lambda path: False
        """Whether a watch of this path gets nothing any more, while its connection stands."""
        self._watches: dict[int, asyncio.Transport] = {}
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open_gate.set()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def kubeconfig(self) -> Path:
        """The scheduler's, but for the address."""
        document = json.loads(self._control_plane.kubeconfig(SCHEDULER).read_text())
        document["clusters"][0]["cluster"] = {"server": self.url}
        path = self._control_plane.folder / f"{self._name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def cut_watches(self, draw: random.Random) -> int:
        """Cuts about half of the watches under way, wherever they are; how many."""

        async def cut() -> int:
            chosen = [watch for watch in self._watches.values() if draw.random() < 0.5]
            for watch in chosen:
                watch.abort()
            return len(chosen)

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    async def _serve(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self._control_plane.certificate))
        connector = TCPConnector(ssl=trusted, limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as self._session:
            server = web.Server(self._answer, access_log=None, handler_cancellation=True)
            runner = web.ServerRunner(server, shutdown_timeout=0)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._over.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()  # a watch does not end by itself
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        found = BINDING.fullmatch(request.path)
        if found is None:
            return await self._pass_on(request, body)
        self.binds.append(found[1])
        while not self.open_gate.is_set():
            await asyncio.sleep(0.02)
        spoilt = self.spoil(found[1])
        if spoilt is None:
            return await self._pass_on(request, body)
        if spoilt.passed_on:
            async with self._sent(request, body):
                pass
        if not spoilt.status:
            return self._cut(request)
        refusal = {"kind": "Status", "reason": spoilt.reason, "message": "spoilt", "code": spoilt.status}
        headers = {} if spoilt.retry_after is None else {"Retry-After": str(spoilt.retry_after)}
        return web.json_response(refusal, status=spoilt.status, headers=headers)

    async def _pass_on(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        is_watch = "watch=true" in request.query_string
        if is_watch and request.transport is not None:
            self._watches[id(request)] = request.transport
        try:
            async with self._sent(request, body) as answer:
                kept = {
                    name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP
                }
                passed = web.StreamResponse(status=answer.status, headers=kept)
                passed.enable_chunked_encoding()
                await passed.prepare(request)
                async for chunk in answer.content.iter_any():
                    if is_watch and self.stalls(request.path):
                        await asyncio.Event().wait()
                    await passed.write(chunk)
                await passed.write_eof()
                return passed
        except OSError:
            return self._cut(request)
        finally:
            self._watches.pop(id(request), None)

    def _sent(self, request: web.BaseRequest, body: bytes):
        kept = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        kept["Accept-Encoding"] = "identity"
        return self._session.request(
            request.method, self._control_plane.server + request.path_qs, headers=kept, data=body
        )

    def _cut(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
