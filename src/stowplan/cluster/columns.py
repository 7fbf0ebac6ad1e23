"""The building blocks of tables: columns, labels, and columns that are kept while rows stay the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.selectors import Requirement

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int32]
Rows = NDArray[np.intp]
Columns = tuple[NDArray[Any], ...]

KEPT_BYTES = 64 * 2**20
"""How much memory kept columns may take before the least recently used ones go."""


class LabelColumn:
    """The values of one label: an id a row, -1 where the node lacks it."""

    __slots__ = ("ids", "index", "values")

    def __init__(self, ids: Ids, index: dict[str, int], values: list[str]) -> None:
        self.ids, self.index, self.values = ids, index, values

    @property
    def present(self) -> Mask:
        return self.ids >= 0

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.ids[row] = -1
            return
        found = self.index.get(value)
        if found is None:
            found = self.index[value] = len(self.values)
            self.values.append(value)
        self.ids[row] = found

    def matches(self, requirement: Requirement) -> Mask:
        operator, wanted = requirement.operator, requirement.values
        if operator == "Exists":
            return self.ids >= 0
        if operator == "DoesNotExist":
            return self.ids < 0
        if operator in ("In", "NotIn"):
            found = [self.index[value] for value in wanted if value in self.index]
            inside: Mask = self.ids == found[0] if len(found) == 1 else np.isin(self.ids, found)
            return inside if operator == "In" else ~inside
        # Asked once for each value; the last entry answers for nodes without the label, whose id is -1.
        answers = [requirement.matches({requirement.key: value}) for value in self.values]
        matching: Mask = np.array([*answers, False])[self.ids]
        return matching


class Interned:
    """A column of values that few nodes differ in, as ids into a list."""

    def __init__(self) -> None:
        self.ids: Ids = np.zeros(0, np.int32)
        self.values: list[Any] = []
        self._index: dict[Hashable, int] = {}

    def id_of(self, value: Hashable) -> int:
        if value not in self._index:
            self._index[value] = len(self.values)
            self.values.append(value)
        return self._index[value]

    def each(self, answer: Callable[[Any], int], ids: Ids, dtype: type = np.bool_) -> NDArray[Any]:
        """A column from a function of the value, called once for each distinct value."""
        column: NDArray[Any] = np.array([answer(value) for value in self.values], dtype)[ids]
        return column


class Resources:
    """Amounts by resource and row: one array, with a line a resource. What nobody has named is all zeros."""

    __slots__ = ("amounts", "index")

    def __init__(self, amounts: Ints, index: dict[str, int]) -> None:
        self.amounts, self.index = amounts, index

    def __getitem__(self, resource: str) -> Ints:
        line = self.index.get(resource, MANY)
        if line < len(self.amounts):
            return self.amounts[line]
        return np.zeros(self.amounts.shape[1], np.int64)

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def block(self, resources: Sequence[str]) -> Ints:
        """Several resources at once, a line each."""
        first = self.index.get(resources[0], MANY)
        last = first + len(resources)
        if last <= len(self.amounts) and all(
            self.index.get(name) == first + place for place, name in enumerate(resources)
        ):
            return self.amounts[first:last]
        return np.stack([self[name] for name in resources])

    def at(self, rows: Rows) -> Resources:
        """A copy of some rows."""
        return Resources(self.amounts[:, rows], self.index)

    def copy(self) -> Resources:
        return Resources(self.amounts.copy(), self.index)

    def grow(self, lines: int, length: int) -> None:
        """Room for more resources or rows."""
        grown = np.zeros((max(lines, len(self.amounts)), max(length, self.amounts.shape[1])), np.int64)
        grown[: len(self.amounts), : self.amounts.shape[1]] = self.amounts
        self.amounts = grown

    def line(self, resource: str) -> Ints:
        """The line of a resource, to be changed; a new one where nobody has named it before."""
        found = self.index.setdefault(resource, len(self.index))
        if found >= len(self.amounts):
            self.grow(len(self.index), 0)
        return self.amounts[found]

    def view(self, length: int) -> Resources:
        """The first rows, read-only."""
        return Resources(read_only(self.amounts[:, :length]), self.index)


MANY = 2**31


class ChangeLog:
    """Rows in the order they changed. Old entries are dropped: who is that far behind starts from scratch."""

    def __init__(self, kept: int = 1024) -> None:
        self._rows: list[int] = []
        self._dropped = 0
        self._kept = kept
        self.position = 0

    def mark(self, row: int) -> None:
        self._rows.append(row)
        self.position += 1
        if len(self._rows) > 2 * self._kept:
            del self._rows[: self._kept]
            self._dropped += self._kept

    def since(self, position: int) -> list[int] | None:
        """The rows that changed after `position`; None if that is no longer known."""
        return None if position < self._dropped else self._rows[position - self._dropped :]


class _Entry(NamedTuple):
    columns: Columns
    nodes: int
    usage: int
    size: int


class KeptColumns:
    """Columns by key, with how far each has followed the changes of nodes and of the pods on them."""

    def __init__(self) -> None:
        self.node_changes, self.usage_changes = ChangeLog(), ChangeLog()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._bytes = 0

    def find(self, key: Hashable, usage: bool) -> tuple[Columns, list[int]] | None:
        """What is kept under the key, and the rows that changed since; None if there is nothing."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        changed: list[int] | None = []
        if entry.nodes != self.node_changes.position:
            changed = self.node_changes.since(entry.nodes)
        if changed is not None and usage and entry.usage != self.usage_changes.position:
            used = self.usage_changes.since(entry.usage)
            changed = None if used is None else changed + used
        if changed is None:
            return None
        return entry.columns, sorted(set(changed)) if len(changed) > 1 else changed

    def put(self, key: Hashable, columns: Columns) -> None:
        previous = self._entries.pop(key, None)
        size = sum(column.nbytes for column in columns) + 500
        self._bytes += size - (previous.size if previous else 0)
        self._entries[key] = _Entry(columns, self.node_changes.position, self.usage_changes.position, size)
        while self._bytes > KEPT_BYTES and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1].size

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0


def longer(column: NDArray[Any], length: int) -> NDArray[Any]:
    grown = np.zeros(length, column.dtype)
    grown[: len(column)] = column
    return grown


def read_only(column: NDArray[Any]) -> NDArray[Any]:
    view = column.view()
    view.flags.writeable = False
    return view
