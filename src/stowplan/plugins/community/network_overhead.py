"""NetworkOverhead: places the pods of an AppGroup near the pods that they depend on, by the network costs
between zones and regions that a NetworkTopology lists.

A node is rejected if more of the pod's dependencies are too far away than near enough. The lower the costs to
all of them together, the better the score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.api.selectors import selector_of_map
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.pod_table import PodQuery, Tally
from stowplan.config.field_errors import child, required
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    CustomResource,
    CycleState,
    Definition,
    Handle,
    Hint,
    NodeTable,
    Pod,
    Quantity,
    Reject,
    Resource,
    Scores,
    Status,
    Wire,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.app_groups import (
    GROUP_LABEL,
    MAX_NETWORK_COST,
    TIME,
    WORKLOAD_LABEL,
    AppGroup,
    AppGroupArgs,
    AppGroups,
    Dependency,
    bounded,
)

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
SAME_ZONE, UNKNOWN_COST = 1, 100
MAX_COST = 2**31
"""Higher costs count as this one: sums over all pods of a cluster still fit into 64 bits."""
NEAR, TOO_FAR = -1.0, math.inf
"""As distances: within any maxNetworkCost, and beyond any. One that is not known is NaN, which is neither."""
MAX_REASONS = 20
"""With more different counts of dependencies than this, rejections do not state them."""
MAX_CELLS = 2**21
"""How many distances, and how many counts of pods, are kept, which takes 48 MiB at most."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MAX_DEPENDENCIES = 256
"""Of a workload: each is a column of pods that every decision adds up. Further ones are ignored."""
MAX_NEEDS = 10_000
SPARE_DOMAINS = 1000
"""With so many domains more than twice the nodes, most have no node any more, and all are numbered again."""
Need = tuple[Dependency, PodQuery]
"""A dependency, and which pods are meant."""
Domain = tuple[str, str]
"""Region and zone of a node; empty where it has no such label."""


class CostInfo(Wire, frozen=True):
    destination: str
    network_cost: Annotated[int, bounded(0)]
    bandwidth_capacity: Quantity | None = None
    bandwidth_allocated: Quantity | None = None


class OriginInfo(Wire, frozen=True):
    origin: str
    cost_list: tuple[CostInfo, ...] = ()
    costs: tuple[CostInfo, ...] = ()
    """What `costList` was called in older versions, and is in the example of scheduler-plugins."""


class TopologyInfo(Wire, frozen=True):
    topology_key: str
    origin_list: tuple[OriginInfo, ...] = ()
    origin_costs: tuple[OriginInfo, ...] = ()
    """What `originList` was called."""


class WeightInfo(Wire, frozen=True):
    name: str
    topology_list: tuple[TopologyInfo, ...] = ()
    cost_list: tuple[TopologyInfo, ...] = ()
    """What `topologyList` was called."""


class NetworkTopologySpec(Wire, frozen=True):
    weights: tuple[WeightInfo, ...] = ()
    configmap_name: str = ""
    config_map_name: str = ""
    """What `configmapName` was called."""


class NetworkTopologyStatus(Wire, frozen=True):
    node_count: Annotated[int, bounded(0)] = 0
    weight_calculation_time: Annotated[str, TIME] | None = None


class NetworkTopology(CustomResource, frozen=True):
    """Network costs between the regions, and between the zones, of a cluster."""

    definition: ClassVar = Definition(
        "networktopology.diktyo.x-k8s.io",
        "v1alpha1",
        "networktopologies",
        "NetworkTopology",
        short_names=("nt",),
        has_status=False,
    )
    spec: NetworkTopologySpec = NetworkTopologySpec()
    status: NetworkTopologyStatus = NetworkTopologyStatus()


class NetworkOverheadArgs(AppGroupArgs):
    weights_name: str = "UserDefined"
    """The entry of the NetworkTopology's weights to use."""
    network_topology_name: str = "nt-default"
    """The NetworkTopology, looked up in the same namespaces."""

    def validate(self, path: str) -> Iterator[str]:
        yield from super().validate(path)
        if not self.weights_name:
            yield required(child(path, "weightsName"), "the name of an entry in a NetworkTopology's weights")
        if not self.network_topology_name:
            yield required(child(path, "networkTopologyName"), "the name of a NetworkTopology")


class Overhead(NamedTuple):
    """What placing the pod on each node of the cluster means for its dependencies, by row."""

    layout: int
    satisfied: Ints
    violated: Ints
    cost: Ints


class Distances(NamedTuple):
    """From every domain to one of them."""

    cost: Ints
    """What counts for the score."""
    limit: Floats
    """What is compared with maxNetworkCost: a cost, NEAR, TOO_FAR or NaN."""


class Sums(NamedTuple):
    """What the pods that a workload depends on mean for each domain. Kept, since few of them come or go
    between two decisions."""

    needs: tuple[Need, ...]
    costs: Costs
    pods: Floats
    """How many there are in each domain, for each need in turn."""
    cells: NDArray[np.intp]
    """Where there are any."""
    satisfied: Ints
    violated: Ints
    cost: Ints


class NetworkOverhead(ExplainingPlugin):
    args: NetworkOverheadArgs
    watches = (AppGroup, NetworkTopology)

    def __init__(self, args: NetworkOverheadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._groups = AppGroups(handle, args.namespaces)
        self._topologies = handle.watched(NetworkTopology)
        handle.watched(AppGroup).follow(self._check_group)
        self._topologies.follow(self._check_topology)
        self._costs: tuple[NetworkTopology | None, Costs] = (None, Costs({}, {}))
        self._domains: dict[Domain, int] = {}
        self._names: list[Domain] = []
        """The domains by number."""
        self._generation = 0
        """Grows when domains get new numbers."""
        self._to_region: dict[str, Distances] = {}
        """From every domain to a zone of a region that lists no costs of its own."""
        self._distances_for: tuple[Costs | None, int] = (None, 0)
        """The costs, and the number of domains, that `_to_region` was computed for."""
        self._sums: dict[tuple[str, str], Sums] = {}
        """By AppGroup and workload."""
        self._needs: dict[tuple[str, str], tuple[AppGroup, tuple[Need, ...]]] = {}
        """By AppGroup and workload."""
        self._missing = handle.counter(
            "stowplan_network_overhead_missing_objects_total",
            "Decisions of pods whose AppGroup, or the NetworkTopology, does not exist.",
            "kind",
        )

    # Which nodes fit, and which is best

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if pod.labels.get(GROUP_LABEL):
            if self._groups.find(pod) is None:
                self._missing["AppGroup",] += 1
            elif self._topology() is None:
                self._missing["NetworkTopology",] += 1
        found = self._compute(pod, nodes.live)
        if found is None:
            return Status.skip()
        state.write(found)
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        found = self._find(state, pod, nodes)
        if found is None:
            return
        satisfied, violated = found.satisfied[nodes.rows], found.violated[nodes.rows]
        rejected = violated > satisfied
        if not rejected.any():
            return
        reason = "node(s) do not meet the network requirements of most workload dependencies"
        base = int(violated.max()) + 1
        pairs = np.where(rejected, satisfied * base + violated, -1)
        different = np.unique(pairs)
        different = different[different >= 0]
        if len(different) > MAX_REASONS:
            yield Reject(rejected, reason)
            return
        for pair in different.tolist():
            met, unmet = divmod(pair, base)
            yield Reject(pairs == pair, f"{reason}: satisfied: {met}, violated: {unmet}")

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        """The accumulated cost."""
        found = self._find(state, pod, nodes)
        return np.zeros(len(nodes), np.int64) if found is None else found.cost[nodes.rows]

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        """The lowest cost gets 100, the highest 0; all get 100 if they are equal, but 0 if all are 0."""
        lowest, highest = int(scores.min(initial=2**62)), int(scores.max(initial=0))
        if highest == 0:
            return scores
        span = max(highest - lowest, 1)
        return MAX_SCORE - (float(MAX_SCORE) * (scores - lowest) / span).astype(np.int64)

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        if not pod.labels.get(GROUP_LABEL):
            return
        group = self._groups.find(pod)
        if group is None:
            yield f"NetworkOverhead gives every node 0: {self._groups.missing_text(pod)}."
            return
        needs = self._dependencies(group, pod)
        if not needs:
            workload = pod.labels.get(WORKLOAD_LABEL, "")
            yield (
                f"NetworkOverhead gives every node 0: AppGroup {group.key} lists no dependencies of "
                f"workload {workload or '(the pod has no label ' + WORKLOAD_LABEL + ')'}."
            )
            return
        tallies = self.handle.cluster.nodes.tallies
        if not any(tallies.of_pods(query).total for _, query in needs):
            names = ", ".join(dict.fromkeys(each.workload.selector for each, _ in needs))
            yield f"NetworkOverhead gives every node 0: no pod of its dependencies ({names}) has a node yet."
        elif self._topology() is None:
            yield (
                f"NetworkOverhead counts costs between zones and regions as {UNKNOWN_COST}: NetworkTopology "
                f"{self.args.network_topology_name} does not exist in {', '.join(self.args.namespaces)}."
            )
        elif not self._current_costs():
            yield (
                f"NetworkOverhead counts costs between zones and regions as {UNKNOWN_COST}: NetworkTopology "
                f"{self.args.network_topology_name} has no costs in weights {self.args.weights_name}."
            )

    def explain_rejections(self, pod: Pod, node_names: Sequence[str]) -> Iterator[str]:
        """What is too far from each of these nodes, a sentence a node."""
        live, group = self.handle.cluster.nodes, self._groups.find(pod)
        if group is None:
            return
        needs = [(each, live.tallies.of_pods(query)) for each, query in self._dependencies(group, pod)]
        for name in node_names:
            row = live.row_of(name)
            if row is not None:
                found = [text for each, tally in needs if (text := self._too_far(live, row, each, tally))]
                if found:
                    yield f"{name} is too far from what the pod depends on: {'; '.join(found[:3])}."

    def _too_far(self, live: LiveNodeTable, row: int, each: Dependency, tally: Tally) -> str:
        """Why the requirement of a dependency is violated on a node; empty if it is not."""
        domains, limit = self._domain_ids(live), limit_of(each)
        peers = np.flatnonzero(tally.by_row)
        for peer in peers[peers != row].tolist():
            cost = float(self._distances_to(int(domains[peer])).limit[domains[row]])
            if cost == TOO_FAR:
                return f"{each.workload.selector} runs on {live.names[peer]}, which has no zone and region"
            if cost > limit:
                (region, zone), (other_region, other_zone) = (
                    (live.objects[at].labels.get(REGION, ""), live.objects[at].labels.get(ZONE, ""))
                    for at in (row, peer)
                )
                way = f"zone {zone} to {other_zone}"
                if region != other_region:
                    way = f"region {region} to {other_region}"
                return (
                    f"{each.workload.selector} runs on {live.names[peer]}, at a network cost of {cost:.0f} "
                    f"from {way}, where {limit:.0f} is allowed"
                )
        return ""

    def _find(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Overhead | None:
        found = state.find(Overhead)
        if found is not None and found.layout == nodes.live.layout:
            return found
        if found is None and self.name in state.skipped_filters:
            return None
        # Without PreFilter in the profile, or if nodes were added or removed since.
        return self._compute(pod, nodes.live)

    def _compute(self, pod: Pod, live: LiveNodeTable) -> Overhead | None:
        """None if the pod has no dependencies, or none of them has a node."""
        group = self._groups.find(pod)
        if group is None:
            return None
        needs = self._dependencies(group, pod)
        tallies = [live.tallies.of_pods(query) for _, query in needs]
        if not any(tally.total for tally in tallies):
            return None
        domains = self._domain_ids(live)
        by_need = [np.flatnonzero(tally.by_row != 0) for tally in tallies]  # of a mask, it is faster
        rows = np.concatenate(by_need)
        here = np.concatenate([tally.by_row[each] for tally, each in zip(tallies, by_need, strict=True)])
        of_rows, count = domains[rows], len(self._names)
        first = np.repeat(np.arange(len(needs)) * count, [len(each) for each in by_need])
        sums = self._sums_of((group.key, pod.labels.get(WORKLOAD_LABEL, "")), needs, first + of_rows, here)
        columns = (sums.satisfied, sums.violated, sums.cost)
        found = Overhead(live.layout, *(column.take(domains) for column in columns))
        # What is on the node itself costs nothing, and is near enough even if the node has no labels.
        unlabelled = of_rows == self._domains.get(("", ""), -1)
        np.subtract.at(found.cost, rows, here * np.where(unlabelled, UNKNOWN_COST, SAME_ZONE))
        if unlabelled.any():
            np.add.at(found.satisfied, rows, here * unlabelled)
            np.subtract.at(found.violated, rows, here * unlabelled)
        return found

    def _sums_of(self, key: tuple[str, str], needs: tuple[Need, ...], cells: Ints, counts: Ints) -> Sums:
        """The sums for so many pods in these cells of `Sums.pods`, from those of the last decision."""
        costs, count = self._current_costs(), len(self._names)
        pods: Floats = np.bincount(cells, counts, len(needs) * count).astype(np.float64, copy=False)
        known = self._sums.pop(key, None)
        if (
            known is None
            or known.needs is not needs
            or known.costs is not costs
            or len(known.pods) != len(pods)
        ):
            zeros = np.zeros((3, count), np.int64)
            known = Sums(needs, costs, np.zeros(len(pods)), cells[:0], *zeros)
        either = np.concatenate([cells, known.cells])
        changed: dict[int, dict[float, int]] = {}
        for cell in set(either[pods[either] != known.pods[either]].tolist()):
            need, target = divmod(cell, count)
            by_limit, limit = changed.setdefault(target, {}), limit_of(needs[need][0])
            by_limit[limit] = by_limit.get(limit, 0) + int(pods[cell] - known.pods[cell])
        for target, by_limit in changed.items():
            distances = self._distances_to(target)
            known.cost[:] += distances.cost * sum(by_limit.values())
            for limit, count in by_limit.items():
                known.satisfied[:] += (distances.limit <= limit) * count
                known.violated[:] += (distances.limit > limit) * count
        known = known._replace(pods=pods, cells=cells)
        if (len(self._sums) + 1) * pods.size > MAX_CELLS:
            self._sums.pop(next(iter(self._sums)), None)
        self._sums[key] = known
        return known

    # What the pod depends on

    def _dependencies(self, group: AppGroup, pod: Pod) -> tuple[Need, ...]:
        workload = pod.labels.get(WORKLOAD_LABEL, "")
        known = self._needs.get((group.key, workload))
        if known is None or known[0] is not group:
            if len(self._needs) > MAX_NEEDS:
                self._needs.clear()
            known = self._needs[group.key, workload] = (
                group,
                tuple(islice(needs_of(group, workload), MAX_DEPENDENCIES)),
            )
        return known[1]

    # What distances cost

    def _domain_ids(self, live: LiveNodeTable) -> NDArray[np.int64]:
        def compute(part: NodeTable) -> tuple[NDArray[np.int64]]:
            return (np.array([self._domain_of(node) for node in part.objects], np.int64),)

        if len(self._names) > 2 * len(live) + SPARE_DOMAINS:
            self._domains, self._names, self._generation = {}, [], self._generation + 1
            self._sums, self._distances_for = {}, (None, 0)
        (column,) = live.keep((self.serial, "domains", self._generation), compute)
        return column  # type: ignore[no-any-return]

    def _domain_of(self, node: NodeObject) -> int:
        name = (node.labels.get(REGION, ""), node.labels.get(ZONE, ""))
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = len(self._names)
            self._names.append(name)
        return found

    def _distances_to(self, target: int) -> Distances:
        costs = self._current_costs()
        if self._distances_for[0] is not costs or self._distances_for[1] != len(self._names):
            self._distances_for, self._to_region = (costs, len(self._names)), {}
            self._regions = Interned(region for region, _ in self._names)
        region, zone = self._names[target]
        if not region and not zone:
            count = len(self._names)
            return Distances(np.full(count, UNKNOWN_COST), np.full(count, TOO_FAR))
        base = self._to_region.get(region)
        if base is None:
            if len(self._to_region) * len(self._names) > MAX_CELLS:
                self._to_region.clear()
            limit = self._regions.costs(costs.to_region.get(region, {}))
            limit[self._regions.ids == self._regions.index[region]] = np.nan
            cost = np.where(np.isnan(limit), UNKNOWN_COST, limit).astype(np.int64)
            base = self._to_region[region] = Distances(cost, limit)
        found = Distances(base.cost.copy(), base.limit.copy())
        for origin, listed in costs.to_zone.get(zone, {}).items():
            if origin and (place := self._domains.get((region, origin))) is not None:
                found.cost[place] = found.limit[place] = listed
        found.cost[target], found.limit[target] = SAME_ZONE, NEAR
        return found

    def _topology(self) -> NetworkTopology | None:
        name = self.args.network_topology_name
        found = (self._topologies.get(f"{namespace}/{name}") for namespace in self.args.namespaces)
        return next((item for item in found if item is not None), None)

    def _current_costs(self) -> Costs:
        item = self._topology()
        if item is not self._costs[0]:
            self._costs = (item, costs_of(item, self.args.weights_name) if item else Costs({}, {}))
        return self._costs[1]

    # What is wrong with objects

    def _check_group(self, old: AppGroup | None, new: AppGroup | None) -> None:
        if new is None or (old is not None and old.spec == new.spec):
            return
        bad = [
            f"{each.workload.selector} on {other.workload.selector}: {other.max_network_cost}"
            for each in new.spec.workloads
            for other in each.dependencies
            if not 0 <= other.max_network_cost <= MAX_NETWORK_COST
        ]
        texts = []
        if bad:
            texts.append(
                f"maxNetworkCost must be from 0 to {MAX_NETWORK_COST}; the nearest of these counts instead "
                f"for the dependencies of {'; '.join(bad[:5])}"
            )
        counts: Counter[str] = Counter()
        for each in new.spec.workloads:
            counts[each.workload.selector] += len(each.dependencies)
        if large := [selector for selector, count in counts.items() if count > MAX_DEPENDENCIES]:
            texts.append(f"only the first {MAX_DEPENDENCIES} dependencies count of {', '.join(large[:5])}")
        if texts and new.namespace in self.args.namespaces:
            self.handle.record_event(new, "Warning", "InvalidAppGroup", "; ".join(texts))

    def _check_topology(self, old: NetworkTopology | None, new: NetworkTopology | None) -> None:
        if new is None or (old is not None and old.spec == new.spec) or new is not self._topology():
            return
        texts, found = [], [each for weights in new.spec.weights for each in listed_costs(weights)]
        costs = [(f"{origin} to {each.destination}", each.network_cost) for _, origin, each in found]
        if bad := [f"{way}: {cost}" for way, cost in costs if cost < 0]:
            texts.append(f"networkCost must not be negative; these count as missing: {'; '.join(bad[:5])}")
        if bad := [f"{way}: {cost}" for way, cost in costs if cost > MAX_COST]:
            texts.append(f"networkCost above {MAX_COST} counts as {MAX_COST}: {'; '.join(bad[:5])}")
        if unknown := sorted({key for key, _, _ in found if key not in (REGION, ZONE)}):
            texts.append(f"topologyKey must be {REGION} or {ZONE}; ignored: {', '.join(unknown[:5])}")
        if texts:
            self.handle.record_event(new, "Warning", "InvalidNetworkTopology", "; ".join(texts))

    # When to attempt a rejected pod again

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.ASSIGNED_POD, Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
            ClusterEvent(AppGroup.definition.event_resource, Action.ALL),
            ClusterEvent(NetworkTopology.definition.event_resource, Action.ALL),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        name = pod.labels.get(GROUP_LABEL)
        if event.resource == Resource.ASSIGNED_POD:
            is_own = any(each is not None and each.labels.get(GROUP_LABEL) == name for each in (old, new))
        elif event.resource == AppGroup.definition.event_resource:
            is_own = (old if new is None else new).name == name
        else:
            is_own = True
        return Hint.QUEUE if is_own else Hint.SKIP


def limit_of(each: Dependency) -> float:
    return float(min(max(each.max_network_cost, 0), MAX_NETWORK_COST))


def needs_of(group: AppGroup, workload: str) -> Iterator[Need]:
    for each in group.spec.workloads:
        if each.workload.selector == workload:
            for other in each.dependencies:
                labels = {GROUP_LABEL: group.name, WORKLOAD_LABEL: other.workload.selector}
                namespace = other.workload.namespace
                namespaces = frozenset((namespace,)) if namespace else None
                yield other, PodQuery(namespaces, selector_of_map(labels))


class Costs(NamedTuple):
    """By destination and origin."""

    to_region: Mapping[str, Mapping[str, int]]
    to_zone: Mapping[str, Mapping[str, int]]

    def __bool__(self) -> bool:
        return bool(self.to_region or self.to_zone)


def costs_of(item: NetworkTopology, weights_name: str) -> Costs:
    found: dict[str, dict[str, dict[str, int]]] = {REGION: {}, ZONE: {}}
    for weights in item.spec.weights:
        if weights.name == weights_name:
            for key, origin, each in listed_costs(weights):
                if key in found and each.network_cost >= 0:
                    costs = found[key].setdefault(each.destination, {})
                    costs[origin] = min(each.network_cost, MAX_COST)
    return Costs(found[REGION], found[ZONE])


def listed_costs(weights: WeightInfo) -> Iterator[tuple[str, str, CostInfo]]:
    """The costs with their topology key and origin. Old field names count where the new ones are empty."""
    for topology in weights.topology_list or weights.cost_list:
        for origin in topology.origin_list or topology.origin_costs:
            for each in origin.cost_list or origin.costs:
                yield topology.topology_key, origin.origin, each


class Interned:
    """Names as numbers."""

    def __init__(self, names: Iterator[str]) -> None:
        self.index: dict[str, int] = {}
        self.ids = np.array([self.index.setdefault(name, len(self.index)) for name in names], np.intp)

    def costs(self, by_name: Mapping[str, int]) -> Floats:
        """A column with the cost of each name; NaN where there is none. The empty name has none."""
        found = np.full(len(self.index), np.nan)
        for name, cost in by_name.items():
            if name and name in self.index:
                found[self.index[name]] = cost
        return found[self.ids]
