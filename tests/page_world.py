"""A scheduler with its page and no API server: what it binds comes back as a watch would bring it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stowplan.api.manifests import read
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.client.errors import NotFound
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.http11.client import Reply
from stowplan.journal import Decisions
from stowplan.scheduler.scheduler import Scheduler, Settings
from stowplan.serving.pages import Page
from stowplan.web import Source, make_pages

DEMO = Path(__file__).parents[1] / "examples" / "demo"
CONFIG = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class ConfirmingApi:
    """Takes every write; a pod that is bound is seen on its node a moment later."""

    scheduler: Scheduler

    async def wait_for_capacity(self) -> None: ...

    async def open_ahead(self, count: int) -> None: ...

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        asyncio.get_running_loop().call_soon(
            self.scheduler.handlers.on_event, "modified", pod, pod.on(node_name)
        )

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None: ...

    async def delete(self, item: Any, **options: Any) -> None:
        known = self.scheduler.cluster.pod(item.uid)
        self.scheduler.handlers.on_event("deleted", known, None)

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        if method == "GET":
            raise NotFound(404, "NotFound", "no such pod")
        return Reply(201, b"{}")


class World(NamedTuple):
    scheduler: Scheduler
    decisions: Decisions
    source: Source
    pages: dict[str, Page]

    def see(self, objects: Iterable[Pod | Object]) -> None:
        for item in objects:
            self.scheduler.handlers.on_event("added", None, item)

    async def settle(self, turns: int = 300) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(turns):
            await asyncio.sleep(0)


@asynccontextmanager
async def page_world(
    objects: Iterable[Pod | Object] = (), config: dict[str, Any] | None = None
) -> AsyncIterator[World]:
    registry, api, decisions = Registry.installed(), ConfirmingApi(), Decisions()
    loaded = load(CONFIG | (config or {}), registry).config
    scheduler = api.scheduler = Scheduler(
        loaded,
        api,  # type: ignore[arg-type]
        api,  # type: ignore[arg-type]
        Settings(registry=registry, draw=random.Random(1), decisions=decisions),
    )
    scheduler.follower.is_synced = True
    source = Source(decisions, lambda: scheduler, lambda: loaded, lambda: registry)
    world = World(scheduler, decisions, source, make_pages(source))
    world.see(objects)
    tasks = [asyncio.create_task(scheduler.loop.run())]
    tasks += [asyncio.create_task(recorder.run()) for recorder in scheduler.recorders.values()]
    try:
        yield world
    finally:
        scheduler.queue.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def demo_objects() -> list[Pod | Object]:
    """Those of `make demo`: nodes first, then pods, then those without a node."""
    with open("/dev/null", "rb") as nothing:
        found = read([str(DEMO)], nothing, "shop").objects.values()
    return sorted(found, key=lambda item: (isinstance(item, Pod), not getattr(item, "node_name", "")))
