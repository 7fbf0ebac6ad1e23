"""A token bucket: so many requests a second, and so many at once after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimit:
    """Waits are handed out in the order of asking. A rate of zero or less is no limit."""

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.qps, self.burst = qps, max(burst, 1)
        self._clock = clock
        self._tokens, self._filled_at = float(self.burst), clock()

    def take(self) -> float:
        """How many seconds to wait before the next request is sent."""
        if self.qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.qps) - 1
        self._filled_at = now
        return max(-self._tokens / self.qps, 0.0)  # taken in advance, so that whoever asks next waits longer
