"""Kubernetes' protobuf, as far as clients must be understood: bodies of requests. Answers are always JSON.

Read by the same schemas as JSON, with the field numbers that the data file has beside them.
"""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

from stowplan.apiserver import schemas
from stowplan.apiserver.failures import bad_request

Json = dict[str, Any]

MAGIC = b"k8s\0"
_BYTES = 2
_UNREADABLE = (
    IndexError, ValueError, struct.error, AttributeError, TypeError, OverflowError, OSError, RecursionError
)  # fmt: skip


def decoded(body: bytes) -> Json:
    """The object in a body; a 400 if it is none of ours."""
    if not body.startswith(MAGIC):
        raise bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    try:
        envelope = dict(_fields(body[len(MAGIC) :]))
        named = {number: value.decode() for number, value in _fields(envelope.get(1, b""))}
        version, kind = named.get(1, ""), named.get(2, "")
        group, _, short = version.rpartition("/")
        name = schemas.names().get((group, short, kind))
        if name is None:
            raise bad_request(f'no kind "{kind}" is registered for version "{version}"')
        return {"apiVersion": version, "kind": kind, **_message(name, name, envelope.get(2, b""))}
    except _UNREADABLE as error:
        raise bad_request(f"the body is no protobuf of Kubernetes: {error}") from error


def _message(name: str, outer: str, data: bytes) -> Json:
    """The fields of a message; `outer` is the schema that has them as properties."""
    properties = schemas.data().schemas[outer].get("properties", {})
    by_number = {facts[2]: key for key, facts in schemas.data().fields.get(name, {}).items() if facts[2]}
    parts = schemas.data().parts.get(name, {})
    found: Json = {}
    for number, value in _fields(data):
        if part := parts.get(str(number)):
            found |= _message(part, outer, value)
        elif (key := by_number.get(number)) and key in properties:
            _store(found, key, properties[key], value)
    return found


def _store(found: Json, key: str, schema: Json, value: Any) -> None:
    if schema.get("type") == "array":
        found.setdefault(key, []).append(_value(schema["items"], value))
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        entry = dict(_fields(value))
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
            return special(dict(_fields(value)))
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


def _quantity(fields: dict[int, Any]) -> str:
    text: str = fields.get(1, b"0").decode()
    return text


def _time(fields: dict[int, Any]) -> str | None:
    if not fields:
        return None
    seconds = fields.get(1, 0)
    seconds = seconds - 2**64 if seconds >= 2**63 else seconds
    if seconds < -(2**35):  # Go's zero time
        return None
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.replace(microsecond=fields.get(2, 0) // 1000).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _int_or_string(fields: dict[int, Any]) -> int | str:
    if fields.get(1, 0) == 1:
        text: str = fields.get(3, b"").decode()
        return text
    number: int = fields.get(2, 0)
    return number - 2**64 if number >= 2**63 else number


def _raw(fields: dict[int, Any]) -> Any:
    return json.loads(fields[1]) if fields.get(1) else None


_SPECIAL: dict[str, Callable[[dict[int, Any]], Any]] = {
    schemas.QUANTITY: _quantity,
    schemas.META + "Time": _time,
    schemas.META + "MicroTime": _time,
    schemas.INT_OR_STRING: _int_or_string,
    schemas.META + "FieldsV1": _raw,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _raw,
}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) in the order of the message; bytes stay bytes, numbers are unsigned."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, data[at : at + 8]
                at += 8
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    raise ValueError("a field is longer than the message")
                yield tag >> 3, data[at : at + length]
                at += length
            case 5:
                yield tag >> 3, data[at : at + 4]
                at += 4
            case wire:
                raise ValueError(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")


# Writing, for the one document that kubectl reads in protobuf alone.


def message(*fields: tuple[int, bytes | str]) -> bytes:
    """A message of fields that are strings or messages themselves."""
    found = b""
    for number, value in fields:
        data = value.encode() if isinstance(value, str) else value
        found += _written(number << 3 | _BYTES) + _written(len(data)) + data
    return found


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
