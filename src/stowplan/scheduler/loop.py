"""The scheduling loop: decides one pod after another, and passes them on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial
from typing import Any

from stowplan import log
from stowplan.api.groups import GroupKey
from stowplan.api.pod import Pod
from stowplan.cycle.cross_node import preempt_across
from stowplan.cycle.preempt import preempt
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import Cycle, ExtenderQuestion, TieBreak, answer_all, schedule
from stowplan.framework.answers import describe, stack_of
from stowplan.framework.args import without_secrets
from stowplan.framework.decision import Decision
from stowplan.framework.handle import Handle
from stowplan.framework.hints import QueueingHints
from stowplan.framework.plugin import Plugin, is_trusted
from stowplan.framework.profile import Profile
from stowplan.framework.resolve import ResolvedProfile
from stowplan.framework.state import CycleState
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.queue.waiting import QueuedPod
from stowplan.scheduler.binding import NOT_LEADING, PodBinder, node_gone
from stowplan.scheduler.extenders import ExtenderCalls
from stowplan.scheduler.failure import NOBODY, UNCHANGED, FailureHandler, PodReporter
from stowplan.scheduler.groups import GroupScheduler
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.measuring import CycleObserver
from stowplan.scheduler.shared import Attempt, Failure, Shared, failure_of

TURN_SECONDS = 0.001
"""For so long pods are decided before other tasks get their turn: each turn takes a call to the system."""
MAX_TURNS = 8
"""How many turns other tasks get, at most, after decisions that took several turns' time each."""
IDLE_TURN_SECONDS = 20e-6
"""A turn in which nothing was left to do takes less."""
CUSTOM_VERBOSITY, RAW_VERBOSITY, ALL_VERBOSITY = 5, 6, 10
"""From which `-v` on the log has a line for what custom plugins say of each node, for their raw scores and
the arguments of plugins, and for what all plugins say."""


WITH_EXTENDERS = (
    "extenders are not asked about groups; remove the extender from the configuration, "
    "limit it with managedResources, or remove the pods from their group"
)


class Profiles:
    """The profiles of a configuration, each with its observer."""

    def __init__(self, shared: Shared, guard: Guard, queue: SchedulingQueue, reporter: PodReporter) -> None:
        self._shared, self._guard, self._queue, self._reporter = shared, guard, queue, reporter
        self.by_name: dict[str, Profile] = {}
        self.observers: dict[str, CycleObserver] = {}
        self.sampling: dict[str, Sampling] = {}

    @property
    def plugins(self) -> dict[Plugin, str]:
        """All plugins of all profiles, with their names."""
        return {each: name for profile in self.by_name.values() for name, each in profile.plugins.items()}

    def take(self, resolved: Sequence[ResolvedProfile]) -> None:
        """Build the profiles, and sort the queue by them; plugins that did not change are kept.

        Decisions under way finish with the old ones. If a new one cannot be built, nothing has changed.
        """
        fresh: dict[str, Profile] = {}
        observers: dict[str, CycleObserver] = {}
        for each in resolved:
            name, old = each.scheduler_name, self.by_name.get(each.scheduler_name)
            handle = self._handle_of(name) if old is None else old.handle
            observers[name] = CycleObserver(each, self._shared.metrics, self._guard)
            fresh[name] = Profile(each, handle, None if old is None else old.plugins, observers[name])
            self._shared.metrics.profile_started(name, fresh[name].points)
            if log.is_verbose(RAW_VERBOSITY):
                for plugin, args in each.as_json()["args"].items():
                    log.log(
                        RAW_VERBOSITY,
                        "Plugin arguments",
                        profile=name,
                        plugin=plugin,
                        args=without_secrets(args),
                    )
        hints = {name: QueueingHints(profile) for name, profile in fresh.items()}
        self.hand_in()
        self.by_name.update(fresh)
        self.observers.update(observers)
        for profile in fresh.values():
            profile.handle.preempt = partial(preempt, profile)
            profile.handle.preempt_across = partial(preempt_across, profile)
            profile.handle.scheduler_names = self.by_name.keys()
        self.sampling = Sampling.of(
            {name: profile.percentage_of_nodes_to_score for name, profile in self.by_name.items()}
        )
        self._queue.take_profiles(hints, self.by_name)

    def hand_in(self) -> None:
        """Add to the metrics what was counted since the last time."""
        for observer in self.observers.values():
            observer.hand_in()

    def _handle_of(self, name: str) -> Handle:
        shared = self._shared
        return Handle(
            shared.cluster,
            now=shared.now,
            api=shared.api,
            activate=self._queue.activate,
            nominations=shared.nominations,
            metrics=shared.metrics.page,
            record_event=partial(self._reporter.record_for_plugin, name),
            waiting_pods=shared.waiting,
            pending_pods=shared.pending.values,
            record_device_wait=shared.metrics.binding_conditions_waited,
        )


class SchedulingLoop:
    """Decides the pods of the queue, and hands each on to the binder or the handler of failures."""

    def __init__(
        self,
        shared: Shared,
        queue: SchedulingQueue,
        profiles: Profiles,
        binder: PodBinder,
        failures: FailureHandler,
        tie_break: TieBreak,
        extenders: ExtenderCalls | None = None,
        before_pod: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_pod` is called before each decision, to bring up to date what it depends on."""
        self._shared, self._queue, self._profiles = shared, queue, profiles
        self._binder, self._failures = binder, failures
        self._extenders, self.before_pod, self._tie_break = extenders, before_pod, tie_break
        self._groups = GroupScheduler(shared, queue, binder, failures)
        self._taken: Sequence[QueuedPod] = ()
        """The members of the group that is being decided."""
        self._failed_pods = FailedPods(shared)
        shared.metrics.before_render()  # of a configuration before this one
        shared.metrics.before_render = profiles.hand_in

    async def run(self) -> None:
        turn_ends = last = 0.0
        while (queued := await self._queue.pop()) is not None:
            began = time.monotonic()
            try:
                self.before_pod()
                if self._extenders is None:
                    self.schedule_one(queued)
                else:
                    await self.schedule_extended(queued)
            except BaseException as error:  # what nobody foresaw for one pod must not stop the others
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                for each in self._taken or (queued,):
                    self._give_back(each, error)
            self._taken = ()
            now = time.monotonic()
            before, last = last, now - began
            if now >= turn_ends:
                # A single slow decision is mostly one that another process interrupted.
                await _let_others_run(min(1 + int(min(before, last) / TURN_SECONDS), MAX_TURNS))
                # What is decided now is bound soon, on what is known by then.
                await self._shared.api.wait_for_capacity()
                turn_ends = time.monotonic() + TURN_SECONDS

    def schedule_one(self, queued: QueuedPod) -> None:
        """Decide one pod. Nothing here waits, so the cluster is the same from start to end."""
        shared, pod = self._shared, queued.pod
        key = shared.cluster.group_of(pod)
        if key is not None:
            self.schedule_group(key, queued)
            return
        profile = self._begin(queued)
        if profile is None:
            return
        began = shared.clock()
        known = self._failed_pods.find(profile, pod)
        if known is not None:
            decision, failure = known
            self._profiles.observers[profile.scheduler_name].repeat(decision)
            self._failures.handle_decision(self._attempt_of(queued, profile, decision, began), failure)
            return
        decision = self.decide(profile, pod, self._profiles.sampling.get(profile.scheduler_name))
        self._failed_pods.keep(profile, decision)
        self._hand_on(self._attempt_of(queued, profile, decision, began))

    def decide(
        self,
        profile: Profile,
        pod: Pod,
        sampling: Sampling | None,
        answer: Callable[[ExtenderQuestion], Any] | None = None,
    ) -> Decision:
        """Decide a pod on the cluster as it is now; nothing is changed by it.

        With `answer`, which says what extenders would, the cycle is that with extenders.
        """
        observer = self._profiles.observers[profile.scheduler_name]
        observer.begin()
        try:
            if answer is None:
                decision = schedule(profile, pod, self._shared.cluster.nodes, self._tie_break, sampling)
            else:
                cycle = Cycle(profile, pod, self._shared.cluster.nodes, sampling)
                decision = answer_all(cycle.decide(self._tie_break, asks_extenders=True), answer)
            observer.end(profile, decision)
        except BaseException as error:  # such as a fault of our own: it concerns this pod alone
            decision = self._make_failed_decision(pod, error)
        return decision

    def schedule_group(self, key: GroupKey, queued: QueuedPod) -> None:
        """Decide a pod together with all other members of its group."""
        taken = self._groups.take_members(key, queued)
        self._taken = taken
        if self._groups.reject_mixed(taken, self._profiles.by_name):
            return
        left = [each for each in taken if self._begin(each) is not None]
        if not left:
            return
        profile = self._profiles.by_name[left[0].pod.scheduler_name]
        if self._extenders is not None and self._extenders.is_any_interested(each.pod for each in left):
            # Members bound one by one would not be a group any more, so they wait until this is resolved.
            self._groups.fail(left, profile, f"pod group {key}: {WITH_EXTENDERS}")
            return
        self._groups.schedule(
            key,
            left,
            profile,
            self._profiles.observers[profile.scheduler_name],
            self._tie_break,
            self._profiles.sampling.get(profile.scheduler_name),
        )

    async def schedule_extended(self, queued: QueuedPod) -> None:
        """Decide one pod with extenders. Changes of the cluster are deferred until they have answered."""
        shared, pod = self._shared, queued.pod
        key = shared.cluster.group_of(pod)
        if key is not None:
            self.schedule_group(key, queued)
            return
        profile = self._begin(queued)
        if profile is None:
            return
        began = shared.clock()
        with shared.changes.deferring():
            decision = await self.decide_extended(
                profile, pod, self._profiles.sampling.get(profile.scheduler_name)
            )
            attempt = self._attempt_of(queued, profile, decision, began)
        if not self._failures.is_pending(pod):
            self._failures.handle(attempt, Failure("the pod is gone or has a node", is_moot=True), UNCHANGED)
        elif decision.chosen is not None and shared.cluster.nodes.row_of(decision.chosen) is None:
            self._failures.handle(attempt, node_gone(decision.chosen), NOBODY)
        else:
            self._hand_on(attempt)

    def asks_extenders(self, pod: Pod) -> bool:
        """Whether an extender manages the pod."""
        return self._extenders is not None and self._extenders.is_any_interested((pod,))

    async def decide_extended(self, profile: Profile, pod: Pod, sampling: Sampling | None) -> Decision:
        """Decide a pod with extenders; the caller defers changes of the cluster meanwhile."""
        assert self._extenders is not None
        observer = self._profiles.observers[profile.scheduler_name]
        observer.begin()
        try:
            cycle = Cycle(profile, pod, self._shared.cluster.nodes, sampling)
            decision = await self._extenders.schedule(cycle, self._tie_break, observer.pause)
            observer.end(profile, decision)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            decision = self._make_failed_decision(pod, error)
        return decision

    def _begin(self, queued: QueuedPod) -> Profile | None:
        """The profile to decide the pod with; None if there is nothing to decide."""
        pod = queued.pod
        is_verbose = log.is_verbose(3)
        if is_verbose:
            log.log(4, "About to try and schedule pod", pod=pod)
        profile = self._profiles.by_name.get(pod.scheduler_name)
        if profile is None or self._shared.cluster.is_assumed(pod):
            self._queue.done(pod.uid)
            return None
        if pod.is_terminating:
            self._failures.report_skipped(profile, pod)
            self._queue.done(pod.uid)
            return None
        if pod.spec.resource_claims and any(plugin.awaits_write(pod) for plugin in profile.awaiting):
            # kube-scheduler attempts it and reports that it failed: two requests, and a backoff for nothing.
            self._queue.give_back(queued)
            return None
        if is_verbose:
            log.log(3, "Attempting to schedule pod", pod=pod)
        return profile

    def _make_failed_decision(self, pod: Pod, error: BaseException) -> Decision:
        decision = Decision(pod, self._shared.cluster.nodes)
        decision.state, decision.error = CycleState(), f"deciding: {describe(error)}"
        decision.stack = stack_of(error)
        return decision

    def _give_back(self, queued: QueuedPod, error: BaseException) -> None:
        """End an attempt in which something failed that was not foreseen: the pod is requeued."""
        pod = queued.pod
        log.error("Attempt failed", describe(error), pod=pod, stacktrace=stack_of(error))
        profile = self._profiles.by_name.get(pod.scheduler_name)
        if pod.uid not in self._queue.in_flight or profile is None or self._shared.cluster.is_assumed(pod):
            return  # it is where it belongs: in the queue, or on its way to a node
        attempt = Attempt(queued, profile, self._make_failed_decision(pod, error), self._shared.clock())
        self._failures.handle(attempt, failure_of(attempt.decision), UNCHANGED)

    def _attempt_of(self, queued: QueuedPod, profile: Profile, decision: Decision, began: float) -> Attempt:
        seconds = self._shared.clock() - began
        self._shared.metrics.algorithm(seconds)
        if log.is_verbose(CUSTOM_VERBOSITY):
            log_nodes(profile, decision)
        is_measuring = self._profiles.observers[profile.scheduler_name].is_measuring
        if self._extenders is not None:
            seconds = 0.0  # the time of extenders does not count against the pod
        return Attempt(queued, profile, decision, began, seconds, is_measuring)

    def _hand_on(self, attempt: Attempt) -> None:
        decision = attempt.decision
        if decision.chosen is not None:
            if not self._shared.is_leading():
                self._failures.handle(attempt, NOT_LEADING, UNCHANGED)
            else:
                self._binder.start(attempt, decision.chosen)
            return
        self._failures.handle_decision(attempt)


MAX_FAILED_KINDS = 1000
MAX_FAILED_ROWS = 1_000_000
"""How many nodes the decisions that are kept may have, all together: each takes some bytes."""


class FailedPods:
    """Decisions that found no node: as long as nothing changes, they hold for equal pods, too.

    A change that may help one pod of a backlog lets all that are like it be attempted.
    """

    def __init__(self, shared: Shared) -> None:
        self._cluster, self._nominations = shared.cluster, shared.nominations
        self._known: dict[Hashable, tuple[Decision, Failure]] = {}
        self._version: Hashable = None

    def find(self, profile: Profile, pod: Pod) -> tuple[Decision, Failure] | None:
        version = self._read_version()
        if version != self._version:
            self._version = version
            self._known.clear()
        found = self._known.get(_kind_of(profile, pod)) if self._known else None
        if found is None or self._has_exceptions(pod):
            return None
        decision = copy(found[0])
        decision.pod, decision.state = pod, CycleState()
        return decision, found[1]

    def keep(self, profile: Profile, decision: Decision) -> None:
        """Keep a decision that `find` was asked for before, if it depends on nothing else."""
        pod, state = decision.pod, decision.state
        has_failed = decision.chosen is None and decision.error is None and decision.nominated is None
        if not has_failed or state is None or self._has_exceptions(pod):
            return
        if pod.spec.volumes or pod.spec.resource_claims or len(self._cluster.device_classes):
            return
        plugins = [plugin for _, plugin, _ in (*profile.pre_filters, *profile.post_filters)]
        filters = [step for step in profile.filters if step.name not in state.skipped_filters]
        plugins += [step.plugin for step in filters]
        if not all(step.tries_many for step in filters) or not all(map(is_trusted, map(type, plugins))):
            return
        limit = min(MAX_FAILED_KINDS, MAX_FAILED_ROWS // max(decision.node_count, 1))
        if limit > 0:
            while len(self._known) >= limit:
                del self._known[next(iter(self._known))]
            self._known[_kind_of(profile, pod)] = (decision, failure_of(decision))

    def _has_exceptions(self, pod: Pod) -> bool:
        """Whether nominated pods count, which depends on the pod, or groups that are evicted as a whole."""
        groups = self._cluster.groups
        return bool(pod.nominated_node_name or self._nominations or (groups.families and groups.whole()))

    def _read_version(self) -> Hashable:
        """What differs after any change on which the decision for a pod without volumes can depend."""
        cluster, kept = self._cluster, self._cluster.nodes.kept
        return (
            cluster.nodes.layout,
            kept.node_changes.position,
            kept.usage_changes.position,
            kept.pod_changes.position,
            cluster.namespaces.version,
            cluster.services.version,
            cluster.replication_controllers.version,
            cluster.replica_sets.version,
            cluster.stateful_sets.version,
            cluster.pdbs.version,
        )


def _kind_of(profile: Profile, pod: Pod) -> Hashable:
    """Pods that differ in nothing else are decided alike."""
    return profile, pod.shape, pod.label_set, pod.controller


async def _let_others_run(turns: int) -> None:
    """Let other tasks run for so many turns of the event loop, or until they wait.

    A full queue would not let anyone else run. A binding takes about three turns for each request: with one
    turn a decision, the first would wait for dozens of slow decisions.
    """
    for _ in range(turns):
        began = time.monotonic()
        await asyncio.sleep(0)
        if time.monotonic() - began < IDLE_TURN_SECONDS:
            return


def is_cancelled() -> bool:
    """Whether the current task was cancelled, so that a CancelledError was not raised by a plugin."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def log_nodes(profile: Profile, decision: Decision) -> None:
    """Log a line for every node that was rejected or scored."""

    def verbosity_of(plugin: str) -> int:
        found = profile.plugins.get(plugin)
        return ALL_VERBOSITY if found is not None and is_trusted(type(found)) else CUSTOM_VERBOSITY

    if decision.pre_filter is None:
        _log_rejected(decision, verbosity_of)
    _log_scores(decision, verbosity_of)


def _log_rejected(decision: Decision, verbosity_of: Callable[[str], int]) -> None:
    if not log.is_verbose(ALL_VERBOSITY) and all(
        verbosity_of(each.plugin) == ALL_VERBOSITY for each in decision.filters
    ):
        return
    for node_name, status in decision.rejected().items():
        log.log(
            verbosity_of(status.plugin),
            "Plugin rejected node for pod",
            pod=decision.pod,
            plugin=status.plugin,
            node=node_name,
            status=status.message,
        )


def _log_scores(decision: Decision, verbosity_of: Callable[[str], int]) -> None:
    names = [decision.names[row] for row in decision.feasible.tolist()]
    for column in decision.scores:
        verbosity = verbosity_of(column.plugin)
        raw_verbosity = max(verbosity, RAW_VERBOSITY)
        if column.raw is not None and log.is_verbose(raw_verbosity):
            for node_name, score in zip(names, column.raw.tolist(), strict=True):
                log.log(
                    raw_verbosity,
                    "Plugin returned raw score for node",
                    pod=decision.pod,
                    plugin=column.plugin,
                    node=node_name,
                    score=score,
                )
        if log.is_verbose(verbosity):
            for node_name, score in zip(names, column.weighted.tolist(), strict=True):
                log.log(
                    verbosity,
                    "Plugin scored node for pod",
                    pod=decision.pod,
                    plugin=column.plugin,
                    node=node_name,
                    score=score,
                )
    totals = decision.totals
    if totals is not None and log.is_verbose(ALL_VERBOSITY):
        for node_name, total in zip(names, totals.tolist(), strict=True):
            log.log(
                ALL_VERBOSITY,
                "Calculated node's final score for pod",
                pod=decision.pod,
                node=node_name,
                score=total,
            )
