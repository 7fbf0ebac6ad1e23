"""Patterns that take exponential time or much memory in other engines."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys

import pytest

from stowplan.api.patterns import MAX_KEPT, Pattern
from stowplan.errors import PatternError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 100_000 + "!"),
        ("^(a|a)*$", "a" * 100_000 + "!"),
        ("(x+x+)+y", "x" * 100_000),
        ("(.*)(.*)(.*)(.*)(.*)=", "x" * 20_000),
        ("a?" * 1000 + "a" * 1000, "a" * 1000),
    ],
)
def test_evil_patterns_end(pattern, text):
    code = (
        "from stowplan.api.patterns import Pattern; import sys;"
        "print(Pattern.of(sys.argv[1]).matches(sys.stdin.read()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, pattern],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() in ("True", "False")


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"[\pL\pN]{1000}" * 100, id="classes of many characters, repeated"),
        pytest.param("(?:a{0,1000}){0,1}" * 500, id="many repetitions"),
        pytest.param("(" * 200_000 + ")" * 200_000, id="deep nesting"),
        pytest.param("(?:" * 900 + "a" + "){1,2}" * 900, id="nested repetitions"),
    ],
)
def test_large_patterns_are_rejected_with_bounded_memory(pattern):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PatternError):
        Pattern.of(pattern)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # KiB


def test_thousands_of_patterns_are_not_all_kept():
    for number in range(2000):
        Pattern.of(f"^{number}.*[a-z]{{50}}$").matches("x")
    gc.collect()
    assert sum(isinstance(each, Pattern) for each in gc.get_objects()) <= 2 * MAX_KEPT


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "from stowplan.apiserver.options import field_selector;"
            "field_selector('metadata.name' + '=' * 60_000 + chr(10) + 'x', ['metadata.name'], ValueError)",
            id="a field selector",
        ),
        pytest.param(
            "from stowplan.config import Duration\n"
            "try: Duration.parse('1' * 60_000)\nexcept ValueError: pass",
            id="a duration",
        ),
    ],
)
def test_patterns_of_our_own_are_linear(code):
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
