"""Who may send a request now: first come, first served, and more at once only where the wait gets long.

A connection costs both sides milliseconds of handshake. A quick API server needs few of them, and one that is
busy has no use for more: they help where it waits for its storage. So there is one more now and then, while
waits are long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic

FIRST, MOST = 16, 64
LONG_SECONDS = 0.1
"""So long a wait is, and so long it takes until there is one more again."""


class Turns:
    def __init__(self, first: int = FIRST, most: int = MOST, long_seconds: float = LONG_SECONDS) -> None:
        self.at_once = first
        """How many may be taken at the same time, for now."""
        self._first, self._most, self._long_seconds = first, most, long_seconds
        self._taken, self._grown_at = 0, 0.0
        self._line: deque[tuple[asyncio.Future[None], float]] = deque()

    async def take(self) -> None:
        if self._taken < self.at_once:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((turn, monotonic()))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come just now
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        while self._line and self._taken < self.at_once:
            turn, since = self._line.popleft()
            if not turn.cancelled():
                self._taken += 1
                turn.set_result(None)
                self._look_at(since)
        if not self._taken:
            self.at_once = self._first

    def _look_at(self, since: float) -> None:
        now = monotonic()
        if now - max(since, self._grown_at) > self._long_seconds and self.at_once < self._most:
            self.at_once, self._grown_at = self.at_once + 1, now
