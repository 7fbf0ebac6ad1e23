"""Sets of fields of an object, as managedFields writes them, and how two objects differ in such sets.

A set is a tree of plain dicts: `{"f:spec": {"f:replicas": {}}}`. An empty dict is a field of the set; a field
that is in the set together with some of its own fields has the key "." beside them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from stowplan.apiserver.schemas import resolved

Json = dict[str, Any]
FieldSet = dict[str, Any]


class Difference(NamedTuple):
    added: FieldSet
    modified: FieldSet
    removed: FieldSet


def union(one: FieldSet, other: FieldSet) -> FieldSet:
    """Both of them; a root that is empty is an empty set."""
    merged = dict(one)
    for key, node in other.items():
        merged[key] = _joined(merged[key], node) if key in merged else node
    return merged


def _joined(one: FieldSet, other: FieldSet) -> FieldSet:
    merged = union(one, other)
    if merged and (not one or not other):
        merged["."] = {}
    return merged


def without(one: FieldSet, other: FieldSet) -> FieldSet:
    """What is in one and not in the other."""
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
    """What is in both."""
    return without(one, without(one, other))


def _is_member(node: FieldSet) -> bool:
    return not node or "." in node


def leaves(schema: Json, value: Any) -> FieldSet:
    """The fields that an applied configuration speaks of."""
    return _leaves(schema, value) or {}


def _leaves(schema: Json, value: Any) -> FieldSet | None:
    """The leaves below a value, the value itself if it has none; None if it is a list with nothing in it."""
    if value == [] and is_granular(schema, value):
        return None
    children = {}
    for key, inner, each in children_of(schema, value):
        if (node := _leaves(inner, each)) is not None:
            children[key] = {**node, ".": {}} if node and key[0] in "kv" else node
    return children if children or not children_of(schema, value) else None


def difference(schema: Json, old: Any, new: Any) -> Difference:
    found = Difference({}, {}, {})
    _differ(schema, old, new, found)
    return found


def _differ(schema: Json, old: Any, new: Any, found: Difference) -> bool:
    """Fill in what differs below one value; whether the value itself was modified as a whole."""
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


def everything(schema: Json, value: Any) -> FieldSet:
    """A value and all that is in it."""
    node = {key: everything(inner, each) for key, inner, each in children_of(schema, value)}
    if node:
        node["."] = {}
    return node


def is_granular(schema: Json, value: Any) -> bool:
    """Whether the parts of this value have managers of their own."""
    if isinstance(value, dict):
        return (
            schema.get("x-kubernetes-map-type") or resolved(schema).get("x-kubernetes-map-type")
        ) != "atomic"
    return isinstance(value, list) and schema.get("x-kubernetes-list-type") in ("map", "set")


def children_of(schema: Json, value: Any) -> list[tuple[str, Json, Any]]:
    """The parts of a value as (path element, schema, value); of one that is atomic, none."""
    if value is None or not is_granular(schema, value):
        return []
    if isinstance(value, dict):
        inner = resolved(schema)
        properties, others = inner.get("properties", {}), inner.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        return [(f"f:{key}", properties.get(key, others), each) for key, each in value.items()]
    items = schema.get("items", {})
    if schema["x-kubernetes-list-type"] == "set":
        return [(f"v:{json.dumps(each)}", items, each) for each in value]
    return [(f"k:{_keys(schema, items, each)}", items, each) for each in value]


def _keys(schema: Json, items: Json, value: Any) -> str:
    properties = resolved(items).get("properties", {})
    found = {}
    for key in schema.get("x-kubernetes-list-map-keys", ()):
        given = value.get(key) if isinstance(value, dict) else None
        found[key] = properties.get(key, {}).get("default") if given is None else given
    return json.dumps(
        {key: each for key, each in sorted(found.items()) if each is not None}, separators=(",", ":")
    )


def paths(fields: FieldSet, prefix: str = "") -> list[str]:
    """The fields as messages name them: .spec.containers[name="c"].image"""
    named = [(prefix + shown(key), node) for key, node in sorted(fields.items()) if key != "."]
    found = [where for where, node in named if _is_member(node)]
    for where, node in named:
        found += paths(node, where)
    return found


def shown(element: str) -> str:
    """An element of a path as messages name it."""
    kind, _, rest = element.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys: Json = json.loads(rest)
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"
