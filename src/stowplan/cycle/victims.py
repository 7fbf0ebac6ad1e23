"""Which pods to evict from a node: pods that budgets protect, the order of eviction, the best node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import LabelSet, Pod
from stowplan.api.selectors import Selector, selector_of
from stowplan.api.workloads import PodDisruptionBudget
from stowplan.cluster import PodTable
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.errors import SelectorError
from stowplan.framework.plugin import Reads
from stowplan.framework.profile import FilterStep, Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Status


class Budgets:
    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets: list[tuple[PodDisruptionBudget, Selector]] = []
        for budget in budgets:
            try:
                selector = selector_of(budget.spec.selector)
            except SelectorError:
                continue  # a budget with a mistake in its selector covers nobody
            if not selector.everything and not selector.nothing:
                self._budgets.append((budget, selector))
        self._covering: WeakKeyDictionary[LabelSet, list[int]] = WeakKeyDictionary()

    def find_violations(self, pods: PodTable, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Given pods by node and importance, whether evicting each as well would violate a budget."""
        violating = np.zeros(len(slots), np.bool_)
        if not self._budgets:
            return violating
        row, left = -1, [0]
        for number, slot in enumerate(slots.tolist()):
            if pods.row[slot] != row:
                row, left = pods.row[slot], self._allowed()
            violating[number] = self._violates(pods.pods[slot], left)
        return violating

    def protect(self, pods: Iterable[Pod]) -> list[bool]:
        """Given pods of any nodes by importance, whether evicting each as well would violate a budget."""
        left = self._allowed()
        return [self._violates(pod, left) for pod in pods]

    def _allowed(self) -> list[int]:
        return [budget.status.disruptions_allowed for budget, _ in self._budgets]

    def _violates(self, pod: Pod, left: list[int]) -> bool:
        """Take an eviction off what is left of each budget; whether one of them has none left."""
        found = False
        for index in self._covers(pod.label_set):
            if pod.name not in self._budgets[index][0].status.disrupted_pods:
                left[index] -= 1
                found |= left[index] < 0
        return found

    def _covers(self, labels: LabelSet) -> list[int]:
        found = self._covering.get(labels)
        if found is None:
            found = self._covering[labels] = [
                index
                for index, (budget, selector) in enumerate(self._budgets)
                if budget.namespace == labels.namespace and labels.labels and selector.matches(labels.labels)
            ]
        return found


Slots = NDArray[np.intp]
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")


def no_victim_needed(node_name: str) -> Status:
    """The error for a node that fits the pod without evictions, although the filters rejected it before."""
    return Status.error(f'expected at least one victim pod on node "{node_name}"')


NO_RANKS: Mapping[str, int] = {}


def is_lower(live: LiveNodeTable, priority: int, ranks: Mapping[str, int]) -> NDArray[np.bool_]:
    """Which pods of the cluster have a lower priority, by slot; `ranks` has those of groups, by uid."""
    found: NDArray[np.bool_] = live.pods.priority < priority
    for uid, rank in ranks.items():
        if (slot := live.pods.find(uid)) is not None:
            found[slot] = rank < priority
    return found


class VictimOrder:
    """Chooses among pods that are equally important, and among nodes where the harm is equal."""

    version: int = 0
    """Differs for different orders of pods: what was found with one is not used for another."""

    def sort_keys(self, pods: PodTable, slots: Slots) -> tuple[NDArray[np.generic], ...]:
        """Sort keys, last first: the first pods in this order are evicted last."""
        place = pods.place[slots]
        # parity: pods that have not started come in the reverse order of their node
        return (np.where(np.isinf(pods.start[slots]), -place, place),)

    def choose_row(self, live: LiveNodeTable, rows: Slots) -> int:
        """The node to evict pods from: the first by name."""
        return int(rows[live.name_ranks[rows].argmin()])


USUAL_ORDER = VictimOrder()


class Preemptor(NamedTuple):
    """The pod that preempts others, and what its trials need."""

    profile: Profile
    state: CycleState
    pod: Pod
    budgets: Budgets
    ranks: Mapping[str, int] = NO_RANKS
    """Priorities of pods on nodes that are not their own, by uid: those of their groups."""
    may_evict: frozenset[str] | None = None
    """The uids of the pods that may be evicted; None for all pods of a lower priority."""
    order: VictimOrder = USUAL_ORDER

    def lower_on(self, row: int) -> list[Pod]:
        """The pods of a node that may be evicted."""
        pods, priority, ranks = self.live.pods_on(row), self.pod.priority, self.ranks
        if self.may_evict is not None:
            return [other for other in pods if other.uid in self.may_evict]
        if not ranks:
            return [other for other in pods if other.priority < priority]
        return [other for other in pods if ranks.get(other.uid, other.priority) < priority]

    def lower_slots(self) -> NDArray[np.bool_]:
        """Which pods of the cluster may be evicted, by slot."""
        if self.may_evict is not None:
            found = np.zeros(len(self.live.pods.priority), np.bool_)
            slots = (self.live.pods.find(uid) for uid in self.may_evict)
            found[[slot for slot in slots if slot is not None]] = True
            return found
        return is_lower(self.live, self.pod.priority, self.ranks)

    @property
    def live(self) -> LiveNodeTable:
        return self.profile.handle.cluster.nodes


WITHOUT_PODS = (Reads.NODE, Reads.OBJECTS)
"""What filters read whose answer evicting pods does not change."""


def usage_steps(preemptor: Preemptor) -> list[FilterStep]:
    """The active filters that depend on pods."""
    return [
        step
        for step in preemptor.profile.filters
        if step.plugin.reads not in WITHOUT_PODS and step.name not in preemptor.state.skipped_filters
    ]


def looks_at_numbers(preemptor: Preemptor) -> bool:
    """Whether every filter depends only on how much the pods of a node use."""
    return all(step.takes_rows for step in usage_steps(preemptor))


class Victims(NamedTuple):
    """Pods to evict: the row of each one's node, its place in the pod table, whether a budget forbids it."""

    rows: Slots
    slots: Slots
    violating: NDArray[Any]
    """Only the sum for each node matters."""


def join_victims(parts: list[Victims]) -> Victims:
    nothing = np.zeros(0, np.intp)
    parts = [*parts, Victims(nothing, nothing, np.zeros(0, np.bool_))]
    return Victims(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def in_order(preemptor: Preemptor, slots: Slots) -> tuple[Slots, NDArray[np.bool_]]:
    """The pods node by node as they get their chance to stay, and which of them a budget protects.

    Those come first, then the more important ones.
    """
    pods, order = preemptor.live.pods, preemptor.order
    slots = slots[np.lexsort((*_importance(pods, slots, order), pods.row[slots]))]
    violating = preemptor.budgets.find_violations(pods, slots)
    if not violating.any():
        return slots, violating
    places = np.lexsort((*_importance(pods, slots, order), ~violating, pods.row[slots]))
    return slots[places], violating[places]


def _importance(pods: PodTable, slots: Slots, order: VictimOrder) -> tuple[NDArray[np.generic], ...]:
    """Sort keys, last first: higher priority, then earlier start, then the order of equal pods."""
    return *order.sort_keys(pods, slots), pods.start[slots], -pods.priority[slots]


class Harm(NamedTuple):
    """The harm of evicting the victims of each row; nodes are compared by these fields in order."""

    violations: NDArray[np.int64]
    """How many of them a disruption budget protects."""
    highest: NDArray[np.int64]
    """The highest priority among them."""
    weight: NDArray[np.int64]
    """The sum of their priorities."""
    victims: NDArray[np.int64]
    """The number of victims; 0 where evicting does not help."""
    youth: NDArray[np.float64]
    """Lower if the longest-running of the most important victims started later."""


def no_harm(length: int) -> Harm:
    violations, highest, weight, victims = np.zeros((4, length), np.int64)
    return Harm(violations, highest, weight, victims, np.zeros(length, np.float64))


def add_harm(harm: Harm, live: LiveNodeTable, victims: Victims) -> None:
    """Fill in the rows of the victims; the victims of a row are adjacent."""
    if not len(victims.rows):
        return
    starts = first_of_each_row(victims.rows)
    rows = victims.rows[starts]
    counts = np.diff(starts, append=len(victims.rows))
    priority, start = live.pods.priority[victims.slots], live.pods.start[victims.slots]
    highest = np.maximum.reduceat(priority, starts)
    is_top = priority == np.repeat(highest, counts)
    harm.violations[rows] = np.add.reduceat(victims.violating, starts, dtype=np.int64)
    harm.highest[rows] = highest
    harm.weight[rows] = np.add.reduceat(priority + 2**31, starts)
    harm.victims[rows] = counts
    harm.youth[rows] = -np.minimum.reduceat(np.where(is_top, start, np.inf), starts)


def first_of_each_row(rows: Slots) -> Slots:
    """Where each row starts in a column in which equal rows are adjacent."""
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def least(live: LiveNodeTable, rows: Slots, harm: Harm, order: VictimOrder = USUAL_ORDER) -> int:
    """The row with the least harm."""
    for column in harm:
        if len(rows) > 1:
            values = column[rows]
            rows = rows[values == values.min()]
    return order.choose_row(live, rows)
