"""managedFields: who set which field of an object. Worked out lazily, since few readers ask for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from stowplan.apiserver import field_sets
from stowplan.apiserver.field_sets import FieldSet

Json = dict[str, Any]

MAX_UPDATES = 10
MAX_PENDING = 8
_NEVER_MANAGED: FieldSet = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {
        ".": {},
        "f:name": {},
        "f:namespace": {},
        "f:creationTimestamp": {},
        "f:selfLink": {},
        "f:uid": {},
        "f:generation": {},
        "f:managedFields": {},
        "f:resourceVersion": {},
    },
}


class Manager(NamedTuple):
    """Whose fields an entry lists."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


class Entry(NamedTuple):
    manager: Manager
    time: str
    fields: FieldSet

    def as_json(self) -> Json:
        manager = self.manager
        plain = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields,
            "subresource": manager.subresource,
        }
        return {key: value for key, value in plain.items() if value or key == "fieldsV1"}


class Resolved:
    """Entries that are known; kept as JSON text, which is a tenth of what they take otherwise."""

    __slots__ = ("_text",)
    pending: int = 0

    def __init__(self, known: list[Entry]) -> None:
        self._text = _packed(known)

    def text(self) -> bytes:
        return self._text

    def resolve(self) -> list[Entry]:
        return parsed(msgspec.json.decode(self._text))


class Updated:
    """Entries after an update, from the object before and after it; worked out at the first reading."""

    __slots__ = ("_before", "_manager", "_new", "_old", "_schema", "_text", "_time", "pending")

    def __init__(
        self, before: AnyManaged, schema: Json, old: bytes, new: bytes, manager: Manager, time: str
    ) -> None:
        if before.pending >= MAX_PENDING:
            before = Resolved(before.resolve())
        self.pending: int = before.pending + 1
        self._before: AnyManaged | None = before
        self._schema, self._old, self._new, self._manager, self._time = schema, old, new, manager, time
        self._text = b""

    def text(self) -> bytes:
        if self._before is not None:
            old, new = msgspec.json.decode(self._old), msgspec.json.decode(self._new)
            known = update(self._before.resolve(), self._schema, old, new, self._manager, self._time)
            self._text = _packed(known)
            self._before, self._old, self._new, self.pending = None, b"", b"", 0
        return self._text

    def resolve(self) -> list[Entry]:
        return parsed(msgspec.json.decode(self.text()))


def _packed(entries: list[Entry]) -> bytes:
    """As JSON; objects made alike share one text."""
    text = msgspec.json.encode([entry.as_json() for entry in entries])
    if len(_texts) > MAX_TEXTS:
        _texts.clear()
    return _texts.setdefault(text, text)


MAX_TEXTS = 4096
_texts: dict[bytes, bytes] = {}


def is_nobody(owners: AnyManaged) -> bool:
    return isinstance(owners, Resolved) and owners.text() == b"[]"


def is_same(before: AnyManaged | None, after: AnyManaged | None) -> bool:
    """Whether the same managers have the same fields, whenever they set them."""
    if before is after:
        return True
    old, new = before.resolve() if before else [], after.resolve() if after else []
    return [(each.manager, each.fields) for each in old] == [(each.manager, each.fields) for each in new]


AnyManaged = Resolved | Updated
NOBODY = Resolved([])


def update(
    entries: list[Entry], schema: Json, old: Json, new: Json, manager: Manager, time: str
) -> list[Entry]:
    """What a manager changed becomes its own; nobody keeps what was removed."""
    added, modified, removed = field_sets.difference(schema, old, new)
    changed = managed_part(field_sets.union(added, modified), manager.subresource)
    left, own, since = [], {}, ""
    for entry in entries:
        fields = field_sets.without(entry.fields, removed)
        if entry.manager == manager:
            own, since = fields, entry.time
        elif fields := field_sets.without(fields, changed):
            left.append(entry._replace(fields=fields))
    own = field_sets.union(own, changed)
    if own:
        left.append(Entry(manager, time if changed or not since else since, own))
    return in_order(_capped(left))


def managed_part(fields: FieldSet, subresource: str) -> FieldSet:
    """Without what has no managers, and what this way of writing leaves alone anyway."""
    kept = field_sets.without(fields, _NEVER_MANAGED)
    if subresource == "status":
        return {key: node for key, node in kept.items() if key in ("f:status", "f:metadata")}
    return {key: node for key, node in kept.items() if key != "f:status"} if subresource == "" else kept


def in_order(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda each: (each.manager.operation, each.time, *each.manager))


def _capped(entries: list[Entry]) -> list[Entry]:
    updates = [entry for entry in entries if entry.manager.operation == "Update"]
    if len(updates) <= MAX_UPDATES:
        return entries
    updates.sort(key=lambda each: each.time)
    oldest, kept = updates[: len(updates) - MAX_UPDATES + 1], updates[len(updates) - MAX_UPDATES + 1 :]
    fields: FieldSet = {}
    for entry in oldest:
        fields = field_sets.union(fields, entry.fields)
    first = oldest[0].manager._replace(name="ancient-changes", subresource="")
    applied = [entry for entry in entries if entry.manager.operation != "Update"]
    return [*applied, Entry(first, oldest[-1].time, fields), *kept]


def parsed(entries: Any) -> list[Entry]:
    """Entries as a client sends them back; what is no entry is left out."""
    found = []
    for each in entries if isinstance(entries, list) else ():
        if isinstance(each, dict) and isinstance(each.get("fieldsV1"), dict):
            manager = Manager(
                str(each.get("manager", "")),
                str(each.get("operation", "")),
                str(each.get("apiVersion", "")),
                str(each.get("subresource", "")),
            )
            found.append(Entry(manager, str(each.get("time", "")), each["fieldsV1"]))
    return found
