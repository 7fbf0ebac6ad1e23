"""The cluster's clock, which may run faster or slower than real time, or be stopped.

Kubelets and controllers share one Clock: what one writes down as a time, the other compares with. It is made
inside a running event loop and follows that loop's time.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count

MIN_JUMP = 0.05
SOON_SECONDS = 0.5
"""When time is moved, retries that are due sooner than this are waited for."""


class Clock:
    """`speed` is the simulated seconds per real second. It can be changed at any time; 0 stops the clock."""

    def __init__(self, speed: float = 1.0, *, start: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._speed, self._from, self._at = speed, self._loop.time(), time.time() if start is None else start
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self.retries_soon = 0
        """Retries that come within SOON_SECONDS of real time."""
        self.on_speed: list[Callable[[], None]] = []
        """Called when the speed changes."""

    def now(self) -> float:
        """Seconds since 1970."""
        return self._at + (self._loop.time() - self._from) * self._speed

    def stamp(self) -> str:
        """Now, as the API writes times."""
        return wire_time(self.now())

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._at, self._from, self._speed = self.now(), self._loop.time(), speed
        self._set_timer()
        for call in self.on_speed:
            call()

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls once so much time has passed here. It cannot be taken back."""
        heapq.heappush(self._due, (self.now() + max(seconds, 0.0), next(self._numbers), call))
        if self._due[0][2] is call:
            self._set_timer()

    def jump(self, seconds: float) -> None:
        """Move on to the next thing that is due, at most by `seconds`, and do what is due by then.

        Things that are due within MIN_JUMP of each other are done in one jump.
        """
        now = self.now()
        if self._due:
            seconds = min(seconds, max(self._due[0][0] - now, MIN_JUMP))
        self._at, self._from = now + seconds, self._loop.time()
        self._ring()

    def retry_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after this much real time: failed work is retried even if the clock is stopped."""
        is_soon = seconds <= SOON_SECONDS
        self.retries_soon += is_soon

        def retry() -> None:
            self.retries_soon -= is_soon
            call()

        self._loop.call_later(seconds, retry)

    async def sleep(self, seconds: float) -> None:
        over: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        self.call_after(seconds, end)
        await over

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due and self._speed > 0:
            wait = (self._due[0][0] - self.now()) / self._speed
            self._timer = self._loop.call_later(max(wait, 0.0), self._ring)

    def _ring(self) -> None:
        now = self.now() + 1e-6  # a timer may come a rounding error early
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        self._set_timer()


def wire_time(seconds: float) -> str:
    return _format_time(math.floor(seconds))


@lru_cache(maxsize=64)  # much is written in one second
def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
