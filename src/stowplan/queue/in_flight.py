"""Pods that are being tried, and what has happened since each of them was taken out of the queue.

An event that comes while a pod is being tried may be the very one it then waits for: it is kept until the
pod is done.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import NamedTuple

from stowplan.framework.hints import Happening
from stowplan.queue.queued_pod import QueuedPod
from stowplan.queue.recorder import POD_POPPED, Recorder


class Flight(NamedTuple):
    queued: QueuedPod
    start: int
    """The number of the first event that came after the pod was taken out."""


class InFlight:
    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._flights: OrderedDict[str, Flight] = OrderedDict()
        self._events: deque[tuple[Happening, str]] = deque()
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

    def record(self, happening: Happening, label: str) -> None:
        """Keeps an event for whoever is being tried now."""
        if self._flights:
            self._events.append((happening, label))
            self._count(label, 1)

    def end(self, uid: str) -> list[Happening] | None:
        """What has happened since the pod was taken out; None where nobody kept track of it any more."""
        flight = self._flights.pop(uid, None)
        if flight is None:
            return None
        self._count(POD_POPPED, -1)
        happened = [each for each, _ in islice(self._events, flight.start - self._dropped, None)]
        self._drop_events()
        return happened

    def _drop_events(self) -> None:
        oldest = next(iter(self._flights.values()), None)
        while self._events and (oldest is None or self._dropped < oldest.start):
            _, label = self._events.popleft()
            self._dropped += 1
            self._count(label, -1)

    def _count(self, event: str, change: int) -> None:
        if self._recorder is not None:
            self._recorder.inflight_events(event, change)
