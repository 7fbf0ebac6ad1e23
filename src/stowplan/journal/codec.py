"""Encodes records for the journal's `evidence` column, and lists their fields for JSON and Parquet.

A record refers to the row of its group that has the same node names or the same base of a column, so a group
can be read alone, and a record of it together with a few others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stowplan.journal.record import NO_SCORES, NOWHERE, PLACE, Attempt, Base, Column, NodeNames, Record

Interned = dict[Any, Any]


class Leaf(NamedTuple):
    """A field of a record or of its attempt."""

    name: str
    kind: object
    get: Callable[[Record], Any]


def _leaves() -> Iterator[Leaf]:
    for field in msgspec.structs.fields(Record):
        if field.type is not Attempt:
            yield Leaf(field.name, field.type, attrgetter(field.name))
            continue
        for inner in msgspec.structs.fields(Attempt):
            yield Leaf(inner.encode_name, inner.type, attrgetter(f"{field.name}.{inner.name}"))


LEAVES = {leaf.name: leaf for leaf in _leaves()}


class GroupWriter:
    """Encodes the records of one group, in order."""

    def __init__(self) -> None:
        self._row = -1
        self._known: dict[int, tuple[object, object]] = {}
        """By id: the encoding for later rows, and the object, which must live as long as its id is used."""
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._encode_shared).encode

    def encode(self, record: Record) -> bytes:
        self._row += 1
        return self._encode(record)

    def _encode_shared(self, found: object) -> object:
        known = self._known.get(id(found))
        if known is not None:
            return known[0]
        if isinstance(found, Column):
            return self._encode_column(found)
        assert isinstance(found, NodeNames)
        self._known[id(found)] = ((self._row, None), found)
        return self._row, found.to_list()

    def _encode_column(self, column: Column) -> object:
        base, places = column.base, column.places
        own = None
        reference = self._known.get(id(base))
        if reference is None:
            reference = self._known[id(base)] = ((self._row, len(self._known)), base)
            own = base.values.tobytes()
        changes = (
            (places.astype(PLACE, copy=False).tobytes(), column.values.tobytes())
            if len(places)
            else (b"", b"")
        )
        kind = base.values.dtype.str
        self._known[id(column)] = ((reference[0], kind, None, column.length, *changes), column)
        return reference[0], kind, own, column.length, *changes


class GroupReader:
    """Decodes records of one group; `evidence` returns the bytes of a row.

    Readers with the same `interned` share equal names and bases, so that they are written once when their
    groups are merged.
    """

    def __init__(self, evidence: Callable[[int], bytes], interned: Interned | None = None) -> None:
        self._evidence, self._interned = evidence, interned
        self._shared: dict[object, Any] = {}
        self._decode = msgspec.msgpack.Decoder(Record, dec_hook=self._decode_shared).decode

    def record(self, row: int) -> Record:
        return self._decode(self._evidence(row))

    def _decode_shared(self, kind: type, stored: Any) -> object:
        if kind is NodeNames:
            row, names = stored
            if names is not None and row not in self._shared:
                made = NodeNames(names, len(names))
                self._shared[row] = made if self._interned is None else self._intern(tuple(names), made)
            return self._find(row, row)
        (row, number), dtype, own, length, places, values = stored
        if own is not None and (row, number) not in self._shared:
            base = Base(np.frombuffer(own, dtype))
            self._shared[row, number] = base if self._interned is None else self._intern((dtype, own), base)
        base = self._find((row, number), row)
        if places:
            return Column(base, length, np.frombuffer(places, PLACE), np.frombuffer(values, dtype))
        same = self._shared.get((row, number, length))
        if same is None:  # most of these recur, and are written faster as the same object
            same = self._shared[row, number, length] = Column(base, length, NOWHERE, NO_SCORES)
        return same

    def _intern(self, key: object, made: object) -> Any:
        assert self._interned is not None
        return self._interned.setdefault(key, made)

    def _find(self, key: object, row: int) -> Any:
        if key not in self._shared:
            self.record(row)  # decoding the row that holds it adds it
        return self._shared[key]
