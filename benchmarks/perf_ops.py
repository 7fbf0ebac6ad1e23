"""Runs the operations of a scheduler_perf workload on a cluster, and watches what becomes of its pods.

Nodes are bare API objects. What kube-controller-manager's claim, volume and garbage controllers do for these
workloads is done here, in this process, so that none of it counts as work of the scheduler.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from perf_files import (
    AllocResourceClaims,
    Barrier,
    Churn,
    CreateAny,
    CreateNamespaces,
    CreateNodes,
    CreatePods,
    CreateResourceClaims,
    CreateResourceDriver,
    DeletePods,
    FileError,
    Json,
    Row,
    Sleep,
    StartCollectingMetrics,
    StopCollectingMetrics,
    Template,
    UpdateAny,
    parse_duration,
    template_of,
)
from stowplan.api.meta import decode
from stowplan.api.resource import ResourceSlice
from stowplan.client.api import METADATA_ALONE, ApiClient
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.controllers.clock import Clock
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import PODS as POD_KIND
from stowplan.controllers.kinds import RESOURCE_CLAIMS, PodView
from stowplan.controllers.pod_claims import ClaimHolders, PodClaims
from stowplan.controllers.stores import Stores, owner_keys
from stowplan.plugins.devices.pools import Kinds, OfferedDevice

AT_ONCE = 30
"""Requests under way while objects are created, as in scheduler_perf."""
POLL_SECONDS = 0.02
CREATE_SECONDS = 20.0
"""How long a rejected object of createAny is tried again."""
DEVICES = "resource.k8s.io/v1"
NOW = {
    "kind": "DeleteOptions",
    "apiVersion": "v1",
    "gracePeriodSeconds": 0,
    "propagationPolicy": "Background",
}
BASE_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "status": {
        "capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
BASE_RESOURCES = {"cpu": "100m", "memory": "500Mi"}
BASE_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "pod-"},
    "spec": {
        "containers": [
            {
                "name": "pause",
                "image": "registry.k8s.io/pause:3.10.2",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": BASE_RESOURCES, "requests": BASE_RESOURCES},
            }
        ]
    },
}


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    node_name: str = ""


class _Condition(msgspec.Struct, frozen=True):
    type: str


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


_event = msgspec.json.Decoder(_Event).decode


class Seen(msgspec.Struct):
    """A pod as the watch shows it."""

    name: str
    labels: dict[str, str]
    is_bound: bool
    is_attempted: bool
    """It has a PodScheduled condition: a scheduler has tried it, or a gate holds it."""


class PodWatch:
    """All pods of the cluster, and when each was first seen on a node."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Seen]] = {}
        self.bound: Counter[str] = Counter()
        """Pods that exist and have a node, by namespace."""
        self.on_bind: Callable[[str, Seen, float], None] = lambda namespace, pod, at: None
        self._version = ""

    async def run(self, api: ApiClient) -> None:
        self._version = (await api.get_json("/api/v1/pods?limit=1"))["metadata"]["resourceVersion"]
        while True:  # the server ends a watch now and then
            query = {"watch": "true", "resourceVersion": self._version}
            await api.stream("/api/v1/pods", self._on_line, query=query, silence=3600)

    def _on_line(self, line: bytes) -> None:
        event = _event(line)
        meta = event.object.metadata
        self._version = meta.resource_version
        pods = self.pods.setdefault(meta.namespace, {})
        before = pods.get(meta.name)
        if event.type == "DELETED":
            if before is not None:
                self.bound[meta.namespace] -= before.is_bound
                del pods[meta.name]
            return
        is_attempted = any(each.type == "PodScheduled" for each in event.object.status.conditions)
        pod = Seen(meta.name, meta.labels, bool(event.object.spec.node_name), is_attempted)
        pods[meta.name] = pod
        if pod.is_bound and (before is None or not before.is_bound):
            self.bound[meta.namespace] += 1
            self.on_bind(meta.namespace, pod, time.monotonic())

    def of(self, namespace: str, labels: Json) -> Iterator[Seen]:
        wanted = labels.items()
        return (pod for pod in self.pods.get(namespace, {}).values() if wanted <= pod.labels.items())

    def count(self, namespace: str, labels: Json, stage: str) -> int:
        if stage == "Attempted":
            return sum(pod.is_bound or pod.is_attempted for pod in self.of(namespace, labels))
        return sum(pod.is_bound for pod in self.of(namespace, labels)) if labels else self.bound[namespace]


class Window:
    """The time in which metrics are collected: which pods were bound, and when."""

    def __init__(self, namespaces: Iterable[str], labels: Json) -> None:
        self.namespaces, self.labels = frozenset(namespaces), labels
        self.began = self.last = time.monotonic()
        self.bound = 0
        self.wanted: int | None = 0
        """Pods that should be bound at the end; None in a steady state."""

    def on_bind(self, namespace: str, pod: Seen, at: float) -> None:
        if namespace in self.namespaces and self.labels.items() <= pod.labels.items():
            self.bound, self.last = self.bound + 1, at


class Workload:
    """One run of a row. `on_start` and `on_stop` are awaited at the ends of each window."""

    def __init__(
        self,
        row: Row,
        api: ApiClient,
        on_start: Callable[[Window], Awaitable[None]],
        on_stop: Callable[[Window], Awaitable[None]],
    ) -> None:
        self.row, self.api = row, api
        self._on_start, self._on_stop = on_start, on_stop
        self.watch = PodWatch()
        self.window: Window | None = None
        self.node_count = 0
        self._expected: Counter[str] = Counter()
        """Pods to wait for at the next barrier, by namespace."""
        self._namespaces: set[str] = set()
        self._resources: dict[tuple[str, str], tuple[str, bool]] = {}
        self._tasks: asyncio.TaskGroup
        self._bound_volumes: set[str] = set()

    async def run(self) -> None:
        """Run all operations. Raises what an operation raises; whoever calls sets a time limit."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                background = [self._tasks.create_task(self.watch.run(self.api))]
                background += [self._tasks.create_task(each) for each in self._controllers()]
                for number, op in enumerate(self.row.ops()):
                    await RUN[type(op)](self, number, op)
                raise _AllDoneError
        except* _AllDoneError:
            pass  # what churns in the background ends here

    def _controllers(self) -> Iterator[Any]:
        yield self._bind_volumes()
        if self.row.gates.get("DynamicResourceAllocation"):
            stores = Stores(self.api, Clock())
            controllers = (PodClaims(stores), ClaimHolders(stores), ClaimGarbage(stores))
            yield stores.run()
            yield from (controller.run() for controller in controllers)

    def _template(self, path: str) -> Template:
        return template_of(self.row.folder / path)

    async def _start(self, window: Window) -> None:
        if self.window is not None:
            raise FileError(f"{self.row.name}: metrics are collected already")
        await self._on_start(window)
        window.began = window.last = time.monotonic()
        self.window, self.watch.on_bind = window, window.on_bind

    async def _stop(self) -> None:
        window, self.window = self.window, None
        if window is None:
            raise FileError(f"{self.row.name}: no metrics are collected")
        await self._on_stop(window)
        self.watch.on_bind = lambda namespace, pod, at: None

    async def create_nodes(self, number: int, op: CreateNodes) -> None:
        base = self._template(op.node_template_path) if op.node_template_path else None
        labels, unique = op.label_node_prepare_strategy, op.unique_node_label_strategy
        allocatable = op.node_allocatable_strategy

        async def create(index: int) -> None:
            node = base.render(index, op.count) if base else json.loads(json.dumps(BASE_NODE))
            meta = node.setdefault("metadata", {})
            prefix = meta.pop("generateName", f"node-{number}-")
            name = meta.setdefault("name", f"{prefix}{uuid.uuid4().hex[:10]}")
            own = meta.setdefault("labels", {})
            own["kubernetes.io/hostname"] = name
            if labels:
                own[labels["labelKey"]] = labels["labelValues"][index % len(labels["labelValues"])]
            if unique:
                own[unique["labelKey"]] = str(uuid.uuid4())
            if allocatable:
                status = node["status"]
                amounts = status.get("allocatable") or status["capacity"]
                status["allocatable"] = amounts | allocatable.get("nodeAllocatable", {})
                await self._create("v1", "Node", "", node)
                await self._create("storage.k8s.io/v1", "CSINode", "", _csi_node(name, allocatable))
            else:
                await self._create("v1", "Node", "", node)

        await in_parallel(map(create, range(op.count)))
        self.node_count += op.count

    async def create_namespaces(self, number: int, op: CreateNamespaces) -> None:
        base: Json = {"apiVersion": "v1", "kind": "Namespace"}
        if op.namespace_template_path:
            base = self._template(op.namespace_template_path).render(0, op.count)
        for index in range(op.count):
            name = f"{op.prefix}-{index}"
            namespace = base | {"metadata": {**base.get("metadata", {}), "name": name}}
            await self._create("v1", "Namespace", "", namespace)
            self._namespaces.add(name)
            self._expected.setdefault(name, 0)

    async def create_pods(self, number: int, op: CreatePods) -> None:
        namespace = op.namespace or f"namespace-{number}"
        await self._ensure(namespace)
        path = op.pod_template_path or self.row.default_pod_template_path
        with_volume = bool(op.persistent_volume_claim_template_path)
        bodies = list(self._pods(path, op.count, with_volume))  # before the clock starts
        if op.collect_metrics:
            await self._start(Window([namespace], {}))
        if op.steady_state:
            await self._create_steadily(namespace, bodies, parse_duration(op.duration))
        else:
            window = self.window
            if window is not None and namespace in window.namespaces:
                window.wanted = (window.wanted or 0) + self._matching(bodies, window.labels)
            await self._create_all(namespace, bodies, op)
            if op.skip_wait_to_completion:
                self._expected[namespace] += op.count
            elif op.collect_metrics:
                await self._until(lambda: window is not None and window.bound >= (window.wanted or 0))
            else:
                await self._until(lambda: self.watch.bound[namespace] >= op.count)
        if op.collect_metrics:
            await self._stop()

    def _pods(self, path: str, count: int, with_volume: bool) -> Iterator[bytes]:
        def change(pod: Json, index: int) -> None:
            if with_volume:
                claim = {"claimName": f"pvc-{index}"}
                pod["spec"]["volumes"] = [{"name": "vol", "persistentVolumeClaim": claim}]

        if path:
            yield from self._template(path).encode_all(count, change)
            return
        for index in range(count):
            pod = json.loads(json.dumps(BASE_POD))
            change(pod, index)
            yield json.dumps(pod).encode()

    @staticmethod
    def _matching(bodies: list[bytes], labels: Json) -> int:
        if not labels:
            return len(bodies)
        made = (json.loads(body)["metadata"].get("labels", {}) for body in bodies)
        return sum(labels.items() <= each.items() for each in made)

    async def _create_all(self, namespace: str, bodies: list[bytes], op: CreatePods) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"

        async def create(index: int) -> None:
            if op.persistent_volume_claim_template_path:
                await self._create_volume(namespace, index, op)
            await self.api.request("POST", path, bodies[index], accept=METADATA_ALONE)

        await in_parallel(map(create, range(len(bodies))))

    async def _create_volume(self, namespace: str, index: int, op: CreatePods) -> None:
        """A claim and a volume that are bound to each other; statuses must be written on their own."""
        name = f"pvc-{index}"
        volume = self._template(op.persistent_volume_template_path).render(index, op.count)
        volume_name = f"{namespace}-vol-{index}"
        volume.setdefault("metadata", {})["name"] = volume_name
        spec = volume["spec"]
        if "csi" in spec:
            spec["csi"]["volumeHandle"] = volume_name
        elif "awsElasticBlockStore" in spec:
            spec["awsElasticBlockStore"]["volumeID"] = f"vol-{index}"
        kind = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        spec["claimRef"] = {**kind, "namespace": namespace, "name": name}
        claim = self._template(op.persistent_volume_claim_template_path).render(index, op.count)
        claim.setdefault("metadata", {})["name"] = name
        claim["spec"]["volumeName"] = volume_name
        claims, volumes = (
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
            "/api/v1/persistentvolumes",
        )
        self._bound_volumes.add(volume_name)
        for path, own, item in ((claims, name, claim), (volumes, volume_name, volume)):
            await self.api.request("POST", path, item, accept=METADATA_ALONE)
            item["status"] = {"phase": "Bound"}
            await self.api.request("PUT", f"{path}/{own}/status", item, accept=METADATA_ALONE)

    async def _create_steadily(self, namespace: str, bodies: list[bytes], seconds: float) -> None:
        """All pods at once; as soon as all are bound they are deleted, and others take their place."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        window = self.window
        if window is None or not bodies:
            raise FileError(f"{self.row.name}: a steady state needs pods and collectMetrics")
        window.wanted = None

        async def create(body: bytes) -> None:
            await self.api.request("POST", path, body, accept=METADATA_ALONE)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                batches = 0
                while True:
                    await in_parallel(map(create, bodies))
                    batches += 1
                    while window.bound < batches * len(bodies):
                        await asyncio.sleep(POLL_SECONDS / 4)
                    await self.api.request("DELETE", path, NOW)
        window.last = time.monotonic()

    async def delete_pods(self, number: int, op: DeletePods) -> None:
        path = f"/api/v1/namespaces/{op.namespace}/pods"
        names = [pod.name for pod in self.watch.of(op.namespace, op.label_selector)]

        async def delete() -> None:
            if not op.delete_pods_per_second:
                selector = ",".join(f"{key}={value}" for key, value in op.label_selector.items())
                await self.api.request(
                    "DELETE", path, query={"labelSelector": selector} if selector else None
                )
                return
            async for index in _ticks(len(names), 1 / op.delete_pods_per_second):
                with suppress(NotFound):
                    await self.api.request("DELETE", f"{path}/{names[index]}", accept=METADATA_ALONE)

        if op.skip_wait_to_completion:
            self._tasks.create_task(delete())
        else:
            await delete()

    async def churn(self, number: int, op: Churn) -> None:
        namespace = op.namespace or f"namespace-{number}"
        await self._ensure(namespace)
        items = [self._template(path).render(0, 1) for path in op.template_paths]
        paths = [await self._path(item["apiVersion"], item["kind"], namespace) for item in items]
        if op.mode == "recreate":
            turns = _ticks(None, op.interval_milliseconds / 1000)
        else:
            turns = _ticks(op.number or None, op.interval_milliseconds / 1000)
        made: dict[tuple[int, int], str] = {}

        async def change() -> None:
            async for turn in turns:
                for place, (path, item) in enumerate(zip(paths, items, strict=True)):
                    slot = (place, turn % op.number) if op.mode == "recreate" else (place, turn)
                    name = made.pop(slot, "")
                    if name:
                        with suppress(NotFound):
                            await self.api.request("DELETE", f"{path}/{name}", accept=METADATA_ALONE)
                        continue
                    with suppress(ApiError):
                        answer = await self.api.request("POST", path, item, accept=METADATA_ALONE)
                        if op.mode == "recreate":
                            made[slot] = msgspec.json.decode(answer.data)["metadata"]["name"]

        self._tasks.create_task(change())

    async def barrier(self, number: int, op: Barrier) -> None:
        for namespace in op.namespaces or list(self._expected):
            wanted = self._expected[namespace]
            await self._until(
                lambda: self.watch.count(namespace, op.label_selector, op.stage_requirement) >= wanted,  # noqa: B023
                0.05,
            )
            if op.stage_requirement == "Scheduled":
                del self._expected[namespace]

    async def sleep(self, number: int, op: Sleep) -> None:
        await asyncio.sleep(parse_duration(op.duration))

    async def start_collecting(self, number: int, op: StartCollectingMetrics) -> None:
        await self._start(Window(op.namespaces, op.label_selector))

    async def stop_collecting(self, number: int, op: StopCollectingMetrics) -> None:
        await self._stop()

    async def create_any(self, number: int, op: CreateAny | CreateResourceClaims) -> None:
        if op.namespace:
            await self._ensure(op.namespace)
        template = self._template(op.template_path)

        async def create(index: int) -> None:
            item = template.render(index, op.count)
            end = time.monotonic() + CREATE_SECONDS
            while True:
                try:
                    return await self._create(
                        item["apiVersion"], item["kind"], op.namespace, item, strict=True
                    )
                except ApiError as error:  # such as of a kind that was defined a moment ago
                    if time.monotonic() > end:
                        raise FileError(f"{template.path}: {error.message}") from None
                    await asyncio.sleep(1)

        await in_parallel(map(create, range(op.count)))

    async def update_any(self, number: int, op: UpdateAny) -> None:
        template = self._template(op.template_path)
        pause = 1 / op.update_per_second if op.update_per_second else 0.0
        query = {"fieldValidation": "Strict"}
        async for index in _ticks(op.count, pause):
            item = template.render(index, op.count)
            path = await self._path(item["apiVersion"], item["kind"], op.namespace)
            path = f"{path}/{item['metadata']['name']}"
            below = "".join(f"/{each}" for each in op.subresources)
            for part in (below, "/status"):
                await self.api.request("PUT", path + part, item, query=query, accept=METADATA_ALONE)

    async def create_resource_driver(self, number: int, op: CreateResourceDriver) -> None:
        nodes = (await self.api.get_json("/api/v1/nodes"))["items"]
        names = [node["metadata"]["name"] for node in nodes]

        async def create(name: str) -> None:
            item = _resource_slice(op.driver_name, name, op.max_claims_per_node)
            await self._create(DEVICES, "ResourceSlice", "", item)

        await in_parallel(map(create, fnmatch.filter(names, op.nodes)))

    async def allocate_claims(self, number: int, op: AllocResourceClaims) -> None:
        """Give every claim devices that no other claim has; the same ones in every run."""
        base = f"/apis/{DEVICES}"
        place = f"{base}/namespaces/{op.namespace}" if op.namespace else base
        claims = (await self.api.get_json(f"{place}/resourceclaims"))["items"]
        listed = (await self.api.get_json(f"{base}/resourceslices"))["items"]
        classes = (await self.api.get_json(f"{base}/deviceclasses"))["items"]
        offers = FreeDevices([decode(ResourceSlice, json.dumps(each).encode()) for each in listed], classes)

        async def allocate(claim: Json) -> None:
            meta = claim["metadata"]
            path = f"{base}/namespaces/{meta['namespace']}/resourceclaims/{meta['name']}/status"
            claim["status"] = {"allocation": offers.allocate(claim)}
            await self.api.request("PUT", path, claim, accept=METADATA_ALONE)

        waiting = [claim for claim in claims if not claim.get("status", {}).get("allocation")]
        await in_parallel(map(allocate, waiting))

    async def _bind_volumes(self) -> None:
        """Complete claims that volumes name: the scheduler binds from the volume's side."""
        volumes = "/api/v1/persistentvolumes"
        listed = await self.api.get_json(f"{volumes}?limit=1")
        found: asyncio.Queue[Json] = asyncio.Queue()

        def on_line(line: bytes) -> None:
            event = msgspec.json.decode(line)
            volume = event["object"]
            is_known = volume["metadata"]["name"] in self._bound_volumes
            if event["type"] != "DELETED" and not is_known and volume["spec"].get("claimRef"):
                found.put_nowait(volume)

        async def follow() -> None:
            query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
            await self.api.stream(volumes, on_line, query=query, silence=3600)

        self._tasks.create_task(follow())
        while True:
            volume = await found.get()
            claimed = volume["spec"]["claimRef"]
            path = f"/api/v1/namespaces/{claimed['namespace']}/persistentvolumeclaims/{claimed['name']}"
            with suppress(NotFound, Conflict):
                claim = await self.api.get_json(path)
                if not claim["spec"].get("volumeName"):
                    claim["spec"]["volumeName"] = volume["metadata"]["name"]
                    done = {"pv.kubernetes.io/bind-completed": "yes"}
                    claim["metadata"]["annotations"] = claim["metadata"].get("annotations", {}) | done
                    await self.api.request("PUT", path, claim)

    async def _ensure(self, namespace: str) -> None:
        if namespace not in self._namespaces:
            self._namespaces.add(namespace)
            with suppress(Conflict):
                body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                await self.api.request("POST", "/api/v1/namespaces", body)
        self._expected.setdefault(namespace, 0)

    async def _create(
        self, api_version: str, kind: str, namespace: str, item: Json, *, strict: bool = False
    ) -> None:
        path = await self._path(api_version, kind, namespace)
        query = {"fieldValidation": "Strict"} if strict else None
        await self.api.request("POST", path, item, query=query, accept=METADATA_ALONE)

    async def _path(self, api_version: str, kind: str, namespace: str) -> str:
        """Where objects of a kind are created; a namespace that the kind has not is ignored."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if (api_version, kind) not in self._resources:
            for each in (await self.api.get_json(root))["resources"]:
                if "/" not in each["name"]:
                    self._resources[api_version, each["kind"]] = each["name"], each["namespaced"]
        plural, is_namespaced = self._resources[api_version, kind]
        return f"{root}/namespaces/{namespace}/{plural}" if is_namespaced else f"{root}/{plural}"

    async def _until(self, is_so: Callable[[], bool], poll: float = POLL_SECONDS) -> None:
        while not is_so():
            await asyncio.sleep(poll)


class _AllDoneError(Exception):
    """Ends what runs in the background."""


class ClaimGarbage(Controller):
    """Claims that belong to pods are deleted with them; keys are uids of pods."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._claims = self.store(RESOURCE_CLAIMS)
        self._owned = self._claims.index(owner_keys)
        self.store(POD_KIND).listen(self._on_pod)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        if old is not None and new is None:
            self.queue.add(old.uid)

    async def reconcile(self, key: str) -> None:
        for claim in list(self._owned.of(key)):
            await self._claims.delete(claim)


class FreeDevices:
    """Devices of slices that no claim has yet, in an order that is random but always the same.

    Enough for claims with one request for one device, which is what scheduler_perf allocates ahead of time.
    """

    def __init__(self, slices: list[ResourceSlice], classes: list[Json]) -> None:
        self._selectors = {each["metadata"]["name"]: _expressions(each["spec"]) for each in classes}
        self._slices = [each.spec for each in slices]
        self._counters = {
            (spec.pool.name, group.name, name): int(counter.value)
            for spec in self._slices
            for group in spec.shared_counters
            for name, counter in group.counters.items()
        }
        kinds: Kinds = WeakValueDictionary()
        self._free = [
            (OfferedDevice(device, spec, kinds), spec) for spec in self._slices for device in spec.devices
        ]
        random.Random(0).shuffle(self._free)

    def allocate(self, claim: Json) -> Json:
        (request,) = claim["spec"]["devices"]["requests"]
        wanted = request["exactly"]
        expressions = self._selectors[wanted["deviceClassName"]] + _expressions(wanted)
        for place, (device, spec) in enumerate(self._free):
            if all(map(device.kind.satisfies, expressions)) and self._take(device):
                del self._free[place]
                result = {"request": request["name"], **device.id._asdict()}
                selector = _node_selector(spec)
                return {"devices": {"results": [result]}, **({"nodeSelector": selector} if selector else {})}
        raise FileError(f"no device is left for ResourceClaim {claim['metadata']['name']}")

    def _take(self, device: OfferedDevice) -> bool:
        needs = [
            ((device.id.pool, group.counter_set, name), int(counter.value))
            for group in device.spec.consumes_counters
            for name, counter in group.counters.items()
        ]
        if any(self._counters[key] < amount for key, amount in needs):
            return False
        for key, amount in needs:
            self._counters[key] -= amount
        return True


def _expressions(spec: Json) -> list[str]:
    return [each["cel"]["expression"] for each in spec.get("selectors", ())]


def _node_selector(spec: Any) -> Json | None:
    if spec.node_name:
        field = {"key": "metadata.name", "operator": "In", "values": [spec.node_name]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return msgspec.to_builtins(spec.node_selector) if spec.node_selector is not None else None


def _resource_slice(driver: str, node: str, count: int) -> Json:
    def device(number: int) -> Json:
        attributes = {
            "model": {"string": "A100"},
            "family": {"string": "GPU"},
            "driverVersion": {"version": "1.2.3"},
            "dra.example.com/numa": {"int": number},
        }
        memory = {"memory": {"value": "1Gi"}}
        return {"name": f"instance-{number}", "attributes": attributes, "capacity": memory}

    return {
        "apiVersion": DEVICES,
        "kind": "ResourceSlice",
        "metadata": {"name": node},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": 1, "generation": 0},
            "devices": [device(number) for number in range(count)],
        },
    }


def _csi_node(name: str, strategy: Json) -> Json:
    migrated = ",".join(strategy.get("migratedPlugins", ()))
    limits = strategy.get("csiNodeAllocatable", {})
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {
            "name": name,
            "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": migrated},
        },
        "spec": {
            "drivers": [
                {"name": driver, "nodeID": name, "allocatable": limit} for driver, limit in limits.items()
            ]
        },
    }


async def in_parallel(work: Iterable[Awaitable[Any]], at_once: int = AT_ONCE) -> None:
    left = iter(work)

    async def take() -> None:
        for each in left:
            await each

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(take())


async def _ticks(count: int | None, pause: float) -> AsyncIterator[int]:
    """Numbers from 0 at a fixed rate, of which none is made up for; without an end if there is no count."""
    due, number = time.monotonic(), 0
    while count is None or number < count:
        due = max(due + pause, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        yield number
        number += 1


RUN: dict[type, Callable[..., Awaitable[None]]] = {
    AllocResourceClaims: Workload.allocate_claims,
    Barrier: Workload.barrier,
    Churn: Workload.churn,
    CreateAny: Workload.create_any,
    CreateNamespaces: Workload.create_namespaces,
    CreateNodes: Workload.create_nodes,
    CreatePods: Workload.create_pods,
    CreateResourceClaims: Workload.create_any,
    CreateResourceDriver: Workload.create_resource_driver,
    DeletePods: Workload.delete_pods,
    Sleep: Workload.sleep,
    StartCollectingMetrics: Workload.start_collecting,
    StopCollectingMetrics: Workload.stop_collecting,
    UpdateAny: Workload.update_any,
}
