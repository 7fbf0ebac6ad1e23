"""Times as the API writes them: RFC 3339 in UTC, to the second or to the microsecond."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import NoReturn

_FORM = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)",
)

_LAYOUT = "2006-01-02T15:04:05Z07:00"
MAX_SHOWN = 100
UNKNOWN = "<unknown>"
_MICRO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
"""Already as it is to be written."""


CLOCK: ContextVar[Callable[[], float]] = ContextVar("CLOCK", default=time.time)
"""The clock of the server that handles the current request, in seconds since 1970."""


class TimeError(ValueError):
    """Says what Go's parser says."""


def seconds_now() -> float:
    """Seconds since 1970."""
    return CLOCK.get()()


def now() -> str:
    return _written(int(seconds_now()))


@lru_cache(maxsize=4)  # many objects are written in one second
def _written(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def written(moment: datetime.datetime, precision: str = "microseconds") -> str:
    """A time in UTC; unlike strftime, with four digits for years before 1000."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec=precision)}Z"


def canonical(value: object) -> str:
    return _canonical(value) if isinstance(value, str) else _unreadable(value, _LAYOUT)


@lru_cache(maxsize=4096)
def _canonical(value: str) -> str:
    return written(_at(value, "2006-01-02T15:04:05Z07:00"), "seconds")


def canonical_micro(value: object) -> str:
    if isinstance(value, str) and _MICRO.fullmatch(value):
        with suppress(TimeError):  # the message is to have all of it
            _at(f"{value[:19]}Z", "")  # remembered, so that it costs once a second
            return value
    layout = "2006-01-02T15:04:05.000000Z07:00"
    if not isinstance(value, str):
        return _unreadable(value, layout)
    return written(_at(value, layout))


def _unreadable(value: object, layout: str) -> NoReturn:
    shown = str(value)[:MAX_SHOWN]
    raise TimeError(f'parsing time "{shown}" as "{layout}": cannot parse "{shown}" as "2006"')


def seconds_of(text: str) -> float:
    """Since the epoch."""
    return _at(text, "2006-01-02T15:04:05Z07:00").timestamp()


@lru_cache(maxsize=4096)
def _at(value: str, layout: str) -> datetime.datetime:
    match = _FORM.fullmatch(value) if len(value) <= MAX_SHOWN else None
    if match is None:
        _unreadable(value, layout)
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    micro = int((match[7] or "0")[:6].ljust(6, "0"))
    zone = datetime.UTC if match[8] == "Z" else _zone(match[8])
    try:
        return datetime.datetime(year, month, day, hour, minute, second, micro, zone).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise TimeError(f'parsing time "{value}": day out of range') from None


def _zone(text: str) -> datetime.timezone:
    offset = datetime.timedelta(hours=int(text[1:3]), minutes=int(text[4:6]))
    return datetime.timezone(-offset if text[0] == "-" else offset)


def later(seconds: float) -> str:
    return _written(int(seconds_now() + seconds))


def since(moment: str | None) -> str:
    """How long ago a time was, as tables show it."""
    if not moment:
        return UNKNOWN
    try:
        return human(seconds_now() - seconds_of(moment))
    except ValueError:
        return "<invalid>"


def human(seconds: float) -> str:
    """A duration with at most two units, coarser the longer it is."""
    if seconds < -1:
        return "<invalid>"
    whole = max(int(seconds), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    return f"{years}y{days % 365}d" if years < 8 and days % 365 else f"{years}y"
