"""`make demo`: what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "embedded" / "demo.py"


def test_every_pod_lands_where_its_plugins_say_and_one_nowhere():
    ended = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    rows = [line.split() for line in ended.stdout.splitlines()]
    for row in (
        ["trainer", "default-scheduler", "gpu-1", "Running"],
        ["testpod", "scorebylabel", "worker-1", "Running"],
        ["nginx", "secondary-scheduler", "worker-5", "Running"],
        ["warehouse", "default-scheduler", "-", "Pending"],
    ):
        assert row in rows
    assert "5 NodeResourcesFit: Insufficient cpu" in ended.stdout
