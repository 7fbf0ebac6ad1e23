"""Files of a journal made one, a group at a time: however large they are, little of them is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stowplan.journal.parquet import DAMAGED, GROUP_BYTES, SCHEMA, groups_in, with_evidence
from stowplan.journal.stored import GroupJoiner

Table = Any
"""Arrow's, which has no types."""


class DamagedFileError(Exception):
    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(str(error))
        self.path = path


def merged(paths: Iterable[Path], breathe: Callable[[], None]) -> Iterator[Table]:
    """The groups of all files in order: large ones as they are, small ones that follow each other as one.

    `breathe` is called before each. A file that cannot be read raises DamagedFileError.
    """
    joined = _Joined()
    for path in paths:
        for group in _groups(path):
            breathe()
            is_small = group["evidence"].nbytes < GROUP_BYTES // 2
            if is_small:
                with _reading(path):
                    joined.add(group)
            if joined.bytes >= (GROUP_BYTES if is_small else 1):
                yield joined.table()
                joined = _Joined()
            if not is_small:
                yield group
    if joined.bytes:
        yield joined.table()


def _groups(path: Path) -> Iterator[Table]:
    with _reading(path):
        for group in groups_in(path):
            if not group.schema.equals(SCHEMA):
                raise ValueError(f"its columns are {group.schema.names}, not those of a journal")
            yield group


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise DamagedFileError(path, error) from error


class _Joined:
    def __init__(self) -> None:
        self.bytes = 0
        self._tables: list[Table] = []
        self._evidence: list[bytes] = []
        self._joiner = GroupJoiner()

    def add(self, group: Table) -> None:
        rows = self._joiner.moved(group["evidence"].to_pylist())
        self._tables.append(group.drop_columns("evidence"))
        self._evidence += rows
        self.bytes += sum(map(len, rows))

    def table(self) -> Table:
        return with_evidence(self._tables, self._evidence)
