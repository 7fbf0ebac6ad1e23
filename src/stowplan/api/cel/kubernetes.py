"""What Kubernetes adds to CEL for devices: quantities and semantic versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stowplan.api.cel.overloads import define, define_on_text
from stowplan.api.cel.values import MAX_INT, MIN_INT, Amount, Version, format_value
from stowplan.api.quantity import NANO, approximate, parse
from stowplan.errors import CelError, QuantityError

_DIGITS = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(.*)", re.DOTALL)
_DECIMAL = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def define_quantities() -> None:
    define_on_text("quantity", str, result=Amount, function=to_quantity)
    define_on_text("isQuantity", str, result=bool, function=lambda text: succeeds(to_quantity, text))
    define("sign", Amount, result=int, function=lambda amount: sign(amount.nanos, 0))
    define(".isInteger", Amount, result=bool, function=lambda amount: succeeds(as_integer, amount))
    define(".asInteger", Amount, result=int, function=as_integer)
    define(".asApproximateFloat", Amount, result=float, function=as_float)
    define(
        ".compareTo", Amount, Amount, result=int, function=lambda left, right: sign(left.nanos, right.nanos)
    )
    define(".isLessThan", Amount, Amount, result=bool, function=lambda left, right: left.nanos < right.nanos)
    define(
        ".isGreaterThan", Amount, Amount, result=bool, function=lambda left, right: left.nanos > right.nanos
    )
    define(".add", Amount, Amount, result=Amount, function=lambda left, right: total(left, right, 1))
    define(".sub", Amount, Amount, result=Amount, function=lambda left, right: total(left, right, -1))
    define(".add", Amount, int, result=Amount, function=lambda left, number: total(left, units(number), 1))
    define(".sub", Amount, int, result=Amount, function=lambda left, number: total(left, units(number), -1))


def to_quantity(text: str) -> Amount:
    try:
        return Amount(parse(text), _scale_of(text))
    except QuantityError as error:
        raise CelError(format_value(str(error))) from None


def _scale_of(text: str) -> int | None:
    """The power of ten with which Kubernetes keeps a number of few digits; None for one of many."""
    match = _DIGITS.fullmatch(text)
    assert match is not None  # it was parsed
    whole, fraction, suffix = match[1].lstrip("0"), match[2] or "", match[3]
    if suffix in _BINARY:
        fits = not fraction and len(whole) + _BINARY[suffix] * 3 // 10 + 1 <= 15
        return 0 if fits else None
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    scale = exponent - len(fraction)
    return scale if len(whole) + len(fraction) <= 18 and scale >= -9 else None


def units(number: int) -> Amount:
    return Amount(number * NANO, 0)


def total(left: Amount, right: Amount, factor: int) -> Amount:
    nanos = left.nanos + factor * right.nanos
    scales = [amount.scale for amount in (left, right) if amount.nanos or amount.scale is None] or [
        left.scale
    ]
    known = [scale for scale in scales if scale is not None]
    scale = min(known) if len(known) == len(scales) else None
    if scale is not None and abs(nanos) > MAX_INT * 10 ** (9 + scale):
        scale = None
    return Amount(nanos, scale, is_computed=True)


def as_integer(amount: Amount) -> int:
    number = amount.nanos // NANO
    # parity: what was written with a fraction is no integer, nor is one of many digits.
    if amount.scale is None or amount.scale < 0 or not MIN_INT <= number <= MAX_INT:
        raise CelError("cannot convert value to integer")
    return number


def as_float(amount: Amount) -> float:
    if amount.scale is None or amount.scale > 300:
        return approximate(amount.nanos)
    try:
        return float(amount.nanos // 10 ** (9 + amount.scale)) * 10.0**amount.scale
    except OverflowError:
        return approximate(amount.nanos)


def define_versions() -> None:
    define_on_text("semver", str, result=Version, function=Version)
    define_on_text("semver", str, bool, result=Version, function=to_version)
    define_on_text("isSemver", str, result=bool, function=lambda text: succeeds(Version, text))
    define_on_text("isSemver", str, bool, result=bool, function=lambda *parts: succeeds(to_version, *parts))
    for name in ("major", "minor", "patch"):
        define(f".{name}", Version, result=int, function=_number(name))
    define(
        ".compareTo", Version, Version, result=int, function=lambda left, right: sign(left.order, right.order)
    )
    define(
        ".isLessThan", Version, Version, result=bool, function=lambda left, right: left.order < right.order
    )
    define(
        ".isGreaterThan", Version, Version, result=bool, function=lambda left, right: left.order > right.order
    )


def _number(name: str) -> Callable[[Version], int]:
    """parity: a number past 63 bits turns negative."""
    return lambda version: (getattr(version, name) + 2**63) % 2**64 - 2**63


def to_version(text: str, normalize: bool) -> Version:
    return Version(text, normalize=normalize)


def sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def succeeds(function: Callable[..., object], *arguments: object) -> bool:
    try:
        function(*arguments)
    except CelError:
        return False
    return True


define_quantities()
define_versions()
