"""Making room: which pods of lower priority to evict, from which node, so that a pod fits.

Where every filter looks at one node at a time, all nodes are tried at once, a pod of each in every round.
Otherwise nodes are tried one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import LabelSet, Pod
from stowplan.api.selectors import Selector, selector_of
from stowplan.api.workloads import PodDisruptionBudget
from stowplan.cluster import PodTable
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeSubset
from stowplan.cycle.filters import first_refusal, passing_all, refusal_with, run_filters, tell
from stowplan.errors import SelectorError
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.plugin import Nomination, Reads
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

Slots = NDArray[np.intp]
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")
NOT_HELPFUL = "Preemption is not helpful for scheduling"


class Victims(NamedTuple):
    """Pods to evict: the row of each one's node, its place in the pod table, whether a budget forbids it."""

    rows: Slots
    slots: Slots
    violating: NDArray[Any]
    """Only the sum for each node matters."""


def preempt(
    profile: Profile, state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
) -> Status | Nomination:
    """The node where evicting pods hurts least; a status that says why no node is any good."""
    victims = find_victims(profile, state, pod, decision, percentage, absolute)
    return victims if isinstance(victims, Status) else pick(profile.handle.cluster.nodes, victims)


def find_victims(
    profile: Profile, state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
) -> Status | Victims:
    """Of every node where that makes room, the pods to evict."""
    live = profile.handle.cluster.nodes
    rows = np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE)
    refusals: dict[int, Status] = {}
    budgets = Budgets(profile.handle.cluster.pdbs)
    ahead = dict(profile.handle.nominations.before(pod))
    apart = np.array([row for row in rows.tolist() if live.names[row] in ahead] if ahead else [], np.intp)
    if _looks_at_one_node(profile, state):
        together = np.setdiff1d(rows, apart) if len(apart) else rows
        found = [_try_together(profile, state, pod, together, budgets, refusals)]
    else:
        apart, found = rows, []
    wanted = min(max(len(rows) * percentage // 100, absolute), len(rows))
    found.append(_try_apart(profile, state, pod, apart, budgets, refusals, wanted))
    victims = Victims(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    if not len(victims.rows):
        return Status.unschedulable(_message(live, rows, refusals))
    return victims


def pick(live: LiveNodeTable, victims: Victims) -> Nomination:
    """The node whose victims hurt least."""
    row = _least_harm(live, victims)
    chosen = (live.pods.pods[slot] for slot in victims.slots[victims.rows == row].tolist())
    return Nomination(live.names[row], tuple(each for each in chosen if not each.is_terminating))


def _looks_at_one_node(profile: Profile, state: CycleState) -> bool:
    """Whether no filter at work needs to know of pods on other nodes."""
    return all(
        step.plugin.reads is not Reads.ANYTHING and step.filter_nodes is not None
        for step in profile.filters
        if step.name not in state.skipped_filters
    )


def _message(live: LiveNodeTable, rows: Slots, refusals: dict[int, Status]) -> str:
    counts: dict[str, int] = {NOT_HELPFUL: len(live) - len(rows)} if len(live) > len(rows) else {}
    statuses = {id(status): status for status in refusals.values()}  # thousands, and nearly all the same one
    for key, count in Counter(map(id, refusals.values())).items():
        for reason in statuses[key].reasons:
            counts[reason] = counts.get(reason, 0) + count
    return fit_message(len(live), "", counts)


# All nodes at once


def _try_together(
    profile: Profile, state: CycleState, pod: Pod, rows: Slots, budgets: Budgets, refusals: dict[int, Status]
) -> Victims:
    live = profile.handle.cluster.nodes
    pods, table = live.pods, live.take(rows)
    places = np.full(len(live), -1, np.intp)
    places[rows] = np.arange(len(rows))
    slots = np.flatnonzero((places[pods.row] >= 0) & (pods.priority < pod.priority))
    has_victims = np.bincount(places[pods.row[slots]], minlength=len(rows)) > 0
    refusals.update(dict.fromkeys(rows[~has_victims].tolist(), NO_VICTIMS))
    table.set_aside(slots)
    refused = run_filters(profile, state, pod, table)
    passing = passing_all(refused)
    usable = has_victims if passing is None else has_victims & passing
    for place in np.flatnonzero(has_victims & ~usable).tolist():
        refusals[int(rows[place])] = next(each.status(place) for each in refused if each.fails[place])
    slots = slots[usable[places[pods.row[slots]]]]
    slots = slots[np.lexsort((*_importance(pods, slots), pods.row[slots]))]
    violating = budgets.violated_by(pods, slots)
    slots, violating = _violating_first(pods, slots, violating)
    kept = _reprieve(profile, state, pod, table, places, slots)
    return Victims(pods.row[slots[~kept]].astype(np.intp), slots[~kept], violating[~kept])


def _reprieve(
    profile: Profile, state: CycleState, pod: Pod, table: NodeSubset, places: Slots, slots: Slots
) -> NDArray[np.bool_]:
    """Which pods can stay after all: the first of every node is put back, then the second, and so on."""
    where = places[table.live.pods.row[slots]]
    kept = np.zeros(len(slots), np.bool_)
    if not len(slots):
        return kept
    starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
    turn = np.arange(len(slots)) - np.repeat(starts, np.diff(np.r_[starts, len(slots)]))
    for number in range(int(turn.max()) + 1):
        mine = np.flatnonzero(turn == number)
        table.bring_back(slots[mine])
        passing = passing_all(run_filters(profile, state, pod, table))
        fits = np.ones(len(mine), np.bool_) if passing is None else passing[where[mine]]
        kept[mine] = fits
        table.set_aside(slots[mine[~fits]])
    return kept


def _importance(pods: PodTable, slots: Slots) -> tuple[NDArray[np.generic], ...]:
    """Sort keys, last first: higher priority, then earlier start, then the place on the node."""
    start, place = pods.start[slots], pods.place[slots]
    # parity: pods that have not started come in the reverse order of their node
    return np.where(np.isinf(start), -place, place), start, -pods.priority[slots]


def _violating_first(
    pods: PodTable, slots: Slots, violating: NDArray[np.bool_]
) -> tuple[Slots, NDArray[np.bool_]]:
    if not violating.any():
        return slots, violating
    order = np.lexsort((*_importance(pods, slots), ~violating, pods.row[slots]))
    return slots[order], violating[order]


# One node at a time


def _try_apart(
    profile: Profile,
    state: CycleState,
    pod: Pod,
    rows: Slots,
    budgets: Budgets,
    refusals: dict[int, Status],
    wanted: int,
) -> Victims:
    pods, found = profile.handle.cluster.nodes.pods, []
    harmless = False
    for row in rows.tolist():
        slots = np.array([pods.slot_of(each) for each in _lower(profile, pod, row)], np.intp)
        if not len(slots):
            refusals[row] = NO_VICTIMS
            continue
        slots = slots[np.lexsort(_importance(pods, slots))]
        slots, violating = _violating_first(pods, slots, budgets.violated_by(pods, slots))
        kept = _try_one(profile, state, pod, row, [pods.pods[slot] for slot in slots.tolist()])
        if isinstance(kept, Status):
            refusals[row] = kept
            continue
        found.append(Victims(np.full(int((~kept).sum()), row), slots[~kept], violating[~kept]))
        harmless = harmless or not violating[~kept].any()
        if harmless and len(found) >= wanted:
            break
    nothing = np.zeros(0, np.intp)
    found.append(Victims(nothing, nothing, np.zeros(0, np.bool_)))
    return Victims(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _lower(profile: Profile, pod: Pod, row: int) -> list[Pod]:
    return [other for other in profile.handle.cluster.nodes.pods_on(row) if other.priority < pod.priority]


def _try_one(
    profile: Profile, state: CycleState, pod: Pod, row: int, lower: Sequence[Pod]
) -> NDArray[np.bool_] | Status:
    """Which of the pods can stay; a refusal if not even evicting all of them helps."""
    node, state = profile.handle.cluster.nodes.take([row]), state.clone()
    for other in lower:
        node.remove_pod(0, other)
        tell(profile, state, "remove_pod", pod, other, node)
    refusal = _refusal(profile, state, pod, node)
    if refusal is not None:
        return refusal
    kept = np.zeros(len(lower), np.bool_)
    for number, other in enumerate(lower):
        node.add_pod(0, other)
        tell(profile, state, "add_pod", pod, other, node)
        kept[number] = _refusal(profile, state, pod, node) is None
        if not kept[number]:
            node.remove_pod(0, other)
            tell(profile, state, "remove_pod", pod, other, node)
    return kept


def _refusal(profile: Profile, state: CycleState, pod: Pod, node: NodeSubset) -> Status | None:
    """What the filters say with the pods nominated to the node, then without them."""
    nominated = [
        other
        for other in profile.handle.nominations.on(node.names[0])
        if other.priority >= pod.priority and other.uid != pod.uid
    ]
    if nominated:
        status = refusal_with(profile, state, pod, node.copy(), nominated)
        if status is not None:
            return status
    return first_refusal(profile, state, pod, node)


# Who it hurts least


class Budgets:
    """Pod disruption budgets, and which pods may not be evicted any more."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets: list[tuple[PodDisruptionBudget, Selector]] = []
        for budget in budgets:
            try:
                selector = selector_of(budget.spec.selector)
            except SelectorError:
                continue  # a budget with a mistake in its selector covers nobody
            if not selector.everything and not selector.nothing:
                self._budgets.append((budget, selector))
        self._covering: dict[int, list[int]] = {}

    def violated_by(self, pods: PodTable, slots: Slots) -> NDArray[np.bool_]:
        """Of pods node by node in order of importance: whether evicting it too is one too many."""
        violating = np.zeros(len(slots), np.bool_)
        if not self._budgets:
            return violating
        row, left = -1, [0]
        for number, slot in enumerate(slots.tolist()):
            if pods.row[slot] != row:
                row, left = pods.row[slot], [budget.status.disruptions_allowed for budget, _ in self._budgets]
            pod = pods.pods[slot]
            for index in self._covers(pod.label_set):
                if pod.name not in self._budgets[index][0].status.disrupted_pods:
                    left[index] -= 1
                    violating[number] |= left[index] < 0
        return violating

    def _covers(self, labels: LabelSet) -> list[int]:
        found = self._covering.get(id(labels))
        if found is None:
            found = self._covering[id(labels)] = [
                index
                for index, (budget, selector) in enumerate(self._budgets)
                if budget.namespace == labels.namespace and labels.labels and selector.matches(labels.labels)
            ]
        return found


def _least_harm(live: LiveNodeTable, victims: Victims) -> int:
    """Fewest violated budgets, then the least important victims, the fewest, the youngest; then by name."""
    rows, where = np.unique(victims.rows, return_inverse=True)
    priority, start = live.pods.priority[victims.slots], live.pods.start[victims.slots]
    highest = np.full(len(rows), np.iinfo(np.int64).min)
    np.maximum.at(highest, where, priority)
    earliest = np.full(len(rows), np.inf)
    top = priority == highest[where]
    np.minimum.at(earliest, where[top], start[top])
    violations = np.bincount(where, victims.violating, len(rows))
    weight = np.zeros(len(rows), np.int64)
    np.add.at(weight, where, priority + 2**31)
    count = np.bincount(where, minlength=len(rows))
    best = np.lexsort((live.name_ranks[rows], -earliest, count, weight, highest, violations))
    return int(rows[best[0]])
