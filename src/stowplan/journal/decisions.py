"""The decisions that a scheduler keeps: recent ones in memory, all of them in a journal if there is one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Protocol

from stowplan.framework.decision import Decision
from stowplan.journal.record import Attempt, Record, RecordMaker

MEMORY_BYTES = 64 * 2**20
BATCH = 8
"""How many decisions are packed at once, which takes half the time of packing each alone."""


class JournalState(Protocol):
    @property
    def is_failing(self) -> bool: ...
    @property
    def lost(self) -> int: ...


class Decisions:
    """`write` is called with every record, for a journal. A budget of 0 keeps none in memory."""

    def __init__(self, budget: int = MEMORY_BYTES, write: Callable[[Record], None] | None = None) -> None:
        self.budget, self.write = budget, write
        # A quarter is for what later records still share with those that were dropped.
        self._recent = RecentDecisions(budget // 2)
        self._maker = RecordMaker(budget // 4)
        self._fresh: list[tuple[Decision, Attempt]] = []
        self.journal: JournalState | None = None
        """The state of the journal on disk, while there is one."""

    @property
    def recent(self) -> RecentDecisions:
        self.flush()
        return self._recent

    @contextmanager
    def writing_to(self, directory: Path, *, size: float, age: float) -> Iterator[None]:
        """Write decisions to a journal too, and finish with all that were kept inside the block."""
        from stowplan.journal.writer import JournalWriter  # it needs pyarrow, which nothing else does

        writer = JournalWriter(directory, size=size, age=age)
        self.write, self.journal = writer.add, writer
        try:
            yield
        finally:
            self.flush()
            self.write = self.journal = None
            writer.close()

    def keep(self, decision: Decision, attempt: Attempt) -> None:
        """Keep the decision of an attempt whose outcome is known."""
        if self.budget or self.write is not None:
            self._fresh.append((decision, attempt))
            if len(self._fresh) >= BATCH:
                self.flush()

    def flush(self) -> None:
        """Pack the last few. The scheduler calls this every second, so that the journal has them soon."""
        fresh, self._fresh = self._fresh, []
        for decision, attempt in fresh:
            record = self._maker.make_record(decision, attempt)
            self._recent.add(record)
            if self.write is not None:
                self.write(record)


class RecentDecisions:
    """As many records as fit into the budget; the oldest are dropped first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._records: deque[Record] = deque()
        self._by_pod: dict[str, tuple[Record, ...]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._by_pod[record.pod] = (*self._by_pod.get(record.pod, ()), record)
        self.bytes += record.size
        while self.bytes > self.budget and self._records:
            self._drop()

    def of(self, pod: str) -> list[Record]:
        """The attempts at a pod (`namespace/name`) that are still in memory, the newest first."""
        return list(reversed(self._by_pod.get(pod, ())))

    def newest(self, limit: int, after: int = 0) -> Iterator[Record]:
        """The newest first, without those up to the number `after`."""
        for record in islice(reversed(self._records), limit):
            if record.number <= after:
                return
            yield record

    def pods(self) -> Iterator[str]:
        return iter(self._by_pod)

    def _drop(self) -> None:
        record = self._records.popleft()
        self.bytes -= record.size
        _, *others = self._by_pod.pop(record.pod)
        if others:
            self._by_pod[record.pod] = tuple(others)
