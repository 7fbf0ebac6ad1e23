"""The scheduling cycle: a pod and the tables in, a Decision out.

Nothing here waits, logs, reads a clock or draws a random number. What the cycle needs arrives as an
argument; what it learned leaves in the Decision, the reasons included. Where extenders have a say,
`Cycle.decide` yields what to ask them, and the caller sends back their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from random import Random
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Mask, Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cluster.pod_table import terms_of
from stowplan.cycle.errors import CycleError, failure
from stowplan.cycle.preempt import Candidates, pick
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.steps import (
    Rejections,
    add_up_scores,
    errors_in,
    run_filters,
    run_pre_filters,
    run_pre_scores,
    run_scores,
)
from stowplan.cycle.trials import first_rejection, overrule_for_nominated, tell
from stowplan.cycle.victims import Victims
from stowplan.errors import PluginError
from stowplan.framework.answers import post_filter_of
from stowplan.framework.decision import Decision, Failures, ScoreColumn, Statuses
from stowplan.framework.handle import NO_CANDIDATE, preemption_status
from stowplan.framework.plugin import Nomination, is_own, is_trusted
from stowplan.framework.profile import EXTENDER, FilterStep, Profile, ScoreStep
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

DROPPED = Status(Code.UNRESOLVABLE)
"""parity: a node that is neither kept nor named as failed is rejected for good, without a reason."""
TieBreak = Callable[[LiveNodeTable, Rows, NDArray[Any]], int]
"""Given the feasible rows and their totals, the place among them of one with the highest total."""


def first_by_name(nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
    if feasible is nodes.rows:
        by_name = nodes.by_name
        return int(by_name[totals.take(by_name).argmax()])
    (best,) = (totals == totals[totals.argmax()]).nonzero()
    return int(best[nodes.name_ranks.take(feasible.take(best)).argmin()])


def draw_ties(generator: Random, *, by_name: bool = False) -> TieBreak:
    """Choose one of the best nodes at random.

    With `by_name` the same seed chooses the same node in whatever order the nodes were read, which takes
    their ranks.
    """

    def draw(nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
        (best,) = (totals == totals[totals.argmax()]).nonzero()
        # Only random() is guaranteed to give the same numbers in every version of Python.
        place = int(generator.random() * len(best))
        if by_name:
            place = nodes.name_ranks.take(feasible.take(best)).argpartition(place)[place]
        return int(best[place])

    return draw


class AskFilters(NamedTuple):
    """Ask extenders about the feasible nodes; `drop_nodes` takes out those that they reject."""

    decision: Decision
    is_nominated: bool
    """Whether there is one, to which the pod is nominated: if an extender fails, others are considered."""


class AskScores(NamedTuple):
    """Ask extenders for scores of the feasible nodes; send back their columns."""

    decision: Decision


class AskVictims(NamedTuple):
    """Ask extenders about candidates for preemption; send back those left, None if none was asked."""

    decision: Decision
    candidates: Victims


ExtenderQuestion = AskFilters | AskScores | AskVictims
Steps = Generator[ExtenderQuestion, Any, Decision]


def schedule(
    profile: Profile,
    pod: Pod,
    nodes: LiveNodeTable,
    tie_break: TieBreak = first_by_name,
    sampling: Sampling | None = None,
    *,
    preempts: bool = True,
    within: Rows | None = None,
) -> Decision:
    """Choose the highest-scoring node that no filter rejects; `chosen` stays None if there is none.

    With `within`, only these rows are candidates, and they are all that is reported.
    """
    try:
        next(Cycle(profile, pod, nodes, sampling, within).decide(tie_break, preempts=preempts))
    except StopIteration as end:
        decision: Decision = end.value
        return decision
    raise AssertionError("the cycle asks extenders although there are none")


def schedule_equal(
    equal: EqualPods,
    profile: Profile,
    pod: Pod,
    nodes: LiveNodeTable,
    tie_break: TieBreak,
    sampling: Sampling | None,
    within: Rows | None = None,
) -> Decision:
    """Decide a pod as `schedule` does, after pods were placed that change only what nodes have free."""
    start = 0 if sampling is None else sampling.start.index
    decision = Cycle(profile, pod, nodes, sampling, within).decide_equal(equal, tie_break)
    if decision is not None:
        return decision
    if sampling is not None:
        sampling.start.index = start  # the search is made once more, not a second one
    return schedule(profile, pod, nodes, tie_break, sampling, preempts=False, within=within)


class EqualPods:
    """What was decided for a pod and cannot differ for equal ones, while only pods are placed that
    `looks_alone` is true of."""

    def __init__(self, profile: Profile, decision: Decision) -> None:
        assert decision.state is not None
        self.state = decision.state.clone()  # before plugins reserve anything in it
        self.rows, self.label_set = decision.feasible, decision.pod.label_set
        self.profile = copy(profile)
        """The profile with only those filters and scores that depend on what pods take, and with those
        `pre_filter`s that may."""
        self.profile.pre_filters = [each for each in profile.pre_filters if not is_trusted(type(each[1]))]
        self.profile.filters = [step for step in profile.filters if step.reads_usage]
        self.profile.scores = [step for step in profile.scores if step.reads_usage]
        filters = {step.name for step in self.profile.filters}
        scores = {step.name for step in self.profile.scores}
        self._filters = [each for each in decision.filters if each.plugin not in filters]
        self._scores = [None if each.plugin in scores else each for each in decision.scores]
        """In their order; None for those that are computed again."""
        self._places = {step.name: place for place, step in enumerate(profile.filters)}
        totals = [each.weighted for each in self._scores if each is not None and each.uniform is None]
        self._total = sum(totals, np.zeros(len(self.rows), np.int64)).astype(profile.total_type)

    @staticmethod
    def looks_alone(profile: Profile, decision: Decision) -> bool:
        """Whether a pod, for which the decision was made, neither looks at others nor is looked at by them.

        A pod that has terms for other pods, or that takes volumes or devices, does, and so may one that a
        plugin of others filters or scores.
        """
        pod, state = decision.pod, decision.state
        if state is None or decision.relative_totals is None or decision.narrowed_by:
            return False
        if pod.spec.resource_claims or terms_of(pod) or any(volume.matters for volume in pod.spec.volumes):
            return False
        steps: list[FilterStep | ScoreStep] = []
        steps += (step for step in profile.filters if step.name not in state.skipped_filters)
        steps += (step for step in profile.scores if step.name not in state.skipped_scores)
        if not all(step.is_cached and is_trusted(type(step.plugin)) for step in steps):
            return False
        if not all(is_trusted(type(plugin)) for _, plugin, _ in profile.pre_scores):
            return False
        return all(is_own(type(plugin)) for _, plugin, _ in profile.pre_filters)

    def with_kept(self, rejections: Rejections) -> Rejections:
        """What all filters rejected, given what those that were asked did."""
        if not self._filters:
            return rejections
        return sorted((*self._filters, *rejections), key=lambda each: self._places[each.plugin])

    def add_up(self, state: CycleState, decision: Decision, feasible: NodeTable) -> NDArray[Any]:
        """The totals of the nodes that were feasible for the pod before."""
        total: NDArray[Any] = add_up_scores(self.profile, state, decision, feasible) + self._total
        fresh = iter(decision.scores)
        decision.scores = [next(fresh) if each is None else each for each in self._scores]
        decision.has_scorers = True
        return total


class Cycle:
    """One attempt at a pod.

    `decide` takes all steps in their order. The extender server, which is asked for one step at a time,
    calls them itself.
    """

    __slots__ = ("decision", "names", "nodes", "profile", "sampling", "state", "within")

    def __init__(
        self,
        profile: Profile,
        pod: Pod,
        nodes: LiveNodeTable,
        sampling: Sampling | None = None,
        within: Rows | None = None,
    ) -> None:
        self.profile, self.nodes, self.sampling, self.within = profile, nodes, sampling, within
        self.state, self.decision = CycleState(), Decision(pod, nodes)
        if within is not None:
            self.sampling, self.decision.candidate_count = None, len(within)
        self.decision.state = self.state
        self.decision.notes = tuple(profile.notes_on(pod))
        self.names: frozenset[str] | None = None
        """The nodes that pre_filter plugins narrowed the search to; None for all."""

    def decide(self, tie_break: TieBreak, *, asks_extenders: bool = False, preempts: bool = True) -> Steps:
        """Take all steps. A CycleError thrown in, in place of an answer, is the failure of an extender."""
        decision = self.decision
        if not len(self.nodes):
            return decision
        if asks_extenders:
            self.state.write(Candidates())
        try:
            feasible = yield from self._find_feasible(asks_extenders)
            if feasible is not None:
                place = 0
                if len(feasible) > 1:  # a lone node is taken without scoring
                    totals = decision.relative_totals = self.score(feasible)
                    if asks_extenders:
                        totals = _add_scores(decision, (yield AskScores(decision)))
                    place = tie_break(self.nodes, decision.feasible, totals)
                decision.chosen = decision.names[decision.feasible[place]]
            elif preempts:
                reasons = self.post_filter()
                candidates = self.state.find(Candidates)
                if candidates is not None and candidates.victims is not None and decision.nominated:
                    yield from self._agree_on_victims(candidates.victims, reasons)
        except PluginError as error:
            decision.error, decision.stack = str(error), error.stack
        return decision

    def decide_equal(self, equal: EqualPods, tie_break: TieBreak) -> Decision | None:
        """Take the steps that can end otherwise than for equal pods before; None if all must be taken."""
        decision = self.decision
        has_other_labels = decision.pod.label_set is not equal.label_set
        if not has_other_labels:
            self.state = decision.state = equal.state.clone()
        try:
            if has_other_labels:  # only where nobody looks at labels are they all that differs
                self.pre_filter()
                if self.state.skipped_filters != equal.state.skipped_filters:
                    return None
            elif equal.profile.pre_filters:
                self.names = run_pre_filters(equal.profile, self.state, decision, self.nodes)
            if self.names is not None or decision.pre_filter is not None:
                return None
            feasible = self._look_at(self._narrow(None), self.sampling, equal=equal)
            if feasible is not None:
                place = 0
                if len(feasible) > 1:
                    if has_other_labels:
                        run_pre_scores(self.profile, self.state, decision.pod, feasible)
                        if self.state.skipped_scores != equal.state.skipped_scores:
                            return None
                    if feasible.rows is equal.rows:
                        totals = equal.add_up(self.state, decision, feasible)
                    else:
                        totals = add_up_scores(self.profile, self.state, decision, feasible)
                    decision.relative_totals = totals
                    place = tie_break(self.nodes, decision.feasible, totals)
                decision.chosen = decision.names[decision.feasible[place]]
        except PluginError as error:
            decision.error, decision.stack = str(error), error.stack
        return decision

    # The steps

    def pre_filter(self) -> None:
        """A rejection goes into the decision."""
        self.names = run_pre_filters(self.profile, self.state, self.decision, self.nodes)

    def filter_rows(self, rows: Rows) -> Rows:
        """Run the filters for these rows; returns their places in what the filters answered.

        Raises CycleError if a filter fails on one of them.
        """
        # Columns of the whole cluster are kept up to date, so asking about all nodes costs less.
        is_columnar = all(step.takes_columns for step in self.profile.filters)
        table = self.nodes if is_columnar else self.nodes.take(rows)
        places = rows if is_columnar else np.arange(len(rows))
        rejections = self.decision.filters = run_filters(self.profile, self.state, self.decision.pod, table)
        errors = errors_in(rejections)
        for place in places.tolist() if errors else ():
            if place in errors:
                raise CycleError(errors[place].message, errors[place].stack)
        return places

    def fits_without(self, row: int, victims: Sequence[Pod]) -> bool:
        """Whether the filters pass a node once these pods are gone. Raises CycleError if one fails."""
        node, state, pod = self.nodes.take([row]), self.state.clone(), self.decision.pod
        for victim in victims:
            node.remove_pod(0, victim)
            tell(self.profile, state, "remove_pod", pod, victim, node)
        status = first_rejection(self.profile, state, pod, node)
        if status is not None and status.code is Code.ERROR:
            raise CycleError(status.message, status.stack)
        return status is None

    def score(self, feasible: NodeTable) -> NDArray[Any]:
        """The totals of these nodes, without scores that are equal on all of them."""
        return run_scores(self.profile, self.state, self.decision, feasible)

    def post_filter(self) -> list[str]:
        """No node fits: ask the plugins that may make room. The first to nominate a node ends it.

        Returns the reasons of those before it.
        """
        profile, state, decision = self.profile, self.state, self.decision
        reasons: list[str] = []
        keeps_nomination, preemption = False, None
        observer = profile.observer.start("PostFilter")
        for name, plugin, post_filter in profile.post_filters:
            if observer is not None:
                observer.enter("PostFilter", plugin)
            try:
                answer = post_filter_of(post_filter(state, decision.pod, decision))
            except BaseException as error:
                fault = failure(
                    f'running PostFilter plugin "{name}"', error, (plugin, "post_filter"), decision.pod
                )
                answer = Status(Code.ERROR, (str(fault),), stack=fault.stack, was_raised=True)
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
            keeps_nomination = keeps_nomination or answer.keeps_nomination
            preemption = answer.preemption or preemption
        if profile.post_filters:
            decision.post_filter = Status(
                Code.UNSCHEDULABLE,
                tuple(reasons),
                keeps_nomination=keeps_nomination,
                preemption=preemption,
            )
        return reasons

    # How they follow each other

    def _find_feasible(self, asks_extenders: bool) -> Generator[ExtenderQuestion, None, NodeTable | None]:
        """The nodes that can take the pod; None if there are none."""
        self.pre_filter()
        decision, nodes = self.decision, self.nodes
        if decision.pre_filter is not None:
            return None
        nominated = nodes.row_of(decision.pod.nominated_node_name)
        if nominated is None or (self.within is not None and nominated not in self.within):
            found = self._look_at(self._narrow(self.names), self.sampling)
        elif (only := self._look_at_nominated(nominated)) is None:
            found = self._look_further()
        else:
            try:
                if asks_extenders:
                    yield AskFilters(decision, is_nominated=True)
                if len(decision.feasible):
                    return only
            except CycleError:
                pass  # all nodes are asked about next, this one among them
            found = self._look_at(self._narrow(self.names), self.sampling)
        if found is not None and asks_extenders:
            yield AskFilters(decision, is_nominated=False)
            left = decision.feasible
            if len(left) != len(found):
                found = nodes.take(left) if len(left) else None
        return found

    def _look_at_nominated(self, row: int) -> NodeTable | None:
        """The node that the pod is nominated to, if no filter rejects it; an error there decides nothing."""
        try:
            return self._look_at(self.nodes.take([row]), None)
        except CycleError as error:
            if error.is_final:
                raise
            self.decision.filters = []
            return None

    def _look_further(self) -> NodeTable | None:
        """Look at all nodes: the one that the pod is nominated to was rejected, which is reported, too."""
        decision, names = self.decision, self.names
        rejections = decision.rejected()
        rows = [row for name in rejections if (row := self.nodes.row_of(name)) is not None]
        if names is not None:
            # parity: whoever rejected the node is named among those who narrowed the search
            rejectors = (status.plugin for status in rejections.values())
            decision.narrowed_by += tuple(
                name for name in rejectors if name and name not in decision.narrowed_by
            )
            names |= rejections.keys()
        return self._look_at(self._narrow(names), self.sampling, rejected_before=rows)

    def _narrow(self, names: frozenset[str] | None) -> NodeTable:
        """The candidates with these names; all if None."""
        if names is None:
            return self.nodes if self.within is None else self.nodes.take(self.within)
        found = (self.nodes.row_of(name) for name in names)
        rows = sorted(row for row in found if row is not None)
        return self.nodes.take(rows if self.within is None else sorted(set(rows).intersection(self.within)))

    def _look_at(
        self,
        table: NodeTable,
        sampling: Sampling | None,
        *,
        rejected_before: Sequence[int] = (),
        equal: EqualPods | None = None,
    ) -> NodeTable | None:
        """Those nodes of the table that no filter rejects; None if there are none.

        What is said of the rows in `rejected_before` is reported even if a sample does not include them.
        """
        profile, state, decision = self.profile, self.state, self.decision
        decision.looked_at, decision.overruled = table.rows, {}
        nominations = profile.handle.nominations
        # If nothing else decides which nodes are looked at, the first error ends it.
        is_plain = sampling is None and not nominations
        if equal is None:
            rejections = run_filters(profile, state, decision.pod, table, first_error=is_plain)
        else:
            rejections = equal.with_kept(run_filters(equal.profile, state, decision.pod, table))
        decision.filters = rejections
        if nominations:
            overrule_for_nominated(profile, state, decision, table, nominations)
        errors = _errors(decision, rejections)
        if errors and sampling is None:
            _fail(decision, errors)
        if sampling is not None:
            feasible = _thin_out(decision, table, sampling, errors, rejected_before)
        else:
            feasible = profile.feasible(decision.filters, table.rows, decision.overruled)
        decision.feasible = feasible
        if feasible is table.rows:
            return table if len(table) else None
        return table.live.take(feasible) if len(feasible) else None

    def _agree_on_victims(
        self, candidates: Victims, reasons: list[str]
    ) -> Generator[ExtenderQuestion, Victims | None, None]:
        """Extenders may drop nodes and change victims; the best of what is left is nominated."""
        decision = self.decision
        try:
            victims = yield AskVictims(decision, candidates)
        except CycleError as error:
            decision.nominated, decision.victims = None, ()
            decision.post_filter = preemption_status(Status.error(str(error)))
            return
        if victims is None:
            return
        if len(victims.rows):
            decision.nominated, decision.victims = pick(self.nodes, victims)
            return
        decision.nominated, decision.victims = None, ()
        why = preemption_status(Status.unschedulable(NO_CANDIDATE))
        decision.post_filter = Status(
            why.code, (*reasons, *why.reasons), keeps_nomination=True, preemption=why.preemption
        )


def _errors(decision: Decision, rejections: Rejections) -> dict[int, Status]:
    """The errors of filters, by place among the nodes looked at."""
    found: dict[int, Status] = {}
    for each in rejections:
        if each.__class__ is Failures:
            found = errors_in(rejections)
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


def _thin_out(
    decision: Decision,
    table: NodeTable,
    sampling: Sampling,
    errors: dict[int, Status],
    rejected_before: Sequence[int],
) -> Rows:
    """The feasible nodes without those that a sample does not come to."""
    passing = ~decision.rejected_rows()
    looked_at, first_error = sampling.look(table, passing, errors, rejected_before)
    if first_error is not None:
        _fail(decision, {first_error: errors[first_error]})
    if sampling.is_partial:
        decision.not_looked_at = ~looked_at
        passing &= looked_at
    return table.rows[passing]


def answer_all(steps: Steps, answer: Callable[[ExtenderQuestion], Any]) -> Decision:
    """Take all steps of a cycle whose questions can be answered at once."""
    given: Any = None
    while True:
        try:
            given = answer(steps.send(given))
        except StopIteration as end:
            decision: Decision = end.value
            return decision


def drop_nodes(decision: Decision, extender: str, kept: Mask, why: Mapping[str, Status]) -> None:
    """Take nodes that an extender rejects out of the feasible ones; `why` has a status for each by name."""
    gone = decision.feasible[~kept]
    places = np.flatnonzero(np.isin(decision.looked_at, gone))
    fails = np.zeros(len(decision.looked_at), np.bool_)
    fails[places] = True
    by_row = {
        place: why.get(decision.names[decision.looked_at[place]], DROPPED).by(f"{EXTENDER} {extender}")
        for place in places.tolist()
    }
    decision.filters = [*decision.filters, Statuses(EXTENDER, by_row, fails)]
    decision.feasible = decision.feasible[kept]


def _add_scores(decision: Decision, columns: Sequence[ScoreColumn]) -> NDArray[Any]:
    """Add the scores of extenders to those of plugins."""
    assert decision.relative_totals is not None
    decision.has_scorers = True
    total = decision.relative_totals.astype(np.int64)
    for column in columns:
        decision.scores.append(column)
        total += column.weighted
    decision.relative_totals = total
    return total
