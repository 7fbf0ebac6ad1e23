"""docs/groups.md: what it shows is what the commands print."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from up_process import STOWPLAN, running_up

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/groups.md").read_text()


def block(command):
    """What the page shows after a command."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, command
    return found[1]


def run(command, *more):
    return subprocess.run(
        [STOWPLAN, *shlex.split(command)[1:], *more], capture_output=True, text=True, cwd=ROOT, check=False
    )


def ageless(text):
    return re.sub(r"pending for \d+ s", "pending for N s", text)


def test_a_job_as_a_gang():
    (command,) = re.findall(r"^\$ (stowplan whatif -f .*)$", TEXT, re.MULTILINE)
    assert run(command).stdout == block(command)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    (command,) = re.findall(r"^\$ stowplan up (.*?)$(?!.*\\$)", TEXT.replace("\\\n", ""), re.MULTILINE)
    words = [str(ROOT / each) if each.startswith("examples/") else each for each in shlex.split(command)]
    with running_up(tmp_path_factory.mktemp("up"), *words) as found:
        yield found


def test_a_gang_that_must_fit_into_one_rack(up):
    command = "stowplan explain group train --domains"
    shown, ends = ageless(block(command)), time.monotonic() + 30
    while ageless(done := run(command, *up.config_flag).stdout) != shown:
        assert time.monotonic() < ends, done
        time.sleep(0.5)
    command = "stowplan whatif --more-nodes b1"
    assert run(command, *up.config_flag).stdout.startswith(block(command).partition("…")[0].rstrip())
