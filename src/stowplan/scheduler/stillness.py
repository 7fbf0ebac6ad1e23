"""While a decision waits for extenders nothing changes under it: what happens meanwhile is taken in after."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stowplan import log


class Stillness:
    """Whoever changes the cluster or the nominations from outside a decision does so through `after`."""

    def __init__(self) -> None:
        self.is_kept = False
        self._later: deque[Callable[[], None]] = deque()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Changes wait until the end of it, and then come in their order."""
        self.is_kept = True
        try:
            yield
        finally:
            self.is_kept = False
            while self._later:
                self._do(self._later.popleft())

    def after(self, change: Callable[[], None]) -> None:
        """Now, unless a decision must not notice."""
        if self.is_kept:
            self._later.append(change)
        else:
            change()

    def _do(self, change: Callable[[], None]) -> None:
        try:
            change()
        except Exception as error:  # tried again it would fail again, and those after it matter too
            log.error("A change that waited for a decision failed; going on with the next", error)
