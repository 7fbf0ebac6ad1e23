"""How much may be supposed at once: what a cluster could never hold is refused before it is made."""

from __future__ import annotations

from stowplan.errors import InputError

MOST = 100_000
"""Pods and nodes that one question may add: more than any cluster has."""


class Room:
    def __init__(self, most: int = MOST) -> None:
        self._most, self._taken = most, 0

    def take(self, number: int, what: str) -> None:
        """Raises InputError, in the name of `what`, if there is no room for so many more."""
        self._taken += number
        if self._taken > self._most:
            elsewhere = f" here, {MOST} by `stowplan whatif`" if self._most < MOST else ""
            raise InputError(
                f"{number} more would make {self._taken} pods and nodes; "
                f"not more than {self._most} can be added at once{elsewhere}",
                what=what,
            )
