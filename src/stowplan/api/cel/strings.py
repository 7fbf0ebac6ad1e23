"""CEL's functions on strings: the standard ones, the strings extension, Kubernetes' regular expressions."""

from __future__ import annotations

import re
from functools import lru_cache

from stowplan.api.cel.overloads import define
from stowplan.errors import CelError

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_LOWER = {code + 32: code for code in _UPPER}
_PATTERN_PART = re.compile(
    r"""(?P<escape>\\.) | (?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]) | (?P<end>\$)
      | (?P<group>\(\?(?:=|!|<=|<!|P=|\(|>|\#))""",
    re.VERBOSE | re.DOTALL,
)
_NAMED_SET = re.compile(r"\[:(\w+):\]")
_SETS = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": "\\x00-\\x7f", "blank": "\\t ", "upper": "A-Z",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~",
    "cntrl": "\\x00-\\x1f\\x7f", "space": "\\t-\\r ", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


def define_strings() -> None:
    define(".startsWith", str, str, result=bool, function=str.startswith)
    define(".endsWith", str, str, result=bool, function=str.endswith)
    define(".contains", str, str, result=bool, function=str.__contains__)
    for name in ("matches", ".matches"):
        define(
            name, str, str, result=bool, function=lambda text, form: pattern(form).search(text) is not None
        )
    define(".find", str, str, result=str, function=find)
    define(".findAll", str, str, result=list, function=find_all)
    define(".findAll", str, str, int, result=list, function=find_all)
    define(".charAt", str, int, result=str, function=char_at)
    define(".indexOf", str, str, result=int, function=str.find)
    define(".indexOf", str, str, int, result=int, function=index_of)
    define(".lastIndexOf", str, str, result=int, function=str.rfind)
    define(".lastIndexOf", str, str, int, result=int, function=last_index_of)
    define(".lowerAscii", str, result=str, function=lambda text: text.translate(_UPPER))
    define(".upperAscii", str, result=str, function=lambda text: text.translate(_LOWER))
    define(".replace", str, str, str, result=str, function=str.replace)
    define(".replace", str, str, str, int, result=str, function=str.replace)
    define(".split", str, str, result=list, function=split)
    define(".split", str, str, int, result=list, function=split)
    define(".substring", str, int, result=str, function=substring)
    define(".substring", str, int, int, result=str, function=substring)
    define(".trim", str, result=str, function=lambda text: text.strip(_SPACES))
    define(".join", list, result=str, function=join)
    define(".join", list, str, result=str, function=join)


@lru_cache(maxsize=1024)
def pattern(form: str) -> re.Pattern[str]:
    """A regular expression as RE2 understands it, in Python's spelling."""
    try:
        return re.compile(_PATTERN_PART.sub(_translated, form), re.ASCII)
    except (re.error, OverflowError) as error:
        raise CelError(f"invalid regular expression {form!r}: {error}") from None


def _translated(part: re.Match[str]) -> str:
    if part["group"]:
        raise CelError(f"invalid regular expression: {part[0]!r} is not supported")
    if part["end"] or part[0] == r"\z":
        return r"\Z"  # Python's $ also matches before a line break at the end
    if part["escape"]:
        if part[0][1] in "123456789ZpPCQ":
            raise CelError(f"invalid regular expression: {part[0]!r} is not supported")
        return part[0]
    return _NAMED_SET.sub(lambda name: _SETS.get(name[1], name[0]), part["set"])


def find(text: str, form: str) -> str:
    match = pattern(form).search(text)
    return match[0] if match else ""


def find_all(text: str, form: str, limit: int = -1) -> list[str]:
    found = [match[0] for match in pattern(form).finditer(text)]
    return found if limit < 0 else found[:limit]


def char_at(text: str, index: int) -> str:
    return substring(text, index, min(index + 1, len(text)))


def index_of(text: str, part: str, start: int) -> int:
    _check_index(text, start)
    return text.find(part, start)


def last_index_of(text: str, part: str, start: int) -> int:
    """The last occurrence that begins at `start` or before."""
    _check_index(text, start)
    return text.rfind(part, 0, start + len(part))


def split(text: str, separator: str, limit: int = -1) -> list[str]:
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


def join(parts: list[str], separator: str = "") -> str:
    if not all(type(part) is str for part in parts):
        raise CelError("no such overload: only strings can be joined")
    return separator.join(parts)


def _check_index(text: str, index: int) -> None:
    if not 0 <= index <= len(text):
        raise CelError(f"index out of range: {index}")


define_strings()
