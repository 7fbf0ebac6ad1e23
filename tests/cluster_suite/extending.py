"""`stowplan extender` at work beside a kube-scheduler, and what the pods' events say."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from controlplane.control_plane import SCHEDULER, ControlPlane, free_ports
from controlplane.process import Process

Json = dict[str, Any]
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
COMMAND = (sys.executable, "-m", "stowplan.cli", "extender")


class Serving:
    """An extender with the flags it was started with."""

    def __init__(self, process: Process, flags: Sequence[str], port: int) -> None:
        self.process, self._flags, self.port = process, flags, port

    def stanza(self, *words: str, scheme: str = "http", path: str = "") -> list[Json]:
        """What `stowplan extender config` says kube-scheduler needs."""
        url = f"--url={scheme}://127.0.0.1:{self.port}{path}"
        done = subprocess.run(
            [*COMMAND, *self._flags, "config", url, *words], capture_output=True, check=True
        )
        found: list[Json] = yaml.safe_load(done.stdout)["extenders"]
        return found


@contextmanager
def extending(
    control_plane: ControlPlane,
    folder: Path,
    *flags: str,
    plugins: str = "",
    profile: Json | None = None,
    is_following: bool = True,
) -> Iterator[Serving]:
    """Serves a profile `p` with the plugins of this source text, or what the flags say."""
    (port, health) = free_ports(2)
    shared = list(flags)
    if profile is not None:
        (folder / "plugins").mkdir(exist_ok=True)
        (folder / "plugins" / "rules.py").write_text(plugins)
        config = folder / "extender.json"
        document = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        config.write_text(json.dumps({**document, "profiles": [{"schedulerName": "p", **profile}]}))
        shared += [f"--plugin-dir={folder / 'plugins'}", f"--config={config}"]
    if is_following:
        shared.append(f"--kubeconfig={control_plane.kubeconfig(SCHEDULER)}")
    serve = ["--address=127.0.0.1", f"--port={port}", f"--health-port={health}", "--v=4"]
    process = Process([*COMMAND, *shared, *serve], folder / "extender.log", lambda: _is_ready(health))
    process.start(seconds=30)
    try:
        yield Serving(process, shared, port)
    finally:
        process.stop()


def alone(*names: str) -> Json:
    """A profile of these plugins only, besides those that every profile must have."""
    enabled = [{"name": name} for name in ("PrioritySort", "DefaultBinder", *names)]
    return {"plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}}}


def notes(control_plane: ControlPlane, name: str, reason: str = "FailedScheduling") -> list[str]:
    """What the events of a pod say."""
    items = control_plane.request("GET", EVENTS)["items"]
    return [each["note"] for each in items if each["regarding"]["name"] == name and each["reason"] == reason]


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
