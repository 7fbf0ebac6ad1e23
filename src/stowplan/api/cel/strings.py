"""CEL's functions on strings: the standard ones, the strings extension, Kubernetes' regular expressions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stowplan.api.cel.overloads import Meter, define, define_on_text
from stowplan.api.cel.values import format_value
from stowplan.api.patterns import Pattern
from stowplan.errors import CelError, PatternError

LITERAL = "literal "
"""Prefix of the functions that take a pattern, where it is written in the expression."""
MAX_PATTERN_SIZE = 100_000
"""Instructions of all patterns of an expression, so that compiling them all takes 0.2 s."""

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_LOWER = {code + 32: code for code in _UPPER}
_QUOTED = {ord(char): f"\\{letter}" for char, letter in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}


def define_strings() -> None:
    define_on_text(".startsWith", str, str, result=bool, function=str.startswith)
    define_on_text(".endsWith", str, str, result=bool, function=str.endswith)
    define(".contains", str, str, result=bool, function=contains, is_metered=True)
    for prefix, is_literal in (("", False), (LITERAL, True)):
        use = partial(_use, is_literal)
        for name in ("matches", ".matches"):
            define(prefix + name, str, str, result=bool, function=partial(matches, use), is_metered=True)
        define(f"{prefix}.find", str, str, result=str, function=partial(find, use), is_metered=True)
        for limit in ((), (int,)):
            parameters = (str, str, *limit)
            define(
                f"{prefix}.findAll",
                *parameters,
                result=list,
                function=partial(find_all, use),
                is_metered=True,
            )
    define_on_text(".charAt", str, int, result=str, function=char_at)
    for name, search in ((".indexOf", index_of), (".lastIndexOf", last_index_of)):
        define(name, str, str, result=int, function=search, is_metered=True)
        define(name, str, str, int, result=int, function=search, is_metered=True)
    define_on_text(".lowerAscii", str, result=str, function=lambda text: text.translate(_UPPER))
    define_on_text(".upperAscii", str, result=str, function=lambda text: text.translate(_LOWER))
    define(".replace", str, str, str, result=str, function=replace, is_metered=True)
    define(".replace", str, str, str, int, result=str, function=replace, is_metered=True)
    define(".split", str, str, result=list, function=split, is_metered=True)
    define(".split", str, str, int, result=list, function=split, is_metered=True)
    define_on_text(".substring", str, int, result=str, function=substring)
    define_on_text(".substring", str, int, int, result=str, function=substring)
    define_on_text(".trim", str, result=str, function=lambda text: text.strip(_SPACES))
    define_on_text("strings.quote", str, result=str, function=quote)
    define(".join", list, result=str, function=join, is_metered=True)
    define(".join", list, str, result=str, function=join, is_metered=True)


def contains(meter: Meter, text: str, part: str) -> bool:
    meter.charge((len(text) // 10) * (1 + len(part) // 10))
    return part in text


def literal_pattern(form: str) -> Pattern:
    """A pattern that is written in the expression; CelError if it cannot be compiled."""
    try:
        return Pattern.of(form)
    except PatternError as error:
        raise CelError(format_value(str(error))) from None


Use = Callable[[Meter, str, str, Callable[[Pattern], Any]], Any]


def _use(is_literal: bool, meter: Meter, text: str, form: str, function: Callable[[Pattern], Any]) -> object:
    """Charge what Kubernetes charges for a pattern, or more if it is a short one that takes much work.

    A pattern that is not in the expression itself may be another one each time: it is charged for compiling.
    """
    if not is_literal:
        meter.charge(20 * len(form))  # Even to reject a pattern may take long.
    pattern = literal_pattern(form)
    by_length = (1 + len(text) // 10) * (1 + len(form) // 4)
    meter.charge(max(by_length, pattern.size * len(text) // 200))
    meter.charge(pattern.size // 4 if is_literal else 10 * pattern.size)
    try:
        return function(pattern)
    except PatternError as error:
        raise CelError(format_value(str(error))) from None


def matches(use: Use, meter: Meter, text: str, form: str) -> bool:
    return bool(use(meter, text, form, lambda pattern: pattern.matches(text)))


def find(use: Use, meter: Meter, text: str, form: str) -> str:
    return use(meter, text, form, lambda pattern: pattern.find(text)) or ""


def find_all(use: Use, meter: Meter, text: str, form: str, limit: int = -1) -> list[str]:
    # Each match may look at all of the rest of the text.
    meter.charge(len(text) * len(text) // 1000)
    found: list[str] = use(meter, text, form, lambda pattern: pattern.find_all(text, max(limit, -1)))
    meter.charge(15 * len(found))
    return found


def char_at(text: str, index: int) -> str:
    return substring(text, index, min(index + 1, len(text)))


def index_of(meter: Meter, text: str, part: str, start: int = 0) -> int:
    """The first occurrence at `start` or after. parity: an empty part is wherever it is looked for."""
    meter.charge((len(text) // 10) * (1 + len(part) // 10))
    if not part:
        return start
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.find(part, start)


def last_index_of(meter: Meter, text: str, part: str, start: int | None = None) -> int:
    """The last occurrence that begins at `start` or before."""
    meter.charge((len(text) // 10) * (1 + len(part) // 10))
    if not part:
        return len(text) if start is None else start
    if start is None:
        return text.rfind(part)
    if start < 0:
        raise CelError(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def replace(meter: Meter, text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old) if limit < 0 else min(text.count(old), limit)
    meter.charge_text(2 * len(text) + count * len(new))
    return text.replace(old, new, limit if limit >= 0 else -1)


def split(meter: Meter, text: str, separator: str, limit: int = -1) -> list[str]:
    meter.charge_text(2 * len(text))
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    _check_index(text, start)
    _check_index(text, end)
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


def join(meter: Meter, parts: list[str], separator: str = "") -> str:
    if not all(type(part) is str for part in parts):
        raise CelError("no such overload: join(list)")
    meter.charge(len(parts) // 10)
    meter.charge_text(2 * (sum(map(len, parts)) + len(separator) * len(parts)))
    return separator.join(parts)


def _check_index(text: str, index: int) -> None:
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")


define_strings()
