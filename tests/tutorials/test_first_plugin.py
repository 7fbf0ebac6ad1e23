"""The commands of docs/tutorials/first-plugin.md, run as printed, print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-plugin.md"


def commands():
    """Each command of the page with what it prints."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        command, _, printed = block.partition("\n")
        yield command.removeprefix("$ "), printed


def as_pattern(printed):
    """The page writes … for the rest of a line that is never the same."""
    return "\n".join(re.escape(line).replace("…", ".*") for line in printed.splitlines())


def test_from_nothing_to_a_placed_pod_in_five_commands(tmp_path):
    steps = list(commands())
    assert 4 <= len(steps) <= 5
    scripts = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COLUMNS"))},
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",
    }
    for command, printed in steps:
        run = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        assert re.fullmatch(as_pattern(printed), run.stdout.rstrip("\n")), f"{command}\n{run.stdout}"
    assert any("goes to node-b" in printed for _, printed in steps)
