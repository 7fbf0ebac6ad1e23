"""Structural schemas of custom resources: pruning, defaulting and validation of objects by them."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from stowplan.api.patterns import Pattern
from stowplan.apiserver.failures import FieldError, invalid, required, unsupported, wrong_type
from stowplan.errors import PatternError

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

Json = dict[str, Any]

_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_KEYWORDS = (
    *("minimum", "maximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
_OF_TEXT = ("maxLength", "minLength", "format")
_ORDER = {name: place for place, name in enumerate(("type", *_OF_TEXT, "enum"))}


def prune(schema: Json, value: Any, path: str, unknown: list[str]) -> Any:
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
                found[key] = prune(properties[key], each, where, unknown)
            elif isinstance(others, dict):
                found[key] = prune(others, each, where, unknown)
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
        return [prune(schema["items"], each, f"{path}[{index}]", unknown) for index, each in enumerate(value)]
    return value


def set_defaults(schema: Json, value: Any) -> Any:
    """The value with the defaults of fields that were left out."""
    if "$ref" in schema:
        return value
    if isinstance(value, dict):
        found = dict(value)
        for key, each in (schema.get("properties") or {}).items():
            if key not in found and "default" in each:
                found[key] = copy.deepcopy(each["default"])
            if key in found:
                found[key] = set_defaults(each, found[key])
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            known = schema.get("properties") or {}
            found = {key: each if key in known else set_defaults(others, each) for key, each in found.items()}
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [set_defaults(schema["items"], each) for each in value]
    return value


class Validator:
    """Validates objects against a structural schema.

    jsonschema-rs finds what is wrong, in a sixtieth of the time that Python takes; the words are
    kube-apiserver's. Patterns are the exception: they run on RE2, which bounds time and memory.
    """

    def __init__(self, schema: Json) -> None:
        from jsonschema_rs import Draft7Validator  # 60 ms that clusters without custom resources save

        self._patterns: dict[str, str] = {}
        self._schema = self._translated(schema)
        formats: dict[str, Callable[..., bool]] = {
            name: partial(_matches, pattern) for name, pattern in self._patterns.items()
        }
        self._validator = Draft7Validator(self._schema, formats=formats, validate_formats=True)

    def errors(self, value: Any) -> Iterator[FieldError]:
        if not self._validator.is_valid(value):
            yield from self._worded(list(self._validator.iter_errors(value)))

    def _translated(self, schema: Any) -> Any:
        """Translate to JSON Schema, dropping what is not about values."""
        if not isinstance(schema, dict) or "$ref" in schema:
            return True
        found = {key: schema[key] for key in _KEYWORDS if schema.get(key) is not None}
        for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if schema.get(strict) and bound in found:
                found[strict] = found.pop(bound)
        types = [schema["type"]] if schema.get("type") in _TYPES else []
        types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else types
        if types:
            found["type"] = [*types, "null"] if schema.get("nullable") else types
        if schema.get("enum"):
            found["enum"] = [*schema["enum"], None] if schema.get("nullable") else schema["enum"]
        if schema.get("pattern"):  # custom formats are the one door through which our own check is called
            found["format"] = f"pattern-{len(self._patterns)}"
            self._patterns[found["format"]] = schema["pattern"]
        if required_fields := [each for each in schema.get("required") or () if each != "metadata"]:
            found["required"] = required_fields
        if properties := schema.get("properties"):
            found["properties"] = {key: self._translated(each) for key, each in properties.items()}
        for key in ("additionalProperties", "items", "not"):
            if isinstance(schema.get(key), dict):
                found[key] = self._translated(schema[key])
        for key in ("allOf", "anyOf", "oneOf"):
            if schema.get(key):
                found[key] = [self._translated(each) for each in schema[key]]
        return found

    def _worded(self, errors: list[ValidationError]) -> Iterator[FieldError]:
        """Errors of one value together, in kube-apiserver's order; of a text it reports only the first."""
        by_path: dict[tuple[str | int, ...], list[ValidationError]] = {}
        for error in errors:
            by_path.setdefault(tuple(error.instance_path), []).append(error)
        left = Counter(prefix for error in errors if (prefix := _all_of(error)))
        for path, found in by_path.items():
            found.sort(key=lambda error: _ORDER.get(error.kind.name, len(_ORDER)))
            has_text_error = False
            for error in found:
                if error.kind.name not in _OF_TEXT or not has_text_error:
                    yield from self._worded_one(error, _path_text(path))
                has_text_error |= error.kind.name in _OF_TEXT
                if prefix := _all_of(error):
                    left[prefix] -= 1
                    if not left[prefix]:
                        yield self._all_of_failed(prefix, errors)

    def _worded_one(self, error: ValidationError, at: str) -> Iterator[FieldError]:
        kind: Any = error.kind
        value: Any = error.instance
        body = f"{at} in body should"
        match kind.name:
            case "required":
                yield required(f"{at}.{kind.property}" if at else kind.property)
            case "type":
                wanted, given = ",".join(each for each in kind.types if each != "null"), _go_type(value)
                yield wrong_type(at, given, f'{at} in body must be of type {wanted}: "{given}"')
            case "enum":
                texts = [each if isinstance(each, str) else json.dumps(each) for each in kind.options]
                yield unsupported(at, value, texts)
            case "format":
                yield from _pattern_errors(self._patterns[kind.format], value, at)
            case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" as name:
                word = "less than" if name.endswith("aximum") else "greater than"
                word += "" if name.startswith("exclusive") else " or equal to"
                yield invalid(at, value, f"{body} be {word} {kind.limit}")
            case "multipleOf":
                yield invalid(at, value, f"{body} be a multiple of {kind.multiple_of:g}")
            case "minLength":
                yield invalid(at, value, f"{body} be at least {kind.limit} chars long")
            case "minItems" | "minProperties" as name:
                what = name.removeprefix("min").lower()
                yield invalid(at, len(value), f"{body} have at least {kind.limit} {what}")
            case "maxLength":
                yield FieldError(at, "Too long", f"may not be more than {kind.limit} bytes")
            case "maxItems" | "maxProperties":
                items = "item" if kind.limit == 1 else "items"
                yield FieldError(at, "Too many", f"{len(value)}: must have at most {kind.limit} {items}")
            case "not":
                yield _of_no_field(at, "must not validate the schema (not)")
            case "anyOf":
                yield _of_no_field(at, "must validate at least one schema (anyOf)")
                yield from self._worded(min(kind.context, key=len))
            case "oneOf":
                valid = sum(not branch for branch in kind.context)
                found = f"{valid} valid alternatives" if valid else "none valid"
                yield _of_no_field(at, f"must validate one and only one schema (oneOf). Found {found}")
                if not valid:
                    yield from self._worded(min(kind.context, key=len))
            case _:
                yield invalid(at, value, error.message)

    def _all_of_failed(self, prefix: tuple[str | int, ...], errors: list[ValidationError]) -> FieldError:
        failed = {tuple(error.schema_path)[len(prefix)] for error in errors if _all_of(error) == prefix}
        branches: Any = reduce(lambda part, step: part[step], prefix, self._schema)
        example = next(error for error in errors if _all_of(error) == prefix)
        at = _path_text(tuple(example.instance_path)[: _value_depth(prefix)])
        none = ". None validated" if len(failed) == len(branches) else ""
        return _of_no_field(at, f"must validate all the schemas (allOf){none}")


def _matches(pattern: str, value: str) -> bool:
    return not list(_pattern_errors(pattern, value, ""))


def _pattern_errors(pattern: str, value: str, at: str) -> Iterator[FieldError]:
    try:
        if not Pattern.of(pattern).matches(value):
            yield invalid(at, value, f"{at} in body should match '{pattern}'")
    except PatternError as error:
        yield invalid(at, value, f"{at} in body should match '{pattern}': {error}")


def _of_no_field(at: str, message: str) -> FieldError:
    return invalid("<nil>", "", f'"{at}" {message}')


def _all_of(error: ValidationError) -> tuple[str | int, ...]:
    """The path of the innermost allOf that the error is in, as the schema has it; empty if in none."""
    path, end, at = error.schema_path, 0, 0
    while at < len(path):
        end = at + 1 if path[at] == "allOf" else end
        at += 2 if path[at] in ("properties", "allOf", "anyOf", "oneOf") else 1
    return tuple(path[:end])


def _value_depth(schema_path: tuple[str | int, ...]) -> int:
    """How many steps into a value this path in a schema is."""
    depth = at = 0
    while at < len(schema_path):
        depth += schema_path[at] in ("properties", "items", "additionalProperties")
        at += 2 if schema_path[at] in ("properties", "allOf", "anyOf", "oneOf") else 1
    return depth


def _path_text(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _go_type(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


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
