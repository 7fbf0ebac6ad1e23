"""`text.format([…])` of CEL, and Kubernetes' named formats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from types import NoneType
from typing import Any

from stowplan.api.cel.networks import parse_url
from stowplan.api.cel.overloads import Meter, define, name_of
from stowplan.api.cel.standard import decode_text, float_text
from stowplan.api.cel.times import parse_timestamp, seconds_text, timestamp_text
from stowplan.api.cel.values import (
    MISSING,
    OPAQUE,
    TYPE_NAMES,
    Duration,
    Optional,
    Timestamp,
    UInt,
    format_value,
)
from stowplan.errors import CelError

MAX_PRECISION = 100
_CLAUSE = re.compile(r"%(?:(%)|(\.[0-9]*)?(.?))", re.DOTALL)
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def format_text(meter: Meter, form: str, arguments: list[object]) -> str:
    """The text with `%s`, `%d` … replaced by the arguments in turn."""
    meter.charge_text(len(form))
    left = iter(arguments)

    def replace(match: re.Match[str]) -> str:
        percent, precision, letter = match.groups()
        if percent:
            return "%"
        for value in left:
            return _format(meter, value, letter, precision)
        raise CelError("index out of range")

    return _CLAUSE.sub(replace, form)


def _format(meter: Meter, value: Any, letter: str, precision: str | None) -> str:
    if not letter:
        raise CelError("unexpected end of string")
    if letter not in "sdfebxXo":
        raise CelError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    if precision == ".":
        raise CelError("could not parse formatting clause: error while parsing precision")
    if letter == "s":
        return _text(meter, value)
    if letter in "fe":
        return _number(value, letter, precision)
    kinds: tuple[type, ...] = {"d": (int, UInt), "b": (int, UInt, bool), "o": (int, UInt)}.get(
        letter, (int, UInt, str, bytes)
    )
    if type(value) not in kinds:
        raise CelError(f"error during formatting: %{letter} does not take {name_of(type(value))}")
    if isinstance(value, (str, bytes)):
        meter.charge_text(2 * len(value))
        digits = (value.encode() if isinstance(value, str) else value).hex()
        return digits.upper() if letter == "X" else digits
    return format(int(value), letter)


def _number(value: object, letter: str, precision: str | None) -> str:
    """parity: as Kubernetes writes numbers in English, with separators and a power of ten."""
    if value in ("NaN", "Infinity", "-Infinity") and type(value) is str:
        value = float(value)
    if type(value) is not float:
        raise CelError(f"error during formatting: %{letter} does not take {name_of(type(value))}")
    if not math.isfinite(value):
        text = "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
        return text.rjust(6) if letter == "e" else text
    if letter == "e":
        digits, _, exponent = f"{value or 0.0:.6e}".partition("e")
        return f"{digits}×10{exponent.removeprefix('+').translate(_SUPERSCRIPT)}"
    places = int(precision[1:4]) if precision else 6
    if places > MAX_PRECISION:
        raise CelError(f"error during formatting: more than {MAX_PRECISION} digits")
    return f"{value or 0.0:,.{places}f}"


def _text(meter: Meter, value: Any) -> str:
    kind = type(value)
    meter.charge(10 + (len(value) // 10 if kind in (str, bytes) else 0))
    if kind is str:
        return str(value)
    if kind is list:
        return f"[{', '.join(_literal(meter, item) for item in value)}]"
    if isinstance(value, dict):
        pairs = sorted((_literal(meter, key), _literal(meter, each)) for key, each in value.items())
        return f"{{{', '.join(f'{key}:{each}' for key, each in pairs)}}}"
    write = _WRITERS.get(kind)
    if write is None:
        raise CelError(
            "error during formatting: string clause can only be used on strings, bools, bytes, ints, "
            f"doubles, maps, lists, types, durations, and timestamps, was given {name_of(kind)}"
        )
    return write(value)


def _literal(meter: Meter, value: Any) -> str:
    """A value within a list or map, as CEL would have it written."""
    text, kind = _text(meter, value), type(value)
    if kind is float:
        return f"{value:.6f}" if math.isfinite(value) else f'"{text}"'
    if kind in (Timestamp, Duration):
        return f'{"timestamp" if kind is Timestamp else "duration"}("{text}")'
    if kind in (str, bytes):
        return ("b" if kind is bytes else "") + quote(text)
    return text


def quote(text: str) -> str:
    """As Go quotes text: what cannot be seen is escaped."""
    return f'"{"".join(_escape(char) for char in text)}"'


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\",
    '"': '\\"',
}  # fmt: skip
_WRITERS: dict[type, Callable[[Any], str]] = {
    int: str,
    UInt: str,
    float: float_text,
    bool: lambda flag: "true" if flag else "false",
    bytes: decode_text,
    NoneType: lambda value: "null",
    type: name_of,
    Duration: lambda span: f"{seconds_text(span)}s",
    Timestamp: timestamp_text,
}


class Format:
    """A named format: what is wrong with a text, and how long a pattern for it would be."""

    __slots__ = ("check", "length", "name")

    def __init__(self, name: str, length: int, check: Callable[[str], list[str]]) -> None:
        self.name, self.length, self.check = name, length, check


LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_WORDS = {
    LABEL: "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must "
    f"start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', {{}} '{LABEL}')",
    SUBDOMAIN: "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    f"'.', and must start and end with an alphanumeric character (e.g. 'example.com', {{}} '{SUBDOMAIN}')",
    LABEL_1035: "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character "
    f"(e.g. 'my-name',  or 'abc-123', {{}} '{LABEL_1035}')",
    QUALIFIED: "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', {{}} '{QUALIFIED}')",
    f"({QUALIFIED})?": "a valid label must be an empty string or consist of alphanumeric characters, '-', "
    "'_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', {{}} '({QUALIFIED})?')",
}


def _errors_of(form: str, limit: int, text: str, unit: str = "characters") -> list[str]:
    """Errors in kube-apiserver's words."""
    found = [f"must be no more than {limit} {unit}"] if len(text.encode()) > limit else []
    if form == LABEL and not re.fullmatch(form, text) and re.fullmatch(SUBDOMAIN, text):
        found.append("must not contain dots")
    elif not re.fullmatch(form, text):
        found.append(_WORDS[form].format("regex used for validation is"))
    return found


def _name_check(
    form: str, limit: int, *, is_prefix: bool = False, unit: str = "characters"
) -> Callable[[str], list[str]]:
    def check(text: str) -> list[str]:
        if is_prefix and len(text) > 1 and text.endswith("-"):
            text = f"{text[:-2]}a"  # What follows the prefix may make the dash right.
        return _errors_of(form, limit, text, unit)

    return check


def _qualified_errors(text: str) -> list[str]:
    prefix, *names = text.split("/")
    if len(names) > 1:
        words = _WORDS[QUALIFIED].format("regex used for validation is")
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {words} {prefixed}"]
    name, found = (names or [prefix])[0], []
    if names:
        found += (
            [f"prefix part {error}" for error in _errors_of(SUBDOMAIN, 253, prefix)]
            if prefix
            else ["prefix part must be non-empty"]
        )
    if not name:
        found.append("name part must be non-empty")
    return found + [f"name part {error}" for error in _errors_of(QUALIFIED, 63, name, "bytes")]


def _uri_errors(text: str) -> list[str]:
    try:
        parse_url(text, is_request=True)
    except CelError as error:
        return [f'parse "{format_value(text)}": {error}']
    return []


def _pattern_check(form: str, message: str) -> Callable[[str], list[str]]:
    pattern = re.compile(form)
    return lambda text: [] if pattern.fullmatch(text) else [message]


def _date_errors(text: str) -> list[str]:
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            raise ValueError
        if text[:4] != "0000":
            date.fromisoformat(text)
    except ValueError:
        return ["invalid date"]
    return []


def _date_time_errors(text: str) -> list[str]:
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"
    try:
        if not re.fullmatch(form, text.upper(), re.ASCII):
            raise CelError("not a time")
        parse_timestamp(text.upper())
    except CelError:
        return ["invalid datetime"]
    return []


_HEX = "[0-9a-fA-F]"
FORMATS = {
    name: Format(name, length, check)
    for name, length, check in (
        ("dns1123Label", 30, _name_check(LABEL, 63)),
        ("dns1123Subdomain", 60, _name_check(SUBDOMAIN, 253)),
        ("dns1035Label", 30, _name_check(LABEL_1035, 63)),
        ("qualifiedName", 60, _qualified_errors),
        ("dns1123LabelPrefix", 30, _name_check(LABEL, 63, is_prefix=True)),
        ("dns1123SubdomainPrefix", 60, _name_check(SUBDOMAIN, 253, is_prefix=True)),
        ("dns1035LabelPrefix", 30, _name_check(LABEL_1035, 63, is_prefix=True)),
        ("labelValue", 40, _name_check(f"({QUALIFIED})?", 63, unit="bytes")),
        ("uri", 1100, _uri_errors),
        (
            "uuid",
            70,
            _pattern_check(
                f"{_HEX}{{8}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{4}}-?{_HEX}{{12}}",
                "does not match the UUID format",
            ),
        ),
        (
            "byte",
            84,
            _pattern_check(
                "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)",
                "invalid base64",
            ),
        ),
        ("date", 70, _date_errors),
        ("datetime", 70, _date_time_errors),
    )
}


def validate(meter: Meter, named: Format, text: str) -> Optional:
    meter.charge((1 + len(text) // 10) * (named.length // 4))
    found = named.check(text)
    return Optional(found) if found else MISSING


def define_formats() -> None:
    TYPE_NAMES[Format] = "kubernetes.NamedFormat"
    OPAQUE.add(Format)
    define(".format", str, list, result=str, function=format_text, is_metered=True)
    define(".validate", Format, str, result=Optional, function=validate, is_metered=True)
    define(
        "format.named", str, result=Optional,
        function=lambda name: Optional(FORMATS[name]) if name in FORMATS else MISSING,
    )  # fmt: skip
    for name, named in FORMATS.items():
        define(f"format.{name}", result=Format, function=_constant(named))


def _constant(named: Format) -> Callable[[], Format]:
    return lambda: named


define_formats()
