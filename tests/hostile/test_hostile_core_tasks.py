"""The end of any part of the scheduler: the process fails, /livez says so, and the lease is given up."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from stowplan.apiserver import ApiServer
from stowplan.apiserver.http import serve
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.embedded.pool import InProcess
from stowplan.framework.registry import Registry
from stowplan.scheduler.main import Service
from stowplan.scheduler.options import parse

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
CORE_TASKS = [
    "scheduling",
    "queue flushes",
    "watch of pods",
    "watch of nodes",
    "watch of persistentvolumeclaims",
    "watches of plugins' kinds",
    "events of default-scheduler",
    "sending events",
    "counts of events",
    "scheduler",
    "signals",
    "plugin files",
    "leader election",
]


class SlowLease(InProcess):
    """An API server that takes its time over a lease once it is told to, so that the end can be watched."""

    is_slow = False

    def open(self) -> Any:
        pool, connection = super().open(), self

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(pool, name)

            async def request(self, method: str, path: str, *args: Any, **options: Any) -> Any:
                if connection.is_slow and method == "PUT" and "/leases/" in path:
                    await asyncio.sleep(0.5)
                return await pool.request(method, path, *args, **options)

        return Slow()


async def until(is_so: Callable[[], Any], seconds: float = 20.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := is_so()):
            await asyncio.sleep(0.005)
        return found


def task_named(name: str) -> asyncio.Task[Any]:
    found = [task for task in asyncio.all_tasks() if task.get_name() == name]
    assert found, f"no task is named {name!r}"
    return found[0]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def holder_of(api: ApiClient) -> str:
    try:
        lease = await api.get_json(f"{LEASES}/kube-scheduler")
    except ApiError:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")  # of the first scheduler, for all others, too


@pytest.mark.parametrize("name", CORE_TASKS)
async def test_the_end_of_a_core_task_is_the_end_of_the_process(tmp_path, certificates, caplog, name):
    caplog.set_level(logging.INFO, "stowplan")
    config, port = tmp_path / "config.yaml", free_port()
    config.write_text(yaml.safe_dump(V1))
    flags = [f"--config={config}", f"--secure-port={port}", f"--cert-dir={certificates}"]
    options = parse([*flags, "--bind-address=127.0.0.1"]).options
    server = ApiServer()
    connection, url = SlowLease(server), f"https://127.0.0.1:{port}/livez?verbose"
    async with ApiClient(InProcess(server), qps=0) as api:
        service = Service(options, Registry.installed(), connection, owns_process=False)
        running = asyncio.create_task(service.run())
        await until(lambda: service.is_synced and service.leader is None)
        assert await holder_of(api)
        connection.is_slow = True
        task_named(name).cancel()
        seen = ""
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while "[-]core-tasks failed" not in seen:
                assert not running.done(), "it ended without a word"
                async with session.get(url, ssl=False) as response:
                    seen = await response.text()
                await asyncio.sleep(0.02)
        assert await asyncio.wait_for(running, 20) == 1
        assert await holder_of(api) == ""
        told = [getattr(each, "fields", {}) for each in caplog.records if each.levelno == logging.ERROR]
        assert any(name in str(each.get("err")) for each in told)


DEEDS = {
    "cancels all tasks": """
        for task in asyncio.all_tasks():
            task.cancel()
        """,
    "exits in a task of its own": """
        async def leave():
            sys.exit(0)
        asyncio.get_running_loop().create_task(leave())
        """,
    "exits in a callback": "asyncio.get_running_loop().call_soon(sys.exit, 0)",
    "stops the event loop": "asyncio.get_running_loop().stop()",
    "cancels all, and its own task and thread go on": """
        async def stay():
            while True:
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    pass
        self.task = asyncio.get_running_loop().create_task(stay())
        threading.Thread(target=time.sleep, args=(600,)).start()
        for task in asyncio.all_tasks() - {self.task}:
            task.cancel()
        """,
}
PLUGIN = """
import asyncio
import sys
import threading
import time

from stowplan import Plugin


class Deed(Plugin):
    def filter(self, state, pod, node):
        if pod.name == "trigger":
            self.do()

    def do(self):
"""


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_plugin_that_ends_us_cannot_do_so_in_silence(tmp_path, deed):
    """The process ends with a failure and another may lead at once."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    body = textwrap.indent(textwrap.dedent(DEEDS[deed]).strip(), " " * 8)
    (plugins / "deed.py").write_text(f"{PLUGIN}{body}\n")
    enabled = {"multiPoint": {"enabled": [{"name": "Deed"}]}}
    config, kubeconfig = tmp_path / "config.yaml", tmp_path / "kubeconfig"
    server = ApiServer()
    async with serve(server) as front, ApiClient(InProcess(server), qps=0) as api:
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{front.port}"}}
        context = {"contexts": [{"name": "x", "context": {"cluster": "c"}}], "current-context": "x"}
        kubeconfig.write_text(yaml.safe_dump({"clusters": [cluster]} | context))
        connection = {"clientConnection": {"kubeconfig": str(kubeconfig)}}
        config.write_text(yaml.safe_dump(V1 | connection | {"profiles": [{"plugins": enabled}]}))
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "100"}
        node = {"metadata": {"name": "n"}, "status": {"allocatable": amounts}}
        await api.request("POST", "/api/v1/nodes", node)
        stowplan = Path(sys.executable).with_name("stowplan")
        flags = [f"--config={config}", f"--plugin-dir={plugins}", "--secure-port=0"]
        log = tmp_path / "log"
        with log.open("w") as stream:
            process = await asyncio.create_subprocess_exec(stowplan, "run", *flags, stderr=stream)
        try:
            await until(lambda: "Starting to schedule" in log.read_text(), 60)
            assert await holder_of(api)
            containers = [{"name": "c", "image": "i"}]
            pod = {"metadata": {"name": "trigger"}, "spec": {"containers": containers}}
            await api.request("POST", "/api/v1/namespaces/default/pods", pod)
            assert await asyncio.wait_for(process.wait(), 60) == 1, log.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert await holder_of(api) == "", log.read_text()
        assert "exiting" in log.read_text()
