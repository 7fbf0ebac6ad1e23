"""Processes whose disk fills and empties again, or whose memory somebody tries to fill."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.client.kubeconfig import load
from up_process import running_up

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


async def test_it_survives_a_full_disk_and_goes_on(disk: Path, tmp_path: Path) -> None:
    with running_up(tmp_path, "--nodes=3", f"--data={disk / 'data'}") as up:
        async with ApiClient(load(str(up.kubeconfig)), qps=0) as api:
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
            rejected = None
            for number in range(300):
                try:
                    body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 20_000}}
                    await api.request("POST", CONFIG_MAPS, body)
                except ApiError as error:
                    rejected = error
                    break
            assert rejected is not None
            assert rejected.status == 507
            assert "free some space" in rejected.message
            assert up.process.poll() is None
            filler.unlink()
            await api.request("POST", PODS, pod("after"))
            for _ in range(200):
                found = await api.get_json(f"{PODS}/after")
                if found["spec"].get("nodeName"):
                    break
                await asyncio.sleep(0.1)
            assert found["spec"]["nodeName"]


REWRITER = """
import asyncio, pathlib
from stowplan.apiserver import ApiServer, Request, Store

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    server = ApiServer(Store(max_log_bytes=30_000_000))
    before = resident()
    for number in range(250):
        body = {"metadata": {"name": "m"}, "data": {"x": f"{number}" + "x" * 1_000_000}}
        target = "/api/v1/namespaces/default/configmaps" + ("/m" if number else "")
        answer = await server.handle(Request.of("PUT" if number else "POST", target, body))
        assert answer.status in (200, 201)
    print(resident() - before)

asyncio.run(main())
"""


def test_rewriting_a_large_object_does_not_fill_the_memory() -> None:
    """A quarter of a gigabyte is written, of which a megabyte is left."""
    done = subprocess.run([sys.executable, "-c", REWRITER], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 120_000_000
