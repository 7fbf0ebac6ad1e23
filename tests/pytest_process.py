"""pytest as a process of its own, for tests of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path | str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder there, with these options and environment variables."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | env, capture_output=True, text=True, check=False
    )
