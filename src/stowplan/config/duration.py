"""Go durations: `10m0s` on the wire, seconds as a float in Python."""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+")


class Duration(float):
    """Seconds; `str()` formats them as Go does."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> Duration:
        """Parse a Go duration; raise a ValueError if `text` is not one."""
        if not isinstance(text, str):
            raise ValueError('expected a duration in quotes, such as "1m30s"')
        if text in ("0", "+0", "-0"):
            return cls(0)
        if not _WHOLE.fullmatch(text):
            raise ValueError("expected a duration such as 500ms, 10s or 1m30s")
        nanos = sum(_nanos(number, unit) for number, unit in _PART.findall(text))
        return cls((-nanos if text.startswith("-") else nanos) / 10**9)

    @classmethod
    def of_nanos(cls, nanos: int) -> Duration:
        return cls(nanos / 10**9)

    def __str__(self) -> str:
        nanos = round(self * 10**9)
        sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
        if nanos == 0:
            return "0s"
        for unit in ("ns", "µs", "ms"):
            if nanos < 1000 * _UNITS[unit]:
                return f"{sign}{_trim(nanos, _UNITS[unit])}{unit}"
        minutes, rest = divmod(nanos, _UNITS["m"])
        hours, minutes = divmod(minutes, 60)
        text = f"{_trim(rest, _UNITS['s'])}s"
        if hours:
            return f"{sign}{hours}h{minutes}m{text}"
        return f"{sign}{minutes}m{text}" if minutes else sign + text


def _nanos(number: str, unit: str) -> int:
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    return (int(whole or "0") * scale + int(fraction or "0")) * _UNITS[unit] // scale


def _trim(nanos: int, unit: int) -> str:
    whole, rest = divmod(nanos, unit)
    fraction = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)
