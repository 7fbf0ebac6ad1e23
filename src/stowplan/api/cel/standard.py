"""CEL's standard operators and conversions, with the lists, sets and optional types that Kubernetes adds."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from types import NoneType
from typing import Any

from stowplan.api.cel.overloads import define
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
    has_key,
)
from stowplan.errors import CelError

SECOND = 1_000_000_000
_SPANS = {"h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 10**6, "us": 1000, "µs": 1000, "ns": 1}
_SPAN = re.compile(r"(\d+\.?\d*|\.\d+)(h|ms|m|s|us|µs|ns)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
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
    for sign, combine in (
        ("+", operator.add),
        ("-", operator.sub),
        ("*", operator.mul),
        ("/", quotient),
        ("%", rest),
    ):
        define(sign, int, int, result=int, function=then(to_int, combine))
        define(sign, UInt, UInt, result=UInt, function=then(to_uint, combine))
        if sign in "+-*":
            define(sign, float, float, result=float, function=combine)
    define("/", float, float, result=float, function=divide)
    define("-_", int, result=int, function=lambda number: to_int(-number))
    define("-_", float, result=float, function=operator.neg)
    for kind in (str, bytes, list):
        define("+", kind, kind, result=kind, function=operator.add)
    define("+", Duration, Duration, result=Duration, function=then(to_duration, operator.add))
    define("-", Duration, Duration, result=Duration, function=then(to_duration, operator.sub))
    define("+", Timestamp, Duration, result=Timestamp, function=then(to_timestamp, operator.add))
    define("+", Duration, Timestamp, result=Timestamp, function=then(to_timestamp, operator.add))
    define("-", Timestamp, Duration, result=Timestamp, function=then(to_timestamp, operator.sub))
    define("-", Timestamp, Timestamp, result=Duration, function=then(to_duration, operator.sub))


def then(check: Callable[[int], Any], combine: Callable[[Any, Any], int]) -> Callable[[Any, Any], Any]:
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
    pairs += [(kind, kind) for kind in (str, bytes, bool, Duration, Timestamp)]
    for sign, compare in (("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge)):
        for left, right in pairs:
            define(sign, left, right, result=bool, function=compare)
    define("==", DYN, DYN, result=bool, function=equal)
    define("!=", DYN, DYN, result=bool, function=lambda left, right: not equal(left, right))
    define("!_", bool, result=bool, function=operator.not_)


def define_collections() -> None:
    for name in ("size", ".size"):
        for kind in (str, bytes, list, dict):
            define(name, kind, result=int, function=len)
    define("in", DYN, list, result=bool, function=is_in_list)
    define("in", DYN, dict, result=bool, function=is_in_map)
    define("[]", list, int, result=DYN, function=item_of_list)
    define("[]", dict, DYN, result=DYN, function=item_of_map)
    define("sets.contains", list, list, result=bool, function=contains_all)
    define("sets.intersects", list, list, result=bool, function=intersects)
    define(
        "sets.equivalent", list, list, result=bool,
        function=lambda left, right: contains_all(left, right) and contains_all(right, left),
    )  # fmt: skip
    define(".isSorted", list, result=bool, function=is_sorted)
    define(".sum", list, result=DYN, function=total)
    define(".min", list, result=DYN, function=lambda items: extreme(items, min))
    define(".max", list, result=DYN, function=lambda items: extreme(items, max))
    define(".indexOf", list, DYN, result=int, function=position_in)
    define(".lastIndexOf", list, DYN, result=int, function=last_position_in)


def is_in_list(value: Any, items: list[Any]) -> bool:
    return any(equal(value, item) for item in items)


def is_in_map(key: Any, holder: dict[Any, Any]) -> bool:
    if not is_key(key):
        raise CelError("unsupported key type")
    return has_key(holder, key)


def is_key(key: Any) -> bool:
    return type(key) in (str, bool, *NUMBERS)


def item_of_list(items: list[Any], index: Any) -> Any:
    if type(index) not in NUMBERS or not float(index).is_integer():
        raise CelError(f"unsupported index {index!r}: a list takes whole numbers")
    if not 0 <= index < len(items):
        raise CelError(f"index out of bounds: {index}")
    return items[int(index)]


def item_of_map(holder: dict[Any, Any], key: Any) -> Any:
    if is_key(key) and (has_key(holder, key) or type(holder) is Domains):
        return holder[key]
    raise CelError(f"no such key: {key}")


def contains_all(items: list[Any], wanted: list[Any]) -> bool:
    return all(is_in_list(value, items) for value in wanted)


def intersects(left: list[Any], right: list[Any]) -> bool:
    return any(is_in_list(value, right) for value in left)


def comparable(items: list[Any]) -> list[Any]:
    kinds = {type(item) for item in items}
    if len(kinds) > 1 or not kinds <= {*NUMBERS, str, bytes, bool, Duration, Timestamp}:
        raise CelError("no such overload: the items of the list cannot be compared")
    return items


def is_sorted(items: list[Any]) -> bool:
    return all(left <= right for left, right in zip(comparable(items), items[1:], strict=False))


def extreme(items: list[Any], choose: Callable[[list[Any]], Any]) -> Any:
    if not items:
        raise CelError(f"{choose.__name__} called on empty list")
    return choose(comparable(items))


def total(items: list[Any]) -> Any:
    kinds = {type(item) for item in items}
    checks: dict[type, Callable[[Any], Any]] = {
        int: to_int,
        UInt: to_uint,
        float: float,
        Duration: to_duration,
    }
    if len(kinds) > 1 or not kinds <= checks.keys():
        raise CelError("no such overload: the items of the list cannot be summed up")
    return checks[kinds.pop()](sum(items)) if kinds else 0


def position_in(items: list[Any], value: Any) -> int:
    return next((position for position, item in enumerate(items) if equal(item, value)), -1)


def last_position_in(items: list[Any], value: Any) -> int:
    found = position_in(items[::-1], value)
    return found if found < 0 else len(items) - 1 - found


def define_optionals() -> None:
    define("optional.of", DYN, result=Optional, function=Optional)
    define("optional.none", result=Optional, function=lambda: MISSING)
    define("optional.ofNonZeroValue", DYN, result=Optional, function=of_non_zero)
    define(".hasValue", Optional, result=bool, function=lambda optional: optional.present)
    define(".value", Optional, result=DYN, function=value_of)


def of_non_zero(value: Any) -> Optional:
    is_zero = value is None or (type(value) in (bool, str, bytes, list, dict, *NUMBERS) and not value)
    return MISSING if is_zero else Optional(value)


def value_of(optional: Optional) -> Any:
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def define_conversions() -> None:
    define("dyn", DYN, result=DYN, function=lambda value: value)
    define("type", DYN, result=type, function=lambda value: dict if isinstance(value, dict) else type(value))
    for kind in (int, UInt, float, str, bytes, bool, Duration, Timestamp):
        define(_CONSTRUCTORS[kind], kind, result=kind, function=lambda value: value)
    define("int", UInt, result=int, function=lambda number: to_int(int(number)))
    define("int", float, result=int, function=lambda number: whole(number, float(MIN_INT), 2.0**63))
    define("int", str, result=int, function=lambda text: to_int(parsed_int(text)))
    define("int", Timestamp, result=int, function=lambda moment: moment // SECOND)
    define("uint", int, result=UInt, function=to_uint)
    define("uint", float, result=UInt, function=lambda number: UInt(whole(number, -1.0, 2.0**64)))
    define("uint", str, result=UInt, function=lambda text: to_uint(parsed_int(text, signs="")))
    define("double", int, result=float, function=float)
    define("double", UInt, result=float, function=float)
    define("double", str, result=float, function=parsed_float)
    define("string", int, result=str, function=str)
    define("string", UInt, result=str, function=str)
    define("string", float, result=str, function=float_text)
    define("string", bool, result=str, function=lambda flag: "true" if flag else "false")
    define("string", bytes, result=str, function=decoded)
    define("string", Duration, result=str, function=lambda span: f"{seconds_text(span)}s")
    define("string", Timestamp, result=str, function=timestamp_text)
    define("bytes", str, result=bytes, function=str.encode)
    define("bool", str, result=bool, function=parsed_bool)
    define("duration", str, result=Duration, function=parsed_duration)
    define("timestamp", str, result=Timestamp, function=parsed_timestamp)
    define("timestamp", int, result=Timestamp, function=lambda seconds: to_timestamp(seconds * SECOND))


_CONSTRUCTORS = {
    int: "int", UInt: "uint", float: "double", str: "string", bytes: "bytes", bool: "bool",
    Duration: "duration", Timestamp: "timestamp",
}  # fmt: skip
TYPE_CONSTANTS: dict[str, type] = {
    **{name: kind for kind, name in _CONSTRUCTORS.items() if kind not in (Duration, Timestamp)},
    "list": list, "map": dict, "null_type": NoneType, "type": type,
}  # fmt: skip


def whole(number: float, above: float, below: float) -> int:
    """The number without its fraction."""
    if not above < number < below or (above == -1 and number < 0):
        raise CelError("integer overflow")
    return int(number)


def parsed_int(text: str, signs: str = "+-") -> int:
    if not re.fullmatch(rf"[{signs}]?\d+" if signs else r"\d+", text, re.ASCII):
        raise CelError(f"type conversion error: {text!r} is not a whole number")
    return int(text)


def parsed_float(text: str) -> float:
    try:
        if "_" in text or text != text.strip():
            raise ValueError
        return float(text)
    except ValueError:
        raise CelError(f"type conversion error: {text!r} is not a number") from None


def parsed_bool(text: str) -> bool:
    if text in ("1", "t", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "false", "FALSE", "False"):
        return False
    raise CelError(f"type conversion error: {text!r} is neither true nor false")


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


def decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None


def parsed_duration(text: str) -> Duration:
    rest_of_it = text.lstrip("+-")
    spans = _SPAN.findall(rest_of_it)
    if rest_of_it == "0":
        return Duration(0)
    if not spans or "".join(map("".join, spans)) != rest_of_it or len(text) - len(rest_of_it) > 1:
        raise CelError(f"type conversion error: {text!r} is not a duration such as 1h30m")
    nanos = int(sum(Decimal(amount) * _SPANS[unit] for amount, unit in spans))
    return to_duration(-nanos if text[0] == "-" else nanos)


def parsed_timestamp(text: str) -> Timestamp:
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + match[3])
    except ValueError:
        raise CelError(
            f"type conversion error: {text!r} is not a time such as 2026-01-31T12:00:00Z"
        ) from None
    seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return to_timestamp(seconds * SECOND + int((match[2] or "0").ljust(9, "0")))


def timestamp_text(moment: Timestamp) -> str:
    seconds, nanos = divmod(moment, SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return text + (f".{nanos:09d}".rstrip("0") if nanos else "") + "Z"


def seconds_text(nanos: int) -> str:
    whole_seconds, rest_of_it = divmod(abs(nanos), SECOND)
    fraction = f".{rest_of_it:09d}".rstrip("0") if rest_of_it else ""
    return f"{'-' if nanos < 0 else ''}{whole_seconds}{fraction}"


define_arithmetic()
define_comparisons()
define_collections()
define_optionals()
define_conversions()
