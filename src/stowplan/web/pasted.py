"""YAML that someone pasted into a form: measured before anything is built of it.

A reader of files may take what its user gives it. A scheduler at work must not: a few lines of aliases stand
for more than any memory holds, and brackets within brackets end the process.
"""

from __future__ import annotations

import yaml

from stowplan.errors import InputError

DEEPEST = 100
LONGEST = 10_000
"""Of a value without quotes, in characters: it may be a number, and those take long to work out."""


def check_pasted(text: str, what: str, most: int) -> None:
    """Raises InputError for what would take too long to read; whether it is YAML at all is for its reader."""
    depth = values = 0
    try:
        for event in yaml.parse(text, yaml.CSafeLoader):
            if anchor := getattr(event, "anchor", None):
                raise InputError(f"anchors and aliases, such as {anchor}, are not taken here", what=what)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.ScalarEvent):
                values += 1
                if event.implicit[0] and len(event.value) > LONGEST:
                    raise InputError(f"has a value of more than {LONGEST} characters: quote it", what=what)
            if depth > DEEPEST:
                raise InputError(f"is nested more than {DEEPEST} deep", what=what)
            if values > most:
                raise InputError(f"has more than {most} values; `stowplan whatif` takes more", what=what)
    except yaml.YAMLError:
        return
