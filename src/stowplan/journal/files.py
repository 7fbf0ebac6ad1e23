"""The files of a journal: how they are named, come into being whole, and go."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

from stowplan.errors import InputError

PREFIX, SUFFIX, UNFINISHED = "decisions-", ".parquet", ".unfinished-"
LOCK = ".lock"
TIME = "%Y%m%dT%H%M%S.%fZ"


class JournalFile(NamedTuple):
    """`first` and `last` say which writes it holds: a merged one covers those it was made of."""

    path: Path
    first: str
    last: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def written_at(self) -> float:
        return datetime.strptime(self.last, TIME).replace(tzinfo=UTC).timestamp()

    def covers(self, other: JournalFile) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def path_of(directory: Path, first: str, last: str) -> Path:
    return directory / f"{PREFIX}{first}-{last}{SUFFIX}"


def listed(directory: Path) -> list[JournalFile]:
    """The files that count, the oldest first; of one that a merged file covers the latter does."""
    found = _all(directory)
    return [each for each in found if not _is_covered(each, found)]


def _all(directory: Path) -> list[JournalFile]:
    """Those with names that we give, the oldest first."""
    found = []
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        what = "there is no such directory; give the one of --journal"
        raise InputError(what, where=str(directory)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(directory)) from None
    for name in names:
        first, _, last = name.removeprefix(PREFIX).removesuffix(SUFFIX).partition("-")
        if name.startswith(PREFIX) and name.endswith(SUFFIX) and _is_time(first) and _is_time(last):
            found.append(JournalFile(directory / name, first, last))
    return sorted(found, key=lambda each: (each.first, each.last))


def _is_covered(one: JournalFile, others: Iterable[JournalFile]) -> bool:
    return any(other.covers(one) for other in others)


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, TIME)
    except ValueError:
        return False
    return True


def finish(unfinished: Path, path: Path) -> None:
    """Gives a file its name once all of it is on the disk: whoever sees it sees it whole."""
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(path)
    with suppress(OSError):  # the file is there; its name alone might be lost when the power is
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def claimed(directory: Path) -> IO[str]:
    """Makes the directory ours, and clears away what a process that was killed has left."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = open(directory / LOCK, "w")  # noqa: SIM115  held as long as we write
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InputError(
            "another process keeps its journal there; give each one a directory of its own",
            where=str(directory),
        ) from None
    except OSError as error:
        raise InputError(f"cannot keep a journal there: {error.strerror}", where=str(directory)) from None
    found = _all(directory)
    left = [each.path for each in found if _is_covered(each, found)]
    for path in (*left, *directory.glob(f"{UNFINISHED}*")):
        with suppress(OSError):
            path.unlink()
    return lock


def surplus(
    files: list[JournalFile], now: float, most_bytes: float, most_seconds: float
) -> Iterator[JournalFile]:
    """The files beyond the limits, the oldest first."""
    total = sum(each.size for each in files)
    for each in files:
        if total <= most_bytes and now - each.written_at <= most_seconds:
            return
        total -= each.size
        yield each
