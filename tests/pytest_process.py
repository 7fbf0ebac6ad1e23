"""pytest as a process of its own, for tests of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path | str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder there, with these options and environment variables."""
    # What looks for errors in destructors collects garbage ten times at the end, and modules whose assertions
    # are rewritten, ours among them, are imported more slowly: half a second each.
    spared = ["-pno:cacheprovider", "-pno:unraisableexception", "--assert=plain"]
    command = [sys.executable, "-m", "pytest", "-q", *spared, *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | env, capture_output=True, text=True, check=False
    )
