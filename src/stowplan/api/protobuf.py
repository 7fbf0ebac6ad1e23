"""The wire format of protobuf, as far as Kubernetes uses it: fields of a message, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
OR_JSON = f"{CONTENT_TYPE},application/json"
"""An Accept header for servers that may not have protobuf."""
MAGIC = b"k8s\0"
"""How every object begins."""
_LENGTH_DELIMITED = 2
_SHORT_HEADS = [
    [bytes((number << 3 | _LENGTH_DELIMITED, size)) for size in range(128)] for number in range(16)
]
"""The bytes before a field of this number and size; cached, because events and bindings have many."""

_ONE_BYTE = [bytes((number,)) for number in range(128)]


class Field(NamedTuple):
    number: int
    value: Any
    """An unsigned number, or bytes."""
    text: bytes
    """All of the field, as it is in the message."""


def fields(message: bytes) -> Iterator[Field]:
    """In the order of the message. Raises ValueError or IndexError if it is none."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at)
        match tag & 7:
            case 0:
                value, at = _read_varint(message, at)
                yield Field(tag >> 3, value, message[begin:at])
                continue
            case 1:
                size = 8
            case 2:
                size, at = _read_varint(message, at)
            case 5:
                size = 4
            case wire:
                raise ValueError(f"wire type {wire}")
        content, at = at, at + size
        if at > len(message):
            raise ValueError("a field is longer than the message")
        yield Field(tag >> 3, message[content:at], message[begin:at])


def encode_object(api_version: str, kind: str, message: bytes) -> bytes:
    """An object, as the body of a request."""
    return _type_meta(api_version, kind) + encode_message((2, message))


@lru_cache(maxsize=64)
def _type_meta(api_version: str, kind: str) -> bytes:
    return MAGIC + encode_message((1, encode_message((1, api_version), (2, kind))))


def encode_message(*values: tuple[int, bytes | str | int]) -> bytes:
    """A message of fields that are strings, numbers, or messages themselves."""
    found = b""
    for number, value in values:
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, int):
            found += _varint(number << 3) + _varint(value)
            continue
        size = len(value)
        if size < 128 and number < 16:  # nearly all are
            found += _SHORT_HEADS[number][size] + value
        else:
            found += _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size) + value
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number is too long")


def _varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
