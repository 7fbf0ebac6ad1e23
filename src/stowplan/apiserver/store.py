"""Where objects are kept: collections of records, one growing version, and a log that watches follow.

A record holds an object as the JSON text it is served as, made once per version, shared by all readers.
Records are never changed. All of it happens between two awaits of one loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace, empty for what is cluster-wide, and name."""

LOG_LENGTH = 20_000
"""Changes that a collection remembers; a watch from before them is told that they are gone."""

_encode = msgspec.json.Encoder().encode


class Managed(Protocol):
    """Who manages which fields of an object; worked out when somebody reads it."""

    def text(self) -> bytes:
        """The list of its managedFields as JSON."""


class Record:
    """One version of an object; `fields` are those that field selectors may ask for."""

    __slots__ = ("body", "fields", "key", "labels", "managed", "uid", "version")

    def __init__(
        self, key: Key, data: Json, version: int, managed: Managed | None, fields: Mapping[str, str]
    ) -> None:
        meta = data.pop("metadata")
        meta["resourceVersion"] = str(version)
        data["metadata"] = meta  # last, so that the managed fields can be put at the very end of the text
        self.key, self.version, self.managed, self.fields = key, version, managed, fields
        self.uid: str = meta.get("uid", "")
        self.labels: Mapping[str, str] = meta.get("labels") or {}
        self.body = _encode(data)

    @property
    def full(self) -> bytes:
        """The object with its managed fields, as it is served."""
        entries = self.managed.text() if self.managed is not None else b"[]"
        return self.body if entries == b"[]" else self.body[:-2] + b',"managedFields":' + entries + b"}}"

    def data(self) -> Json:
        """The object, without its managed fields; a copy that is the caller's own."""
        found: Json = msgspec.json.decode(self.body)
        return found


class Change:
    """An entry of a log: `record` is what an object became, or its last state if it `is_removal`."""

    __slots__ = ("before", "is_removal", "lines", "record")

    def __init__(self, before: Record | None, record: Record, is_removal: bool = False) -> None:
        self.before, self.record, self.is_removal = before, record, is_removal
        self.lines: dict[Any, bytes] = {}
        """Encoded events of this change, shared by the watches that want them in the same form."""

    @property
    def version(self) -> int:
        return self.record.version


class Collection:
    """All objects of one resource."""

    def __init__(self, store: Store, name: str, fields: Callable[[Json], Mapping[str, str]]) -> None:
        self.store, self.name, self._fields = store, name, fields
        self.records: dict[Key, Record] = {}
        self._sorted: list[Key] | None = None
        self._log: list[Change] = []
        self._first = 0  # how many changes the log has forgotten
        self.forgotten = 0
        """The last version that is forgotten; watches may start from it or any later one."""
        self._waiting: set[asyncio.Future[None]] = set()

    def sorted_keys(self) -> list[Key]:
        """In the order of lists."""
        if self._sorted is None:
            self._sorted = sorted(self.records)
        return self._sorted

    def put(self, key: Key, data: Json, managed: Managed | None) -> Record:
        before = self.records.get(key)
        record = Record(key, data, self.store.next_version(), managed, self._fields(data))
        if before is None:
            self._sorted = None
        self.records[key] = record
        self._append(Change(before, record))
        return record

    def remove(self, key: Key, last: Json | None = None, managed: Managed | None = None) -> Record:
        """Take the object out; what is told of it is its last state, with the version of its end."""
        before = self.records.pop(key)
        self._sorted = None
        version = self.store.next_version()
        record = Record(key, last or before.data(), version, managed or before.managed, before.fields)
        self._append(Change(before, record, is_removal=True))
        return record

    def restore(self, key: Key, body: bytes, managed: Managed | None) -> None:
        """Put an object back as it was kept; nobody watches yet."""
        data: Json = msgspec.json.decode(body)
        version = int(data["metadata"]["resourceVersion"])
        self.records[key] = Record(key, data, version, managed, self._fields(data))
        self._sorted = None

    def at(self, version: int) -> dict[Key, Record] | None:
        """The records as they were at this version; None if that is forgotten."""
        if version < self.forgotten:
            return None
        later = self.changes_from(self.position_after(version)) or []
        found = self.records if not later else dict(self.records)
        for change in reversed(later):
            if change.before is None:
                found.pop(change.record.key, None)
            else:
                found[change.record.key] = change.before
        return found

    def _append(self, change: Change) -> None:
        self._log.append(change)
        if len(self._log) > LOG_LENGTH:
            self.forget(LOG_LENGTH // 4)
        self.store.on_change(self, change)
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def forget(self, count: int) -> None:
        """Compact: drop the oldest changes."""
        if count:
            self.forgotten = self._log[count - 1].version
            del self._log[:count]
            self._first += count

    def forget_all(self) -> None:
        self.forget(len(self._log))
        self.forgotten = self.store.version

    def position_after(self, version: int) -> int:
        """Where in the log the changes after this version begin."""
        return self._first + bisect_right(self._log, version, key=lambda change: change.version)

    def changes_from(self, position: int) -> list[Change] | None:
        """What happened since; None if some of it is forgotten."""
        return None if position < self._first else self._log[position - self._first :]

    @property
    def end(self) -> int:
        return self._first + len(self._log)

    async def wait_beyond(self, position: int, seconds: float) -> None:
        """Until the log is longer than `position`, or the time is up."""
        if self.end > position:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            # Python 3.11's wait_for would lose a cancellation that comes together with a change.
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


class Store:
    """All collections, in memory. `on_change` hears of every change, before whoever made it is answered."""

    def __init__(self) -> None:
        self.version = 0
        self.collections: dict[str, Collection] = {}
        self.on_change: Callable[[Collection, Change], None] = lambda collection, change: None

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def collection(
        self, name: str, fields: Callable[[Json], Mapping[str, str]] = lambda data: {}
    ) -> Collection:
        """The collection of that name; `fields` reads from an object what field selectors ask for."""
        found = self.collections.get(name)
        if found is None:
            found = self.collections[name] = Collection(self, name, fields)
        return found

    def compact(self) -> None:
        """Forget all changes; every watch from a version before now must list again."""
        for collection in self.collections.values():
            collection.forget_all()

    async def committed(self) -> None:
        """Until what was written so far is as durable as it gets; at once in memory."""
