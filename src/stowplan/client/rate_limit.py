"""A token bucket: so many requests a second, and so many at once after a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimit:
    """Waits are handed out in the order of asking. A rate of zero or less is no limit."""

    def __init__(
        self,
        qps: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.qps, self.burst = qps, max(burst, 1)
        self._clock, self._sleep = clock, sleep
        self._tokens, self._filled_at = float(self.burst), clock()

    async def wait(self) -> None:
        """Returns once the next request may be sent."""
        if self.qps <= 0:
            return
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.qps) - 1
        self._filled_at = now
        if self._tokens < 0:  # taken in advance, so that whoever asks next waits longer
            await self._sleep(-self._tokens / self.qps)
