"""Regular expressions that come from outside: custom resource schemas, CEL, label rules.

They have the syntax of Kubernetes' own (RE2), match in time linear in the text, and use bounded memory. Never
give such a pattern to Python's `re`: it backtracks, and one text may take it forever.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]

from stowplan.errors import PatternError

MAX_MEMORY = 8 << 20
"""Bytes that one compiled pattern may use; RE2's default."""
MAX_KEPT = 64
MAX_LENGTH = 32 << 10
"""Characters of a pattern. RE2 parses all of it before it can tell how much memory the pattern needs."""
MAX_WORK = 100_000_000
"""Instructions of a pattern times bytes of a text: about 0.25 s at worst, when RE2 runs out of memory
for its automaton and follows all alternatives of every character instead."""

# RE2 has one escape that Go does not have: \C, any byte. It would cut characters in two.
_ESCAPE = re.compile(r"\\(?:Q(?:[^\\]|\\(?!E))*(?:\\E)?|(C)|.)", re.DOTALL)


class Pattern:
    """A compiled pattern. `Pattern.of` compiles it and caches recently used ones, also invalid ones."""

    __slots__ = ("_error", "_regexp", "size")

    def __init__(self, text: str) -> None:
        self._error, self.size = "", 0
        try:
            self._regexp = _compile(text)
            self.size = self._regexp.programsize
        except PatternError as error:
            self._error = str(error)

    @classmethod
    def of(cls, text: str) -> Pattern:
        """The pattern of this text; PatternError says what is wrong with it."""
        pattern = _pattern(text)
        if pattern._error:
            raise PatternError(pattern._error)
        return pattern

    def matches(self, text: str) -> bool:
        """Whether some part of the text matches."""
        data = _encode(text)
        if data is None:
            return False
        if self.size * len(data) > MAX_WORK:
            self._check_work(len(data))
        return self._regexp.search(data) is not None

    def find(self, text: str) -> str | None:
        """The first match."""
        return next(iter(self.find_all(text, 1)), None)

    def find_all(self, text: str, limit: int = -1) -> list[str]:
        """All matches, or the first `limit`. An empty one right after another match does not count."""
        found: list[str] = []
        data = _encode(text)
        position, last_end, looked_at = 0, -1, 0
        while data is not None and position <= len(data) and len(found) != limit:
            looked_at += len(data) - position
            self._check_work(looked_at)
            match = self._regexp.search(data, position)
            if match is None:
                break
            start, end = match.span()
            if end > start or start != last_end:
                found.append(data[start:end].decode())
            last_end = end
            position = end if end > start else _next_character(data, end)
        return found

    def _check_work(self, length: int) -> None:
        if self.size * length > MAX_WORK:
            raise PatternError(f"the pattern is too complex for a string of {length} bytes")


@lru_cache(maxsize=MAX_KEPT)
def _pattern(text: str) -> Pattern:
    return Pattern(text)


def _compile(text: str) -> Any:
    if len(text) > MAX_LENGTH:
        raise PatternError(f"error parsing regexp: expression too large: more than {MAX_LENGTH} characters")
    if any(match[1] for match in _ESCAPE.finditer(text)):
        raise PatternError(r"error parsing regexp: invalid escape sequence: `\C`")
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MAX_MEMORY, False, True
    try:
        re2.purge()  # it keeps patterns of its own, which we have no use for
        return re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise PatternError("error parsing regexp: invalid UTF-8") from None
    except re2.error as error:
        reason = error.args[0]
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(f"error parsing regexp: {words}") from None


def _encode(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which is no text for Kubernetes
        return None


def _next_character(data: bytes, position: int) -> int:
    position += 1
    while position < len(data) and data[position] & 0xC0 == 0x80:
        position += 1
    return position
