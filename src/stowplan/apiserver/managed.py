"""managedFields, which record the manager of each field, and server-side apply. Computed only when read."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver.failures import Failure, internal
from stowplan.apiserver.schemas import resolve_ref

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
    """The manager whose fields an entry lists."""

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
    """Known entries, kept as JSON text, which takes a tenth of the memory."""

    __slots__ = ("_text",)
    pending: int = 0

    def __init__(self, known: list[Entry]) -> None:
        self._text = _pack(known)

    def text(self) -> bytes:
        return self._text

    def resolve(self) -> list[Entry]:
        return parse_entries(msgspec.json.decode(self._text))


class Updated:
    """Entries after an update, computed from the object before and after it when first read."""

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
            self._text = _pack(known)
            self._before, self._old, self._new, self.pending = None, b"", b"", 0
        return self._text

    def resolve(self) -> list[Entry]:
        return parse_entries(msgspec.json.decode(self.text()))


def _pack(entries: list[Entry]) -> bytes:
    """Encode entries; objects with the same entries share one text."""
    text = msgspec.json.encode([entry.as_json() for entry in entries], order="sorted")
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
    """Give a manager the fields that it changed, and drop removed fields from all managers."""
    added, modified, removed = difference(schema, old, new)
    changed = managed_part(union(added, modified), manager.subresource)
    left, own, since = [], {}, ""
    for entry in entries:
        fields = without(entry.fields, removed)
        if entry.manager == manager:
            own, since = fields, entry.time
        elif fields := without(fields, changed):
            left.append(entry._replace(fields=fields))
    own = union(own, changed)
    if own:
        left.append(Entry(manager, time if changed or not since else since, own))
    return in_order(_limit_entries(left))


def managed_part(fields: FieldSet, subresource: str) -> FieldSet:
    """Drop the fields that are never managed, and those that this subresource does not write."""
    kept = without(fields, _NEVER_MANAGED)
    if subresource == "status":
        return {key: node for key, node in kept.items() if key in ("f:status", "f:metadata")}
    return {key: node for key, node in kept.items() if key != "f:status"} if subresource == "" else kept


def in_order(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda each: (each.manager.operation, each.time, *each.manager))


def _limit_entries(entries: list[Entry]) -> list[Entry]:
    updates = [entry for entry in entries if entry.manager.operation == "Update"]
    if len(updates) <= MAX_UPDATES:
        return entries
    updates.sort(key=lambda each: each.time)
    oldest, kept = updates[: len(updates) - MAX_UPDATES + 1], updates[len(updates) - MAX_UPDATES + 1 :]
    fields: FieldSet = {}
    for entry in oldest:
        fields = union(fields, entry.fields)
    first = oldest[0].manager._replace(name="ancient-changes", subresource="")
    applied = [entry for entry in entries if entry.manager.operation != "Update"]
    return [*applied, Entry(first, oldest[-1].time, fields), *kept]


def parse_entries(entries: object) -> list[Entry]:
    """Parse the entries that a client sent, skipping invalid ones."""
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


FieldSet = dict[str, Any]


class Difference(NamedTuple):
    added: FieldSet
    modified: FieldSet
    removed: FieldSet


def union(one: FieldSet, other: FieldSet) -> FieldSet:
    """The union of two sets."""
    merged = dict(one)
    for key, node in other.items():
        merged[key] = _union(merged[key], node) if key in merged else node
    return merged


def _union(one: FieldSet, other: FieldSet) -> FieldSet:
    merged = union(one, other)
    if merged and (not one or not other):
        merged["."] = {}
    return merged


def without(one: FieldSet, other: FieldSet) -> FieldSet:
    """The fields in one set and not in the other."""
    left: FieldSet = {}
    for key, node in one.items():
        if key not in other:
            left[key] = node
        elif (kept := _rest(node, other[key])) is not None:
            left[key] = kept
    return left


def _rest(node: FieldSet, other: FieldSet) -> FieldSet | None:
    stays = _is_member(node) and not _is_member(other)
    children = {key: each for key, each in node.items() if key != "."}
    left = without(children, {key: each for key, each in other.items() if key != "."})
    if stays and left:
        left["."] = {}
    return left if left or stays else None


def both(one: FieldSet, other: FieldSet) -> FieldSet:
    """The intersection of two sets."""
    return without(one, without(one, other))


def _is_member(node: FieldSet) -> bool:
    return not node or "." in node


def leaves(schema: Json, value: object) -> FieldSet:
    """The fields that an applied configuration sets."""
    return _leaves(schema, value) or {}


def _leaves(schema: Json, value: object) -> FieldSet | None:
    """The leaves below a value, or the value itself if it has none; None for an empty list."""
    if value == [] and is_granular(schema, value):
        return None
    children = {}
    for key, inner, each in children_of(schema, value):
        if (node := _leaves(inner, each)) is not None:
            children[key] = {**node, ".": {}} if node and key[0] in "kv" else node
    return children if children or not children_of(schema, value) else None


def difference(schema: Json, old: object, new: object) -> Difference:
    found = Difference({}, {}, {})
    _differ(schema, old, new, found)
    return found


def _differ(schema: Json, old: object, new: object, found: Difference) -> bool:
    """Add what differs below a value; return whether the value was modified as a whole."""
    if not is_granular(schema, new if new is not None else old):
        return bool(old != new)
    before = {key: (inner, each) for key, inner, each in children_of(schema, old)}
    after = {key: (inner, each) for key, inner, each in children_of(schema, new)}
    if not before and not after:
        return bool(old != new)  # nothing at all became an empty list
    for key, (inner, each) in after.items():
        if key not in before:
            found.added[key] = everything(inner, each)
            continue
        below = Difference({}, {}, {})
        if _differ(inner, before[key][1], each, below):
            found.modified[key] = {}
        for mine, theirs in zip(found, below, strict=True):
            if theirs:
                mine[key] = theirs
    for key, (inner, each) in before.items():
        if key not in after:
            found.removed[key] = everything(inner, each)
    return False


def everything(schema: Json, value: object) -> FieldSet:
    """A value and all that is in it."""
    node = {key: everything(inner, each) for key, inner, each in children_of(schema, value)}
    if node:
        node["."] = {}
    return node


def is_granular(schema: Json, value: object) -> bool:
    """Whether the parts of this value are managed separately."""
    if isinstance(value, dict):
        return (
            schema.get("x-kubernetes-map-type") or resolve_ref(schema).get("x-kubernetes-map-type")
        ) != "atomic"
    return isinstance(value, list) and schema.get("x-kubernetes-list-type") in ("map", "set")


def children_of(schema: Json, value: Any) -> list[tuple[str, Json, Any]]:
    """The parts of a value as (path element, schema, value); none for an atomic one."""
    if value is None or not is_granular(schema, value):
        return []
    if isinstance(value, dict):
        inner = resolve_ref(schema)
        properties, others = inner.get("properties", {}), inner.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        return [(f"f:{key}", properties.get(key, others), each) for key, each in value.items()]
    items = schema.get("items", {})
    if schema["x-kubernetes-list-type"] == "set":
        return [(f"v:{json.dumps(each)}", items, each) for each in value]
    return [(f"k:{_keys(schema, items, each)}", items, each) for each in value]


def _keys(schema: Json, items: Json, value: object) -> str:
    properties = resolve_ref(items).get("properties", {})
    found = {}
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        given = value.get(key) if isinstance(value, dict) else None
        found[key] = properties.get(key, {}).get("default") if given is None else given
    return json.dumps(
        {key: each for key, each in sorted(found.items()) if each is not None}, separators=(",", ":")
    )


def paths(fields: FieldSet, prefix: str = "") -> list[str]:
    """The fields as messages name them: .spec.containers[name="c"].image"""
    named = [(prefix + element_text(key), node) for key, node in sorted(fields.items()) if key != "."]
    found = [where for where, node in named if _is_member(node)]
    for where, node in named:
        found += paths(node, where)
    return found


def element_text(element: str) -> str:
    """An element of a path as messages name it."""
    kind, _, rest = element.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys: Json = json.loads(rest)
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"


def apply(
    schema: Json, live: Json, config: Json, entries: list[Entry], manager: Manager, force: bool, time: str
) -> tuple[Json, list[Entry]]:
    """Apply `config`; return the object and the owners of its fields. Raises a 409 on conflicts."""
    fields = managed_part(leaves(schema, config), manager.subresource)
    merged = merge_config(schema, live, config)
    before = next((each for each in entries if each.manager == manager), None)
    others = [each for each in entries if each.manager != manager]
    if before is not None:
        kept = fields
        for other in others:
            kept = union(kept, other.fields)
        merged = _prune(schema, merged, without(before.fields, kept), kept)
    changed = difference(schema, live, merged)
    touched = union(changed.added, changed.modified)
    others = _resolve_conflicts(others, touched, force)
    others = [
        each._replace(fields=left) for each in others if (left := without(each.fields, changed.removed))
    ]
    same = before is not None and before.fields == fields
    own = [Entry(manager, before.time if same and before is not None else time, fields)] if fields else []
    return merged, in_order([*others, *own])


def before_first(schema: Json, live: Json, api_version: str) -> Entry:
    """The entry for all fields of an unmanaged object before its first apply."""
    manager = Manager("before-first-apply", "Update", api_version)
    return Entry(manager, "", managed_part(leaves(schema, live), ""))


def _resolve_conflicts(others: list[Entry], touched: FieldSet, force: bool) -> list[Entry]:
    """The entries that other managers keep; a conflict if they would lose fields without force."""
    conflicts = []
    kept = []
    for other in others:
        lost = both(other.fields, touched)
        if lost:
            conflicts += [(other.manager, path) for path in paths(lost)]
            left = without(other.fields, lost)
            if left:
                kept.append(other._replace(fields=left))
        else:
            kept.append(other)
    if conflicts and not force:
        raise _conflict(conflicts)
    return kept


def _conflict(conflicts: list[tuple[Manager, str]]) -> Failure:
    def whose(manager: Manager) -> str:
        below = f' with subresource "{manager.subresource}"' if manager.subresource else ""
        using = f" using {manager.api_version}" if manager.operation == "Update" else ""
        return f'conflict with "{manager.name}"{below}{using}'

    causes = [
        {"reason": "FieldManagerConflict", "message": whose(manager), "field": path}
        for manager, path in conflicts
    ]
    if len(conflicts) == 1:
        said = f"{causes[0]['message']}: {causes[0]['field']}"
        message = f"Apply failed with 1 conflict: {said}"
    else:
        by_manager: dict[str, list[str]] = {}
        for cause in causes:
            by_manager.setdefault(cause["message"], []).append(cause["field"])
        listed = "\n".join(
            f"{said.replace('conflict', 'conflicts', 1)}:\n" + "\n".join(f"- {path}" for path in paths)
            if len(paths) > 1
            else f"{said}: {paths[0]}"
            for said, paths in sorted(by_manager.items())
        )
        message = f"Apply failed with {len(conflicts)} conflicts: {listed}"
    return Failure(409, "Conflict", message, details={"causes": causes})


def merge_config(schema: Json, live: Any, config: Any) -> Any:
    if config is None or not is_granular(schema, config) or type(live) is not type(config):
        return copy.deepcopy(config)
    inner = resolve_ref(schema)
    if isinstance(config, dict):
        properties, others = inner.get("properties", {}), inner.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        found = dict(live)
        for key, value in config.items():
            found[key] = merge_config(properties.get(key, others), live.get(key), value)
        return found
    return _merged_list(schema, live, config)


def _merged_list(schema: Json, live: list[object], config: list[object]) -> list[object]:
    """Merge lists: items of the configuration in its order, the others in between."""
    items = schema.get("items", {})
    mine = {key: value for key, _, value in children_of(schema, config)}
    theirs = {key: value for key, _, value in children_of(schema, live)}
    if len(mine) < len(config):
        raise internal("failed to create typed patch object: duplicate entries for key")
    merged: list[object] = []
    rest = dict.fromkeys(theirs)
    for key, value in mine.items():
        while rest and (first := next(iter(rest))) not in mine:
            merged.append(theirs[first])
            del rest[first]
        rest.pop(key, None)
        merged.append(merge_config(items, theirs[key], value) if key in theirs else copy.deepcopy(value))
    return merged + [theirs[key] for key in rest]


def _prune(schema: Json, value: object, given_up: FieldSet, kept: FieldSet) -> object:
    """Remove the fields that were given up, unless they contain some that are kept."""
    if not isinstance(value, (dict, list)) or not given_up:
        return value
    left: list[tuple[str, Any]] = []
    for key, inner, each in children_of(schema, value):
        node = given_up.get(key)
        if node is None:
            left.append((key, each))
        elif key in kept or (node and "." not in node):
            below = {name: child for name, child in node.items() if name != "."}
            left.append((key, _prune(inner, each, below, kept.get(key, {}))))
    if isinstance(value, dict):
        return {key.removeprefix("f:"): each for key, each in left}
    return [each for _, each in left]


def check_declared(schema: Json, value: object, where: str, path: str = "") -> None:
    """Reject a configuration with fields that are not in the schema."""
    inner = resolve_ref(schema)
    if isinstance(value, dict):
        declared, others = inner.get("properties"), inner.get("additionalProperties")
        if declared is None and not isinstance(others, dict):
            return
        properties: Json = declared or {}
        for key, each in value.items():
            if key in properties:
                check_declared(properties[key], each, where, f"{path}.{key}")
            elif isinstance(others, dict):
                check_declared(others, each, where, f"{path}.{key}")
            elif not inner.get("x-kubernetes-preserve-unknown-fields"):
                raise internal(
                    f"failed to create typed patch object ({where}): "
                    f"{path}.{key}: field not declared in schema"
                )
    elif isinstance(value, list) and "items" in schema:
        named = {id(one): key for key, _, one in reversed(children_of(schema, value))}
        for index, each in enumerate(value):
            key = named.get(id(each), "")
            at = element_text(key) if key else f"[{index}]"
            check_declared(schema["items"], each, where, f"{path}{at}")
