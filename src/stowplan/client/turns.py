"""Who may send a request now: first come, first served, and more at once only where the wait gets long.

A connection costs both sides milliseconds of handshake, and an API server that is quick needs few of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic

FIRST, MOST = 16, 64
LONG_SECONDS = 0.05


class Turns:
    def __init__(self, first: int = FIRST, most: int = MOST, long_seconds: float = LONG_SECONDS) -> None:
        self.at_once = first
        """How many may be taken at the same time, for now."""
        self._first, self._most, self._long_seconds = first, most, long_seconds
        self._taken = 0
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
                if monotonic() - since > self._long_seconds:
                    self.at_once = min(self.at_once + 1, self._most)
        if not self._taken:
            self.at_once = self._first
