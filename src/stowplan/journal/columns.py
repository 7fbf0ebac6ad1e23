"""Columns of many decisions in little memory: most differ from an earlier one in a few rows, or in none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.framework.scores import MAX_SCORE

Values = NDArray[Any]

COLUMN_BYTES, BASE_BYTES, FLAT_BYTES = 450, 250, 150
"""The memory of a column, of a base and of a flat column, without their numbers."""
BASES_COMPARED = 3
"""Some columns alternate, such as those of pods spread over zones."""
MAX_FLAT = 1000
NOWHERE, NO_SCORES = np.empty(0, np.intp), np.empty(0, np.uint8)


class Base(msgspec.Struct, eq=False, gc=False):
    """Values that many columns start from; a single value stands for a column that is the same everywhere."""

    values: Values


FLAT = [Base(np.array([score], np.uint8)) for score in range(MAX_SCORE + 1)]


class Column:
    """A base with the places that differ from it. No msgspec type: `codec.py` encodes it with a hook."""

    __slots__ = ("base", "length", "places", "values")

    def __init__(self, base: Base, length: int, places: Values, values: Values) -> None:
        self.base, self.length, self.places, self.values = base, length, places, values

    @property
    def is_flat(self) -> bool:
        return len(self.base.values) == 1 and not len(self.places)

    def whole(self) -> Values:
        base = self.base.values
        column = np.full(self.length, base[0]) if len(base) == 1 and self.length != 1 else base.copy()
        column[self.places] = self.values
        return column


class _Known(msgspec.Struct, eq=False, gc=False):
    base: Base
    source: Values
    """The unpacked values of the base."""
    last: Values
    """The last source that resembled it, and its column."""
    column: Column


class ColumnStore:
    """Makes columns and counts their bytes. It holds up to `room` bytes itself, which are not counted.

    Which column a new one is compared with only affects its size: any of the same length would do.
    """

    def __init__(self, room: int) -> None:
        self.bytes = 0
        """The size of the columns made so far."""
        self._room = room
        self._held = 0
        self._known: dict[Hashable, list[_Known]] = {}
        self._flat: dict[tuple[int, int], Column] = {}
        self._differs = np.empty(0, np.bool_)

    def flat(self, value: int, length: int) -> Column:
        """A column with the same score everywhere."""
        found = self._flat.get((value, length))
        if found is None:
            if len(self._flat) > MAX_FLAT:
                self._flat.clear()
            found = self._flat[value, length] = Column(FLAT[value], length, NOWHERE, NO_SCORES)
            self.bytes += FLAT_BYTES
        return found

    def column(self, key: Hashable, source: Values, pack: Callable[[Values], Values]) -> Column:
        """`key` is shared by columns that are likely to be similar. `source` must not change later.

        `pack` converts the values to a smaller type.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = []
        for known in found:
            if known.last is source:
                return known.column
        for place, known in enumerate(found):
            column = self._difference(known, source, pack)
            if column is not None:
                known.last, known.column = source, column
                if place:
                    found.insert(0, found.pop(place))
                return column
        return self._new(found, source, pack(source))

    def _difference(self, known: _Known, source: Values, pack: Callable[[Values], Values]) -> Column | None:
        """None if they differ so much that a new base would cost less memory."""
        before, length = known.source, len(source)
        if len(before) != length or before.dtype != source.dtype:
            return None
        if len(self._differs) != length:
            self._differs = np.empty(length, np.bool_)
        places = np.not_equal(before, source, self._differs).nonzero()[0]
        if len(places) ** 2 > length:  # up to the root of the length costs the least memory overall
            return None
        self.bytes += COLUMN_BYTES + 9 * len(places)
        return Column(known.base, length, places, pack(source[places]))

    def _new(self, found: list[_Known], source: Values, values: Values) -> Column:
        base = Base(_shorten(values))
        column = Column(base, len(values), NOWHERE, values[:0])
        found.insert(0, _Known(base, source, source, column))
        del found[BASES_COMPARED:]
        self.bytes += COLUMN_BYTES + BASE_BYTES + base.values.nbytes
        self._held += 2 * source.nbytes + base.values.nbytes + COLUMN_BYTES
        if self._held > self._room:
            self._known.clear()
            self._held = 0
        return column


def _shorten(values: Values) -> Values:
    # Comparing the ends first is faster: they differ in most columns.
    is_flat = len(values) > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return values[:1].copy() if is_flat else values
