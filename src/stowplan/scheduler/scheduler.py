"""The scheduler for one API server: creates its parts in the order in which they need each other."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.pod import Pod
from stowplan.client.api import FOLLOWED, PODS, RESOURCES, ApiClient, WatchedResource
from stowplan.client.connection import INITIAL_REQUESTS
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.events import EventRecorder
from stowplan.client.extenders import MAX_RESPONSE_BYTES, extenders_of
from stowplan.client.watch import EventKind, Reflector
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.config.gates import PREEMPTION
from stowplan.cycle.schedule import TieBreak, draw_ties
from stowplan.framework.handle import PodFollowers
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.journal import Decisions
from stowplan.metrics import Metrics
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.binding import PodBinder
from stowplan.scheduler.extenders import ExtenderCalls, WholeObjects
from stowplan.scheduler.failure import FailureHandler, PodReporter
from stowplan.scheduler.follower import ClusterFollower, EventHandlers, KindWatches
from stowplan.scheduler.groups import group_ranked
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.loop import Profiles, SchedulingLoop
from stowplan.scheduler.plugin_work import PluginWork
from stowplan.scheduler.shared import DecisionRecorder, Shared, WaitingPods

FLUSH_UNSCHEDULABLE_SECONDS = 30.0
BIND_CONNECTIONS = INITIAL_REQUESTS
"""Opened before there are pods to bind: a handshake takes longer than a binding, and with fewer connections
the first bursts would open the rest."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a scheduler is given besides its configuration."""

    registry: Registry = field(default_factory=Registry.installed)
    metrics: Metrics = field(default_factory=Metrics)
    now: Callable[[], float] = time.time
    """The time of day, for what people and other programs read."""
    clock: Callable[[], float] | None = None
    """What is measured and waited by; the default does not jump when someone sets the time of day."""
    draw: random.Random = field(default_factory=random.Random)
    tie_break: TieBreak | None = None
    """Chooses one of the best nodes; the default draws."""
    is_leading: Callable[[], bool] = lambda: True
    before_pod: Callable[[], None] = lambda: None
    """Called before each decision, to bring up to date what it depends on."""
    on_pod: Callable[[Pod | None, Pod | None], None] | None = None
    """Called with a pod before and after each change, while the cluster is still as it was."""
    guard: Guard | None = None
    decisions: Decisions | None = None
    """Where decisions are kept."""
    event_recorder: type[EventRecorder] = EventRecorder
    takes_pods: bool = True
    """Without it no pods are queued: the scheduler only follows the cluster, for other code that decides."""
    owns_process: bool = False
    """Whether the garbage collector may be tuned for the scheduler, which affects the whole process."""
    max_in_unschedulable: float = 300
    extender_max_response_bytes: int = MAX_RESPONSE_BYTES


class Scheduler:
    """`run` it to follow the cluster; it decides pods from `start` on, which a leader calls."""

    def __init__(
        self,
        config: KubeSchedulerConfiguration,
        api: ApiClient,
        events_api: ApiClient,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or Settings()
        shared = self.shared = _make_shared(api, settings)
        resolved = resolve_profiles(config, settings.registry)
        names = [each.scheduler_name for each in resolved]
        if PREEMPTION in config.gates:
            shared.nominations.rank = partial(group_ranked, shared.cluster)
        reporter = self._reporter = PodReporter(shared, _recorders(names, events_api, shared.now, settings))
        queue = self.queue = _queue(config, shared, reporter, settings.max_in_unschedulable)
        guard = settings.guard or Guard(shared.metrics)
        self._profiles = Profiles(shared, guard, queue, reporter)
        self._profiles.take(resolved)
        self._plugin_work = PluginWork(guard)
        taken = names if settings.takes_pods else ()
        followers = PodFollowers(guard)
        self.handlers = EventHandlers(shared, queue, taken, reporter.report_unreadable, followers)
        self.extenders = extenders_of(config.extenders, settings.extender_max_response_bytes)
        objects = WholeObjects(self.extenders, shared.changes)
        resources = RESOURCES if settings.takes_pods else FOLLOWED
        self.follower = self._follow(objects, resources, settings.on_pod)
        failures = FailureHandler(shared, queue, self.handlers.pending, reporter)
        on_freed = self.handlers.on_capacity_freed
        self.binder = PodBinder(shared, queue, reporter, failures, on_freed, self.extenders)
        calls = ExtenderCalls(self.extenders, objects, shared.metrics) if self.extenders else None
        tie_break = settings.tie_break or draw_ties(settings.draw)
        self.loop = SchedulingLoop(
            shared, queue, self._profiles, self.binder, failures, tie_break, calls, settings.before_pod
        )
        self._started, self._started_at = asyncio.Event(), math.inf
        self._watches_when_started = config.delay_cache_until_active
        self._core, self._owns_process = CoreTasks(), settings.owns_process
        self._use_plugins()

    def _follow(
        self,
        objects: WholeObjects,
        resources: Iterable[WatchedResource],
        on_pod: Callable[[Pod | None, Pod | None], None] | None,
    ) -> ClusterFollower:
        shared, on_event = self.shared, self.handlers.on_event

        def on_pod_event(kind: EventKind, old: Any, new: Any) -> None:
            assert on_pod is not None
            if shared.changes.is_deferring:  # it must see the cluster just before this change
                shared.changes.make(partial(on_pod_event, kind, old, new))
                return
            try:
                on_pod(old, new)
            finally:
                on_event(kind, old, new)

        kinds = KindWatches(
            shared.api,
            shared.cluster,
            on_event=on_event,
            on_served=self.queue.wake_all,
            on_unreadable=shared.metrics.unreadable,
            on_fault=self._reporter.report_unreadable_object,
        )
        watched = [
            objects.following(each, on_event if on_pod is None or each.kind != PODS.kind else on_pod_event)
            for each in resources
        ]
        return ClusterFollower(shared, watched, kinds)

    def _use_plugins(self) -> None:
        """Watch the kinds, run the background work and report pods for the plugins there are now."""
        plugins = self._profiles.plugins
        self.handlers.followers.take_plugins(plugins, self._known_pods)
        self.watch_kinds(watched_kinds(plugins))
        self._plugin_work.take_plugins(plugins)

    def _known_pods(self) -> Iterable[Pod]:
        """All pods as the API server has them: those that we only placed have no node yet."""
        return ({pod.uid: pod for pod in self.cluster.pods()} | self.shared.pending).values()

    def take_profiles(self, config: KubeSchedulerConfiguration, registry: Registry) -> None:
        """Use the same profiles with plugins as the registry has them now; those that did not change stay.

        Decisions under way finish with the old ones. If a new one cannot be built, nothing has changed.
        """
        self._profiles.take(resolve_profiles(config, registry))
        self._use_plugins()

    # What others may know of it

    @property
    def metrics(self) -> Metrics:
        return self.shared.metrics

    @property
    def cluster(self) -> Cluster:
        return self.shared.cluster

    @property
    def waiting(self) -> WaitingPods:
        """Pods that permit plugins hold back."""
        return self.shared.waiting

    @property
    def recorder(self) -> DecisionRecorder | None:
        """Records decisions; None if they are not kept."""
        return self.shared.recorder

    @property
    def recorders(self) -> Mapping[str, EventRecorder]:
        """The event recorder of each profile."""
        return self._reporter.recorders

    @property
    def profiles(self) -> dict[str, Profile]:
        return self._profiles.by_name

    @property
    def reflectors(self) -> list[Reflector]:
        return self.follower.reflectors

    @property
    def is_leading(self) -> bool:
        return self.shared.is_leading()

    @property
    def is_synced(self) -> bool:
        return self.follower.is_synced

    @property
    def not_ready(self) -> str | None:
        """Why pods are not decided yet, apart from another instance leading; None if nothing prevents it."""
        return self.follower.not_ready

    @property
    def is_deferring(self) -> bool:
        """Whether a decision waits for extenders, so that nothing may change under it."""
        return self.shared.changes.is_deferring

    @property
    def tasks_under_way(self) -> int:
        """How many tasks run in the background: bindings, evictions, status updates."""
        return len(self.shared.tasks)

    def check(self) -> str | None:
        """The part of the scheduler that has ended unexpectedly; for /livez."""
        return self._core.fault

    # Its life

    def watch_kinds(self, kinds: Iterable[type[CustomResource]]) -> None:
        """Watch these kinds for plugins from now on, and no others."""
        self.follower.kinds.watch(kinds)

    async def kinds_synced(self) -> None:
        """Wait until the objects of these kinds are known, or that the API server has no such kind."""
        await self.follower.kinds.sync()

    def start(self) -> None:
        """Decide pods from now on, as soon as the cluster is known as it is now."""
        self._started_at = asyncio.get_running_loop().time()
        self._started.set()
        for pod in self.handlers.unreadable.values():  # seen while another led, and reported them
            self._reporter.report_unreadable(pod)
        for kind, found in self.follower.kinds.unreadable:
            self._reporter.report_unreadable_object(kind, found)
        self._reporter.record_kept()

    async def run(self) -> None:
        """Run until cancelled."""
        if self._watches_when_started:
            await self._started.wait()
        async with aclosing(self), asyncio.TaskGroup() as of_plugins, self._core as core:
            self.follower.start(core)
            for name, recorder in self._reporter.recorders.items():
                core.start(f"events of {name}", recorder.run())
            self.run_plugins_in(of_plugins)
            core.start("queue flushes", self._tick_every_second())
            core.start("scheduling", self._schedule())

    async def stop(self, seconds: float = 10.0) -> None:
        """Take no new pods, finish the bindings under way and send the last events."""
        self._core.may_end = True
        self.queue.close()
        await self.shared.tasks.finish(seconds)
        for recorder in self._reporter.recorders.values():
            await recorder.drain(seconds)

    async def aclose(self) -> None:
        """Cancel what is still under way, and close the connections to extenders."""
        await self.shared.tasks.finish(0)
        for extender in self.extenders:
            await extender.close()

    async def _schedule(self) -> None:
        await self.follower.sync()
        if self._owns_process:
            settle_memory()
        await self._started.wait()
        await self.follower.catch_up(self._started_at)
        self.run_controllers()
        self.shared.tasks.start(
            self.shared.api.open_ahead(BIND_CONNECTIONS), "connections for the first pods"
        )
        log.log(0, "Starting to schedule", nodes=len(self.cluster.nodes), pods=len(self.handlers.pending))
        await self.loop.run()

    def flush_queue(self) -> None:
        """Attempt pods whose time has come, right after the clock was moved."""
        self.queue.flush_backoff()
        self.queue.flush_unschedulable()

    async def _tick_every_second(self) -> None:
        since_flush = 0.0
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            since_flush += 1
            if since_flush >= FLUSH_UNSCHEDULABLE_SECONDS:
                since_flush = 0.0
                self.queue.flush_unschedulable()
            self.tick()

    def tick(self) -> None:
        """Do what is due every second: attempt pods whose backoff is over, report, write, and count."""
        metrics, cluster = self.metrics, self.cluster
        self.queue.flush_backoff()
        self.report_gated()
        if self.shared.recorder is not None:
            decisions = self.shared.recorder.decisions
            decisions.flush()
            if decisions.journal is not None:
                metrics.journal(decisions.journal.is_failing, decisions.journal.lost)
        metrics.pending(self.queue.counts())
        metrics.settle()
        metrics.cache_sizes(
            nodes=len(cluster.nodes), pods=len(cluster.nodes.pods), assumed_pods=cluster.assumed_count
        )

    def report_gated(self) -> None:
        """Report members of pod groups that wait for the rest of their group."""
        if self._reporter.gated:
            self._reporter.report_gated(self.queue.gate_message)

    def run_plugins_in(self, tasks: asyncio.TaskGroup) -> None:
        """Run the background work of plugins in these tasks from now on."""
        self._plugin_work.run_in(tasks)

    def run_controllers(self) -> None:
        """We lead and know the cluster, which the controllers of plugins wait for."""
        self._plugin_work.run_controllers()


def _make_shared(api: ApiClient, settings: Settings) -> Shared:
    now, decisions = settings.now, settings.decisions
    clock = settings.clock or (steady_clock() if now is time.time else now)
    shared = Shared(
        api=api,
        metrics=settings.metrics,
        now=now,
        clock=clock,
        is_leading=settings.is_leading,
        recorder=None if decisions is None else DecisionRecorder(decisions, now, clock),
    )
    api.stored = shared.cluster.stored
    return shared


def _recorders(
    names: Iterable[str], api: ApiClient, now: Callable[[], float], settings: Settings
) -> dict[str, EventRecorder]:
    hostname = socket.gethostname()
    return {name: settings.event_recorder(api, name, f"{name}-{hostname}", now) for name in names}


def _queue(
    config: KubeSchedulerConfiguration, shared: Shared, reporter: PodReporter, max_in_unschedulable: float
) -> SchedulingQueue:
    return SchedulingQueue(
        clock=shared.clock,
        initial_backoff=config.pod_initial_backoff_seconds,
        max_backoff=config.pod_max_backoff_seconds,
        max_in_unschedulable=max_in_unschedulable,
        nominations=shared.nominations,
        recorder=shared.metrics if shared.metrics.are_read else None,
        on_fault=reporter.report_fault,
        on_gated=reporter.note_gated,
    )


def steady_clock() -> Callable[[], float]:
    """The time of day as it was, going on at its own pace whatever becomes of the system's clock."""
    started = time.time() - time.monotonic()
    return lambda: started + time.monotonic()


def settle_memory() -> None:
    """Has the cyclic garbage collector leave alone what stays, and look for cycles less often.

    Hardly any of our objects are in cycles; with Python's own settings a tenth of the CPU goes into looking.
    """
    if gc.get_freeze_count():  # of a scheduler before this one, if the configuration was read again
        gc.unfreeze()
        gc.collect()
    gc.freeze()  # a first start leaves some hundred dead objects, and finding them would take it 50 ms
    gc.set_threshold(20_000, 20, 50)
