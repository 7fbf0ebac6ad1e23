"""The commands of docs/policy-change.md, as they stand there, with kubectl."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.binaries import program

CHECKOUT = Path(__file__).parents[2]


def commands():
    text = (CHECKOUT / "docs" / "policy-change.md").read_text()
    found = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    return [each for each in found if not each.startswith("export ")]


class Shell:
    """Runs one command after another in a folder with `examples`; those that end in & go on."""

    def __init__(self, folder: Path) -> None:
        (folder / "examples").symlink_to(CHECKOUT / "examples")
        tools = (str(Path(sys.executable).parent), str(program("kubectl").parent), os.environ["PATH"])
        self.folder, self.running = folder, []
        self.environment = {**os.environ, "PATH": os.pathsep.join(tools), "HOME": str(folder)}
        self.environment["KUBECONFIG"] = str(folder / "stowplan.kubeconfig")

    def run(self, command: str) -> str:
        if command.endswith("&"):
            line = f"exec {command.removesuffix('&')}"
            output = (self.folder / f"background-{len(self.running)}.txt").open("w+")
            self.running.append((self._start(line, output), output))
            return ""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, line, output):
        return subprocess.Popen(
            line, shell=True, cwd=self.folder, env=self.environment, stdout=output, stderr=output
        )

    def end_of(self, place: int) -> str:
        """Wait for a command in the background; what it said."""
        process, output = self.running[place]
        assert process.wait(60) == 0
        output.seek(0)
        return output.read()

    def until(self, is_so) -> None:
        ends = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < ends
            time.sleep(0.2)

    def pods(self, jsonpath: str) -> str:
        return self.run(f"kubectl get pods -o jsonpath='{{.items[*].{jsonpath}}}'")

    def close(self) -> None:
        for process, output in self.running:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.close()


@pytest.fixture
def shell(tmp_path):
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def test_from_a_recording_to_a_better_configuration(shell):
    up, record, small, large, more, check, tune, compare, shadow, scale = commands()
    shell.run(up)
    log = shell.folder / "up.log"
    shell.until(lambda: log.exists() and "Press Ctrl-C" in log.read_text())
    shell.run(record)
    shell.until((shell.folder / "busy").exists)
    time.sleep(3)
    for command, number in ((small, 6), (large, 8), (more, 15)):
        shell.run(command)
        shell.until(lambda wanted=number: len(shell.pods("metadata.name").split()) == wanted)
        shell.until(lambda: len(shell.pods("spec.nodeName").split()) >= 6)
    assert "events in busy" in shell.end_of(1)
    assert "0 of 15 pods have another node." in shell.run(check)
    assert "is better than the base configuration" in shell.run(tune)
    compared = shell.run(compare)
    assert re.search(r"pods.pending +3 +0 ", compared), compared
    assert "<svg" in (shell.folder / "page.html").read_text()
    shell.run(shadow)
    time.sleep(10)
    shell.run(scale)
    said = shell.end_of(2)
    assert re.search(r"[12] decisions of the live scheduler were compared", said), said
    assert "By class: " in said, said
