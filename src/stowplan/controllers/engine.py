"""What every controller has: keys that wait to be looked at, one at a time, and again after a failure."""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, ClassVar

from stowplan import log
from stowplan.client.errors import NAMESPACE_TERMINATING, ApiError, Conflict, NotFound
from stowplan.controllers.clock import Clock
from stowplan.controllers.kinds import K, Kind, Known, reference_to
from stowplan.controllers.stores import Store, Stores

FIRST_BACKOFF, LONGEST_BACKOFF = 0.02, 30.0
TURN_SECONDS = 0.005
"""How long keys are handed out without a break for other tasks."""
MAX_TURNS_PER_SECOND = 200
"""A key that is handed out more often than this waits for the next second."""


class WorkQueue:
    """Each key once, however often it was added; a key under work is handed out again when it is done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[str] = deque()
        self._wanted: set[str] = set()
        self._working: set[str] = set()
        self._failures: dict[str, int] = {}
        self._timed: dict[str, float] = {}
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._break_at = 0.0
        self._turns: dict[str, int] = {}
        """How often each key was handed out in the second that ends at `_turns_until`."""
        self._turns_until = 0.0

    def add(self, key: str) -> None:
        if key not in self._wanted:
            self._wanted.add(key)
            if key not in self._working:
                self._put(key)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._working

    def add_after(self, key: str, seconds: float) -> None:
        """By the cluster's clock; of several times for a key the first counts."""
        due = self._clock.now() + seconds
        if self._timed.get(key, due + 1) <= due:
            return
        self._timed[key] = due

        def ring() -> None:
            if self._timed.get(key) == due:
                del self._timed[key]
                self.add(key)

        self._clock.call_after(seconds, ring)

    async def take(self) -> str:
        # A reconcile that never has to wait, and adds keys again, must not keep other tasks from running.
        if self._loop.time() > self._break_at:
            await asyncio.sleep(0)
            self._break_at = self._loop.time() + TURN_SECONDS
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        key = self._waiting.popleft()
        self._turns[key] = self._turns.get(key, 0) + 1
        self._wanted.discard(key)
        self._working.add(key)
        return key

    def done(self, key: str, *, failed: bool = False) -> None:
        self._working.discard(key)
        if key in self._wanted:
            self._put(key)
        if not failed:
            self._failures.pop(key, None)
            return
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 20), LONGEST_BACKOFF)
        self._clock.retry_after(wait, lambda: self.add(key))

    def _put(self, key: str) -> None:
        now = self._loop.time()
        if now >= self._turns_until:
            self._turns.clear()
            self._turns_until = now + 1.0
        if self._turns.get(key, 0) >= MAX_TURNS_PER_SECOND:
            self._loop.call_at(self._turns_until, self._put, key)
            return
        self._waiting.append(key)
        self._news.set()


class Controller(ABC):
    """`reconcile` makes one object, and what belongs to it, as it should be; it sees all it wrote before."""

    workers: ClassVar[int] = 4
    component: ClassVar[str] = ""
    """The `source.component` of its events."""

    def __init__(self, stores: Stores) -> None:
        self.stores, self.clock = stores, stores.clock
        self.queue = WorkQueue(stores.clock)
        self._used: dict[str, Store[Any]] = {}

    def store(self, kind: Kind[K]) -> Store[K]:
        """Watch a kind that must be synced before the controller starts."""
        found = self.stores.of(kind)
        self._used[kind.path] = found
        return found

    def record(self, kind: Kind[Any], item: Known, reason: str, message: str, level: str = "Normal") -> None:
        """An event of an object; `level` is Normal or Warning."""
        self.stores.events.record(self.component, reference_to(kind, item), level, reason, message)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do before a timer or a change."""
        return self.queue.is_idle

    @abstractmethod
    async def reconcile(self, key: str) -> None: ...

    async def run(self) -> None:
        for store in self._used.values():
            await store.synced()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._work())

    async def settle(self) -> None:
        for store in self._used.values():
            await store.settled()

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            failed = True
            try:
                await self.settle()
                await self.reconcile(key)
                failed = False
            except (Conflict, NotFound) as error:  # others were faster; a watch is about to say so
                log.log(4, "Retrying", controller=type(self).__name__, key=key, err=error.message)
            except ApiError as error:
                if NAMESPACE_TERMINATING in error.causes:
                    failed = False  # the namespace goes, and all that is in it
                    continue
                log.warn(
                    "Write failed; retrying",
                    controller=type(self).__name__,
                    key=key,
                    err=error.message,
                )
            except Exception as error:  # affects this object only; the others continue
                log.error(
                    "Controller failed; retrying",
                    error,
                    controller=type(self).__name__,
                    key=key,
                    stacktrace="".join(traceback.format_exception(error)),
                )
            finally:
                self.queue.done(key, failed=failed)
