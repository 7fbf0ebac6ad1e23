"""Limits how deeply JSON is nested: code that walks objects recurses, and Python limits recursion."""

from __future__ import annotations

import re

MAX_DEPTH = 128
"""kube-apiserver allows 10,000; no meaningful object comes near this."""
WORDS = f"exceeded max depth of {MAX_DEPTH}"
_PARTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def is_too_deep(text: bytes) -> bool:
    # Nearly always so, and quickly told: each level has a bracket at both ends.
    if len(text) <= 2 * MAX_DEPTH or text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for part in _PARTS.finditer(text):
        first = part[0][:1]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False
