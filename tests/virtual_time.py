"""An event loop whose time jumps to the next timer instead of passing: hours of waiting cost nothing."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For code that waits by timers alone; whatever comes from outside the loop would be overtaken."""

    elapsed = 0.0
    _scheduled: list[asyncio.TimerHandle]  # private to asyncio, which offers no clock to replace
    _ready: deque[asyncio.Handle]

    def time(self) -> float:
        return self.elapsed

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if timers and not self._ready:
            self.elapsed = max(self.elapsed, min(timers))
        super()._run_once()


def in_virtual_time(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs an async test in a loop of its own, from second 0 on."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **named))

    return run


def elapsed() -> float:
    """Virtual seconds since the test began."""
    return asyncio.get_running_loop().time()
