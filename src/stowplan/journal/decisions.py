"""What a scheduler keeps of its decisions: `keep` is for each attempt, once its outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from stowplan.framework.decision import Decision
from stowplan.journal.memory import RecentDecisions
from stowplan.journal.packing import RecordMaker
from stowplan.journal.record import Attempt, Record

MEMORY_BYTES = 64 * 2**20
BATCH = 8
"""So many are made into records at once: in one go that takes half the time."""


class JournalState(Protocol):
    @property
    def is_failing(self) -> bool: ...
    @property
    def lost(self) -> int: ...


class Decisions:
    """`write` takes every record, too, where they go to disk. A budget of 0 keeps none in memory."""

    def __init__(self, budget: int = MEMORY_BYTES, write: Callable[[Record], None] | None = None) -> None:
        self.budget, self.write = budget, write
        # A quarter is for what later ones still share with those that went.
        self._recent = RecentDecisions(budget // 2)
        self._maker = RecordMaker(budget // 4)
        self._fresh: list[tuple[Decision, Attempt]] = []
        self.journal: JournalState | None = None
        """How the journal on disk is doing, while there is one."""

    @property
    def recent(self) -> RecentDecisions:
        self.settle()
        return self._recent

    @contextmanager
    def written_to(self, directory: Path, *, size: float, age: float) -> Iterator[None]:
        """Decisions go to a journal, too, until all that were kept in here are written."""
        from stowplan.journal.writer import JournalWriter  # it needs pyarrow, which nothing else does

        writer = JournalWriter(directory, size=size, age=age)
        self.write, self.journal = writer.add, writer
        try:
            yield
        finally:
            self.settle()
            self.write = self.journal = None
            writer.close()

    def keep(self, decision: Decision, attempt: Attempt) -> None:
        if self.budget or self.write is not None:
            self._fresh.append((decision, attempt))
            if len(self._fresh) >= BATCH:
                self.settle()

    def settle(self) -> None:
        """Makes records of the last few; due every second, so that the journal has them soon."""
        fresh, self._fresh = self._fresh, []
        for decision, attempt in fresh:
            record = self._maker.record_of(decision, attempt)
            self._recent.add(record)
            if self.write is not None:
                self.write(record)
