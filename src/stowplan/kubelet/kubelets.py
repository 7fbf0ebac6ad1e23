"""A simulated kubelet for every node: no containers run, but the API looks as if they did.

Nodes stay alive by their leases and their status. Pods bound to a node are judged as a kubelet judges them,
become Running, end as their `Behaviour` says, and when deleted go away at once, whatever time they were
given. All of it is one client's work, with one watch of pods, a few writes at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import msgspec

from stowplan import log
from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import HostPort, Pod
from stowplan.client.api import MERGE_PATCH, METADATA_ALONE, STRATEGIC_MERGE_PATCH, ApiClient
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.client.watch import Reflector, WatchedResource
from stowplan.controllers.clock import Clock
from stowplan.kubelet.admission import Rejection, Usage, judge
from stowplan.kubelet.behaviour import Behaviour, decode_pod, images_of, restarts
from stowplan.kubelet.statuses import (
    Json,
    ended_status,
    heartbeat_of,
    images_on_node,
    lease_of,
    node_of,
    pod_address,
    ready_again,
    refused_status,
    renewal,
    running_status,
)

NODES_PATH = "/api/v1/nodes"
NODES = WatchedResource(path=NODES_PATH, decode=partial(decode, NodeObject), namespaced=False)
BOUND_PODS = WatchedResource(path="/api/v1/pods", decode=decode_pod, field_selector="spec.nodeName!=")
RETRY_SECONDS = 1.0
IMAGES_SECONDS = 1.0
"""Interval between reports of new images on nodes."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 300.0
GRACE_SECONDS = 50.0
TICK_SECONDS = 0.1
MAX_LEASES_PER_SECOND = 250.0


class SimulatedKubelets:
    """`run` does the work until it is cancelled; `register` and `add` make nodes, before or meanwhile.

    Nodes that others create are served too. The API client needs the rights of a kubelet on all of them.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        clock: Clock | None = None,
        behaviour: Behaviour | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        writers: int = 16,
        draw: random.Random | None = None,
    ) -> None:
        self._api, self._writers = api, writers
        self.clock = clock or Clock()
        self.behaviour = behaviour or Behaviour()
        self._draw = draw or random.Random()
        self._machines: dict[str, Machine] = {}
        self._heartbeats = Heartbeats(api, self.clock, self._machines, heartbeat_seconds)
        self._new_images: set[str] = set()
        self._early: dict[str, set[str]] = {}
        """Pods that came before their nodes."""
        self._pods = Reflector(api, BOUND_PODS, on_event=self._on_pod)
        self._nodes = Reflector(api, NODES, on_event=self._on_node)
        self._due: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    @property
    def grace_seconds(self) -> float:
        """How long a node may be silent before it should be considered dead."""
        return self._heartbeats.grace_seconds

    async def register(self, template: Json, names: Iterable[str]) -> None:
        """Make nodes from a manifest, one for each name; those that exist stay as they are."""
        await self.add(node_of(template, name, self.clock.now()) for name in names)

    async def add(self, nodes: Iterable[Json]) -> None:
        """Create nodes from manifests, such as those of a NodeTemplate or a dump."""
        waiting = iter(nodes)

        async def create() -> None:
            for node in waiting:
                try:
                    await self._api.request("POST", NODES_PATH, node, accept=METADATA_ALONE)
                except Conflict:
                    log.log(4, "Node is already registered", node=node["metadata"]["name"])

        async with asyncio.TaskGroup() as group:
            for _ in range(self._writers):
                group.create_task(create())

    def kill(self, *names: str) -> None:
        """From now on nothing is heard of these nodes, and nothing happens on them."""
        for name in names:
            self._machine(name).is_dead = True
            self._machine(name).clear()

    def revive(self, *names: str) -> None:
        for name in names:
            machine = self._machine(name)
            machine.is_dead = False
            if machine.node is not None:
                self._due.put_nowait(partial(self._report, machine.node))
            for pod in self._pods_on(name):
                self._look_at(pod)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.synced.wait()  # a pod cannot be judged before its node is known
            group.create_task(self._pods.run())
            group.create_task(self._heartbeats.run())
            group.create_task(self._report_images())
            for _ in range(self._writers):
                group.create_task(self._write())

    def _machine(self, name: str) -> Machine:
        found = self._machines.get(name)
        if found is None:
            found = self._machines[name] = Machine()
        return found

    def _pods_on(self, name: str) -> list[Pod]:
        pods = self._pods.objects.values()
        return [pod for pod in pods if isinstance(pod, Pod) and pod.node_name == name]

    def _on_node(self, kind: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        if isinstance(new, NodeObject):
            machine = self._machine(new.name)
            is_new, machine.node = machine.node is None, new
            if is_new:
                machine.images = {name: each.size_bytes for each in new.images for name in each.names}
                for key in self._early.pop(new.name, ()):
                    if isinstance(pod := self._pods.objects.get(key), Pod):
                        self._look_at(pod)
            if not machine.is_dead and _is_doubted(new):
                self._due.put_nowait(partial(self._report, new))
        elif old is not None:
            self._machines.pop(old.name, None)

    def _on_pod(self, kind: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        if isinstance(new, Pod):
            self._look_at(new)
        elif isinstance(old, Pod) and (machine := self._machines.get(old.node_name)) is not None:
            machine.release(old)

    def _look_at(self, pod: Pod) -> None:
        """Handle a changed pod as the kubelet of its node."""
        machine = self._machines.get(pod.node_name)
        if machine is None or machine.node is None:
            self._early.setdefault(pod.node_name, set()).add(pod.key)
        elif machine.is_dead:
            return
        elif pod.is_terminating:
            self._due.put_nowait(partial(self._remove, pod))
        elif pod.is_finished:
            machine.release(pod)
        elif pod.uid not in machine.pods:
            refusal = None
            if pod.phase == "Pending":
                refusal = judge(pod, machine.node, machine.usage)
            if refusal is not None:
                self._due.put_nowait(partial(self._refuse, pod, refusal))
                return
            machine.take(pod)
            if pod.phase == "Pending":
                self._later(self.behaviour.start_seconds, self._start, pod)
            else:
                self._end_later(pod)

    def _later(self, seconds: float, job: Callable[[Pod], Awaitable[None]], pod: Pod) -> None:
        if seconds <= 0:
            self._due.put_nowait(partial(job, pod))
        else:
            self.clock.call_after(seconds, lambda: self._due.put_nowait(partial(job, pod)))

    def _end_later(self, pod: Pod) -> None:
        seconds = self.behaviour.run_time(pod)
        if seconds is not None:
            since = self.clock.now() if pod.start_time is None else pod.start_time
            self._later(max(since + seconds - self.clock.now(), 0.001), self._end, pod)

    def _is_on(self, pod: Pod) -> Machine | None:
        """The machine, if it is alive and the pod is still on it."""
        machine = self._machines.get(pod.node_name)
        alive = machine is not None and not machine.is_dead and pod.uid in machine.pods
        return machine if alive else None

    async def _write(self) -> None:
        """Do what is due, and do again after a pause what failed for no fault of its own."""
        while True:
            job = await self._due.get()
            try:
                await job()
            except (NotFound, Conflict):
                continue  # replaced or gone, which its own event says
            except ApiError as error:
                log.warn("Kubelet's write failed; retrying", err=error.explanation)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._due.put_nowait, job)

    async def _start(self, pod: Pod) -> None:
        machine = self._is_on(pod)
        if machine is None:
            return
        number = machine.number_of(pod)
        status = running_status(pod, self.clock.now(), address=pod_address(pod.node_name, number))
        await self._api.patch_pod_status(pod, {"status": status})
        for image in images_of(pod):
            if image not in machine.images:
                machine.images[image] = self.behaviour.image_size(image)
                self._new_images.add(pod.node_name)
        self._end_later(msgspec.structs.replace(pod, start_time=self.clock.now()))

    async def _end(self, pod: Pod) -> None:
        """The containers finish: finish the pod or restart them."""
        machine = self._is_on(pod)
        if machine is None:
            return
        code = self.behaviour.exit_code(pod, self._draw)
        policy = restarts(pod)
        if policy == "Always" or (policy == "OnFailure" and code):
            pod, count = msgspec.structs.replace(pod, start_time=self.clock.now()), machine.restart(pod)
            status = running_status(pod, self.clock.now(), restarts=count)
            await self._api.patch_pod_status(pod, {"status": status})
            self._end_later(pod)
        else:
            await self._api.patch_pod_status(pod, {"status": ended_status(pod, code, self.clock.now())})
            machine.release(pod)

    async def _refuse(self, pod: Pod, refusal: Rejection) -> None:
        await self._api.patch_pod_status(pod, {"status": refused_status(refusal, self.clock.now())})

    async def _remove(self, pod: Pod) -> None:
        """What a kubelet does once the last container has ended: no more time is needed."""
        machine = self._machines.get(pod.node_name)
        if machine is not None and not machine.is_dead:
            machine.release(pod)
            await self._api.delete(pod, grace_seconds=0)

    async def _report(self, node: NodeObject) -> None:
        """The node is well, and so are the pods on it, whatever others thought meanwhile."""
        await self._patch_status(node.name, heartbeat_of(node, self.clock.now()))
        for pod in self._pods_on(node.name):
            if pod.phase == "Running" and self._is_on(pod) is not None:
                await self._api.patch_pod_status(pod, {"status": ready_again(self.clock.now())})

    async def _report_images(self) -> None:
        while True:
            await asyncio.sleep(IMAGES_SECONDS)
            names, self._new_images = self._new_images, set()
            for name in names:
                machine = self._machines.get(name)
                if machine is not None and not machine.is_dead:
                    status = {"status": {"images": images_on_node(machine.images)}}
                    self._due.put_nowait(partial(self._patch_status, name, status))

    async def _patch_status(self, name: str, patch: Json) -> None:
        path = f"{NODES_PATH}/{name}/status"
        await self._api.request(
            "PATCH", path, patch, content_type=STRATEGIC_MERGE_PATCH, accept=METADATA_ALONE
        )


def _is_doubted(node: NodeObject) -> bool:
    """Whether others think that the node is dead, or know nothing of it."""
    ready = next((each.status for each in node.status.conditions if each.type == "Ready"), "Unknown")
    return ready == "Unknown"


class Heartbeats:
    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        machines: Mapping[str, Machine],
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._api, self._clock, self._machines, self._seconds = api, clock, machines, seconds
        self._turns: deque[str] = deque()
        self._reported: dict[str, float] = {}
        """When each node's whole status was last written."""

    @property
    def grace_seconds(self) -> float:
        return max(GRACE_SECONDS, 3 * self._round_seconds() * max(self._clock.speed, 1.0))

    def _round_seconds(self) -> float:
        """Seconds of real time in which every node gets one turn."""
        wanted = self._seconds / self._clock.speed if self._clock.speed > 0 else self._seconds
        return max(wanted, len(self._machines) / MAX_LEASES_PER_SECOND)

    async def run(self) -> None:
        credit = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            credit += len(self._machines) * TICK_SECONDS / self._round_seconds()
            due = []
            while credit >= 1:
                credit -= 1
                if (node := self._next()) is not None:
                    due.append(node)
            await asyncio.gather(*map(self._beat, due))

    def _next(self) -> NodeObject | None:
        """The node whose turn it is, if it lives."""
        if not self._turns:
            self._turns.extend(self._machines)
        machine = self._machines.get(self._turns.popleft()) if self._turns else None
        return machine.node if machine is not None and not machine.is_dead else None

    async def _beat(self, node: NodeObject) -> None:
        now = self._clock.now()
        try:
            await self._renew_lease(node, now)
            if now - self._reported.setdefault(node.name, now) >= STATUS_SECONDS:
                self._reported[node.name] = now
                path, status = f"/api/v1/nodes/{node.name}/status", heartbeat_of(node, now)
                await self._api.request(
                    "PATCH", path, status, content_type=STRATEGIC_MERGE_PATCH, accept=METADATA_ALONE
                )
        except NotFound:
            return  # deleted, which its own event says
        except ApiError as error:  # the next round makes up for it
            log.warn("No heartbeat", node=node.name, err=error.explanation)

    async def _renew_lease(self, node: NodeObject, now: float) -> None:
        try:
            patch, path = {"spec": renewal(now)}, f"{LEASES}/{node.name}"
            await self._api.request("PATCH", path, patch, content_type=MERGE_PATCH, accept=METADATA_ALONE)
        except NotFound:
            await self._api.request("POST", LEASES, lease_of(node, now), accept=METADATA_ALONE)


class Machine:
    __slots__ = ("_numbers", "_ports", "_requests", "images", "is_dead", "node", "pods")

    def __init__(self) -> None:
        self.node: NodeObject | None = None
        self.is_dead = False
        self.pods: dict[str, int] = {}
        """By uid, those that were taken and have not ended, with how often they were restarted."""
        self.images: dict[str, int] = {}
        self._numbers = 0
        self._requests: Counter[str] = Counter()
        self._ports: list[HostPort] = []

    @property
    def usage(self) -> Usage:
        return Usage(len(self.pods), self._requests, self._ports)

    def take(self, pod: Pod) -> None:
        self.pods[pod.uid] = 0
        self._requests.update(pod.requests)
        self._ports += pod.shape.ports

    def release(self, pod: Pod) -> None:
        if self.pods.pop(pod.uid, None) is None:
            return
        self._requests.subtract(pod.requests)
        for port in pod.shape.ports:
            self._ports.remove(port)

    def clear(self) -> None:
        """Handle all pods on the node again."""
        self.pods, self._requests, self._ports = {}, Counter(), []

    def restart(self, pod: Pod) -> int:
        self.pods[pod.uid] += 1
        return self.pods[pod.uid]

    def number_of(self, pod: Pod) -> int:
        """For an address of its own."""
        self._numbers += 1
        return self._numbers
