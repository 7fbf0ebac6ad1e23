"""JSON that is nested deeper than a decoder can follow.

An API server accepts objects that are nested 10,000 levels deep; msgspec recurses, even where it only skips a
value or keeps it as text, and gives up with a RecursionError after less than 1,000. Nothing that we read is
deeper than 20 levels: what is below MAX_DEPTH is cut out before decoding, and put back where text is kept.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stowplan.errors import InputError

MAX_DEPTH = 64
TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep"

# A run of brackets, after whatever stands before it. Possessive, so that no text makes it backtrack.
_BRACKETS = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[{]++|[\]}]++)', re.DOTALL)

T = TypeVar("T")


def decode_deep(decode: Callable[[bytes], T], data: bytes) -> T:
    """What `decode` makes of the text, however deep it is nested.

    Raises InputError if a part that is too deep would have to be parsed, not just skipped or kept as text.
    """
    try:
        return decode(data)
    except RecursionError:
        pass
    parts = _Parts()
    try:
        return parts.put_back(decode(parts.cut_out(bytes(data))))  # type: ignore[no-any-return]
    except RecursionError:  # unclosed brackets
        raise InputError(TOO_DEEP) from None
    except (InputError, ValueError) as error:
        if parts.mark in str(error):  # the message contains a placeholder
            raise InputError(TOO_DEEP) from None
        raise


def cut_deep_values(data: bytes) -> bytes:
    """The text with null for what is nested too deep to be parsed."""
    parts = _Parts()
    return parts.marked.sub(b"null", parts.cut_out(data))


def members(data: bytes) -> dict[str, msgspec.Raw]:
    """The values of a JSON object by name, still as text."""
    return decode_deep(_members, data)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Parts:
    """The parts of a text that are nested too deeply, each replaced by an unpredictable placeholder."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self._parts: list[bytes] = []
        self.marked = re.compile(rf'"{self.mark}([0-9]+)"'.encode())

    def cut_out(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        depth = copied = began = 0
        for match in _BRACKETS.finditer(data):
            at, end = match.span(1)
            before = depth
            if data[at] in b"[{":
                depth += end - at
                if before <= MAX_DEPTH < depth:
                    began = end - (depth - MAX_DEPTH)
                    pieces.append(data[copied:began])
            else:
                depth -= end - at
                if depth <= MAX_DEPTH < before:
                    copied = end - (MAX_DEPTH - depth)
                    pieces.append(f'"{self.mark}{len(self._parts)}"'.encode())
                    self._parts.append(data[began:copied])
        pieces.append(data[copied:])
        return b"".join(pieces)

    def put_back(self, value: object) -> Any:
        """The value with all that was cut out of it; the same object if that is nothing."""
        if isinstance(value, msgspec.Raw):
            text = bytes(value)
            whole = self.marked.sub(lambda match: self._parts[int(match[1])], text)
            return value if whole == text else msgspec.Raw(whole)
        if isinstance(value, str):
            if self.mark in value:
                raise InputError(TOO_DEEP)
            return value
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changes = {
                name: whole for name, old in fields.items() if (whole := self.put_back(old)) is not old
            }
            return msgspec.structs.replace(value, **changes) if changes else value
        if isinstance(value, dict):
            pairs = {self.put_back(key): self.put_back(old) for key, old in value.items()}
            return pairs if any(pairs[key] is not old for key, old in value.items()) else value
        if isinstance(value, (list, tuple)):
            items = [self.put_back(old) for old in value]
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else type(value)(items)
        return value
