"""Patches: JSON patch, JSON merge patch and strategic merge patch, from plain data to plain data."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver.failures import Failure, bad_request, internal, invalid, invalid_object
from stowplan.apiserver.schemas import resolve_ref

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 1024 * 1024
"""Bytes that the copies of one JSON patch may add: each of them could double the object."""
_encode = msgspec.json.Encoder(order="sorted").encode
_DIRECTIVES = ("$patch", "$retainKeys")
_ORDER, _PRIMITIVES = "$setElementOrder/", "$deleteFromPrimitiveList/"


class _PatchError(Exception):
    pass


# JSON patch.


def json_patch(data: Json, patch: object) -> Json:
    """Apply an RFC 6902 patch; if one operation fails, all do."""
    if not isinstance(patch, list):
        given = _json_name(patch)
        said = f"cannot unmarshal {given} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: json: {said}")
    if len(patch) > MAX_OPERATIONS:
        raise Failure(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{MAX_OPERATIONS}, got {len(patch)}",
            details={},
        )
    for operation in patch:
        _check_operation(operation)
    document: Any = data
    copied = 0
    try:
        for operation in patch:
            if operation["op"] == "copy":
                copied += len(_encode(_value(document, _pointer(operation["from"]))))
                if copied > MAX_COPIED:
                    raise _PatchError
            document = _operate(document, operation)
    except (_PatchError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise _rejection() from None
    if not isinstance(document, dict):
        raise _rejection()
    return document


def _rejection() -> Failure:
    message = "the server rejected our request due to an error in our request"
    return Failure(422, "Invalid", message, details={})


def _check_operation(operation: object) -> None:
    """Check the types of an operation's fields; `_operate` checks their values."""
    if operation is None:
        raise _rejection()
    if not isinstance(operation, dict):
        said = f"cannot unmarshal {_json_name(operation)} into Go value of type handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: json: {said}")
    for field in ("op", "path", "from"):
        if operation.get(field) is not None and not isinstance(operation[field], str):
            given = _json_name(operation[field])
            said = f"cannot unmarshal {given} into Go struct field jsonPatchOp.{field} of type string"
            raise bad_request(f"error decoding patch: json: {said}")


def _operate(document: object, operation: Json) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "add":
            return _add(document, path, operation["value"])
        case "remove":
            return _remove(document, path)
        case "replace":
            _value(document, path)
            return _add(_remove(document, path), path, operation.get("value")) if path else operation["value"]
        case "move":
            source = _pointer(operation["from"])
            value = _value(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_value(document, _pointer(operation["from"]))))
        case "test":
            try:
                found = _value(document, path)
            except (KeyError, IndexError, TypeError, ValueError):
                found = None
            if found != operation.get("value"):
                raise _PatchError
            return document
    raise _PatchError


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise _PatchError
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _value(document: Any, path: list[str]) -> Any:
    for part in path:
        document = document[_index(document, part)] if isinstance(document, list) else document[part]
    return document


def _index(holder: list[Any], part: str) -> int:
    index = int(part)
    if not -len(holder) <= index < len(holder):
        raise _PatchError
    return index


def _add(document: object, path: list[str], value: object) -> Any:
    if not path:
        return value
    holder = _value(document, path[:-1])
    if isinstance(holder, list):
        index = len(holder) if path[-1] == "-" else int(path[-1])
        if not 0 <= index <= len(holder):
            raise _PatchError
        holder.insert(index, value)
    elif isinstance(holder, dict):
        holder[path[-1]] = value
    else:
        raise _PatchError
    return document


def _remove(document: object, path: list[str]) -> Any:
    holder = _value(document, path[:-1])
    del holder[_index(holder, path[-1]) if isinstance(holder, list) else path[-1]]
    return document


# JSON merge patch.


def merge_patch(data: object, patch: object) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(data) if isinstance(data, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


# Strategic merge patch.


def strategic_patch(schema: Json, data: Json, patch: Json) -> Json:
    """Merges lists by the keys that the schema declares."""
    merged = _strategic(schema, data, patch)
    return merged if isinstance(merged, dict) else {}


def _strategic(schema: Json, data: object, patch: Json) -> Any:
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise internal(f"unknown patch type: {directive} in map: {_go(patch)}")
    merged = dict(data) if isinstance(data, dict) else {}
    if (retained := patch.get("$retainKeys")) is not None:
        if not isinstance(retained, list):
            raise bad_request("invalid patch format of retainKeys")
        merged = {key: value for key, value in merged.items() if key in retained}
    inner = resolve_ref(schema)
    properties, others = inner.get("properties", {}), inner.get("additionalProperties")
    orders = []
    for key, value in patch.items():
        if key.startswith("$"):
            if key.startswith(_PRIMITIVES):
                field = key.removeprefix(_PRIMITIVES)
                if isinstance(value, list) and isinstance(merged.get(field), list):
                    gone = set(map(_identity, value))
                    merged[field] = [each for each in merged[field] if _identity(each) not in gone]
                continue
            if key.startswith(_ORDER):
                orders.append((key.removeprefix(_ORDER), value))
                continue
            if key in _DIRECTIVES:
                continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, (dict, list)):
            field_schema = properties.get(key, others if isinstance(others, dict) else {})
            merged[key] = _merged_field(field_schema, merged.get(key), value)
        else:
            merged[key] = value
    for field, order in orders:
        _put_in_order(properties, merged, field, order)
    return merged


def _merged_field(schema: Json, old: object, value: dict[str, Any] | list[Any]) -> Any:
    strategies = (schema.get("x-kubernetes-patch-strategy") or "").split(",")
    if isinstance(value, dict):
        if "replace" in strategies:
            return {key: each for key, each in value.items() if key not in _DIRECTIVES}
        return _strategic(schema, old, value)
    if "merge" not in strategies:
        return [each for each in value if each != {"$patch": "replace"}]
    key = schema.get("x-kubernetes-patch-merge-key")
    kept = old if isinstance(old, list) else []
    return _merged_items(schema.get("items", {}), kept, value, key) if key else _merged_values(kept, value)


def _merged_values(old: list[Any], value: list[Any]) -> list[Any]:
    return _interleave(old, list({_identity(item): item for item in value}.values()), _identity)


def _interleave(old: list[Any], patch: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    """Merge lists: items of the patch in its order, the others in between; new ones come first."""
    where = {identity(item): index for index, item in enumerate(old)}
    named = {identity(item) for item in patch}
    rest = deque(item for item in old if identity(item) not in named)
    merged: list[Any] = []
    for item in patch:
        at = where.get(identity(item), -1)
        while rest and where[identity(rest[0])] <= at:
            merged.append(rest.popleft())
        merged.append(item)
    return merged + list(rest)


def _merged_items(schema: Json, old: list[Any], patch: list[Any], key: str) -> list[Any]:
    if {"$patch": "replace"} in patch:
        return [each for each in patch if each != {"$patch": "replace"}]
    left: dict[Any, Json] = {}
    for each in old:
        left.setdefault(_identity(each.get(key)), each)
    changed, deleted = [], set()
    for item in patch:
        if not isinstance(item, dict):
            said = f"list element types are not identical: [{_go(old)} {_go(patch)}]"
            raise invalid_object("", "", [invalid("patch", _go(patch), said)])
        if key not in item:
            raise internal(f"map: {_go(item)} does not contain declared merge key: {key}")
        if item.get("$patch") == "delete":
            deleted.add(_identity(item[key]))
            left.pop(_identity(item[key]), None)
        else:
            changed.append(_strategic(schema, left.get(_identity(item[key]), {}), item))
    kept = [each for each in old if _identity(each.get(key)) not in deleted]
    return _interleave(kept, changed, lambda item: _identity(item.get(key)))


def _identity(value: object) -> Any:
    """A hashable key for a value; for lists and objects, their JSON."""
    return value if isinstance(value, (str, int, float, type(None))) else (type(value), _encode(value))


def _put_in_order(properties: Json, merged: Json, field: str, order: object) -> None:
    """Sort items by the given order; the others stay after the item they followed."""
    key = properties.get(field, {}).get("x-kubernetes-patch-merge-key")

    def identity(item: object) -> Any:
        return _identity(item.get(key) if key and isinstance(item, dict) else item)

    items = merged.get(field)
    if not isinstance(order, list):
        said = f"expected a []interface {{}}, but received a {_json_name(order)}"
        raise invalid_object("", "", [invalid("patch", _go({_ORDER + field: order}), said)])
    if not isinstance(items, list) or not items:
        return
    wanted = {identity(each): place for place, each in reversed(list(enumerate(order)))}
    followers: dict[Any, list[Any]] = {}
    last: int | None = None
    named: list[tuple[int, int, Any]] = []
    for item in items:
        if (place := wanted.get(identity(item))) is not None:
            last = len(named)
            named.append((place, last, item))
        else:
            followers.setdefault(last, []).append(item)
    result = followers.get(None, [])
    for _, number, item in sorted(named, key=lambda each: each[:2]):
        result += [item, *followers.get(number, ())]
    merged[field] = result


def _json_name(value: object) -> str:
    names = {list: "array", str: "string", bool: "bool", dict: "object"}
    return names.get(type(value), "number")


def check_is_map(patch: object) -> Json:
    if not isinstance(patch, dict):
        kind = _json_name(patch)
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type "
            "map[string]interface {}"
        )
    return patch


def unfit(patch: object, said: str, as_json: Json | None = None) -> Failure:
    """The failure for a patch whose result is not an object of the kind."""
    shown = json.dumps(as_json, separators=(",", ":")) if as_json is not None else _go(patch)
    return invalid_object("", "", [invalid("patch", shown, said)])


def _go(value: object) -> str:
    """A value as Go's %v prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_go(each)}" for key, each in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_go, value)) + "]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
