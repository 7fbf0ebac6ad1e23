"""NodeResourceTopology objects: what is left on the NUMA nodes of each node, and which pods that counts.

An exporter on each node writes them, and is always late: pods that were just placed are subtracted, and nodes
left out, until the object has all pods of its node.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from stowplan.api.faults import describe_faults
from stowplan.api.node import NodeStatus
from stowplan.api.quantity import NANO
from stowplan.api.requests import amount_of, amounts, quality_of
from stowplan.cluster import ClusterView
from stowplan.framework import Column, CustomResource, Definition, Handle, Pod, Quantity, Wire, keyed_by
from stowplan.plugins.pod_fingerprint import VERSION, fingerprint
from stowplan.plugins.quotas import amount_text

SINGLE = "single-numa-node"
MAX_ZONE = 64
"""The highest id of a NUMA node."""
MAX_AMOUNT = 2**56
"""A hundredfold of it still fits into 64 bits. No NUMA node has as much of anything."""
MAX_FAULTY = 3
"""Of how many objects the faults are told."""
_ZONE_NAME = re.compile(r"node-([0-9]{1,2})", re.ASCII)
_POLICIES = {
    f"{policy}{level}Level": (name, level.lower())
    for policy, name in (
        ("SingleNUMANode", SINGLE),
        ("BestEffort", "best-effort"),
        ("Restricted", "restricted"),
    )
    for level in ("Pod", "Container")
}


class ZoneResource(Wire, frozen=True):
    name: str
    capacity: Quantity = Quantity()
    allocatable: Quantity = Quantity()
    available: Quantity = Quantity()


class Cost(Wire, frozen=True):
    name: str
    value: int = 0


class Attribute(Wire, frozen=True):
    name: str
    value: str = ""


class Zone(Wire, frozen=True):
    name: str
    type: str = ""
    parent: str = ""
    costs: Annotated[tuple[Cost, ...], keyed_by("name")] = ()
    attributes: Annotated[tuple[Attribute, ...], keyed_by("name")] = ()
    resources: Annotated[tuple[ZoneResource, ...], keyed_by("name")] = ()


class NodeResourceTopology(CustomResource, frozen=True):
    """What is left on each NUMA node of the node with the same name."""

    definition: ClassVar = Definition(
        "topology.node.k8s.io",
        "v1alpha2",
        "noderesourcetopologies",
        "NodeResourceTopology",
        namespaced=False,
        short_names=("node-res-topo",),
        columns=(Column("Policies", ".topologyPolicies"),),
        has_status=False,
        approval="https://github.com/kubernetes/enhancements/pull/1870",
    )
    describes_node = True
    topology_policies: tuple[str, ...] = ()
    attributes: Annotated[tuple[Attribute, ...], keyed_by("name")] = ()
    zones: Annotated[tuple[Zone, ...], keyed_by("name")] = ()


class NumaNode(NamedTuple):
    id: int
    available: Mapping[str, int]
    """By resource, in the units of `Pod.requests`."""
    costs: Mapping[int, int]


class Topology(NamedTuple):
    """What an object says, as far as it can be used."""

    policy: str
    scope: str
    max_numa_nodes: int
    numa_nodes: tuple[NumaNode, ...]
    faults: tuple[str, ...]

    @classmethod
    def of(cls, item: NodeResourceTopology) -> Topology:
        policy, scope, most = "none", "container", 8
        if item.topology_policies:
            policy, scope = _POLICIES.get(item.topology_policies[0], (policy, scope))
        for each in item.attributes:
            if each.name == "topologyManagerPolicy":
                policy = each.value
            elif each.name == "topologyManagerScope":
                scope = each.value
            elif each.name == "topologyManagerMaxNUMANodes" and re.fullmatch("[0-9]{1,9}", each.value):
                most = min(int(each.value), 1024) if int(each.value) > 1 else most
        found: dict[int, NumaNode] = {}
        faults: list[str] = []
        for zone in item.zones:
            if zone.type != "Node":
                continue
            match = _ZONE_NAME.fullmatch(zone.name)
            if match is None or int(match[1]) > MAX_ZONE or int(match[1]) in found:
                faults.append(
                    f"zone {zone.name[:64]!r} is ignored: name it node-0, node-1 and so on, each once"
                )
                continue
            costs = {_id_of(cost.name): cost.value for cost in zone.costs if 0 <= cost.value < 2**31}
            found[int(match[1])] = NumaNode(int(match[1]), _available(zone, faults), costs)
        return cls(policy, scope, most, tuple(found[each] for each in sorted(found)), tuple(faults))


def _id_of(name: str) -> int:
    match = _ZONE_NAME.fullmatch(name)
    return int(match[1]) if match else -1


def _available(zone: Zone, faults: list[str]) -> dict[str, int]:
    found = {}
    for each in zone.resources:
        nanos = int(each.available)
        if nanos < 0 or nanos > each.allocatable:
            limit = max(0, min(nanos, int(each.allocatable)))
            faults.append(
                f"zone {zone.name} has more {each.name} available than allocatable, or less than none"
            )
            nanos = limit
        unit = NANO // 1000 if each.name == "cpu" else NANO
        found[each.name] = min(nanos // unit, MAX_AMOUNT)
    return found


def _surplus(item: NodeResourceTopology, status: NodeStatus | None) -> Iterator[str]:
    """Say of which resources the zones have more than their node has, so that they cannot be the node's.

    Of CPUs, memory and huge pages the node reserves some, which exporters need not know of: what is
    allocatable in zones may be up to the capacity of the node.
    """
    if status is None:
        return
    allocatable: Counter[str] = Counter()
    capacity: Counter[str] = Counter()
    for zone in item.zones:
        if zone.type == "Node":
            for each in zone.resources:
                allocatable[each.name] += each.allocatable
                capacity[each.name] += each.capacity
    for name, total in allocatable.items():
        what = "CPUs" if name == "cpu" else name
        size = status.capacity.get(name)
        offered = size if floats(name, "Burstable") else status.allocatable.get(name)
        if offered is not None and total > offered:
            has, most = (amount_text(name, amount_of(name, each)) for each in (total, offered))
            noun = "a capacity of " if floats(name, "Burstable") else ""
            yield f"its zones have {has} {what} allocatable, but the node has {noun}{most}"
        elif size is not None and capacity[name] > size:
            has, most = (amount_text(name, amount_of(name, each)) for each in (capacity[name], size))
            yield f"its zones have a capacity of {has} {what}, but the node has {most}"


FINGERPRINT, FINGERPRINT_METHOD = "nodeTopologyPodsFingerprint", "nodeTopologyPodsFingerprintMethod"
FINGERPRINT_ANNOTATION = "topology.node.k8s.io/fingerprint"
WITH_EXCLUSIVE = "with-exclusive-resources"


def attribute_of(item: NodeResourceTopology, name: str) -> str:
    return next((each.value for each in item.attributes if each.name == name), "")


def fingerprint_of(item: NodeResourceTopology) -> str:
    """The fingerprint of the pods that the object has; empty if the exporter does not write it."""
    found = attribute_of(item, FINGERPRINT) or item.metadata.annotations.get(FINGERPRINT_ANNOTATION, "")
    return found if found.startswith(VERSION) else ""


class NumaCache(msgspec.Struct, frozen=True, rename="camel"):
    foreign_pods_detect: str = "All"
    resync_method: str = "Autodetect"
    informer_mode: str = "Dedicated"
    resync_scope: str = "All"


class Part(NamedTuple):
    """Something that needs a NUMA node of its own: a container, or the pod as a whole."""

    what: str
    request: tuple[tuple[str, int], ...]
    stays: bool
    """Whether it keeps what it takes while others run: all but plain init containers."""


class Demand(NamedTuple):
    """What a pod requests from NUMA nodes."""

    quality: str
    is_any: bool
    """Whether NUMA nodes matter to it at all."""
    pod: Part
    containers: tuple[Part, ...]


class Held(msgspec.Struct):
    """What a pod takes that its node's object may not have yet."""

    request: Mapping[str, int]
    bound_at: float = math.inf


def demand_of(pod: Pod) -> Demand:
    found: Demand | None = pod.shape.memo.get("NodeResourceTopologyMatch")
    if found is None:
        found = pod.shape.memo["NodeResourceTopologyMatch"] = _demand_of(pod)
    return found


def _demand_of(pod: Pod) -> Demand:
    def part(what: str, request: Mapping[str, int], stays: bool) -> Part:
        return Part(what, tuple(sorted(each for each in request.items() if each[1] > 0)), stays)

    quality = quality_of(pod.shape)
    parts = [
        part("init container", amounts(each.resources.requests), each.is_sidecar)
        for each in pod.spec.init_containers
    ]
    parts += [part("container", amounts(each.resources.requests), True) for each in pod.spec.containers]
    whole = part("pod", pod.requests, True)
    is_any = quality != "BestEffort" or any(not is_native(name) for name, _ in whole.request)
    return Demand(quality, is_any, whole, tuple(parts))


def floats(resource: str, quality: str) -> bool:
    """Whether the kubelet takes it from any NUMA node: of pods that are not Guaranteed."""
    return quality != "Guaranteed" and (resource in ("cpu", "memory") or resource.startswith("hugepages-"))


def is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


class Topologies:
    """The objects to decide by, and the pods that they do not have yet."""

    def __init__(self, handle: Handle, settings: NumaCache, period: int, discards: bool) -> None:
        self._handle, self._settings, self._period, self._discards = handle, settings, period, discards
        self._subtracts = period > 0 and not discards
        """Whether pods that were just placed are subtracted."""
        self._items = handle.watched(NodeResourceTopology)
        self._items.follow(self._follow)
        self._parsed: dict[str, tuple[NodeResourceTopology, NodeStatus | None, Topology]] = {}
        """What an object says, with the object and the status of the node that it was compared with."""
        self._held: dict[str, dict[str, Held]] = {}
        """By node and the uid of the pod."""
        self._used: dict[str, NodeResourceTopology] = {}
        """The objects to decide by, where the newest do not have all pods of their node yet."""
        self._foreign: dict[str, set[str]] = {}
        """The uids of pods that another scheduler placed and that the object may not have yet, by node."""
        self._to_check: set[str] = set()
        """Nodes of which the object or the pods changed, so that they may agree by now."""
        self._appeared: set[str] = set()
        """Nodes of which the object came after pods: it may not have those that other schedulers placed."""
        self._of_all_profiles = _by_cluster.setdefault(handle.cluster, WeakSet())
        self._of_all_profiles.add(self)
        self.faults: dict[str, str] = {}
        """What is wrong with the object of a node, where anything is."""

    @property
    def is_served(self) -> bool:
        return self._items.is_served

    def _follow(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> None:
        name = new.name if new is not None else old.name if old is not None else ""
        if new is None:
            for known in (self._parsed, self._used, self._foreign, self.faults):
                known.pop(name, None)
        elif self._subtracts:
            held = self._held.get(name, {})
            if old is None and fingerprint_of(new):
                self._appeared.add(name)
                self._to_check.add(name)
            if not fingerprint_of(new):
                before = self._handle.now() - self._period
                for uid in [uid for uid, each in held.items() if each.bound_at <= before]:
                    del held[uid]
                self._used.pop(name, None)
            elif not held and name not in self._foreign:
                self._used.pop(name, None)
            elif old is not None and self._is_set_otherwise(self._used.get(name, old), new):
                self._accept(name)
            else:
                if old is not None:
                    self._used.setdefault(name, old)
                self._to_check.add(name)

    def _is_set_otherwise(self, known: NodeResourceTopology, new: NodeResourceTopology) -> bool:
        """Whether the kubelet was configured otherwise, so that what was known is of no use."""
        if self._settings.resync_scope == "OnlyResources":
            return False
        return Topology.of(known)[:3] != Topology.of(new)[:3]

    def _accept(self, name: str) -> None:
        """The newest object has all pods of its node."""
        for known in (self._used, self._foreign, self._held):
            known.pop(name, None)
        self._handle.cluster.nodes.touch(name)

    def check(self) -> None:
        """Use the newest objects of nodes whose pods are those that the object was written for."""
        if not self._to_check:
            return
        names, self._to_check = self._to_check, set()
        nodes = self._handle.cluster.nodes
        for name in names:
            item, row = self._items.get(name), nodes.row_of(name)
            if item is None:
                continue
            if row is None:
                self._to_check.add(name)  # until the node is known
                continue
            pods = nodes.pods_on(row)
            if self._has_all(item, pods):
                self._accept(name)
            elif name in self._appeared and (
                foreign := {pod.uid for pod in pods if self._is_foreign(pod, item)}
            ):
                self._foreign[name] = foreign
                nodes.touch(name)
            self._appeared.discard(name)

    def _has_all(self, item: NodeResourceTopology, pods: Sequence[Pod]) -> bool:
        method = self._settings.resync_method
        if method == "Autodetect":
            is_limited = attribute_of(item, FINGERPRINT_METHOD) == WITH_EXCLUSIVE
        else:
            is_limited = method == "OnlyExclusiveResources"
        counted = [pod for pod in pods if not is_limited or self._has_exclusive(pod, item)]
        return fingerprint(counted) == fingerprint_of(item)

    def _has_exclusive(self, pod: Pod, item: NodeResourceTopology) -> bool:
        """Whether the kubelet gives the pod resources that no other pod shares."""
        demand = demand_of(pod)
        listed = {each.name for zone in item.zones for each in zone.resources}
        for name, amount in demand.pod.request:
            if not is_native(name):
                is_exclusive = name in listed
            elif demand.quality == "Guaranteed":
                is_exclusive = amount % 1000 == 0 if name == "cpu" else floats(name, "Burstable")
            else:
                is_exclusive = False
            if is_exclusive:
                return True
        return False

    # Pods of others

    def pod_added(self, pod: Pod) -> None:
        name = pod.node_name
        item = self._items.get(name) if name and self._subtracts else None
        if item is None or not self._is_foreign(pod, item):
            return
        if fingerprint_of(item):
            self._foreign.setdefault(name, set()).add(pod.uid)
            self._to_check.add(name)
        else:
            request = dict(demand_of(pod).pod.request)
            self._held.setdefault(name, {})[pod.uid] = Held(request, self._handle.now())
        self._handle.cluster.nodes.touch(name)

    def _is_foreign(self, pod: Pod, item: NodeResourceTopology) -> bool:
        """Whether another scheduler placed the pod, and it counts."""
        detect = self._settings.foreign_pods_detect
        if detect == "None" or pod.scheduler_name in self._handle.scheduler_names:
            return False
        if detect == "OnlyExclusiveResources":
            return self._has_exclusive(pod, item)
        return demand_of(pod).is_any

    def pod_updated(self, old: Pod, pod: Pod) -> None:
        if pod.node_name and not old.node_name:
            self.pod_added(pod)
            self._pod_changed(pod)

    def pod_deleted(self, pod: Pod) -> None:
        if self._subtracts and pod.node_name:
            if self._held.get(pod.node_name, {}).pop(pod.uid, None) is not None:
                self._handle.cluster.nodes.touch(pod.node_name)
            self._pod_changed(pod)

    def _pod_changed(self, pod: Pod) -> None:
        name = pod.node_name
        if name in self._used or name in self._foreign or self._held.get(name):
            self._to_check.add(name)

    # What is known of a node

    def find(self, name: str) -> Topology | None:
        item = self._used.get(name) or self._items.get(name)
        if item is None:
            return None
        nodes = self._handle.cluster.nodes
        row = nodes.row_of(name)
        status = None if row is None else nodes.objects[row].status
        known = self._parsed.get(name)
        if known is None or known[0] is not item or known[1] is not status:
            topology = Topology.of(item) if known is None or known[0] is not item else known[2]
            known = self._parsed[name] = (item, status, topology)
            self._tell(item, (*_surplus(item, status), *topology.faults))
        return known[2]

    def _tell(self, item: NodeResourceTopology, faults: Sequence[str]) -> None:
        text = "; ".join(describe_faults(faults))
        if not text:
            self.faults.pop(item.name, None)
        elif self.faults.get(item.name) != text:
            self.faults[item.name] = text
            self._handle.record_event(item, "Warning", "InvalidNodeResourceTopology", text)

    def fault_texts(self, names: Collection[str]) -> Iterator[str]:
        """Sentences about what is wrong with the objects of these nodes."""
        for name in islice(names, MAX_FAULTY):
            if fault := self.faults.get(name):
                yield f"NodeResourceTopology {name}: {fault}."
        if (more := len(names) - MAX_FAULTY) > 0:
            yield f"{more} more NodeResourceTopology objects have faults."

    def is_stale(self, name: str) -> bool:
        if self._discards:
            return bool(self._held.get(name))
        return bool(self._foreign) and name in self._foreign

    def has_foreign_pods(self, name: str) -> bool:
        """Whether pods of other schedulers run there that the object may not have yet."""
        return name in self._foreign

    def held(self, name: str, resource: str) -> int:
        """What pods take of a resource that the object may not have yet."""
        return sum(each.request.get(resource, 0) for each in self._held.get(name, {}).values())

    # Pods that were just placed, by this profile or another one

    def reserve(self, pod: Pod, node_name: str) -> None:
        for each in self._of_all_profiles:
            each._hold(pod, node_name)

    def unreserve(self, pod: Pod, node_name: str) -> None:
        for each in self._of_all_profiles:
            each._release(pod, node_name)

    def bound(self, pod: Pod, node_name: str) -> None:
        for each in self._of_all_profiles:
            each._confirm(pod, node_name)

    def _hold(self, pod: Pod, node_name: str) -> None:
        if self._discards or self._period:
            self._held.setdefault(node_name, {})[pod.uid] = Held(dict(demand_of(pod).pod.request))
            self._handle.cluster.nodes.touch(node_name)

    def _release(self, pod: Pod, node_name: str) -> None:
        if self._held.get(node_name, {}).pop(pod.uid, None) is not None:
            self._handle.cluster.nodes.touch(node_name)

    def _confirm(self, pod: Pod, node_name: str) -> None:
        held = self._held.get(node_name, {}).get(pod.uid)
        if held is not None:
            held.bound_at = self._handle.now()
            if self._discards:
                self._release(pod, node_name)


_by_cluster: WeakKeyDictionary[ClusterView, WeakSet[Topologies]] = WeakKeyDictionary()
