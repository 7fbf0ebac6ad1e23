"""A store on disk: every change goes into SQLite, and is published and answered when it is on disk.

Writes that come while one commit runs share the next one, so that many of them cost little more than one.
When a commit fails, all that was written since the last good one is forgotten, and its writers are told.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import stat
import sys
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan import log
from stowplan.api.meta import Json
from stowplan.apiserver import managed
from stowplan.apiserver.failures import Failure
from stowplan.apiserver.store import Change, Collection, Store
from stowplan.errors import InputError

Row = tuple[str, str, str, bytes | None]
"""Collection, namespace, name, and the object, or None if it is gone."""
Batch = list[tuple[Collection, Change, Row]]
Outcome = asyncio.Future[Failure | None]

FILE = "objects.sqlite3"
APPLICATION = 0x53746F77
"""SQLite's application_id of our databases; those of earlier releases have none."""
MAX_IN_FLIGHT = 2
"""Batches in flight: one is being written and one is waiting, so that the disk never idles."""
LOG_SECONDS = 60.0
"""How often to log that writes still fail."""
_TABLES = """
create table objects (
    collection text, namespace text, name text, body blob, checksum integer,
    primary key (collection, namespace, name)
) without rowid;
create table versions (only integer primary key check (only = 0), version integer);
"""
_RESTORE = "restore a backup, or move it away to start with an empty cluster"


class Written(NamedTuple):
    """The outcome of a batch; `recovers_doubtful`: an earlier one that seemed lost is on disk after all."""

    failure: Failure | None = None
    recovers_doubtful: bool = False


class DurableStore(Store):
    """Open until `close`; one process at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / FILE
        prepare_folder(folder)
        self._file = _File(self._path)
        self._kept: dict[str, list[tuple[str, str, bytes]]] = defaultdict(list)
        for collection, namespace, name, body in self._file.objects():
            self._kept[collection].append((namespace, name, body))
        self.version = self._given = self._file.version
        self._pending: Batch = []
        self._doubtful: Batch = []
        self._outcome: Outcome | None = None
        """Resolved when the pending changes are written; `_newest` is that of the last batch in flight."""
        self._newest: Outcome | None = None
        self._in_flight: deque[Batch] = deque()
        self._submitted = self.version
        self._thread = ThreadPoolExecutor(1, "stowplan-data")
        self._losses = self._lost = 0
        self._logged_at = -LOG_SECONDS

    def collection(
        self, name: str, fields: Callable[[Json], Mapping[str, str]] = lambda data: {}
    ) -> Collection:
        is_new = name not in self.collections
        found = super().collection(name, fields)
        if is_new:
            found.forgotten = self.version
            for namespace, object_name, body in self._kept.pop(name, ()):
                data = msgspec.json.decode(body)
                owners = managed.parse_entries(data["metadata"].pop("managedFields", None))
                found.restore((namespace, object_name), data, managed.Resolved(owners))
        return found

    def write(self, collection: Collection, change: Change) -> None:
        body = None if change.is_removal else change.record.full
        self.count(collection, change)
        collection.stage(change)
        self._pending.append((collection, change, (collection.name, *change.record.key, body)))

    async def committed(self) -> None:
        """Writers that arrive during a commit share the next one."""
        waiting = self._newest
        if self._pending:
            if self._outcome is None:
                self._outcome = asyncio.get_running_loop().create_future()
                self._submit_soon()
            waiting = self._outcome
        if waiting is not None and (failure := await asyncio.shield(waiting)) is not None:
            raise failure

    def _submit_soon(self) -> None:
        # Not now: what else is written in this turn of the loop comes along.
        asyncio.get_running_loop().call_soon(self._submit)

    def _submit(self) -> None:
        """Submit the pending changes, unless two batches are in flight already."""
        if not self._pending or len(self._in_flight) == MAX_IN_FLIGHT:
            return
        loop = asyncio.get_running_loop()
        batch, self._pending = self._pending, []
        outcome, self._outcome = self._outcome or loop.create_future(), None
        self._newest = outcome
        self._in_flight.append(batch)
        written = loop.run_in_executor(self._thread, self._file.write, *_rows(batch), self._submitted)
        self._submitted = batch[-1][1].version
        written.add_done_callback(partial(self._on_written, batch, outcome, self._losses))

    def _on_written(
        self, batch: Batch, outcome: Outcome, losses: int, written: asyncio.Future[Written]
    ) -> None:
        self._in_flight.popleft()
        if self._newest is outcome:
            self._newest = None
        if not written.cancelled():
            if losses == self._losses:  # else it is forgotten already, with one that it rested on
                self._finish(batch, written.result())
            elif written.result().recovers_doubtful:
                self._recover_doubtful()
            _tell(outcome, written.result().failure)
            self._submit()

    def _finish(self, batch: Batch, written: Written) -> None:
        """Publish the batch; if it failed, drop it and everything written on top of it."""
        if written.failure is None:
            self._publish(batch)
            if self._lost:
                log.warn("Writing to the data directory again", file=str(self._path), lost=self._lost)
                self._lost = 0
            return
        for collection, change, _ in chain(batch, *self._in_flight, self._pending):
            collection.unstage()
            self.size -= change.growth
            self._lost += 1
        _tell(self._outcome, written.failure)
        self._pending, self._outcome = [], None
        self._losses += 1
        if written.recovers_doubtful:
            self._recover_doubtful()
        self._doubtful = batch if self._file.is_doubtful else []
        self._submitted = self.version
        if time.monotonic() > self._logged_at + LOG_SECONDS:
            self._logged_at = time.monotonic()
            log.error("Cannot write to the data directory", written.failure.message, lost=self._lost)

    def _recover_doubtful(self) -> None:
        self.size += sum(change.growth for _, change, _ in self._doubtful)
        self._publish(self._doubtful)
        self._doubtful, self._submitted = [], self.version

    @staticmethod
    def _publish(batch: Batch) -> None:
        for collection, change, _ in batch:
            collection.publish(change)

    def commit(self) -> None:
        batch, self._pending = self._pending, []
        if not batch:
            return
        written = self._file.write(*_rows(batch), self._file.version)
        self._submitted = batch[-1][1].version
        self._finish(batch, written)
        if written.failure is not None:
            raise InputError(written.failure.message)

    def close(self) -> None:
        """Write pending changes and close the file."""
        self._thread.shutdown()
        with suppress(InputError):  # it is logged, and whoever wrote it was not told that it is kept
            self.commit()
        self._file.close()


def _tell(waiting: Outcome | None, failure: Failure | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(failure)


def _rows(batch: Batch) -> tuple[list[Row], int]:
    return [row for _, _, row in batch], batch[-1][1].version


class _File:
    """The database, reopened after an error, since only that shows whether the last commit took effect."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: tuple[int, int] | None = None
        self._failure = Failure(500, "InternalError", f"{path}: nothing was written: try again")
        """Why the last write that failed did."""
        self._open()
        assert self._database is not None
        try:
            self._check()
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            if sys.version_info >= (3, 12):  # leave a damaged database exactly as it is
                self._database.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)
            self._database.close()
            raise InputError(_why_unusable(error), where=str(path)) from error

    @property
    def is_doubtful(self) -> bool:
        """Whether it is unknown if the last commit took effect."""
        return self._database is None

    def _open(self) -> None:
        self._database: sqlite3.Connection | None = None
        database = None
        try:
            _check_file(self._path)
            self._check_unmoved()
            database = sqlite3.connect(self._path, timeout=1, check_same_thread=False, isolation_level=None)
            database.execute("pragma locking_mode = exclusive")
            _check_is_ours(database)
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = full")
            database.execute("pragma temp_store = memory")
            self.version = _version(database)
            self._inode = _inode(self._path)
        except (OSError, sqlite3.Error) as error:
            if database is not None:
                database.close()
            raise InputError(_why_unusable(error), where=str(self._path)) from error
        self._database = database

    def _check_unmoved(self) -> None:
        if self._inode not in (None, _inode(self._path)):
            raise OSError("it was replaced while in use: restart the server")

    def _check(self) -> None:
        """Check the database for damage; raises."""
        assert self._database is not None
        found = self._database.execute("pragma quick_check(1)").fetchone()[0]
        if found != "ok":
            raise ValueError(found)
        for row in self._rows():
            collection, namespace, name, body, checksum = row
            if checksum is None:  # written by an earlier release
                int(msgspec.json.decode(body)["metadata"]["resourceVersion"])
            elif checksum != _checksum(collection, namespace, name, body):
                raise ValueError(f"the checksum of {collection} {namespace}/{name} does not match")

    def objects(self) -> Iterator[tuple[str, str, str, bytes]]:
        for row in self._rows():
            yield row[0], row[1], row[2], row[3]

    def _rows(self) -> Iterator[tuple[str, str, str, bytes, int | None]]:
        assert self._database is not None
        yield from self._database.execute("select collection, namespace, name, body, checksum from objects")

    def write(self, rows: list[Row], version: int, after: int) -> Written:
        """Write a batch that is based on the version `after`; runs in a thread. Never raises."""
        try:
            if self._database is None:
                known = self.version
                self._reopen()
                if self.version != known:
                    why = "the outcome of an earlier write was unknown and has just been found out: try again"
                    self._failure = Failure(500, "InternalError", f"{self._path}: {why}")
                    return Written(self._failure, True)
            if self.version != after:
                return Written(self._failure)  # that of the write it rests on
            self._check_unmoved()
            self._commit(rows, version)
        except Exception as error:  # whoever waits must be told
            if self._is_kept(version):
                return Written()
            self._failure = _failure(self._path, error)
            return Written(self._failure)
        self.version = version
        return Written()

    def _commit(self, rows: list[Row], version: int) -> None:
        assert self._database is not None
        execute = self._database.execute
        execute("begin immediate")
        for collection, namespace, name, body in rows:
            if body is None:
                execute(
                    "delete from objects where (collection, namespace, name) = (?, ?, ?)",
                    (collection, namespace, name),
                )
            else:
                execute(
                    "insert or replace into objects (collection, namespace, name, body, checksum) "
                    "values (?, ?, ?, ?, ?)",
                    (collection, namespace, name, body, _checksum(collection, namespace, name, body)),
                )
        execute("insert or replace into versions values (0, ?)", (version,))
        execute("commit")

    def _is_kept(self, version: int) -> bool:
        """Whether a failed commit took effect all the same, as it may if the disk failed at its end."""
        try:
            self.close()
            self._reopen()
        except (InputError, sqlite3.Error):
            return False
        return self.version == version

    def _reopen(self) -> None:
        """Open the database again after an error; what it contains then is certainly on disk."""
        known = self.version
        try:
            self._open()
            if self._database is not None and self.version != known:
                # The last commit was written, but perhaps not synced. To sync it now would prove nothing:
                # pages that the kernel failed to sync count as clean afterwards. A checkpoint rewrites them.
                self._database.execute("pragma wal_checkpoint(truncate)").fetchone()
        except (InputError, sqlite3.Error):
            self.close()
            self.version = known
            raise

    def close(self) -> None:
        if self._database is not None:
            database, self._database = self._database, None
            database.close()


def prepare_folder(folder: Path) -> None:
    """Create the folder and an empty database, readable by the owner only; raises InputError."""
    path = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = path.exists() or not any(folder.iterdir())
        mode = folder.stat().st_mode
        if is_ours and not mode & stat.S_ISVTX:
            folder.chmod(0o700)
        elif mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InputError(
                "others may write to this directory: name another one with --data, or chmod 700 this one",
                where=str(folder),
            )
        for suffix in ("", "-wal", "-shm", "-journal"):
            if (each := Path(f"{path}{suffix}")).is_file() and not each.is_symlink():
                each.chmod(0o600)
        if not os.path.lexists(path):
            _create(path)
    except (OSError, sqlite3.Error) as error:
        raise InputError(_why_unusable(error), where=str(path)) from error


def _create(path: Path) -> None:
    """An empty database, put in place when it is complete: an empty file there is never ours."""
    if Path(f"{path}-wal").exists():
        raise InputError(
            f"{path.name}-wal is there without its database: {_RESTORE.replace('move it', 'move both')}",
            where=str(path),
        )
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        database = sqlite3.connect(made, isolation_level=None)
        try:
            database.execute(f"pragma application_id = {APPLICATION}")
            database.executescript(_TABLES)
        finally:
            database.close()
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _check_file(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file: name another directory with --data, or move it away")
    with path.open("rb") as file:
        if not file.read(16).startswith(b"SQLite format 3\0"):
            raise sqlite3.DatabaseError("file is not a database")


def _check_is_ours(database: sqlite3.Connection) -> None:
    """Check that the database is ours; add checksums to one of an earlier release."""
    application = database.execute("pragma application_id").fetchone()[0]
    columns = [row[1] for row in database.execute("pragma table_info(objects)")]
    if application not in (0, APPLICATION) or columns[:4] != ["collection", "namespace", "name", "body"]:
        raise sqlite3.DatabaseError("it is a database of another program")
    if "checksum" not in columns:
        database.execute("alter table objects add column checksum integer")


def _version(database: sqlite3.Connection) -> int:
    known = database.execute("select version from versions").fetchone()
    return int(known[0]) if known else 0


def _inode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _checksum(collection: str, namespace: str, name: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{collection}\0{namespace}\0{name}\0".encode()))


def _why_unusable(error: Exception) -> str:
    """Say why the file cannot be used, and what to do."""
    if isinstance(error, OSError):
        return f"cannot keep objects here: {error.strerror or error}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return "another process is using this file: stop it, or name another directory with --data"
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full: free some space"
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM):
        return f"cannot keep objects here: {error}: check that the directory is writable and the disk healthy"
    return f"this database is damaged or not of `stowplan up` ({error}): {_RESTORE}"


def _failure(path: Path, error: Exception) -> Failure:
    """The failure for a write that was not stored."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        why = "the disk is full: free some space, and writes succeed again"
        return Failure(507, "InsufficientStorage", f"{path}: nothing was written: {why}")
    why = error.message if isinstance(error, InputError) else str(error)
    if isinstance(error, sqlite3.Error):
        why += ": check that the file system has free space, is writable and healthy"
    return Failure(500, "InternalError", f"{path}: nothing was written: {why}")
