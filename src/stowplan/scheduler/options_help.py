"""The text of `--help`: flags in kube-scheduler's groups, each with its type and default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from stowplan.scheduler.flag_parser import Flag
from stowplan.scheduler.flags import GROUPS

_INTRODUCTION = (
    "Schedules the pods of a Kubernetes cluster, as kube-scheduler does, with kube-scheduler's flags and "
    "configuration, and with plugins in Python."
)
_NOTES = {
    "Deprecated": "They count only without --config, where not said otherwise.",
    "Old": "Flags that kube-scheduler once had, taken with a warning. They count only without --config.",
}


def help_text(program: str, width: int) -> str:
    """What `program --help` prints, in lines of up to `width` columns."""
    return "\n".join(_lines(program, width))


def _lines(program: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(_INTRODUCTION, width)
    yield from ("", "Usage:", f"  {program} [flags]")
    for title, flags in GROUPS.items():
        yield from ("", f"{title} flags:", "")
        if note := _NOTES.get(title):
            yield from (*textwrap.wrap(note, width, initial_indent="  ", subsequent_indent="  "), "")
        for flag in sorted(flags, key=lambda flag: flag.name):
            yield _heading(flag)
            yield from textwrap.wrap(
                _words(flag),
                width,
                initial_indent=" " * 16,
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )


def _heading(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else "    "
    return f"  {short}--{flag.name} {flag.kind.name}".rstrip()


def _words(flag: Flag) -> str:
    words = flag.help
    if flag.no_effect:
        words += f" Accepted without effect: {flag.no_effect}."
    if flag.instead:
        words += f" In a --config file: {flag.instead}."
    return words + _default(flag)


def _default(flag: Flag) -> str:
    default = flag.default
    if default in ("", None, False, "false", (), {}):
        return ""
    if isinstance(default, tuple):
        return f" (default [{','.join(default)}])"
    if default is True:
        return " (default true)"
    return f' (default "{default}")' if flag.kind.name == "string" else f" (default {default})"
