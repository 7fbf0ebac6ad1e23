"""Commands in a terminal: colours, its width, completion in a shell, suggestions for misspelt commands."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stowplan.cli import COMMANDS, stowplan

EXAMPLE = Path(__file__).parents[2] / "examples" / "node-crd-resource-fit"
EXPLAIN = ["explain", "nginx", "-f", EXAMPLE, "--config", EXAMPLE / "scheduler.yaml"]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(*arguments: object, **environment: str) -> str:
    """What a command prints to a terminal."""
    command = [sys.executable, "-m", "stowplan.cli", *map(str, arguments)]
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**clean, "TERM": "xterm", **environment}
    ):
        os.close(theirs)
        printed = bytearray()
        try:
            while part := os.read(ours, 4096):
                printed += part
        except OSError:  # how Linux says that nobody has the terminal open any more
            pass
        os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def test_colours_in_a_terminal_alone():
    shown = in_terminal(*EXPLAIN)
    assert "\x1b[32m\x1b[1mPod default/nginx goes to worker-" in shown
    assert re.search(r"^\x1b\[1mNODE +TOTAL", shown, re.MULTILINE)
    plain = STYLE.sub("", shown)
    assert in_terminal(*EXPLAIN, NO_COLOR="1") == plain
    assert in_terminal(*EXPLAIN, TERM="dumb") == plain
    piped = subprocess.run(
        [sys.executable, "-m", "stowplan.cli", *map(str, EXPLAIN)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},
    )
    assert "\x1b" not in piped.stdout


def test_errors_are_marked_in_a_terminal():
    assert "\x1b[31m\x1b[1mstowplan:\x1b[0m" in in_terminal("config", "check", "/nowhere.yaml")


@pytest.mark.parametrize("columns", [50, 100])
def test_text_is_wrapped_to_the_terminal(columns):
    shown = STYLE.sub("", in_terminal(*EXPLAIN, COLUMNS=str(columns)))
    assert columns - 25 < max(map(len, shown.splitlines())) <= columns


def test_the_help_of_run_fits_the_terminal():
    assert max(map(len, in_terminal("run", "--help", COLUMNS="70").splitlines())) <= 70


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        pytest.param(["explian"], "No such command 'explian'. Did you mean 'explain'?", id="a command"),
        pytest.param(["config", "chek"], "Did you mean 'check'?", id="a command of a group"),
        pytest.param(["xyzzy"], "No such command 'xyzzy'.\n", id="nothing like it"),
    ],
)
def test_a_misspelt_command(arguments, hint):
    run = CliRunner().invoke(stowplan, arguments)
    assert (run.exit_code, hint in run.stderr) == (2, True), run.stderr


def completions(words: str) -> list[str]:
    """What bash is told for these words, the last of which is to be completed."""
    parts = words.split(" ")
    environment = {
        **os.environ,
        "_STOWPLAN_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
    }
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'stowplan'; from stowplan.cli import main; main()",
    ]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param("stowplan ", [f"plain,{name}" for name in sorted(COMMANDS)], id="all commands"),
        pytest.param("stowplan ex", ["plain,explain", "plain,extender"], id="commands"),
        pytest.param("stowplan config c", ["plain,check", "plain,convert"], id="commands of a group"),
        pytest.param("stowplan crd --k", ["plain,--kind"], id="an option"),
        pytest.param("stowplan completion ", ["plain,bash", "plain,zsh", "plain,fish"], id="a choice"),
        pytest.param("stowplan run --write", ["plain,--write-config-to"], id="a flag of run"),
        pytest.param("stowplan run --config=/etc", ["file,/etc"], id="a file"),
        pytest.param("stowplan explain --config ", ["file,"], id="the file of an option"),
    ],
)
def test_completion(words, found):
    assert completions(words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(shell, tmp_path):
    run = CliRunner().invoke(stowplan, ["completion", shell], catch_exceptions=False)
    assert run.exit_code == 0
    assert "_STOWPLAN_COMPLETE" in run.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(run.stdout)
    read = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
