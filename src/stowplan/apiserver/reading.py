"""Lists, whole or in pages, at any version in the log; and watches with bookmarks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.api.selectors import Selector
from stowplan.apiserver import forms
from stowplan.apiserver.failures import Failure, bad_request, expired, internal, too_large_version
from stowplan.apiserver.options import (
    FieldTerms,
    Form,
    ListOptions,
    field_selector,
    fields_match,
    label_selector,
)
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.store import Change, Collection, Key, Record
from stowplan.http11.messages import Request, Response


class Selection(NamedTuple):
    """Which objects a list or watch selects."""

    namespace: str
    labels: Selector
    fields: FieldTerms
    name: str = ""

    def takes(self, record: Record) -> bool:
        if self.namespace and record.key[0] != self.namespace:
            return False
        if self.name and record.key[1] != self.name:
            return False
        if not self.labels.everything and not self.labels.matches(record.labels):
            return False
        return not self.fields or fields_match(self.fields, record.fields)


def selection_of(resource: Resource, namespace: str, options: ListOptions, name: str = "") -> Selection:
    def unknown(field: str) -> Failure:
        if not resource.is_custom and not resource.strategy.fields:
            said = f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        elif resource.kind == "Job":
            said = f'field label "{field}" not supported for Job'
        else:
            said = f"field label not supported: {field}"
        return bad_request(said)

    terms = field_selector(options.field_selector, resource.known_fields, unknown)
    renamed = resource.strategy.fields if resource.name == "events.events.k8s.io" else {}
    terms = tuple((renamed.get(field, field), value, equal) for field, value, equal in terms)
    return Selection(namespace, label_selector(options.label_selector), terms, name)


def answer_list(
    resource: Resource, collection: Collection, selection: Selection, options: ListOptions, form: Form
) -> Response:
    version, after = collection.store.version, None
    if options.continue_from:
        version, after = _position(options, version)
    elif options.version:
        asked = version_number(options.version)
        if asked > version:
            raise too_large_version(asked, version)
        if options.match == "Exact" or (options.limit and asked and not options.match):
            version = asked
    records = collection.at(version) if version >= collection.store.oldest_version() else None
    if records is None:
        raise _forgotten(collection, options, after)
    keys = collection.sorted_keys() if records is collection.records else sorted(records)
    found, last, left = _page(records, keys, selection, options.limit, after)
    meta: Json = {"resourceVersion": str(version)}
    if last is not None:
        meta["continue"] = _token(version, last)
        if not options.label_selector and not options.field_selector:
            meta["remainingItemCount"] = left
    return forms.render_list(form, resource, found, meta)


def _page(
    records: dict[Key, Record], keys: Iterable[Key], selection: Selection, limit: int, after: Key | None
) -> tuple[list[Record], Key | None, int]:
    """The records of one page, the last key if there is more to come, and how much more."""
    found = [records[key] for key in keys if (after is None or key > after) and selection.takes(records[key])]
    if not limit or len(found) <= limit:
        return found, None, 0
    return found[:limit], found[limit - 1].key, len(found) - limit


def version_number(text: str) -> int:
    if not _is_version(text):
        raise bad_request(f"invalid resource version: {unreadable_version(text)}")
    return int(text)


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64


def unreadable_version(text: str) -> str:
    why = "value out of range" if text.isascii() and text.isdecimal() else "invalid syntax"
    return f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {why}'


def _token(version: int, last: Key) -> str:
    document = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{last[0]}/{last[1]}\0"}
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def _position(options: ListOptions, current: int) -> tuple[int, Key]:
    text = options.continue_from
    try:
        document = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        namespace, _, name = document["start"].rstrip("\0").partition("/")
        version = int(document["rv"])
    except (binascii.Error, UnicodeDecodeError, ValueError):
        good = len(re.match(r"[A-Za-z0-9_-]*", text)[0])  # type: ignore[index]
        said = f"invalid continue token: continue key is not valid: illegal base64 data at input byte {good}"
        raise bad_request(said) from None
    except (KeyError, TypeError, AttributeError):
        raise bad_request("continue key is not valid: incorrect encoded start resourceVersion") from None
    if options.version and options.version != "0":
        raise bad_request("specifying resource version is not allowed when using continue")
    return (version if version > 0 else current), (namespace, name)


def _forgotten(collection: Collection, options: ListOptions, after: Key | None) -> Failure:
    if after is None:
        return expired("The resourceVersion for the provided list is too old.")
    failure = expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new "
        "list without the continue parameter, or use the continue token in this response to retrieve the "
        "remainder of the results. Continuing with the provided token results in an inconsistent list - "
        "objects that were created, modified, or deleted between the time the first chunk was returned and "
        "now may show up in the list."
    )
    failure.status["metadata"] = {"continue": _token(-1, after)}
    return failure


def watch_version(text: str) -> int:
    if not _is_version(text):
        raise internal(unreadable_version(text))
    return int(text)


BOOKMARK_SECONDS = 55.0
TIMEOUT_SECONDS = 1800.0
CHUNK_LINES = 256
CHUNK_BYTES = 256 * 1024
"""Maximum of events in one chunk, so that a slow watch blocks neither the loop nor much memory."""


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
        self.request = Request("", "")
        self._is_dropped = False
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

    def drop(self) -> None:
        """Break off the connection, as when a server dies."""
        self._is_dropped = True
        self.collection.waiters.wake()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events as lines, some at a time, until the watch's time is up."""
        if self.gone:
            yield self._gone_event(self._asked)
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
            if self._is_dropped:
                if self.request.is_bare:
                    return  # without a connection there is nothing to break
                raise ConnectionAbortedError("the watch was dropped")
            changes = self.collection.changes_from(self.position)
            if changes is None:
                yield self._gone_event(self.collection.forgotten)
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
        """The last state of an object that a selector no longer matches, with the version of the change."""
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

    def _gone_event(self, asked: int) -> bytes:
        failure = expired(f"too old resource version: {asked} ({self.collection.forgotten})")
        return msgspec.json.encode({"type": "ERROR", "object": failure.status}) + b"\n"


def _chunk(next_line: Callable[[], bytes | None]) -> bytes:
    """Join lines until the chunk is full or there are no more."""
    lines: list[bytes] = []
    size = 0
    while len(lines) < CHUNK_LINES and size < CHUNK_BYTES and (line := next_line()) is not None:
        lines.append(line)
        size += len(line)
    return b"".join(lines)
