"""NodeResourceTopologyMatch: places pods where the kubelet can give them CPUs, memory and devices of one NUMA
node, as NodeResourceTopology objects have it. An exporter on each node writes these objects.

Nodes whose kubelet has the policy single-numa-node reject pods that fit no NUMA node. Guaranteed pods are
scored by what is left on the NUMA nodes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.cluster.columns import Columns
from stowplan.config.field_errors import child, invalid, unsupported
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Mask,
    NodeTable,
    PluginArgs,
    Pod,
    Reads,
    Reject,
    Resource,
    Scores,
    Status,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.args import CPU_AND_MEMORY, ResourceSpec
from stowplan.plugins.node_resource_topologies import (
    SINGLE,
    Demand,
    NodeResourceTopology,
    NumaCache,
    Part,
    Topologies,
    Topology,
    demand_of,
    floats,
    is_native,
)
from stowplan.plugins.quotas import amount_text

MAX_SETS = 1000
"""If there are more sets of so many NUMA nodes than this, they are not looked at."""
MAX_CELLS = 2**15
"""So many sets of NUMA nodes, over all nodes, are looked at in one go."""
EXACT = 2**46
"""A hundredfold of it is less than 2**53, up to which floats are exact."""
FARTHEST = 255
NOT_FRESH = "invalid node topology data"
BY_POD, BY_CONTAINER = 0, 1
Matrix = tuple[tuple[int, ...], ...]
"""What it costs to get from each NUMA node of a node to each other."""


class NumaStrategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = "LeastAllocated"
    resources: tuple[ResourceSpec, ...] = CPU_AND_MEMORY


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
    """Above 0, what pods take that were just placed is subtracted until their node's object has it."""
    discard_reserved_nodes: bool = False
    cache: NumaCache | None = None
    """`informerMode` has no effect: objects are always watched."""
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


class Scope(NamedTuple):
    """The nodes with a usable object and as many NUMA nodes, whose kubelets align pods as a whole, or those
    that align containers. Apart from each other: one node with many NUMA nodes must not slow down all."""

    number: int
    """Twice the width, and BY_POD or BY_CONTAINER."""
    rows: NDArray[np.intp]
    aligns: Mask
    """Which of them reject pods that do not fit one NUMA node."""
    is_any: bool
    """Whether any of them does."""

    @property
    def width(self) -> int:
        """How many NUMA nodes each of them has; 1 if it has none."""
        return self.number // 2

    def parts_of(self, demand: Demand) -> Sequence[Part]:
        return (demand.pod,) if self.number % 2 == BY_POD else demand.containers


class Room(NamedTuple):
    """What is available of a resource on the nodes of a scope: a line for each NUMA node, in which each node
    has a column. Operations on a few long lines are much faster than on many short rows."""

    amounts: NDArray[np.int64]
    """-1 where a NUMA node does not list it, and -2 where the node does not have so many NUMA nodes."""
    usable: NDArray[np.int64]
    """The same, but -1 where the node itself does not offer it."""
    is_listed: Mask
    """By node, whether any NUMA node lists it."""
    is_elsewhere: Mask
    """By node, whether it offers the resource and no NUMA node lists it."""
    whole: NDArray[np.float64]
    """What requests are divided by for scores: whole CPUs, rounded up, and 0.5, less than any request, where
    there is nothing."""
    share_without: NDArray[np.float64]
    """For BalancedAllocation: what a request takes of a NUMA node that has nothing, 1, and 0 for others."""


class NodeResourceTopologyMatch(ExplainingPlugin):
    args: NodeResourceTopologyMatchArgs
    enables = {"preFilter": ()}
    watches = (NodeResourceTopology,)
    reads = Reads.NODE

    def __init__(self, args: NodeResourceTopologyMatchArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._topologies = Topologies(
            handle, args.cache or NumaCache(), args.cache_resync_period_seconds, args.discard_reserved_nodes
        )
        self._width = 1
        """The most NUMA nodes that any node has."""
        self._matrices: dict[Matrix, int] = {}
        """The different costs between NUMA nodes, with their numbers: machines of a kind have the same."""
        self._generation = 0
        """Grows when matrices get new numbers."""
        self._scratch = Scratch()
        self._weights = {each.name: each.weight for each in args.scoring_strategy.resources}

    def _scopes(self, nodes: NodeTable) -> tuple[Mask, list[Scope]]:
        """Which nodes have an object that is not fresh; and those with a fresh one, by scope."""

        def compute(part: NodeTable) -> tuple[NDArray[np.int16], Mask, Mask]:
            found = [self._topologies.find(name) for name in part.names]
            self._width = max([self._width, *(len(each.numa_nodes) for each in found if each)])
            return (
                self._scope_numbers(part),
                np.array([each is not None and each.policy == SINGLE for each in found], np.bool_),
                np.array([self._topologies.is_stale(name) for name in part.names], np.bool_),
            )

        def finish(columns: Columns) -> tuple[Mask, list[Scope]]:
            scopes = []
            for number in _numbers_in(columns[0]):
                rows = np.flatnonzero(columns[0] == number)
                aligns = columns[1][rows]
                scopes.append(Scope(number, rows, aligns, bool(aligns.any())))
            return columns[2], scopes

        found: tuple[Mask, list[Scope]] = nodes.keep((self.serial, "scopes"), compute, finish=finish)
        return found

    def _scope_numbers(self, nodes: NodeTable) -> NDArray[np.int16]:
        """See Scope.number; -1 for nodes without an object that can be used."""
        found = np.full(len(nodes), -1, np.int16)
        for row, name in enumerate(nodes.names):
            topology = self._topologies.find(name)
            if topology is not None and not self._topologies.is_stale(name):
                kind = BY_POD if topology.scope == "pod" else BY_CONTAINER
                found[row] = 2 * max(len(topology.numa_nodes), 1) + kind
        return found

    def _room(self, nodes: NodeTable, resource: str, scope: Scope) -> Room:
        """What is available of a resource on the NUMA nodes of the nodes of a scope."""
        width = self._width

        def compute(part: NodeTable) -> tuple[NDArray[np.int64], Mask, NDArray[np.int16]]:
            room = np.full((len(part), width), -2, np.int64)
            for row, name in enumerate(part.names):
                topology = self._topologies.find(name)
                taken = self._topologies.held(name, resource)
                for place, numa in enumerate(topology.numa_nodes if topology else ()):
                    amount = numa.available.get(resource)
                    room[row, place] = -1 if amount is None else max(0, amount - taken)
            return room, part.allocatable[resource] > 0, self._scope_numbers(part)

        def finish(columns: Columns) -> dict[int, Room]:
            rooms = {}
            for number in _numbers_in(columns[2]):
                is_here = columns[2] == number
                amounts = np.ascontiguousarray(columns[0][is_here, : number // 2].T)
                is_offered = columns[1][is_here]
                whole = np.ceil(amounts / 1000) if resource == "cpu" else amounts.astype(np.float64)
                is_listed = reduce(np.maximum, amounts) >= 0
                usable = amounts if is_offered.all() else np.where(is_offered, amounts, -1)
                elsewhere = is_offered & ~is_listed
                without = np.zeros((0, 0))
                if self.args.scoring_strategy.type == "BalancedAllocation":
                    is_empty = (whole < 1) & (amounts > -2)
                    whole, without = np.where(is_empty, np.inf, whole), is_empty.astype(np.float64)
                rooms[number] = Room(amounts, usable, is_listed, elsewhere, np.maximum(whole, 0.5), without)
            return rooms

        found: dict[int, Room] = nodes.keep((self.serial, resource, width), compute, finish=finish)
        return found[scope.number]

    def sign_pod(self, pod: Pod) -> Hashable:
        self._topologies.check()
        return demand_of(pod), self._topologies.is_served

    # Which nodes fit

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        demand = demand_of(pod)
        if not demand.is_any:
            return
        stale, scopes = self._scopes(nodes)
        yield Reject(stale, NOT_FRESH)
        for scope in scopes:
            if scope.is_any:
                for what, failed in self._misfits(nodes, scope, scope.parts_of(demand), demand.quality):
                    mask = np.zeros(len(nodes), np.bool_)
                    mask[scope.rows[failed]] = True
                    yield Reject(mask, f"cannot align {what}")

    def _misfits(
        self, nodes: NodeTable, scope: Scope, parts: Sequence[Part], quality: str
    ) -> Iterator[tuple[str, Mask]]:
        """Which nodes of a scope have no NUMA node for a part, with what that is; each node once."""
        known = {name: self._room(nodes, name, scope) for part in parts for name, _ in part.request}
        room = {name: each.usable for name, each in known.items()}
        if any(part.stays for part in parts[:-1]):  # then it is changed below
            room = {name: each.copy() for name, each in room.items()}
        elsewhere = {name: each.is_elsewhere for name, each in known.items() if _is_host_level(name)}
        fits = scope.aligns.copy()
        for part in parts:
            zones = np.ones((scope.width, len(fits)), np.bool_)
            for name, amount in part.request:
                enough = room[name] >= (0 if floats(name, quality) else amount)
                if name in elsewhere:
                    enough |= elsewhere[name]
                zones &= enough
            failed = fits & ~reduce(np.logical_or, zones)
            if failed.any():
                yield part.what, failed
                fits &= ~failed
            if part.stays and part is not parts[-1]:
                _take_from_first(room, zones, part.request)

    # Which is best

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        demand = demand_of(pod)
        if demand.quality != "Guaranteed":
            return np.full(len(nodes), MAX_SCORE, np.int64)
        scores = np.zeros(len(nodes), np.int64)
        for scope in self._scopes(nodes)[1]:
            parts = scope.parts_of(demand)
            if self.args.scoring_strategy.type == "LeastNUMANodes":
                scores[scope.rows] = self._least_numa_nodes(nodes, scope, parts)
            elif scope.is_any:
                total = sum(self._allocation_score(nodes, scope, part) for part in parts)
                scores[scope.rows] = np.where(scope.aligns, total // len(parts), 0)
        return scores

    def _allocation_score(self, nodes: NodeTable, scope: Scope, part: Part) -> Scores:
        """The lowest score of a NUMA node that is not 0; 0 if all are."""
        rooms = [self._room(nodes, name, scope) for name, _ in part.request]
        asked = [-(-amount // 1000) if name == "cpu" else amount for name, amount in part.request]
        weights = [self._weights.get(name, 1) for name, _ in part.request]
        strategy = self.args.scoring_strategy.type
        if not asked:
            return np.zeros(len(scope.rows), np.int64)
        if strategy == "BalancedAllocation":
            return _least_balance(asked, rooms, self._scratch)
        return _least_share(asked, rooms, weights, strategy == "LeastAllocated", self._scratch)

    def _least_numa_nodes(self, nodes: NodeTable, scope: Scope, parts: Sequence[Part]) -> Scores:
        """The fewer NUMA nodes a part needs the better; half a step more if no such set is nearer."""
        known = {name: self._room(nodes, name, scope) for part in parts for name, _ in part.request}
        room = {name: each.amounts for name, each in known.items()}
        if any(part.stays for part in parts[:-1]):  # then it is changed below
            room = {name: each.copy() for name, each in room.items()}
        distances = self._distances(nodes, scope)
        count = np.zeros(len(scope.rows), np.int64)
        fits, is_nearest = np.ones(len(count), np.bool_), np.ones(len(count), np.bool_)
        for part in parts:
            if not part.request:
                continue
            takes = part.stays and part is not parts[-1]
            zones = reduce(np.logical_and, [room[name] >= amount for name, amount in part.request])
            nearest = distances.keep_nearest(zones)
            found = reduce(np.logical_or, zones)
            if nearest is not None:
                is_nearest &= nearest | ~found
            np.maximum(count, found, out=count)
            if takes:
                _take_from_first(room, zones, part.request)
            asks = reduce(np.logical_or, [known[name].is_listed for name, _ in part.request])
            todo = np.flatnonzero(fits & asks & ~found)
            able = _all_hold({name: room[name].take(todo, axis=1) for name, _ in part.request}, part.request)
            fits[todo[~able]] = False
            todo = todo[able]
            for size in range(2, scope.width + 1):
                if not len(todo) or math.comb(scope.width, size) > MAX_SETS:
                    break
                here = {name: room[name].take(todo, axis=1) for name, _ in part.request}
                sets, kinds = distances.of_size(size), distances.kinds[todo]
                chosen, nearest = _nearest_sets(here, sets, kinds, part.request)
                found = reduce(np.logical_or, chosen)
                done = todo[found]
                count[done] = np.maximum(count[done], size)
                is_nearest[done] &= nearest[found]
                if takes:
                    for name, amount in part.request:
                        _take(room[name], done, chosen.compress(found, axis=1), amount)
                todo = todo[~found]
            fits[todo] = False
        step = distances.step
        scores: Scores = np.maximum(MAX_SCORE - count * step + np.where(is_nearest, step // 2, 0), 0)
        scores[count == 0] = MAX_SCORE
        scores[~fits] = 0
        return scores

    def _distances(self, nodes: NodeTable, scope: Scope) -> Distances:
        if len(self._matrices) > 2 * len(nodes.live) + MAX_SETS:  # most of them are of objects that changed
            self._matrices, self._generation = {}, self._generation + 1

        def compute(part: NodeTable) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int16]]:
            found = [self._topologies.find(name) for name in part.names]
            return (
                np.array([self._number_of(each) for each in found], np.intp),
                np.array([each.max_numa_nodes if each else 8 for each in found], np.int64),
                self._scope_numbers(part),
            )

        def finish(columns: Columns) -> dict[int, Distances]:
            matrices, found = list(self._matrices), {}
            for number in _numbers_in(columns[2]):
                is_here = columns[2] == number
                used, kinds = np.unique(columns[0][is_here], return_inverse=True)
                costs = np.array([matrices[each] for each in used.tolist()], np.int64)
                costs = costs.reshape(len(used), number // 2, number // 2)
                found[number] = Distances(costs, kinds, columns[1][is_here])
            return found

        key = (self.serial, "distances", self._generation)
        found: dict[int, Distances] = nodes.keep(key, compute, finish=finish)
        return found[scope.number]

    def _number_of(self, topology: Topology | None) -> int:
        """The number of the node's matrix."""
        numa_nodes = topology.numa_nodes if topology else ()
        ids = [numa.id for numa in numa_nodes]
        matrix = tuple(tuple(numa.costs.get(each, FARTHEST) for each in ids) for numa in numa_nodes)
        return self._matrices.setdefault(matrix or ((-1,),), len(self._matrices))

    # In words

    def explain_rejections(self, pod: Pod, node_names: Sequence[str]) -> Iterator[str]:
        """What each NUMA node of these nodes lacks, and what is wrong with their objects."""
        for name in node_names:
            topology = self._topologies.find(name)
            if self._topologies.has_foreign_pods(name):
                yield f"{name} has pods of other schedulers that its NodeResourceTopology does not have yet."
            elif topology is not None and topology.policy == SINGLE and not self._topologies.is_stale(name):
                for text in self._lacking(pod, name, topology):
                    yield text
                    yield from self._topologies.fault_texts((name,))

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        if demand_of(pod).is_any:
            yield from self._topologies.fault_texts(self._topologies.faults)

    def _lacking(self, pod: Pod, node_name: str, topology: Topology) -> Iterator[str]:
        demand, row = demand_of(pod), self.handle.cluster.nodes.row_of(node_name)
        if row is None:
            return
        parts: Sequence[Part] = (demand.pod,)
        names = [pod.name]
        if topology.scope != "pod":
            parts = demand.containers
            names = [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]
        room = {
            numa.id: {
                name: max(0, amount - self._topologies.held(node_name, name))
                for name, amount in numa.available.items()
            }
            for numa in topology.numa_nodes
        }
        offered = self.handle.cluster.nodes.objects[row].allocatable
        for part, part_name in zip(parts, names, strict=True):
            what = f"{node_name} cannot align {part.what} {part_name}"
            if missing := [name for name, _ in part.request if not offered.get(name)]:
                yield f"{what}: the node has no {missing[0]}."
                return
            lacks = [_lacks(part.request, each, room, demand.quality) for each in room.values()]
            if all(lacks):
                texts = [f"numa node {number} has {text}" for number, text in zip(room, lacks, strict=True)]
                yield f"{what}: {'; '.join(texts) or 'the node has no NUMA nodes'}."
                return
            if part.stays:
                chosen = next(each for each, lack in zip(room.values(), lacks, strict=True) if not lack)
                for name, amount in part.request:
                    if name in chosen:
                        chosen[name] = max(chosen[name] - amount, 0)

    # Pods that come, go, and are placed

    def pod_added(self, pod: Pod) -> None:
        self._topologies.pod_added(pod)

    def pod_updated(self, old: Pod, pod: Pod) -> None:
        self._topologies.pod_updated(old, pod)

    def pod_deleted(self, pod: Pod) -> None:
        self._topologies.pod_deleted(pod)

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        self._topologies.reserve(pod, node_name)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self._topologies.unreserve(pod, node_name)

    async def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self._topologies.bound(pod, node_name)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),
            ClusterEvent(NodeResourceTopology.definition.event_resource, Action.ADD | Action.UPDATE),
        )


class Distances:
    """What it costs to get from one NUMA node to another, and how many the kubelet allows for, by node."""

    def __init__(
        self, costs: NDArray[np.int64], kinds: NDArray[np.intp], max_numa_nodes: NDArray[np.int64]
    ) -> None:
        self.step = MAX_SCORE // max_numa_nodes
        """What one NUMA node more costs."""
        self.kinds = kinds
        """The place of each node's costs."""
        self._costs = np.ascontiguousarray(costs.transpose(1, 2, 0))
        """By NUMA node and NUMA node; -1 for one that is not there."""
        self._by_size: dict[int, Sets] = {}
        single = self.of_size(1)
        self._are_alike = bool((single.distance == single.nearest).all())
        """Whether all NUMA nodes of each node are as far from themselves."""

    def keep_nearest(self, zones: Mask) -> Mask | None:
        """Keep the NUMA nodes nearest to themselves, and return where none is nearer; None for everywhere."""
        if self._are_alike:
            return None
        sets = self.of_size(1)
        distance = np.where(zones, sets.distance.take(self.kinds, axis=1), NEVER)
        best = reduce(np.minimum, distance)
        zones &= distance == best
        nearest: Mask = best <= sets.nearest[self.kinds]
        return nearest

    def of_size(self, size: int) -> Sets:
        found = self._by_size.get(size)
        if found is None:
            width = len(self._costs)
            places = np.array(list(combinations(range(width), size)), np.intp)
            distances = np.empty((len(places), self._costs.shape[2]), np.int64)
            members = np.zeros((width, len(places) + 1), np.bool_)
            for number, each in enumerate(places.tolist()):
                distances[number] = reduce(
                    np.add, [self._costs[one, other] for one in each for other in each]
                )
                members[each, number] = True
            found = self._by_size[size] = Sets(places, members, distances, reduce(np.minimum, distances))
        return found


class Sets(NamedTuple):
    """All sets of so many NUMA nodes."""

    places: NDArray[np.intp]
    """The NUMA nodes of each set."""
    members: Mask
    """The same by NUMA node and set, and one column more, for none."""
    distance: NDArray[np.int64]
    """Between the NUMA nodes of each set, by set and kind of node."""
    nearest: NDArray[np.int64]


NEVER = np.iinfo(np.int64).max


def _numbers_in(column: NDArray[np.int16]) -> list[int]:
    """The different numbers of a column that are not negative."""
    found: list[int] = np.flatnonzero(np.bincount(column[column >= 0])).tolist()
    return found


def _all_hold(room: Mapping[str, NDArray[np.int64]], request: Sequence[tuple[str, int]]) -> Mask:
    """Whether all NUMA nodes of a node hold the request together; if not, no set of them does."""
    listed = reduce(np.logical_and, [room[name] >= 0 for name, _ in request])
    totals = [(reduce(np.add, np.where(listed, room[name], 0)), amount) for name, amount in request]
    return reduce(np.logical_and, [total >= amount for total, amount in totals])


def _nearest_sets(
    room: Mapping[str, NDArray[np.int64]],
    sets: Sets,
    kinds: NDArray[np.intp],
    request: Sequence[tuple[str, int]],
) -> tuple[Mask, Mask]:
    """For each node, given its kind, the nearest set that holds the request, and if none is nearer."""
    best, choice = np.full(len(kinds), NEVER), np.full(len(kinds), -1, np.intp)
    listed = reduce(np.logical_and, [room[name] >= 0 for name, _ in request])
    size = max(MAX_CELLS // len(kinds), 1)
    for start in range(0, len(sets.places), size):
        places = sets.places[start : start + size].T
        good = reduce(np.logical_and, [listed.take(place, axis=0) for place in places])
        for name, amount in request:
            good &= reduce(np.add, [room[name].take(place, axis=0) for place in places]) >= amount
        distance = sets.distance[start : start + size].take(kinds, axis=1)
        distance[~good] = NEVER
        number = distance.argmin(axis=0)
        nearest = reduce(np.minimum, distance)
        choice = np.where(nearest < best, start + number, choice)
        best = np.minimum(nearest, best)
    return sets.members.take(choice, axis=1), best <= sets.nearest[kinds]


class Scratch:
    """Memory for columns that are needed for a moment. New memory of their size comes from the kernel, page
    by page, which may take longer than to compute them."""

    def __init__(self) -> None:
        self._memory = np.empty(0)

    def columns(self, count: int, like: NDArray[np.float64]) -> NDArray[np.float64]:
        """So many columns of the same shape, with anything in them. They are valid until the next call."""
        if len(self._memory) < count * like.size:
            self._memory = np.empty(count * like.size)
        return self._memory[: count * like.size].reshape(count, *like.shape)


def _least_share(
    asked: Sequence[int],
    rooms: Sequence[Room],
    weights: Sequence[int],
    counts_left: bool,
    scratch: Scratch,
) -> Scores:
    """By node, the lowest score of a NUMA node that is not 0, 0 if all are: how much of it the
    request leaves, or takes, in percent."""
    # A line of limits is compared faster than a single one, and to multiply by a mask is faster than to
    # assign to where it holds, which cannot be predicted.
    points, percent = scratch.columns(2, rooms[0].whole)
    limits = np.full(points.shape[1], float(MAX_SCORE))
    for number, (amount, room, weight) in enumerate(zip(asked, rooms, weights, strict=True)):
        out = percent if number else points
        if amount < EXACT:  # then what is rounded here is right, too
            np.divide(amount * MAX_SCORE, room.whole, out=out)
            if counts_left:
                np.minimum(np.ceil(out, out=out), limits, out=out)
            else:
                np.floor(out, out=out)
                out *= room.whole >= amount
        else:
            exact = np.maximum(room.amounts, 1)
            left = exact - amount if counts_left else np.full_like(exact, amount)
            shares = np.maximum(left, 0) * MAX_SCORE // exact * (exact >= amount)
            out[:] = MAX_SCORE - shares if counts_left else shares
        if weight != 1:
            out *= weight
        if number:
            points += percent
    # Sums are at most 100 times the weights, so exact. Only that of one NUMA node has to be divided: the
    # lowest score is what is left by the most that is taken. At least something is, so 0 stands for those
    # left out. If the score is what is taken, both are counted from the other end.
    whole = MAX_SCORE * sum(weights)
    if counts_left:
        points *= points <= whole - sum(weights)
    else:
        is_any = points >= sum(weights)
        whole += 1
        np.subtract(whole, points, out=points)
        points *= is_any
    most_taken: NDArray[np.float64] = np.maximum.reduce(points)
    lowest = (whole - most_taken) * (most_taken > 0)
    lowest /= sum(weights)
    return np.floor(lowest, out=lowest).astype(np.int64)


def _least_balance(asked: Sequence[int], rooms: Sequence[Room], scratch: Scratch) -> Scores:
    """By node, the lowest score of a NUMA node that has room, 0 if none has: 100 if the request
    takes equal shares of all resources there, and less the more they differ."""
    columns = scratch.columns(len(asked) + 1, rooms[0].whole)
    shares, mean = columns[:-1], columns[-1]
    for amount, room, share in zip(asked, rooms, shares, strict=True):
        np.divide(amount, room.whole, out=share)
        share += room.share_without
    has_room = np.maximum.reduce(shares, out=mean) <= 1
    np.add.reduce(shares, out=mean)
    mean /= len(shares)
    shares -= mean
    shares *= shares
    spread = np.add.reduce(shares, out=mean)
    if len(shares) > 2:
        spread /= len(shares) - 1
    spread *= has_room
    # The larger the spread the lower the score, which is at least 50: no two shares differ by more than 1.
    scores: NDArray[np.float64] = (1 - np.maximum.reduce(spread)) * MAX_SCORE
    scores *= np.logical_or.reduce(has_room)
    return scores.astype(np.int64)


def _take(room: NDArray[np.int64], rows: NDArray[np.intp], chosen: Mask, amount: int) -> None:
    """Take the amount from the chosen NUMA nodes of these columns, one after another."""
    left = np.full(len(rows), amount, np.int64)
    for place, line in enumerate(room):
        given = np.where(chosen[place], np.minimum(left, line[rows]), 0)
        line[rows] -= given
        left -= given


def _take_from_first(
    room: Mapping[str, NDArray[np.int64]], zones: Mask, request: Sequence[tuple[str, int]]
) -> None:
    """Take the request from the first NUMA node of each node that `zones` allows."""
    is_done = np.zeros(zones.shape[1], np.bool_)
    for place, allowed in enumerate(zones):
        here = allowed & ~is_done
        is_done |= allowed
        for name, amount in request:
            line = room[name][place]
            np.copyto(line, np.maximum(line - amount, 0), where=here & (line >= 0))


def _lacks(
    request: Sequence[tuple[str, int]],
    numa: Mapping[str, int],
    all_of_node: Mapping[int, Mapping[str, int]],
    quality: str,
) -> str:
    """What a NUMA node lacks of the request, such as "3 of 4 CPUs"; empty if it has all."""
    found = []
    for name, amount in request:
        if _is_host_level(name) and not any(name in each for each in all_of_node.values()):
            continue
        if name not in numa or (numa[name] < amount and not floats(name, quality)):
            what = "CPUs" if name == "cpu" else name
            found.append(f"{amount_text(name, numa.get(name, 0))} of {amount_text(name, amount)} {what}")
    return " and ".join(found)


def _is_host_level(resource: str) -> bool:
    """Whether a resource may belong to no NUMA node."""
    return resource in ("ephemeral-storage", "storage") or not is_native(resource)
