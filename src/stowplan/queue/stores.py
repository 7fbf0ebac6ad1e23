"""Where pods wait: for their turn, for the end of a backoff, for an event, for their attempt to end."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

from stowplan.framework.hints import ObjectChange
from stowplan.queue.queued_pod import POD_POPPED, QueuedPod, Recorder

Entry = tuple[Any, int, QueuedPod]
SLACK = 100
"""Fewer entries of removed pods than this are not worth cleaning up."""


class Heap:
    """A heap of pods from which any can be removed; equal ones come in the order in which they were added."""

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
        """Add a pod, or move it if its order has changed."""
        order = self._order(queued)
        known = self._entries.get(queued)
        if known is None or known[0] != order:
            entry = (order, next(self._numbers), queued)
            heapq.heappush(self._heap, entry)  # which compares orders that plugins made, and may fail
            self._entries[queued] = entry
            self._tidy()

    def remove(self, queued: QueuedPod) -> None:
        """Remove a pod; its entry stays until it is the first, and is dropped then."""
        del self._entries[queued]
        self._tidy()

    def reorder(self) -> None:
        """Ask for the order of every pod again: old and new keys may not be comparable."""
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
        self._rejected = Heap(lambda queued: (self._expiration(queued), order(queued)))
        self._failed = Heap(self._expiration)

    def push(self, queued: QueuedPod) -> None:
        must_wait = queued.waits_out_backoff or not queued.rejectors
        (self._failed if must_wait else self._rejected).push(queued)

    def remove(self, queued: QueuedPod) -> None:
        (self._failed if queued in self._failed else self._rejected).remove(queued)

    def reorder(self) -> None:
        self._rejected.reorder()

    def first_rejected(self) -> QueuedPod | None:
        """The next pod that may be attempted before its backoff is over."""
        return self._rejected.first()

    def over(self) -> Iterator[QueuedPod]:
        """Pods whose backoff is over; remove each before asking for the next."""
        for heap in (self._rejected, self._failed):
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
        """The backoff doubles with every attempt, up to the longest."""
        doublings = count - 1
        if self._initial > math.ldexp(self._longest, -doublings):
            return self._longest
        return math.ldexp(self._initial, doublings)


class UnschedulablePods:
    def __init__(self) -> None:
        self._waits_for: dict[QueuedPod, tuple[tuple[str, str], ...]] = {}
        self._waiting: defaultdict[tuple[str, str], dict[QueuedPod, None]] = defaultdict(dict)
        """By profile and plugin, in order of arrival."""

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter(self._waits_for)

    def push(self, queued: QueuedPod) -> None:
        """A gated pod waits for its gating plugin alone, any other for all plugins that rejected it."""
        plugins = (queued.gating_plugin,) if queued.gating_plugin else queued.rejectors
        keys = tuple((queued.pod.scheduler_name, plugin) for plugin in plugins)
        self._waits_for[queued] = keys
        for key in keys:
            self._waiting[key][queued] = None

    def remove(self, queued: QueuedPod) -> None:
        for key in self._waits_for.pop(queued):
            del self._waiting[key][queued]

    def waiting_for(self, profile: str, plugins: Iterable[str]) -> Iterator[QueuedPod]:
        """Pods that wait for any of these plugins; those that wait for several come more than once."""
        if self._waits_for:
            for plugin in plugins:
                yield from self._waiting.get((profile, plugin), ())


class Flight(NamedTuple):
    queued: QueuedPod
    start: int
    """The number of the first change after the pod was popped."""


class InFlight:
    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._flights: OrderedDict[str, Flight] = OrderedDict()
        self._events: deque[tuple[ObjectChange, str]] = deque()
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, uid: str) -> bool:
        return uid in self._flights

    def find(self, uid: str) -> QueuedPod | None:
        flight = self._flights.get(uid)
        return flight and flight.queued

    def start(self, queued: QueuedPod) -> None:
        self._flights[queued.pod.uid] = Flight(queued, self._dropped + len(self._events))
        self._count(POD_POPPED, 1)

    def record(self, change: ObjectChange, label: str) -> None:
        """Keep a change for the pods that are being attempted now."""
        if self._flights:
            self._events.append((change, label))
            self._count(label, 1)

    def end(self, uid: str) -> list[ObjectChange] | None:
        """The changes since the pod was popped; None if they are not kept for it any more."""
        flight = self._flights.pop(uid, None)
        if flight is None:
            return None
        self._count(POD_POPPED, -1)
        changes = [each for each, _ in islice(self._events, flight.start - self._dropped, None)]
        self._drop_events()
        return changes

    def _drop_events(self) -> None:
        oldest = next(iter(self._flights.values()), None)
        while self._events and (oldest is None or self._dropped < oldest.start):
            _, label = self._events.popleft()
            self._dropped += 1
            self._count(label, -1)

    def _count(self, event: str, change: int) -> None:
        if self._recorder is not None:
            self._recorder.inflight_events(event, change)
