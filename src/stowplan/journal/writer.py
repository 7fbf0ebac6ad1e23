"""Writes decisions to disk in the background: small files within seconds, merged into larger ones later."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stowplan import log
from stowplan.journal import parquet
from stowplan.journal.files import (
    UNFINISHED,
    JournalFile,
    claimed,
    finish,
    listed,
    path_of,
    stamp,
    surplus,
)
from stowplan.journal.record import Record

SIZE_LIMIT, AGE_LIMIT = 2**30, 7 * 24 * 3600.0
WRITE_SECONDS = 2.0
MOST_WAITING = 20_000
"""Decisions that wait to be written; when the disk does not keep up, later ones are not."""
MERGED_AT_ONCE = 8
SMALLEST, LARGEST, TIMES = 2**16, 2**26, 4
"""Files are merged with those of their class, up to 64 KiB, 256 KiB, and so on; large ones are left alone."""
SMALL_GROUP = 256
"""Groups up to so many rows are made one when merged, so that they share more."""


class JournalWriter:
    """Give it every record by `add`; `close` writes what is left. Only the thread touches files."""

    def __init__(
        self,
        directory: Path,
        *,
        size: float = SIZE_LIMIT,
        age: float = AGE_LIMIT,
        every: float = WRITE_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self._size, self._age, self._every, self._now = size, age, every, now
        self._lock = claimed(directory)
        self._waiting: deque[Record] = deque()
        self._lost = 0
        self._last = max((each.written_at for each in listed(directory)), default=0.0)
        self._damaged: set[Path] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(record)
        else:
            self._lost += 1

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._lock.close()

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            is_ending = self._ending.wait(self._every)
            try:
                self._turn()
            except Exception as error:  # a full disk, say: scheduling must go on
                log.error("Journal cannot be written", error, directory=self.directory)

    def _turn(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            log.warn("Journal does not keep up, decisions are missing in it", count=lost)
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if batch:
            self._last = max(self._now(), self._last + 0.001)  # names must differ, and grow
            self._put([parquet.table_of(batch)], stamp(self._last), stamp(self._last))
        while run := self._due(listed(self.directory)):
            self._merge(run)
        for old in surplus(listed(self.directory), self._now(), self._size, self._age):
            old.path.unlink(missing_ok=True)

    def _put(self, groups: Any, first: str, last: str) -> None:
        unfinished = self.directory / f"{UNFINISHED}{first}"
        try:
            parquet.write(unfinished, groups)
            finish(unfinished, path_of(self.directory, first, last))
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def _due(self, files: list[JournalFile]) -> list[JournalFile]:
        """The newest files, where there are enough of them that are small for their number."""
        limit = SMALLEST
        while limit < LARGEST:
            run: list[JournalFile] = []
            for each in reversed(files):
                if each.size > limit or each.path in self._damaged:
                    break
                run.insert(0, each)
            if len(run) >= MERGED_AT_ONCE:
                return run
            limit *= TIMES
        return []

    def _merge(self, files: list[JournalFile]) -> None:
        sound = []
        for each in files:
            try:
                sound.append(list(parquet.groups_in(each.path)))
            except parquet.DAMAGED as error:
                self._damaged.add(each.path)
                log.warn("Journal file is damaged and left as it is", file=each.path, err=error)
                return
        self._put(_joined(sound), files[0].first, files[-1].last)
        for each in files:
            each.path.unlink(missing_ok=True)


def _joined(files: list[list[Any]]) -> Iterator[Any]:
    """Groups as they are, but small ones that follow each other made into one."""
    small: list[Record] = []
    for group in (group for groups in files for group in groups):
        if len(group) <= SMALL_GROUP:
            small += parquet.records_in(group)
            continue
        if small:
            yield parquet.table_of(small)
            small = []
        yield group
    if small:
        yield parquet.table_of(small)
