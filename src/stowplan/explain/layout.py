"""Plain text for a terminal: wrapped sentences, shortened lists, tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from stowplan.framework.status import Status

width = 100
"""Where sentences are wrapped; a command that prints to a terminal sets it to the width of that."""
NAMES_SHOWN = 10


def wrap(text: str, indent: int = 0, start: str | None = None) -> str:
    space = " " * indent
    return textwrap.fill(
        text,
        width,
        initial_indent=space if start is None else start,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def join_names(names: Sequence[str], shown: int | None = NAMES_SHOWN) -> str:
    if shown is not None and len(names) > shown:
        names = [*names[:shown], f"{len(names) - shown} more"]
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def count_text(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def printable(text: str) -> str:
    """Escape control characters, which names in files may contain."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def reason_text(status: Status) -> str:
    return f"{status.plugin}: {status.message}" if status.plugin else status.message


def table(headers: Sequence[tuple[str, ...]], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Lines of a table: the first column left-aligned, the others right-aligned."""
    lines = [tuple(map(str, row)) for row in (*headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(wide) for cell, wide in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def left_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip()
