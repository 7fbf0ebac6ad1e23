"""A store that survives: every change goes into SQLite, and a write is answered when it is on disk.

Writes that come while one commit runs share the next one, so that many of them cost little more than one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from stowplan.apiserver import managed
from stowplan.apiserver.store import Change, Collection, Store
from stowplan.errors import InputError

Json = dict[str, Any]
Row = tuple[str, str, str, int, bytes | None]
"""Collection, namespace, name, version, and the object, or None if it is gone."""

FILE = "objects.sqlite3"
_TABLES = """
create table if not exists objects (
    collection text, namespace text, name text, body blob, primary key (collection, namespace, name)
) without rowid;
create table if not exists versions (only integer primary key check (only = 0), version integer);
"""


class DurableStore(Store):
    """Open until `close`; one process at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                folder / FILE, timeout=1, check_same_thread=False, isolation_level=None
            )
            self._database.execute("pragma locking_mode = exclusive")
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = full")
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            why = "another process does so" if "locked" in str(error) else error
            raise InputError(f"no objects can be kept there: {why}", where=str(folder)) from error
        self._kept: dict[str, list[tuple[str, str, bytes]]] = defaultdict(list)
        for collection, *row in self._database.execute(
            "select collection, namespace, name, body from objects"
        ):
            self._kept[collection].append((row[0], row[1], row[2]))
        known = self._database.execute("select version from versions").fetchone()
        self.version = known[0] if known else 0
        self._pending: list[Row] = []
        self._next: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "stowplan-data")
        self.on_change = self._note

    def collection(
        self, name: str, fields: Callable[[Json], Mapping[str, str]] = lambda data: {}
    ) -> Collection:
        is_new = name not in self.collections
        found = super().collection(name, fields)
        if is_new:
            found.forgotten = self.version
            for namespace, object_name, body in self._kept.pop(name, ()):
                data = msgspec.json.decode(body)
                owners = managed.parsed(data["metadata"].pop("managedFields", None))
                found.restore((namespace, object_name), msgspec.json.encode(data), managed.Resolved(owners))
        return found

    def _note(self, collection: Collection, change: Change) -> None:
        record = change.record
        body = None if change.is_removal else record.full
        self._pending.append((collection.name, *record.key, record.version, body))

    async def committed(self) -> None:
        """Until all that was written so far is on disk; those who come during a commit share the next."""
        if self._pending and self._next is None:
            self._next = asyncio.ensure_future(self._commit_soon())
        if self._next is not None:
            await asyncio.shield(self._next)

    async def _commit_soon(self) -> None:
        await asyncio.sleep(0)  # what else is written in this turn of the loop comes along
        rows, self._pending = self._pending, []
        self._next = None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)

    def _write(self, rows: list[Row]) -> None:
        if not rows:
            return
        execute = self._database.execute
        execute("begin")
        try:
            for collection, namespace, name, _, body in rows:
                if body is None:
                    execute(
                        "delete from objects where (collection, namespace, name) = (?, ?, ?)",
                        (collection, namespace, name),
                    )
                else:
                    execute(
                        "insert or replace into objects values (?, ?, ?, ?)",
                        (collection, namespace, name, body),
                    )
            execute("insert or replace into versions values (0, ?)", (max(row[3] for row in rows),))
            execute("commit")
        except sqlite3.Error:
            execute("rollback")
            raise

    def close(self) -> None:
        """Write what is left and let go of the file."""
        self._write(self._pending)
        self._pending = []
        self._thread.shutdown()
        self._database.close()
