"""Parse flags as Go programs do: `--name=value`, `--name value`, `-v5`, a bare `--switch`, commas in lists.

Knows only the types of flags, not their meaning.
"""

from __future__ import annotations

import csv
import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stowplan.api import quantity
from stowplan.config import Duration
from stowplan.errors import InputError, QuantityError
from stowplan.serving.options import NamedCertificate

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_TLS_VERSIONS = ("VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")


class Kind(NamedTuple):
    """The type of a flag. `name` is shown by --help; `bare` is the value of the flag given without one."""

    name: str
    read: Callable[[str], Any]
    bare: str | None = None


class Flag(NamedTuple):
    """`no_effect` says why the flag has no effect; `instead` what to use instead of an old one."""

    name: str
    kind: Kind
    default: object
    help: str
    short: str = ""
    no_effect: str = ""
    instead: str = ""


def read(argv: Sequence[str], flags: Mapping[str, Flag], program: str) -> dict[str, Any]:
    """The values of the given flags; raise an InputError for the first invalid one."""
    given: dict[str, object] = {}
    positional: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            positional += words
            break
        if word.startswith("--"):
            flag, text = _long(word[2:], flags)
        elif word.startswith("-") and word != "-":
            flag, text, rest = _short(word[1:], flags)
            words[:0] = [f"-{rest}"] if rest else []
        else:
            positional.append(word)
            continue
        if text is None and flag.kind.bare is not None:
            text = flag.kind.bare
        elif text is None:
            if not words:
                raise InputError(f"flag needs an argument: {word}")
            text = words.pop(0)
        given[flag.name] = _combine(given.get(flag.name), _value(flag, text))
    if any(positional):
        quoted = " ".join(f'"{word}"' for word in positional)
        raise InputError(f'"{program}" does not take any arguments, got [{quoted}]')
    return given


def _long(word: str, flags: Mapping[str, Flag]) -> tuple[Flag, str | None]:
    name, equals, text = word.partition("=")
    name = name.replace("_", "-")
    if name not in flags:
        near = difflib.get_close_matches(name, flags, 1)
        raise InputError(f"unknown flag: --{name}" + (f"; did you mean --{near[0]}?" if near else ""))
    return flags[name], text if equals else None


def _short(word: str, flags: Mapping[str, Flag]) -> tuple[Flag, str | None, str]:
    """The flag of the first letter, its value if it is in the same word, and the letters left."""
    flag = next((flag for flag in flags.values() if flag.short == word[0]), None)
    if flag is None:
        long = word.partition("=")[0].replace("_", "-")
        hint = f"; did you mean --{long}?" if long in flags else ""
        raise InputError(f"unknown shorthand flag: '{word[0]}' in -{word}{hint}")
    if word[1:2] == "=":
        return flag, word[2:], ""
    if flag.kind.bare is not None:
        return flag, None, word[1:]
    return flag, word[1:] or None, ""


def _value(flag: Flag, text: str) -> object:
    try:
        return flag.kind.read(text)
    except ValueError as error:
        spelt = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
        raise InputError(f'invalid argument "{text}" for "{spelt}" flag: {error}') from None


def _combine(before: Any, value: Any) -> Any:
    """Extend lists and maps; otherwise the last value wins."""
    if isinstance(before, tuple):
        return before + value
    return {**before, **value} if isinstance(before, dict) else value


def _bool(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError("expected true or false")
    return text in _TRUE


def _int(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        # Go reads a leading zero as octal; Python rejects it.
        if re.fullmatch(r"[+-]?0[0-7]+", text):
            return int(text, 8)
        raise ValueError("expected a whole number") from None


def _int32(text: str) -> int:
    number = _int(text)
    if not -(2**31) <= number < 2**31:
        raise ValueError("value out of range")
    return number


def _level(text: str) -> int:
    number = _int32(text)
    if number < 0:
        raise ValueError("expected 0 or greater")
    return number


def _port(text: str) -> int:
    number = _int(text)
    if not 0 <= number <= 65535:
        raise ValueError("must be between 0 and 65535, inclusive")
    return number


def _float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("expected a number")
    return number


def _address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f'failed to parse IP: "{text}"') from None
    return text


def _texts(text: str) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([text], strict=True), ()))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_int32, text.split(",")))


def _pairs(text: str) -> dict[str, str]:
    # A value may contain commas; only quotes show where a second pair begins.
    items = (text.strip('"'),) if text.count("=") == 1 else _texts(text)
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{item} must be formatted as key=value")
        pairs[name.strip()] = value
    return pairs


def _switches(text: str) -> dict[str, bool]:
    """Parse `A=true,B=false`. A component name before a colon is dropped: there is only one here."""
    switches = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, equals, value = item.removeprefix("kube:").partition("=")
        if not equals:
            raise ValueError(f"missing bool value for {name}")
        if value.strip() not in _TRUE | _FALSE:
            raise ValueError(f"invalid value of {name}={value}, expected true or false")
        switches[name.strip()] = value.strip() in _TRUE
    return switches


def _certificate(text: str) -> tuple[NamedCertificate, ...]:
    files, _, names = text.partition(":")
    cert, comma, key = files.partition(",")
    if not (cert and comma and key) or "," in key:
        raise ValueError("expected comma separated certificate and key file paths")
    return (NamedCertificate(cert, key, tuple(filter(None, names.split(",")))),)


def _tls_version(text: str) -> str:
    if text and text not in _TLS_VERSIONS:
        raise ValueError(f"expected one of {', '.join(_TLS_VERSIONS)}")
    return text


def _log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError("expected text or json")
    return text


def _size(text: str) -> str:
    try:
        quantity.parse(text)
    except QuantityError as error:
        raise ValueError(str(error)) from None
    return text


def _size_from(least: int) -> Callable[[str], str]:
    def read_size(text: str) -> str:
        if quantity.parse(_size(text)) < least * quantity.NANO:
            raise ValueError(f"expected a size of {least} or more")
        return text

    return read_size


def _age(text: str) -> Duration:
    age = Duration.parse(text)
    if age <= 0:
        raise ValueError("expected a duration greater than 0")
    return age


STRING = Kind("string", str)
BOOL = Kind("", _bool, bare="true")
INT = Kind("int", _int)
INT32 = Kind("int32", _int32)
INT32S = Kind("int32Slice", _numbers)
FLOAT = Kind("float", _float)
DURATION = Kind("duration", Duration.parse)
IP = Kind("ip", _address)
PORT = Kind("int", _port)
LEVEL = Kind("Level", _level)
STRINGS = Kind("strings", _texts)
PAIRS = Kind("stringToString", _pairs)
SWITCHES = Kind("mapStringBool", _switches)
CERTIFICATES = Kind("namedCertKey", _certificate)
TLS_VERSION = Kind("string", _tls_version)
LOG_FORMAT = Kind("string", _log_format)
SIZE = Kind("quantity", _size)
SIZE_OR_NONE = Kind("quantity", _size_from(0))
SOME_SIZE = Kind("quantity", _size_from(1))
AGE = Kind("duration", _age)
VERSION = Kind("version[=true]", str, bare="true")
