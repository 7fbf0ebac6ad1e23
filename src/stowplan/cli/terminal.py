"""What commands do for a terminal: its width, and colours unless NO_COLOR is set."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Any

import click

MIN_WIDTH, MAX_WIDTH = 40, 120
_STYLES: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = (
    (re.compile(r"^(Pod|Group) \S+ (goes|went) to .*"), {"fg": "green", "bold": True}),
    (re.compile(r"^Pod \S+ (could not be decided|was assigned) .*"), {"fg": "red", "bold": True}),
    (
        re.compile(r"^Pod \S+ (stays pending|is gated|fits? nowhere).*"),
        {"fg": "yellow", "bold": True},
    ),
    (re.compile(r"^(NODE|PLUGIN|RESOURCE|POINT|POD) .*"), {"bold": True}),
    (re.compile(r"^(Rejected|Preemption|Not evaluated|profile|extender)\b"), {"bold": True}),
)


def fit_width() -> None:
    """Wrap text to the width of the terminal, if standard output is one."""
    from stowplan.explain import layout

    if sys.stdout.isatty():
        layout.width = min(max(shutil.get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)


def has_colour(*, err: bool = False) -> bool:
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str) -> str:
    """Add colours to the headlines and headers of a text, if standard output is a terminal."""
    return "\n".join(map(_paint_line, text.split("\n"))) if has_colour() else text


def _paint_line(line: str) -> str:
    for pattern, style in _STYLES:
        if found := pattern.match(line):
            return click.style(found.group(), **style) + line[found.end() :]
    return line


def echo_error(text: str) -> None:
    """Print an error of a command as one line on standard error."""
    from stowplan.explain.layout import printable

    name = click.style("stowplan:", fg="red", bold=True) if has_colour(err=True) else "stowplan:"
    click.echo(f"{name} {printable(text)}", err=True)
