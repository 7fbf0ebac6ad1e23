"""A scheduler without an API server: its writes are recorded, what it sees is told by the test."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.client.api import PODS
from stowplan.client.errors import ApiError, NotFound
from stowplan.config import load
from stowplan.config.types import with_gates
from stowplan.framework.registry import Registry
from stowplan.http11.client import Reply
from stowplan.journal import Decisions
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.scheduler import Scheduler, Settings


class RecordingApi:
    """Takes every write and keeps it; `refuse` names those that fail, and with what."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.group_patches: list[tuple[str, dict[str, Any]]] = []
        self.deleted: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.pods: dict[str, dict[str, Any]] = {}
        """What a GET of a pod's path answers."""
        self.refuse: dict[str, ApiError] = {}
        self.hold, self.is_idle = asyncio.Event(), asyncio.Event()
        self.hold.set()
        self.is_idle.set()

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        await self.hold.wait()
        self._check("bind")
        self.bound[pod.key] = node_name

    async def open_ahead(self, count: int) -> None: ...

    async def wait_for_capacity(self) -> None:
        await self.is_idle.wait()

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        self._check("patch")
        self.patches.append((pod.key, patch["status"]))

    async def delete(self, item: Any, **options: Any) -> None:
        self._check("delete")
        self.deleted.append(item.key)

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        if method == "GET":
            self._check("get")
            if path not in self.pods:
                raise NotFound(404, "NotFound", "no such pod")
            return Reply(200, msgspec.json.encode(self.pods[path]))
        if method == "PATCH":
            self._check("patch group")
            self.group_patches.append((path, msgspec.json.decode(msgspec.json.encode(body))))
            return Reply(200, b"{}")
        self.events.append(msgspec.json.decode(msgspec.json.encode(body)))
        return Reply(201, b"{}")

    def _check(self, what: str) -> None:
        if what in self.refuse:
            raise self.refuse[what]

    def conditions(self, key: str) -> list[dict[str, Any]]:
        return [each for name, status in self.patches if name == key for each in status.get("conditions", ())]


class Stage:
    def __init__(self, scheduler: Scheduler, api: RecordingApi) -> None:
        self.scheduler, self.api = scheduler, api
        self.is_leading = True

    def see(self, *objects: dict[str, Any]) -> None:
        """The watch brings objects that are new."""
        for plain in objects:
            item = object_of(plain)
            self.store(plain, plain)
            self.scheduler.handlers.on_event("added", None, item)

    def change(self, old: dict[str, Any], new: dict[str, Any] | None) -> None:
        self.store(old, new)
        before, after = object_of(old), None if new is None else object_of(new)
        self.scheduler.handlers.on_event("deleted" if new is None else "modified", before, after)

    def store(self, old: dict[str, Any], new: dict[str, Any] | None) -> None:
        """From now on the API server has this object, or has it no more; the watch does not say so."""
        if old["kind"] == "Pod":
            path = PODS.item(old["metadata"]["namespace"], old["metadata"]["name"])
            self.api.pods.pop(path, None)
            if new is not None:
                self.api.pods[path] = new

    async def settle(self) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(200):
            await asyncio.sleep(0)

    def notes(self, reason: str) -> list[str]:
        return [event["note"] for event in self.api.events if event.get("reason") == reason]


@asynccontextmanager
async def staged(
    config: dict[str, Any] | None = None,
    plugins: dict[str, type] | None = None,
    draw: random.Random | None = None,
    registry: Registry | None = None,
    guard: Guard | None = None,
    decisions: Decisions | None = None,
    api: RecordingApi | None = None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] | None = None,
    gates: Iterable[str] = (),
    disabled_gates: Iterable[str] = (),
    owns_process: bool = False,
) -> AsyncIterator[Stage]:
    registry = registry or Registry.installed(classes=plugins or {})
    version = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    api, found = api or RecordingApi(), load({**version, **(config or {})}, registry).config
    found = with_gates(found, frozenset(gates), frozenset(disabled_gates))
    stage: list[Stage] = []
    scheduler = Scheduler(
        found,
        api,
        api,
        Settings(
            registry=registry,
            draw=draw or random.Random(),
            guard=guard,
            decisions=decisions,
            now=now,
            clock=clock,
            owns_process=owns_process,
            is_leading=lambda: stage[0].is_leading,
        ),
    )
    stage.append(Stage(scheduler, api))
    tasks = [asyncio.create_task(scheduler.loop.run())]
    tasks += [asyncio.create_task(recorder.run()) for recorder in scheduler.recorders.values()]
    try:
        yield stage[0]
    finally:
        scheduler.queue.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A binding that only the end of the event loop cuts off starts new work, which nobody ends: it is
        # collected during some later test, and fails that one.
        await scheduler.aclose()
        await stage[0].settle()


def node(name: str, *, cpu: str = "4", pods: str = "10", **extra: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}},
        **extra,
    }


def pod(name: str, *, cpu: str = "1", on: str = "", priority: int = 0, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            "nodeName": on,
            "priority": priority,
            **spec,
        },
    }
