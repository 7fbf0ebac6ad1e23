"""A whole scheduler whose plugins watch a kind: shared between profiles, and pods wake once it is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec

from stowplan import CustomResource, Definition, Plugin, Status
from stowplan.client.errors import NotFound
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.http11.client import Reply
from stowplan.journal import Decisions
from stowplan.scheduler.scheduler import Scheduler, Settings
from virtual_time import in_virtual_time

NODE = {
    "metadata": {"name": "n", "uid": "1", "resourceVersion": "1"},
    "status": {"allocatable": {"pods": "10"}},
}
POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "2", "resourceVersion": "1"},
    "spec": {"containers": [{"name": "c"}]},
}
VERSION = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
NAMES = ("default-scheduler", "other")


evaluated: list[type] = []


def noted(kind: type) -> type:
    """Stands in an annotation, to tell when it is evaluated."""
    evaluated.append(kind)
    return kind


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)
    height: noted(int) = 0  # type: ignore[valid-type]


class Shelf(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "shelves", "Shelf", namespaced=False)
    height: NotImported = 0  # type: ignore[name-defined]  # noqa: F821


class WhenServed(Plugin):
    """Lets every pod pass, once it is known that no rack stands in the way."""

    watches = (Rack,)

    def filter(self, state, pod, node):
        return None if self.handle.watched(Rack).is_served else Status.unschedulable("racks are not known")


class Lists:
    """An API server in memory: lists that never change, but for the kinds it does not have yet."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {"nodes": [NODE], "pods": [POD]}
        self.missing = {"racks"}
        self.listed: Counter[str] = Counter()
        self.bound: dict[str, str] = {}
        self.refusals: list[str] = []
        self.events: list[Any] = []

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        name = path.rpartition("/")[2]
        if method != "GET":
            if name == "events":
                self.events.append(msgspec.json.decode(msgspec.json.encode(body)))
            return Reply(201, b"{}")
        self.listed[name] += 1
        if name in self.missing:
            raise NotFound(404, "NotFound", "404 page not found")
        page = {"metadata": {"resourceVersion": "1"}, "items": self.lists.get(name, [])}
        return Reply(200, msgspec.json.encode(page))

    async def stream(self, path: str, on_line: Any, *, on_open: Any, **options: Any) -> None:
        on_open()
        await asyncio.Event().wait()

    async def wait_for_capacity(self) -> None: ...

    async def open_ahead(self, count: int) -> None: ...

    async def create_binding(self, pod: Any, node_name: str) -> None:
        self.bound[pod.key] = node_name

    async def patch_pod_status(self, pod: Any, patch: dict[str, Any]) -> None:
        self.refusals += [each["message"] for each in patch["status"].get("conditions", ())]


@asynccontextmanager
async def running(
    api: Lists,
    decisions: Decisions | None = None,
    plugin: type[Plugin] = WhenServed,
    leads: asyncio.Event | None = None,
) -> AsyncIterator[Scheduler]:
    """With `leads` it is a standby until that is set and `start` is called."""
    registry = Registry.installed(classes={"WhenServed": plugin})
    plugins = {"multiPoint": {"enabled": [{"name": "WhenServed"}]}}
    profiles = [{"schedulerName": name, "plugins": plugins} for name in NAMES]
    config = load({**VERSION, "profiles": profiles}, registry).config
    is_leading = (lambda: True) if leads is None else leads.is_set
    settings = Settings(registry=registry, decisions=decisions, is_leading=is_leading)
    scheduler = Scheduler(config, api, api, settings)  # type: ignore[arg-type]
    if leads is None:
        scheduler.start()
    task = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        scheduler.queue.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_pods_that_wait_for_a_kind_are_tried_again_once_it_is_there():
    api = Lists()
    async with running(api):
        await asyncio.sleep(20)
        assert api.bound == {}
        assert api.refusals[0].startswith("0/1 nodes are available: 1 racks are not known.")
        api.missing.clear()
        await asyncio.sleep(5)
        assert api.bound == {"default/p": "n"}


@in_virtual_time
async def test_profiles_share_a_watch_which_can_end_and_start_again():
    api = Lists()
    api.missing.clear()
    async with running(api) as scheduler:
        await asyncio.sleep(1)
        assert api.listed["racks"] == 1
        assert scheduler.is_synced
        scheduler.watch_kinds([])
        scheduler.watch_kinds([Rack])
        await scheduler.kinds_synced()
        assert api.listed["racks"] == 2
        assert scheduler.cluster.watched(Rack).is_served


@in_virtual_time
async def test_the_first_object_of_a_kind_does_not_wait_for_its_decoder():
    api = Lists()
    api.missing.clear()
    async with running(api) as scheduler:
        while not scheduler.is_synced:
            await asyncio.sleep(1)
        times = len(evaluated)
        assert times > 0
        api.lists["racks"] = [{"metadata": {"name": "r", "uid": "3", "resourceVersion": "1"}, "height": 42}]
        scheduler.watch_kinds([])
        scheduler.watch_kinds([Rack])
        await scheduler.kinds_synced()
        assert [rack.height for rack in scheduler.cluster.watched(Rack)] == [42]
        assert len(evaluated) == times


@in_virtual_time
async def test_a_kind_that_cannot_be_decoded_does_not_end_the_scheduler():
    class WatchesShelves(WhenServed):
        watches = (Rack, Shelf)

    api = Lists()
    api.missing.clear()
    api.lists["shelves"] = [{"metadata": {"name": "s", "uid": "4", "resourceVersion": "1"}}]
    async with running(api, plugin=WatchesShelves) as scheduler:
        await asyncio.sleep(20)
        assert scheduler.check() is None
        assert api.bound == {"default/p": "n"}
        assert "NotImported" in str(scheduler.cluster.watched(Shelf).unreadable["s"].fault)


@in_virtual_time
async def test_an_object_that_cannot_be_read_is_named_in_decisions_and_in_an_event():
    api = Lists()
    api.missing.clear()
    meta = {"name": "r1", "uid": "7", "resourceVersion": "1"}
    api.lists["racks"] = [{"metadata": meta, "height": "tall"}]
    decisions = Decisions()
    async with running(api, decisions):
        await asyncio.sleep(20)
        assert api.bound == {"default/p": "n"}
        (record,) = decisions.recent.of("default/p")
        (note,) = record.notes
        assert note.startswith("WhenServed ignores objects that cannot be read: Rack r1: height: ")
        (event,) = [each for each in api.events if each["reason"] == "UnreadableObject"]
        assert event["regarding"] == {
            "apiVersion": "example.com/v1", "kind": "Rack", "namespace": "", "name": "r1", "uid": "7",
            "resourceVersion": "1",
        }  # fmt: skip
        assert event["note"].startswith("Rack r1: height: ")
        assert event["note"].endswith("; plugins that watch it act as if it did not exist")


@in_virtual_time
async def test_an_object_that_a_standby_cannot_read_is_reported_once_it_leads():
    api, leads = Lists(), asyncio.Event()
    api.missing.clear()
    api.lists["racks"] = [{"metadata": {"name": "r1", "uid": "7", "resourceVersion": "1"}, "height": "tall"}]
    async with running(api, leads=leads) as scheduler:
        await asyncio.sleep(20)
        assert scheduler.is_synced
        assert api.events == []
        leads.set()
        scheduler.start()
        await asyncio.sleep(20)
        assert [each["reason"] for each in api.events].count("UnreadableObject") == 1
