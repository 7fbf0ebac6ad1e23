"""`stowplan record` ended as the kubelet ends a pod."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from up_process import STOWPLAN, running_up


def ignore_sigint():
    """As a shell does for commands in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("number", "before"),
    [
        pytest.param(signal.SIGTERM, None, id="SIGTERM"),
        pytest.param(signal.SIGINT, None, id="SIGINT"),
        pytest.param(signal.SIGINT, ignore_sigint, id="SIGINT in the background"),
    ],
)
def test_a_recorder_ends_at_a_signal_and_keeps_its_trace(number, before, tmp_path):
    trace = tmp_path / "trace"
    with running_up(tmp_path, "--nodes", "2") as up:
        recorder = subprocess.Popen(
            [STOWPLAN, "record", str(trace), *up.config_flag],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )
        try:
            deadline = time.monotonic() + 60
            while not any(path.stat().st_size for path in trace.glob("**/*") if path.is_file()):
                assert time.monotonic() < deadline, "nothing was recorded"
                time.sleep(0.1)
            recorder.send_signal(number)
            _, said = recorder.communicate(timeout=30)
        finally:
            recorder.kill()
            recorder.wait()
    assert recorder.returncode == 0
    assert f" events in {trace}." in said
