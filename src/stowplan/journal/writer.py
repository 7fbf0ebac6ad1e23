"""Writes decisions to disk in the background: small files within seconds, merged into larger ones later.

The thread competes with the scheduler for the CPU, so it merges one group at a time, with pauses, and writes
new decisions in between. Scheduling goes on whatever happens to the disk.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import disk_usage

from stowplan import log
from stowplan.journal import parquet
from stowplan.journal.files import (
    UNFINISHED,
    JournalFile,
    file_path,
    files_over_limits,
    finish,
    list_files,
    lock_directory,
    time_stamp,
)
from stowplan.journal.record import Decisions, Record

SIZE_LIMIT, AGE_LIMIT = 2**30, 7 * 24 * 3600.0
WRITE_SECONDS = 2.0
MAX_WAITING = 20_000
"""Decisions that may wait to be written; when the disk does not keep up, later ones are dropped."""
MIN_MERGED = 8
MIN_LIMIT, MAX_LIMIT, LIMIT_FACTOR = 2**16, 2**26, 4
"""Files are merged with others up to 64 KiB, up to 256 KiB and so on; large ones are left alone."""
MAX_PER_FILE = 2000
"""Decisions in a file when it is written: small files still fit when there is little space left."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
FREED_SHARE = 1 / 8
"""How much of the journal is deleted when the disk is full, for new decisions and for merging."""
MAX_PAUSE = 60.0
"""Between attempts while nothing can be written, and after a merge that found no space."""
LOG_SECONDS = 600.0
"""The same message is logged at most this often."""


class AbandonedError(Exception):
    """Raised in a merge when the writer is closed."""


@contextmanager
def writing(decisions: Decisions, directory: Path, *, size: float, age: float) -> Iterator[None]:
    """Write decisions to a journal too, and finish with all that were kept inside the block."""
    writer = JournalWriter(directory, size=size, age=age)
    decisions.write, decisions.journal = writer.add, writer
    try:
        yield
    finally:
        decisions.flush()
        decisions.write = decisions.journal = None
        writer.close()


class JournalWriter:
    """Pass it every record with `add`; `close` writes what is left. Only its thread accesses files."""

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
        self._lock = lock_directory(directory)
        self._waiting: deque[Record] = deque()
        self._batch: list[Record] = []
        """Being written, or could not be written yet."""
        self.lost = 0
        """Decisions since the start that are missing from the journal."""
        self._unreported = 0
        self._last = max((each.written_at for each in list_files(directory)), default=0.0)
        self._damaged: set[Path] = set()
        self.is_failing = False
        """Whether the last attempt to write failed."""
        self._logged_at: dict[str, float] = {}
        self._wrote_at = self._paused_at = self._merge_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, record: Record) -> None:
        if len(self._waiting) + len(self._batch) < MAX_WAITING:
            self._waiting.append(record)
        else:
            self._lose(1)

    def _lose(self, count: int) -> None:
        self.lost += count
        self._unreported += count

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._lock.close()

    def _run(self) -> None:
        pause = self._every
        while not self._closing.wait(pause):
            self._work()
            pause = min(2 * pause, MAX_PAUSE) if self.is_failing else self._every
        self._work()
        self._lose(len(self._batch) + len(self._waiting))
        self._report_lost()

    def _work(self) -> None:
        try:
            _delete(files_over_limits(list_files(self.directory), self._now(), self._size, self._age))
            self._write_freeing_space()
            self._merge_small_files()
        except Exception as error:  # scheduling goes on, whatever it is
            self.is_failing = True
            if self._may_log("failing"):
                log.error("Journal cannot be written", error, directory=self.directory)
            if not isinstance(error, OSError):  # not the disk, so another attempt would not help
                self._lose(len(self._batch))
                self._batch = []
        else:
            if self.is_failing and self._may_log("again"):
                log.log(0, "Journal can be written again", directory=self.directory)
            self.is_failing = False
        if self._unreported and self._may_log("lost"):
            self._report_lost()

    def _may_log(self, topic: str) -> bool:
        now = time.monotonic()
        is_due = now - self._logged_at.get(topic, -LOG_SECONDS) >= LOG_SECONDS
        if is_due:
            self._logged_at[topic] = now
        return is_due

    def _report_lost(self) -> None:
        lost, self._unreported = self._unreported, 0
        if lost:
            log.warn("Decisions are missing from the journal", count=lost)

    def _write_freeing_space(self) -> None:
        while True:
            try:
                return self._write()
            except OSError as error:
                files = list_files(self.directory)
                if error.errno not in DISK_FULL or not files:
                    raise
                if self._may_log("full"):
                    log.warn(
                        "Disk is full; deleting the oldest files of the journal", directory=self.directory
                    )
                kept = sum(each.size for each in files) * (1 - FREED_SHARE)
                _delete(files_over_limits(files, self._now(), kept, self._age))

    def _write(self) -> None:
        """Write what is waiting now, not what is added meanwhile."""
        self._wrote_at = time.monotonic()
        waiting = len(self._waiting)
        while self._batch or waiting:
            taken = min(waiting, MAX_PER_FILE - len(self._batch))
            self._batch += [self._waiting.popleft() for _ in range(taken)]
            waiting -= taken
            self._last = max(self._now(), self._last + 0.001)  # names must be unique and increase
            self._put(parquet.groups_of(self._batch), time_stamp(self._last), time_stamp(self._last))
            self._batch = []

    def _put(self, groups: Iterable[object], first: str, last: str) -> None:
        unfinished = self.directory / f"{UNFINISHED}{first}"
        try:
            parquet.write(unfinished, groups)
            finish(unfinished, file_path(self.directory, first, last))
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def _merge_small_files(self) -> None:
        while not self._closing.is_set() and time.monotonic() >= self._merge_at:
            run = self._find_small_files(list_files(self.directory))
            # Until the merged file is complete, both exist.
            if not run or sum(each.size for each in run) > disk_usage(self.directory).free:
                return
            self._merge(run)

    def _find_small_files(self, files: list[JournalFile]) -> list[JournalFile]:
        """The newest files, if enough of them are small."""
        limit = MIN_LIMIT
        while limit < MAX_LIMIT:
            run: list[JournalFile] = []
            for each in reversed(files):
                if each.size > limit or each.path in self._damaged:
                    break
                run.insert(0, each)
            if len(run) >= MIN_MERGED:
                return run
            limit *= LIMIT_FACTOR
        return []

    def _merge(self, run: list[JournalFile]) -> None:
        self._paused_at = time.monotonic()
        try:
            groups = parquet.merge_groups([each.path for each in run], self._pause)
            self._put(groups, run[0].first, run[-1].last)
        except parquet.DamagedFileError as error:
            self._damaged.add(error.path)
            log.warn("Journal file cannot be read and is not merged", file=error.path, err=error)
        except AbandonedError:
            return
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._merge_at = time.monotonic() + MAX_PAUSE
        else:
            _delete(run)

    def _pause(self) -> None:
        """Between the steps of a merge: rest as long as the last step took, and write new decisions."""
        if self._closing.wait(time.monotonic() - self._paused_at):
            raise AbandonedError
        if time.monotonic() - self._wrote_at >= self._every:
            self._write()
        self._paused_at = time.monotonic()


def _delete(files: Iterable[JournalFile]) -> None:
    for each in files:
        each.path.unlink(missing_ok=True)
