"""Every fault at every extension point: it is that pod's error, with the plugin's name, and all others go on.

One scheduler, as `stowplan run` starts it, goes through all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from hostile_plugins import AWAITED, BACKGROUND, CASES, PLUGINS, RAISED, REACHED, configuration

from make import make_pod
from stowplan.apiserver import ApiServer
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.embedded.pool import InProcess
from stowplan.framework.registry import Registry
from stowplan.scheduler.main import Service
from stowplan.scheduler.options import parse

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
SECONDS = 30.0
ONLY_LOGGED = ("OneNode.unreserve", "OneNode.post_bind", "OneNode.queueing_hint")
"""The pod's fate is decided already, or not by this point."""


class World:
    """A running scheduler, and what people see of it."""

    def __init__(self, service: Service, api: ApiClient, session: aiohttp.ClientSession, port: int) -> None:
        self.service, self.api, self._session, self._port = service, api, session, port

    async def until(self, read: Callable[[], Any]) -> Any:
        async with asyncio.timeout(SECONDS):
            while True:
                if found := await read():
                    return found
                await asyncio.sleep(0.004)

    async def create(self, name: str, scheduler: str, fault: str = "", **spec: Any) -> None:
        cpu = spec.pop("cpu", "10m")
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
        labels = {"fault": fault} if fault else {}
        plain = {"schedulerName": scheduler, "containers": [container], **spec}
        await self.api.request("POST", PODS, {"metadata": {"name": name, "labels": labels}, "spec": plain})

    async def pod(self, name: str) -> Json:
        found: Json = await self.api.get_json(f"{PODS}/{name}")
        return found

    async def bound(self, name: str) -> str:
        async def node() -> Any:
            return (await self.pod(name))["spec"].get("nodeName")

        found: str = await self.until(node)
        return found

    async def failure(self, name: str) -> Json:
        """The condition that says why the pod has no node."""

        async def condition() -> Any:
            found = (await self.pod(name)).get("status", {}).get("conditions", ())
            return next((each for each in found if each["type"] == "PodScheduled"), None)

        found: Json = await self.until(condition)
        return found

    async def note(self, name: str, text: str) -> str:
        """The first of the pod's warnings that has this text."""

        async def notes() -> Any:
            events = (await self.api.get_json(EVENTS))["items"]
            found = [each for each in events if each["regarding"]["name"] == name]
            said = [each["note"] for each in found if each["reason"] == "FailedScheduling"]
            return next((each for each in said if text in each), None)

        found: str = await self.until(notes)
        return found

    async def delete(self, *names: str) -> None:
        for name in names:
            with suppress(ApiError):
                await self.api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

        async def gone() -> bool:
            return not self.service.scheduler.handlers.pending.keys() & self._uids(names)

        await self.until(gone)

    def _uids(self, names: tuple[str, ...]) -> set[str]:
        pending = self.service.scheduler.handlers.pending
        return {uid for uid, pod in pending.items() if pod.name in names}

    async def livez(self) -> tuple[int, str]:
        url = f"https://127.0.0.1:{self._port}/livez?verbose"
        async with self._session.get(url, ssl=False) as response:
            return response.status, await response.text()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration()))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    registry = Registry.installed(classes=PLUGINS)
    flags = [f"--config={folder / 'config.yaml'}", f"--secure-port={port}", f"--cert-dir={folder}"]
    options = parse([*flags, "--bind-address=127.0.0.1"], registry=registry).options
    server = ApiServer()
    async with ApiClient(InProcess(server), qps=0) as api, aiohttp.ClientSession() as session:
        for number in range(3):
            amounts = {"cpu": "4", "memory": "8Gi", "pods": "100"}
            node = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": amounts}}
            await api.request("POST", "/api/v1/nodes", node)
        urgent = {"metadata": {"name": "urgent"}, "value": 100}
        await api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        service = Service(options, registry, InProcess(server), owns_process=False)
        running = asyncio.create_task(service.run())
        world = World(service, api, session, port)

        async def synced() -> bool:
            assert not running.done(), running.result()
            return service.is_synced and service.leader is None

        await world.until(synced)
        yield world
        assert not running.done(), "the scheduler has ended"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 30) == 0


def lines(caplog: Any, text: str) -> list[Json]:
    """The fields of log lines that name the plugin, pod or work in question."""
    found = [getattr(record, "fields", {}) for record in caplog.records]
    return [each for each in found if text in str(each.get("err", "")) or text in str(each.get("plugin", ""))]


def has_stack(found: list[Json], fault: str) -> bool:
    """Whether what was raised is told with its traceback, or counted after the same one."""
    if fault not in RAISED:
        return True
    frames = ("misbehave", "dig", "<lambda>", "cannot be shown")
    is_told = any(frame in each.get("stacktrace", "") for each in found for frame in frames)
    return is_told or any(each.get("repeated", 0) > 0 for each in found)


@pytest_asyncio.fixture(loop_scope="module")
async def tidy(world) -> AsyncIterator[None]:
    """No pods and no events are left over, also of a test that failed."""
    yield
    await world.api.request("DELETE", EVENTS)
    pods = (await world.api.get_json(PODS))["items"]
    await world.delete(*(each["metadata"]["name"] for each in pods))


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize(("method", "fault"), CASES, ids=lambda part: part)
async def test_a_fault_is_its_pods_alone(world, caplog, method, fault):
    caplog.set_level(logging.INFO, "stowplan")
    plugin, _, point = method.partition(".")
    profile = "default-scheduler" if plugin == "Sorter" else plugin
    name, other = (
        f"{method}-{fault}".lower().replace("_", "-"),
        f"fine-{method}-{fault}".lower().replace("_", "-"),
    )
    fillers: tuple[str, ...] = ()
    spec: Json = {}
    if point == "post_filter":
        spec = {"cpu": "1000"}
    elif point == "remove_pod":
        fillers = tuple(f"filler-{number}" for number in range(3))
        spec = {"cpu": "3", "priorityClassName": "urgent"}
        for each in fillers:
            await world.create(each, "default-scheduler", cpu="2")
            await world.bound(each)
    nominations, nominated = world.service.scheduler.queue.nominations, make_pod("nominated", priority=1000)
    nominations.remove(nominated)
    if point in ("add_pod", "clone"):  # which are called where a pod is nominated
        nominations.put(nominated, "node-0")
    await world.create(name, profile, f"{method}--{fault}", **spec)
    if point == "queueing_hint":
        await world.failure(name)
        await world.api.request(
            "PATCH",
            "/api/v1/nodes/node-1",
            {"metadata": {"labels": {"changed-for": name}}},
            content_type="application/merge-patch+json",
        )
    if method in ONLY_LOGGED:
        if point == "unreserve":
            assert (await world.failure(name))["message"].endswith("1 not permitted.")
        else:
            await world.bound(name)
        if point != "queueing_hint":  # whose lines are limited in number

            async def logged() -> Any:
                return lines(caplog, plugin)

            assert has_stack(await world.until(logged), fault)
    elif plugin == "Sorter":
        assert 'QueueSort plugin "Sorter"' in await world.note(name, "Sorter")
        await world.bound(name)
    else:
        expected = "Remembered" if point == "clone" else f'"{plugin}"'
        condition = await world.failure(name)
        assert expected in condition["message"]
        assert len(condition["message"]) < 1500
        assert expected in await world.note(name, expected)
        assert "nodeName" not in (await world.pod(name))["spec"]
        assert has_stack(lines(caplog, expected), fault)
    assert (name, fault) in REACHED, "the fault was never carried out"
    await world.create(other, profile)
    await world.bound(other)
    status, text = await world.livez()
    assert (status, "[+]core-tasks ok" in text) == (200, True)
    assert world.service.leader is None
    await world.delete(name, other, *fillers)

    async def nothing_held() -> bool:
        return world.service.scheduler.cluster.assumed_count == 0

    await world.until(nothing_held)


async def test_there_are_enough_of_them():
    assert len(CASES) >= 170
    assert len(set(CASES)) == len(CASES)


async def test_background_work_that_fails_is_started_over(world, caplog):
    caplog.set_level(logging.INFO, "stowplan")

    began = len(REACHED)

    async def all_failed_again() -> bool:
        told = [getattr(record, "fields", {}) for record in caplog.records]
        works = {
            each["work"] for each in told if (each.get("stacktrace") or "repeated" in each) and "work" in each
        }
        return works >= {f"plugin {each}" for each in BACKGROUND}

    await world.until(all_failed_again)
    assert {("run", how) for how in RAISED | AWAITED} <= set(REACHED[began:])
    assert (await world.livez())[0] == 200


async def test_the_lease_is_held_to_the_end(world):
    lease = await world.api.get_json(LEASE)
    assert lease["spec"]["holderIdentity"]
    assert lease["spec"]["leaseTransitions"] == 0
