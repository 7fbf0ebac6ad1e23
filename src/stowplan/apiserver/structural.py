"""Structural schemas of custom resources: pruning, defaulting and validation of objects by them."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan.api.meta import Json
from stowplan.api.patterns import Pattern
from stowplan.apiserver.bodies import BuiltIn
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    duplicate,
    invalid,
    required,
    unsupported,
    wrong_type,
)
from stowplan.apiserver.formats import FORMATS
from stowplan.apiserver.metadata import label_errors_of
from stowplan.apiserver.names import dns1035_errors
from stowplan.apiserver.schemas import META
from stowplan.errors import PatternError

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError


TYPES = ("object", "array", "string", "integer", "number", "boolean")
_KEYWORDS = (
    *("minimum", "maximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
)
_OF_TEXT = ("maxLength", "minLength", "format")
_OWN = ("apiVersion", "kind", "metadata")
_META = BuiltIn(META + "ObjectMeta")
_NUMBERS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "float": (-3.4028235e38, 3.4028235e38),
}
_ORDER = {name: place for place, name in enumerate(("type", *_OF_TEXT, "enum"))}


def prune(schema: Json, value: object, path: str, unknown: list[str]) -> Any:
    """The value without the fields that the schema does not have; their paths are added to `unknown`.

    Nulls of fields that are not nullable mean absent fields, so that defaults apply.
    """
    if "$ref" in schema:
        return value
    if isinstance(value, dict):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        keeps = schema.get("x-kubernetes-preserve-unknown-fields") or others is True
        found = {}
        for key, each in value.items():
            where = f"{path}.{key}" if path else key
            is_own = key in _OWN and (not path or schema.get("x-kubernetes-embedded-resource"))
            if is_own and path and key == "metadata" and isinstance(each, dict):
                found[key], more = _META.normalize(each)
                unknown += (f"{where}.{field}" for field in more)
            elif key in properties:
                if each is not None or properties[key].get("nullable"):
                    found[key] = prune(properties[key], each, where, unknown)
            elif isinstance(others, dict):
                found[key] = prune(others, each, where, unknown)
            elif keeps or is_own:
                found[key] = each
            else:
                unknown.append(where)
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(schema["items"], each, f"{path}[{index}]", unknown) for index, each in enumerate(value)]
    return value


MAX_DEFAULTS = 3 * 1024 * 1024
"""Bytes that defaults may add to an object: one in the schema of a list counts for each item."""
MAX_STEPS = 200_000
"""Parts of a schema that may be compared with parts of an object, where the schema has alternatives."""


class _Room:
    """What defaults may still add."""

    def __init__(self) -> None:
        self.left = MAX_DEFAULTS

    def take(self, default: object) -> Any:
        self.left -= len(msgspec.json.encode(default))
        if self.left < 0:
            said = f"Request entity too large: the default values of the schema exceed {MAX_DEFAULTS} bytes"
            raise Failure(413, "RequestEntityTooLarge", said)
        return copy.deepcopy(default)


def set_defaults(schema: Json, value: object, room: _Room | None = None) -> Any:
    """The value with the defaults of fields that were left out."""
    room = room or _Room()
    if "$ref" in schema:
        return value
    if isinstance(value, dict):
        found = dict(value)
        for key, each in (schema.get("properties") or {}).items():
            if key not in found and "default" in each:
                found[key] = room.take(each["default"])
            if key in found:
                found[key] = set_defaults(each, found[key], room)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            known = schema.get("properties") or {}
            found = {
                key: each if key in known else set_defaults(others, each, room) for key, each in found.items()
            }
        return found
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [set_defaults(schema["items"], each, room) for each in value]
    return value


class Validator:
    """Validates objects against a structural schema.

    jsonschema-rs finds what is wrong, in a sixtieth of the time that Python takes; the words are
    kube-apiserver's. Patterns are the exception: they run on RE2, which bounds time and memory.
    """

    def __init__(self, schema: Json) -> None:
        from jsonschema_rs import Draft7Validator  # 60 ms that clusters without custom resources save

        self._patterns: dict[str, tuple[str, str]] = {}
        self._declared, self._has_more = schema, has_more(schema)
        self._has_alternatives = any(
            f'"{word}":' in msgspec.json.encode(schema).decode() for word in _ALTERNATIVES
        )
        self._schema = self._translate(schema)
        formats: dict[str, Callable[..., bool]] = {
            name: partial(_matches, *checked) for name, checked in self._patterns.items()
        }
        self._validator = Draft7Validator(self._schema, formats=formats, validate_formats=True)

    def errors(self, value: object) -> Iterator[FieldError]:
        if self._has_alternatives and _is_too_costly(self._declared, value):
            yield invalid("<nil>", "", f"the schema has too many alternatives for this object: {MAX_STEPS}")
            return
        if not self._validator.is_valid(value):
            yield from self._field_errors(list(self._validator.iter_errors(value)))
        if self._has_more:
            yield from more_errors(self._declared, value, "")

    def _translate(self, schema: object) -> Any:
        """Translate to JSON Schema, dropping what is not about values."""
        if not isinstance(schema, dict) or "$ref" in schema:
            return True
        found = {key: schema[key] for key in _KEYWORDS if schema.get(key) is not None}
        for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if schema.get(strict) and bound in found:
                found[strict] = found.pop(bound)
        types = [schema["type"]] if schema.get("type") in TYPES else []
        types = ["integer", "string"] if schema.get("x-kubernetes-int-or-string") else types
        if types:
            found["type"] = [*types, "null"] if schema.get("nullable") else types
        if schema.get("enum"):
            found["enum"] = [*schema["enum"], None] if schema.get("nullable") else schema["enum"]
        name = schema.get("format") or ""
        if bounds := _NUMBERS.get(name) if schema.get("type") in ("integer", "number") else None:
            found["minimum"] = max(found.get("minimum", bounds[0]), bounds[0])
            found["maximum"] = min(found.get("maximum", bounds[1]), bounds[1])
            found["$comment"] = f"{schema['type']} with format {name}"
        if schema.get("pattern") or name in FORMATS:
            # Custom formats are the one door through which our own check is called.
            found["format"] = f"pattern-{len(self._patterns)}"
            self._patterns[found["format"]] = (schema.get("pattern") or "", name)
        if required_fields := [each for each in schema.get("required") or () if each != "metadata"]:
            found["required"] = required_fields
        if properties := schema.get("properties"):
            found["properties"] = {key: self._translate(each) for key, each in properties.items()}
        for key in ("additionalProperties", "items", "not"):
            if isinstance(schema.get(key), dict):
                found[key] = self._translate(schema[key])
        for key in ("allOf", "anyOf", "oneOf"):
            if schema.get(key):
                found[key] = [self._translate(each) for each in schema[key]]
        return found

    def _field_errors(self, errors: list[ValidationError]) -> Iterator[FieldError]:
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
                    yield from self._field_errors_of(error, _path_text(path))
                has_text_error |= error.kind.name in _OF_TEXT
                if prefix := _all_of(error):
                    left[prefix] -= 1
                    if not left[prefix]:
                        yield self._all_of_failed(prefix, errors)

    def _field_errors_of(self, error: ValidationError, at: str) -> Iterator[FieldError]:
        kind: Any = error.kind
        value: Any = error.instance
        body = f"{at} in body should"
        match kind.name:
            case "required":
                yield required(f"{at}.{kind.property}" if at else kind.property)
            case "type" if comment := self._comment(error):
                kind_of = comment.rpartition(" ")[2]
                yield wrong_type(at, "float64", f'{at} in body must be of type {kind_of}: "float64"')
                yield _out_of_format(comment, at)
            case "minimum" | "maximum" if (comment := self._comment(error)) and kind.limit in _NUMBERS[
                comment.rpartition(" ")[2]
            ]:
                yield _out_of_format(comment, at)
            case "type":
                wanted, given = ",".join(each for each in kind.types if each != "null"), _go_type(value)
                yield wrong_type(at, given, f'{at} in body must be of type {wanted}: "{given}"')
            case "enum":
                texts = [each if isinstance(each, str) else json.dumps(each) for each in kind.options]
                yield unsupported(at, value, texts)
            case "format":
                yield from _text_errors(*self._patterns[kind.format], value, at)
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
                yield from self._field_errors(min(kind.context, key=len))
            case "oneOf":
                valid = sum(not branch for branch in kind.context)
                found = f"{valid} valid alternatives" if valid else "none valid"
                yield _of_no_field(at, f"must validate one and only one schema (oneOf). Found {found}")
                if not valid:
                    yield from self._field_errors(min(kind.context, key=len))
            case _:
                yield invalid(at, value, error.message)

    def _comment(self, error: ValidationError) -> str:
        """What the schema of a number has to say about its format."""
        inner: Any = reduce(lambda part, step: part[step], error.schema_path[:-1], self._schema)
        is_number = isinstance(error.instance, (int, float)) and not isinstance(error.instance, bool)
        return str(inner.get("$comment", "")) if isinstance(inner, dict) and is_number else ""

    def _all_of_failed(self, prefix: tuple[str | int, ...], errors: list[ValidationError]) -> FieldError:
        failed = {tuple(error.schema_path)[len(prefix)] for error in errors if _all_of(error) == prefix}
        branches: Any = reduce(lambda part, step: part[step], prefix, self._schema)
        example = next(error for error in errors if _all_of(error) == prefix)
        at = _path_text(tuple(example.instance_path)[: _value_depth(prefix)])
        none = ". None validated" if len(failed) == len(branches) else ""
        return _of_no_field(at, f"must validate all the schemas (allOf){none}")


_ALTERNATIVES = ("allOf", "anyOf", "oneOf", "not")


def _is_too_costly(schema: Json, value: object) -> bool:
    """Whether too many alternatives would have to be tried: those within others multiply."""
    waiting, count = [(schema, value)], 0
    while waiting:
        part, each = waiting.pop()
        count += 1
        if count + len(waiting) > MAX_STEPS:
            return True
        for word in ("allOf", "anyOf", "oneOf"):
            waiting += [(branch, each) for branch in part.get(word) or ()]
        if isinstance(part.get("not"), dict):
            waiting.append((part["not"], each))
        if isinstance(each, dict):
            properties, others = part.get("properties") or {}, part.get("additionalProperties")
            for key, inner in each.items():
                if isinstance(found := properties.get(key, others), dict):
                    waiting.append((found, inner))
        elif isinstance(each, list) and isinstance(part.get("items"), dict):
            waiting += [(part["items"], item) for item in each]
    return False


def _out_of_format(comment: str, at: str) -> FieldError:
    return invalid("<nil>", "", f"Checked value must be of type {comment} in {at}")


def _matches(pattern: str, name: str, value: str) -> bool:
    return not list(_text_errors(pattern, name, value, ""))


def _text_errors(pattern: str, name: str, value: str, at: str) -> Iterator[FieldError]:
    if name in FORMATS and not FORMATS[name](value):
        yield wrong_type(at, value, f'{at} in body must be of type {name}: "{value}"')
    if not pattern:
        return
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


def _go_type(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def has_more(schema: object) -> bool:
    """Whether a schema asks for more than JSON Schema can say: sets, maps or embedded objects."""
    if not isinstance(schema, dict):
        return False
    if schema.get("x-kubernetes-list-type") in ("set", "map") or schema.get("x-kubernetes-embedded-resource"):
        return True
    below = [
        *(schema.get("properties") or {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]
    return any(has_more(each) for each in below)


def more_errors(schema: Json, value: object, path: str) -> Iterator[FieldError]:
    """Items that a list has twice, and embedded objects that are none."""
    if isinstance(value, dict):
        if schema.get("x-kubernetes-embedded-resource"):
            yield from _embedded_errors(value, path)
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, each in value.items():
            inner = properties.get(key, others)
            if isinstance(inner, dict):
                yield from more_errors(inner, each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield from _item_errors(schema, value, path)
        if isinstance(inner := schema.get("items"), dict):
            for index, each in enumerate(value):
                yield from more_errors(inner, each, f"{path}[{index}]")


def _item_errors(schema: Json, value: list[Any], path: str) -> Iterator[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    match schema.get("x-kubernetes-list-type"):
        case "set":
            identities = value
        case "map":
            identities = [{key: each.get(key) for key in keys if key in each} for each in value]
        case _:
            return
    seen: set[str] = set()
    told: set[str] = set()
    for index, each in enumerate(identities):
        text = json.dumps(each, sort_keys=True)
        if text in seen and text not in told:
            told.add(text)
            yield duplicate(f"{path}[{index}]", each)
        seen.add(text)


def _embedded_errors(value: Json, path: str) -> Iterator[FieldError]:
    version, kind = value.get("apiVersion"), value.get("kind")
    if not version:
        yield required(f"{path}.apiVersion", "must not be empty" if version == "" else "")
    elif str(version).count("/") > 1:
        yield invalid(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}")
    if not kind:
        yield required(f"{path}.kind", "must not be empty" if kind == "" else "")
    for why in dns1035_errors(str(kind).lower()) if kind else ():
        yield invalid(f"{path}.kind", kind, f"may have mixed case, but should otherwise match: {why}")
    meta = value.get("metadata")
    if isinstance(meta, dict):
        yield from label_errors_of(meta.get("labels") or {}, f"{path}.metadata.labels")


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
