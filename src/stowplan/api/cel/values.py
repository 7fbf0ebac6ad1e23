"""The values of CEL that Python has no type of its own for, and what it means for two values to be equal.

A CEL type is a Python class: `int`, `UInt`, `float`, `str`, `bytes`, `bool`, `list`, `dict`, `NoneType` and
those below; `object` stands for a type that is only known when the expression runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType
from typing import Any

from stowplan.api.quantity import Quantity
from stowplan.errors import CelError

DYN = object
MIN_INT, MAX_INT, MAX_UINT = -(2**63), 2**63 - 1, 2**64 - 1


class UInt(int):
    """An unsigned 64-bit number."""

    __slots__ = ()


class Duration(int):
    """A span of time in nanoseconds."""

    __slots__ = ()


class Timestamp(int):
    """A moment, in nanoseconds since 1970."""

    __slots__ = ()


class Optional:
    """A value that may be missing."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any = None, *, present: bool = True) -> None:
        self.value, self.present = value, present


MISSING = Optional(present=False)


class Domains(dict[str, dict[str, Any]]):
    """The attributes or capacities of a device by domain; a domain that nobody mentions is an empty map."""

    __slots__ = ()

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


class DeviceVariable:
    """What selectors see as `device`."""

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver")

    def __init__(
        self, driver: str, attributes: Domains, capacity: Domains, allow_multiple_allocations: bool = False
    ) -> None:
        self.driver, self.attributes, self.capacity = driver, attributes, capacity
        self.allow_multiple_allocations = allow_multiple_allocations


_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = re.compile(rf"(\d+)\.(\d+)\.(\d+)(?:-({_IDENTIFIERS}))?(?:\+({_IDENTIFIERS}))?", re.ASCII)
_LOOSE_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+)(.*))?", re.ASCII)


class Version:
    """A semantic version; build metadata does not count when two are compared."""

    __slots__ = ("major", "minor", "order", "patch")

    def __init__(self, text: str, *, normalize: bool = False) -> None:
        """`normalize` forgives a leading v, leading zeros, and a missing minor or patch number."""
        if normalize and (loose := _LOOSE_VERSION.fullmatch(text)):
            text = ".".join(str(int(part or 0)) for part in loose.groups()[:3]) + (loose[4] or "")
        match = _VERSION.fullmatch(text)
        numbers = match.groups()[:3] if match else ()
        names = match[4].split(".") if match and match[4] else []
        if match is None or any(_has_leading_zero(part) for part in (*numbers, *names)):
            raise CelError(f"{text!r} is not a semantic version such as 1.2.3")
        self.major, self.minor, self.patch = map(int, numbers)
        self.order = (self.major, self.minor, self.patch, not names, tuple(map(_precedence, names)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)


def _has_leading_zero(part: str) -> bool:
    return part.isdigit() and len(part) > 1 and part[0] == "0"


def _precedence(name: str) -> tuple[int, int, str]:
    """Numbers come before words."""
    return (0, int(name), "") if name.isdigit() else (1, 0, name)


TYPE_NAMES: dict[type, str] = {
    bool: "bool", int: "int", UInt: "uint", float: "double", str: "string", bytes: "bytes", list: "list",
    dict: "map", Domains: "map", NoneType: "null_type", type: "type", Optional: "optional_type",
    Duration: "duration", Timestamp: "timestamp", Quantity: "quantity", Version: "semver",
    DeviceVariable: "device", DYN: "dyn",
}  # fmt: skip
NUMBERS = (int, UInt, float)

FIELDS: dict[type, dict[str, tuple[type, Callable[[Any], Any]]]] = {
    DeviceVariable: {
        "driver": (str, lambda device: device.driver),
        "attributes": (dict, lambda device: device.attributes),
        "capacity": (dict, lambda device: device.capacity),
        "allowMultipleAllocations": (bool, lambda device: device.allow_multiple_allocations),
    }
}


def equal(left: Any, right: Any) -> bool:
    """Numbers compare by what they amount to; otherwise values of different types are never equal."""
    kind, other = type(left), type(right)
    if kind in NUMBERS and other in NUMBERS:
        return bool(left == right)
    if kind is list and other is list:
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(
            has_key(right, key) and equal(value, right[key]) for key, value in left.items()
        )
    if kind is Optional and other is Optional:
        return left.present == right.present and equal(left.value, right.value)
    return kind is other and bool(left == right)


def has_key(holder: dict[Any, Any], key: Any) -> bool:
    """Whether a map has the key. To Python true is 1, to CEL it is not; a map's keys are of one type."""
    return key in holder and (type(key) is bool) == (type(next(iter(holder))) is bool)
