"""A shadow of the live scheduler: it follows a cluster, decides each pod with another configuration, and
compares that with what the live scheduler does. Nothing is written to the cluster.

It is the scheduler of `stowplan run` in the state of a standby that never leads: its watches, its queue and
its cycle. Pods are placed where the live scheduler binds them, so every decision is about the real cluster.

A decision is made when the queue hands out the pod, soon after it arrives. When the pod is bound, and the
cluster has changed since, it is decided again on the cluster just before the binding. Where the nodes differ,
it is decided once more a moment later, with those pods that were before it in the queue: the live scheduler
counts pods that it has decided and not bound yet, and nobody else can see those."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from signal import SIGTERM
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from stowplan import log
from stowplan.api.groups import GroupKey
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle.sampling import Sampling, SearchStart, nodes_to_find
from stowplan.framework.answers import describe, stack_of, where_text
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.metrics import Metrics
from stowplan.queue.waiting import QueuedPod
from stowplan.replay.shadow_cycle import ShadowCycle
from stowplan.replay.shadow_timing import (
    IN_FLIGHT,
    MAX_BURST_SECONDS,
    MAX_SETTLE_SECONDS,
    SETTLE_SECONDS,
    OpenCase,
    Placement,
    Timing,
    Tracked,
    agrees,
)
from stowplan.scheduler.main import MorePages, Service
from stowplan.scheduler.options import RunOptions
from stowplan.scheduler.scheduler import Scheduler, Settings
from stowplan.scheduler.shared import Attempt, failure_of

Result = Literal["same", "tie", "timing", "sample", "policy", "error"]
RESULTS: tuple[Result, ...] = get_args(Result)
AGREEING: tuple[Result, ...] = ("same", "tie")
MAX_KEPT = 1000
"""Disagreements kept in memory."""
MAX_OPEN = 256
"""Disagreements that wait for the bindings around them; beyond it the oldest is judged at once."""
RECENT = 4
"""How many bindings after the arrival of a pod the live scheduler may still have decided it as it arrived."""
MAX_NAMES = 100
"""Names of schedulers without a profile that are counted one by one."""
OTHER_NAMES = "(others)"
TURN_SECONDS = 0.002


class ScoreDifference(msgspec.Struct, frozen=True, rename="camel"):
    """The weighted scores of a plugin for both nodes."""

    plugin: str
    live: int
    chosen: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the live scheduler did with a pod, and what this configuration would have done."""

    pod: str
    profile: str
    time: float
    waited: float
    """Seconds from when the pod was first seen to when it was bound or rejected."""
    live: str
    """The node that the live scheduler bound it to; empty if it found none."""
    chosen: str
    """The node that this configuration chooses; empty if it finds none."""
    result: Result
    best: int = 0
    """How many nodes have the highest score."""
    reason: str = ""
    """Why the nodes differ, in a sentence."""
    cause: str = ""
    """The plugin that makes the difference, if one does."""
    scores: tuple[ScoreDifference, ...] = ()
    """The scores that differ, the largest difference first."""


class Summary(msgspec.Struct, kw_only=True, rename="camel"):
    since: float
    judged: int
    same_node: float | None
    """The share of pods that went to the same node; None before the first."""
    agreement: float | None
    """The share that went to the same node or to one with the same score."""
    results: dict[Result, int]
    causes: dict[str, int]
    """How often each plugin made the difference where the policy differs."""
    pending: int
    """Pods that are decided here and not bound yet."""
    open: int
    """Disagreements whose class is not known yet."""
    gone: int
    """Pods that were deleted before they were bound."""
    unseen: int
    """Pods that were first seen with a node."""
    unmatched: dict[str, int]
    """Pods not judged because no profile has their schedulerName, by that name."""
    profiles: tuple[str, ...]


class Shadow:
    """Judges pods; outlives the scheduler that it decides with, which a new configuration replaces."""

    def __init__(
        self,
        metrics: Metrics,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now, self._on_verdict = now, on_verdict
        self.since = now()
        self.disagreements: deque[Verdict] = deque(maxlen=MAX_KEPT)
        self._results: Counter[Result] = Counter()
        self._causes: Counter[str] = Counter()
        self._gone = self._unseen = 0
        self._unmatched: Counter[str] = Counter()
        self._tracked: dict[str, Tracked] = {}
        self._open: deque[OpenCase] = deque()
        self._taken: Sequence[QueuedPod] = ()
        """The members of a group that the queue handed out together."""
        self._timing = Timing()
        self._placed = self._arrived = 0
        self._scheduler: Scheduler | None = None
        self._cycle: ShadowCycle
        self._sampling: dict[str, Sampling] = {}
        page = metrics.page
        self._pods_total = page.counter(
            "stowplan_shadow_pods_total",
            "Pods that the live scheduler bound or rejected, by how that compares with this configuration.",
            "profile",
            "result",
        )
        self._unmatched_total = page.counter(
            "stowplan_shadow_unmatched_pods_total", "Pods whose schedulerName no profile has."
        )
        self._gone_total = page.counter(
            "stowplan_shadow_deleted_pods_total", "Pods that were deleted before they were bound."
        )
        self._agreement = page.gauge(
            "stowplan_shadow_agreement_ratio",
            "Share of the judged pods that went to the node chosen here, or to one with the same score.",
        )
        self._pending = page.gauge("stowplan_shadow_pending_pods", "Pods that are not bound yet.")

    def follow(self, scheduler: Scheduler) -> None:
        """Decide with this scheduler from now on."""
        self._scheduler, self._tracked = scheduler, {}
        self._cycle = ShadowCycle(scheduler)
        self._sampling = Sampling.of(
            {name: each.percentage_of_nodes_to_score for name, each in scheduler.profiles.items()}
        )

    async def run(self, scheduler: Scheduler) -> None:
        """Decide pods as they arrive, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_open())
                await scheduler.follower.sync()
                turn_ends = time.monotonic() + TURN_SECONDS
                while (queued := await scheduler.queue.pop()) is not None:
                    try:
                        await self._decide_queued(queued)
                    except Exception as error:  # what nobody foresaw for one pod must not stop the others
                        for each in self._taken or (queued,):
                            self._give_up(scheduler, each, error)
                    self._taken = ()
                    if time.monotonic() >= turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = time.monotonic() + TURN_SECONDS
                await asyncio.Event().wait()  # the queue is closed: the process is about to end
        finally:
            while self._open:
                self._close(self._open.popleft())

    def summary(self) -> Summary:
        judged = sum(self._results.values())
        agreeing = sum(self._results[each] for each in AGREEING)
        return Summary(
            since=self.since,
            judged=judged,
            same_node=self._results["same"] / judged if judged else None,
            agreement=agreeing / judged if judged else None,
            results={each: self._results[each] for each in RESULTS},
            causes=dict(self._causes.most_common()),
            pending=len(self._tracked),
            open=len(self._open),
            gone=self._gone,
            unseen=self._unseen,
            unmatched=dict(self._unmatched),
            profiles=() if self._scheduler is None else tuple(self._scheduler.profiles),
        )

    # What happens to pods

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Take note of a change of a pod, before the cluster has it."""
        scheduler = self._scheduler
        assert scheduler is not None
        if new is None or new.is_finished:
            if old is not None and self._tracked.pop(old.uid, None) is not None:
                self._cycle.forget(old.uid)
                self._gone += 1
                self._gone_total[()] += 1
        elif new.node_name:
            if old is None or not old.node_name:
                self._on_bound(scheduler, old, new)
        elif new.scheduler_name in scheduler.profiles:
            self._on_pending(scheduler, old, new)
        elif old is None:
            self._count_unmatched(scheduler, new.scheduler_name)
        self._pending[()] = len(self._tracked)

    def _on_pending(self, scheduler: Scheduler, old: Pod | None, new: Pod) -> None:
        condition = new.condition("PodScheduled")
        is_rejected = (
            condition is not None and condition.status == "False" and condition.reason == "Unschedulable"
        )
        is_gated = bool(new.spec.scheduling_gates)
        tracked = self._tracked.get(new.uid)
        if tracked is None:
            turn = self._next_turn(new)
            tracked = Tracked(self._now(), self._placed, turn, is_gated=is_gated, is_rejected=is_rejected)
            self._tracked[new.uid] = tracked
        elif is_rejected and not tracked.is_rejected:
            self._compare(scheduler, new, "", tracked)
            tracked.is_rejected, tracked.turn = True, self._next_turn(new)
        elif tracked.is_gated and not is_gated:
            tracked.is_gated, tracked.turn = False, self._next_turn(new)

    def _next_turn(self, pod: Pod) -> tuple[int, int]:
        self._arrived += 1
        return (-pod.priority, self._arrived)

    def _on_bound(self, scheduler: Scheduler, old: Pod | None, new: Pod) -> None:
        tracked = self._tracked.pop(new.uid, None)
        if tracked is not None:
            pending = scheduler.shared.pending.get(new.uid) or old or new
            self._compare(scheduler, pending, new.node_name, tracked)
        elif old is None and scheduler.is_synced and new.scheduler_name in scheduler.profiles:
            self._unseen += 1
        self._placed, self._timing.placed_at = self._placed + 1, time.monotonic()
        before, turn = (self._placed, (0, 0)) if tracked is None else (tracked.placed_before, tracked.turn)
        self._timing.placements.append(Placement(self._placed, before, turn, new.uid))
        while self._open and self._open[0].placement + IN_FLIGHT < self._placed:
            self._close(self._open.popleft())

    def _count_unmatched(self, scheduler: Scheduler, name: str) -> None:
        if name not in self._unmatched:
            if len(self._unmatched) >= MAX_NAMES:
                name = OTHER_NAMES
            if name not in self._unmatched:
                log.warn(
                    "Pods are not judged: no profile has their schedulerName",
                    schedulerName=name,
                    profiles=list(scheduler.profiles),
                )
        self._unmatched[name] += 1
        self._unmatched_total[()] += 1

    # Decisions

    async def _decide_queued(self, queued: QueuedPod) -> None:
        """Decide a pod that the queue hands out, with its group; without a node it waits for a change."""
        scheduler = self._scheduler
        assert scheduler is not None
        pod, queue = queued.pod, scheduler.queue
        profile = scheduler.profiles.get(pod.scheduler_name)
        if pod.uid not in self._tracked or profile is None or pod.is_terminating:
            queue.done(pod.uid)
            return
        scheduler.loop.before_pod()
        key, sampling = self._cycle.group_of(pod), self._sampling.get(profile.scheduler_name)
        began = scheduler.shared.clock()
        if key is not None:
            self._decide_group(scheduler, profile, key, queued)
        elif scheduler.loop.asks_extenders(pod):
            decision = await self._cycle.ask(profile, pod, sampling)
            self._keep(scheduler, Attempt(queued, profile, decision, began))
        else:
            decision = self._cycle.decide(profile, pod, sampling)
            self._keep(scheduler, Attempt(queued, profile, decision, began))

    def _give_up(self, scheduler: Scheduler, queued: QueuedPod, error: Exception) -> None:
        """Count a pod that could not be decided as an error once the live scheduler is done with it."""
        said = f"{describe(error)}{where_text(error)}"
        log.error("Cannot compare pod", said, pod=queued.pod, stacktrace=stack_of(error))
        tracked = self._tracked.get(queued.pod.uid)
        if tracked is not None:
            tracked.is_decided, tracked.chosen, tracked.error = True, None, said
        scheduler.queue.done(queued.pod.uid)

    def _decide_group(self, scheduler: Scheduler, profile: Profile, key: GroupKey, queued: QueuedPod) -> None:
        """Decide all pending members of a group as one."""
        pending, uid, began = scheduler.shared.pending, queued.pod.uid, scheduler.shared.clock()
        others = [
            each
            for each in scheduler.cluster.groups.members(key).values()
            if each.uid != uid and each.uid in pending and each.scheduler_name == profile.scheduler_name
        ]
        taken = self._taken = [queued, *scheduler.queue.take_members(others)]
        pods = [each.pod for each in taken]
        found = self._cycle.decide_group(profile, key, pods, self._sampling.get(profile.scheduler_name))
        members = {each.pod.uid: each for each in found.members}
        decisions = [self._cycle.settle(found, pod, members.get(pod.uid)) for pod in pods]
        failed = [failure_of(each) for each in decisions if each.chosen is None and each.filters]
        # What helps any member may help all of them.
        rejectors = profile.plugins_holding(key.family).union(*(each.rejectors for each in failed))
        for each, decision in zip(taken, decisions, strict=True):
            self._keep(scheduler, Attempt(each, profile, decision, began), rejectors)

    def _keep(self, scheduler: Scheduler, attempt: Attempt, rejectors: frozenset[str] = frozenset()) -> None:
        """Note what was decided for a pod that the queue handed out."""
        queued, decision = attempt.queued, attempt.decision
        self._record(scheduler, attempt)
        tracked = self._tracked.get(queued.pod.uid)
        if tracked is not None:
            tracked.is_decided, tracked.chosen, tracked.error = True, decision.chosen, decision.error
            tracked.version, tracked.decided_at = _version(scheduler), self._placed
        if decision.chosen is not None or tracked is None:
            scheduler.queue.done(queued.pod.uid)
        else:
            failure = failure_of(decision)
            scheduler.queue.return_failed(
                queued, rejectors=failure.rejectors | rejectors, pending=failure.pending
            )

    def _decide_again(self, scheduler: Scheduler, profile: Profile, pod: Pod, live: str) -> Decision:
        """Decide a pod on the cluster as it is now, and record that."""
        began, queued = scheduler.shared.clock(), QueuedPod(pod, scheduler.shared.now(), attempts=1)
        decision = self._cycle.decide(profile, pod, self._sampling.get(profile.scheduler_name), live)
        self._record(scheduler, Attempt(queued, profile, decision, began))
        return decision

    def _record(self, scheduler: Scheduler, attempt: Attempt) -> None:
        recorder = scheduler.recorder
        if recorder is not None and attempt.decision.chosen is not None:
            recorder.record_bound(attempt)
        elif recorder is not None:
            recorder.record_failed(attempt, failure_of(attempt.decision))

    def _recall(self, scheduler: Scheduler, pod: Pod) -> Decision | None:
        """The last decision for a pod, if it is still in memory."""
        recorder = scheduler.recorder
        records = [] if recorder is None else recorder.decisions.recent.of(pod.key)
        return next((each.decision() for each in records if each.uid == pod.uid), None)

    # Comparisons

    def _compare(self, scheduler: Scheduler, pod: Pod, live: str, tracked: Tracked) -> None:
        """The live scheduler has bound a pod or, with `live` empty, found no node for it."""
        profile = scheduler.profiles[pod.scheduler_name]
        first = None
        # A pod that the live scheduler has rejected before is decided anew by both after a change.
        if tracked.is_decided and not (tracked.is_rejected and live):
            if tracked.error is not None:
                self._report(pod, live, tracked, "error", None, tracked.error)
                return
            if (tracked.chosen or "") == live and tracked.version == _version(scheduler):
                self._report(pod, live, tracked, "same", None)
                return
            if self._cycle.group_of(pod) is None:  # the node may be that of an equal member
                first = self._recall(scheduler, pod)
            if first is not None and tracked.version == _version(scheduler) and agrees(first, live):
                self._report(pod, live, tracked, "tie", first)
                return
        if self._cycle.is_unanswered(pod):
            why = "the live scheduler was done before extenders had answered here"
            self._report(pod, live, tracked, "timing", None, why)
            return
        now = self._decide_again(scheduler, profile, pod, live)
        if now.error is not None:
            self._report(pod, live, tracked, "error", now, now.error)
        elif agrees(now, live):
            self._report_agreement(pod, live, tracked, first, now)
        elif live and self._is_sampled(scheduler, profile, pod, live, now):
            why = f"a search that starts at another node finds {live} to be the best of its sample"
            self._report(pod, live, tracked, "sample", now, why)
        else:
            # With many bindings in between, the live scheduler did not decide when the pod arrived.
            is_recent = self._placed - tracked.decided_at <= RECENT
            agreed = first is not None and is_recent and agrees(first, live)
            self._put_open(scheduler, pod, live, tracked, now, agreed)

    def _report_agreement(
        self, pod: Pod, live: str, tracked: Tracked, first: Decision | None, now: Decision
    ) -> None:
        """The choice is the same on the cluster just before the binding; was it when the pod arrived?"""
        if first is not None and not agrees(first, live):
            if first.not_looked_at is not None:
                why = f"{live} is the best of the next sample"
                self._report(pod, live, tracked, "sample", first, why)
            else:
                why = "the cluster changed between the arrival of the pod and its binding"
                self._report(pod, live, tracked, "timing", first, why)
            return
        chosen = now.chosen if first is None else first.chosen
        self._report(pod, live, tracked, "same" if (chosen or "") == live else "tie", first or now)

    def _put_open(
        self, scheduler: Scheduler, pod: Pod, live: str, tracked: Tracked, decision: Decision, agreed: bool
    ) -> None:
        now, due = self._now(), time.monotonic() + SETTLE_SECONDS
        changed = ""
        if tracked.is_decided and now - tracked.seen <= MAX_SETTLE_SECONDS:
            nodes = scheduler.cluster.nodes
            rows = nodes.kept.node_changes.since(tracked.version[1])
            names = {live, decision.chosen}
            if rows is not None:  # the last of them may have been removed since
                names = {nodes.names[row] for row in rows if row < len(nodes)}
            changed = next((name for name in (live, decision.chosen) if name and name in names), "")
        case = OpenCase(pod, live, tracked, decision, agreed, changed, self._placed + 1, now, due)
        self._open.append(case)
        if len(self._open) > MAX_OPEN:
            self._close(self._open.popleft())

    async def _close_open(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_SECONDS / 4)
            scheduler = self._scheduler
            if not self._open or scheduler is None or scheduler.shared.changes.is_deferring:
                continue  # a decision is under way, and waits for extenders
            waiting = [
                each.placed_before
                for each in self._tracked.values()
                if not (each.is_rejected or each.is_gated)
            ]
            first = min(waiting, default=math.inf)
            while self._open and self._is_due(self._open[0], first):
                self._close(self._open.popleft())
                await asyncio.sleep(0)

    def _is_due(self, case: OpenCase, first: float) -> bool:
        """Whether all pods that were pending when it was bound are bound, or have had the time for it.

        `first` is how many pods had been bound when the first of those that are pending arrived.
        """
        now = time.monotonic()
        if now < case.due:
            return False
        idle = now - max(case.due, self._timing.placed_at)
        return first >= case.placement or idle >= MAX_SETTLE_SECONDS or now >= case.due + MAX_BURST_SECONDS

    def _close(self, case: OpenCase) -> None:
        """Find out whether pods that were bound at about the same time explain a disagreement."""
        scheduler = self._scheduler
        assert scheduler is not None
        profile = scheduler.profiles.get(case.pod.scheduler_name)
        if profile is None or (case.live and case.live not in case.decision.names):
            why = "this configuration had not seen the node yet"
            self._report(case.pod, case.live, case.tracked, "timing", case.decision, why, case.time)
            return
        why = self._timing.explain(scheduler, profile, case, self._open, self._cycle.decide)
        result: Result = "timing" if why else "policy"
        self._report(case.pod, case.live, case.tracked, result, case.decision, why, case.time)

    def _is_sampled(
        self, scheduler: Scheduler, profile: Profile, pod: Pod, live: str, decision: Decision
    ) -> bool:
        """Whether a sampled search that starts at another node finds this one to be the best."""
        nodes, percentage = scheduler.cluster.nodes, profile.percentage_of_nodes_to_score
        wanted = nodes_to_find(len(nodes), percentage)
        if percentage >= 100 or wanted >= len(nodes):
            return False
        if decision.not_looked_at is not None:
            decision = self._cycle.decide(profile, pod, None)
        row, totals = nodes.row_of(live), decision.relative_totals
        if row is None or totals is None or row not in decision.feasible:
            return False
        by_row = np.full(len(nodes), np.iinfo(np.int64).min)
        by_row[decision.feasible] = totals
        order = nodes.order
        (places,) = (by_row[order] > np.iinfo(np.int64).min).nonzero()
        ring = order[places]  # feasible rows, in the order of the search
        if len(ring) <= wanted:
            return False
        (here,) = (ring == row).nonzero()[0]
        (better,) = np.roll(by_row[ring] > by_row[row], -here).nonzero()
        after, before = (int(better[0]), len(ring) - int(better[-1])) if len(better) else (wanted, wanted)
        ahead = max(0, wanted - after)  # so many feasible nodes are looked at before it
        if ahead > min(wanted, before) - 1:
            return False
        start = SearchStart(int(places[(here - ahead) % len(ring)]))
        trial = self._cycle.decide(profile, pod, Sampling(percentage, start))
        return trial.error is None and agrees(trial, live)

    def _report(
        self,
        pod: Pod,
        live: str,
        tracked: Tracked,
        result: Result,
        decision: Decision | None,
        why: str = "",
        at: float | None = None,
    ) -> None:
        at = self._now() if at is None else at
        chosen = (tracked.chosen if decision is None else decision.chosen) or ""
        reason, cause = why, ""
        scores: tuple[ScoreDifference, ...] = ()
        if decision is not None and result not in ("same", "error"):
            found, cause, scores = explain_difference(decision, live)
            reason = f"{found}; {why}" if why else found
        verdict = Verdict(
            pod=pod.key,
            profile=pod.scheduler_name,
            time=at,
            waited=max(at - tracked.seen, 0.0),
            live=live,
            chosen=chosen,
            result=result,
            best=0 if decision is None else len(decision.best),
            reason=reason,
            cause=cause,
            scores=scores,
        )
        if live:
            self._cycle.forget(pod.uid)
        self._results[result] += 1
        self._pods_total[pod.scheduler_name, result] += 1
        agreeing = sum(self._results[each] for each in AGREEING)
        self._agreement[()] = agreeing / sum(self._results.values())
        if result == "policy":
            self._causes[cause] += 1
        if result != "same":
            self.disagreements.append(verdict)
        try:
            self._on_verdict(verdict)
        except OSError as error:  # such as a full disk; the summary and the page have it all the same
            log.error("Cannot write comparison", error, pod=pod.key)


def _version(scheduler: Scheduler) -> tuple[int, ...]:
    """Differs after each change of nodes, or of pods on them."""
    nodes = scheduler.cluster.nodes
    kept = nodes.kept
    return (
        nodes.layout,
        kept.node_changes.position,
        kept.usage_changes.position,
        kept.pod_changes.position,
    )


def explain_difference(decision: Decision, live: str) -> tuple[str, str, tuple[ScoreDifference, ...]]:
    """Why a decision is not for the node: a sentence, the plugin that matters most, scores that differ."""
    chosen = decision.chosen
    if not live:
        return f"the live scheduler found no node, this configuration chooses {chosen}", "", ()
    if live not in decision.names:
        return f"node {live} is not known", "", ()
    rejection = decision.pre_filter or decision.status_of(live)
    row = decision.names.index(live)
    if rejection is None and decision.narrowed_by and row not in decision.looked_at:
        return f"{decision.narrowed_reason} for {live}", decision.narrowed_by[0], ()
    if rejection is not None:
        what = "rejects the pod" if decision.pre_filter is not None else f"rejects {live}"
        return f"{rejection.plugin or 'a plugin'} {what}: {rejection.message}", rejection.plugin, ()
    if row not in decision.feasible:
        return f"{live} is not in the sample of nodes looked at", "", ()
    if chosen is None or decision.relative_totals is None:
        return f"{live} fits as well", "", ()
    (here,) = (decision.feasible == row).nonzero()[0]
    (there,) = (decision.feasible == decision.names.index(chosen)).nonzero()[0]
    scores = tuple(
        sorted(
            (
                ScoreDifference(each.plugin, int(each.weighted[here]), int(each.weighted[there]))
                for each in decision.scores
                if each.weighted[here] != each.weighted[there]
            ),
            key=lambda each: (each.live - each.chosen, each.plugin),
        )
    )
    behind = int(decision.relative_totals[there] - decision.relative_totals[here])
    if not behind:
        return f"{live} and {chosen} have the same score", "", scores
    listed = ", ".join(f"{each.plugin} {each.live - each.chosen:+d}" for each in scores)
    return f"{live} scores {behind} less than {chosen} ({listed})", scores[0].plugin if scores else "", scores


class ShadowService(Service):
    """The process of `stowplan shadow`: that of `stowplan run`, except that it never leads nor writes."""

    def __init__(
        self,
        options: RunOptions,
        registry: Registry,
        connection: Connection | None = None,
        more_pages: MorePages = lambda _: {},
        *,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
        seconds: float | None = None,
        owns_process: bool = True,
    ) -> None:
        options = msgspec.structs.replace(options, config=_as_shadow(options.config))
        super().__init__(options, registry, connection, more_pages, owns_process=owns_process)
        self.shadow = Shadow(self.metrics, on_verdict)
        self._seconds = seconds

    async def run(self) -> int:
        if self._seconds is not None:
            asyncio.get_running_loop().call_later(self._seconds, self._signals.put_nowait, SIGTERM)
        return await super().run()

    def _is_leading(self) -> bool:
        return False

    def _keep_fixed(self, config: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
        return _as_shadow(super()._keep_fixed(config))

    def _settings(self) -> Settings:
        return replace(super()._settings(), on_pod=self.shadow.on_pod)

    def _scheduler(
        self, config: KubeSchedulerConfiguration, api: ApiClient, events_api: ApiClient
    ) -> Scheduler:
        # The client for events may write even where this one does not lead, so it is not used.
        scheduler = super()._scheduler(config, api, api)
        self.shadow.follow(scheduler)
        return scheduler

    def _more_work(self, scheduler: Scheduler) -> Mapping[str, Coroutine[Any, Any, Any]]:
        return {"shadow": self.shadow.run(scheduler)}


def _as_shadow(config: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
    """The configuration without a lease, and with extenders that are asked but never bind."""
    extenders = tuple(msgspec.structs.replace(each, bind_verb="") for each in config.extenders)
    election = msgspec.structs.replace(config.leader_election, leader_elect=False)
    return msgspec.structs.replace(
        config, leader_election=election, extenders=extenders, delay_cache_until_active=False
    )
