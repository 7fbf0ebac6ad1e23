"""A chart installed by the real helm, as examples/testing/helm-chart tests one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from controlplane.binaries import program

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"


def test_the_charts_own_tests_pass():
    env = {**os.environ, "HELM": str(program("helm"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "helm-chart",
    ]
    done = subprocess.run(command, cwd=EXAMPLES, env=env, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
