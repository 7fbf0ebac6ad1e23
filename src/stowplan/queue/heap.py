"""A heap of pods from which any can be taken out, each in it at most once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from stowplan.queue.queued_pod import QueuedPod

Entry = tuple[Any, int, QueuedPod]
SLACK = 100
"""So many entries of pods that are gone are never worth tidying up."""


class Heap:
    """Pods by their order, and among equals by who came first."""

    def __init__(self, order: Callable[[QueuedPod], Any]) -> None:
        self._order = order
        self._heap: list[Entry] = []
        self._entries: dict[QueuedPod, Entry] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, queued: QueuedPod) -> bool:
        return queued in self._entries

    def push(self, queued: QueuedPod) -> None:
        """Puts a pod in, or where it belongs now that its order may have changed."""
        order = self._order(queued)
        known = self._entries.get(queued)
        if known is None or known[0] != order:
            entry = (order, next(self._numbers), queued)
            heapq.heappush(self._heap, entry)  # which compares orders that plugins made, and may fail
            self._entries[queued] = entry
            self._tidy()

    def remove(self, queued: QueuedPod) -> None:
        """Takes a pod out; its entry stays behind until it comes up, and is dropped then."""
        del self._entries[queued]
        self._tidy()

    def reorder(self) -> None:
        """Asks for the order of every pod again; what it was before may not compare with it."""
        pods, self._heap, self._entries = list(self._entries), [], {}
        for queued in pods:
            self.push(queued)

    def first(self) -> QueuedPod | None:
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
