"""Columns of many decisions in little room: most differ from an earlier one in a few rows, or in none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.framework.scores import MAX_SCORE

Values = NDArray[Any]

COLUMN_BYTES, BASE_BYTES, FLAT_BYTES = 450, 250, 150
"""What a column, the base of one, and a flat one take besides their numbers."""
BASES_TRIED = 3
"""Some columns go to and fro, as those of pods that are spread over zones."""
FLAT_KEPT = 1000
NOWHERE, NO_SCORES = np.empty(0, np.intp), np.empty(0, np.uint8)


class Base(msgspec.Struct, eq=False, gc=False):
    """Values that many columns start from; a single one stands for a column that has it everywhere."""

    values: Values


FLAT = [Base(np.array([score], np.uint8)) for score in range(MAX_SCORE + 1)]


class Column(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A base with the places that are different."""

    base: Base
    length: int
    places: Values
    values: Values

    def whole(self) -> Values:
        base = self.base.values
        column = np.full(self.length, base[0]) if len(base) == 1 and self.length != 1 else base.copy()
        column[self.places] = self.values
        return column


class _Known(msgspec.Struct, eq=False, gc=False):
    base: Base
    source: Values
    """What the base was packed from."""
    last: Values
    """The last source that was found to resemble it, and what became of that one."""
    column: Column


class ColumnStore:
    """Makes columns, and counts the bytes that they take, but for those it holds itself: up to `room`.

    What a new column is compared with is a matter of room alone: any other of its length would do.
    """

    def __init__(self, room: int) -> None:
        self.bytes = 0
        """What was made so far."""
        self._room = room
        self._held = 0
        self._known: dict[Hashable, list[_Known]] = {}
        self._flat: dict[tuple[int, int], Column] = {}
        self._differs = np.empty(0, np.bool_)

    def flat(self, value: int, length: int) -> Column:
        """A column that has the same score everywhere."""
        found = self._flat.get((value, length))
        if found is None:
            if len(self._flat) > FLAT_KEPT:
                self._flat.clear()
            found = self._flat[value, length] = Column(FLAT[value], length, NOWHERE, NO_SCORES)
            self.bytes += FLAT_BYTES
        return found

    def column(self, key: Hashable, source: Values, packed: Callable[[Values], Values]) -> Column:
        """`key` says which others it is likely to resemble. Nobody may change `source` later.

        `packed` puts each number into less room.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = []
        for known in found:
            if known.last is source:
                return known.column
        for place, known in enumerate(found):
            column = self._difference(known, source, packed)
            if column is not None:
                known.last, known.column = source, column
                if place:
                    found.insert(0, found.pop(place))
                return column
        return self._new(found, source, packed(source))

    def _difference(self, known: _Known, source: Values, packed: Callable[[Values], Values]) -> Column | None:
        """None where there is little alike. Up to the root of the length takes the least room in all."""
        before, length = known.source, len(source)
        if len(before) != length or before.dtype != source.dtype:
            return None
        if len(self._differs) != length:
            self._differs = np.empty(length, np.bool_)
        places = np.not_equal(before, source, self._differs).nonzero()[0]
        if len(places) ** 2 > length:
            return None
        self.bytes += COLUMN_BYTES + 9 * len(places)
        return Column(known.base, length, places, packed(source[places]))

    def _new(self, found: list[_Known], source: Values, values: Values) -> Column:
        base = Base(_shortened(values))
        column = Column(base, len(values), NOWHERE, values[:0])
        found.insert(0, _Known(base, source, source, column))
        del found[BASES_TRIED:]
        self.bytes += COLUMN_BYTES + BASE_BYTES + base.values.nbytes
        self._held += 2 * source.nbytes + base.values.nbytes + COLUMN_BYTES
        if self._held > self._room:
            self._known.clear()
            self._held = 0
        return column


def _shortened(values: Values) -> Values:
    # The first look is for speed: most columns have not the same at both ends.
    is_flat = len(values) > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return values[:1].copy() if is_flat else values
