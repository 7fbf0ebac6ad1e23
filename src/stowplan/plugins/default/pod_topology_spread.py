"""PodTopologySpread: keeps pods of a kind spread over zones, hosts or any other topology."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, TopologySpreadConstraint
from stowplan.api.selectors import Selector, equals, selector_of, selector_of_map, selector_text
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cluster.pod_table import PodQuery, Tally
from stowplan.cluster.trial_table import TrialTable
from stowplan.errors import SelectorError
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    Mask,
    Node,
    Reject,
    Resource,
    Scores,
    Status,
)
from stowplan.framework.plugin import AwaitingPlugin, ExplainingPlugin
from stowplan.plugins.args import PodTopologySpreadArgs
from stowplan.plugins.node_matching import (
    find_untolerated,
    node_affinity_key,
    required_nodes,
    required_text,
)

Ints = NDArray[np.int64]
HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
HOSTNAME = "kubernetes.io/hostname"
SYSTEM_DEFAULTS = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable=SOFT),
    TopologySpreadConstraint(max_skew=5, topology_key="topology.kubernetes.io/zone", when_unsatisfiable=SOFT),
)
MISSING_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"
SKEWED = "node(s) didn't match pod topology spread constraints"
MANY = 2**31


class Constraint(NamedTuple):
    max_skew: int
    key: str
    selector: Selector
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


class Domains:
    """One hard constraint at work: pods counted by domain, of the domains that eligible nodes are in."""

    def __init__(self, constraint: Constraint, counts: Ints, present: Mask, eligible: Mask) -> None:
        self.constraint, self.counts, self.present, self.eligible = constraint, counts, present, eligible

    def clone(self) -> Domains:
        return Domains(self.constraint, self.counts.copy(), self.present, self.eligible)

    def floor(self) -> int:
        """What the emptiest domain has; nothing as long as there are too few domains."""
        counted = self.counts[self.present]
        if len(counted) < max(self.constraint.min_domains, 1):
            return 0
        return int(counted.min())

    def floors(self, ids: NDArray[np.int32], here: Ints) -> Ints | int:
        """The same for each row, if only the domain of that row has another count, which is `here`."""
        counted = self.counts[self.present]
        if len(counted) < max(self.constraint.min_domains, 1):
            return 0
        lowest = int(counted.min())
        if int(np.count_nonzero(counted == lowest)) > 1:
            others: Ints | int = lowest
        else:
            higher = int(counted[counted > lowest].min(initial=MANY))
            others = np.where(self.counts.take(ids) == lowest, higher, lowest)
        return np.where(self.present.take(ids), np.minimum(others, here), lowest)


class HardState:
    def __init__(self, domains: list[Domains]) -> None:
        self.domains = domains

    def clone(self) -> HardState:
        return HardState([each.clone() for each in self.domains])


class SoftState(NamedTuple):
    constraints: tuple[Constraint, ...]
    ignored: Mask | None
    """Nodes that lack a label that counts, and so get nothing; None: no node does."""
    sizes: tuple[int, ...]
    require_all: bool


class PodTopologySpread(AwaitingPlugin, ExplainingPlugin):
    args: PodTopologySpreadArgs
    takes_trials = True
    hints_by_spec = True

    def __init__(self, args: PodTopologySpreadArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.is_system = args.defaulting_type == "System"
        defaults = SYSTEM_DEFAULTS if self.is_system else args.default_constraints
        self.defaults = {
            action: [each for each in defaults if each.when_unsatisfiable == action]
            for action in (HARD, SOFT)
        }

    # Filtering

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        constraints = self.constraints_of(pod, HARD)
        if not constraints:
            return Status.skip()
        live = nodes.live
        keys = tuple(constraint.key for constraint in constraints)
        domains = []
        for constraint in constraints:
            eligible = self._eligible(live, pod, constraint, keys)
            counts = self._counts(live, pod, constraint, eligible)
            present = live.domain_sizes(constraint.key, eligible) > 0
            domains.append(Domains(constraint, counts, present, eligible))
        state.write(HardState(domains))
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        undecided = np.ones(len(nodes), np.bool_)
        hard = state.read(HardState)
        for domains in hard.domains:
            constraint, ids = domains.constraint, nodes.label(domains.constraint.key).ids
            missing = ids < 0
            if np.count_nonzero(missing):
                yield Reject(missing & undecided, MISSING_LABEL, unresolvable=True)
            room = constraint.max_skew - constraint.selector.matches(pod.labels)
            if not len(domains.counts):
                skewed = missing
            elif isinstance(nodes, TrialTable):
                here = domains.counts.take(ids) + _change_of(hard, domains, pod, nodes)
                skewed = here > domains.floors(ids, here) + room
            else:
                skewed = (domains.counts > domains.floor() + room).take(ids)
            skewed = skewed & ~missing & undecided
            yield Reject(skewed, SKEWED)
            undecided &= ~(missing | skewed)

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        return required_text(
            f"pods with {selector_text(each.label_selector)} spread over {each.topology_key}, "
            f"at most {each.max_skew} apart"
            for each in pod.spec.topology_spread_constraints
            if each.when_unsatisfiable == HARD
        )

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: Node) -> None:
        self._follow(state, pod, added, node, 1)

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: Node) -> None:
        self._follow(state, pod, removed, node, -1)

    def _follow(self, state: CycleState, pod: Pod, other: Pod, node: Node, amount: int) -> None:
        hard = state.read(HardState)
        if other.namespace != pod.namespace:
            return
        if any(each.constraint.key not in node.labels for each in hard.domains):
            return
        live = self.handle.cluster.nodes
        row = live.row_of(node.name)
        for domains in hard.domains:
            # parity: neither terminating pods nor the empty selector are passed over here, as they are above
            if domains.eligible[row] and domains.constraint.selector.matches(other.labels):
                domains.counts[live.label(domains.constraint.key).ids[row]] += amount

    # Scoring

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        constraints = self.constraints_of(pod, SOFT)
        if not constraints:
            return Status.skip()
        require_all = bool(pod.spec.topology_spread_constraints) or not self.is_system
        ignored = _lacking_any(nodes, constraints) if require_all else None
        sizes = tuple(_size(nodes, constraint.key, ignored) for constraint in constraints)
        state.write(SoftState(constraints, ignored, sizes, require_all))
        return None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        soft = state.read(SoftState)
        keys = tuple(each.key for each in soft.constraints) if soft.require_all else ()
        total = np.zeros(len(nodes))
        for constraint, size in zip(soft.constraints, soft.sizes, strict=True):
            weight, constant = natural_log(size + 2), constraint.max_skew - 1
            if constraint.key == HOSTNAME:
                # parity: on its own host a pod counts whether or not the node is eligible
                counts, ids = self._on_rows(nodes, pod, constraint), nodes.label(HOSTNAME).ids
                part = counts * weight + constant
            else:
                ids = nodes.label(constraint.key).ids
                eligible = self._eligible(nodes.live, pod, constraint, keys)
                counts = self._counts(nodes.live, pod, constraint, eligible)
                if not soft.require_all:
                    counts = self._with_unlabelled(nodes.live, pod, constraint, eligible, counts)
                part = (counts * weight + constant).take(ids) if len(counts) else np.zeros(len(nodes))
            missing = ids < 0
            if np.count_nonzero(missing):
                part[missing] = 0.0
            total += part
        raw = np.floor(total + 0.5).astype(np.int64)
        if soft.ignored is not None:
            raw[soft.ignored] = 0
        return raw

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        ignored = state.read(SoftState).ignored
        counted = scores if ignored is None else scores[~ignored]
        highest = int(counted.max(initial=0))
        if highest == 0:
            normal = np.full(len(scores), MAX_SCORE, np.int64)
        else:
            normal = MAX_SCORE * (highest + int(counted.min()) - scores) // highest
        if ignored is not None:
            normal[ignored] = 0
        return normal

    # What both need

    def constraints_of(self, pod: Pod, action: str) -> tuple[Constraint, ...]:
        """The pod's own constraints of that kind; the profile's where the pod has none of any kind."""
        own = pod.spec.topology_spread_constraints
        if own:
            return _own_constraints(pod, action)
        defaults = self.defaults[action]
        if not defaults or (pod.controller is None and not len(self.handle.cluster.services)):
            return ()
        selector = self._default_selector(pod)
        if not selector.requirements:
            return ()
        return tuple(_build(each, selector) for each in defaults)

    def _default_selector(self, pod: Pod) -> Selector:
        """What the services and the owner of a pod select it by, kept while none of these change."""
        cluster = self.handle.cluster
        stores = (
            cluster.services,
            cluster.replication_controllers,
            cluster.replica_sets,
            cluster.stateful_sets,
        )
        versions = tuple(store.version for store in stores)
        kept = pod.label_set.memo.get((self.serial, pod.controller))
        if kept is None or kept[0] != versions:
            kept = (versions, self._owner_selector(pod))
            pod.label_set.memo[self.serial, pod.controller] = kept
        found: Selector = kept[1]
        return found

    def _owner_selector(self, pod: Pod) -> Selector:
        cluster, merged = self.handle.cluster, {}
        for service in cluster.services:
            wanted = service.spec.selector
            if (
                service.namespace == pod.namespace
                and wanted is not None
                and all(pod.labels.get(key) == value for key, value in wanted.items())
            ):
                merged.update(wanted)
        owner = pod.controller
        key = f"{pod.namespace}/{owner.name}" if owner is not None else ""
        match (owner.api_version, owner.kind) if owner is not None else ("", ""):
            case ("v1", "ReplicationController"):
                controller = cluster.replication_controllers.get(key)
                merged.update((controller and controller.spec.selector) or {})
            case ("apps/v1", "ReplicaSet"):
                return _and_selector_of(merged, cluster.replica_sets.get(key))
            case ("apps/v1", "StatefulSet"):
                return _and_selector_of(merged, cluster.stateful_sets.get(key))
        return selector_of_map(merged)

    def _eligible(self, live: LiveNodeTable, pod: Pod, constraint: Constraint, keys: tuple[str, ...]) -> Mask:
        """Nodes that count: with all the labels, and where the pod could go as far as that is honoured."""
        affinity: Hashable = node_affinity_key(pod) if constraint.honors_affinity else None
        tolerations = pod.spec.tolerations if constraint.honors_taints else None

        def compute(nodes: NodeTable) -> tuple[Mask]:
            mask = np.ones(len(nodes), np.bool_)
            for key in keys:
                mask &= nodes.label(key).ids >= 0
            if constraint.honors_affinity:
                mask &= required_nodes(pod).mask(nodes)
            if constraint.honors_taints:
                mask &= ~find_untolerated(nodes, pod)
            return (mask,)

        mask: Mask = live.keep(("eligible to spread", keys, affinity, tolerations), compute)[0]
        return mask

    def _counts(self, live: LiveNodeTable, pod: Pod, constraint: Constraint, eligible: Mask) -> Ints:
        if constraint.selector.everything:  # parity: the empty selector selects all pods, but counts none
            return np.zeros(len(live.label(constraint.key).values), np.int64)
        return self._tally(live, pod, constraint).by_domain(constraint.key, eligible)

    def _with_unlabelled(
        self, live: LiveNodeTable, pod: Pod, constraint: Constraint, eligible: Mask, counts: Ints
    ) -> Ints:
        """The same with nodes that lack the label in the domain of those where it is empty, if any are."""
        column = live.label(constraint.key)
        empty = column.index.get("")
        if empty is not None:
            counts = counts.copy()
            counts[empty] += self._tally(live, pod, constraint).by_row[eligible & (column.ids < 0)].sum()
        return counts

    def _on_rows(self, nodes: NodeTable, pod: Pod, constraint: Constraint) -> Ints:
        if constraint.selector.everything:
            return np.zeros(len(nodes), np.int64)
        return self._tally(nodes.live, pod, constraint).by_row[nodes.rows]

    def _tally(self, live: LiveNodeTable, pod: Pod, constraint: Constraint) -> Tally:
        query = PodQuery(frozenset((pod.namespace,)), constraint.selector, live_only=True)
        return live.tallies.of_pods(query)

    # Waking

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        pods = Action.ADD | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATION | Action.DELETE
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
        return (ClusterEvent(Resource.POD, pods), ClusterEvent(Resource.NODE, nodes))

    def awaited_pods(self, pod: Pod) -> Iterable[PodQuery] | None:
        if not pod.spec.topology_spread_constraints:
            return None  # what the profile's constraints select depends on objects that may change
        namespaces = frozenset((pod.namespace,))
        return [PodQuery(namespaces, each.selector) for each in self.constraints_of(pod, HARD)]

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        constraints = self.constraints_of(pod, HARD)
        if event.resource is Resource.NODE:
            helps = _node_helps(constraints, old, new)
        else:
            helps = _pod_helps(pod, constraints, old, new)
        return Hint.QUEUE if helps else Hint.SKIP


def _change_of(hard: HardState, domains: Domains, pod: Pod, trial: TrialTable) -> Ints:
    """How many more pods count on each row of a trial; see `_follow`."""
    change = trial.change_of(PodQuery(frozenset((pod.namespace,)), domains.constraint.selector))
    counts = domains.eligible[trial.rows]
    for each in hard.domains:
        counts = counts & (trial.label(each.constraint.key).ids >= 0)
    return change * counts


def _pod_helps(pod: Pod, constraints: tuple[Constraint, ...], old: Pod | None, new: Pod | None) -> bool:
    def is_foreign(other: Pod | None) -> bool:
        return (
            other is not None
            and other.uid != pod.uid
            and (not (other.node_name or other.nominated_node_name) or other.namespace != pod.namespace)
        )

    if is_foreign(new) or is_foreign(old):
        return False
    if old is not None and new is not None:
        changed_own = pod.uid == new.uid and old.spec.tolerations != new.spec.tolerations
        if changed_own and any(constraint.honors_taints for constraint in constraints):
            return True
        return old.labels != new.labels and any(
            constraint.selector.matches(old.labels) != constraint.selector.matches(new.labels)
            for constraint in constraints
        )
    other = new if new is not None else old
    return other is not None and any(constraint.selector.matches(other.labels) for constraint in constraints)


def _node_helps(constraints: tuple[Constraint, ...], old: Any, new: Any) -> bool:
    keys = [constraint.key for constraint in constraints]
    fitted = old is not None and all(key in old.labels for key in keys)
    fits = new is not None and all(key in new.labels for key in keys)
    if old is None or new is None:
        return fits or fitted
    if fits != fitted:
        return True
    moved = any(old.labels.get(key) != new.labels.get(key) for key in keys)
    return fits and (moved or old.taints != new.taints)


def _own_constraints(pod: Pod, action: str) -> tuple[Constraint, ...]:
    own = pod.spec.topology_spread_constraints
    by_labels = pod.label_set if any(each.match_label_keys for each in own) else None
    key = (Constraint, action, id(by_labels))
    kept: tuple[Any, tuple[Constraint, ...]] | None = pod.shape.memo.get(key)
    if kept is None or kept[0] is not by_labels:
        found = tuple(_of_pod(each, pod) for each in own if each.when_unsatisfiable == action)
        kept = pod.shape.memo[key] = (by_labels, found)
    return kept[1]


def _of_pod(constraint: TopologySpreadConstraint, pod: Pod) -> Constraint:
    keys = [key for key in constraint.match_label_keys if key in pod.labels]
    selector = selector_of(constraint.label_selector).also(equals(key, pod.labels[key]) for key in keys)
    return _build(constraint, selector)


def _build(constraint: TopologySpreadConstraint, selector: Selector) -> Constraint:
    return Constraint(
        constraint.max_skew,
        constraint.topology_key,
        selector,
        1 if constraint.min_domains is None else constraint.min_domains,
        constraint.node_affinity_policy != "Ignore",
        constraint.node_taints_policy == "Honor",
    )


def _and_selector_of(merged: dict[str, str], owner: Any) -> Selector:
    found = selector_of_map(merged)
    try:
        return found if owner is None else found.also(selector_of(owner.spec.selector).requirements)
    except SelectorError:
        return found


def _lacking_any(nodes: NodeTable, constraints: tuple[Constraint, ...]) -> Mask | None:
    lacking = np.zeros(len(nodes), np.bool_)
    for constraint in constraints:
        lacking |= nodes.label(constraint.key).ids < 0
    return lacking if np.count_nonzero(lacking) else None


def _size(nodes: NodeTable, key: str, ignored: Mask | None) -> int:
    """How many domains the nodes are in; those without the label are in the one of the empty value."""
    if key == HOSTNAME:
        return len(nodes) - (0 if ignored is None else int(np.count_nonzero(ignored)))
    column = nodes.label(key)
    seen = np.zeros(len(column.values) + 1, np.bool_)
    seen[column.ids if ignored is None else column.ids[~ignored]] = True
    seen[column.index.get("", -1)] |= seen[-1]
    return int(np.count_nonzero(seen[:-1] if "" in column.index else seen))


_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_ODD = (
    6.666666666666735130e-01,
    2.857142874366239149e-01,
    1.818357216161805012e-01,
    1.479819860511658591e-01,
)
_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)


@lru_cache(maxsize=65536)
def natural_log(number: int) -> float:
    """ln of a positive whole number: argument reduction to [√½, √2), then two polynomials in s²."""
    fraction, exponent = math.frexp(number)
    if fraction < math.sqrt(2) / 2:
        fraction, exponent = fraction * 2, exponent - 1
    f = fraction - 1
    s = f / (2 + f)
    s2 = s * s
    s4 = s2 * s2
    t1 = s2 * (_ODD[0] + s4 * (_ODD[1] + s4 * (_ODD[2] + s4 * _ODD[3])))
    t2 = s4 * (_EVEN[0] + s4 * (_EVEN[1] + s4 * _EVEN[2]))
    half_square = 0.5 * f * f
    return exponent * _LN2_HIGH - ((half_square - (s * (half_square + (t1 + t2)) + exponent * _LN2_LOW)) - f)
