"""Decodes request bodies, JSON, YAML or protobuf, into objects in the form that is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec
import yaml

from stowplan.api.meta import Json
from stowplan.api.protobuf import CONTENT_TYPE as PROTOBUF
from stowplan.apiserver import nesting, protobuf, schemas
from stowplan.apiserver.amounts import canonical as canonical_quantity
from stowplan.apiserver.failures import SCHEME, Failure, bad_request, invalid, invalid_object
from stowplan.apiserver.times import canonical as canonical_time
from stowplan.apiserver.times import canonical_micro
from stowplan.http11.messages import Request
from stowplan.yaml_nesting import find_alias_fault, is_too_deep

_NO_KIND = "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
MEDIA_TYPES = ("application/json", "application/yaml", PROTOBUF)
MAX_PREVIEW = 30
MAX_PROBLEMS = 100
_YAML = ("application/yaml", "application/apply-patch+yaml")


class Codec(Protocol):
    """Brings objects of one kind into the form that is stored."""

    def normalize(self, value: Json) -> tuple[Json, list[str]]:
        """Return the object without unknown fields, and the paths of those. Raises ValueError."""

    def decode(self, body: bytes) -> Json | None:
        """Decode a body that needs no diagnosis; None for any other."""

    def problems(self, value: object, unknown: list[str]) -> list[str]:
        """What strict decoding objects to, in the order of kube-apiserver; `value` is from `parse_pairs`."""


class BuiltIn(NamedTuple):
    """The codec of a built-in kind."""

    schema: str

    def decode(self, body: bytes) -> Json | None:
        if nesting.is_too_deep(body):
            return None
        if b"null" in body:  # a null stands for nothing, which is for `normalize` to see to
            return None
        try:
            return schemas.decode(self.schema, body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None

    def normalize(self, value: Json) -> tuple[Json, list[str]]:
        value = schemas.without_nulls(value)
        try:
            return schemas.normalize(self.schema, value), []
        except ValueError:
            kept, unknown = drop_unknown_fields(self.schema, value)
            return schemas.normalize(self.schema, schemas.without_nulls(kept)), unknown

    def problems(self, value: object, unknown: list[str]) -> list[str]:
        found: dict[str, None] = {}
        _find_problems({"$ref": schemas.REF + self.schema}, value, "", found)
        return list(found)


@lru_cache(64)  # clients send a handful of them
def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower() or "application/json"


def parse_body(body: bytes, kind: str, media: str = "application/json") -> Json:
    """Decode a body to plain data."""
    if media == PROTOBUF:
        return protobuf.decode(body)
    value = _from_json(yaml_to_json(body)[0] if is_yaml(media, body) else body, kind)
    if not isinstance(value, dict):
        shown = (
            '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        )
        given = f"json: cannot unmarshal {_json_name(value)}"
        said = f"json parse error: {given} into Go value of type struct {shown}"
        raise bad_request(f"{_NO_KIND.format(kind=kind)}{said} ({_preview(body, is_hex=True)})")
    return value


def read_object(
    request: Request, codec: Codec, group_version: str, kind: str, validation: str
) -> tuple[Json, list[str]]:
    """Decode the object of a create or update; return it with warnings for the client."""
    body, media = request.body, media_type(request.headers.get("content-type", ""))
    if media not in MEDIA_TYPES:
        raise unsupported_media()
    if validation != "Strict" and media == "application/json":
        found = codec.decode(body)
        if (
            found is not None
            and found.setdefault("kind", kind) == kind
            and found.setdefault("apiVersion", group_version) == group_version
        ):
            return found, []
    value = parse_body(body, kind, media)
    check_kind(value, codec, group_version, kind)
    found, problems = normalize(value, codec, lambda said: _unhandled_failure(value, kind, said))
    if media != PROTOBUF and validation != "Ignore":
        unknown = problems
        problems = [request.duplicates] if request.duplicates else []
        problems += codec.problems(parse_pairs(body), unknown)[:MAX_PROBLEMS]
    if problems and validation == "Strict":
        raise _unhandled_failure(value, kind, f"strict decoding error: {', '.join(problems)}")
    found["kind"], found["apiVersion"] = kind, group_version
    return found, [] if validation == "Ignore" else problems


def normalize(value: Json, codec: Codec, refused: Callable[[str], Failure]) -> tuple[Json, list[str]]:
    """Return the object as it is stored, and its unknown fields; `refused` makes the failure."""
    try:
        found, unknown = codec.normalize(value)
    except ValueError as error:
        raise refused(str(error)) from error
    return found, [_unknown_field_text(path) for path in unknown[:MAX_PROBLEMS]]


def _unknown_field_text(path: str) -> str:
    return f'unknown field "{path}"'


def check_kind(value: Json, codec: Codec, group_version: str, kind: str) -> None:
    given, version = value.setdefault("kind", kind) or kind, value.setdefault("apiVersion", group_version)
    value["kind"], value["apiVersion"] = given, version or group_version
    if value["kind"] == kind and value["apiVersion"] == group_version:
        return
    given, version = str(value["kind"]), str(value["apiVersion"])
    if not isinstance(codec, BuiltIn):
        if version == group_version:
            name = str((value.get("metadata") or {}).get("name", ""))
            errors = [invalid("kind", given, f"must be {kind}")]
            raise invalid_object(given, name, errors, group_version.partition("/")[0])
        raise bad_request(
            f"the API version in the data ({version}) "
            f"does not match the expected API version ({group_version})"
        )
    group, _, short = version.rpartition("/")
    if (group, short, given) in schemas.names():
        package = group_version.rpartition("/")[0].partition(".")[0] or "core"
        said = f"converting ({short}.{given}) to ({package}.{kind}): unknown conversion"
    else:
        said = f'no kind "{given}" is registered for version "{version}" in scheme "{SCHEME}"'
    raise bad_request(f'{given} in version "{short}" cannot be handled as a {kind}: {said}')


def unsupported_media() -> Failure:
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )
    return Failure(415, "UnsupportedMediaType", message)


def unsupported_patch() -> Failure:
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )
    return Failure(415, "UnsupportedMediaType", message)


def decode_patch(body: bytes) -> Any:
    if nesting.is_too_deep(body):
        raise bad_request(f"error decoding patch: {nesting.WORDS}")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {json_error(error)}") from error


def _unhandled_failure(value: Json, kind: str, said: str) -> Failure:
    version = str(value["apiVersion"]).rpartition("/")[2]
    return bad_request(f'{value["kind"]} in version "{version}" cannot be handled as a {kind}: {said}')


def _from_json(body: bytes, kind: str) -> object:
    try:
        if nesting.is_too_deep(body):
            raise ValueError(nesting.WORDS)
        return msgspec.json.decode(body)
    except ValueError as error:
        shown = _preview(body) or "<empty>"
        raise bad_request(
            f"{_NO_KIND.format(kind=kind)}json parse error: {json_error(error)} ({shown})"
        ) from error


def _preview(body: bytes, is_hex: bool = False) -> str:
    """The beginning of a body, as messages show it."""
    some = body[:MAX_PREVIEW]
    shown = some.hex() if is_hex else some.decode(errors="replace")
    return shown if len(body) <= MAX_PREVIEW else f"{shown} ..."


def json_error(error: Exception) -> str:
    """Go's message for malformed JSON, for the common mistake."""
    return "unexpected end of JSON input" if "truncated" in str(error) else str(error)


def is_yaml(media: str, body: bytes) -> bool:
    """Whether a body must be read as YAML; most that may be are JSON, which is quicker to read."""
    if media not in _YAML:
        return False
    if not body.lstrip().startswith(b"{"):
        return True
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        return True
    except RecursionError:
        pass  # it is rejected later
    return False


def yaml_to_json(body: bytes) -> tuple[bytes, str]:
    """Convert YAML to JSON, and say which keys it has twice.

    Raises a 400 if it is malformed, or too large because of aliases.
    """
    if is_too_deep(body):
        raise bad_request(f"error decoding YAML: {nesting.WORDS}")
    try:
        if find_alias_fault(body):
            raise bad_request(
                "error decoding YAML: error converting YAML to JSON: "
                "yaml: document contains excessive aliasing"
            )
        loader = _YamlLoader(body)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
        return msgspec.json.encode(value, order="sorted"), loader.duplicates
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise bad_request(f"error decoding YAML: {str(error)[:1000]}") from error
    except RecursionError:
        raise bad_request(f"error decoding YAML: {nesting.WORDS}") from None


class _YamlLoader(yaml.CSafeLoader):
    """Keeps dates as text, makes all keys text, and remembers keys that a mapping has twice."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._duplicates: list[tuple[int, str]] = []

    @property
    def duplicates(self) -> str:
        lines = [f'  line {line}: key "{key}" already set in map' for line, key in sorted(self._duplicates)]
        return "\n".join(["yaml: unmarshal errors:", *lines[:MAX_PROBLEMS]]) if lines else ""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    self._duplicates.append((key.start_mark.line + 1, key.value))
                seen.add(key.value)
        found = super().construct_mapping(node, deep)
        if all(isinstance(key, str) for key in found):
            return found
        return {key if isinstance(key, str) else _json_key(key): value for key, value in found.items()}


_YamlLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
# Go's YAML has these as well.
_YamlLoader.bool_values = {**yaml.CSafeLoader.bool_values, "y": True, "n": False}
_YamlLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))


def _json_key(key: object) -> str:
    return msgspec.json.encode(key).decode()


def _json_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


_TEXTS: dict[str, Callable[[object], str]] = {
    schemas.QUANTITY: canonical_quantity,
    schemas.META + "Time": canonical_time,
    schemas.META + "MicroTime": canonical_micro,
}


class WrongTypeError(ValueError):
    """A value of the wrong type; the message is Go's."""


def drop_unknown_fields(name: str, value: Json) -> tuple[Json, list[str]]:
    """The object without fields that its kind does not have, and the paths of those.

    Raises WrongTypeError, or the error of a quantity or a time, if a value has another type.
    """
    unknown: list[str] = []
    found = _Walk(unknown).struct(name, value, "", "")
    return found, unknown


class _Pairs(list[tuple[str, Any]]):
    """The fields of a JSON object as the text has them: in order, and those that are there twice."""


def parse_pairs(body: bytes) -> object:
    return json.loads(body, object_pairs_hook=_Pairs)


def duplicates(value: object, path: str = "") -> Iterator[str]:
    """The paths of duplicate fields in what `parse_pairs` found, in the order of the text."""
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, each in value:
            where = f"{path}.{key}" if path else key
            if key in seen:
                yield where
            seen.add(key)
            yield from duplicates(each, where)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from duplicates(each, f"{path}[{index}]")


def _find_problems(schema: Json, value: object, path: str, found: dict[str, None]) -> None:
    """Unknown and duplicate fields in the order of the text; those of an unknown field do not count."""
    schema = schemas.resolve_ref(schema)
    if isinstance(value, _Pairs):
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        seen: set[str] = set()
        for key, each in value:
            where = f"{path}.{key}" if path else key
            if properties is not None and key not in properties:
                found[_unknown_field_text(where)] = None
                continue
            if key in seen:
                found[f'duplicate field "{where}"'] = None
            seen.add(key)
            inner = properties[key] if properties is not None else others
            _find_problems(inner if isinstance(inner, dict) else {}, each, where, found)
    elif isinstance(value, list):
        inner = schema.get("items")
        for index, each in enumerate(value):
            _find_problems(inner if isinstance(inner, dict) else {}, each, f"{path}[{index}]", found)


class _Walk:
    def __init__(self, unknown: list[str]) -> None:
        self.unknown = unknown

    def struct(self, name: str, value: Json, path: str, fields: str) -> Json:
        """`path` has indices; `fields` is the path as Go prints it, with field names only."""
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


def _expect(value: object, kind: type | tuple[type, ...], where: str, go: str) -> None:
    is_bool = isinstance(value, bool)
    if not isinstance(value, kind) or (is_bool and kind is not bool):
        raise WrongTypeError(
            f"json: cannot unmarshal {_json_name(value)} into Go struct field {where} of type {go}"
        )


def _expect_range(value: object, where: str, go: str) -> None:
    bits = 31 if go == "int32" or go.endswith("Level") else 63
    if isinstance(value, float) or not -(2**bits) <= value < 2**bits:
        raise WrongTypeError(
            f"json: cannot unmarshal number {value} into Go struct field {where} of type {go}"
        )
