"""A simulated kubelet for every node: no containers run, but the API looks as if they did.

Nodes stay alive by their leases and their status. Pods bound to a node are judged as a kubelet judges them,
become Running, end as their `Behaviour` says, and go away when they are deleted, after the time that their
containers take to stop. All of it is one client's work, with one watch of pods, a few writes at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import msgspec

from stowplan import log
from stowplan.api.meta import Json, Object, decode
from stowplan.api.node import NodeObject, NodeStatus
from stowplan.api.pod import HostPort, Pod
from stowplan.api.quantity import parse, units
from stowplan.api.requests import is_extended
from stowplan.client.api import MERGE_PATCH, METADATA_ALONE, STRATEGIC_MERGE_PATCH, ApiClient, WatchedResource
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.client.watch import Reflector
from stowplan.controllers.clock import Clock
from stowplan.controllers.events import Events
from stowplan.kubelet.admission import Rejection, Usage, judge
from stowplan.kubelet.behaviour import (
    READY,
    Behaviour,
    BoundPodSpec,
    EndingPod,
    deadline_of,
    decode_pod,
    full_name,
    images_of,
    pod_of,
    restarts,
)
from stowplan.kubelet.statuses import (
    KILLED,
    TERMINATED,
    ended_status,
    heartbeat_of,
    images_on_node,
    lease_of,
    node_of,
    observed_status,
    overdue_status,
    pod_address,
    readiness,
    rejected_status,
    renewal,
    running_status,
    waiting_status,
)

NODES_PATH = "/api/v1/nodes"
BOUND_PODS = WatchedResource(path="/api/v1/pods", decode=decode_pod, field_selector="spec.nodeName!=")
RETRY_SECONDS = 1.0
IMAGES_SECONDS = 1.0
"""Interval between reports of new images on nodes."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 300.0
GRACE_SECONDS = 50.0
MIN_TICK, MAX_TICK = 0.1, 1.0
"""Seconds of real time between the renewals of some leases and of the next."""
LEASES_PER_TICK = 10
"""Renewed at a time, where MIN_TICK allows: each renewal wakes up all watches of leases."""
MAX_LEASES_PER_SECOND = 250.0


FIRST_RESTART, LONGEST_RESTART = 10.0, 300.0
"""How long containers that ended again and again wait before they are started once more."""
NODE_USAGE = (100, 500 * 1024 * 1024)
"""What a node uses for itself: thousandths of a CPU and bytes."""


class _NodeStatus(NodeStatus, frozen=True):
    capacity: dict[str, str] = {}  # type: ignore[assignment]
    """All amounts as they are written."""


class _Node(NodeObject, frozen=True):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


NODES = WatchedResource(path=NODES_PATH, decode=partial(decode, _Node), namespaced=False)


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
        self._events = Events(api, self.clock)
        self._stopping: dict[str, float] = {}
        """When pods that are being deleted will be gone, by their uids."""
        self._unready: set[str] = set()
        """Uids of running pods that were told not to be ready."""
        self._new_images: set[str] = set()
        self._early: dict[str, set[str]] = {}
        """Pods that came before their nodes."""
        self._pods = Reflector(api, BOUND_PODS, on_event=self._on_pod)
        self._nodes = Reflector(api, NODES, on_event=self._on_node)
        self._due: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._writing = 0

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

    def slow_down(self, name: str, seconds: float) -> None:
        """Let pods on the node take so much longer to start and to stop; 0 ends that."""
        self._machine(name).delay = seconds

    @property
    def dead(self) -> frozenset[str]:
        """Names of the nodes that were killed."""
        return frozenset(name for name, machine in self._machines.items() if machine.is_dead)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be written before a timer or a change."""
        return self._due.empty() and not self._writing

    async def beat(self) -> None:
        """Renew the leases of all nodes that live."""
        await self._heartbeats.beat()

    # What the API server asks about containers.

    def log(self, pod: Json, container: str) -> str:
        return self.behaviour.log_of(pod_of(pod), container)

    def exec(self, pod: Json, container: str, command: list[str]) -> tuple[str, str, int] | None:
        return self.behaviour.answer(pod_of(pod), container, command)

    def usage(self, pod: Json) -> dict[str, tuple[int, int]]:
        known = pod_of(pod)
        if known.phase != "Running":
            return {}
        used, names = self.behaviour.usage(known), [each.name for each in known.spec.containers]
        return {name: (-(-used["cpu"] // len(names)), -(-used["memory"] // len(names))) for name in names}

    def usage_of_node(self, name: str) -> tuple[int, int]:
        used = [self.behaviour.usage(pod) for pod in self._pods_on(name) if pod.phase == "Running"]
        cpu, memory = NODE_USAGE
        return cpu + sum(each["cpu"] for each in used), memory + sum(each["memory"] for each in used)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.synced.wait()  # a pod cannot be judged before its node is known
            group.create_task(self._pods.run())
            group.create_task(self._heartbeats.run())
            group.create_task(self._report_images())
            group.create_task(self._events.run())
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
            if not machine.is_dead and isinstance(new, _Node) and (devices := _new_devices(new)):
                status = {"status": {"allocatable": devices}}
                self._due.put_nowait(partial(self._patch_status, new.name, status))
        elif old is not None:
            self._machines.pop(old.name, None)

    def _on_pod(self, kind: str, old: Pod | Object | None, new: Pod | Object | None) -> None:
        if isinstance(new, Pod):
            self._look_at(new)
            if isinstance(old, Pod) and old.uid == new.uid and old.generation != new.generation:
                self._on_new_spec(old, new)
        elif isinstance(old, Pod):
            self._stopping.pop(old.uid, None)
            self._unready.discard(old.uid)
            if (machine := self._machines.get(old.node_name)) is not None:
                machine.release(old)

    def _look_at(self, pod: Pod) -> None:
        """Handle a changed pod as the kubelet of its node."""
        machine = self._machines.get(pod.node_name)
        if machine is None or machine.node is None:
            self._early.setdefault(pod.node_name, set()).add(pod.key)
        elif machine.is_dead:
            return
        elif pod.is_terminating:
            self._stop(pod, machine)
        elif pod.is_finished:
            machine.release(pod)
        elif pod.uid not in machine.pods:
            rejection = None
            if pod.phase == "Pending":
                rejection = judge(pod, machine.node, machine.usage)
            if rejection is not None:
                self._due.put_nowait(partial(self._reject, pod, rejection))
                return
            machine.take(pod)
            if pod.phase == "Pending":
                self._later(self.behaviour.start_time(pod) + machine.delay, self._start, pod)
            else:
                self._end_later(pod)
                self._expire_later(pod)
        elif pod.phase == "Pending":
            if pod.uid in machine.blocked and not self.behaviour.start_error(pod):
                machine.blocked.discard(pod.uid)
                self._due.put_nowait(partial(self._start, pod))
        elif (pod.uid in self._unready) == _is_to_be_ready(pod):
            (self._unready.discard if _is_to_be_ready(pod) else self._unready.add)(pod.uid)
            self._due.put_nowait(partial(self._set_ready, pod))

    def _on_new_spec(self, old: Pod, pod: Pod) -> None:
        """Handle what may change in the spec of a pod that is on a node."""
        if self._is_on(pod) is None or pod.is_terminating or pod.phase != "Running":
            return
        self._expire_later(pod)
        changed = [
            new.name
            for was, new in zip(old.spec.containers, pod.spec.containers, strict=False)
            if was.image != new.image
        ]
        for name in changed:
            self._record(pod, "Killing", f"Container {name} definition changed, will be restarted", name)
        if changed:
            codes = {each.name: TERMINATED for each in pod.spec.containers}
            self._due.put_nowait(partial(self._restart, codes, pod, ends=False))
        self._due.put_nowait(partial(self._observe, pod))

    def _latest(self, pod: Pod) -> Pod:
        """The pod as it is now: later changes may have been handled before."""
        found = self._pods.objects.get(pod.key)
        return found if isinstance(found, Pod) and found.uid == pod.uid else pod

    async def _observe(self, pod: Pod) -> None:
        pod = self._latest(pod)
        if self._is_on(pod) is not None:
            added = pod.spec.ephemeral_containers if isinstance(pod.spec, BoundPodSpec) else ()
            status = observed_status(pod, added, self.clock.now())
            await self._api.patch_pod_status(pod, {"status": status})

    def _expire_later(self, pod: Pod) -> None:
        if (deadline := deadline_of(pod)) is not None:
            self._later(deadline - self.clock.now(), self._expire, pod)

    async def _expire(self, pod: Pod) -> None:
        """Stop a pod that has run longer than it may, unless it may run longer by now."""
        pod = self._latest(pod)
        machine, deadline = self._is_on(pod), deadline_of(pod)
        if machine is None or deadline is None or pod.uid in self._stopping:
            return
        if deadline <= self.clock.now():
            await self._api.patch_pod_status(pod, {"status": overdue_status(pod, self.clock.now())})
            machine.release(pod)

    def _stop(self, pod: Pod, machine: Machine) -> None:
        """Let the containers of a deleted pod end, in the time that they take or are given."""
        is_running = pod.phase == "Running" and pod.uid in machine.pods
        seconds = self.behaviour.stop_time(pod) + machine.delay if is_running else 0.0
        due, known = self.clock.now() + seconds, self._stopping.get(pod.uid)
        if known is None and is_running:
            for container in pod.spec.containers:
                self._record(pod, "Killing", f"Stopping container {container.name}", container.name)
        if known is None or due < known:
            self._stopping[pod.uid] = due
            self._later(seconds, self._remove, pod)

    def _record(
        self, pod: Pod, reason: str, message: str, container: str = "", level: str = "Normal"
    ) -> None:
        place = {"fieldPath": f"spec.containers{{{container}}}"} if container else {}
        reference = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            **place,
        }
        self._events.record("kubelet", reference, level, reason, message, pod.node_name)

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
            self._writing += 1
            try:
                await job()
            except (NotFound, Conflict):
                continue  # replaced or gone, which its own event says
            except ApiError as error:
                log.warn("Kubelet's write failed; retrying", err=error.explanation)
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._due.put_nowait, job)
            finally:
                self._writing -= 1

    async def _start(self, pod: Pod) -> None:
        pod = self._latest(pod)
        machine = self._is_on(pod)
        if machine is None:
            return
        if said := self.behaviour.start_error(pod):
            reason, _, message = said.partition(":")
            status = waiting_status(pod, reason.strip(), message.strip(), self.clock.now())
            machine.blocked.add(pod.uid)
            await self._api.patch_pod_status(pod, {"status": status})
            self._record(pod, "Failed", f"Error: {reason.strip()}", level="Warning")
            return
        number, is_ready = machine.number_of(pod), _is_to_be_ready(pod)
        if not is_ready:
            self._unready.add(pod.uid)
        status = running_status(
            pod, self.clock.now(), address=pod_address(pod.node_name, number), is_ready=is_ready
        )
        await self._api.patch_pod_status(pod, {"status": status})
        for container in pod.spec.containers:
            self._record_start(pod, machine, container.name, container.image)
        for image in images_of(pod):
            if image not in machine.images:
                machine.images[image] = self.behaviour.image_size(image)
                self._new_images.add(pod.node_name)
        started = msgspec.structs.replace(pod, start_time=self.clock.now())
        self._end_later(started)
        self._expire_later(started)

    async def _end(self, pod: Pod) -> None:
        """The containers finish: finish the pod or restart them."""
        machine = self._is_on(pod)
        if machine is None:
            return
        if pod.uid in self._stopping:
            return
        codes = self.behaviour.exit_codes(pod, self._draw)
        policy, now, count = restarts(pod), self.clock.now(), machine.pods[pod.uid]
        if policy == "Always" or (policy == "OnFailure" and any(codes.values())):
            if not count:
                await self._restart(codes, pod)
                return
            wait = min(FIRST_RESTART * 2.0 ** min(count - 1, 10), LONGEST_RESTART)
            place = f"{pod.name}_{pod.namespace}({pod.uid})"
            for container in pod.spec.containers:
                text = f"Back-off restarting failed container {container.name} in pod {place}"
                self._record(pod, "BackOff", text, container.name, "Warning")
            text = f"back-off {wait:g}s restarting failed container in pod {place}"
            status = waiting_status(pod, "CrashLoopBackOff", text, now, count, codes)
            await self._api.patch_pod_status(pod, {"status": status})
            self._later(wait, partial(self._restart, codes), pod)
        else:
            await self._api.patch_pod_status(pod, {"status": ended_status(pod, codes, now, count)})
            machine.release(pod)

    async def _restart(self, codes: Json, pod: Pod, *, ends: bool = True) -> None:
        """Start containers again that exited with these codes; `ends` unless it is known when they end."""
        pod = self._latest(pod)
        machine, now = self._is_on(pod), self.clock.now()
        if machine is None or pod.uid in self._stopping:
            return
        pod, count = msgspec.structs.replace(pod, start_time=now), machine.restart(pod)
        is_ready = pod.uid not in self._unready
        status = running_status(pod, now, restarts=count, last=codes, is_ready=is_ready)
        await self._api.patch_pod_status(pod, {"status": status})
        for container in pod.spec.containers:
            self._record_start(pod, machine, container.name, container.image)
        if ends:
            self._end_later(pod)

    def _record_start(self, pod: Pod, machine: Machine, container: str, image: str) -> None:
        if full_name(image) in machine.images:
            text = f'Container image "{image}" already present on machine and can be accessed by the pod'
            self._record(pod, "Pulled", text, container)
        else:
            size = self.behaviour.image_size(full_name(image))
            self._record(pod, "Pulling", f'Pulling image "{image}"', container)
            text = (
                f'Successfully pulled image "{image}" in 0s (0s including waiting). Image size: {size} bytes.'
            )
            self._record(pod, "Pulled", text, container)
        self._record(pod, "Created", "Container created", container)
        self._record(pod, "Started", "Container started", container)

    async def _set_ready(self, pod: Pod) -> None:
        if self._is_on(pod) is not None:
            is_ready, path = (
                pod.uid not in self._unready,
                f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}",
            )
            known = (await self._api.get_json(path)).get("status") or {}
            statuses = [{**each, "ready": is_ready} for each in known.get("containerStatuses") or ()]
            conditions = readiness(is_ready, self.clock.now())
            status = {"conditions": conditions, "containerStatuses": statuses}
            await self._api.patch_pod_status(pod, {"status": status})

    async def _reject(self, pod: Pod, rejection: Rejection) -> None:
        await self._api.patch_pod_status(pod, {"status": rejected_status(rejection, self.clock.now())})
        self._record(pod, rejection.reason, rejection.message, level="Warning")

    async def _remove(self, pod: Pod) -> None:
        """What a kubelet does once the last container has ended: no more time is needed."""
        machine = self._machines.get(pod.node_name)
        if pod.uid not in self._stopping:
            return  # gone, or no longer being deleted
        if machine is None or machine.is_dead:
            self._stopping.pop(pod.uid, None)  # once the node is back, it begins again
            return
        is_running = pod.phase == "Running" and pod.uid in machine.pods
        if is_running and isinstance(pod, EndingPod) and pod.finalizers:  # others will still look at it
            code = KILLED if self.behaviour.stop_time(pod) >= pod.grace_seconds > 0 else TERMINATED
            codes = {each.name: code for each in pod.spec.containers}
            await self._api.patch_pod_status(pod, {"status": ended_status(pod, codes, self.clock.now())})
        machine.release(pod)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._api.request("DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", options)

    async def _report(self, node: NodeObject) -> None:
        """The node is well, and so are the pods on it, whatever others thought meanwhile."""
        await self._patch_status(node.name, heartbeat_of(node, self.clock.now()))
        for pod in self._pods_on(node.name):
            if pod.phase == "Running" and self._is_on(pod) is not None:
                conditions = readiness(pod.uid not in self._unready, self.clock.now())
                await self._api.patch_pod_status(pod, {"status": {"conditions": conditions}})

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


def _is_to_be_ready(pod: Pod) -> bool:
    return pod.annotations.get(READY, "true").lower() != "false"


def _new_devices(node: _Node) -> Json:
    """Extended resources that somebody added to the node's capacity, or changed there."""
    known = node.allocatable
    return {
        name: amount
        for name, amount in node.status.capacity.items()
        if is_extended(name) and known.get(name) != units(parse(amount))
    }


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
        self._wake = asyncio.Event()

    @property
    def grace_seconds(self) -> float:
        return max(GRACE_SECONDS, 3 * self._round_seconds() * max(self._clock.speed, 1.0))

    def _round_seconds(self) -> float:
        """Seconds of real time in which every node gets one turn."""
        wanted = self._seconds / self._clock.speed if self._clock.speed > 0 else self._seconds
        return max(wanted, len(self._machines) / MAX_LEASES_PER_SECOND)

    def _tick_seconds(self) -> float:
        wanted = LEASES_PER_TICK * self._round_seconds() / max(len(self._machines), 1)
        return min(max(wanted, MIN_TICK), MAX_TICK, self._round_seconds())

    async def run(self) -> None:
        loop, credit = asyncio.get_running_loop(), 0.0
        self._clock.on_speed.append(self._wake.set)  # or the next tick would come too late
        while True:
            began, round_seconds = loop.time(), self._round_seconds()
            timer = loop.call_later(self._tick_seconds(), self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            share = (loop.time() - began) / round_seconds
            credit += len(self._machines) * min(share, 1.0)
            due = []
            while credit >= 1:
                credit -= 1
                if (node := self._next()) is not None:
                    due.append(node)
            await asyncio.gather(*map(self._beat, due))

    async def beat(self) -> None:
        nodes = [each.node for each in self._machines.values() if each.node is not None and not each.is_dead]
        await asyncio.gather(*map(self._beat, nodes))

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
            log.warn("Heartbeat failed", node=node.name, err=error.explanation)

    async def _renew_lease(self, node: NodeObject, now: float) -> None:
        try:
            patch, path = {"spec": renewal(now)}, f"{LEASES}/{node.name}"
            await self._api.request("PATCH", path, patch, content_type=MERGE_PATCH, accept=METADATA_ALONE)
        except NotFound:
            await self._api.request("POST", LEASES, lease_of(node, now), accept=METADATA_ALONE)


class Machine:
    __slots__ = ("_numbers", "_ports", "_requests", "blocked", "delay", "images", "is_dead", "node", "pods")

    def __init__(self) -> None:
        self.node: NodeObject | None = None
        self.is_dead = False
        self.delay = 0.0
        self.pods: dict[str, int] = {}
        """By uid, those that were taken and have not ended, with how often they were restarted."""
        self.blocked: set[str] = set()
        """Uids of those that were told not to start."""
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
        self.blocked.discard(pod.uid)
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
