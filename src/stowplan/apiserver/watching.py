"""Watches: the changes of a collection as events, from a version on, with bookmarks in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from stowplan.apiserver import forms
from stowplan.apiserver.failures import expired, too_large_version
from stowplan.apiserver.forms import Form
from stowplan.apiserver.options import ListOptions
from stowplan.apiserver.reading import Selection, watch_version
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.store import Change, Collection, Record

Json = dict[str, Any]

BOOKMARK_SECONDS = 55.0
TIMEOUT_SECONDS = 1800.0
CHUNK_LINES = 256
CHUNK_BYTES = 256 * 1024
"""Events that go out together at most, so that one slow watch holds up neither the loop nor much memory."""


class Watch:
    """One watch of one collection. Its position in the collection's log is all that it keeps."""

    def __init__(
        self,
        resource: Resource,
        collection: Collection,
        selection: Selection,
        options: ListOptions,
        form: Form,
    ) -> None:
        self.resource, self.collection, self.selection, self.form = resource, collection, selection, form
        self.options = options
        self._key = (resource.group_version, form)
        asked = watch_version(options.version) if options.version else 0
        current = collection.store.version
        if asked > current:
            raise too_large_version(asked, current)
        wants_all = options.initial_events if options.initial_events is not None else asked == 0
        self.initial: list[Record] = []
        if wants_all:
            self.initial = [
                collection.records[key]
                for key in collection.sorted_keys()
                if selection.takes(collection.records[key])
            ]
            asked = current
        elif asked == 0:
            asked = current
        self.gone = asked < collection.forgotten
        self._asked = asked
        self.position = collection.position_after(asked)
        self._told_columns = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events as lines, some at a time, until the watch's time is up."""
        if self.gone:
            yield self._gone(self._asked)
            return
        now = time.monotonic
        limit = self.options.timeout if self.options.timeout else TIMEOUT_SECONDS
        end, bookmark_at = now() + limit, now() + BOOKMARK_SECONDS
        initial, self.initial = deque(self.initial), []
        while initial:
            yield _chunk(lambda: self._line("ADDED", initial.popleft()) if initial else None)
            await asyncio.sleep(0)
        if self.options.initial_events and self.options.bookmarks:
            yield self._bookmark(self._asked, is_end=True)
        while True:
            changes = self.collection.changes_from(self.position)
            if changes is None:
                yield self._gone(self.collection.forgotten)
                return
            if changes:
                if lines := _chunk(partial(self._next_line, iter(changes))):
                    yield lines
                if self.position < self.collection.end:
                    await asyncio.sleep(0)
                continue
            left = end - now()
            if left <= 0:
                return
            if self.options.bookmarks and now() >= bookmark_at:
                yield self._bookmark(self.collection.store.version)
                bookmark_at = now() + BOOKMARK_SECONDS
            await self.collection.wait_beyond(self.position, min(left, max(bookmark_at - now(), 0.1)))

    def _next_line(self, changes: Iterator[Change]) -> bytes | None:
        """The event of the next change, empty if it does not concern this watch; None at the end."""
        change = next(changes, None)
        if change is None:
            return None
        self.position += 1
        before = change.before is not None and self.selection.takes(change.before)
        after = not change.is_removal and self.selection.takes(change.record)
        if after:
            return self._shared(change, "MODIFIED" if before else "ADDED")
        return self._shared(change, "DELETED") if before else b""

    def _shared(self, change: Change, kind: str) -> bytes:
        key = (kind, self._key)
        line = change.lines.get(key)
        if line is None:
            record = change.record
            if kind == "DELETED" and not change.is_removal:
                record = self._as_it_was(change)
            line = self._line(kind, record)
            if self.form.what != forms.TABLE:
                change.lines[key] = line
                self.collection.count_log_bytes(change, len(line))
        return line

    def _as_it_was(self, change: Change) -> Record:
        """What a selector no longer takes is told as it last was, with the version of the change."""
        before = change.before
        assert before is not None
        return Record(before.key, before.data(), change.version, before.managed, before.fields)

    def _line(self, kind: str, record: Record) -> bytes:
        text = forms.event_object(self.form, self.resource, record, not self._told_columns)
        if self.form.what == forms.TABLE:
            self._told_columns = True
        return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"

    def _bookmark(self, version: int, is_end: bool = False) -> bytes:
        resource = self.resource
        empty = msgspec.json.decode(resource.empty)
        meta: Json = {"resourceVersion": str(version)}
        if is_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        item = {"kind": resource.kind, "apiVersion": resource.group_version, **empty, "metadata": meta}
        return msgspec.json.encode({"type": "BOOKMARK", "object": item}) + b"\n"

    def _gone(self, asked: int) -> bytes:
        failure = expired(f"too old resource version: {asked} ({self.collection.forgotten})")
        return msgspec.json.encode({"type": "ERROR", "object": failure.status}) + b"\n"


def _chunk(next_line: Callable[[], bytes | None]) -> bytes:
    """Lines until there are enough for once, or no more."""
    lines: list[bytes] = []
    size = 0
    while len(lines) < CHUNK_LINES and size < CHUNK_BYTES and (line := next_line()) is not None:
        lines.append(line)
        size += len(line)
    return b"".join(lines)
