"""The projects in examples/testing pass their own tests, run as their authors would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"


@pytest.mark.parametrize(("folder", "count"), [("controller", 6), ("kopf-operator", 5)])
def test_its_tests_pass(folder, count):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run([*command, folder], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
