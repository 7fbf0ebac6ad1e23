"""Measures decisions, and counts requests to the API server.

Every decision is timed by extension point, every tenth also by plugin.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import numpy as np

from stowplan.api.meta import Object
from stowplan.api.resource import ResourceClaim
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError
from stowplan.framework.answers import await_answer
from stowplan.framework.decision import Decision
from stowplan.framework.observer import Observer
from stowplan.framework.plugin import Plugin, is_trusted, overrides
from stowplan.framework.profile import Profile
from stowplan.framework.resolve import ResolvedProfile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard

MEASURED_ONCE_IN = 10
"""Plugins are measured in one of so many decisions, as kube-scheduler does: it takes time itself."""
CYCLE_POINTS = {
    "PreFilter": "preFilter",
    "Filter": "filter",
    "PostFilter": "postFilter",
    "PreScore": "preScore",
    "Score": "score",
}
"""The extension points of a decision: their names in metrics, and in a configuration."""
SUCCESS, ERROR, UNSCHEDULABLE = (code.wire_name for code in (Code.SUCCESS, Code.ERROR, Code.UNSCHEDULABLE))

Lap = tuple[str, float]
NOBODY = ""
"""Stands for the time after plugins, or between them."""


class Sums:
    """Counts of decisions in which the same plugins took part and no node was rejected."""

    __slots__ = ("decisions", "feasible", "looked_at")

    def __init__(self) -> None:
        self.decisions = self.looked_at = self.feasible = 0


SumsKey = tuple[frozenset[str], frozenset[str], bool]
"""Plugins that skipped filter or score, and whether there was a choice to make."""


class CycleObserver(Observer):
    """Counts and measures for one profile what kube-scheduler counts, and lets the guard watch plugins.

    Extension points are measured in every decision, plugins in every tenth.
    """

    def __init__(
        self,
        resolved: ResolvedProfile,
        metrics: Metrics,
        guard: Guard,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._metrics, self._guard, self._clock = metrics, guard, clock
        self._name = resolved.scheduler_name
        self._names = {
            point: [name for name, _ in resolved.points.get(configured, ())]
            for point, configured in CYCLE_POINTS.items()
        }
        classes = resolved.classes
        self._custom = frozenset(kind for kind in classes.values() if not is_trusted(kind))
        """The classes of plugins that the guard watches."""
        self._guarded = {
            point
            for point, names in self._names.items()
            if any(classes[name] in self._custom for name in names)
        }
        self._normalizing = {
            name for name in self._names["Score"] if overrides(classes[name], "normalize_score")
        }
        self._preempting = {name for name in self._names["PostFilter"] if classes[name].preempts}
        self._laps: list[Lap] = []
        self._is_deciding = False
        self._decisions = 0
        self.is_measuring = False
        """Whether each plugin is measured in the current decision, or was in the last one."""
        self._began: list[float] = []
        self._seconds: defaultdict[tuple[str, Plugin], float] = defaultdict(float)
        self._sums: defaultdict[SumsKey, Sums] = defaultdict(Sums)
        self._batches = {"no_hint": 0, "pod_not_batchable": 0, "empty_list": 0}

    # Called by the cycle

    def start(self, point: str) -> Observer | None:
        # What a post_filter plugin tries out with filters is its own time.
        if self._is_deciding and not (self._laps and self._laps[-1][0] == "PostFilter"):
            self._laps.append((point, self._clock()))
            if self.is_measuring:
                return self
        return self._guard if point in self._guarded else None

    def enter(self, point: str, plugin: Plugin) -> None:
        if plugin.__class__ in self._custom:
            self._guard.enter(point, plugin)
        if self.is_measuring and self._is_deciding:
            self._began.append(self._clock())

    def leave(self, point: str, plugin: Plugin) -> None:
        if self.is_measuring and self._is_deciding:
            self._seconds[point, plugin] += self._clock() - self._began.pop()
        if plugin.__class__ in self._custom:
            self._guard.leave(point, plugin)

    def call_async(
        self, point: str, plugin: Plugin, method: Callable[..., object], *args: object
    ) -> Awaitable[Any]:
        if plugin.__class__ in self._custom:
            return self._guard.call_async(point, plugin, method, *args)
        return await_answer(method, *args)

    def run(self, plugin: Plugin) -> Awaitable[Any]:
        return self._guard.run(plugin)

    # Called by the loop

    def begin(self) -> None:
        """A decision starts."""
        if not self._metrics.are_read:
            return
        self.is_measuring = self._decisions % MEASURED_ONCE_IN == 0
        self._decisions += 1
        self._is_deciding = True
        self._laps.clear()

    def pause(self) -> None:
        """The cycle waits for an extender, whose time counts for no extension point."""
        self._laps.append((NOBODY, self._clock()))

    def end(self, profile: Profile, decision: Decision) -> None:
        if not self._metrics.are_read:
            return
        self._laps.append((NOBODY, self._clock()))
        self._is_deciding = False
        self._record_points(decision)
        self._count_evaluations(decision)
        self._count_batch(decision)
        if decision.chosen is None and self._looked_for_victims(decision):
            self._metrics.preemption_attempted()
        if self.is_measuring:
            self._record_plugins(profile, decision)

    def repeat(self, decision: Decision) -> None:
        """A decision holds for another pod, without asking plugins again."""
        if not self._metrics.are_read:
            return
        self.is_measuring = False
        self._count_batch(decision)
        if self._looked_for_victims(decision):
            self._metrics.preemption_attempted()

    def _record_points(self, decision: Decision) -> None:
        """Record the time of each extension point; one that ran more than once counts as one."""
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
        """Count filters and scores for every node that they were asked about."""
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
        """Count the results that kube-scheduler stores for the next pod; by default it never uses them.

        parity: its counters go up all the same. What Stowplan keeps is no answer for a whole pod.
        """
        self._batches["no_hint"] += 1
        if decision.chosen is not None:
            self._batches["pod_not_batchable" if len(decision.feasible) > 1 else "empty_list"] += 1

    def _looked_for_victims(self, decision: Decision) -> bool:
        """Whether a plugin that preempts was asked, and not an answer before it final."""
        status = decision.post_filter
        return decision.nominated is not None or (
            status is not None and bool(self._preempting) and status.plugin in ("", *self._preempting)
        )

    def _record_plugins(self, profile: Profile, decision: Decision) -> None:
        rejecting = {verdicts.plugin for verdicts in decision.filters}
        names = {plugin: name for name, plugin in profile.plugins.items()}
        normalized = {}
        for (point, plugin), seconds in self._seconds.items():
            name = names[plugin]
            if point == "ScoreExtensionNormalize":
                normalized[name] = seconds
                continue
            status = UNSCHEDULABLE if point == "Filter" and name in rejecting else SUCCESS
            self._metrics.plugin_executed(point, name, status, seconds)
        for column in decision.scores:
            if column.plugin in self._normalizing:
                seconds = normalized.get(column.plugin, 0.0)  # none where the outcome was kept
                self._metrics.plugin_executed("ScoreExtensionNormalize", column.plugin, SUCCESS, seconds)
        self._seconds.clear()

    def hand_in(self) -> None:
        """Add to the metrics what was counted since the last time."""
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


def _outcome(decision: Decision, point: str) -> str:
    if point == "PreFilter" and decision.pre_filter is not None:
        return decision.pre_filter.code.wire_name
    if point == "PostFilter" and decision.post_filter is not None:
        return decision.post_filter.code.wire_name
    return SUCCESS  # parity: filters succeed where they reject all nodes, too


def _stopped_at(decision: Decision, name: str) -> bool:
    """Whether this plugin rejected the pod on all nodes, so that those after it were not asked."""
    status = decision.pre_filter
    if status is None or status.code is not Code.UNRESOLVABLE:
        return False
    return name == (status.plugin or decision.narrowed_by[-1])


def _asked_about(decision: Decision, state: CycleState, names: list[str]) -> Iterator[tuple[str, int]]:
    """Each filter with the number of nodes that no filter before it had rejected."""
    skipped, rejecting = state.skipped_filters, {each.plugin: each for each in decision.filters}
    everywhere = still_open = len(decision.looked_at)
    rejected: Any = None
    for name in names:
        if name in skipped:
            continue
        if not still_open:
            return
        yield name, still_open
        if name in rejecting:
            fails = rejecting[name].fails
            rejected = fails if rejected is None else rejected | fails
            still_open = everywhere - int(np.count_nonzero(rejected))


T = TypeVar("T", bound=Object)
NO_ANSWER = "<error>"


class MeasuredClient(ApiClient):
    def __init__(self, connection: Connection, metrics: Metrics, **settings: Any) -> None:
        super().__init__(connection, **settings)
        self._metrics, self._host = metrics, urlsplit(connection.server).netloc

    def on_request(self, method: str, size: int) -> None:
        self._metrics.request_sent(self._host, method, size)

    def on_throttled(self, method: str, seconds: float) -> None:
        self._metrics.throttled(self._host, method, seconds)

    def on_answered(self, method: str, status: int, size: int, seconds: float) -> None:
        if 200 <= status < 300:
            self._metrics.count_response(self._host, method, size)
        self._metrics.request(str(status or NO_ANSWER), self._host, method, seconds)

    async def stream(
        self,
        path: str,
        on_line: Callable[[bytes], None],
        *,
        on_open: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        is_counted = False

        def opened() -> None:
            nonlocal is_counted
            is_counted = True
            self._metrics.watch_begun("200", self._host)
            on_open()

        try:
            await super().stream(path, on_line, on_open=opened, **options)
        except ApiError as error:
            if not is_counted:
                self._metrics.watch_begun(str(error.status or NO_ANSWER), self._host)
            raise

    async def create(self, item: T) -> T:
        try:
            created = await super().create(item)
        except ApiError:
            self._count_claim(item, "failure")
            raise
        self._count_claim(item, "success")
        return created

    def _count_claim(self, item: Object, status: Literal["success", "failure"]) -> None:
        if isinstance(item, ResourceClaim):
            self._metrics.claim_created(status)
