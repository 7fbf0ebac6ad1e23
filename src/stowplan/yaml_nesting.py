"""YAML that would end the process or fill its memory: nested too deeply, or repeated by aliases.

PyYAML limits neither.
"""

from __future__ import annotations

import math
import re

import yaml

DEEPEST = 1000
MAX_REPEATED = 3 * 1024 * 1024
_BRACKETS = re.compile(r"[\[\]{}]|(?:[-?] ){200}")
_ANCHOR, _ALIAS = (re.compile(rf"(?:^|[\s,:\[{{]){sign}[^\s&*]") for sign in ("&", r"\*"))
"""Also match some text that is neither, which then costs a little time."""


def is_too_deep(text: str | bytes) -> bool:
    """Whether brackets, or dashes on one line, are nested more deeply than any object needs."""
    depth = 0
    for found in _BRACKETS.finditer(_decode(text)):
        each = found.group()
        depth += 200 if len(each) > 1 else 1 if each in "[{" else -1
        if depth > DEEPEST:
            return True
    return False


def find_alias_fault(text: str | bytes) -> str:
    """Say that aliases stand for a value that contains itself, or for more than MAX_REPEATED characters.

    Raises a YAMLError for what is not YAML. Nothing is built: merge keys (`<<`) multiply while it is.
    """
    text = _decode(text)
    if not (_ANCHOR.search(text) and _ALIAS.search(text)):
        return ""
    sizes: dict[str, float] = {}
    within: list[tuple[str | None, float]] = []
    """The collections that are open: their anchors, and how large all before them is."""
    size = repeated = 0.0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            added = sizes.get(event.anchor or "", 0)
            size, repeated = size + added, repeated + added
            if math.isinf(repeated):
                return f"contains itself (&{event.anchor} … *{event.anchor})"
            if repeated > MAX_REPEATED:
                return "its aliases repeat more than 3 MiB: write the values out, or use fewer aliases"
        elif isinstance(event, yaml.ScalarEvent):
            size += len(event.value) + 1
            if event.anchor:
                sizes[event.anchor] = len(event.value) + 1
        elif isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, size))
            size += 2
            if event.anchor:
                sizes[event.anchor] = math.inf  # until it ends: an alias within it is a circle
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor:
                sizes[anchor] = size - before
    return ""


def _decode(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
