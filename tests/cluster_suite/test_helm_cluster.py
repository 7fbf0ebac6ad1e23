"""A chart installed by the real helm, as examples/testing/helm-chart tests one."""

from __future__ import annotations

from pathlib import Path

from controlplane.binaries import program
from pytest_process import run_pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"


def test_the_charts_own_tests_pass():
    done = run_pytest(EXAMPLES, "-p", "no:asyncio", "helm-chart", HELM=str(program("helm")))
    assert "3 passed" in done.stdout, done.stdout + done.stderr
