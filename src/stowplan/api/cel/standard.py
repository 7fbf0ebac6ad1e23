"""CEL's standard operators and conversions, and optional values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal
from types import NoneType
from typing import Any

from stowplan.api.cel.overloads import Meter, define, define_on_text
from stowplan.api.cel.values import (
    DYN,
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    MISSING,
    NUMBERS,
    Domains,
    Duration,
    Optional,
    Timestamp,
    UInt,
    equal,
    format_value,
    is_equal,
)
from stowplan.errors import CelError

SECOND = 1_000_000_000
_MIN_TIME, _MAX_TIME = -62_135_596_800 * SECOND, 253_402_300_800 * SECOND


def to_int(number: int) -> int:
    if not MIN_INT <= number <= MAX_INT:
        raise CelError("integer overflow")
    return number


def to_uint(number: int) -> UInt:
    if not 0 <= number <= MAX_UINT:
        raise CelError("unsigned integer overflow")
    return UInt(number)


def to_duration(nanos: int) -> Duration:
    return Duration(to_int(nanos))


def to_timestamp(nanos: int) -> Timestamp:
    if not _MIN_TIME <= nanos < _MAX_TIME:
        raise CelError("timestamp out of range")
    return Timestamp(nanos)


def define_arithmetic() -> None:
    for sign, combine in (("-", operator.sub), ("*", operator.mul), ("/", quotient), ("%", rest)):
        define(sign, int, int, result=int, function=chain_check(to_int, combine))
        define(sign, UInt, UInt, result=UInt, function=chain_check(to_uint, combine))
    for sign, combine in (("-", operator.sub), ("*", operator.mul), ("/", divide)):
        define(sign, float, float, result=float, function=combine)
    define("-_", int, result=int, function=lambda number: to_int(-number))
    define("-_", float, result=float, function=operator.neg)
    define("-_", Duration, result=Duration, function=lambda span: to_duration(-span))
    sums: tuple[tuple[type, type, type, Callable[[Any], Any]], ...] = (
        (int, int, int, to_int),
        (UInt, UInt, UInt, to_uint),
        (float, float, float, float),
        (Duration, Duration, Duration, to_duration),
    )
    for left, right, kind, check in sums:
        define(
            "+",
            left,
            right,
            result=kind,
            function=ignore_meter(chain_check(check, operator.add)),
            is_metered=True,
        )
    define("+", Timestamp, Duration, result=Timestamp, function=ignore_meter(add_duration), is_metered=True)
    define(
        "+", Duration, Timestamp, result=Timestamp,
        function=ignore_meter(lambda span, moment: add_duration(moment, span)), is_metered=True,
    )  # fmt: skip
    for text in (str, bytes, list):
        define("+", text, text, result=text, function=concatenate, is_metered=True)
    define("-", Duration, Duration, result=Duration, function=chain_check(to_duration, operator.sub))
    define(
        "-", Timestamp, Duration, result=Timestamp, function=lambda moment, span: add_duration(moment, -span)
    )
    define("-", Timestamp, Timestamp, result=Duration, function=chain_check(to_duration, operator.sub))


def add_duration(moment: Timestamp, span: int) -> Timestamp:
    found = to_timestamp(moment + span)
    if moment.offset:
        found.offset = moment.offset
    return found


def ignore_meter(function: Callable[[Any, Any], Any]) -> Callable[[Meter, object, Any], Any]:
    """A function that needs no meter, for a name whose other overloads do."""
    return lambda meter, left, right: function(left, right)


def concatenate(meter: Meter, left: Any, right: Any) -> Any:
    meter.charge_text(len(left) + len(right))
    return left + right


def chain_check(check: Callable[[int], Any], combine: Callable[[Any, Any], int]) -> Callable[[Any, Any], Any]:
    return lambda left, right: check(combine(left, right))


def quotient(left: int, right: int) -> int:
    """Rounded towards zero."""
    if right == 0:
        raise CelError("division by zero")
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def rest(left: int, right: int) -> int:
    """With the sign of the dividend."""
    if right == 0:
        raise CelError("modulus by zero")
    if (left, right) == (MIN_INT, -1):
        raise CelError("integer overflow")  # as the quotient would
    size = abs(left) % abs(right)
    return -size if left < 0 else size


def divide(left: float, right: float) -> float:
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def define_comparisons() -> None:
    pairs: list[tuple[type, type]] = [(left, right) for left in NUMBERS for right in NUMBERS]
    pairs += [(kind, kind) for kind in (bool, Duration, Timestamp)]
    for sign, compare in (("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge)):
        for left, right in pairs:
            function = ignore_meter(reject_nan(compare) if float in (left, right) else compare)
            define(sign, left, right, result=bool, function=function, is_metered=True)
        for kind in (str, bytes):
            define(sign, kind, kind, result=bool, function=on_texts(compare), is_metered=True)
    define("==", DYN, DYN, result=bool, function=equal, is_metered=True)
    define("!=", DYN, DYN, result=bool, function=is_different, is_metered=True)
    define("!_", bool, result=bool, function=operator.not_)


def reject_nan(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def call(left: Any, right: Any) -> bool:
        if left != left or right != right:
            raise CelError("NaN values cannot be ordered")
        return compare(float(left), float(right))

    return call


def on_texts(compare: Callable[[Any, Any], bool]) -> Callable[[Meter, object, Any], bool]:
    def call(meter: Meter, left: Any, right: Any) -> bool:
        meter.charge_text(min(len(left), len(right)))
        return compare(left, right)

    return call


def is_different(meter: Meter, left: object, right: object) -> bool:
    return not is_equal(meter, left, right)


def define_optionals() -> None:
    define("optional.of", DYN, result=Optional, function=Optional)
    define("optional.none", result=Optional, function=lambda: MISSING)
    define("optional.ofNonZeroValue", DYN, result=Optional, function=of_non_zero)
    define(".hasValue", Optional, result=bool, function=lambda optional: optional.present)
    define(".value", Optional, result=DYN, function=value_of)
    for name in ("optional.unwrap", ".unwrapOpt"):
        define_on_text(name, list, result=list, function=present_values)


def of_non_zero(value: object) -> Optional:
    is_zero = value is None or (
        type(value) in (bool, str, bytes, list, dict, Domains, Duration, *NUMBERS) and not value
    )
    is_zero = is_zero or (type(value) is Timestamp and value == _MIN_TIME)
    return MISSING if is_zero else Optional(value)


def present_values(items: list[Any]) -> list[Any]:
    if not all(type(item) is Optional for item in items):
        raise CelError("no such overload: unwrap takes a list of optional values")
    return [item.value for item in items if item.present]


def value_of(optional: Optional) -> object:
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def define_conversions() -> None:
    define("dyn", DYN, result=DYN, function=lambda value: value)
    define("type", DYN, result=type, function=lambda value: dict if isinstance(value, dict) else type(value))
    for kind in (int, UInt, float, str, bytes, bool, Duration, Timestamp):
        define_on_text(_CONSTRUCTORS[kind], kind, result=kind, function=lambda value: value)
    define_on_text("int", UInt, result=int, function=lambda number: to_int(int(number)))
    define_on_text("int", float, result=int, function=lambda number: whole(number, float(MIN_INT), 2.0**63))
    define_on_text("int", str, result=int, function=lambda text: to_int(parse_int(text)))
    define_on_text("uint", int, result=UInt, function=to_uint)
    define_on_text("uint", float, result=UInt, function=lambda number: UInt(whole(number, -1.0, 2.0**64)))
    define_on_text("uint", str, result=UInt, function=lambda text: to_uint(parse_int(text, signs="")))
    define_on_text("double", int, result=float, function=float)
    define_on_text("double", UInt, result=float, function=float)
    define_on_text("double", str, result=float, function=parse_float)
    define_on_text("string", int, result=str, function=str)
    define_on_text("string", UInt, result=str, function=str)
    define_on_text("string", float, result=str, function=float_text)
    define_on_text("string", bool, result=str, function=lambda flag: "true" if flag else "false")
    define_on_text("string", bytes, result=str, function=decode_text)
    define_on_text("bytes", str, result=bytes, function=str.encode)
    define_on_text("bool", str, result=bool, function=parse_bool)


_CONSTRUCTORS = {
    int: "int", UInt: "uint", float: "double", str: "string", bytes: "bytes", bool: "bool",
    Duration: "duration", Timestamp: "timestamp",
}  # fmt: skip
TYPE_CONSTANTS: dict[str, type] = {
    **{name: kind for kind, name in _CONSTRUCTORS.items() if kind not in (Duration, Timestamp)},
    "list": list, "map": dict, "null_type": NoneType, "type": type, "optional_type": Optional,
    "google.protobuf.Duration": Duration, "google.protobuf.Timestamp": Timestamp,
}  # fmt: skip


def whole(number: float, above: float, below: float) -> int:
    """The number without its fraction."""
    if not above < number < below or (above == -1 and number < 0):
        raise CelError("integer overflow")
    return int(number)


def parse_int(text: str, signs: str = "+-") -> int:
    digits = text[1:] if text[:1] and text[0] in signs else text
    if not (digits.isascii() and digits.isdigit()):
        raise CelError(f"type conversion error: {format_value(text)!r} is not a whole number")
    significant = digits.lstrip("0")[:20] or "0"  # more digits than 64 bits have: too large in any case
    return -int(significant) if text[0] == "-" else int(significant)


def parse_float(text: str) -> float:
    try:
        if not text.isascii() or text != text.strip():
            raise ValueError
        is_hex = text.lstrip("+-")[:2].lower() == "0x"
        if is_hex and "p" not in text.lower():
            raise ValueError
        number = float.fromhex(text) if is_hex else float(text)
        if math.isinf(number) and text.strip("+-")[:1] not in "iI":
            raise ValueError
        return number
    except (ValueError, OverflowError):
        raise CelError(f"type conversion error: {format_value(text)!r} is not a number") from None


def parse_bool(text: str) -> bool:
    if text in ("1", "t", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "false", "FALSE", "False"):
        return False
    raise CelError(f"type conversion error: {format_value(text)!r} is neither true nor false")


def float_text(number: float) -> str:
    """The fewest digits that tell the number apart, with an exponent from a million on and below 0.0001."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else ("+Inf" if number > 0 else "-Inf")
    sign, digits, scale = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(scale, int)
    text = "".join(map(str, digits))
    exponent = len(text) - 1 + scale if number else 0
    if -4 <= exponent < 6:
        return f"{'-' if sign else ''}{abs(Decimal(repr(number)).normalize()):f}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{'-' if sign else ''}{text[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None


define_arithmetic()
define_comparisons()
define_optionals()
define_conversions()
