"""The recent decisions, as many as fit into a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from stowplan.journal.record import Record


class RecentDecisions:
    """The oldest goes first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._records: deque[Record] = deque()
        self._by_pod: dict[str, tuple[Record, ...]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        self._records.append(record)
        key = record.pod.key
        self._by_pod[key] = (*self._by_pod.get(key, ()), record)
        self.bytes += record.bytes
        while self.bytes > self.budget and self._records:
            self._drop()

    def of(self, pod: str) -> list[Record]:
        """The attempts at a pod (`namespace/name`) that are still known, the newest first."""
        return list(reversed(self._by_pod.get(pod, ())))

    def newest(self, limit: int, after: int = 0) -> Iterator[Record]:
        """The newest first; `after` leaves out those up to that number."""
        for record in islice(reversed(self._records), limit):
            if record.number <= after:
                return
            yield record

    def pods(self) -> Iterator[str]:
        return iter(self._by_pod)

    def _drop(self) -> None:
        record = self._records.popleft()
        self.bytes -= record.bytes
        _, *others = self._by_pod.pop(record.pod.key)
        if others:
            self._by_pod[record.pod.key] = tuple(others)
