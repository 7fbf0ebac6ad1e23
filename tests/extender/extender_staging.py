"""An extender at work on a free port, without an API server: what it sees is told by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, NotFound
from stowplan.config import load
from stowplan.extender.options import ExtenderOptions
from stowplan.extender.service import Extender
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.http11 import client as http_client

Json = dict[str, Any]
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class Reply(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RecordingApi:
    """Takes bindings and keeps them; `refuse` is what they fail with."""

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.pods: dict[str, Json] = {}
        self.refuse: ApiError | None = None
        self.stored: Any = None

    async def wait_for_capacity(self) -> None: ...

    async def open_ahead(self, count: int) -> None: ...

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        await asyncio.sleep(0)
        if self.refuse is not None:
            raise self.refuse
        self.bound[pod.key] = node_name

    async def patch_pod_status(self, pod: Pod, patch: Json) -> None:
        pass

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> http_client.Reply:
        if path not in self.pods:
            raise NotFound(404, "NotFound", f"nothing at {path}")
        return http_client.Reply(200, msgspec.json.encode(self.pods[path]))


class Stage:
    def __init__(self, extender: Extender, api: RecordingApi, port: int) -> None:
        self.extender, self.api, self.port = extender, api, port

    def see(self, *objects: Json) -> None:
        """The watch brings objects that are new."""
        assert self.extender.scheduler is not None
        for plain in objects:
            self.extender.scheduler.handlers.on_event("added", None, object_of(plain))

    async def ask(self, path: str, body: Any = b"", *, method: str = "POST") -> Reply:
        """A request on a connection of its own; what is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        return await self.send(head.encode() + data)

    async def send(self, request: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await reply_of(reader)
        finally:
            writer.close()


async def reply_of(reader: asyncio.StreamReader) -> Reply:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return Reply(int(head.split()[1]), await reader.readexactly(length))


@asynccontextmanager
async def serving(
    *objects: Json,
    plugins: dict[str, type[Plugin]] | None = None,
    profiles: list[Json] | None = None,
    is_synced: bool = True,
    **options: Any,
) -> AsyncIterator[Stage]:
    """Serves the profiles, one called `p` of the default plugins unless said otherwise."""
    registry = Registry.installed(classes=plugins)
    config = load({**V1, "profiles": profiles or [{"schedulerName": "p"}]}, registry).config
    api = RecordingApi()
    given = ExtenderOptions(**{"config": config, "address": "127.0.0.1", "port": 0} | options)
    extender = Extender(given, api, registry=registry)  # type: ignore[arg-type]
    async with extender.listening() as server:
        stage = Stage(extender, api, server.port)
        stage.see(*objects)
        assert extender.scheduler is not None
        extender.scheduler.follower.is_synced = is_synced
        yield stage


@asynccontextmanager
async def serving_functions(**options: Any) -> AsyncIterator[Stage]:
    """Serves functions, without a view of any cluster."""
    extender = Extender(ExtenderOptions(**{"address": "127.0.0.1", "port": 0} | options))
    async with extender.listening() as server:
        yield Stage(extender, RecordingApi(), server.port)


def alone(*names: str, **more: Any) -> Json:
    """A profile `p` of these plugins, without the default filters and scores."""
    return {
        "schedulerName": "p",
        "plugins": {
            "multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": [{"name": name} for name in ("PrioritySort", "DefaultBinder", *names)],
            }
        },
        **more,
    }


def node(name: str, *, cpu: str = "4", **metadata: Any) -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": name, **metadata},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }


def pod(name: str = "a", *, cpu: str = "1", on: str = "", **spec: Any) -> Json:
    container = {"name": "c", "image": "web", "resources": {"requests": {"cpu": cpu}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [container], "nodeName": on, **spec},
    }


def asking(about: Json, *names: str) -> Json:
    """ExtenderArgs as kube-scheduler sends them to an extender that knows the nodes."""
    return {"Pod": about, "Nodes": None, "NodeNames": list(names)}


def binding(about: Json, node_name: str) -> Json:
    meta = about["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node_name,
    }
