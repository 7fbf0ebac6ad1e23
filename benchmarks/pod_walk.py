"""The files of src/stowplan that run while `stowplan run` schedules one pod.

    python benchmarks/pod_walk.py [--functions]

An API server runs in a process of its own, with TLS and a token; the scheduler runs here with its default
configuration. After some pods to warm up, a pod with new requests is created. Every function of ours that is
called from then on counts, until the pod is bound, the watch has confirmed it, and its event and decision are
written. That includes what runs once a second. Files of plugins are counted separately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import stowplan
from stowplan.framework.registry import Registry
from stowplan.scheduler.main import Service
from stowplan.scheduler.options import parse

SOURCE = str(Path(stowplan.__file__).parent)
PODS = "/api/v1/namespaces/default/pods"
TOKEN = "walk"
NODES, WARM_UP = 20, 5
WAIT_SECONDS = 60


class Calls:
    """The functions of ours that are called in this thread while in its `with`, by file."""

    def __init__(self) -> None:
        self.by_file: dict[str, set[str]] = {}

    def __enter__(self) -> Calls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(SOURCE):
            self.by_file.setdefault(os.path.relpath(name, SOURCE), set()).add(frame.f_code.co_qualname)


async def trace(folder: Path) -> Calls:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    certificate = folder / "ca.crt"
    script = str(Path(__file__).with_name("embedded_api_server.py"))
    server = subprocess.Popen([sys.executable, script, str(port), str(certificate), TOKEN])
    try:
        await until(lambda: is_listening(port))
        return await trace_on(f"https://127.0.0.1:{port}", certificate, folder)
    finally:
        server.terminate()
        server.wait()


async def trace_on(url: str, certificate: Path, folder: Path) -> Calls:
    trust = ssl.create_default_context(cafile=str(certificate))

    async def create(path: str, body: object) -> None:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, context=trust).close())

    for number in range(NODES):
        await create("/api/v1/nodes", node(f"node-{number}"))
    options = parse(["--secure-port=0", f"--config={write_config(url, certificate, folder)}"]).options
    service = Service(options, Registry.installed())
    task = asyncio.create_task(service.run())
    await until(lambda: service.is_synced)

    async def schedule(name: str, cpu: str) -> None:
        """Return when the pod is bound and the watch has confirmed it."""
        count = bound_count(service)
        await create(PODS, pod(name, cpu))
        await until(lambda: bound_count(service) > count)

    for number in range(WARM_UP):
        await schedule(f"warm-{number}", "100m")
    with Calls() as calls:
        await schedule("traced", "200m")
        await asyncio.sleep(1.5)  # the event is sent, and the decision packed, within a second
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    return calls


def bound_count(service: Service) -> int:
    cluster = service.scheduler.cluster if service.scheduler else None
    return 0 if cluster is None else sum(not cluster.is_assumed(each) for each in cluster.pods())


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


def is_listening(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def write_config(url: str, certificate: Path, folder: Path) -> Path:
    cluster = {"server": url, "certificate-authority": str(certificate)}
    kubeconfig, config = folder / "kubeconfig", folder / "scheduler.yaml"
    plain = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(plain))
    plain = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
    }
    config.write_text(json.dumps(plain))
    return config


def node(name: str) -> dict[str, object]:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, cpu: str) -> dict[str, object]:
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    return {
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web", "resources": resources}]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--functions", action="store_true", help="also list the functions of each file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        calls = asyncio.run(trace(Path(folder)))
    others = {file: found for file, found in sorted(calls.by_file.items()) if not file.startswith("plugins")}
    for file, found in others.items():
        print(f"{file:32}{len(found):>4}", ", ".join(sorted(found)) if arguments.functions else "")
    packages = {Path(file).parts[0] for file in others if "/" in file}
    print(
        f"{len(others)} files in {len(packages)} packages and {sum(map(len, others.values()))} functions,"
        f" besides {len(calls.by_file) - len(others)} files of plugins"
    )


if __name__ == "__main__":
    main()
