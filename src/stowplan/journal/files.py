"""The files of a journal: their names, how they are created atomically, and which ones to delete."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

from stowplan.errors import InputError

PREFIX, SUFFIX, UNFINISHED = "decisions-", ".parquet", ".unfinished-"
LOCK = ".lock"
TIME = "%Y%m%dT%H%M%S.%fZ"
_FORM = re.compile(r"\d{8}T\d{6}\.\d{6}Z", re.ASCII)


class JournalFile(NamedTuple):
    """`first` and `last` are the times of the writes in it; a merged file covers those it was made from."""

    path: Path
    first: str
    last: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def written_at(self) -> float:
        return datetime.fromisoformat(self.last).timestamp()

    def covers(self, other: JournalFile) -> bool:
        return self.first <= other.first and other.last <= self.last and self != other


def time_stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def file_path(directory: Path, first: str, last: str) -> Path:
    return directory / f"{PREFIX}{first}-{last}{SUFFIX}"


def list_files(directory: Path) -> list[JournalFile]:
    """The oldest first, without those that a merged file covers."""
    found = _list_all(directory)
    return [each for each in found if not _is_covered(each, found)]


def _list_all(directory: Path) -> list[JournalFile]:
    """All files with names that we give, the oldest first."""
    found = []
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("no such directory; pass the one given to --journal", where=str(directory)) from None
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", where=str(directory)) from None
    for name in names:
        first, _, last = name.removeprefix(PREFIX).removesuffix(SUFFIX).partition("-")
        if name.startswith(PREFIX) and name.endswith(SUFFIX) and _is_time(first) and _is_time(last):
            found.append(JournalFile(directory / name, first, last))
    return sorted(found, key=lambda each: (each.first, each.last))


def _is_covered(one: JournalFile, others: Iterable[JournalFile]) -> bool:
    return any(other.covers(one) for other in others)


def _is_time(text: str) -> bool:
    if not _FORM.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)  # twenty times faster than strptime
    except ValueError:
        return False
    return True


def finish(unfinished: Path, path: Path) -> None:
    """Rename a file once all of it is on disk, so that readers only see complete files."""
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(path)
    with suppress(OSError):  # the file exists; only its name could be lost in a power failure
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def lock_directory(directory: Path) -> IO[str]:
    """Lock the directory, and delete what a killed process left behind."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / LOCK, "w")  # noqa: SIM115  held as long as we write
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InputError(
            "another process writes its journal there; use a separate directory for each process",
            where=str(directory),
        ) from None
    except OSError as error:
        raise InputError(f"cannot write a journal there: {error.strerror}", where=str(directory)) from None
    found = _list_all(directory)
    left = [each.path for each in found if _is_covered(each, found)]
    for path in (*left, *directory.glob(f"{UNFINISHED}*")):
        with suppress(OSError):
            path.unlink()
    return lock


def files_over_limits(
    files: list[JournalFile], now: float, max_bytes: float, max_seconds: float
) -> Iterator[JournalFile]:
    """The files to delete, the oldest first."""
    total = sum(each.size for each in files)
    for each in files:
        if total <= max_bytes and now - each.written_at <= max_seconds:
            return
        total -= each.size
        yield each
