"""What Kubernetes adds to CEL for devices: quantities and semantic versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.api.cel.overloads import define
from stowplan.api.cel.values import MAX_INT, MIN_INT, Version
from stowplan.api.quantity import NANO, Quantity, parse
from stowplan.errors import CelError, QuantityError


def define_quantities() -> None:
    define("quantity", str, result=Quantity, function=to_quantity)
    define("isQuantity", str, result=bool, function=lambda text: succeeds(to_quantity, text))
    define(".sign", Quantity, result=int, function=lambda amount: sign(amount, 0))
    define(".isInteger", Quantity, result=bool, function=lambda amount: succeeds(as_integer, amount))
    define(".asInteger", Quantity, result=int, function=as_integer)
    define(".asApproximateFloat", Quantity, result=float, function=lambda amount: int(amount) / NANO)
    define(".compareTo", Quantity, Quantity, result=int, function=sign)
    define(".isLessThan", Quantity, Quantity, result=bool, function=int.__lt__)
    define(".isGreaterThan", Quantity, Quantity, result=bool, function=int.__gt__)
    define(".add", Quantity, Quantity, result=Quantity, function=lambda left, right: Quantity(left + right))
    define(".sub", Quantity, Quantity, result=Quantity, function=lambda left, right: Quantity(left - right))
    define(".add", Quantity, int, result=Quantity, function=lambda left, right: Quantity(left + right * NANO))
    define(".sub", Quantity, int, result=Quantity, function=lambda left, right: Quantity(left - right * NANO))


def to_quantity(text: str) -> Quantity:
    try:
        return parse(text)
    except QuantityError as error:
        raise CelError(str(error)) from None


def as_integer(amount: Quantity) -> int:
    number, rest = divmod(int(amount), NANO)
    if rest or not MIN_INT <= number <= MAX_INT:
        raise CelError("cannot convert value to integer")
    return number


def define_versions() -> None:
    define("semver", str, result=Version, function=Version)
    define("semver", str, bool, result=Version, function=to_version)
    define("isSemver", str, result=bool, function=lambda text: succeeds(Version, text))
    define("isSemver", str, bool, result=bool, function=lambda *parts: succeeds(to_version, *parts))
    define(".major", Version, result=int, function=lambda version: version.major)
    define(".minor", Version, result=int, function=lambda version: version.minor)
    define(".patch", Version, result=int, function=lambda version: version.patch)
    define(
        ".compareTo", Version, Version, result=int, function=lambda left, right: sign(left.order, right.order)
    )
    define(
        ".isLessThan", Version, Version, result=bool, function=lambda left, right: left.order < right.order
    )
    define(
        ".isGreaterThan", Version, Version, result=bool, function=lambda left, right: left.order > right.order
    )


def to_version(text: str, normalize: bool) -> Version:
    return Version(text, normalize=normalize)


def sign(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def succeeds(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        function(*arguments)
    except CelError:
        return False
    return True


define_quantities()
define_versions()
