"""Backoff: how long a pod pauses after attempts that failed, and the pods that do.

Pods that a plugin refused may be tried early when there is nothing else to do. Pods whose attempt went wrong
wait their backoff out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from stowplan.queue.heap import Heap
from stowplan.queue.queued_pod import QueuedPod


class BackoffQueue:
    def __init__(
        self,
        order: Callable[[QueuedPod], Any],
        *,
        clock: Callable[[], float],
        initial: float,
        longest: float,
    ) -> None:
        self._clock, self._initial, self._longest = clock, initial, longest
        self._refused = Heap(lambda queued: (self._expiration(queued), order(queued)))
        self._failed = Heap(self._expiration)

    def push(self, queued: QueuedPod) -> None:
        must_wait = queued.waits_out_backoff or not queued.rejectors
        (self._failed if must_wait else self._refused).push(queued)

    def remove(self, queued: QueuedPod) -> None:
        (self._failed if queued in self._failed else self._refused).remove(queued)

    def reorder(self) -> None:
        self._refused.reorder()

    def first_refused(self) -> QueuedPod | None:
        """The next pod that may be tried before its backoff is over."""
        return self._refused.first()

    def over(self) -> Iterator[QueuedPod]:
        """Pods whose backoff is over, each to be removed before the next is asked for."""
        for heap in (self._refused, self._failed):
            while (queued := heap.first()) is not None and not self.is_backing_off(queued):
                yield queued

    def is_backing_off(self, queued: QueuedPod) -> bool:
        # parity: whole seconds, and the second in which the backoff ends still counts
        return self._expiration(queued) >= math.floor(self._clock())

    def _expiration(self, queued: QueuedPod) -> float:
        count = queued.consecutive_errors or queued.unschedulable_count
        if count == 0 or self._longest == 0:
            return -math.inf
        if queued.backoff_expiration is None:
            ends = max(queued.timestamp + self._duration(count), queued.held_until)
            queued.backoff_expiration = math.floor(ends)
        return queued.backoff_expiration

    def _duration(self, count: int) -> float:
        """Doubles with every attempt, up to the longest."""
        doublings = count - 1
        if self._initial > math.ldexp(self._longest, -doublings):
            return self._longest
        return math.ldexp(self._initial, doublings)
