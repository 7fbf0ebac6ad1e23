"""A cluster in this process with `stowplan shadow` beside it; tests bind pods as a live scheduler would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from stowplan.embedded.cluster import EmbeddedCluster
from stowplan.framework.registry import Registry
from stowplan.replay.shadow import ShadowService, Verdict
from stowplan.scheduler.options import parse

Json = dict[str, Any]
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PODS = "/api/v1/namespaces/default/pods"
PACKING = {
    "name": "NodeResourcesFit",
    "args": {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}},
}
ONLY_FIT = {
    "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [
        {"name": "PrioritySort"}, {"name": "NodeResourcesFit"}, {"name": "NodeUnschedulable"},
        {"name": "NodeName"}, {"name": "SchedulingGates"}, {"name": "DefaultBinder"},
    ]}},
}  # fmt: skip


def node(name: str, cpu: str = "8", **spec: Any) -> Json:
    room = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}


def pod(name: str, cpu: str = "1", **spec: Any) -> Json:
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **spec},
    }


class World:
    """A cluster, with a shadow beside it."""

    def __init__(self, cluster: EmbeddedCluster, service: ShadowService, verdicts: list[Verdict]) -> None:
        self.cluster, self.service, self.verdicts = cluster, service, verdicts

    async def create(self, *items: Json) -> None:
        for item in items:
            path = "/api/v1/nodes" if item["kind"] == "Node" else PODS
            await self.cluster.api.request("POST", path, item)

    async def bind(self, name: str, node_name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.cluster.api.request("POST", f"{PODS}/{name}/binding", body)

    async def reject(self, name: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}
        await self.cluster.api.request(
            "PATCH",
            f"{PODS}/{name}/status",
            {"status": {"conditions": [condition]}},
            content_type="application/strategic-merge-patch+json",
        )

    async def resize(self, name: str, cpu: str) -> None:
        """Give a node another number of CPUs, and wait until the shadow knows."""
        patch = {"status": {"capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu}}}
        path, kind = f"/api/v1/nodes/{name}/status", "application/merge-patch+json"
        await self.cluster.api.request("PATCH", path, patch, content_type=kind)
        nodes = self.service.scheduler.cluster.nodes
        await self.until(lambda: nodes.objects[nodes.row_of(name)].allocatable["cpu"] == 1000 * int(cpu))

    async def decided(self, name: str) -> None:
        """Wait until the shadow has decided a pod."""
        await self.until(lambda: bool(self.service.decisions.recent.of(f"default/{name}")))

    async def known(self, name: str) -> None:
        await self.until(lambda: self.service.scheduler.cluster.nodes.row_of(name) is not None)

    async def until(self, is_so: Any, seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.005)

    async def verdict(self, name: str, number: int = 1) -> Verdict:
        """The last verdict on a pod, once there are so many."""
        found: list[Verdict] = []

        def is_there() -> bool:
            found[:] = [each for each in self.verdicts if each.pod == f"default/{name}"]
            return len(found) >= number

        await self.until(is_there)
        return found[-1]

    async def place(self, made: Json, node_name: str) -> Verdict:
        """Create a pod, let the shadow decide it, bind it elsewhere."""
        name = made["metadata"]["name"]
        await self.create(made)
        await self.decided(name)
        await self.bind(name, node_name)
        return await self.verdict(name)


@asynccontextmanager
async def shadowing(
    tmp_path: Path,
    *flags: str,
    profile: Json | None = None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    **config: Any,
) -> AsyncIterator[World]:
    file = tmp_path / "b.yaml"
    profiles = [profile or {"schedulerName": "default-scheduler"}]
    file.write_text(yaml.safe_dump(V1 | {"profiles": profiles} | config))
    argv = [f"--config={file}", "--secure-port=0", *flags]
    registry = Registry.installed([tmp_path])
    verdicts: list[Verdict] = []

    def keep(verdict: Verdict) -> None:
        verdicts.append(verdict)
        on_verdict(verdict)

    async with EmbeddedCluster() as cluster:
        service = ShadowService(
            parse(argv, registry=registry).options,
            registry,
            cluster.connection,
            on_verdict=keep,
            owns_process=False,
        )
        task = asyncio.create_task(service.run())
        world = World(cluster, service, verdicts)
        await world.until(lambda: service.is_synced or task.done())
        try:
            yield world
        finally:
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
