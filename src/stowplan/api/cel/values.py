"""The values of CEL that Python has no type of its own for, and what it means for two values to be equal.

A CEL type is a Python class: `int`, `UInt`, `float`, `str`, `bytes`, `bool`, `list`, `dict`, `NoneType` and
those below; `object` stands for a type that is only known when the expression runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import Any, Protocol

from stowplan.api.quantity import NANO, Quantity
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
    """A moment, in nanoseconds since 1970; `offset` is the zone it was written in, in minutes from UTC."""

    offset = 0


class Optional:
    """A value that may be missing."""

    __slots__ = ("present", "value")

    def __init__(self, value: object = None, *, present: bool = True) -> None:
        self.value, self.present = value, present

    @classmethod
    def of(cls, found: list[object]) -> Optional:
        """The one item of a list that has at most one."""
        return cls(found[0]) if found else MISSING


MISSING = Optional(present=False)


class Amount:
    """A quantity as Kubernetes holds it: whole nano-units, and the power of ten it was written with.

    `scale` is None if the number has too many digits for 64 bits. `is_computed` tells a sum or difference.
    """

    __slots__ = ("is_computed", "nanos", "scale")

    def __init__(self, nanos: int, scale: int | None = None, *, is_computed: bool = False) -> None:
        self.nanos, self.scale, self.is_computed = int(nanos), scale, is_computed

    @classmethod
    def of(cls, quantity: Quantity) -> Amount:
        """The amount in the form in which an API server writes it."""
        fits = abs(quantity) <= MAX_INT * NANO
        return cls(
            quantity,
            next(scale for scale in (0, -3, -6, -9) if not quantity % 10 ** (9 + scale)) if fits else None,
        )


class Domains(dict[str, dict[str, object]]):
    """The attributes or capacities of a device by domain; an unknown domain is an empty map."""

    __slots__ = ()

    def __missing__(self, key: str) -> dict[str, object]:
        return {}


class DeviceVariable:
    """What selectors see as `device`."""

    __slots__ = ("allow_multiple_allocations", "attributes", "capacity", "driver")

    def __init__(
        self, driver: str, attributes: Domains, capacity: Domains, allow_multiple_allocations: bool = False
    ) -> None:
        self.driver, self.attributes, self.capacity = driver, attributes, capacity
        self.allow_multiple_allocations = allow_multiple_allocations


class Message:
    """The type of a variable whose name, followed by fields in braces, makes an object: `Object{spec: …}`."""


_WORD = "[0-9A-Za-z-]+"
_VERSION = re.compile(
    rf"(\d+)\.(\d+)\.(\d+)(?:-({_WORD}(?:\.{_WORD})*))?(?:\+({_WORD}(?:\.{_WORD})*))?", re.ASCII
)


class Version:
    """A semantic version; build metadata does not count when two are compared."""

    __slots__ = ("major", "minor", "order", "patch")

    def __init__(self, text: str, *, normalize: bool = False) -> None:
        """`normalize` forgives a leading v, leading zeros, and a missing minor or patch number."""
        match = _VERSION.fullmatch(_normalize(text) if normalize else text)
        numbers = match.groups()[:3] if match else ()
        names = match[4].split(".") if match and match[4] else []
        if match is None or any(_has_leading_zero(part) for part in (*numbers, *names)):
            raise CelError(f"{format_value(text)!r} is not a semantic version such as 1.2.3")
        if any(len(part) > 20 or int(part) > MAX_UINT for part in (*numbers, *filter(str.isdigit, names))):
            raise CelError(f"{format_value(text)!r} is not a semantic version: a number does not fit 64 bits")
        self.major, self.minor, self.patch = map(int, numbers)
        self.order = (self.major, self.minor, self.patch, not names, tuple(map(_precedence, names)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)


def _normalize(text: str) -> str:
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and any(sign in parts[-1] for sign in "+-"):
        return ""  # a short version cannot have a pre-release or build metadata
    return ".".join(parts + ["0"] * (3 - len(parts)))


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    rest = part.lstrip("0")
    return rest if rest[:1].isascii() and rest[:1].isdigit() else f"0{rest}"


def _has_leading_zero(part: str) -> bool:
    return part.isdigit() and len(part) > 1 and part[0] == "0"


def _precedence(name: str) -> tuple[int, int, str]:
    """Numbers come before words."""
    return (0, int(name), "") if name.isdigit() else (1, 0, name)


TYPE_NAMES: dict[type, str] = {
    bool: "bool", int: "int", UInt: "uint", float: "double", str: "string", bytes: "bytes", list: "list",
    dict: "map", Domains: "map", NoneType: "null_type", type: "type", Optional: "optional_type",
    Duration: "google.protobuf.Duration", Timestamp: "google.protobuf.Timestamp",
    Amount: "kubernetes.Quantity", Version: "kubernetes.Semver", DeviceVariable: "kubernetes.DRADevice",
    DYN: "dyn",
}  # fmt: skip
"""Other modules add the types that they define."""
NUMBERS = (int, UInt, float)

FIELDS: dict[type, dict[str, tuple[type, Callable[[Any], Any]]]] = {
    DeviceVariable: {
        "driver": (str, lambda device: device.driver),
        "attributes": (dict, lambda device: device.attributes),
        "capacity": (dict, lambda device: device.capacity),
        "allowMultipleAllocations": (bool, lambda device: device.allow_multiple_allocations),
    }
}


# Types of values whose structure a schema declares. At run time these are plain dicts and lists.


class Declared:
    """A type with what is known of its parts: the fields of an object, or the type of all entries."""

    fields: dict[str, type] | None = None
    item: type = DYN


def object_type(fields: dict[str, type]) -> type:
    return type("object", (Declared, dict), {"fields": fields})


@lru_cache(maxsize=1024)
def list_type(item: type) -> type:
    return type(f"list({TYPE_NAMES.get(item, item.__name__)})", (Declared, list), {"item": item})


@lru_cache(maxsize=1024)
def map_type(item: type) -> type:
    return type(f"map(string, {TYPE_NAMES.get(item, item.__name__)})", (Declared, dict), {"item": item})


def item_type(kind: type) -> type:
    """The type of the entries of a list or map; that of objects depends on the field."""
    return kind.item if issubclass(kind, Declared) else DYN


def fields_of(kind: type) -> dict[str, type] | None:
    return kind.fields if issubclass(kind, Declared) else None


class Charger(Protocol):
    """Counts the cost of an evaluation and ends it at the limit."""

    def charge(self, cost: int) -> None: ...


def equal(meter: Charger, left: Any, right: Any) -> bool:
    """Numbers compare by what they amount to; otherwise values of different types are never equal."""
    kind, other = type(left), type(right)
    if kind is other and kind in PLAIN:
        if kind is str and len(left) >= 100:
            meter.charge(len(left) // 10)
        return bool(left == right)
    if kind in NUMBERS and other in NUMBERS:
        # parity: a whole number and one with a fraction are compared as the latter.
        return bool(left == right) if (kind is float) is (other is float) else float(left) == float(right)
    if kind is list and other is list:
        if len(left) != len(right):
            return False
        # A list may hold another many times over, so that its length says nothing of the work.
        meter.charge(3 * len(left))
        return all(_alike(meter, *pair) for pair in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        if len(left) != len(right):
            return False
        meter.charge(3 * len(left))
        return all(has_key(right, key) and _alike(meter, value, right[key]) for key, value in left.items())
    if kind is Optional and other is Optional:
        return left.present == right.present and (not left.present or equal(meter, left.value, right.value))
    if kind in OPAQUE and right is not None:
        # parity: Kubernetes' own types do not compare with others, nor a quantity with a computed one.
        if kind is not other or (kind is Amount and right.is_computed):
            raise CelError("no such overload")
        return left.nanos == right.nanos if kind is Amount else bool(left == right)
    return left is right


def is_equal(meter: Charger, left: object, right: object) -> bool:
    """Whether two values are equal; those that do not compare are not."""
    try:
        return equal(meter, left, right)
    except CelError:
        return False


def _alike(meter: Charger, left: object, right: object) -> bool:
    """Whether two items of collections are equal. parity: those that do not compare do not count."""
    try:
        return equal(meter, left, right)
    except CelError:
        return True


PLAIN = frozenset({str, bool, bytes, NoneType, type, Duration, Timestamp})
OPAQUE: set[type] = {Amount, Version}
"""Kubernetes' own types; other modules add theirs."""


def has_key(holder: dict[Any, Any], key: object) -> bool:
    """Whether a map has the key. To Python true is 1, to CEL it is not."""
    return key in holder and ((type(key) is not bool and type(key) not in NUMBERS) or _has_exact(holder, key))


def _has_exact(holder: dict[Any, Any], key: object) -> bool:
    return any(each == key and (type(each) is bool) == (type(key) is bool) for each in holder)


def format_value(value: object) -> str:
    """For messages: a string or a number, cut if it is long."""
    text = str(value) if isinstance(value, (str, bool, *NUMBERS)) else TYPE_NAMES.get(type(value), "value")
    return text if len(text) <= 80 else f"{text[:80]}..."
