"""The scheduler put together: profiles, queue, watches and the loop, on one API server."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from importlib import import_module

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.events import EventRecorder
from stowplan.client.extenders import MAX_RESPONSE_BYTES, extenders_of
from stowplan.client.resources import FOLLOWED, RESOURCES
from stowplan.client.watch import Reflector
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle.preempt import preempt
from stowplan.framework.answers import await_answer, describe, stack_of
from stowplan.framework.handle import Handle
from stowplan.framework.hints import Happening, QueueingHints
from stowplan.framework.nominations import Nominations
from stowplan.framework.plugin import Plugin, overrides
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import ResolvedProfile, resolve_profiles, watched_kinds
from stowplan.journal import Decisions
from stowplan.metrics import Metrics
from stowplan.queue.listeners import WILDCARD
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.event_handlers import EventHandlers
from stowplan.scheduler.extenders import ExtenderCalls, WholeObjects
from stowplan.scheduler.failure import report_fault, report_unreadable
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.host import Host
from stowplan.scheduler.keeping import Keeping
from stowplan.scheduler.kind_watches import KindWatches
from stowplan.scheduler.loop import SchedulingLoop
from stowplan.scheduler.measuring import CycleObserver
from stowplan.scheduler.stillness import Stillness
from stowplan.scheduler.waiting import WaitingPods

FLUSH_UNSCHEDULABLE_SECONDS = 30.0
RESTART_SECONDS = 5.0
"""Before background work of a plugin that failed is started over."""
RUN_END_SECONDS = 2.0
"""How long we wait for background work to end that was cancelled: a plugin may ignore that."""
BEHIND_SECONDS = 10.0
"""How often the log says what a new leader waits for."""


class Scheduler:
    """`run` it to follow the cluster; it decides pods from `start` on, which a leader calls."""

    def __init__(
        self,
        config: KubeSchedulerConfiguration,
        api: ApiClient,
        events_api: ApiClient,
        *,
        registry: Registry | None = None,
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
        draw: random.Random | None = None,
        is_leading: Callable[[], bool] = lambda: True,
        max_in_unschedulable: float = 300,
        before_pod: Callable[[], None] = lambda: None,
        guard: Guard | None = None,
        decisions: Decisions | None = None,
        takes_pods: bool = True,
        extender_max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Without `takes_pods` nobody's pods are queued: it follows the cluster for others who decide.

        `now` tells the time of day, for what people and other programs read. `clock` is what we measure and
        wait by: it starts as the time of day, but does not jump when someone sets that.
        """
        clock = clock or (steady_clock() if now is time.time else now)
        self.metrics = metrics or Metrics()
        self._guard = guard or Guard(self.metrics)
        self.cluster, nominations, waiting = Cluster(), Nominations(), WaitingPods()
        stillness = Stillness()
        self.extenders = extenders_of(config.extenders, extender_max_response_bytes)
        self._objects = WholeObjects(self.extenders, stillness)
        self._extended = (
            ExtenderCalls(self.extenders, self._objects, self.metrics) if self.extenders else None
        )
        api.stored = self.cluster.stored
        self.profiles: dict[str, Profile] = {}
        self._observers: dict[str, CycleObserver] = {}
        for resolved in resolve_profiles(config, registry or Registry.installed()):
            handle = Handle(
                self.cluster,
                now=now,
                api=api,
                activate=lambda pods: self.queue.activate(pods),
                nominations=nominations,
                metrics=self.metrics.page,
                record_event=partial(self._record, resolved.scheduler_name),
                waiting_pods=waiting,
                record_device_wait=self.metrics.binding_conditions_waited,
            )
            observer = CycleObserver(resolved, self.metrics, self._guard)
            self._observers[resolved.scheduler_name] = observer
            profile = self.profiles[resolved.scheduler_name] = self._built(resolved, handle, observer)
            handle.preempt = partial(preempt, profile)
        self.queue = SchedulingQueue(
            {name: QueueingHints(profile) for name, profile in self.profiles.items()},
            self.profiles,
            clock=clock,
            initial_backoff=config.pod_initial_backoff_seconds,
            max_backoff=config.pod_max_backoff_seconds,
            max_in_unschedulable=max_in_unschedulable,
            nominations=nominations,
            recorder=self.metrics,
            on_fault=lambda pod, error: report_fault(self.host, pod, error),
        )
        taken = self.profiles.keys() if takes_pods else ()
        self.handlers = EventHandlers(
            self.cluster,
            self.queue,
            waiting,
            taken,
            self.metrics,
            stillness,
            on_unreadable=lambda pod: report_unreadable(self.host, pod),
        )
        hostname = socket.gethostname()
        self.host = Host(
            cluster=self.cluster,
            queue=self.queue,
            waiting=waiting,
            handlers=self.handlers,
            nominations=nominations,
            profiles=self.profiles,
            observers=self._observers,
            recorders={
                name: EventRecorder(events_api, name, f"{name}-{hostname}", now) for name in self.profiles
            },
            api=api,
            metrics=self.metrics,
            now=now,
            clock=clock,
            is_leading=is_leading,
            before_pod=before_pod,
            stillness=stillness,
            extended=self._extended,
            keeping=None if decisions is None else Keeping(decisions, now, clock),
        )
        resources = RESOURCES if takes_pods else FOLLOWED
        followed = [self._objects.following(resource, self.handlers.on_event) for resource in resources]
        self.reflectors = [
            Reflector(api, resource, on_event=on_event, on_unreadable=self.metrics.unreadable)
            for resource, on_event in followed
        ]
        self._kinds = KindWatches(
            api,
            self.cluster,
            on_event=self.handlers.on_event,
            on_served=lambda: self.queue.on_happening(Happening(WILDCARD, None, None)),
            on_unreadable=self.metrics.unreadable,
        )
        self.watch_kinds(watched_kinds(self._plugins()))
        self._api, self.is_synced = api, False
        self._behind: set[str] = set()
        """Kinds that may have changed before we began to lead, in ways that we do not know yet."""
        self._started, self._started_at = asyncio.Event(), math.inf
        self._watches_when_started = config.delay_cache_until_active
        self.loop = SchedulingLoop(self.host, draw or random.Random())
        self._core = CoreTasks()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[tuple[Plugin, str], asyncio.Task[None]] = {}
        """The background work of plugins: their own, and their controllers by name."""
        self._active = asyncio.Event()

    def take_profiles(self, config: KubeSchedulerConfiguration, registry: Registry) -> None:
        """The same profiles with plugins as the registry has them now; those that did not change stay.

        Decisions under way finish with the old ones. If a new one cannot be built, nothing has changed.
        """
        fresh, observers = {}, {}
        for resolved in resolve_profiles(config, registry):
            old = self.profiles[resolved.scheduler_name]
            observer = CycleObserver(resolved, self.metrics, self._guard)
            observers[resolved.scheduler_name] = observer
            fresh[resolved.scheduler_name] = self._built(resolved, old.handle, observer, old.plugins)
        hints = {name: QueueingHints(profile) for name, profile in fresh.items()}
        self.profiles.update(fresh)
        self._observers.update(observers)
        for profile in fresh.values():
            profile.handle.preempt = partial(preempt, profile)
        self.loop.take_profiles()
        self.watch_kinds(watched_kinds(self._plugins()))
        self._run_plugins()
        self.queue.take_profiles(hints, self.profiles)

    def _built(
        self,
        resolved: ResolvedProfile,
        handle: Handle,
        observer: CycleObserver,
        kept: Mapping[str, Plugin] | None = None,
    ) -> Profile:
        profile = Profile(resolved, handle, kept, observer)
        self.metrics.profile_started(resolved.scheduler_name, profile.points)
        return profile

    def check(self) -> str | None:
        """Which part of the scheduler has ended that must not; for /livez."""
        return self._core.fault

    @property
    def is_still(self) -> bool:
        """Whether a decision waits for extenders, so that nothing may change under it."""
        return self.host.stillness.is_kept

    def _plugins(self) -> dict[Plugin, str]:
        """All plugins of all profiles, with their names."""
        return {each: name for profile in self.profiles.values() for name, each in profile.plugins.items()}

    def _record(self, name: str, item: Pod | Object, kind: str, reason: str, note: str) -> None:
        if self.host.is_leading():
            self.host.recorders[name].record(item, kind, reason, "Scheduling", note)

    def watch_kinds(self, kinds: Iterable[type[CustomResource]]) -> None:
        """From now on these kinds are watched for plugins, and no others."""
        self._kinds.watch(kinds)

    async def kinds_synced(self) -> None:
        """Waits until the objects of these kinds are known, or that the API server has no such kind."""
        await self._kinds.synced()

    def start(self) -> None:
        """From now on pods are decided, as soon as the cluster is known as it is now."""
        self._started_at = asyncio.get_running_loop().time()
        self._started.set()
        for pod in self.handlers.unreadable.values():  # seen while another led, and spoke of them
            report_unreadable(self.host, pod)

    @property
    def not_ready(self) -> str | None:
        """Why pods are not decided yet, besides that another leads; None if nothing is in the way."""
        if not self.is_synced:
            return f"handlers are not fully synchronized: waiting for {', '.join(self._unsynced())}"
        if self._behind:
            return f"caches are not known to be current: waiting for {', '.join(sorted(self._behind))}"
        return None

    def _unsynced(self) -> list[str]:
        watched = (*self.reflectors, *self._kinds.reflectors)
        return [each.resource.name for each in watched if not each.synced.is_set()]

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        if self._watches_when_started:
            await self._started.wait()
        async with aclosing(self), asyncio.TaskGroup() as of_plugins, self._core as core:
            for reflector in self.reflectors:
                core.start(f"watch of {reflector.resource.name}", reflector.run())
            core.start("watches of plugins' kinds", self._kinds.run())
            for name, recorder in self.host.recorders.items():
                core.start(f"events of {name}", recorder.run())
            self.run_plugins_in(of_plugins)
            core.start("queue flushes", self._tick())
            core.start("scheduling", self._schedule())

    async def stop(self, seconds: float = 10.0) -> None:
        """No new pods; the bindings under way are finished and the last events sent."""
        self._core.may_end = True
        self.queue.close()
        await self.host.finish(seconds)
        for recorder in self.host.recorders.values():
            await recorder.drain(seconds)

    async def aclose(self) -> None:
        """Cuts off what is still under way, and ends the connections to extenders."""
        await self.host.finish(0)
        for extender in self.extenders:
            await extender.close()

    async def _schedule(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        await self.kinds_synced()
        self.is_synced = True
        settle_memory()
        await self._started.wait()
        await self._catch_up()
        self.run_controllers()
        log.log(0, "Starting to schedule", nodes=len(self.cluster.nodes), pods=len(self.handlers.pending))
        await self.loop.run()

    async def _catch_up(self) -> None:
        """Waits until all is known that was there when we began to lead.

        The leader before us may have placed pods until a moment ago. A watch of ours that stalled, or an API
        server that is behind, would not have shown them, and their room would be given away twice.
        """
        watched = (*self.reflectors, *self._kinds.reflectors)
        behind = [each for each in watched if not each.is_listed_since(self._started_at)]
        if not behind:
            return
        log.log(0, "Bringing caches up to date before scheduling")
        self._api.drop_idle()
        async with asyncio.TaskGroup() as tasks:
            reminder = tasks.create_task(self._say_what_is_behind())
            await asyncio.gather(*(self._catch_up_with(each) for each in behind))
            reminder.cancel()

    async def _catch_up_with(self, reflector: Reflector) -> None:
        name = reflector.resource.name
        self._behind.add(name)
        await reflector.catch_up(self._started_at)
        self._behind.discard(name)

    async def _say_what_is_behind(self) -> None:
        while True:
            await asyncio.sleep(BEHIND_SECONDS)
            log.warn(
                "Not scheduling yet: caches are not known to be current", waitingFor=sorted(self._behind)
            )

    async def _tick(self) -> None:
        """What is due every second: backoffs that are over, and now and then pods that waited too long."""
        since_flush = 0.0
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            self.queue.flush_backoff()
            if self.host.keeping is not None:
                decisions = self.host.keeping.decisions
                decisions.settle()
                if decisions.journal is not None:
                    self.metrics.journal(decisions.journal.is_failing, decisions.journal.lost)
            since_flush += 1
            if since_flush >= FLUSH_UNSCHEDULABLE_SECONDS:
                since_flush = 0.0
                self.queue.flush_unschedulable()
            self.metrics.pending(self.queue.counts())
            self.metrics.settle()
            self.metrics.cache_sizes(
                nodes=len(self.cluster.nodes),
                pods=len(self.cluster.nodes.pods),
                assumed_pods=self.cluster.assumed_count,
            )

    def run_plugins_in(self, tasks: asyncio.TaskGroup) -> None:
        """The background work of plugins belongs to these tasks from now on."""
        self._tasks = tasks
        self._run_plugins()

    def run_controllers(self) -> None:
        """From now on we lead and know the cluster, which the controllers of plugins wait for."""
        self._active.set()

    def _run_plugins(self) -> None:
        """Starts the background work of new plugins, and ends that of plugins that are no more."""
        wanted: dict[tuple[Plugin, str], Callable[[], object]] = {}
        controllers: set[tuple[object, ...]] = set()
        for plugin in self._plugins():
            if overrides(plugin, "run"):
                wanted[plugin, ""] = partial(self._guard.run, plugin)
            for reference in plugin.controllers:
                # Profiles that have the plugin for the same kinds share its controllers.
                if (reference, plugin.watches) not in controllers:
                    controllers.add((reference, plugin.watches))
                    wanted[plugin, reference] = partial(self._control, plugin, reference)
        for gone in self._running.keys() - wanted.keys():
            self._running.pop(gone).cancel()
        for key, run in wanted.items():
            if self._tasks is not None and key not in self._running:
                name = key[1] or f"plugin {key[0].name}"
                self._running[key] = self._tasks.create_task(kept_running(name, run), name=name)

    async def _control(self, plugin: Plugin, reference: str) -> None:
        """Runs a plugin's controller, once we lead and know the cluster."""
        await self._active.wait()
        module, _, attribute = reference.partition(":")
        await getattr(import_module(module), attribute)(plugin.args, plugin.handle).run()


async def kept_running(name: str, run: Callable[[], object]) -> None:
    """A plugin's own work in the background; it is started over if it fails.

    It has a task of its own, which it may cancel, or go on in although we cancel it.
    """
    while True:
        work = asyncio.create_task(await_answer(run), name=name)
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            if not (await asyncio.wait((work,), timeout=RUN_END_SECONDS))[0]:
                log.error("Background work of a plugin does not end", None, work=name)
            raise
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is None:
            return
        log.error(
            "Background work of a plugin failed; starting it over",
            describe(error),
            work=name,
            stacktrace=stack_of(error),
        )
        await asyncio.sleep(RESTART_SECONDS)


def steady_clock() -> Callable[[], float]:
    """The time of day as it was, going on at its own pace whatever becomes of the system's clock."""
    started = time.time() - time.monotonic()
    return lambda: started + time.monotonic()


def settle_memory() -> None:
    """Has the cyclic garbage collector leave alone what stays, and look for cycles less often.

    Hardly any of our objects are in cycles; with Python's own settings a tenth of the CPU goes into looking.
    """
    gc.unfreeze()  # of a scheduler before this one, if the configuration was read again
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
