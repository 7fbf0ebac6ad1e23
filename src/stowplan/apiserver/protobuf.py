"""Decode request bodies that are in protobuf. Responses are always JSON.

The schemas are those of JSON; the data file also has the field numbers.
"""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Callable
from typing import Any

from stowplan.api.meta import Json
from stowplan.api.protobuf import MAGIC, fields
from stowplan.apiserver import schemas
from stowplan.apiserver.failures import bad_request, no_kind
from stowplan.apiserver.times import written

ZERO_TIME = -62_135_596_800
"""Go's zero time, the beginning of the year 1, in seconds since 1970."""
_UNREADABLE = (
    IndexError, ValueError, struct.error, AttributeError, TypeError, OverflowError, OSError, RecursionError
)  # fmt: skip


def decode(body: bytes) -> Json:
    """Decode the object in a body; raises a 400 if its kind is unknown."""
    if not body.startswith(MAGIC):
        raise bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    try:
        envelope = _by_number(body[len(MAGIC) :])
        named = {number: value.decode() for number, value in _by_number(envelope.get(1, b"")).items()}
        version, kind = named.get(1, ""), named.get(2, "")
        group, _, short = version.rpartition("/")
        # Clients send DeleteOptions in the version of what they delete; every version has the same.
        delete = schemas.META + "DeleteOptions"
        name = delete if kind == "DeleteOptions" else schemas.names().get((group, short, kind))
        if name is None:
            raise no_kind(kind, version)
        return {"apiVersion": version, "kind": kind, **_message(name, name, envelope.get(2, b""))}
    except _UNREADABLE as error:
        raise bad_request(f"the body is no protobuf of Kubernetes: {error}") from error


def _by_number(message: bytes) -> dict[int, Any]:
    return {number: value for number, value, _ in fields(message)}


def _message(name: str, outer: str, data: bytes) -> Json:
    """The fields of a message; `outer` is the schema that has them as properties."""
    properties = schemas.data().schemas[outer].get("properties", {})
    by_number = {facts[2]: key for key, facts in schemas.data().fields.get(name, {}).items() if facts[2]}
    parts = schemas.data().parts.get(name, {})
    found: Json = {}
    for number, value, _ in fields(data):
        if part := parts.get(str(number)):
            found |= _message(part, outer, value)
        elif (key := by_number.get(number)) and key in properties:
            _store(found, key, properties[key], value)
    if name == schemas.RECURSIVE:  # no codec leaves out its empty fields, which protobuf always has
        go = schemas.data().fields[name]
        found = {key: each for key, each in found.items() if each or go[key][0].startswith("*")}
    return found


def _store(found: Json, key: str, schema: Json, value: Any) -> None:
    if schema.get("type") == "array":
        found.setdefault(key, []).append(_value(schema["items"], value))
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        entry = _by_number(value)
        inner = schema["additionalProperties"]
        empty = {} if schemas.ref_of(inner) or inner.get("type") == "object" else b""
        held = entry.get(2, b"")
        found.setdefault(key, {})[entry.get(1, b"").decode()] = (
            _value(inner, held) if held else empty or _value(inner, held)
        )
    else:
        found[key] = _value(schema, value)


def _value(schema: Json, value: Any) -> Any:
    if name := schemas.ref_of(schema):
        special = _SPECIAL.get(name)
        if special is not None:
            return special(_by_number(value))
        return _message(name, name, value)
    match schema.get("type"):
        case "string":
            return base64.b64encode(value).decode() if schema.get("format") == "byte" else value.decode()
        case "boolean":
            return bool(value)
        case "integer":
            return value - 2**64 if value >= 2**63 else value
        case "number":
            return struct.unpack("<d", value)[0]
    return None


def _quantity(given: dict[int, Any]) -> str:
    text: str = given.get(1, b"0").decode()
    return text


def _time(given: dict[int, Any]) -> str | None:
    if not given:
        return None
    seconds = given.get(1, 0)
    seconds = seconds - 2**64 if seconds >= 2**63 else seconds
    if seconds <= ZERO_TIME:
        return None
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return written(moment.replace(microsecond=given.get(2, 0) // 1000))


def _int_or_string(given: dict[int, Any]) -> int | str:
    if given.get(1, 0) == 1:
        text: str = given.get(3, b"").decode()
        return text
    number: int = given.get(2, 0)
    return number - 2**64 if number >= 2**63 else number


def _raw(given: dict[int, Any]) -> object:
    return json.loads(given[1]) if given.get(1) else None


def _schema(value: bytes) -> Json:
    return _message(schemas.RECURSIVE, schemas.RECURSIVE, value)


def _schema_or(number: int, other: Callable[[Any], Any]) -> Callable[[dict[int, Any]], Any]:
    """A schema in the field of this number, or something else in the other of the two."""
    return lambda given: _schema(given[number]) if number in given else other(given.get(3 - number))


_APIEXTENSIONS = schemas.RECURSIVE.rpartition(".")[0] + "."
_SPECIAL: dict[str, Callable[[dict[int, Any]], Any]] = {
    schemas.QUANTITY: _quantity,
    schemas.META + "Time": _time,
    schemas.META + "MicroTime": _time,
    schemas.INT_OR_STRING: _int_or_string,
    schemas.META + "FieldsV1": _raw,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _raw,
    _APIEXTENSIONS + "JSON": _raw,
    _APIEXTENSIONS + "JSONSchemaPropsOrArray": _schema_or(
        1, lambda value: [_schema(value)] if value else None
    ),
    _APIEXTENSIONS + "JSONSchemaPropsOrStringArray": _schema_or(
        1, lambda value: [value.decode()] if value else []
    ),
    _APIEXTENSIONS + "JSONSchemaPropsOrBool": _schema_or(2, bool),
}
