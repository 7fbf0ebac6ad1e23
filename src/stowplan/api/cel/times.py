"""CEL's timestamps and durations: conversions and what they consist of."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from stowplan.api.cel.overloads import Meter, define, define_on_text
from stowplan.api.cel.standard import SECOND, parse_int, to_duration, to_timestamp
from stowplan.api.cel.values import Duration, Timestamp, format_value
from stowplan.errors import CelError

_SPANS = {
    "h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 10**6, "us": 1000, "µs": 1000, "μs": 1000,
    "ns": 1,
}  # fmt: skip
_SPAN = re.compile(r"(\d*)(?:\.(\d*))?(h|ms|m|s|us|µs|μs|ns)", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d?)(:\d\d:\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONE_COST = 300
"""Cost of a time zone, which may have to be read from disk."""


def define_times() -> None:
    define_on_text("duration", str, result=Duration, function=parse_duration)
    define_on_text("timestamp", str, result=Timestamp, function=parse_timestamp)
    define_on_text(
        "timestamp", int, result=Timestamp, function=lambda seconds: to_timestamp(seconds * SECOND)
    )
    define_on_text("int", Timestamp, result=int, function=lambda moment: moment // SECOND)
    define_on_text("int", Duration, result=int, function=int)
    define_on_text("string", Duration, result=str, function=lambda span: f"{seconds_text(span)}s")
    define_on_text("string", Timestamp, result=str, function=timestamp_text)
    parts: dict[str, Callable[[datetime], int]] = {
        "getFullYear": lambda time: time.year,
        "getMonth": lambda time: time.month - 1,
        "getDayOfYear": lambda time: time.timetuple().tm_yday - 1,
        "getDayOfMonth": lambda time: time.day - 1,
        "getDate": lambda time: time.day,
        "getDayOfWeek": lambda time: time.isoweekday() % 7,
        "getHours": lambda time: time.hour,
        "getMinutes": lambda time: time.minute,
        "getSeconds": lambda time: time.second,
        "getMilliseconds": lambda time: time.microsecond // 1000,
    }
    for name, part in parts.items():
        define(f".{name}", Timestamp, result=int, function=_in_utc(part), is_metered=True)
        define(f".{name}", Timestamp, str, result=int, function=_in_zone(part), is_metered=True)
    for name, unit in (("Hours", "h"), ("Minutes", "m"), ("Seconds", "s"), ("Milliseconds", "ms")):
        define(f".get{name}", Duration, result=int, function=_whole(_SPANS[unit]), is_metered=True)


def _whole(unit: int) -> Callable[[Meter, Duration], int]:
    return lambda meter, span: (1 if span >= 0 else -1) * (abs(span) // unit)


def _in_utc(part: Callable[[datetime], int]) -> Callable[[Meter, Timestamp], int]:
    return lambda meter, moment: part(_time_of(moment, UTC))


def _in_zone(part: Callable[[datetime], int]) -> Callable[[Meter, Timestamp, str], int]:
    def call(meter: Meter, moment: Timestamp, name: str) -> int:
        meter.charge(ZONE_COST)
        return part(_time_of(moment, zone_of(name)))

    return call


def _time_of(moment: Timestamp, zone: tzinfo) -> datetime:
    seconds, nanos = divmod(moment, SECOND)
    try:
        return (_EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)).astimezone(zone)
    except OverflowError:
        raise CelError("timestamp out of range") from None


def zone_of(name: str) -> tzinfo:
    """UTC, an offset such as `+05:30` or `-3:00`, or a name of the time zone database."""
    zone = _zone_of(name) if len(name) <= 100 else None
    if zone is None:
        raise CelError(f"unknown time zone {format_value(name)}")
    return zone


@lru_cache(maxsize=256)
def _zone_of(name: str) -> tzinfo | None:
    if name in ("", "UTC", "Local"):
        return UTC
    if ":" in name:
        hours, minutes = (parse_int(part) for part in name.split(":", 1))
        span = hours * 60 + (-minutes if name[0] == "-" else minutes)
        # A zone's offset is less than a day to Python; the date must be right for any.
        return timezone(timedelta(minutes=span)) if abs(span) < 24 * 60 else _FarZone(span)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return None


class _FarZone(tzinfo):
    """An offset of a day or more."""

    def __init__(self, minutes: int) -> None:
        self.span = timedelta(minutes=min(max(minutes, -(10**9)), 10**9))

    def fromutc(self, time: datetime) -> datetime:
        return time + self.span

    def utcoffset(self, time: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, time: datetime | None) -> None:
        return None

    def tzname(self, time: datetime | None) -> None:
        return None


def parse_duration(text: str) -> Duration:
    negative, unsigned = text[:1] == "-", text[1:] if text[:1] and text[0] in "+-" else text
    if unsigned == "0":
        return Duration(0)
    nanos, position = 0, 0
    while match := _SPAN.match(unsigned, position):
        whole, fraction, unit = match[1], match[2] or "", _SPANS[match[3]]
        if not whole and not fraction:
            break
        # More digits than 64 bits have: too many in front, too fine to count behind.
        nanos += parse_int(whole or "0") * unit
        nanos += int(fraction[:18] or "0") * unit // 10 ** len(fraction[:18])
        position = match.end()
    if not unsigned or position != len(unsigned):
        raise CelError(f"type conversion error: {format_value(text)!r} is not a duration such as 1h30m")
    return to_duration(-nanos if negative else nanos)


def parse_timestamp(text: str) -> Timestamp:
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, hour, rest, fraction, sign, hours, minutes = match.groups()
        moment = datetime.fromisoformat(f"{date}T{hour:0>2}{rest}+00:00")
        if sign and (int(hours) > 24 or int(minutes) > 60):
            raise ValueError
    except ValueError:
        said = f"{format_value(text)!r} is not a time such as 2026-01-31T12:00:00Z"
        raise CelError(f"type conversion error: {said}") from None
    offset = (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1) if sign else 0
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - offset * 60
    found = to_timestamp(seconds * SECOND + int((fraction or "0")[:9].ljust(9, "0")))
    found.offset = offset
    return found


def timestamp_text(moment: Timestamp) -> str:
    """RFC 3339, in the zone in which it was written."""
    seconds, nanos = divmod(moment, SECOND)
    time = (_EPOCH + timedelta(seconds=seconds, minutes=moment.offset)).isoformat()[:19]
    offset = abs(moment.offset)
    zone = f"{'-' if moment.offset < 0 else '+'}{offset // 60:02d}:{offset % 60:02d}" if offset else "Z"
    return time + (f".{nanos:09d}".rstrip("0") if nanos else "") + zone


def seconds_text(nanos: int) -> str:
    whole_seconds, rest_of_it = divmod(abs(nanos), SECOND)
    fraction = f".{rest_of_it:09d}".rstrip("0") if rest_of_it else ""
    return f"{'-' if nanos < 0 else ''}{whole_seconds}{fraction}"


define_times()
