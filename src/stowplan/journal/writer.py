"""Writes decisions to disk in the background: small files within seconds, merged into larger ones later.

The thread shares the processor with the scheduler: merging goes a group at a time, with pauses, and what was
decided meanwhile is written in between. Whatever the disk does, scheduling goes on.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
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
from stowplan.journal.merging import DamagedFileError, merged
from stowplan.journal.record import Record

SIZE_LIMIT, AGE_LIMIT = 2**30, 7 * 24 * 3600.0
WRITE_SECONDS = 2.0
MOST_WAITING = 20_000
"""Decisions that wait to be written; when the disk does not keep up, later ones are not."""
MERGED_AT_ONCE = 8
SMALLEST, LARGEST, TIMES = 2**16, 2**26, 4
"""Files are merged with those of their class, up to 64 KiB, 256 KiB, and so on; large ones are left alone."""
AT_ONCE = 2000
"""A file gets no more when it is written: where there is little room, small files go further."""
FULL = (errno.ENOSPC, errno.EDQUOT)
LET_GO = 1 / 8
"""How much of the journal goes when the disk is full: what comes next needs room, and so does merging."""
LONGEST_PAUSE = 60.0
"""Between tries, while nothing can be written, and after a merge that found no room."""
SAID_SECONDS = 600.0
"""The log gets the same sentence no more often."""


class AbandonedError(Exception):
    """A merge that was under way when we were told to end."""


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
        self._batch: list[Record] = []
        """What is being written, or could not be."""
        self.lost = 0
        """Decisions that are not in the journal, since the start."""
        self._untold = 0
        self._last = max((each.written_at for each in listed(directory)), default=0.0)
        self._damaged: set[Path] = set()
        self.is_failing = False
        """Whether the last attempt to write failed."""
        self._said: dict[str, float] = {}
        self._wrote_at = self._breathed_at = self._merge_at = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        if len(self._waiting) + len(self._batch) < MOST_WAITING:
            self._waiting.append(record)
        else:
            self._lose(1)

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._lock.close()

    def _run(self) -> None:
        pause = self._every
        while not self._ending.wait(pause):
            self._turn()
            pause = min(2 * pause, LONGEST_PAUSE) if self.is_failing else self._every
        self._turn()
        self._lose(len(self._batch) + len(self._waiting))
        self._say_what_is_lost()

    def _turn(self) -> None:
        try:
            _let_go(surplus(listed(self.directory), self._now(), self._size, self._age))
            self._write_making_room()
            self._merge_what_is_due()
        except Exception as error:  # whatever it is: scheduling goes on
            self.is_failing = True
            if self._may_say("failing"):
                log.error("Journal cannot be written", error, directory=self.directory)
            if not isinstance(error, OSError):  # then it is not the disk, and trying again would not help
                self._lose(len(self._batch))
                self._batch = []
        else:
            if self.is_failing and self._may_say("again"):
                log.log(0, "Journal is written again", directory=self.directory)
            self.is_failing = False
        if self._untold and self._may_say("lost"):
            self._say_what_is_lost()

    def _may_say(self, what: str) -> bool:
        now = time.monotonic()
        is_due = now - self._said.get(what, -SAID_SECONDS) >= SAID_SECONDS
        if is_due:
            self._said[what] = now
        return is_due

    def _say_what_is_lost(self) -> None:
        lost, self._untold = self._untold, 0
        if lost:
            log.warn("Journal does not keep up, decisions are missing in it", count=lost)

    def _write_making_room(self) -> None:
        while True:
            try:
                return self._write()
            except OSError as error:
                files = listed(self.directory)
                if error.errno not in FULL or not files:
                    raise
                if self._may_say("full"):
                    log.warn("Disk is full, the journal lets its oldest files go", directory=self.directory)
                kept = sum(each.size for each in files) * (1 - LET_GO)
                _let_go(surplus(files, self._now(), kept, self._age))

    def _write(self) -> None:
        """What waits now; not what comes meanwhile."""
        self._wrote_at = time.monotonic()
        waiting = len(self._waiting)
        while self._batch or waiting:
            taken = min(waiting, AT_ONCE - len(self._batch))
            self._batch += [self._waiting.popleft() for _ in range(taken)]
            waiting -= taken
            self._last = max(self._now(), self._last + 0.001)  # names must differ, and grow
            self._put(parquet.groups_of(self._batch), stamp(self._last), stamp(self._last))
            self._batch = []

    def _put(self, groups: Iterable[Any], first: str, last: str) -> None:
        unfinished = self.directory / f"{UNFINISHED}{first}"
        try:
            parquet.write(unfinished, groups)
            finish(unfinished, path_of(self.directory, first, last))
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def _merge_what_is_due(self) -> None:
        while not self._ending.is_set() and time.monotonic() >= self._merge_at:
            run = self._due(listed(self.directory))
            # Until the merged one is whole both are there.
            if not run or sum(each.size for each in run) > disk_usage(self.directory).free:
                return
            self._merge(run)

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

    def _merge(self, run: list[JournalFile]) -> None:
        self._breathed_at = time.monotonic()
        try:
            groups = merged([each.path for each in run], self._breathe)
            self._put(groups, run[0].first, run[-1].last)
        except DamagedFileError as error:
            self._damaged.add(error.path)
            log.warn("Journal file is damaged and left as it is", file=error.path, err=error)
        except AbandonedError:
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._merge_at = time.monotonic() + LONGEST_PAUSE
        else:
            _let_go(run)

    def _breathe(self) -> None:
        """Between the steps of a merge: rests as long as the last one took, and writes what has come."""
        if self._ending.wait(time.monotonic() - self._breathed_at):
            raise AbandonedError
        if time.monotonic() - self._wrote_at >= self._every:
            self._write()
        self._breathed_at = time.monotonic()


def _let_go(files: Iterable[JournalFile]) -> None:
    for each in files:
        each.path.unlink(missing_ok=True)
