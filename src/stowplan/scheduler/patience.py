"""When to try again what the API server refused or did not answer."""

from __future__ import annotations

import asyncio

from stowplan.client.errors import ApiError

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
MOST_REFUSALS = 5
"""A server that has just started refuses, for lack of roles, what it allows a moment later."""


class Patience:
    """For one piece of work: pauses that grow."""

    def __init__(self) -> None:
        self._next_pause, self._refusals = FIRST_PAUSE, 0

    async def pause(self, error: ApiError) -> bool:
        """Waits before the next try; False if there is no point in one."""
        self._refusals += not error.may_pass
        if self._refusals > MOST_REFUSALS:
            return False
        await asyncio.sleep(self._next_pause)
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        return True
