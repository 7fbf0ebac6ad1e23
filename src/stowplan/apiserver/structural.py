"""Structural schemas of custom resources: pruning, defaulting and validation of objects by them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from stowplan.api.patterns import Pattern
from stowplan.apiserver.failures import FieldError, invalid, required, unsupported, wrong_type
from stowplan.errors import PatternError

Json = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def pruned(schema: Json, value: Any, path: str, unknown: list[str]) -> Any:
    """The value without the fields that the schema does not have; their paths are added to `unknown`."""
    if "$ref" in schema:
        return value
    if isinstance(value, dict):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or others is True
        found = {}
        for key, each in value.items():
            where = f"{path}.{key}" if path else key
            if key in properties:
                found[key] = pruned(properties[key], each, where, unknown)
            elif isinstance(others, dict):
                found[key] = pruned(others, each, where, unknown)
            elif (
                keeps
                or (not path and key in ("apiVersion", "kind", "metadata"))
                or (
                    schema.get("x-kubernetes-embedded-resource") and key in ("apiVersion", "kind", "metadata")
                )
            ):
                found[key] = each
            else:
                unknown.append(where)
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [
            pruned(schema["items"], each, f"{path}[{index}]", unknown) for index, each in enumerate(value)
        ]
    return value


def defaulted(schema: Json, value: Any) -> Any:
    """The value with the defaults of fields that were left out."""
    if "$ref" in schema:
        return value
    if isinstance(value, dict):
        found = dict(value)
        for key, each in (schema.get("properties") or {}).items():
            if key not in found and "default" in each:
                found[key] = copy.deepcopy(each["default"])
            if key in found:
                found[key] = defaulted(each, found[key])
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            known = schema.get("properties") or {}
            found = {key: each if key in known else defaulted(others, each) for key, each in found.items()}
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [defaulted(schema["items"], each) for each in value]
    return value


def errors_of(schema: Json, value: Any, at: str) -> Iterator[FieldError]:
    if "$ref" in schema:
        return
    if value is None and schema.get("nullable"):
        return
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield wrong_type(
                at, _go_type(value), f'{at} in body must be of type integer,string: "{_go_type(value)}"'
            )
        return
    if kind and not _is_a(value, kind):
        yield _wrong_type(at, kind, value)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(
            at, value, [each if isinstance(each, str) else json.dumps(each) for each in schema["enum"]]
        )
    yield from _limit_errors(schema, value, at)
    if isinstance(value, dict):
        yield from _object_errors(schema, value, at)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for index, each in enumerate(value):
            yield from errors_of(schema["items"], each, f"{at}[{index}]")


def _object_errors(schema: Json, value: Json, at: str) -> Iterator[FieldError]:
    prefix = f"{at}." if at else ""
    for key in schema.get("required") or ():
        if key not in value and key != "metadata":
            yield required(f"{prefix}{key}")
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, each in value.items():
        if key in properties:
            yield from errors_of(properties[key], each, f"{prefix}{key}")
        elif isinstance(others, dict):
            yield from errors_of(others, each, f"{prefix}{key}")


def _limit_errors(schema: Json, value: Any, at: str) -> Iterator[FieldError]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
            word = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
            yield invalid(at, value, f"{at} in body should be {word} {low}")
        if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
            word = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
            yield invalid(at, value, f"{at} in body should be {word} {high}")
        if schema.get("multipleOf") and value % schema["multipleOf"]:
            yield invalid(at, value, f"{at} in body should be a multiple of {schema['multipleOf']}")
    if isinstance(value, str):
        if schema.get("pattern"):
            yield from _pattern_errors(schema["pattern"], value, at)
        yield from _length_errors(schema, value, at, "Length", "chars long")
    if isinstance(value, list):
        yield from _length_errors(schema, value, at, "Items", "items")
    if isinstance(value, dict):
        yield from _length_errors(schema, value, at, "Properties", "properties")


def _pattern_errors(pattern: str, value: str, at: str) -> Iterator[FieldError]:
    try:
        if not Pattern.of(pattern).matches(value):
            yield invalid(at, value, f"{at} in body should match '{pattern}'")
    except PatternError as error:
        yield invalid(at, value, f"{at} in body should match '{pattern}': {error}")


def _length_errors(schema: Json, value: Any, at: str, what: str, unit: str) -> Iterator[FieldError]:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    shown = value if isinstance(value, str) else len(value)
    if least is not None and len(value) < least:
        yield invalid(at, shown, f"{at} in body should {_verb(what)} at least {least} {unit}")
    if most is not None and len(value) > most:
        if what == "Length":
            yield FieldError(at, "Too long", f"may not be more than {most} bytes")
        elif what == "Items":
            yield FieldError(at, "Too many", f"{len(value)}: must have at most {most} items")
        else:
            yield invalid(at, shown, f"{at} in body should {_verb(what)} at most {most} {unit}")


def _verb(what: str) -> str:
    return "be" if what == "Length" else "have"


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _wrong_type(at: str, kind: str, value: Any) -> FieldError:
    given = _go_type(value)
    return wrong_type(at, given, f'{at} in body must be of type {kind}: "{given}"')


def _go_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def bad_patterns(schema: Json, path: str) -> Iterator[FieldError]:
    """A definition whose patterns cannot be compiled is rejected, so that its objects need not be."""
    waiting: list[tuple[Any, str]] = [(schema, path)]
    while waiting:
        part, at = waiting.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(pattern := part.get("pattern"), str) and pattern:
            try:
                Pattern.of(pattern)
            except PatternError as error:
                yield invalid(
                    f"{at}.pattern", pattern, f"must be a valid regular expression, but isn't: {error}"
                )
        if isinstance(properties := part.get("properties"), dict):
            waiting += ((each, f"{at}.properties[{key}]") for key, each in properties.items())
        waiting += ((part.get(key), f"{at}.{key}") for key in ("items", "additionalProperties", "not"))
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(listed := part.get(key), list):
                waiting += ((each, f"{at}.{key}[{index}]") for index, each in enumerate(listed))
