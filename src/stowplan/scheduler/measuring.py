"""How long the phases of a decision took and which plugins were asked, with no clock inside the cycle.

The cycle goes through the plugins of a profile, one extension point after another. Here it gets the same
plugins in lists that look at the clock when the cycle comes to them, and in every tenth decision also between
two plugins, as often as kube-scheduler measures those.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import TieBreak, schedule
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile, ScoreStep
from stowplan.framework.scores import Scores
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code
from stowplan.metrics import Metrics
from stowplan.plugins.default.dynamic_resources import DynamicResources
from stowplan.scheduler.extended import ExtendedCycle
from stowplan.scheduler.guard import changed

MEASURED_ONCE_IN = 10
"""So many decisions: measuring each plugin costs more than it tells."""
SUCCESS, ERROR, UNSCHEDULABLE = (code.wire_name for code in (Code.SUCCESS, Code.ERROR, Code.UNSCHEDULABLE))

Lap = tuple[str, float]
NOBODY = ""
"""Of the time after the plugins, or between them."""


class Point(Sequence[Any]):
    """The plugins of one extension point; whoever goes through them is timed."""

    __slots__ = ("_clock", "_laps", "_name", "_steps", "plugin_seconds")

    def __init__(self, name: str, steps: Sequence[Any], laps: list[Lap], clock: Callable[[], float]) -> None:
        self._name, self._steps, self._laps, self._clock = name, steps, laps, clock
        self.plugin_seconds: dict[str, float] | None = None
        """Filled with what each plugin took, where that is wanted."""

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, place: Any) -> Any:
        return self._steps[place]

    def __iter__(self) -> Iterator[Any]:
        self._laps.append((self._name, self._clock()))
        return iter(self._steps) if self.plugin_seconds is None else self._one_by_one(self.plugin_seconds)

    def _one_by_one(self, seconds: dict[str, float]) -> Iterator[Any]:
        for step in self._steps:
            began = self._clock()
            try:
                yield step
            finally:  # the cycle may stop at this one
                seconds[name_of(step)] = seconds.get(name_of(step), 0.0) + self._clock() - began


class Sums:
    """Of decisions in which the same plugins had something to say and no node was refused."""

    __slots__ = ("decisions", "feasible", "looked_at")

    def __init__(self) -> None:
        self.decisions = self.looked_at = self.feasible = 0


SumsKey = tuple[frozenset[str], frozenset[str], bool]
"""Plugins that skipped filter or score, and whether there was a choice to make."""


class MeasuredProfile:
    """Decides as the profile would, and counts what kube-scheduler counts meanwhile."""

    def __init__(
        self, profile: Profile, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._metrics, self._clock, self._name = metrics, clock, profile.scheduler_name
        self._laps: list[Lap] = []
        self._decisions = 0
        self.is_measuring = False
        """Whether each plugin was measured in the last decision."""
        self._profile = copy.copy(profile)
        self._normalize_seconds: dict[str, float] = {}
        self._normalizing = {step.name for step in profile.scores if step.normalize is not None}
        self._points = {
            point: Point(point, steps, self._laps, clock)
            for point, steps in (
                ("PreFilter", profile.pre_filters),
                ("Filter", profile.filters),
                ("PostFilter", profile.post_filters),
                ("PreScore", profile.pre_scores),
                ("Score", changed(profile.scores, self._with_timed_normalize)),
            )
        }
        points = self._points
        self._profile.pre_filters, self._profile.post_filters = points["PreFilter"], points["PostFilter"]
        self._profile.pre_scores = points["PreScore"]
        self._profile.filters, self._profile.scores = points["Filter"], points["Score"]  # type: ignore[assignment]
        self._names = {point: [name_of(step) for step in steps] for point, steps in self._points.items()}
        devices = profile.plugins.get("DynamicResources")
        if isinstance(devices, DynamicResources):
            devices.on_waited = metrics.binding_conditions_waited
        self._sums: defaultdict[SumsKey, Sums] = defaultdict(Sums)
        self._batches = {"no_hint": 0, "pod_not_batchable": 0, "empty_list": 0}

    def schedule(
        self, pod: Pod, nodes: LiveNodeTable, tie_break: TieBreak, sampling: Sampling | None
    ) -> Decision:
        self._begin()
        decision = schedule(self._profile, pod, nodes, tie_break, sampling)
        self._end(decision)
        return decision

    async def schedule_with(
        self,
        cycle: ExtendedCycle,
        pod: Pod,
        nodes: LiveNodeTable,
        tie_break: TieBreak,
        sampling: Sampling | None,
    ) -> Decision:
        """The same with extenders; the time that those take counts for no extension point."""
        self._begin()
        decision = await cycle.schedule(self._profile, pod, nodes, tie_break, sampling, self._leave_plugins)
        self._end(decision)
        return decision

    def _begin(self) -> None:
        self.is_measuring = self._decisions % MEASURED_ONCE_IN == 0
        self._decisions += 1
        if self.is_measuring:
            self._measure_plugins(True)
        self._laps.clear()

    def _leave_plugins(self) -> None:
        self._laps.append((NOBODY, self._clock()))

    def _end(self, decision: Decision) -> None:
        self._leave_plugins()
        self._record_points(decision)
        self._count_evaluations(decision)
        self._count_batch(decision)
        if decision.chosen is None and _looked_for_victims(decision):
            self._metrics.preemption_attempted()
        if self.is_measuring:
            self._record_plugins(decision)
            self._measure_plugins(False)

    def _measure_plugins(self, is_measured: bool) -> None:
        for point in self._points.values():
            point.plugin_seconds = {} if is_measured else None
        self._normalize_seconds.clear()

    def _with_timed_normalize(self, step: ScoreStep) -> ScoreStep:
        normalize, name, seconds, clock = step.normalize, step.name, self._normalize_seconds, self._clock
        if normalize is None:
            return step

        def timed(state: CycleState, pod: Pod, scores: Scores) -> Scores:
            began = clock()
            found: Scores = normalize(state, pod, scores)
            seconds[name] = clock() - began
            return found

        step = copy.copy(step)
        step.normalize = timed
        return step

    def _record_points(self, decision: Decision) -> None:
        """What each extension point took; one that the cycle came to more than once counts as one."""
        laps, last = self._laps, len(self._laps) - 2
        earlier = 0.0
        for place in range(last + 1):
            point, began = laps[place]
            if point == NOBODY:
                continue
            after, ended = laps[place + 1]
            if after == point:
                earlier += ended - began
                continue
            failed = decision.error is not None and place == last
            status = ERROR if failed else _outcome(decision, point)
            self._metrics.extension_point(point, self._name, status, earlier + ended - began)
            earlier = 0.0

    def _count_evaluations(self, decision: Decision) -> None:
        """Filters and scores count for every node that they were asked about."""
        state = decision.state
        if state is None or not self._laps[:-1]:
            return
        if decision.filters or decision.chosen is None:
            self._record_evaluations(decision, state)
            return
        has_choice = len(decision.feasible) > 1
        key = frozenset(state.skipped_filters), frozenset(state.skipped_scores), has_choice
        sums = self._sums[key]
        sums.decisions += 1
        sums.looked_at += len(decision.looked_at)
        sums.feasible += len(decision.feasible)

    def _record_evaluations(self, decision: Decision, state: CycleState) -> None:
        count, ran = self._metrics.plugin_evaluated, {point for point, _ in self._laps}
        for name in self._names["PreFilter"]:
            if name not in state.skipped_filters:
                count("PreFilter", name, self._name)
            if _stopped_at(decision, name):
                break
        if "Filter" in ran:
            for name, asked in _asked_about(decision, state, self._names["Filter"]):
                count("Filter", name, self._name, asked)
        if "PreScore" in ran:
            for name in self._names["PreScore"]:
                if name not in state.skipped_scores:
                    count("PreScore", name, self._name)
        for column in decision.scores:
            if column.plugin in self._names["Score"]:
                count("Score", column.plugin, self._name, len(decision.feasible))

    def _count_batch(self, decision: Decision) -> None:
        """Of the answers that kube-scheduler keeps for the next pod, which it can never use by default.

        parity: its counters go up all the same. What Stowplan keeps is no answer for a whole pod.
        """
        self._batches["no_hint"] += 1
        if decision.chosen is not None:
            self._batches["pod_not_batchable" if len(decision.feasible) > 1 else "empty_list"] += 1

    def _record_plugins(self, decision: Decision) -> None:
        state = decision.state
        refusing = {verdicts.plugin for verdicts in decision.filters}
        for point, steps in self._points.items():
            for name, seconds in (steps.plugin_seconds or {}).items():
                skipped = state is not None and (
                    (point == "Filter" and name in state.skipped_filters)
                    or (point == "Score" and name in state.skipped_scores)
                )
                if not skipped:
                    refused = point == "Filter" and name in refusing
                    status = UNSCHEDULABLE if refused else SUCCESS
                    self._metrics.plugin_executed(point, name, status, seconds)
        for column in decision.scores:
            if column.plugin in self._normalizing:
                seconds = self._normalize_seconds.get(column.plugin, 0.0)  # none where the outcome was kept
                self._metrics.plugin_executed("ScoreExtensionNormalize", column.plugin, SUCCESS, seconds)

    def hand_in(self) -> None:
        """What was summed up since the last time."""
        for (skipped_filters, skipped_scores, has_choice), sums in self._sums.items():
            for point, skipped, times in (
                ("PreFilter", skipped_filters, sums.decisions),
                ("Filter", skipped_filters, sums.looked_at),
                ("PreScore", skipped_scores, sums.decisions if has_choice else 0),
                ("Score", skipped_scores, sums.feasible if has_choice else 0),
            ):
                for name in self._names[point]:
                    if name not in skipped:
                        self._metrics.plugin_evaluated(point, name, self._name, times)
        self._sums.clear()
        attempts = self._batches.pop("no_hint")
        if attempts:
            self._metrics.batch_attempted(self._name, "no_hint", attempts)
            self._metrics.node_hint_sought("no_hint", self._name, 0.0, attempts)
            # parity: kube-scheduler signs pods for such answers when they enter the queue
            self._metrics.extension_point_at_once("Sign", self._name, SUCCESS, attempts)
        for reason, times in self._batches.items():
            if times:
                self._metrics.batch_flushed(self._name, reason, times)
                self._metrics.results_stored(self._name, 0.0, times)
        self._batches = {"no_hint": 0, "pod_not_batchable": 0, "empty_list": 0}


def name_of(step: Any) -> str:
    name: str = step[0] if isinstance(step, tuple) else step.name
    return name


def _outcome(decision: Decision, point: str) -> str:
    if point == "PreFilter" and decision.pre_filter is not None:
        return decision.pre_filter.code.wire_name
    if point == "PostFilter" and decision.post_filter is not None:
        return decision.post_filter.code.wire_name
    return SUCCESS  # parity: filters succeed where they refuse all nodes, too


def _stopped_at(decision: Decision, name: str) -> bool:
    """Whether the pod was refused as a whole by this plugin, so that those after it were not asked."""
    status = decision.pre_filter
    if status is None or status.code is not Code.UNRESOLVABLE:
        return False
    return name == (status.plugin or decision.narrowed_by[-1])


def _asked_about(decision: Decision, state: CycleState, names: list[str]) -> Iterator[tuple[str, int]]:
    """Each filter with the number of nodes that no filter before it had refused."""
    skipped, refusing = state.skipped_filters, {each.plugin: each for each in decision.filters}
    everywhere = still_open = len(decision.looked_at)
    refused: Any = None
    for name in names:
        if name in skipped:
            continue
        if not still_open:
            return
        yield name, still_open
        if name in refusing:
            fails = refusing[name].fails
            refused = fails if refused is None else refused | fails
            still_open = everywhere - int(np.count_nonzero(refused))


def _looked_for_victims(decision: Decision) -> bool:
    """Whether DefaultPreemption was asked, and not an answer before it final."""
    status = decision.post_filter
    return decision.nominated is not None or (
        status is not None and status.plugin in ("", "DefaultPreemption")
    )
