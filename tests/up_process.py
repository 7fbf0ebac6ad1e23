"""`stowplan up` as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOWPLAN = str(Path(sys.executable).parent / "stowplan")


class Up:
    """Running and ready; `said` is all that it has printed by then, and in the end all of it."""

    def __init__(self, process: subprocess.Popen[str], kubeconfig: Path, said: str) -> None:
        self.process, self.kubeconfig, self.said = process, kubeconfig, said

    @property
    def seconds(self) -> float:
        """How long it took to be ready, by its own word."""
        found = re.search(r"Ready in ([\d.]+) s", self.said)
        assert found, self.said
        return float(found[1])

    @property
    def scheduler(self) -> str:
        found = re.search(r"Scheduler: (\S+)", self.said)
        return found[1] if found else self.server

    @property
    def server(self) -> str:
        found = re.search(r" at (https://\S+)", self.said)
        assert found, self.said
        return found[1]

    @property
    def page(self) -> str:
        found = re.search(r"Web page: (\S+)", self.said)
        assert found, self.said
        return found[1]

    @property
    def config_flag(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_up(folder: Path, *flags: str) -> Iterator[Up]:
    """Ends as Ctrl-C ends it, which must be clean."""
    kubeconfig = folder / "up.kubeconfig"
    command = [STOWPLAN, "up", "--kubeconfig", str(kubeconfig), *flags]
    errors = folder / "up.errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while "Press Ctrl-C to stop." not in said:
            line = process.stdout.readline()
            assert line, f"{said}{errors.read_text()}"
            said += line
        up = Up(process, kubeconfig, said)
        yield up
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0, errors.read_text()
            assert "Traceback" not in errors.read_text()
            up.said += process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
