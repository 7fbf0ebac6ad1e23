"""YAML nested so deeply that building it would end the process: PyYAML's loader in C knows no limit."""

from __future__ import annotations

import re

DEEPEST = 1000
_BRACKETS = re.compile(r"[\[\]{}]|(?:[-?] ){200}")


def is_too_deep(text: str | bytes) -> bool:
    """Whether brackets, or dashes on one line, stand within each other more often than any object needs."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    depth = 0
    for found in _BRACKETS.finditer(text):
        each = found.group()
        depth += 200 if len(each) > 1 else 1 if each in "[{" else -1
        if depth > DEEPEST:
            return True
    return False
