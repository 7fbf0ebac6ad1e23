"""The scheduling cycle: a pod and the tables in, a Decision out.

Nothing here waits, logs, reads a clock or draws a random number. What the cycle needs
arrives as an argument; what it learned leaves in the Decision, the reasons included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.cycle.filters import overrule_for_nominated, run_filters, run_pre_filters
from stowplan.cycle.sampling import Sampling, looked_at_by
from stowplan.cycle.scoring import run_scores
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Mask, Nomination
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

Rows = NDArray[np.intp]
TieBreak = Callable[[LiveNodeTable, Rows], int]


def first_by_name(nodes: LiveNodeTable, best: Rows) -> int:
    return int(best[0] if len(best) == 1 else best[np.argmin(nodes.name_ranks[best])])


def schedule(
    profile: Profile,
    pod: Pod,
    nodes: LiveNodeTable,
    tie_break: TieBreak = first_by_name,
    sampling: Sampling | None = None,
) -> Decision:
    """Choose the highest-scoring node that no filter refuses; `chosen` stays None if there is none."""
    decision, state = Decision(pod, nodes), CycleState()
    if not len(nodes):
        return decision
    try:
        feasible = find_feasible(profile, state, decision, nodes, sampling)
        if feasible is None:
            run_post_filters(profile, state, decision)
        else:
            choose(profile, state, decision, feasible, tie_break)
    except CycleError as error:
        decision.error = str(error)
    return decision


def find_feasible(
    profile: Profile,
    state: CycleState,
    decision: Decision,
    nodes: LiveNodeTable,
    sampling: Sampling | None = None,
) -> NodeTable | None:
    """The nodes that can take the pod; None if there are none."""
    names = run_pre_filters(profile, state, decision, nodes)
    if decision.pre_filter is not None:
        return None
    nominated = nodes.row_of(decision.pod.nominated_node_name)
    if nominated is not None and (only := _look_at(profile, state, decision, nodes.take([nominated]), None)):
        return only
    table: NodeTable = nodes
    if names is not None:
        rows = (nodes.row_of(name) for name in names)
        table = nodes.take(sorted(row for row in rows if row is not None))
    return _look_at(profile, state, decision, table, sampling)


def _look_at(
    profile: Profile, state: CycleState, decision: Decision, table: NodeTable, sampling: Sampling | None
) -> NodeTable | None:
    decision.looked_at, decision.overruled = table.rows, {}
    decision.filters, passing = run_filters(profile, state, decision.pod, table)
    if profile.handle.nominations:
        overrule_for_nominated(profile, state, decision, table, profile.handle.nominations)
        if decision.overruled:
            passing = np.ones(len(table), np.bool_) if passing is None else passing.copy()
            passing[list(decision.overruled)] = False
    if sampling is not None:
        passing = _sampled(decision, table, passing, sampling)
    if passing is None or passing.all():
        decision.feasible = table.rows
        return table if len(table) else None
    places = np.flatnonzero(passing)
    decision.feasible = table.rows[places]
    return table.take(places) if len(places) else None


def _sampled(decision: Decision, table: NodeTable, passing: Mask | None, sampling: Sampling) -> Mask:
    """Nodes past the point where the search would have stopped are neither feasible nor refused."""
    passing = np.ones(len(table), np.bool_) if passing is None else passing
    looked_at, feasible = looked_at_by(sampling, table, passing)
    decision.not_looked_at = ~looked_at
    return feasible


def choose(
    profile: Profile, state: CycleState, decision: Decision, feasible: NodeTable, tie_break: TieBreak
) -> None:
    """Pick the best of the feasible nodes; a lone one is taken without scoring."""
    if len(feasible) == 1:
        decision.best = decision.feasible
    else:
        run_scores(profile, state, decision, feasible)
        assert decision.totals is not None
        decision.best = decision.feasible[decision.totals == decision.totals.max()]
    decision.chosen = decision.names[tie_break(feasible.live, decision.best)]


def run_post_filters(profile: Profile, state: CycleState, decision: Decision) -> None:
    """No node fits: ask the plugins that may make room. The first to nominate a node ends it."""
    reasons: list[str] = []
    for name, plugin in profile.post_filters:
        try:
            answer = plugin.post_filter(state, decision.pod, decision)
        except Exception as error:
            answer = Status.error(str(failure(f'running PostFilter plugin "{name}"', error, decision.pod)))
        if isinstance(answer, Nomination):
            decision.nominated, decision.victims = answer.node_name, answer.victims
            decision.post_filter = None
            return
        if answer.code is not Code.UNSCHEDULABLE:
            decision.post_filter = answer.by(name)
            return
        reasons += answer.reasons
    if profile.post_filters:
        decision.post_filter = Status.unschedulable(*reasons)
