"""The projects in examples/testing pass their own tests, run as their authors would."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_process import run_pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"


@pytest.mark.parametrize(("folder", "count"), [("controller", 6), ("kopf-operator", 5)])
def test_its_tests_pass(folder, count):
    done = run_pytest(EXAMPLES, "-p", "no:asyncio", "-p", "no:xdist", folder)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
