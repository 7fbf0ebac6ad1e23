"""The scheduling cycle: a pod and the tables in, a Decision out.

Nothing here waits, logs, reads a clock or draws a random number. What the cycle needs
arrives as an argument; what it learned leaves in the Decision, the reasons included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.cycle.filters import (
    Refusals,
    errors_in,
    overrule_for_nominated,
    run_filters,
    run_pre_filters,
)
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.scoring import run_scores
from stowplan.errors import PluginError
from stowplan.framework.answers import post_filter_of
from stowplan.framework.decision import Decision, Failures
from stowplan.framework.plugin import Nomination
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

TieBreak = Callable[[LiveNodeTable, Rows, NDArray[Any]], int]
"""Given the feasible rows and their totals, the place among them of one with the highest total."""


def first_by_name(nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
    if feasible is nodes.rows:
        return int(nodes.by_name[totals[nodes.by_name].argmax()])
    best = np.flatnonzero(totals == totals.max())
    return int(best[nodes.name_ranks[feasible[best]].argmin()])


def schedule(
    profile: Profile,
    pod: Pod,
    nodes: LiveNodeTable,
    tie_break: TieBreak = first_by_name,
    sampling: Sampling | None = None,
) -> Decision:
    """Choose the highest-scoring node that no filter refuses; `chosen` stays None if there is none."""
    decision, state = Decision(pod, nodes), CycleState()
    decision.state = state
    if not len(nodes):
        return decision
    try:
        feasible = find_feasible(profile, state, decision, nodes, sampling)
        if feasible is None:
            run_post_filters(profile, state, decision)
        else:
            choose(profile, state, decision, feasible, tie_break)
    except PluginError as error:
        decision.error, decision.stack = str(error), error.stack
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
    if nominated is None:
        return look_at(profile, state, decision, narrowed(nodes, names), sampling)
    only = look_at_nominated(profile, state, decision, nodes, nominated)
    return only or look_further(profile, state, decision, nodes, names, sampling)


def look_at_nominated(
    profile: Profile, state: CycleState, decision: Decision, nodes: LiveNodeTable, row: int
) -> NodeTable | None:
    """The node that the pod is nominated to, if no filter refuses it; an error there decides nothing yet."""
    try:
        return look_at(profile, state, decision, nodes.take([row]), None)
    except CycleError as error:
        if error.is_final:
            raise
        decision.filters = []
        return None


def look_further(
    profile: Profile,
    state: CycleState,
    decision: Decision,
    nodes: LiveNodeTable,
    names: frozenset[str] | None,
    sampling: Sampling | None,
) -> NodeTable | None:
    """Looks at all nodes after the one that the pod is nominated to was refused; that one is told of, too."""
    refusals = decision.rejected()
    rows = [row for name in refusals if (row := nodes.row_of(name)) is not None]
    if names is not None:
        # parity: whoever refused the node is named among those who narrowed the search
        refusers = (status.plugin for status in refusals.values())
        decision.narrowed_by += tuple(name for name in refusers if name and name not in decision.narrowed_by)
        names |= refusals.keys()
    return look_at(profile, state, decision, narrowed(nodes, names), sampling, refused_before=rows)


def narrowed(nodes: LiveNodeTable, names: frozenset[str] | None) -> NodeTable:
    """The nodes that are among the names; all for None."""
    if names is None:
        return nodes
    rows = (nodes.row_of(name) for name in names)
    return nodes.take(sorted(row for row in rows if row is not None))


def look_at(
    profile: Profile,
    state: CycleState,
    decision: Decision,
    table: NodeTable,
    sampling: Sampling | None,
    *,
    refused_before: Sequence[int] = (),
) -> NodeTable | None:
    """Those nodes of the table that no filter refuses; None if there are none.

    What is said of the rows in `refused_before` is told even where a sample does not come to them.
    """
    decision.looked_at, decision.overruled = table.rows, {}
    nominations = profile.handle.nominations
    # Where it does not depend on more which nodes are looked at, the first error ends it.
    is_plain = sampling is None and not nominations
    refusals = run_filters(profile, state, decision.pod, table, first_error=is_plain)
    decision.filters = refusals
    if nominations:
        overrule_for_nominated(profile, state, decision, table, nominations)
    errors = _errors(decision, refusals)
    if errors and sampling is None:
        _fail(decision, errors)
    if decision.overruled or sampling is not None:
        feasible = _thinned_out(decision, table, sampling, errors, refused_before)
    else:
        feasible = profile.feasible(decision.filters, table.rows)
    decision.feasible = feasible
    if feasible is table.rows:
        return table if len(table) else None
    return table.live.take(feasible) if len(feasible) else None


def _errors(decision: Decision, refusals: Refusals) -> dict[int, Status]:
    """The errors of filters, by place among the nodes looked at."""
    found: dict[int, Status] = {}
    for each in refusals:
        if each.__class__ is Failures:
            found = errors_in(refusals)
            break
    if decision.overruled:
        # A node that does not fit together with the pods nominated to it is not looked at without them.
        found = {place: status for place, status in found.items() if place not in decision.overruled}
        found |= {place: status for place, status in decision.overruled.items() if status.code is Code.ERROR}
    return found


def _fail(decision: Decision, errors: dict[int, Status]) -> NoReturn:
    decision.filters, decision.overruled = [], {}
    first = errors[min(errors)]
    raise CycleError(first.message, first.stack)


def _thinned_out(
    decision: Decision,
    table: NodeTable,
    sampling: Sampling | None,
    errors: dict[int, Status],
    refused_before: Sequence[int],
) -> Rows:
    """The feasible nodes without those overruled, and without those that a sample does not come to."""
    passing = ~decision.refused()
    if sampling is not None:
        looked_at, first_error = sampling.look(table, passing, errors, refused_before)
        if first_error is not None:
            _fail(decision, {first_error: errors[first_error]})
        if sampling.is_partial:
            decision.not_looked_at = ~looked_at
            passing &= looked_at
    return table.rows[passing]


def choose(
    profile: Profile, state: CycleState, decision: Decision, feasible: NodeTable, tie_break: TieBreak
) -> None:
    """Pick the best of the feasible nodes; a lone one is taken without scoring."""
    place = 0
    if len(feasible) > 1:
        decision.differences = run_scores(profile, state, decision, feasible)
        place = tie_break(feasible.live, decision.feasible, decision.differences)
    decision.chosen = decision.names[decision.feasible[place]]


def run_post_filters(profile: Profile, state: CycleState, decision: Decision) -> list[str]:
    """No node fits: ask the plugins that may make room. The first to nominate a node ends it.

    Returns what those before it said.
    """
    reasons: list[str] = []
    observer = profile.observer.start("PostFilter")
    for name, plugin in profile.post_filters:
        if observer is not None:
            observer.enter("PostFilter", plugin)
        try:
            answer = post_filter_of(plugin.post_filter(state, decision.pod, decision))
        except BaseException as error:
            fault = failure(f'running PostFilter plugin "{name}"', error, decision.pod)
            answer = Status.error(str(fault), fault.stack)
        finally:
            if observer is not None:
                observer.leave("PostFilter", plugin)
        if isinstance(answer, Nomination):
            decision.nominated, decision.victims = answer.node_name, answer.victims
            decision.post_filter = None
            return reasons
        if answer.code is not Code.UNSCHEDULABLE:
            decision.post_filter, decision.stack = answer.by(name), answer.stack
            return reasons
        reasons += answer.reasons
    if profile.post_filters:
        decision.post_filter = Status.unschedulable(*reasons)
    return reasons
