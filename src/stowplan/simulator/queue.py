"""Pods that wait to be decided, in the order in which the scheduler would take them."""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from stowplan.api.meta import parse_time
from stowplan.cycle import Planner
from stowplan.queue.queued_pod import QueuedPod
from stowplan.simulator.outcome import Cause, Fate


class Queue:
    def __init__(self, planner: Planner, now: Callable[[], float]) -> None:
        profile = next(iter(planner.profiles.values()))  # in the order of all pods all profiles agree
        ((_, plugin),) = profile.at("queueSort")
        self._sort: Callable[[QueuedPod], Any] = plugin.queue_sort
        self._now, self._numbers = now, count()
        self._heap: list[tuple[Any, int, Fate]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, fate: Fate) -> None:
        """Of equals, the one that has been there longer comes first."""
        pod, since = fate.pod, self._now()
        if fate.cause in (Cause.PENDING, Cause.AFRESH) and pod.creation_timestamp:
            since = parse_time(pod.creation_timestamp)
        heappush(self._heap, (self._sort(QueuedPod(pod, since)), next(self._numbers), fate))

    def pop(self) -> Fate:
        return heappop(self._heap)[2]

    def forget(self, keys: Container[str]) -> None:
        self._heap = [each for each in self._heap if each[2].pod.key not in keys]
        heapify(self._heap)
