"""Making room: which pods of lower priority to evict, from which node, so that a pod fits."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.prospects import Memory, Prospects, kind_of
from stowplan.cycle.trials import FEW, try_apart, try_plainly, try_together
from stowplan.cycle.victims import (
    NO_VICTIMS,
    Budgets,
    Preemptor,
    Slots,
    Victims,
    add_harm,
    joined,
    least,
    looks_at_numbers,
    no_harm,
)
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.plugin import Nomination, Reads
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

__all__ = ["NOT_HELPFUL", "NO_VICTIMS", "Candidates", "Victims", "find_victims", "pick", "preempt"]

NOT_HELPFUL = "Preemption is not helpful for scheduling"


def preempt(
    profile: Profile, state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
) -> Status | Nomination:
    """The node where evicting pods does the least harm, or a status that says why no node helps."""
    kind, candidates = kind_of(profile, state, pod), state.find(Candidates)
    if kind is None or candidates is not None:
        found = find_victims(profile, state, pod, decision, percentage, absolute)
        if isinstance(found, Status):
            return found
        if candidates is not None:
            candidates.victims = found
        return pick(profile.handle.cluster.nodes, found)
    live = profile.handle.cluster.nodes
    memory = Memory.of(live, profile.handle.cluster.pdbs)
    preemptor = Preemptor(profile, state, pod, memory.budgets)
    search = _search(preemptor, decision, percentage, absolute)
    prospects = memory.prospects(kind, len(live))
    _look_at(preemptor, search, prospects)
    rows = np.concatenate([search.together, prospects.until_enough(search.apart, search.wanted)])
    helped = rows[prospects.harm.victims[rows] > 0]
    if not len(helped):
        return _no_node(live, search.rows, prospects.refusals(rows))
    row = least(live, helped, prospects.harm)
    return _nomination(live, row, prospects.victims_on(live, row))


def find_victims(
    profile: Profile, state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
) -> Status | Victims:
    """The pods to evict on every node where evicting pods makes room."""
    preemptor = Preemptor(profile, state, pod, Budgets(profile.handle.cluster.pdbs))
    search = _search(preemptor, decision, percentage, absolute)
    refusals: dict[int, Status] = {}
    if _looks_at_one_node(profile, state):
        together = try_together(preemptor, search.together, refusals)
        victims = joined([together, try_apart(preemptor, search.apart, refusals, search.wanted)])
    else:
        victims = try_apart(preemptor, search.rows, refusals, search.wanted)
    if not len(victims.rows):
        return _no_node(preemptor.live, search.rows, _counted(refusals))
    return victims


def pick(live: LiveNodeTable, victims: Victims) -> Nomination:
    """The node whose victims do the least harm."""
    harm = no_harm(len(live))
    add_harm(harm, live, victims)
    row = least(live, np.unique(victims.rows), harm)
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
    ahead: dict[int, tuple[Pod, ...]]
    """The pods nominated to each of them."""
    wanted: int
    """How many candidate nodes are enough when they are tried one by one."""


def _search(preemptor: Preemptor, decision: Decision, percentage: int, absolute: int) -> _Search:
    rows = np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE)
    row_of = preemptor.live.row_of
    before = preemptor.profile.handle.nominations.before(preemptor.pod)
    ahead = {row: pods for name, pods in before if (row := row_of(name)) is not None}
    is_promised = np.isin(rows, list(ahead)) if ahead else np.zeros(len(rows), np.bool_)
    wanted = min(max(len(rows) * percentage // 100, absolute), len(rows))
    return _Search(rows, rows[~is_promised], rows[is_promised], ahead, wanted)


def _looks_at_one_node(profile: Profile, state: CycleState) -> bool:
    """Whether no active filter depends on pods of other nodes."""
    return all(
        step.plugin.reads is not Reads.ANYTHING and step.takes_columns
        for step in profile.filters
        if step.name not in state.skipped_filters
    )


def _look_at(preemptor: Preemptor, search: _Search, prospects: Prospects) -> None:
    """Compute the prospects of rows that are not cached."""
    prospects.expect(search.ahead)
    unknown = search.rows[~prospects.known[search.rows]]
    if not len(unknown):
        return
    together, apart = (part[~prospects.known[part]] for part in (search.together, search.apart))
    refusals: dict[int, Status] = {}
    found = []
    if looks_at_numbers(preemptor):
        if len(together) <= FEW:
            together, apart = together[:0], unknown
        plain, apart = try_plainly(preemptor, apart, search.ahead, refusals)
        found.append(plain)
    if len(together):
        found.append(try_together(preemptor, together, refusals))
    if len(apart):
        found.append(try_apart(preemptor, apart, refusals, len(apart) + 1))
    prospects.learn(preemptor.live, unknown, joined(found), refusals)


def _nomination(live: LiveNodeTable, row: int, victims: list[Pod]) -> Nomination:
    return Nomination(live.names[row], tuple(each for each in victims if not each.is_terminating))


def _counted(refusals: dict[int, Status]) -> Counter[Status]:
    statuses = {id(status): status for status in refusals.values()}  # thousands, and nearly all the same one
    counts: Counter[Status] = Counter()
    for key, count in Counter(map(id, refusals.values())).items():
        counts[statuses[key]] += count
    return counts


def _no_node(live: LiveNodeTable, rows: Slots, refusals: Counter[Status]) -> Status:
    """Why evicting pods helps on no node; only the errors, if there are any."""
    errors = dict.fromkeys(status.message for status in refusals if status.code is Code.ERROR)
    if errors:
        text = next(iter(errors)) if len(errors) == 1 else f"[{', '.join(errors)}]"
        return Status.error(text, next((status.stack for status in refusals if status.stack), ""))
    return Status.unschedulable(_message(live, rows, refusals))


def _message(live: LiveNodeTable, rows: Slots, refusals: Counter[Status]) -> str:
    counts = {NOT_HELPFUL: len(live) - len(rows)} if len(live) > len(rows) else {}
    for status, count in refusals.items():
        for reason in status.reasons:
            counts[reason] = counts.get(reason, 0) + count
    return fit_message(len(live), "", counts)
