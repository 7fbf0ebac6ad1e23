"""A simulated kubelet for every node of a cluster: nothing runs, but the API shows what would.

Nodes stay alive by their leases, pods bound to a node become Running, and deleted pods go away at once,
whatever time they were given. All of it is one client's work, a few writes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.api import MERGE_PATCH, ApiClient
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.client.watch import Reflector, WatchedResource
from stowplan.kubelet.statuses import Json, lease_of, node_of, renewal, running_status

NODES = WatchedResource(path="/api/v1/nodes", decode=partial(decode, NodeObject), namespaced=False)
BOUND_PODS = WatchedResource(path="/api/v1/pods", decode=Pod.decode, field_selector="spec.nodeName!=")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class SimulatedKubelets:
    """`run` does the work until it is cancelled; `register` adds nodes, before or meanwhile.

    Nodes that others create are served too. The API client needs the rights of a kubelet on all of them.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        heartbeat_seconds: float = 10.0,
        writers: int = 16,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._heartbeat_seconds, self._writers, self._now = api, heartbeat_seconds, writers, now
        self._nodes: dict[str, NodeObject] = {}
        self._due: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    async def register(self, template: Json, names: Iterable[str]) -> None:
        """Make nodes from a manifest, one for each name; those that exist stay as they are."""
        slots = asyncio.Semaphore(self._writers)
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._create(node_of(template, name, self._now()), slots))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Reflector(self._api, NODES, on_event=self._on_node).run())
            group.create_task(Reflector(self._api, BOUND_PODS, on_event=self._on_pod).run())
            group.create_task(self._beat())
            for _ in range(self._writers):
                group.create_task(self._write())

    async def _create(self, node: Json, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._api.request("POST", "/api/v1/nodes", node)
            except Conflict:
                _log.debug("node is registered already: node=%s", node["metadata"]["name"])

    def _on_node(self, kind: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        if isinstance(new, NodeObject):
            if old is None:
                self._due.put_nowait(partial(self._renew_lease, new))
            self._nodes[new.name] = new
        elif old is not None:
            self._nodes.pop(old.name, None)

    def _on_pod(self, kind: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        if not isinstance(new, Pod):
            return
        if new.is_terminating:
            self._due.put_nowait(partial(self._finish, new))
        elif new.phase == "Pending":
            self._due.put_nowait(partial(self._start, new))

    async def _beat(self) -> None:
        """Renew every node's lease once in a while, and spread the renewals over that while."""
        while True:
            nodes = list(self._nodes.values())
            for node in nodes:
                await asyncio.sleep(self._heartbeat_seconds / len(nodes))
                if node.name in self._nodes:
                    try:
                        await self._renew_lease(node)
                    except ApiError as error:  # the next round makes up for it
                        _log.warning("lease not renewed: node=%s error=%s", node.name, error.explanation)
            if not nodes:
                await asyncio.sleep(self._heartbeat_seconds)

    async def _write(self) -> None:
        """Do what is due, and do again after a pause what failed for no fault of its own."""
        while True:
            job = await self._due.get()
            try:
                await job()
            except (NotFound, Conflict):
                continue  # replaced or gone, which its own event says
            except ApiError as error:
                _log.warning("kubelet's write failed: error=%s", error.explanation)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._due.put_nowait, job)

    async def _renew_lease(self, node: NodeObject) -> None:
        try:
            patch = {"spec": renewal(self._now())}
            await self._api.request("PATCH", f"{LEASES}/{node.name}", patch, content_type=MERGE_PATCH)
        except NotFound:
            await self._api.request("POST", LEASES, lease_of(node, self._now()))

    async def _start(self, pod: Pod) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": running_status(pod, self._now())}
        await self._api.patch_pod_status(pod, patch)

    async def _finish(self, pod: Pod) -> None:
        """What a kubelet does once the last container has ended: no more time is needed."""
        await self._api.delete(pod, grace_seconds=0)
