"""NodeResourceTopologyMatch: places pods where the kubelet can give them CPUs, memory and devices of one NUMA
node, as NodeResourceTopology objects have it. An exporter on each node writes these objects.

Nodes whose kubelet has the policy single-numa-node reject pods that fit no NUMA node. Guaranteed pods are
scored by what is left on the NUMA nodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.quantity import NANO
from stowplan.api.requests import amounts, quality_of
from stowplan.config.field_errors import child, invalid, unsupported
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    Column,
    CustomResource,
    CycleState,
    Definition,
    Handle,
    Mask,
    NodeTable,
    Plugin,
    PluginArgs,
    Pod,
    Quantity,
    Reads,
    Reject,
    Resource,
    Scores,
    Status,
    Wire,
    keyed_by,
)
from stowplan.plugins.args import CPU_AND_MEMORY, ResourceSpec

SINGLE = "single-numa-node"
MAX_ZONE = 64
"""The highest id of a NUMA node."""
MAX_SETS = 1000
"""If there are more sets of so many NUMA nodes than this, they are not looked at."""
MAX_AMOUNT = 2**56
"""A hundredfold of it still fits into 64 bits. No NUMA node has as much of anything."""
FARTHEST = 255
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
NOT_FRESH = "invalid node topology data"


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
    """What is left on each NUMA node of the node by whose name it goes."""

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


class NumaStrategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = "LeastAllocated"
    resources: tuple[ResourceSpec, ...] = CPU_AND_MEMORY


class NumaCache(msgspec.Struct, frozen=True, rename="camel"):
    foreign_pods_detect: str = "All"
    resync_method: str = "Autodetect"
    informer_mode: str = "Dedicated"
    resync_scope: str = "All"


CHOICES = {
    "foreignPodsDetect": ("None", "All", "OnlyExclusiveResources"),
    "resyncMethod": ("All", "OnlyExclusiveResources", "Autodetect"),
    "informerMode": ("Shared", "Dedicated"),
    "resyncScope": ("All", "OnlyResources"),
}
STRATEGIES = ("MostAllocated", "BalancedAllocation", "LeastAllocated", "LeastNUMANodes")


class NodeResourceTopologyMatchArgs(PluginArgs):
    scoring_strategy: NumaStrategy = NumaStrategy()
    cache_resync_period_seconds: int = 0
    """Above 0, what pods take that were just placed is subtracted until their node's object must have it."""
    discard_reserved_nodes: bool = False
    cache: NumaCache | None = None
    """Accepted, and without effect: objects are always watched."""
    preemption_mode: str = "Disabled"
    """Accepted, and without effect: evicting pods does not help where no NUMA node has room."""

    def __post_init__(self) -> None:
        if not self.scoring_strategy.type or not self.scoring_strategy.resources:
            kind = self.scoring_strategy.type or "LeastAllocated"
            self.scoring_strategy = NumaStrategy(kind, self.scoring_strategy.resources or CPU_AND_MEMORY)
        self.preemption_mode = self.preemption_mode or "Disabled"

    def validate(self, path: str) -> Iterator[str]:
        strategy = self.scoring_strategy
        where = child(path, "scoringStrategy")
        if strategy.type not in STRATEGIES:
            yield unsupported(f"{where}.type", strategy.type, STRATEGIES)
        for index, resource in enumerate(strategy.resources):
            if not 0 < resource.weight < 2**31:
                yield invalid(
                    f"{where}.resources[{index}].weight", resource.weight, "must be from 1 to 2**31-1"
                )
        period = self.cache_resync_period_seconds
        if period < 0:
            yield invalid(child(path, "cacheResyncPeriodSeconds"), period, "must not be negative")
        if self.preemption_mode not in ("Enabled", "Disabled"):
            where = child(path, "preemptionMode")
            yield unsupported(where, self.preemption_mode, ("Enabled", "Disabled"))
        if self.cache is not None:
            chosen = msgspec.to_builtins(self.cache)
            for name, known in CHOICES.items():
                if chosen[name] not in known:
                    yield unsupported(f"{child(path, 'cache')}.{name}", chosen[name], known)


class Part(NamedTuple):
    """Something that needs a NUMA node of its own: a container, or the pod as a whole."""

    what: str
    request: tuple[tuple[str, int], ...]
    stays: bool
    """Whether it keeps what it takes while others run: all but plain init containers."""


class Demand(NamedTuple):
    """What of a pod counts."""

    quality: str
    is_any: bool
    """Whether NUMA nodes matter to it at all."""
    pod: Part
    containers: tuple[Part, ...]


class Held(msgspec.Struct):
    """What a pod takes that its node's object may not have yet."""

    request: Mapping[str, int]
    bound_at: float = math.inf


class NodeResourceTopologyMatch(Plugin):
    args: NodeResourceTopologyMatchArgs
    watches = (NodeResourceTopology,)
    reads = Reads.NODE

    def __init__(self, args: NodeResourceTopologyMatchArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._items = handle.watched(NodeResourceTopology)
        self._items.follow(self._follow)
        self._parsed: dict[str, tuple[NodeResourceTopology, Topology]] = {}
        self._width = 1
        """The most NUMA nodes that any node has."""
        self._held: dict[str, dict[str, Held]] = {}
        """By node and the uid of the pod."""
        self._reported: dict[str, str] = {}
        self._weights = {each.name: each.weight for each in args.scoring_strategy.resources}

    # What is known of nodes

    def _follow(self, old: NodeResourceTopology | None, new: NodeResourceTopology | None) -> None:
        name = new.name if new is not None else old.name if old is not None else ""
        held = self._held.get(name, {})
        before = self.handle.now() - self.args.cache_resync_period_seconds
        for uid in [uid for uid, each in held.items() if each.bound_at <= before]:
            del held[uid]
        if new is None:
            self._parsed.pop(name, None)

    def _topology(self, name: str) -> Topology | None:
        item = self._items.get(name)
        if item is None:
            return None
        known = self._parsed.get(name)
        if known is None or known[0] is not item:
            known = self._parsed[name] = (item, Topology.of(item))
            text = "; ".join(known[1].faults[:5])
            if self._reported.get(name, "") != text:
                self._reported[name] = text
                if text:
                    self.handle.record_event(item, "Warning", "InvalidNodeResourceTopology", text)
        return known[1]

    def _is_stale(self, name: str) -> bool:
        return self.args.discard_reserved_nodes and bool(self._held.get(name))

    def _kinds(self, nodes: NodeTable) -> tuple[Mask, Mask, Mask, Mask]:
        """Which nodes have no fresh object, which have one, which align pods, which align each container."""

        def compute(part: NodeTable) -> tuple[Mask, Mask, Mask, Mask]:
            found = [self._topology(name) for name in part.names]
            self._width = max([self._width, *(len(each.numa_nodes) for each in found if each)])
            aligns = [each is not None and each.policy == SINGLE for each in found]
            by_pod = [each is not None and each.scope == "pod" for each in found]
            return (
                np.array([self._is_stale(name) for name in part.names], np.bool_),
                np.array([each is not None for each in found], np.bool_),
                np.array(aligns, np.bool_),
                np.array(by_pod, np.bool_),
            )

        columns: tuple[Mask, Mask, Mask, Mask] = nodes.keep((self.serial, "kinds"), compute)
        return columns

    def _room(self, nodes: NodeTable, resource: str) -> NDArray[np.int64]:
        """What is available of a resource by node and NUMA node; -1 where a NUMA node does not list it."""
        width = self._width

        def compute(part: NodeTable) -> tuple[NDArray[np.int64]]:
            room = np.full((len(part), width), -1, np.int64)
            for row, name in enumerate(part.names):
                topology = self._topology(name)
                taken = sum(each.request.get(resource, 0) for each in self._held.get(name, {}).values())
                for place, numa in enumerate(topology.numa_nodes if topology else ()):
                    if (amount := numa.available.get(resource)) is not None:
                        room[row, place] = max(0, amount - taken)
            return (room,)

        (column,) = nodes.keep((self.serial, resource, width), compute)
        return column  # type: ignore[no-any-return]

    # What pods need

    def _demand(self, pod: Pod) -> Demand:
        found: Demand | None = pod.shape.memo.get("NodeResourceTopologyMatch")
        if found is None:
            found = pod.shape.memo["NodeResourceTopologyMatch"] = _demand_of(pod)
        return found

    def sign_pod(self, pod: Pod) -> Hashable:
        return self._demand(pod), self._items.is_served

    # Which nodes fit

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        demand = self._demand(pod)
        if not demand.is_any:
            return
        stale, _, aligns, by_pod = self._kinds(nodes)
        yield Reject(stale, NOT_FRESH)
        todo = aligns & ~stale
        for scope, parts in ((todo & by_pod, (demand.pod,)), (todo & ~by_pod, demand.containers)):
            if scope.any():
                rows = np.flatnonzero(scope)
                for what, failed in self._misfits(nodes, rows, parts, demand.quality):
                    mask = np.zeros(len(nodes), np.bool_)
                    mask[rows[failed]] = True
                    yield Reject(mask, f"cannot align {what}")

    def _misfits(
        self, nodes: NodeTable, rows: NDArray[np.intp], parts: Sequence[Part], quality: str
    ) -> Iterator[tuple[str, Mask]]:
        """Which of these nodes have no NUMA node for a part, with what that is; each node once."""
        names = {name for part in parts for name, _ in part.request}
        room = {name: self._room(nodes, name)[rows] for name in names}
        offered = {name: nodes.allocatable[name][rows] > 0 for name in names}
        fits = np.ones(len(rows), np.bool_)
        every = np.arange(len(rows))
        for part in parts:
            zones = np.ones((len(rows), self._width), np.bool_)
            for name, amount in part.request:
                listed = room[name] >= 0
                enough = listed if _floats(name, quality) else listed & (room[name] >= amount)
                if _is_host_level(name):
                    enough = enough | ~listed.any(axis=1, keepdims=True)
                zones &= enough & offered[name][:, None]
            failed = fits & ~zones.any(axis=1)
            if failed.any():
                yield part.what, failed
                fits &= ~failed
            if part.stays and part is not parts[-1]:
                chosen = zones.argmax(axis=1)
                for name, amount in part.request:
                    left = room[name][every, chosen]
                    room[name][every, chosen] = np.where(left >= 0, np.maximum(left - amount, 0), left)

    # Which is best

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        demand = self._demand(pod)
        if demand.quality != "Guaranteed":
            return np.full(len(nodes), MAX_SCORE, np.int64)
        stale, known, aligns, by_pod = self._kinds(nodes)
        scores = np.zeros(len(nodes), np.int64)
        if self.args.scoring_strategy.type == "LeastNUMANodes":
            todo = known & ~stale
            for scope, parts in ((todo & by_pod, (demand.pod,)), (todo & ~by_pod, demand.containers)):
                rows = np.flatnonzero(scope)
                if len(rows):
                    scores[rows] = self._least_numa_nodes(nodes, rows, parts)
            return scores
        todo = aligns & ~stale
        for scope, parts in ((todo & by_pod, (demand.pod,)), (todo & ~by_pod, demand.containers)):
            rows = np.flatnonzero(scope)
            if len(rows):
                total = sum(self._allocation_score(nodes, rows, part) for part in parts)
                scores[rows] = total // len(parts)
        return scores

    def _allocation_score(self, nodes: NodeTable, rows: NDArray[np.intp], part: Part) -> Scores:
        """The lowest score of a NUMA node that is not 0; 0 if all are."""
        strategy = self.args.scoring_strategy.type
        points, weights, shares = np.zeros((len(rows), self._width), np.int64), 0, []
        for name, amount in part.request:
            room, asked = np.maximum(self._room(nodes, name)[rows], 0), amount
            if name == "cpu":  # whole CPUs, rounded up
                room, asked = -(-room // 1000), -(-amount // 1000)
            if strategy == "BalancedAllocation":
                shares.append(np.where(room > 0, asked / np.maximum(room, 1), 1.0))
                continue
            weight = self._weights.get(name, 1)
            part_of = room - asked if strategy == "LeastAllocated" else np.full_like(room, asked)
            fits = (room > 0) & (asked <= room)
            percent = np.where(fits, part_of, 0) * MAX_SCORE // np.maximum(room, 1)
            points += percent * weight
            weights += weight
        if shares:
            spread = np.var(shares, axis=0, ddof=1) if len(shares) > 1 else np.zeros_like(shares[0])
            points = ((1 - spread) * MAX_SCORE).astype(np.int64)
            points[np.max(shares, axis=0) > 1] = 0
        elif weights:
            points //= weights
        lowest = np.where(points > 0, points, MAX_SCORE + 1).min(axis=1)
        return np.where(lowest > MAX_SCORE, 0, lowest)

    def _least_numa_nodes(self, nodes: NodeTable, rows: NDArray[np.intp], parts: Sequence[Part]) -> Scores:
        """The fewer NUMA nodes a part needs the better; half a step more if no such set is nearer."""
        names = {name for part in parts for name, _ in part.request}
        room = {name: self._room(nodes, name)[rows] for name in names}
        costs, most_allowed = (column[rows] for column in self._distances(nodes))
        count = np.zeros(len(rows), np.int64)
        fits, is_nearest = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        for part in parts:
            listed = [room[name] >= 0 for name, _ in part.request]
            asks = np.any(listed, axis=(0, 2)) if listed else np.zeros(len(rows), np.bool_)
            todo = np.flatnonzero(fits & asks)
            for size in range(1, self._width + 1):
                if not len(todo) or math.comb(self._width, size) > MAX_SETS:
                    break
                here = {name: column[todo] for name, column in room.items()}
                chosen, nearest = _nearest_sets(here, costs[todo], part.request, size)
                found = chosen.any(axis=1)
                done = todo[found]
                count[done] = np.maximum(count[done], size)
                is_nearest[done] &= nearest[found]
                if part.stays:
                    for name, amount in part.request:
                        _take(room[name], done, chosen[found], amount)
                todo = todo[~found]
            fits[todo] = False
        step = MAX_SCORE // most_allowed
        scores = np.maximum(MAX_SCORE - count * step + np.where(is_nearest, step // 2, 0), 0)
        return np.where(fits, np.where(count == 0, MAX_SCORE, scores), 0)

    def _distances(self, nodes: NodeTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What it costs to get from one NUMA node to another, -1 for those that are not there; and how many
        NUMA nodes the kubelet allows for."""
        width = self._width

        def compute(part: NodeTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            costs, most = np.full((len(part), width, width), -1, np.int64), np.full(len(part), 8, np.int64)
            for row, name in enumerate(part.names):
                if (topology := self._topology(name)) is not None:
                    ids = [numa.id for numa in topology.numa_nodes]
                    for place, numa in enumerate(topology.numa_nodes):
                        costs[row, place, : len(ids)] = [numa.costs.get(each, FARTHEST) for each in ids]
                    most[row] = topology.max_numa_nodes
            return costs, most

        columns: tuple[NDArray[np.int64], NDArray[np.int64]] = nodes.keep(
            (self.serial, "distances", width), compute
        )
        return columns

    # Pods that were just placed

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        if self.args.discard_reserved_nodes or self.args.cache_resync_period_seconds:
            self._held.setdefault(node_name, {})[pod.uid] = Held(dict(self._demand(pod).pod.request))
            self.handle.cluster.nodes.touch(node_name)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        if self._held.get(node_name, {}).pop(pod.uid, None) is not None:
            self.handle.cluster.nodes.touch(node_name)

    async def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        held = self._held.get(node_name, {}).get(pod.uid)
        if held is not None:
            held.bound_at = self.handle.now()
            if self.args.discard_reserved_nodes or not self.args.cache_resync_period_seconds:
                self.unreserve(state, pod, node_name)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),
            ClusterEvent(NodeResourceTopology.definition.event_resource, Action.ADD | Action.UPDATE),
        )


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
    is_any = quality != "BestEffort" or any(not _is_native(name) for name, _ in whole.request)
    return Demand(quality, is_any, whole, tuple(parts))


def _nearest_sets(
    room: Mapping[str, NDArray[np.int64]],
    costs: NDArray[np.int64],
    request: Sequence[tuple[str, int]],
    size: int,
) -> tuple[Mask, Mask]:
    """For each node the nearest set of so many NUMA nodes that holds the request, and if none is nearer."""
    count, width = costs.shape[:2]
    never = np.iinfo(np.int64).max
    nearest, best = np.full(count, never), np.full(count, never)
    chosen = np.zeros((count, width), np.bool_)
    for places in map(list, combinations(range(width), size)):
        pairs = costs[:, places][:, :, places]
        exists = pairs.min(axis=(1, 2)) >= 0
        distance = np.where(exists, pairs.sum(axis=(1, 2)), never)
        nearest = np.minimum(nearest, distance)
        good = exists & (distance < best)
        for name, amount in request:
            amounts_here = room[name][:, places]
            good &= (amounts_here.min(axis=1) >= 0) & (amounts_here.sum(axis=1) >= amount)
        best[good] = distance[good]
        chosen[good] = False
        chosen[np.ix_(good, places)] = True
    return chosen, best <= nearest


def _take(room: NDArray[np.int64], rows: NDArray[np.intp], chosen: Mask, amount: int) -> None:
    """Take the amount from the chosen NUMA nodes of these rows, one after another."""
    left = np.full(len(rows), amount, np.int64)
    for place in range(room.shape[1]):
        given = np.where(chosen[:, place], np.minimum(left, room[rows, place]), 0)
        room[rows, place] -= given
        left -= given


def _floats(resource: str, quality: str) -> bool:
    """Whether the kubelet takes it from any NUMA node: of pods that are not Guaranteed."""
    return quality != "Guaranteed" and (resource in ("cpu", "memory") or resource.startswith("hugepages-"))


def _is_native(resource: str) -> bool:
    return "/" not in resource or "kubernetes.io/" in resource


def _is_host_level(resource: str) -> bool:
    """Whether a resource may belong to no NUMA node."""
    return resource in ("ephemeral-storage", "storage") or not _is_native(resource)
