"""Every scenario of the specification has a test with its number: `pytest tests/groups -k scenario_12`."""

from __future__ import annotations

import re
from pathlib import Path

NUMBER = r"\d+[ab]?"
NAMED = re.compile(rf"def test_(?:scenarios?_)?({NUMBER})(?:_(and|to)_({NUMBER}))?_")
LISTED = re.compile(rf'"scenario ({NUMBER})"')
EXPECTED = {str(number) for number in range(1, 75)} | {"67a", "67b", "92"}


def scenarios() -> dict[str, list[str]]:
    """The files that have a test for each scenario."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        text = path.read_text()
        numbers = set(LISTED.findall(text))
        for first, word, last in NAMED.findall(text):
            numbers |= {first, last} - {""}
            if word == "to":
                numbers |= {str(number) for number in range(int(first), int(last))}
        for number in numbers:
            found.setdefault(number, []).append(path.name)
    return found


def test_every_scenario_has_a_test():
    assert sorted(EXPECTED - scenarios().keys()) == []
