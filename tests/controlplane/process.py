"""One program that runs beside the tests, its output in a file; it can be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class ProgramError(Exception):
    """The program ended or never became ready; the message ends with the last lines it wrote."""


class Process:
    def __init__(self, command: Sequence[str | Path], log: Path, is_ready: Callable[[], bool]) -> None:
        self.command, self.log, self.is_ready = command, log, is_ready
        self.server = ""
        """Where it answers, if it does."""
        self.exit_status: int | None = None
        """Of its last run, once that was stopped or killed."""
        self._running: subprocess.Popen[bytes] | None = None
        self._said_before = log.stat().st_size if log.exists() else 0

    @property
    def pid(self) -> int:
        if self._running is None:
            raise ProgramError(f"{self.name} is not running")
        return self._running.pid

    @property
    def output(self) -> str:
        """What it has written, without what others wrote into the same file before."""
        return self.log.read_bytes()[self._said_before :].decode(errors="replace")

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    def start(self, *, seconds: float = 120) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(
                lambda: self._fail_if_ended() or self.is_ready(), self._explain("is not ready"), seconds
            )
        except BaseException:
            self.kill()  # or it would disturb the tests after this one
            raise

    def stop(self) -> None:
        """Ask it to end, and end it after half a minute if it does not."""
        self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal that does not end it."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.send_signal(how)
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        self.exit_status = running.returncode

    def _fail_if_ended(self) -> bool:
        if self._running is not None and self._running.poll() is not None:
            raise ProgramError(self._explain(f"ended with {self._running.returncode}")())
        return False

    def _explain(self, what: str) -> Callable[[], str]:
        return lambda: (
            f"{self.name} {what}; it wrote:\n"
            + "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        )


def wait_until(is_so: Callable[[], bool], explain: Callable[[], str], seconds: float) -> None:
    """Wait for something outside this process; there is no clock of ours to turn."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise ProgramError(explain())
        time.sleep(0.1)
