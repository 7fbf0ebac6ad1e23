"""The scheduler put together: profiles, queue, watches and the loop, on one API server."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from collections.abc import Callable
from functools import partial

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.events import EventRecorder
from stowplan.client.resources import RESOURCES
from stowplan.client.watch import Reflector
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle.preempt import preempt
from stowplan.framework.handle import Handle
from stowplan.framework.hints import QueueingHints
from stowplan.framework.nominations import Nominations
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.metrics import Metrics
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.event_handlers import EventHandlers
from stowplan.scheduler.failure import report_fault
from stowplan.scheduler.host import Host
from stowplan.scheduler.loop import SchedulingLoop
from stowplan.scheduler.waiting import WaitingPods

FLUSH_UNSCHEDULABLE_SECONDS = 30.0


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
        draw: random.Random | None = None,
        is_leading: Callable[[], bool] = lambda: True,
        max_in_unschedulable: float = 300,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.cluster, nominations, waiting = Cluster(), Nominations(), WaitingPods()
        api.stored = self.cluster.stored
        self.profiles = self._profiles(
            config, registry or Registry.installed(), api, nominations, waiting, now
        )
        self.queue = SchedulingQueue(
            {name: QueueingHints(profile) for name, profile in self.profiles.items()},
            self.profiles,
            clock=now,
            initial_backoff=config.pod_initial_backoff_seconds,
            max_backoff=config.pod_max_backoff_seconds,
            max_in_unschedulable=max_in_unschedulable,
            nominations=nominations,
            recorder=self.metrics,
            on_fault=lambda pod, error: report_fault(self.host, pod, error),
        )
        self.handlers = EventHandlers(self.cluster, self.queue, waiting, self.profiles.keys(), self.metrics)
        hostname = socket.gethostname()
        self.host = Host(
            cluster=self.cluster,
            queue=self.queue,
            waiting=waiting,
            handlers=self.handlers,
            nominations=nominations,
            profiles=self.profiles,
            recorders={
                name: EventRecorder(events_api, name, f"{name}-{hostname}", now) for name in self.profiles
            },
            api=api,
            metrics=self.metrics,
            now=now,
            is_leading=is_leading,
        )
        self.reflectors = [
            Reflector(api, resource, on_event=self.handlers.on_event) for resource in RESOURCES
        ]
        self.is_synced = False
        self._started = asyncio.Event()
        self._watches_when_started = config.delay_cache_until_active
        self.loop = SchedulingLoop(self.host, draw or random.Random())

    def _profiles(
        self,
        config: KubeSchedulerConfiguration,
        registry: Registry,
        api: ApiClient,
        nominations: Nominations,
        waiting: WaitingPods,
        now: Callable[[], float],
    ) -> dict[str, Profile]:
        found: dict[str, Profile] = {}
        for resolved in resolve_profiles(config, registry):
            handle = Handle(
                self.cluster,
                now=now,
                api=api,
                activate=lambda pods: self.queue.activate(pods),
                nominations=nominations,
                metrics=self.metrics.page,
                record_event=partial(self._record, resolved.scheduler_name),
                waiting_pods=waiting,
            )
            profile = found[resolved.scheduler_name] = Profile(resolved, handle)
            handle.preempt = partial(preempt, profile)
            self.metrics.profile_started(resolved.scheduler_name, profile.points)
        return found

    def _record(self, name: str, pod: Pod, kind: str, reason: str, note: str) -> None:
        self.host.recorders[name].record(pod, kind, reason, "Scheduling", note)

    def start(self) -> None:
        """From now on pods are decided, as soon as the cluster is known."""
        self._started.set()

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        if self._watches_when_started:
            await self._started.wait()
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run(), name=f"watch of {reflector.resource.name}")
            for name, recorder in self.host.recorders.items():
                tasks.create_task(recorder.run(), name=f"events of {name}")
            for profile in self.profiles.values():
                for name, plugin in profile.plugins.items():
                    if hasattr(plugin, "run"):
                        tasks.create_task(self._kept_running(name, plugin.run), name=f"plugin {name}")
            tasks.create_task(self._tick(), name="queue flushes")
            tasks.create_task(self._schedule(), name="scheduling")

    async def stop(self, seconds: float = 10.0) -> None:
        """No new pods; the bindings under way are finished and the last events sent."""
        self.queue.close()
        await self.host.finish(seconds)
        for recorder in self.host.recorders.values():
            await recorder.drain(seconds)

    async def _schedule(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        self.is_synced = True
        _settle_memory()
        await self._started.wait()
        log.log(0, "Starting to schedule", nodes=len(self.cluster.nodes), pods=len(self.handlers.pending))
        await self.loop.run()

    async def _tick(self) -> None:
        """What is due every second: backoffs that are over, and now and then pods that waited too long."""
        since_flush = 0.0
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            self.queue.flush_backoff()
            since_flush += 1
            if since_flush >= FLUSH_UNSCHEDULABLE_SECONDS:
                since_flush = 0.0
                self.queue.flush_unschedulable()
            self.metrics.pending(self.queue.counts())
            self.metrics.cache_sizes(
                nodes=len(self.cluster.nodes),
                pods=len(self.cluster.nodes.pods),
                assumed_pods=self.cluster.assumed_count,
            )

    async def _kept_running(self, name: str, run: Callable[[], object]) -> None:
        """A plugin's own work in the background; it is started over if it fails."""
        while True:
            try:
                await run()  # type: ignore[misc]
                return
            except Exception as error:
                log.error("Background work of a plugin failed; starting it over", error, plugin=name)
                await asyncio.sleep(5)


def _settle_memory() -> None:
    """Has the cyclic garbage collector leave alone what stays, and look for cycles less often.

    Hardly any of our objects are in cycles; with Python's own settings a tenth of the CPU goes into looking.
    """
    gc.unfreeze()  # of a scheduler before this one, if the configuration was read again
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
