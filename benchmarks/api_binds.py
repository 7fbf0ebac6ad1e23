"""Writes a second over HTTPS: the real kube-apiserver with etcd, and ours, one after the other in one run.

    python benchmarks/api_binds.py [--pods 5000] [--connections 32]

A client in this process creates pods and then binds them, so many requests at a time; the server is a
process of its own. Ours keeps its objects in memory, and in a second turn on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.control_plane import ControlPlane
from stowplan.apiserver import ApiServer, Store
from stowplan.apiserver.durable import DurableStore
from stowplan.apiserver.http import make_certificate, serve
from stowplan.client.api import ApiClient
from stowplan.client.kubeconfig import load
from stowplan.embedded import kubeconfig

PODS = "/api/v1/namespaces/default/pods"


async def measure(name: str, config: Path, pods: int, connections: int) -> None:
    async with ApiClient(load(str(config)), qps=0) as api:
        await in_parallel((create(api, f"warm-{number}") for number in range(200)), connections)
        created = await timed((create(api, f"web-{number}") for number in range(pods)), connections)
        bound = await timed((bind(api, f"web-{number}") for number in range(pods)), connections)
    print(f"{name:40}{pods / created:>12,.0f} creates/s{pods / bound:>12,.0f} binds/s", flush=True)


async def timed(work: Iterable[Awaitable[object]], connections: int) -> float:
    began = time.perf_counter()
    await in_parallel(work, connections)
    return time.perf_counter() - began


async def in_parallel(work: Iterable[Awaitable[object]], connections: int) -> None:
    waiting = iter(work)

    async def go() -> None:
        for each in waiting:
            await each

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(go())


async def create(api: ApiClient, name: str) -> None:
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    await api.request(
        "POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )


async def bind(api: ApiClient, name: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    await api.request("POST", f"{PODS}/{name}/binding", body)


@contextmanager
def ours(folder: Path, *flags: str) -> Iterator[Path]:
    config = folder / "ours.kubeconfig"
    config.unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(config), *flags])
    try:
        while not config.exists():
            time.sleep(0.05)
        time.sleep(0.2)
        yield config
    finally:
        server.kill()
        server.wait()


async def be_ours(config: Path, data: Path | None) -> None:
    store, token = DurableStore(data) if data else Store(), secrets.token_urlsafe()
    async with serve(ApiServer(store), tls=make_certificate(), token=token) as front:
        address = f"https://{front.host}:{front.port}"
        with kubeconfig.written(config, server=address, certificate=front.certificate, token=token):
            await asyncio.Event().wait()


def main(pods: int, connections: int) -> None:
    def run(name: str, config: Path) -> None:
        asyncio.run(measure(name, config, pods, connections))

    with tempfile.TemporaryDirectory() as folder:
        with ours(Path(folder)) as config:
            run("Stowplan's, in memory", config)
        with ours(Path(folder), "--data", str(Path(folder, "data"))) as config:
            run("Stowplan's, on disk", config)
        control_plane = ControlPlane(Path(folder))
        control_plane.start()
        try:
            run("kube-apiserver with etcd", control_plane.kubeconfig())
        finally:
            control_plane.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(be_ours(given.serve, given.data))
    else:
        main(given.pods, given.connections)
