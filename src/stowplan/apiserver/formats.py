"""String formats of schemas, by name; unknown formats are not checked."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable

from stowplan.apiserver.names import label_errors, subdomain_errors

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})")
_GO_DURATION = re.compile(r"[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+")
_DURATION = re.compile(r"[0-9]+\s*([A-Za-zµ]+)")
_UNITS = frozenset(["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"])
_LONG_UNITS = ("nano", "micro", "milli", "sec", "min", "hour", "day", "week")
_EMAIL = re.compile(r"[^<>@\s]+@[^<>@\s]+|[^<>@]*<[^<>@\s]+@[^<>@\s]+>")
_LABEL = r"[^\W_](?:(?:[^\W_]|-){0,61}[^\W_])?"
_HOSTNAME = re.compile(rf"[^\W_](?:-?[^\W_]{{0,62}})?|(?:{_LABEL}\.)+[^\W\d_]{{2,63}}")
_MAC = re.compile(
    r"[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}(?:(?:\1[0-9a-f]{2}){2}|(?:\1[0-9a-f]{2}){14})?"
    r"|[0-9a-f]{4}(?:\.[0-9a-f]{4}){2}(?:\.[0-9a-f]{4}|(?:\.[0-9a-f]{4}){7})?",
    re.IGNORECASE,
)
_URI = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:.")
_COLOR = r"\s*(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\s*"


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def _is_date_time(text: str) -> bool:
    date, _, time = text.lower().partition("t")
    return _is_date(date) and bool(_TIME.fullmatch(time))


def _is_duration(text: str) -> bool:
    if _GO_DURATION.fullmatch(text) or text in ("0", "+0", "-0"):
        return True
    units = [unit.lower() for unit in _DURATION.findall(text)]
    return bool(units) and all(unit in _UNITS or unit.startswith(_LONG_UNITS) for unit in units)


def _is_address(text: str, sign: str) -> bool:
    if re.fullmatch(r"[0-9.]+", text):  # leading zeros do not matter here
        text = ".".join(part.lstrip("0") or part[-1:] for part in text.split("."))
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return sign in text and "%" not in text


def _is_cidr(text: str) -> bool:
    address, slash, length = text.partition("/")
    fits = bool(slash) and length.isascii() and length.isdecimal() and len(length) <= 3
    return fits and _is_address(address, "") and int(length) <= (128 if ":" in address else 32)


def _uuid(version: str = "[0-9a-f]", variant: str = "[0-9a-f]") -> Callable[[str], bool]:
    form = rf"[0-9a-f]{{8}}-?[0-9a-f]{{4}}-?{version}[0-9a-f]{{3}}-?{variant}[0-9a-f]{{3}}-?[0-9a-f]{{12}}"
    return _matcher(form, re.IGNORECASE)


def _matcher(form: str, flags: int = 0) -> Callable[[str], bool]:
    pattern = re.compile(form, flags)
    return lambda text: pattern.fullmatch(text) is not None


def _is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    if not re.fullmatch(r"[0-9]{9}[0-9X]", digits):
        return False
    return sum((10 - at) * (10 if digit == "X" else int(digit)) for at, digit in enumerate(digits)) % 11 == 0


def _is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    if not re.fullmatch(r"[0-9]{13}", digits):
        return False
    return sum((3 if at % 2 else 1) * int(digit) for at, digit in enumerate(digits)) % 10 == 0


def _is_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]", "", text)
    if not 12 <= len(digits) <= 19:
        return False
    doubled = (int(digit) * (2 if at % 2 else 1) for at, digit in enumerate(reversed(digits)))
    return sum(number // 10 + number % 10 for number in doubled) % 10 == 0


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "duration": _is_duration,
    "email": lambda text: _EMAIL.fullmatch(text) is not None,
    "hostname": lambda text: len(text) <= 255 and _HOSTNAME.fullmatch(text) is not None,
    "ipv4": lambda text: _is_address(text, "."),
    "ipv6": lambda text: _is_address(text, ":"),
    "cidr": _is_cidr,
    "mac": lambda text: _MAC.fullmatch(text) is not None,
    "uuid": _uuid(),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4", "[89ab]"),
    "uuid5": _uuid("5", "[89ab]"),
    "byte": _matcher(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"),
    "uri": lambda text: _URI.match(text) is not None,
    "hexcolor": _matcher(r"#?(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "rgbcolor": _matcher(rf"rgb\({_COLOR},{_COLOR},{_COLOR}\)"),
    "isbn": lambda text: _is_isbn10(text) or _is_isbn13(text),
    "isbn10": _is_isbn10,
    "isbn13": _is_isbn13,
    "ssn": _matcher(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}"),
    "creditcard": _is_card,
    "bsonobjectid": _matcher(r"[0-9a-fA-F]{24}"),
    "k8s-short-name": lambda text: not label_errors(text),
    "k8s-long-name": lambda text: not subdomain_errors(text),
}
