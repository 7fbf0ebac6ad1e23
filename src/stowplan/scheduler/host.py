"""What the parts of the running scheduler share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from stowplan import log
from stowplan.client.api import ApiClient
from stowplan.client.events import EventRecorder
from stowplan.cluster import Cluster
from stowplan.framework.answers import describe, stack_of
from stowplan.framework.nominations import Nominations
from stowplan.framework.profile import Profile
from stowplan.metrics import Metrics
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.event_handlers import EventHandlers
from stowplan.scheduler.extenders import ExtenderCalls
from stowplan.scheduler.keeping import Keeping
from stowplan.scheduler.measuring import CycleObserver
from stowplan.scheduler.stillness import Stillness
from stowplan.scheduler.waiting import WaitingPods


class Host:
    """One event loop, no locks: state changes between two awaits, never across one."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        handlers: EventHandlers,
        nominations: Nominations,
        profiles: Mapping[str, Profile],
        observers: Mapping[str, CycleObserver],
        recorders: Mapping[str, EventRecorder],
        api: ApiClient,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
        is_leading: Callable[[], bool],
        before_pod: Callable[[], None],
        stillness: Stillness,
        extended: ExtenderCalls | None,
        keeping: Keeping | None = None,
    ) -> None:
        self.cluster, self.queue, self.waiting, self.handlers = cluster, queue, waiting, handlers
        self.nominations, self.profiles, self.recorders = nominations, profiles, recorders
        self.observers = observers
        """Those of the profiles, by the same names."""
        self.api, self.metrics, self.is_leading = api, metrics, is_leading
        self.now, self.clock = now, clock
        """The time of day to write down, and the one to measure by, which nobody can set."""
        self.before_pod = before_pod
        """Called before each pod is decided: what must be up to date by then is brought up to date."""
        self.stillness, self.extended = stillness, extended
        """How pods are decided where extenders have a say, and what is kept still meanwhile."""
        self.keeping = keeping
        """Who keeps decisions, if someone does."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False
        """Whether work under way may be cut off: the process, or this configuration, is at its end."""

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Starts work that nobody waits for; if it fails, that is logged."""
        task = asyncio.create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    @property
    def under_way(self) -> int:
        """How much work goes on in the background: bindings, evictions, status updates."""
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self.is_ending:
                log.error("Background work was cancelled", None, work=task.get_name())
        elif (error := task.exception()) is not None:
            log.error(
                "Background work failed", describe(error), work=task.get_name(), stacktrace=stack_of(error)
            )

    async def finish(self, seconds: float) -> None:
        """Waits for the work under way, but not longer than this."""
        if self._tasks and seconds > 0:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        self.is_ending = True
        for task in tuple(self._tasks):
            task.cancel()
