"""Server-side apply: a configuration merged into an object, field by field, with an owner for each."""

from __future__ import annotations

import copy
from typing import Any

from stowplan.apiserver import field_sets, managed
from stowplan.apiserver.failures import Failure, internal
from stowplan.apiserver.field_sets import FieldSet, children_of, is_granular
from stowplan.apiserver.managed import Entry, Manager
from stowplan.apiserver.schemas import resolved

Json = dict[str, Any]


def apply(
    schema: Json, live: Json, config: Json, entries: list[Entry], manager: Manager, force: bool, time: str
) -> tuple[Json, list[Entry]]:
    """The object and the owners of its fields after `manager` applied `config`. Raises a 409 on conflicts."""
    fields = managed.managed_part(field_sets.leaves(schema, config), manager.subresource)
    merged = _merged(schema, live, config)
    before = next((each for each in entries if each.manager == manager), None)
    others = [each for each in entries if each.manager != manager]
    if before is not None:
        kept = fields
        for other in others:
            kept = field_sets.union(kept, other.fields)
        merged = _pruned(schema, merged, field_sets.without(before.fields, kept), kept)
    changed = field_sets.difference(schema, live, merged)
    touched = field_sets.union(changed.added, changed.modified)
    others = _settled(others, touched, force)
    others = [
        each._replace(fields=left)
        for each in others
        if (left := field_sets.without(each.fields, changed.removed))
    ]
    same = before is not None and before.fields == fields
    own = [Entry(manager, before.time if same and before is not None else time, fields)] if fields else []
    return merged, managed.in_order([*others, *own])


def before_first(schema: Json, live: Json, api_version: str) -> Entry:
    """All that is there before somebody applies to an object that nobody managed."""
    manager = Manager("before-first-apply", "Update", api_version)
    return Entry(manager, "", managed.managed_part(field_sets.leaves(schema, live), ""))


def _settled(others: list[Entry], touched: FieldSet, force: bool) -> list[Entry]:
    """What other managers keep; a conflict if they would lose something, unless that is forced."""
    conflicts = []
    kept = []
    for other in others:
        lost = field_sets.both(other.fields, touched)
        if lost:
            conflicts += [(other.manager, path) for path in field_sets.paths(lost)]
            left = field_sets.without(other.fields, lost)
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


def _merged(schema: Json, live: Any, config: Any) -> Any:
    if config is None or not is_granular(schema, config) or type(live) is not type(config):
        return copy.deepcopy(config)
    inner = resolved(schema)
    if isinstance(config, dict):
        properties, others = inner.get("properties", {}), inner.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        found = dict(live)
        for key, value in config.items():
            found[key] = _merged(properties.get(key, others), live.get(key), value)
        return found
    return _merged_list(schema, live, config)


def _merged_list(schema: Json, live: list[Any], config: list[Any]) -> list[Any]:
    """Items of the configuration in its order; those it does not name stay among them."""
    items = schema.get("items", {})
    mine = {key: value for key, _, value in children_of(schema, config)}
    theirs = {key: value for key, _, value in children_of(schema, live)}
    if len(mine) < len(config):
        raise internal("failed to create typed patch object: duplicate entries for key")
    merged: list[Any] = []
    rest = dict.fromkeys(theirs)
    for key, value in mine.items():
        while rest and (first := next(iter(rest))) not in mine:
            merged.append(theirs[first])
            del rest[first]
        rest.pop(key, None)
        merged.append(_merged(items, theirs[key], value) if key in theirs else copy.deepcopy(value))
    return merged + [theirs[key] for key in rest]


def _pruned(schema: Json, value: Any, given_up: FieldSet, kept: FieldSet) -> Any:
    """The value without fields that were given up; one that holds something that is kept stays."""
    if not isinstance(value, (dict, list)) or not given_up:
        return value
    left: list[tuple[str, Any]] = []
    for key, inner, each in children_of(schema, value):
        node = given_up.get(key)
        if node is None:
            left.append((key, each))
        elif key in kept or (node and "." not in node):
            below = {name: child for name, child in node.items() if name != "."}
            left.append((key, _pruned(inner, each, below, kept.get(key, {}))))
    if isinstance(value, dict):
        return {key.removeprefix("f:"): each for key, each in left}
    return [each for _, each in left]


def check_declared(schema: Json, value: Any, where: str, path: str = "") -> None:
    """Refuse a configuration with fields that the schema does not have."""
    inner = resolved(schema)
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
            shown = named.get(id(each), "")
            at = field_sets.shown(shown) if shown else f"[{index}]"
            check_declared(schema["items"], each, where, f"{path}{at}")
