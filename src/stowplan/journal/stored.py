"""Records as bytes, for the `evidence` of a journal's rows.

A record refers to what an earlier one of its group holds too: the names of nodes, the base of a column. So a
group can be read alone, and a record of it with a few others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from stowplan.framework.status import Status
from stowplan.journal.columns import Base, Column
from stowplan.journal.record import Attempt, KeptFilter, KeptPod, KeptScores, Record

PLACE = np.dtype("<i4")


class StoredColumn(msgspec.Struct, array_like=True, gc=False):
    row: int
    """Of the record in the group that has the base; its own, where the base is here."""
    ordinal: int
    """Which of that record's columns has it."""
    kind: str
    """As NumPy writes the type of the numbers."""
    base: bytes
    length: int
    places: bytes
    values: bytes


class StoredFilter(msgspec.Struct, array_like=True, gc=False):
    plugin: str
    reasons: tuple[str, ...]
    statuses: tuple[Status, ...]
    column: StoredColumn


class StoredScores(msgspec.Struct, array_like=True, gc=False):
    plugin: str
    weight: int
    column: StoredColumn


class StoredRecord(msgspec.Struct, array_like=True, gc=False):
    number: int
    pod: KeptPod
    attempt: Attempt
    node: str
    nominated: str
    victims: tuple[tuple[str, int], ...]
    names_row: int
    """Of the record in the group that has the names; its own, where they are here."""
    names: tuple[str, ...]
    node_count: int
    looked_at: bytes | None
    not_looked_at: bytes | None
    narrowed_by: tuple[str, ...]
    pre_filter: Status | None
    post_filter: Status | None
    filters: tuple[StoredFilter, ...]
    overruled: dict[int, Status]
    scores: tuple[StoredScores, ...]
    chosen: str
    is_scored: bool
    has_scorers: bool
    error: str

    @property
    def columns(self) -> list[StoredColumn]:
        return [*(each.column for each in self.filters), *(each.column for each in self.scores)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredRecord).decode


class GroupWriter:
    """Encodes the records of one group, in order. Plain tuples stand for the structs above: made faster."""

    def __init__(self) -> None:
        self._row = 0
        self._bases: dict[int, tuple[int, int, Base]] = {}
        self._names: dict[tuple[int, int], tuple[int, object]] = {}
        self._again: dict[int, tuple[tuple[object, ...], Column]] = {}
        """Columns that were stored before, as they are stored from then on."""

    def encoded(self, record: Record) -> bytes:
        row, self._row = self._row, self._row + 1
        filters = [
            (plugin, tuple(reasons), statuses, self._column(column, row, ordinal))
            for ordinal, (plugin, reasons, statuses, column) in enumerate(record.filters)
        ]
        scores = [
            (each.plugin, each.weight, self._column(each.column, row, ordinal))
            for ordinal, each in enumerate(record.scores, len(filters))
        ]
        # The list is held as long as the group is written: until then no other has its id. It may grow.
        names_row, _ = self._names.setdefault((id(record.names), record.node_count), (row, record.names))
        return _encode(
            (
                record.number,
                record.pod,
                record.attempt,
                record.node,
                record.nominated,
                record.victims,
                names_row,
                record.names[: record.node_count] if names_row == row else (),
                record.node_count,
                None if record.looked_at is None else record.looked_at.astype(PLACE).tobytes(),
                record.not_looked_at,
                record.narrowed_by,
                record.pre_filter,
                record.post_filter,
                filters,
                record.overruled,
                scores,
                record.chosen,
                record.is_scored,
                record.has_scorers,
                record.error,
            )
        )

    def _column(self, column: Column, row: int, ordinal: int) -> tuple[object, ...]:
        again = self._again.get(id(column))
        if again is not None:
            return again[0]
        base, places, values = column.base, column.places, column.values
        at, which, _ = self._bases.setdefault(id(base), (row, ordinal, base))
        kind, length = base.values.dtype.str, column.length
        changed = (
            (length, places.astype(PLACE).tobytes(), values.tobytes()) if len(places) else (length, b"", b"")
        )
        stored = (at, which, kind, b"", *changed)
        self._again[id(column)] = (stored, column)
        return (at, which, kind, base.values.tobytes(), *changed) if (at, which) == (row, ordinal) else stored


class GroupReader:
    """Decodes records of one group; `evidence` gives the bytes of a row."""

    def __init__(self, evidence: Callable[[int], bytes]) -> None:
        self._evidence = evidence
        self._stored: dict[int, StoredRecord] = {}
        self._bases: dict[tuple[int, int], Base] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def record(self, row: int) -> Record:
        stored = self._row(row)
        filters = [
            KeptFilter(each.plugin, each.reasons, each.statuses, self._column(each.column))
            for each in stored.filters
        ]
        scores = [KeptScores(each.plugin, each.weight, self._column(each.column)) for each in stored.scores]
        looked_at = stored.looked_at
        return Record(
            number=stored.number,
            pod=stored.pod,
            attempt=stored.attempt,
            node=stored.node,
            nominated=stored.nominated,
            victims=stored.victims,
            names=self._names.setdefault(stored.names_row, self._row(stored.names_row).names),
            node_count=stored.node_count,
            looked_at=None if looked_at is None else np.frombuffer(looked_at, PLACE).astype(np.intp),
            not_looked_at=stored.not_looked_at,
            narrowed_by=stored.narrowed_by,
            pre_filter=stored.pre_filter,
            post_filter=stored.post_filter,
            filters=tuple(filters),
            overruled=stored.overruled,
            scores=tuple(scores),
            chosen=stored.chosen,
            is_scored=stored.is_scored,
            has_scorers=stored.has_scorers,
            error=stored.error,
        )

    def _row(self, row: int) -> StoredRecord:
        found = self._stored.get(row)
        if found is None:
            found = self._stored[row] = _decode(self._evidence(row))
        return found

    def _column(self, stored: StoredColumn) -> Column:
        base = self._bases.get((stored.row, stored.ordinal))
        if base is None:
            holder = self._row(stored.row).columns[stored.ordinal]
            base = Base(np.frombuffer(holder.base, holder.kind))
            self._bases[stored.row, stored.ordinal] = base
        places = np.frombuffer(stored.places, PLACE).astype(np.intp)
        return Column(base, stored.length, places, np.frombuffer(stored.values, stored.kind))


class GroupJoiner:
    """Makes one group of several: what two of them hold is held once."""

    def __init__(self) -> None:
        self._count = 0
        self._bases: dict[tuple[str, bytes], tuple[int, int]] = {}
        self._names: dict[tuple[str, ...], int] = {}

    def moved(self, group: Iterable[bytes]) -> list[bytes]:
        """The rows of the next group, as rows of the joined one."""
        bases: dict[tuple[int, int], tuple[int, int]] = {}
        names: dict[int, int] = {}
        """Where they were in the group, and where they are now."""
        moved = []
        for row, evidence in enumerate(group):
            stored = _decode(evidence)
            if stored.names_row == row:
                names[row] = self._names.setdefault(stored.names, self._count)
                stored.names = stored.names if names[row] == self._count else ()
            stored.names_row = names[stored.names_row]
            for ordinal, column in enumerate(stored.columns):
                if (column.row, column.ordinal) == (row, ordinal):
                    here = self._count, ordinal
                    bases[row, ordinal] = self._bases.setdefault((column.kind, column.base), here)
                    column.base = column.base if bases[row, ordinal] == here else b""
                column.row, column.ordinal = bases[column.row, column.ordinal]
            moved.append(_encode(stored))
            self._count += 1
        return moved
