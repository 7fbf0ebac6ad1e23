"""The objects in the API server, with one watch per kind, and writes that can be awaited.

A controller that has written something must not decide again before it sees it. So every store knows the
versions that were written through it, and `settled` waits until the watch has come so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from stowplan import log
from stowplan.api.meta import Json, Object, decode
from stowplan.api.pod import Pod
from stowplan.client.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiClient, WatchedResource
from stowplan.client.errors import NotFound
from stowplan.client.watch import Reflector
from stowplan.controllers.clock import Clock
from stowplan.controllers.events import Events
from stowplan.controllers.kinds import K, Kind, Known

SETTLE_SECONDS = 10.0
"""A watch that is further behind is down; what it shows when it is back says what is still to do."""

Item = TypeVar("Item", bound=Known)
OnChange = Callable[[Item | None, Item | None], None]
Keys = Callable[[Item], Iterable[str]]


class Store(Generic[K]):
    """All objects of a kind by key. Listeners are called on every change with the old and new object."""

    def __init__(self, api: ApiClient, kind: Kind[K]) -> None:
        self.kind, self._api = kind, api
        self._resource = WatchedResource(
            path=kind.path, decode=partial(decode, kind.type), namespaced=kind.namespaced, kind=kind.name
        )
        self._reflector = Reflector(
            api, self._resource, on_event=self._on_event, on_served=lambda error: None
        )
        self._listeners: list[OnChange[K]] = []
        self._indexes: dict[Keys[K], Index[K]] = {}
        self._seen = self._written = 0
        self._going: dict[str, str] = {}
        self._news = asyncio.Event()

    async def run(self) -> None:
        await self._reflector.run()

    async def synced(self) -> None:
        await self._reflector.synced.wait()

    def get(self, key: str) -> K | None:
        return self._reflector.objects.get(key)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._reflector.objects.values()))  # type: ignore[arg-type]

    def listen(self, on_change: OnChange[K]) -> None:
        """Call the listener at once for existing objects."""
        self._listeners.append(on_change)
        for item in self:
            on_change(None, item)

    def listen_keys(self, on_change: Callable[[str], None]) -> None:
        """Call `on_change` with the key of each object that changes."""

        def tell(old: K | None, new: K | None) -> None:
            item = new if new is not None else old
            assert item is not None
            on_change(item.key)

        self.listen(tell)

    def index(self, keys: Keys[K]) -> Index[K]:
        """The same index for equal keys."""
        found = self._indexes.get(keys)
        if found is None:
            found = self._indexes[keys] = Index(self, keys)
        return found

    def path_of(self, item: Known, below: str = "") -> str:
        path = self._resource.item(item.namespace, item.name)
        return f"{path}/{below}" if below else path

    async def create(self, namespace: str, body: Json) -> K:
        whole = {"apiVersion": self.kind.api_version, "kind": self.kind.name, **body}
        answer = await self._api.request("POST", self._resource.collection(namespace), whole)
        return self._note(answer.data)

    async def patch(self, item: K, change: Json, below: str = "", form: str = MERGE_PATCH) -> K:
        """A patch of this very version: a Conflict if it is another one by now."""
        meta = {"uid": item.uid, "resourceVersion": item.metadata.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **meta}}
        path = self.path_of(item, below)
        answer = await self._api.request("PATCH", path, body, content_type=form)
        return self._note(answer.data)

    async def patch_status(self, item: K, status: Json) -> K:
        return await self.patch(item, {"status": status}, "status")

    async def patch_condition(self, item: K, condition: Json) -> K:
        """Set one condition, and keep those that others have set."""
        change = {"status": {"conditions": [condition]}}
        return await self.patch(item, change, "status", STRATEGIC_MERGE_PATCH)

    async def delete(self, item: K, *, propagation: str = "", grace: int | None = None) -> None:
        """Delete exactly this object; succeed if it is already gone."""
        options: dict[str, object] = {"preconditions": {"uid": item.uid}}
        if propagation:
            options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        with suppress(NotFound):
            await self._api.request("DELETE", self.path_of(item), options)
        if self._is_there(item.key, item.uid):
            self._going[item.key] = item.uid

    async def read(self, namespace: str, name: str) -> K:
        """Asks the API server itself."""
        answer = await self._api.request("GET", self._resource.item(namespace, name))
        return decode(self.kind.type, answer.data)

    async def settled(self) -> None:
        """Waits until all that was written through this store up to now shows in it."""
        version, going = self._written, dict(self._going)
        if self._seen >= version and not going:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._seen < version or any(self._is_going(*each) for each in going.items()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warn("Watch did not catch up; continuing without it", kind=self.kind.name)
        for key, uid in going.items():
            if self._going.get(key) == uid:
                del self._going[key]

    def _is_there(self, key: str, uid: str) -> bool:
        known = self.get(key)
        return known is not None and known.uid == uid and not known.is_terminating

    def _is_going(self, key: str, uid: str) -> bool:
        return self._going.get(key) == uid and self._is_there(key, uid)

    def _note(self, data: bytes) -> K:
        item = decode(self.kind.type, data)
        self._written = max(self._written, item.version)
        return item

    def _on_event(self, event: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        before, after = old, new
        newest = after if after is not None else before
        assert isinstance(newest, Known)
        self._seen = max(self._seen, newest.version)
        if self._going and (after is None or newest.is_terminating):
            # Not only looked for in `settled`: a snapshot may bring the object back with the same uid.
            self._going.pop(newest.key, None)
        self._news.set()
        for listener in self._listeners:
            listener(before, after)  # type: ignore[arg-type]


class Index(Generic[K]):
    """The objects of a store by something else than their key."""

    def __init__(self, store: Store[K], keys: Keys[K]) -> None:
        self._keys = keys
        self._found: dict[str, dict[str, K]] = {}
        store.listen(self._on_change)

    def of(self, key: str) -> list[K]:
        return list(self._found.get(key, {}).values())

    def _on_change(self, old: K | None, new: K | None) -> None:
        for key in self._keys(old) if old is not None else ():
            held = self._found.get(key, {})
            held.pop(old.key if old is not None else "", None)
            if not held:
                self._found.pop(key, None)
        for key in self._keys(new) if new is not None else ():
            assert new is not None
            self._found.setdefault(key, {})[new.key] = new


class Stores:
    """One store for each kind; `run` keeps all of them, also those that are asked for while it runs."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self.api, self.clock = api, clock
        self.events = Events(api, clock)
        self._stores: dict[str, Store[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def of(self, kind: Kind[K]) -> Store[K]:
        found = self._stores.get(kind.path)
        if found is None:
            found = self._stores[kind.path] = Store(self.api, kind)
            self._start(kind.path, found)
        return found

    def drop(self, kind: Kind[Any]) -> None:
        """Forget a kind that is no longer served."""
        self._stores.pop(kind.path, None)
        if task := self._tasks.pop(kind.path, None):
            task.cancel()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self.events.run())
            for path, store in list(self._stores.items()):
                self._start(path, store)
            await asyncio.Event().wait()

    def _start(self, path: str, store: Store[Any]) -> None:
        if self._group is not None:
            self._tasks[path] = self._group.create_task(store.run())


def owner_keys(item: Known) -> Iterable[str]:
    """For an Index: by the uid of the controller; those without one by their namespace."""
    owner = item.metadata.controller()
    return (owner.uid,) if owner is not None else (f"free/{item.namespace}",)


def by_namespace(item: Known) -> Iterable[str]:
    return (item.namespace,)


def encode_sorted(value: object) -> bytes:
    """The same bytes for equal plain data."""
    return msgspec.json.encode(value, order="sorted")
