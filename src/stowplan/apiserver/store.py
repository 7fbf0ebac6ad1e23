"""Where objects are kept: collections of records, one growing version, and a log that watches follow.

A record holds an object as the JSON text it is served as, made once per version, shared by all readers.
Records are never changed. All of it happens between two awaits of one loop, so there are no locks.

Writers see the latest state of an object, readers and watches the published one. In memory the two are the
same; in a `DurableStore` a change is published once it is on disk.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import nesting
from stowplan.apiserver.failures import Failure
from stowplan.apiserver.managed import AnyManaged

Key = tuple[str, str]
"""Namespace, empty for what is cluster-wide, and name."""

LOG_LENGTH = 20_000
"""Changes that a collection remembers; a watch from an earlier version gets a 410."""
LOG_BYTES = 256 * 2**20
"""Bytes of changes that all collections remember; beyond it the largest log drops its oldest quarter."""
COMPACT_SECONDS = 300.0
"""How often old versions end: lists cannot be continued for more than twice as long, as with etcd."""
MAX_BYTES = 2 * 2**30
"""Bytes of all objects, etcd's own limit; beyond it only deletes are accepted."""

_encode = msgspec.json.Encoder().encode


class Record:
    """One version of an object; `fields` are those that field selectors may ask for."""

    __slots__ = ("body", "fields", "key", "labels", "managed", "uid", "version")

    def __init__(
        self, key: Key, data: Json, version: int, managed: AnyManaged | None, fields: Mapping[str, str]
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
        """Decode the object, without its managed fields; the caller may change it."""
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
    def growth(self) -> int:
        """Bytes by which it makes the store larger."""
        before = len(self.before.body) if self.before is not None else 0
        return (0 if self.is_removal else len(self.record.body)) - before

    @property
    def size(self) -> int:
        """Bytes that a log holds for it."""
        return len(self.record.body) + sum(map(len, self.lines.values()))

    @property
    def version(self) -> int:
        return self.record.version


class Waiters:
    """Futures that wait for the next change."""

    def __init__(self) -> None:
        self.futures: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        waiting, self.futures = self.futures, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until somebody calls `wake`, or the time is up."""
        future = asyncio.get_running_loop().create_future()
        self.futures.add(future)
        try:
            # Python 3.11's wait_for would lose a cancellation that comes together with a change.
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self.futures.discard(future)


class Collection:
    """All objects of one resource."""

    def __init__(self, store: Store, name: str, fields: Callable[[Json], Mapping[str, str]]) -> None:
        self.store, self.name, self._fields = store, name, fields
        self.records: dict[Key, Record] = {}
        """What is published. Writers ask for `latest` and `all_latest` instead."""
        self.staged: dict[Key, Change] = {}
        """Changes that only writers see yet."""
        self._sorted: list[Key] | None = None
        self._log: list[Change] = []
        self.log_bytes = 0
        self._first = 0  # how many changes the log has forgotten
        self.forgotten = 0
        """The last version that is forgotten; watches may start from it or any later one."""
        self.waiters = Waiters()
        self.is_bounded = False
        """Whether its kind limits how deeply all but managed fields, those of templates, are nested."""

    def sorted_keys(self) -> list[Key]:
        """In the order of lists."""
        if self._sorted is None:
            self._sorted = sorted(self.records)
        return self._sorted

    def latest(self, key: Key) -> Record | None:
        """The object as writers see it: with changes that are not published yet."""
        if self.staged and (change := self.staged.get(key)) is not None:
            return None if change.is_removal else change.record
        return self.records.get(key)

    def all_latest(self) -> Iterable[Record]:
        """All objects as writers see them."""
        if not self.staged:
            return self.records.values()
        keys = self.records.keys() | self.staged.keys()
        return [record for key in keys if (record := self.latest(key)) is not None]

    def put(self, key: Key, data: Json, managed: AnyManaged | None) -> Record:
        record = Record(key, data, self.store.next_version(), managed, self._fields(data))
        self.store.write(self, Change(self.latest(key), record))
        return record

    def remove(self, key: Key, last: Json | None = None, managed: AnyManaged | None = None) -> Record:
        """Remove the object; watches see its last state with the version of the deletion."""
        before = self.latest(key)
        if before is None:
            raise KeyError(key)
        version = self.store.next_version()
        record = Record(key, last or before.data(), version, managed or before.managed, before.fields)
        self.store.write(self, Change(before, record, is_removal=True))
        return record

    def index_by(self, fields: Callable[[Json], Mapping[str, str]]) -> None:
        """Read other fields for selectors, from the objects that are there as well."""
        self._fields = fields
        changes = (change.record for change in self.staged.values())
        for record in (*self.records.values(), *changes):
            record.fields = fields(record.data())

    def stage(self, change: Change) -> None:
        """Show the change to writers alone."""
        self.staged[change.record.key] = change

    def unstage(self) -> None:
        """Forget the changes that are not published."""
        self.staged.clear()

    def publish(self, change: Change) -> None:
        """Show the change to everybody."""
        record = change.record
        key = record.key
        if self.staged and self.staged.get(key) is change:
            del self.staged[key]
        if change.is_removal:
            self.records.pop(key, None)
            self._sorted = None
        else:
            if change.before is None:
                self._sorted = None
            self.records[key] = record
        store = self.store
        store.version = record.version
        self._log.append(change)
        store.oldest_version()  # ends old versions in time, if nobody lists
        self.count_log_bytes(change, len(record.body))
        if len(self._log) > LOG_LENGTH:
            self.forget(LOG_LENGTH // 4)
        if self.waiters.futures:
            self.waiters.wake()
        if store.waiters.futures:
            store.waiters.wake()
        react = store.on_published.get(self.name)
        if react is not None:
            react(record, change.is_removal)

    def restore(self, key: Key, data: Json, managed: AnyManaged | None) -> None:
        """Restore an object from disk; there are no watches yet."""
        version = int(data["metadata"]["resourceVersion"])
        record = self.records[key] = Record(key, data, version, managed, self._fields(data))
        self.store.size += len(record.body)
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

    def count_log_bytes(self, change: Change, count: int) -> None:
        """Count bytes that the log holds for a change: its object, or an event encoded for watches."""
        if change.record.version <= self.forgotten:
            return  # only the watch that is at it holds it
        store = self.store
        self.log_bytes += count
        store.log_bytes += count
        while store.log_bytes > store.max_log_bytes:
            largest = max(store.collections.values(), key=lambda each: each.log_bytes)
            largest.forget(len(largest._log) // 4 or len(largest._log))

    def forget(self, count: int) -> None:
        """Compact: drop the oldest changes."""
        if count:
            gone = sum(change.size for change in self._log[:count])
            self.log_bytes -= gone
            self.store.log_bytes -= gone
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
        """The changes since this position; None if some are forgotten."""
        return None if position < self._first else self._log[position - self._first :]

    @property
    def end(self) -> int:
        return self._first + len(self._log)

    async def wait_beyond(self, position: int, seconds: float) -> None:
        """Wait until the log is longer than `position`, or the time is up."""
        if self.end <= position:
            await self.waiters.wait(seconds)


Snapshot = dict[str, dict[Key, Record]]
"""By collection, the objects that it had."""


class Store:
    """All collections, in memory."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_log_bytes: int = LOG_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes, self.max_log_bytes, self._clock = max_bytes, max_log_bytes, clock
        self._compacted = self._compact_next = 0
        self._compact_at = clock() + COMPACT_SECONDS
        self.version = 0
        """The version of the last published change."""
        self._given = 0
        self.size = self.log_bytes = 0
        self.collections: dict[str, Collection] = {}
        self.waiters = Waiters()
        """Futures that wait for a change of any object."""
        self.on_published: dict[str, Callable[[Record, bool], None]] = {}
        """By collection: called with what was published and whether that was its removal."""

    def next_version(self) -> int:
        self._given += 1
        return self._given

    def write(self, collection: Collection, change: Change) -> None:
        """Take a change; raises a 507 if the store has no room for it."""
        self.count(collection, change)
        collection.publish(change)

    def count(self, collection: Collection, change: Change) -> None:
        body = change.record.body
        if (not collection.is_bounded or b'"fieldsV1"' in body) and nesting.is_too_deep(body):
            raise Failure(400, "BadRequest", f"the object {nesting.WORDS}")
        growth = change.growth
        if growth > 0 and self.size + growth > self.max_bytes:
            raise Failure(
                507,
                "InsufficientStorage",
                f"the API server is full: it keeps at most {self.max_bytes} bytes; delete some of them",
            )
        self.size += growth

    def collection(
        self, name: str, fields: Callable[[Json], Mapping[str, str]] = lambda data: {}
    ) -> Collection:
        """The collection of that name; `fields` reads from an object what field selectors ask for."""
        found = self.collections.get(name)
        if found is None:
            found = self.collections[name] = Collection(self, name, fields)
        return found

    def oldest_version(self) -> int:
        """The first version that objects can still be listed at."""
        now = self._clock()
        if now >= self._compact_at:
            self._compacted, self._compact_next = self._compact_next, self.version
            self._compact_at += COMPACT_SECONDS * (1 + (now - self._compact_at) // COMPACT_SECONDS)
        return self._compacted

    def compact(self) -> None:
        """Forget all changes; every watch from a version before now must list again."""
        for collection in self.collections.values():
            collection.forget_all()

    def expire(self) -> None:
        """Forget all changes, so that nothing can be resumed from a version that anybody has seen."""
        self.version = self.next_version()
        self.compact()

    def snapshot(self) -> Snapshot:
        """All objects as they are now."""
        return {name: dict(each.records) for name, each in self.collections.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Make all objects as they were; watches see that as changes, and versions go on.

        What was changed is written anew, so that its version is a new one. Finalizers do not count.
        """
        names = sorted(self.collections, key=lambda name: not name.startswith("customresourcedefinitions."))
        for name in names:
            collection, wanted = self.collections[name], snapshot.get(name, {})
            for key in [key for key in collection.records if key not in wanted]:
                collection.remove(key)
            for key, record in wanted.items():
                known = collection.records.get(key)
                if known is record:
                    continue
                # Nothing is ever unbound or un-deleted: clients see the object go and another one come.
                if known is not None and (known.uid != record.uid or name == "pods"):
                    collection.remove(key)
                wanted[key] = collection.put(key, record.data(), record.managed)

    def purge(self, namespace: str) -> None:
        """Remove a namespace with everything in it at once, whatever the finalizers."""
        for name, collection in self.collections.items():
            keys = [key for key in collection.records if key[0] == namespace]
            if name == "namespaces" and ("", namespace) in collection.records:
                keys.append(("", namespace))
            for key in keys:
                collection.remove(key)

    async def committed(self) -> None:
        """Wait until everything written so far is published; raises Failure if it is lost."""

    def commit(self) -> None:
        """The same without an event loop."""
