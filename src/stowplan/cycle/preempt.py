"""Making room: which pods of lower priority to evict, from which node, so that a pod fits.

`Prospects` keeps what evicting pods would achieve on each node for the next pod of the same kind, where every
filter's answer can be kept: it depends on the node, its pods and disruption budgets alone, and is computed
again for nodes where one of these has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from stowplan.api.pod import Pod
from stowplan.api.workloads import PodDisruptionBudget
from stowplan.cluster.cluster import ObjectStore
from stowplan.cluster.columns import distinct
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.steps import run_filters
from stowplan.cycle.trials import (
    FEW,
    kind_of,
    no_columns,
    try_apart,
    try_in_turn,
    try_plainly,
    try_together,
)
from stowplan.cycle.victims import (
    NO_RANKS,
    NO_VICTIMS,
    USUAL_ORDER,
    WITHOUT_PODS,
    Budgets,
    Preemptor,
    Slots,
    VictimOrder,
    Victims,
    add_harm,
    first_of_each_row,
    join_victims,
    least,
    looks_at_numbers,
    no_harm,
)
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.handle import Nominations
from stowplan.framework.plugin import Nomination, Reads
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Preemption, Status

__all__ = ["Candidates", "Victims", "pick", "preempt"]

NOT_HELPFUL = "Preemption is not helpful for scheduling"


def preempt(
    profile: Profile,
    state: CycleState,
    pod: Pod,
    decision: Decision,
    percentage: int,
    absolute: int,
    may_evict: frozenset[str] | None = None,
    order: VictimOrder = USUAL_ORDER,
) -> Status | Nomination:
    """The node where evicting pods does the least harm, or a status that says why no node helps.

    With `may_evict` only pods with these uids can be evicted, otherwise all of lower priority.
    """
    live, nominations = profile.handle.cluster.nodes, profile.handle.nominations
    rows = np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE)
    if not len(rows):
        return _no_node(live, rows, Counter())
    wanted = min(max(len(rows) * percentage // 100, absolute), len(rows))
    groups = profile.handle.cluster.groups
    ranks = groups.ranks(pod) if groups.families else NO_RANKS
    if may_evict is None and not ranks and not live.pods.has_below(pod.priority):
        return _no_node(live, rows, Counter({NO_VICTIMS: len(rows)}))
    state = _skip_settled_filters(profile, state, pod, rows)
    if may_evict is not None and ranks:  # all of a group that is evicted as a whole, or none of it
        wholes = [{each.uid for each in groups.placed(key)} for key in groups.whole()]
        may_evict = may_evict.difference(*(members for members in wholes if not members <= may_evict))
    kind, candidates = kind_of(profile, state, pod), state.find(Candidates)
    if kind is None or candidates is not None or ranks or may_evict is not None:
        budgets = Budgets(profile.handle.cluster.pdbs)
        preemptor = Preemptor(profile, state, pod, budgets, ranks, may_evict, order)
        found = _find_victims(preemptor, _search(preemptor, rows, wanted))
        if isinstance(found, Status):
            return found
        if candidates is not None:
            candidates.victims = found
        nomination = pick(live, found, order)
        if not ranks:
            return nomination
        victims = groups.evicted_with(nomination.victims)
        return Nomination(nomination.node_name, tuple(each for each in victims if not each.is_terminating))
    memory = Memory.of(live, profile.handle.cluster.pdbs, nominations)
    preemptor = Preemptor(profile, state, pod, memory.budgets, order=order)
    search = _search(preemptor, rows, wanted)
    prospects = memory.prospects((order.version, kind), len(live))
    # Its own nomination counts for all pods of its kind but this one.
    own = live.row_of(nominations.node_of(pod) or "")
    if own is not None:
        prospects.known[own] = False
    _look_at(preemptor, search, prospects)
    if own is not None:
        prospects.known[own] = False
    rows = np.concatenate([search.together, prospects.until_enough(search.apart, wanted)])
    helped = rows[prospects.harm.victims[rows] > 0]
    if not len(helped):
        return _no_node(live, search.rows, prospects.rejections(rows))
    row = least(live, helped, prospects.harm, order)
    return _nomination(live, row, prospects.victims_on(live, row))


def _skip_settled_filters(profile: Profile, state: CycleState, pod: Pod, rows: Slots) -> CycleState:
    """Skip filters that depend on no pods and are not cached, if they reject none of these rows."""
    active = [step for step in profile.filters if step.name not in state.skipped_filters]
    settled = {step.name for step in active if step.plugin.reads in WITHOUT_PODS and not step.is_cached}
    if not settled:
        return state
    asking = state.clone()
    asking.skipped_filters = state.skipped_filters | {step.name for step in active} - settled
    rejected = run_filters(profile, asking, pod, profile.handle.cluster.nodes)
    if any(each.fails[rows].any() for each in rejected):
        return state
    asking.skipped_filters = state.skipped_filters | settled
    return asking


def _find_victims(preemptor: Preemptor, search: _Search) -> Status | Victims:
    """The pods to evict on every node where evicting pods makes room."""
    profile, state, *_ = preemptor
    active = [step for step in profile.filters if step.name not in state.skipped_filters]
    rejections: dict[int, Status] = {}
    looked_at = search.rows
    has_any = np.zeros(len(preemptor.live), np.bool_)
    has_any[preemptor.live.pods.row[preemptor.lower_slots()]] = True
    if not has_any[looked_at].all():  # nodes without a pod that may be evicted need not be tried
        rejections = dict.fromkeys(looked_at[~has_any[looked_at]].tolist(), NO_VICTIMS)
        rows, at_once, apart = (part[has_any[part]] for part in search[:3])
        search = _Search(rows, at_once, apart, search.wanted)
    if not profile.told <= state.skipped_filters or not all(step.tries_many for step in active):
        victims = try_apart(preemptor, search.rows, rejections, search.wanted)
    elif all(step.plugin.reads is not Reads.ANYTHING for step in active):
        together = try_together(preemptor, search.together, rejections)
        victims = join_victims([together, try_in_turn(preemptor, search.apart, rejections, search.wanted)])
    else:
        victims = try_in_turn(preemptor, search.rows, rejections, search.wanted)
    if not len(victims.rows):
        return _no_node(preemptor.live, looked_at, _count_statuses(rejections))
    return victims


def pick(live: LiveNodeTable, victims: Victims, order: VictimOrder = USUAL_ORDER) -> Nomination:
    """The node whose victims do the least harm."""
    harm = no_harm(len(live))
    add_harm(harm, live, victims)
    row = least(live, distinct(victims.rows), harm, order)
    slots = victims.slots[victims.rows == row].tolist()
    return _nomination(live, row, [live.pods.pods[slot] for slot in slots])


class Candidates:
    """In the state of a cycle with extenders: the victims on every node, about which they are asked next."""

    def __init__(self) -> None:
        self.victims: Victims | None = None


class _Search(NamedTuple):
    """Where to look for victims."""

    rows: Slots
    together: Slots
    apart: Slots
    """Rows with nominated pods, which must fit as well."""
    wanted: int
    """How many candidate nodes are enough where not all are tried."""


def _search(preemptor: Preemptor, rows: Slots, wanted: int) -> _Search:
    live, nominations = preemptor.live, preemptor.profile.handle.nominations
    if not nominations:
        return _Search(rows, rows, rows[:0], wanted)
    is_promised = np.zeros(len(live), np.bool_)
    is_promised[nominations.ahead_of(preemptor.pod, live)[1]] = True
    return _Search(rows, rows[~is_promised[rows]], rows[is_promised[rows]], wanted)


def _look_at(preemptor: Preemptor, search: _Search, prospects: Prospects) -> None:
    """Compute the prospects of rows that are not cached."""
    unknown = search.rows[~prospects.known[search.rows]]
    if not len(unknown):
        return
    together, apart = (part[~prospects.known[part]] for part in (search.together, search.apart))
    rejections: dict[int, Status] = {}
    found = []
    if len(unknown) <= FEW and looks_at_numbers(preemptor):
        plain, together = try_plainly(preemptor, unknown, rejections)
        found, apart = [plain], apart[:0]
    found += [try_together(preemptor, rows, rejections) for rows in (together, apart) if len(rows)]
    prospects.learn(preemptor.live, unknown, join_victims(found), rejections)


def _nomination(live: LiveNodeTable, row: int, victims: list[Pod]) -> Nomination:
    return Nomination(live.names[row], tuple(each for each in victims if not each.is_terminating))


def _count_statuses(rejections: dict[int, Status]) -> Counter[Status]:
    statuses = {id(status): status for status in rejections.values()}  # thousands, nearly all the same
    counts: Counter[Status] = Counter()
    for key, count in Counter(map(id, rejections.values())).items():
        counts[statuses[key]] += count
    return counts


def _no_node(live: LiveNodeTable, rows: Slots, rejections: Counter[Status]) -> Status:
    """Why evicting pods helps on no node; only the errors, if there are any."""
    errors = dict.fromkeys(status.message for status in rejections if status.code is Code.ERROR)
    if errors:
        text = next(iter(errors)) if len(errors) == 1 else f"[{', '.join(errors)}]"
        return Status.error(text, next((status.stack for status in rejections if status.stack), ""))
    found = Preemption(not_helpful=len(live) - len(rows), no_victims=rejections[NO_VICTIMS])
    return Status(Code.UNSCHEDULABLE, (_message(live, found.not_helpful, rejections),), preemption=found)


def _message(live: LiveNodeTable, not_helpful: int, rejections: Counter[Status]) -> str:
    counts = {NOT_HELPFUL: not_helpful} if not_helpful else {}
    for status, count in rejections.items():
        for reason in status.reasons:
            counts[reason] = counts.get(reason, 0) + count
    return fit_message(len(live), "", counts)


KINDS = 16
"""Kinds of pods whose prospects are cached at a time."""
SPARE = 4096
"""How many outdated entries to keep before everything is recomputed."""

NOT_REJECTED = -1
MEMORY = "preemption"


class Prospects:
    """The prospects of pods of one kind, for rows that were computed and have not changed since."""

    def __init__(self, length: int) -> None:
        self.known = np.zeros(length, np.bool_)
        self.harm = no_harm(length)
        self._first = np.zeros(length, np.intp)
        """Where the victims of each row start in `_places`."""
        self._places: list[int] = []
        """The positions of the victims in their node's list of pods."""
        self._rejection = np.zeros(length, np.intp)
        """The number of each row's status; a row where the pod fits as it is has none."""
        self._statuses: list[Status] = []

    @property
    def is_overgrown(self) -> bool:
        return len(self._places) + len(self._statuses) > int(self.harm.victims.sum()) + SPARE

    def learn(
        self, live: LiveNodeTable, rows: Slots, victims: Victims, rejections: dict[int, Status]
    ) -> None:
        """Store what was found on these rows; the victims of a row are adjacent."""
        self.harm.victims[rows], self.harm.violations[rows], self._rejection[rows] = 0, 0, NOT_REJECTED
        where = victims.rows
        starts = first_of_each_row(where)
        self._first[where[starts]] = len(self._places) + starts
        self._places += live.pods.place[victims.slots].tolist()
        add_harm(self.harm, live, victims)
        numbers = {status: number for number, status in enumerate(self._statuses)}
        for row, status in rejections.items():
            self._rejection[row] = numbers.setdefault(status, len(numbers))
        self._statuses = list(numbers)
        self.known[rows] = True
        # What failed may well succeed the next time.
        self.known[[row for row, status in rejections.items() if status.code is Code.ERROR]] = False

    def until_enough(self, rows: Slots, wanted: int) -> Slots:
        """Rows in turn until `wanted` candidates are found, one of them without violating a budget."""
        found = self._rejection[rows] == NOT_REJECTED
        harmless = np.logical_or.accumulate(found & (self.harm.violations[rows] == 0))
        enough = np.flatnonzero(harmless & (np.cumsum(found) >= wanted))
        return rows[: enough[0] + 1] if len(enough) else rows

    def victims_on(self, live: LiveNodeTable, row: int) -> list[Pod]:
        first, pods = int(self._first[row]), live.pods_on(row)
        return [pods[place] for place in self._places[first : first + int(self.harm.victims[row])]]

    def rejections(self, rows: Slots) -> Counter[Status]:
        """The reasons why evicting pods helps on none of the rows, with the number of rows for each."""
        numbers = self._rejection[rows]
        counts = np.bincount(numbers[numbers != NOT_REJECTED], minlength=len(self._statuses)).tolist()
        return +Counter(dict(zip(self._statuses, counts, strict=True)))  # without those that none has


class Memory:
    """The prospects of several kinds of pods, kept until rows are added, removed or moved."""

    def __init__(self) -> None:
        self.budgets = Budgets(())
        self._kinds: dict[Hashable, Prospects] = {}
        self._version = 0
        self._positions: tuple[int, ...] = (0, 0, 0)
        self._nominations: Nominations | None = None
        self._nominated = 0

    @classmethod
    def of(
        cls, live: LiveNodeTable, budgets: ObjectStore[PodDisruptionBudget], nominations: Nominations
    ) -> Memory:
        found: Memory = live.keep(MEMORY, no_columns, finish=lambda columns: cls())
        found._follow(live, budgets)
        found._follow_nominations(live, nominations)
        return found

    def prospects(self, kind: Hashable, length: int) -> Prospects:
        found = self._kinds.pop(kind, None)
        if found is None or found.is_overgrown:
            found = Prospects(length)
        self._kinds[kind] = found  # the last, since those not used lately go
        if len(self._kinds) > KINDS:
            del self._kinds[next(iter(self._kinds))]
        return found

    def _follow(self, live: LiveNodeTable, budgets: ObjectStore[PodDisruptionBudget]) -> None:
        logs = live.kept.node_changes, live.kept.usage_changes, live.kept.pod_changes
        changed = [log.since(position) for log, position in zip(logs, self._positions, strict=True)]
        self._positions = tuple(log.position for log in logs)
        if budgets.version != self._version:
            self.budgets, self._version = Budgets(budgets), budgets.version
            self._kinds.clear()
        elif None in changed:
            self._kinds.clear()
        else:
            for prospects in self._kinds.values():
                for rows in changed:
                    prospects.known[rows] = False

    def _follow_nominations(self, live: LiveNodeTable, nominations: Nominations) -> None:
        names = nominations.changes.since(self._nominated) if nominations is self._nominations else None
        self._nominations, self._nominated = nominations, nominations.changes.position
        if names is None:
            self._kinds.clear()
            return
        rows = [row for name in names if (row := live.row_of(name)) is not None]
        for prospects in self._kinds.values() if rows else ():
            prospects.known[rows] = False
