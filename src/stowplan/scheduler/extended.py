"""Deciding a pod with extenders: the cycle's own steps, with calls to others between them.

All of it sees one cluster: the host keeps it still until the decision is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import Raw

from stowplan import log
from stowplan.api.extender import MetaVictims
from stowplan.api.pod import Pod
from stowplan.client.extenders import Extender, ExtenderError, shorten
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.filters import run_pre_filters
from stowplan.cycle.preempt import Victims, find_victims, pick
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import (
    TieBreak,
    choose,
    look_at,
    look_at_nominated,
    look_further,
    narrowed,
    run_post_filters,
)
from stowplan.cycle.scoring import run_scores
from stowplan.errors import PluginError
from stowplan.framework.decision import Decision, ScoreColumn, Statuses
from stowplan.framework.handle import Preempt
from stowplan.framework.plugin import Nomination
from stowplan.framework.profile import Profile
from stowplan.framework.scores import MAX_SCORE
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status
from stowplan.metrics import Metrics
from stowplan.plugins.default.default_preemption import NO_CANDIDATE, as_told
from stowplan.queue.listeners import EXTENDER
from stowplan.scheduler.extender_victims import as_victims, by_node, check
from stowplan.scheduler.whole_objects import WholeObjects

MAX_EXTENDER_SCORE = 10
"""What counts as much as a plugin's highest score; more than that is not refused."""
DROPPED = Status(Code.UNRESOLVABLE)
"""parity: a node that is neither kept nor named as failed is refused for good, without a reason."""


class ExtendedCycle:
    def __init__(self, extenders: Sequence[Extender], objects: WholeObjects, metrics: Metrics) -> None:
        self.extenders, self._objects, self._metrics = tuple(extenders), objects, metrics
        self._candidates: Victims | None = None
        """What the decision under way found to evict."""

    def preempt_for(self, profile: Profile) -> Preempt:
        """As for any profile, but what was found is kept until the extenders have been asked about it."""
        return partial(self._preempt, profile)

    async def schedule(
        self,
        profile: Profile,
        pod: Pod,
        nodes: LiveNodeTable,
        tie_break: TieBreak,
        sampling: Sampling | None,
        between: Callable[[], None],
    ) -> Decision:
        """As `cycle.schedule`. `between` is called whenever plugins are left for extenders."""
        decision, state = Decision(pod, nodes), CycleState()
        decision.state, self._candidates = state, None
        if not len(nodes):
            return decision
        asked = [extender for extender in self.extenders if extender.is_interested(pod)]
        attempt = _Asked(asked, self._objects, self._objects.pod(pod.uid), between)
        try:
            feasible = await self._find_feasible(profile, decision, nodes, sampling, attempt)
            if feasible is None:
                said = run_post_filters(profile, state, decision)
                if self._candidates is not None and decision.nominated is not None:
                    await self._agree_on_victims(decision, nodes, self._candidates, said, attempt)
            elif len(feasible) == 1:
                choose(profile, state, decision, feasible, tie_break)
            else:
                decision.differences = run_scores(profile, state, decision, feasible)
                await self._add_scores(decision, attempt)
                place = tie_break(nodes, decision.feasible, decision.differences)
                decision.chosen = decision.names[decision.feasible[place]]
        except (PluginError, ExtenderError) as error:
            decision.error = str(error)
            decision.stack = error.stack if isinstance(error, PluginError) else ""
        return decision

    async def _find_feasible(
        self,
        profile: Profile,
        decision: Decision,
        nodes: LiveNodeTable,
        sampling: Sampling | None,
        attempt: _Asked,
    ) -> NodeTable | None:
        state = decision.state
        assert state is not None
        names = run_pre_filters(profile, state, decision, nodes)
        if decision.pre_filter is not None:
            return None
        nominated = nodes.row_of(decision.pod.nominated_node_name)
        only = None if nominated is None else look_at_nominated(profile, state, decision, nodes, nominated)
        if nominated is not None and only is None:
            found = look_further(profile, state, decision, nodes, names, sampling)
            return found and await attempt.filter(decision, found)
        try:
            if only is not None and (only := await attempt.filter(decision, only)) is not None:
                return only
        except ExtenderError as error:  # all nodes are asked about next, this one among them
            log.error("Evaluation failed on nominated node", error, pod=decision.pod)
        found = look_at(profile, state, decision, narrowed(nodes, names), sampling)
        return found and await attempt.filter(decision, found)

    async def _add_scores(self, decision: Decision, attempt: _Asked) -> None:
        """Points of extenders count beside those of plugins; one that fails has none to give."""
        asked = [extender for extender in attempt.extenders if extender.prioritizes]
        attempt.between()
        self._metrics.running("prioritizing_extender", len(asked))
        try:
            columns = await asyncio.gather(*(attempt.scores(extender, decision) for extender in asked))
        finally:
            self._metrics.running("prioritizing_extender", -len(asked))
        decision.has_scorers = True
        assert decision.differences is not None
        total = decision.differences.astype(np.int64)
        for column in columns:
            if column is not None:
                decision.scores.append(column)
                total += column.weighted
        decision.differences = total

    def _preempt(
        self,
        profile: Profile,
        state: CycleState,
        pod: Pod,
        decision: Decision,
        percentage: int,
        absolute: int,
    ) -> Status | Nomination:
        victims = find_victims(profile, state, pod, decision, percentage, absolute)
        if isinstance(victims, Status):
            return victims
        self._candidates = victims
        return pick(profile.handle.cluster.nodes, victims)

    async def _agree_on_victims(
        self,
        decision: Decision,
        nodes: LiveNodeTable,
        candidates: Victims,
        said: list[str],
        attempt: _Asked,
    ) -> None:
        """The extenders may drop nodes and change victims; the best of what is left is nominated."""
        try:
            victims = await attempt.victims(decision.pod, nodes, by_node(nodes, candidates))
        except ExtenderError as error:
            decision.nominated, decision.victims = None, ()
            decision.post_filter = as_told(Status.error(str(error)))
            return
        if victims is None:
            return
        if not len(victims.rows):
            decision.nominated, decision.victims = None, ()
            refusal = as_told(Status.unschedulable(NO_CANDIDATE))
            decision.post_filter = Status.unschedulable(*said, *refusal.reasons)
            return
        decision.nominated, decision.victims = pick(nodes, victims)


class _Asked:
    """The extenders that a pod concerns, and how they are asked about it."""

    def __init__(
        self, extenders: Sequence[Extender], objects: WholeObjects, pod: Raw, between: Callable[[], None]
    ) -> None:
        self.extenders, self.between = extenders, between
        self._objects, self._pod = objects, pod

    async def filter(self, decision: Decision, table: NodeTable) -> NodeTable | None:
        """The nodes that all of them, one after another, leave; what they refuse goes into the decision."""
        for extender in self.extenders:
            if not extender.filters:
                continue
            names = [decision.names[row] for row in decision.feasible.tolist()]
            self.between()
            try:
                left, said = await extender.filter(self._pod, names, self._objects.node)
            except ExtenderError as error:
                if not extender.config.ignorable:
                    raise
                _skipped(extender, decision.pod, error)
                continue
            if len(kept := set(left)) == len(names):
                continue
            why = {
                name: Status(Code.UNSCHEDULABLE, (shorten(text),)) for name, text in said.failed_nodes.items()
            }
            for name, text in said.failed_and_unresolvable_nodes.items():
                why[name] = Status(Code.UNRESOLVABLE, (shorten(text),))
            _refuse(decision, extender, [name in kept for name in names], why)
            if not len(decision.feasible):
                return None
        return table if len(table) == len(decision.feasible) else table.live.take(decision.feasible)

    async def scores(self, extender: Extender, decision: Decision) -> ScoreColumn | None:
        names = [decision.names[row] for row in decision.feasible.tolist()]
        try:
            given = await extender.prioritize(self._pod, names, self._objects.node)
        except ExtenderError as error:
            log.log(
                5,
                "Failed to run extender's priority function. No score given by this extender.",
                pod=decision.pod,
                extender=extender.url,
                err=error,
            )
            return None
        scores = np.array([given.get(name, 0) for name in names], np.int64)
        points = scores * (MAX_SCORE // MAX_EXTENDER_SCORE)
        return ScoreColumn(_name(extender), extender.config.weight, points, None)

    async def victims(self, pod: Pod, nodes: LiveNodeTable, found: dict[str, MetaVictims]) -> Victims | None:
        """What they leave of the victims by node; None if nobody was asked."""
        asked = [extender for extender in self.extenders if extender.preempts]
        is_asked = False
        for extender in asked:
            self.between()
            try:
                answer = dict(await extender.preempt(self._pod, found, self._objects.pod))
                check(extender, nodes, answer)
            except ExtenderError as error:
                if not extender.config.ignorable:
                    raise
                _skipped(extender, pod, error)
                continue
            found, is_asked = answer, True
            if not found:
                break
        return as_victims(nodes, found) if is_asked else None


def _refuse(decision: Decision, extender: Extender, kept: list[bool], why: dict[str, Status]) -> None:
    """Takes nodes out of the feasible ones, each with what was said of it."""
    mask = np.array(kept, np.bool_)
    gone = decision.feasible[~mask]
    places = np.flatnonzero(np.isin(decision.looked_at, gone))
    fails = np.zeros(len(decision.looked_at), np.bool_)
    fails[places] = True
    by_row = {
        place: why.get(decision.names[decision.looked_at[place]], DROPPED).by(_name(extender))
        for place in places.tolist()
    }
    decision.filters = [*decision.filters, Statuses(EXTENDER, by_row, fails)]
    decision.feasible = decision.feasible[mask]


def _name(extender: Extender) -> str:
    """As it stands among the plugins of a decision."""
    return f"{EXTENDER} {extender.url}"


def _skipped(extender: Extender, pod: Pod, error: ExtenderError) -> None:
    log.log(
        2,
        "Skipping extender as it returned error and has ignorable flag set",
        pod=pod,
        extender=extender.url,
        err=error,
    )
