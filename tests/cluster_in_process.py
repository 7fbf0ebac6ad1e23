"""A cluster in this process: our API server without sockets, controllers, kubelets, a simple binder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from stowplan.apiserver import ApiServer
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.controllers.clock import Clock
from stowplan.controllers.running import Controllers
from stowplan.embedded.pool import InProcess
from stowplan.kubelet import Behaviour, NodeTemplate, SimulatedKubelets

Json = dict[str, Any]
MERGE = "application/merge-patch+json"


class Cluster:
    def __init__(self, api: ApiClient, clock: Clock, behaviour: Behaviour, **options: Any) -> None:
        self.api, self.clock = api, clock
        self.kubelets = SimulatedKubelets(api, clock=clock, behaviour=behaviour)
        grace = lambda: self.kubelets.grace_seconds  # noqa: E731
        self.controllers = Controllers(api, clock, **{"node_grace_seconds": grace, **options})

    async def create(self, path: str, *items: Json) -> None:
        for item in items:
            await self.api.request("POST", path, item)

    async def patch(self, path: str, change: Json) -> None:
        await self.api.request("PATCH", path, change, content_type=MERGE)

    async def delete(self, path: str, **options: Any) -> None:
        await self.api.request("DELETE", path, options or None)

    async def get(self, path: str) -> Json:
        found: Json = await self.api.get_json(path)
        return found

    async def items(self, path: str) -> list[Json]:
        return (await self.get(path))["items"]

    async def names(self, path: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in await self.items(path))

    async def until(self, read: Any, is_so: Callable[[Any], bool], seconds: float = 10.0) -> Any:
        """Waits until what `read`, a path or a coroutine function, answers is as wanted."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                found = await (self.get(read) if isinstance(read, str) else read())
            except Exception as error:
                found = error
            if not isinstance(found, Exception) and is_so(found):
                return found
            assert asyncio.get_running_loop().time() < end, f"still not so: {found!r}"
            await asyncio.sleep(0.02)

    async def bind_all(self) -> None:
        """Puts every pod where its affinity says, or on the first node that is ready."""
        while True:
            with suppress(ApiError):  # the API server is away, or a pod is gone by now
                nodes = [
                    each["metadata"]["name"]
                    for each in await self.items("/api/v1/nodes")
                    if _takes_pods(each)
                ]
                for pod in await self.items("/api/v1/pods?fieldSelector=spec.nodeName="):
                    await self._bind(pod, nodes)
            await asyncio.sleep(0.02)

    async def _bind(self, pod: Json, nodes: list[str]) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        wanted = msgspec.json.encode(spec.get("affinity", {})).decode()
        fitting = [name for name in nodes if "matchFields" not in wanted or f'"{name}"' in wanted]
        if fitting and "deletionTimestamp" not in meta and "schedulingGates" not in spec:
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
            target = {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": fitting[0]}}
            await self.api.request("POST", path, target)


def _takes_pods(node: Json) -> bool:
    return not any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", ()))


@asynccontextmanager
async def running_cluster(*arguments: Any, **options: Any) -> AsyncIterator[Cluster]:
    """On an API server of its own."""
    async with (
        ApiClient(InProcess(ApiServer()), qps=0) as api,
        at_work(api, *arguments, **options) as cluster,
    ):
        yield cluster


@asynccontextmanager
async def at_work(
    api: ApiClient,
    nodes: NodeTemplate | None = None,
    behaviour: Behaviour | None = None,
    speed: float = 1.0,
    binds: bool = True,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """Kubelets, controllers and, if no scheduler is at hand, the binder on any API server."""
    clock = Clock(speed)
    cluster = Cluster(api, clock, behaviour or Behaviour(), **options)
    await cluster.kubelets.add((nodes or NodeTemplate(count=2)).nodes(clock.now()))
    tasks = [asyncio.create_task(work) for work in (cluster.controllers.run(), cluster.kubelets.run())]
    if binds:
        tasks.append(asyncio.create_task(cluster.bind_all()))
    try:
        yield cluster
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
