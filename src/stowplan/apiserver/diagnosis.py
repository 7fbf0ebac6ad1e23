"""What is wrong with an object that did not fit its kind, in the words of the API; seldom needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stowplan.apiserver import schemas
from stowplan.apiserver.amounts import canonical as canonical_quantity
from stowplan.apiserver.times import canonical as canonical_time
from stowplan.apiserver.times import canonical_micro

Json = dict[str, Any]

_TEXTS: dict[str, Callable[[Any], str]] = {
    schemas.QUANTITY: canonical_quantity,
    schemas.META + "Time": canonical_time,
    schemas.META + "MicroTime": canonical_micro,
}


class WrongTypeError(ValueError):
    """A value that Go cannot put where it stands; the message is Go's."""


def cleaned(name: str, value: Json) -> tuple[Json, list[str]]:
    """The object without fields that its kind does not have, and the paths of those.

    Raises WrongTypeError, or the error of a quantity or a time, if a value has another type.
    """
    unknown: list[str] = []
    found = _Walk(unknown).struct(name, value, "", "")
    return found, unknown


def duplicates(body: bytes) -> list[str]:
    """The paths of fields that stand twice in one JSON object, in the order of the text."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> Json:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            found[_TWICE] = [key for key, _ in items if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
        return found

    def collect(value: Any, path: str) -> None:
        if isinstance(value, dict):
            found.extend(f"{path}.{key}".lstrip(".") for key in value.pop(_TWICE, ()))
            for key, each in value.items():
                collect(each, f"{path}.{key}")
        elif isinstance(value, list):
            for index, each in enumerate(value):
                collect(each, f"{path}[{index}]")

    collect(json.loads(body, object_pairs_hook=pairs), "")
    return found


_TWICE = "\0twice"


class _Walk:
    def __init__(self, unknown: list[str]) -> None:
        self.unknown = unknown

    def struct(self, name: str, value: Json, path: str, fields: str) -> Json:
        """`path` has indices, `fields` is the path as Go tells it, of field names alone."""
        properties = schemas.data().schemas[name].get("properties", {})
        go = schemas.data().fields.get(name, {})
        kept: Json = {}
        for key, each in value.items():
            where = f"{path}.{key}" if path else key
            if key not in properties:
                self.unknown.append(where)
            elif each is not None:
                inner = f"{fields}.{key}" if fields else key
                struct = name.rpartition(".")[2]
                kind = go.get(key, ("string", 1, 0))[0].lstrip("*")
                kept[key] = self.value(properties[key], each, where, inner, f"{struct}.{inner}", kind)
        return kept

    def value(self, schema: Json, value: Any, path: str, fields: str, where: str, go: str) -> Any:
        if name := schemas.ref_of(schema):
            return self.named(name, value, path, fields, where, go)
        kind = schema.get("type")
        if kind == "array":
            _expect(value, list, where, go)
            inner = go.removeprefix("[]").lstrip("*")
            return [
                self.value(schema["items"], each, f"{path}[{index}]", fields, where, inner)
                for index, each in enumerate(value)
            ]
        if kind == "object" and "additionalProperties" in schema:
            _expect(value, dict, where, go)
            inner = go.partition("]")[2].lstrip("*")
            each_schema = schema["additionalProperties"]
            return {
                key: self.value(each_schema, each, f"{path}.{key}", fields, where, inner)
                for key, each in value.items()
            }
        if kind in _PLAIN:
            _expect(value, _PLAIN[kind], where, go)
            if kind == "integer":
                _expect_range(value, where, go)
        return value

    def named(self, name: str, value: Any, path: str, fields: str, where: str, go: str) -> Any:
        if name in _TEXTS:
            return _TEXTS[name](value)
        if name == schemas.INT_OR_STRING:
            if isinstance(value, bool) or not isinstance(value, (int, str)):
                _expect(value, int, where, "int32")
            return value
        if name == schemas.RECURSIVE or "properties" not in schemas.data().schemas[name]:
            return value
        _expect(value, dict, where, go)
        return self.struct(name, value, path, fields)


_PLAIN: dict[Any, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": (int, float),
    "number": (int, float),
}


def _expect(value: Any, kind: type | tuple[type, ...], where: str, go: str) -> None:
    is_bool = isinstance(value, bool)
    if not isinstance(value, kind) or (is_bool and kind is not bool):
        raise WrongTypeError(
            f"json: cannot unmarshal {_json_name(value)} into Go struct field {where} of type {go}"
        )


def _expect_range(value: Any, where: str, go: str) -> None:
    bits = 31 if go == "int32" or go.endswith("Level") else 63
    if isinstance(value, float) or not -(2**bits) <= value < 2**bits:
        raise WrongTypeError(
            f"json: cannot unmarshal number {value} into Go struct field {where} of type {go}"
        )


def _json_name(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
