"""Filters nodes as they would be with other pods: with those nominated to them, or after evictions.

To find out whom to evict from a node, all pods of lower priority leave, then as many as can come back.
Where every filter looks at one node at a time, all nodes are tried at once, a pod of each in every round;
a handful of nodes is tried in plain numbers, which is faster. Otherwise nodes are tried one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Columns, Mask, Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeSubset, NodeTable
from stowplan.cluster.trial_table import TrialTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.cycle.steps import Rejections, error_status, passing_all, run_filters
from stowplan.cycle.victims import (
    NO_VICTIMS,
    WITHOUT_PODS,
    Preemptor,
    Slots,
    Victims,
    first_of_each_row,
    in_order,
    join_victims,
    no_victim_needed,
    usage_steps,
)
from stowplan.framework.answers import reason_of, row_reject_of, status_of, text_of
from stowplan.framework.decision import Decision, Verdicts
from stowplan.framework.handle import Nominations
from stowplan.framework.plugin import FilterError, overrides
from stowplan.framework.profile import FilterStep, Profile
from stowplan.framework.state import CycleState, seal_state
from stowplan.framework.status import Code, Status


def try_together(preemptor: Preemptor, rows: Slots, rejections: dict[int, Status]) -> Victims:
    """Try all of these rows at once; the reason why a row does not help goes into `rejections`."""
    live = preemptor.live
    pods, nodes = live.pods, _TrialNodes(preemptor, rows)
    places = np.full(len(live), -1, np.intp)
    places[rows] = np.arange(len(rows))
    slots = np.flatnonzero((places[pods.row] >= 0) & preemptor.lower_slots())
    has_victims = np.bincount(places[pods.row[slots]], minlength=len(rows)) > 0
    rejections.update(dict.fromkeys(rows[~has_victims].tolist(), NO_VICTIMS))
    nodes.set_aside(slots)
    usable = has_victims.copy()
    for rejected in nodes.ask(preemptor.state):
        for each, first in zip(rejected, list(first_rejected(rejected)), strict=True):
            at = np.flatnonzero(first & usable)
            rejections.update(zip(rows[at].tolist(), each.statuses(at), strict=True))
            usable[at] = False
    slots, violating = in_order(preemptor, slots[usable[places[pods.row[slots]]]])
    kept = _reprieve(preemptor, nodes, places, slots)
    usable[places[pods.row[slots[~kept]]]] = False
    for row in rows[usable].tolist():
        rejections[row] = no_victim_needed(live.names[row])
    return Victims(pods.row[slots[~kept]].astype(np.intp), slots[~kept], violating[~kept])


class _TrialNodes:
    """The nodes that are tried: with the pods nominated to them, if there are any, and without."""

    def __init__(self, preemptor: Preemptor, rows: Slots) -> None:
        self._preemptor = preemptor
        self._tables = [TrialTable(preemptor.live, rows)]
        nominations = preemptor.profile.handle.nominations
        slots, nodes = nominations.ahead_of(preemptor.pod, preemptor.live) if nominations else (rows[:0],) * 2
        is_tried = np.zeros(len(preemptor.live), np.bool_)
        is_tried[rows] = True
        mine = is_tried[nodes]
        if np.count_nonzero(mine):
            self._tables.insert(0, TrialTable(preemptor.live, rows))
            self._tables[0].add_nominated(nominations.pods, slots[mine], nodes[mine])

    def set_aside(self, slots: Slots) -> None:
        for table in self._tables:
            table.set_aside(slots)

    def bring_back(self, slots: Slots) -> None:
        for table in self._tables:
            table.bring_back(slots)

    def ask(self, state: CycleState) -> Iterator[Rejections]:
        """What the filters reject: first with the nominated pods, then without."""
        profile, _, pod, *_ = self._preemptor
        return (run_filters(profile, state, pod, table) for table in self._tables)


def _reprieve(preemptor: Preemptor, nodes: _TrialNodes, places: Slots, slots: Slots) -> Mask:
    """Which pods can stay: put back the first of every node, then the second, and so on."""
    where = places[preemptor.live.pods.row[slots]]
    kept = np.zeros(len(slots), np.bool_)
    if not len(slots):
        return kept
    starts = first_of_each_row(where)
    turn = np.arange(len(slots)) - np.repeat(starts, np.diff(starts, append=len(slots)))
    state = _asking_again(preemptor, preemptor.state)
    for number in range(int(turn.max()) + 1):
        mine = np.flatnonzero(turn == number)
        nodes.bring_back(slots[mine])
        fits = np.ones(len(mine), np.bool_)
        for rejected in nodes.ask(state):
            if (passing := passing_all(rejected)) is not None:
                fits &= passing[where[mine]]
        kept[mine] = fits
        nodes.set_aside(slots[mine[~fits]])
    return kept


def _asking_again(preemptor: Preemptor, state: CycleState) -> CycleState:
    """Skip filters that do not depend on pods and have been passed."""
    state = state.clone()
    settled = {step.name for step in preemptor.profile.filters if step.plugin.reads in WITHOUT_PODS}
    state.skipped_filters = state.skipped_filters | settled
    return state


def try_in_turn(preemptor: Preemptor, rows: Slots, rejections: dict[int, Status], wanted: int) -> Victims:
    """Try rows in turn until `wanted` are found, one of them without violating a budget."""
    found: list[Victims] = []
    count, harmless = 0, False
    for start in range(0, len(rows), BATCH):
        victims = try_together(preemptor, rows[start : start + BATCH], rejections)
        if not len(victims.rows):
            continue
        starts = first_of_each_row(victims.rows)
        is_harmless = np.add.reduceat(victims.violating, starts, dtype=np.int64) == 0
        is_harmless = np.logical_or.accumulate(is_harmless) | harmless
        enough = np.flatnonzero(is_harmless & (np.arange(len(starts)) + count + 1 >= wanted))
        if len(enough):
            end = np.append(starts, len(victims.rows))[enough[0] + 1]
            found.append(Victims(*(column[:end] for column in victims)))
            break
        found.append(victims)
        count, harmless = count + len(starts), bool(is_harmless[-1])
    return join_victims(found)


def try_apart(preemptor: Preemptor, rows: Slots, rejections: dict[int, Status], wanted: int) -> Victims:
    """Try one row after another until `wanted` are found, one of them without violating a budget."""
    pods, found = preemptor.live.pods, []
    harmless = False
    for row in rows.tolist():
        lower = preemptor.lower_on(row)
        if not lower:
            rejections[row] = NO_VICTIMS
            continue
        slots, violating = in_order(preemptor, np.array([pods.slot_of(each) for each in lower], np.intp))
        kept = _try_one(preemptor, row, [pods.pods[slot] for slot in slots.tolist()])
        if isinstance(kept, Status):
            rejections[row] = kept
            continue
        if kept.all():
            rejections[row] = no_victim_needed(preemptor.live.names[row])
            continue
        found.append(Victims(np.full(int((~kept).sum()), row), slots[~kept], violating[~kept]))
        harmless = harmless or not violating[~kept].any()
        if harmless and len(found) >= wanted:
            break
    return join_victims(found)


def _try_one(preemptor: Preemptor, row: int, lower: Sequence[Pod]) -> NDArray[np.bool_] | Status:
    """Which of the pods can stay; a rejection or error if evicting all of them does not help."""
    profile, state, pod, *_ = preemptor
    node, state = preemptor.live.take([row]), state.clone()
    try:
        for other in lower:
            node.remove_pod(0, other)
            tell(profile, state, "remove_pod", pod, other, node)
        rejection = _rejection(preemptor, state, node)
        if rejection is not None:
            return rejection
        state, kept = _asking_again(preemptor, state), np.zeros(len(lower), np.bool_)
        for number, other in enumerate(lower):
            node.add_pod(0, other)
            tell(profile, state, "add_pod", pod, other, node)
            kept[number] = _rejection(preemptor, state, node) is None
            if not kept[number]:
                node.remove_pod(0, other)
                tell(profile, state, "remove_pod", pod, other, node)
    except CycleError as error:
        return error_status(error)
    return kept


def _rejection(preemptor: Preemptor, state: CycleState, node: NodeSubset) -> Status | None:
    """The result of the filters with the pods nominated to the node, then without them."""
    profile, _, pod, *_ = preemptor
    nominated = profile.handle.nominations.ahead_on(node.names[0], pod)
    if nominated:
        status = rejection_with(profile, state, pod, node.copy(), nominated)
        if status is not None:
            return status
    return first_rejection(profile, state, pod, node)


FEW = 16
"""Up to this many nodes are tried one by one."""
BATCH = 512
"""How many nodes are tried at a time where not all need to be."""


def try_plainly(preemptor: Preemptor, rows: Slots, rejections: dict[int, Status]) -> tuple[Victims, Slots]:
    """What is found on these rows, and those of them that the node object alone rules out."""
    live, nominations = preemptor.live, preemptor.profile.handle.nominations
    steps, found = usage_steps(preemptor), []
    passing = _passing_by_node(preemptor, rows, steps)
    for row in rows[passing].tolist():
        lower = preemptor.lower_on(row)
        ahead = nominations.ahead_on(live.names[row], preemptor.pod)
        victims = _Trial(preemptor, row, steps, ahead).run(lower) if lower else NO_VICTIMS
        if isinstance(victims, Status):
            rejections[row] = victims
        else:
            found.append(victims)
    return join_victims(found), rows[~passing]


def _passing_by_node(preemptor: Preemptor, rows: Slots, steps: Sequence[FilterStep]) -> Mask:
    state = preemptor.state.clone()
    state.skipped_filters = state.skipped_filters | {step.name for step in steps}
    passing = passing_all(run_filters(preemptor.profile, state, preemptor.pod, preemptor.live))
    return np.ones(len(rows), np.bool_) if passing is None else passing[rows]


class _Trial:
    """One node, from which pods are taken and to which they come back."""

    def __init__(
        self, preemptor: Preemptor, row: int, steps: Sequence[FilterStep], ahead: Sequence[Pod]
    ) -> None:
        self._preemptor, self._steps, self._ahead = preemptor, steps, ahead
        self._node = preemptor.live.plain_row(row)
        self._observer = preemptor.profile.observer.start("Filter")

    def run(self, lower: Sequence[Pod]) -> Victims | Status:
        """Which of the pods must be evicted; a rejection if evicting all of them does not help."""
        pods = self._preemptor.live.pods
        for other in lower:
            self._account(other, -1)
        rejection = self._rejection()
        if rejection is not None:
            return rejection
        slots, violating = in_order(
            self._preemptor, np.array([pods.slot_of(other) for other in lower], np.intp)
        )
        gone = np.zeros(len(slots), np.bool_)
        for number, slot in enumerate(slots.tolist()):
            self._account(pods.pods[slot], 1)
            if self._rejection() is not None:
                gone[number] = True
                self._account(pods.pods[slot], -1)
        if not gone.any():
            return no_victim_needed(self._preemptor.live.names[self._node.rows])
        return Victims(np.full(int(gone.sum()), self._node.rows), slots[gone], violating[gone])

    def _account(self, pod: Pod, sign: int) -> None:
        node, taken = self._node, pod.assigned or pod.shape.assigned
        for resource, amount in taken.requests.items():
            if resource in node.requested:  # no others are counted, since no node offers them
                node.requested[resource] += sign * amount
        node.nonzero_requested["cpu"] += sign * taken.nonzero_cpu
        node.nonzero_requested["memory"] += sign * taken.nonzero_memory
        node.pod_count += sign

    def _rejection(self) -> Status | None:
        """The result of the filters with the pods nominated to the node, then without them."""
        if self._ahead:
            for other in self._ahead:
                self._account(other, 1)
            status = self._first_rejection()
            for other in self._ahead:
                self._account(other, -1)
            if status is not None:
                return status
        return self._first_rejection()

    def _first_rejection(self) -> Status | None:
        _, state, pod, *_ = self._preemptor
        for step in self._steps:
            if self._observer is not None:
                self._observer.enter("Filter", step.plugin)
            try:
                answers = step.filter_row(state, pod, self._node)
                found = [row_reject_of(each) for each in answers if each.mask is not False]
                rejects = [(reason_of(why), hard) for is_rejected, why, hard in found if is_rejected]
            except FilterError as error:
                return Status.error(f'running "{step.name}" filter plugin: {text_of(error)}').by(step.name)
            except BaseException as error:
                return error_status(failure(f'running "{step.name}" filter plugin', error, step.method, pod))
            finally:
                if self._observer is not None:
                    self._observer.leave("Filter", step.plugin)
            if rejects:
                code = Code.UNRESOLVABLE if any(hard for _, hard in rejects) else Code.UNSCHEDULABLE
                return Status(code, tuple(dict.fromkeys(reason for reason, _ in rejects)), step.name)
        return None


# With pods that are nominated to a node


def first_rejection(profile: Profile, state: CycleState, pod: Pod, nodes: NodeSubset) -> Status | None:
    """The rejection or error of the filters for a table of one node; None if it passes."""
    for rejected in run_filters(profile, state, pod, nodes):
        return rejected.status(0)
    return None


def overrule_for_nominated(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable, nominations: Nominations
) -> None:
    """Reject nodes where the pod would not fit together with the pods nominated to them."""
    tries_many = profile.told <= state.skipped_filters and all(
        step.tries_many or not step.takes_columns or step.name in state.skipped_filters
        for step in profile.filters
    )
    # A pod's own nomination counts for all pods of its kind but this one.
    if not tries_many or nodes is not nodes.live or nominations.node_of(decision.pod) is not None:
        decision.overruled = _find_overruled(profile, state, decision, nodes, nominations, tries_many)
        return
    kind = kind_of(profile, state, decision.pod)
    known = None if kind is None else KnownOverruled.of(nodes.live, nominations).by_kind
    if known is None or kind not in known:
        decision.overruled = _find_overruled(profile, state, decision, nodes, nominations, tries_many)
        if known is None or any(status.code is Code.ERROR for status in decision.overruled.values()):
            return  # what failed may well succeed the next time
        if len(known) >= MAX_KINDS:
            del known[next(iter(known))]
        known[kind] = decision.overruled
    decision.overruled = known[kind]


def _find_overruled(
    profile: Profile,
    state: CycleState,
    decision: Decision,
    nodes: NodeTable,
    nominations: Nominations,
    tries_many: bool,
) -> dict[int, Status]:
    """The statuses of such nodes, by place in `nodes`."""
    pod, live = decision.pod, nodes.live
    slots, rows = nominations.ahead_of(pod, live)
    if nodes is not live:
        is_inside = np.zeros(len(live), np.bool_)
        is_inside[nodes.rows] = True
        slots, rows = slots[is_inside[rows]], rows[is_inside[rows]]
    found: dict[int, Status] = {}
    if not len(slots):
        return found
    is_promised = np.zeros(len(live), np.bool_)
    is_promised[rows] = True
    promised = np.flatnonzero(is_promised)
    places = promised if nodes is live else np.flatnonzero(is_promised[nodes.rows])
    if nodes is not live:
        promised = nodes.rows[places]
    if tries_many:
        trial = TrialTable(live, promised)
        trial.add_nominated(nominations.pods, slots, rows)
        overruled = run_filters(profile, state, pod, trial)
        for at, statuses in _unlike(decision.filters, overruled, places):
            found.update(zip(places[at].tolist(), statuses, strict=True))
    else:
        for place, row in zip(places.tolist(), promised.tolist(), strict=True):
            ahead = nominations.ahead_on(live.names[row], pod)
            status = rejection_with(profile, state, pod, live.take([row]), ahead)
            if status is not None:
                found[place] = status
    return found


MAX_KINDS = 16
"""Kinds of pods for which it is known at a time where nominated pods leave them no room."""
KNOWN = "overruled"


class KnownOverruled:
    """Where nominated pods leave no room for pods of a kind, until one of these nodes or pods changes.

    A wave of pods is decided while a few others wait for their victims to leave: each of its pods would be
    tried on the same nodes, which have not changed.
    """

    def __init__(self) -> None:
        self.by_kind: dict[Hashable, dict[int, Status]] = {}
        self._nominations: Nominations | None = None
        self._nominated = 0
        self._promised: frozenset[int] = frozenset()
        """The rows that pods are nominated to."""
        self._positions = (0, 0)

    @classmethod
    def of(cls, live: LiveNodeTable, nominations: Nominations) -> KnownOverruled:
        found: KnownOverruled = live.keep(KNOWN, no_columns, finish=lambda columns: cls())
        found._follow(live, nominations)
        return found

    def _follow(self, live: LiveNodeTable, nominations: Nominations) -> None:
        logs = live.kept.node_changes, live.kept.usage_changes
        changed = [log.since(position) for log, position in zip(logs, self._positions, strict=True)]
        self._positions = logs[0].position, logs[1].position
        if nominations is not self._nominations or nominations.changes.position != self._nominated:
            self._nominations, self._nominated = nominations, nominations.changes.position
            self._promised = frozenset(np.flatnonzero(nominations.counts(live)).tolist())
            self.by_kind.clear()
        elif any(rows is None or not self._promised.isdisjoint(rows) for rows in changed):
            self.by_kind.clear()


def no_columns(nodes: NodeTable) -> Columns:
    """An empty column: the table itself caches nothing for a row."""
    return (np.zeros(len(nodes), np.bool_),)


def kind_of(profile: Profile, state: CycleState, pod: Pod) -> Hashable | None:
    """A key that is equal for pods that all filters answer alike; None if their answers cannot be cached."""
    steps = [step for step in profile.filters if step.name not in state.skipped_filters]
    if any(not (step.is_cached and step.takes_columns) for step in steps):
        return None
    try:
        kind = (pod.priority, *((step.plugin.serial, step.sign(pod)) for step in steps))
        hash(kind)
    except BaseException:  # who asks the plugin for its answer will say what is wrong with it
        return None
    return kind


def _unlike(plain: Rejections, trial: Rejections, places: Rows) -> Iterator[tuple[Rows, Sequence[Status]]]:
    """Rows of the trial that are rejected, but not for the same reasons as without changes, with statuses.

    `places` has each row's place in what was answered without changes.
    """
    before = dict(zip((rejected.plugin for rejected in plain), first_rejected(plain, places), strict=True))
    for rejected, fresh in zip(trial, first_rejected(trial), strict=True):
        known = before.get(rejected.plugin)
        if known is not None and isinstance(rejected, Verdicts):
            verdicts = next(each for each in plain if each.plugin == rejected.plugin)
            if isinstance(verdicts, Verdicts) and verdicts.reasons is rejected.reasons:
                fresh = fresh & ~(known & (verdicts.bits[places] == rejected.bits))
        at = np.flatnonzero(fresh)
        if len(at):
            yield at, rejected.statuses(at)


def first_rejected(rejections: Rejections, places: Rows | None = None) -> Iterator[Mask]:
    """For each filter, the rows (at these places only, if given) that it was the first to reject."""
    still_open: Mask | None = None
    for rejected in rejections:
        fails = rejected.fails if places is None else rejected.fails[places]
        yield fails if still_open is None else fails & still_open
        still_open = ~fails if still_open is None else still_open & ~fails


def rejection_with(
    profile: Profile, state: CycleState, pod: Pod, node: NodeSubset, others: Iterable[Pod]
) -> Status | None:
    """The rejection or error of the filters for a node once `others` are on it, too."""
    state = state.clone()
    try:
        for other in others:
            node.add_pod(0, other)
            tell(profile, state, "add_pod", pod, other, node)
    except CycleError as error:
        return error_status(error)
    return first_rejection(profile, state, pod, node)


def tell(profile: Profile, state: CycleState, method: str, pod: Pod, other: Pod, node: NodeSubset) -> None:
    """Tell plugins to update their state because `other` was added to or removed from a trial node."""
    for name, plugin, _ in profile.pre_filters:
        if name in state.skipped_filters or not overrides(plugin, method):
            continue
        doing = f'running {"AddPod" if method == "add_pod" else "RemovePod"} on PreFilter plugin "{name}"'
        profile.observer.enter("PreFilter", plugin)
        try:
            follow = plugin.add_pod if method == "add_pod" else plugin.remove_pod
            status = status_of(method, follow(seal_state(plugin, state), pod, other, node.node(0)))
        except BaseException as error:
            raise failure(doing, error, (plugin, method), pod, node.names[0]) from error
        finally:
            profile.observer.leave("PreFilter", plugin)
        if status is not None:
            raise CycleError(f"{doing}: {status.message}")
