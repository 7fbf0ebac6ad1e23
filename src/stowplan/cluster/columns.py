"""The building blocks of tables: columns, labels, ports, images, and columns that are cached by row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import ContainerImage
from stowplan.api.pod import HostPort
from stowplan.api.selectors import Requirement

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int32]
Rows = NDArray[np.intp]
Columns = tuple[NDArray[Any], ...]

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)

MAX_ASKED = 1024
"""How many keys to remember that were asked for once."""

KEPT_BYTES, KEPT_BYTES_PER_ROW = 16 * 2**20, 1024
"""Bytes of cached columns before the least recently used are dropped; little more than a CPU cache."""


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The values in ascending order, each once.

    `np.unique` answers the same, but imports numpy.ma with its first call, which takes longer than hundreds
    of decisions: the first pod that needs to evict others would wait for it.
    """
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


class LabelColumn:
    """The values of one label: an id per row, -1 for nodes without the label."""

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
            found = len(self.values)
            self.values.append(value)
            self.index[value] = found
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
        matching: Mask = np.array([*answers, False]).take(self.ids)
        return matching


class Interned:
    """A column of values that few nodes differ in, as ids into a list."""

    def __init__(self) -> None:
        self.ids: Ids = np.zeros(0, np.int32)
        self.values: list[Any] = []
        self._index: dict[Hashable, int] = {}

    def id_of(self, value: Hashable) -> int:
        found = self._index.get(value)
        if found is None:
            found = len(self.values)
            self.values.append(value)
            self._index[value] = found
        return found

    def each(self, answer: Callable[[Any], int], ids: Ids, dtype: type = np.bool_) -> NDArray[Any]:
        """A column from a function of the value, called once for each distinct value."""
        column: NDArray[Any] = np.array([answer(value) for value in self.values], dtype).take(ids)
        return column


class Resources:
    """Amounts by resource and row: one array with a line per resource. Unknown resources are all zeros."""

    __slots__ = ("_owns_index", "amounts", "index")

    def __init__(self, amounts: Ints, index: dict[str, int], *, owns_index: bool = False) -> None:
        self.amounts, self.index = amounts, index
        self._owns_index = owns_index
        """Copies and views share the index of the table they come from, and must not add to it."""

    def __getitem__(self, resource: str) -> Ints:
        line = self.index.get(resource, MANY)
        if line < len(self.amounts):
            found: Ints = self.amounts[line]
            return found
        return np.zeros(self.amounts.shape[1], np.int64)

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def row(self, row: int) -> RowAmounts:
        """One row, as plain numbers."""
        return RowAmounts(zip(self.index, self.amounts[:, row].tolist(), strict=False))

    def at(self, rows: Rows) -> Resources:
        """A copy of some rows."""
        return Resources(self.amounts[:, rows], self.index)

    def copy(self) -> Resources:
        return Resources(self.amounts.copy(), self.index)

    def grow(self, lines: int, length: int) -> None:
        """Make room for more resources or rows."""
        grown = np.zeros((max(lines, len(self.amounts)), max(length, self.amounts.shape[1])), np.int64)
        grown[: len(self.amounts), : self.amounts.shape[1]] = self.amounts
        self.amounts = grown

    def line(self, resource: str) -> Ints:
        """The writable line of a resource, which is added if it is new."""
        found = self.index.get(resource)
        if found is None:
            if not self._owns_index:
                self.index, self._owns_index = dict(self.index), True
            found = self.index[resource] = len(self.index)
        if found >= len(self.amounts):
            self.grow(found + 1 + found // 8, 0)  # more at once, the more there are
        line: Ints = self.amounts[found]
        return line

    def view(self, length: int) -> Resources:
        """The first rows, read-only."""
        return Resources(read_only(self.amounts[:, :length]), self.index)


class RowAmounts(dict[str, int]):
    """Amounts by resource of one row, as plain numbers."""

    __slots__ = ()

    def __missing__(self, resource: str) -> int:
        return 0


MANY = 2**31


class ChangeLog(Generic[T]):
    """Rows (or names) in the order they changed. Old entries are dropped: a reader that is further behind
    starts from scratch."""

    def __init__(self, kept: int = 1024) -> None:
        self._rows: list[T] = []
        self._dropped = 0
        self._kept = kept
        self.position = 0

    def mark(self, row: T) -> None:
        self._rows.append(row)
        self.position += 1
        if len(self._rows) > 2 * self._kept:
            del self._rows[: self._kept]
            self._dropped += self._kept

    def since(self, position: int) -> list[T] | None:
        """The rows that changed after `position`; None if that is no longer known."""
        return None if position < self._dropped else self._rows[position - self._dropped :]


class KeptEntry:
    """Columns, what was made of them, and how far they have followed the changes."""

    __slots__ = ("columns", "is_used", "nodes", "product", "size", "usage")

    def __init__(self, columns: Columns, product: object) -> None:
        self.columns, self.product = columns, product
        self.size = sum(column.nbytes for column in columns) + 500
        self.nodes = self.usage = 0
        self.is_used = False


class KeptColumns:
    """Columns by key, worked out again only for rows that changed; those not asked for lately go first."""

    def __init__(self) -> None:
        self.node_changes: ChangeLog[int] = ChangeLog()
        self.usage_changes: ChangeLog[int] = ChangeLog()
        self.pod_changes: ChangeLog[int] = ChangeLog()
        """Rows with a pod that changed but uses the same resources."""
        self.entries: dict[Hashable, KeptEntry] = {}
        self._bytes = 0
        self._last_change: tuple[object, list[int] | None] = (None, None)
        self._asked: set[Hashable] = set()

    def changed_since(self, entry: KeptEntry, usage: bool) -> list[int] | None:
        """The rows that changed since the entry caught up last; None if that is no longer known."""
        span = (
            entry.nodes,
            entry.usage if usage else -1,
            self.node_changes.position,
            self.usage_changes.position,
        )
        if self._last_change[0] != span:
            self._last_change = (span, self._find_changed(entry, usage))
        return self._last_change[1]

    def _find_changed(self, entry: KeptEntry, usage: bool) -> list[int] | None:
        nodes = self.node_changes.since(entry.nodes)
        used = self.usage_changes.since(entry.usage) if usage else []
        if nodes is None or used is None:
            return None
        rows = nodes + used if nodes else used
        return sorted(set(rows)) if len(rows) > 1 else rows

    def catch_up(self, entry: KeptEntry) -> None:
        entry.nodes, entry.usage = self.node_changes.position, self.usage_changes.position

    def put(self, key: Hashable, columns: Columns, product: object) -> None:
        entry = KeptEntry(columns, product)
        self.catch_up(entry)
        previous = self.entries.pop(key, None)
        self.entries[key] = entry
        self._bytes += entry.size - (0 if previous is None else previous.size)
        limit = KEPT_BYTES + KEPT_BYTES_PER_ROW * len(columns[0])
        while self._bytes > limit and len(self.entries) > 1:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the oldest entry; one that was used since gets a second chance."""
        key = next(iter(self.entries))
        entry = self.entries.pop(key)
        if entry.is_used:
            entry.is_used = False
            self.entries[key] = entry
        else:
            self._bytes -= entry.size

    def is_repeated(self, key: Hashable) -> bool:
        """Whether columns of this key are kept, or were asked for before: then they are worth keeping."""
        if key in self.entries or key in self._asked:
            return True
        if len(self._asked) > MAX_ASKED:
            self._asked.clear()
        self._asked.add(key)
        return False

    def clear(self) -> None:
        self.entries.clear()
        self._bytes = 0


class lazy(Generic[T]):  # noqa: N801
    """An attribute that is computed on first use; functools.cached_property takes a lock for that."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, thing: object, owner: type | None = None) -> T:
        found: T = self.make(thing)
        thing.__dict__[self.name] = found
        return found


def longer(column: NDArray[Any], length: int) -> NDArray[Any]:
    grown = np.zeros(length, column.dtype)
    grown[: len(column)] = column
    return grown


def read_only(column: NDArray[Any]) -> NDArray[Any]:
    view = column.view()
    view.flags.writeable = False
    return view


class PortIndex:
    """Host ports by protocol and number, then address: the rows where they are taken."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], dict[str, set[int]]] = {}
        self._on: dict[int, set[HostPort]] = {}

    def on(self, row: int) -> Iterable[HostPort]:
        return self._on.get(row, ())

    def add(self, row: int, port: HostPort) -> None:
        self._rows.setdefault((port.protocol, port.port), {}).setdefault(port.ip, set()).add(row)
        self._on.setdefault(row, set()).add(port)

    def remove(self, row: int, port: HostPort) -> None:
        # parity: ports in use are a set, so the first of two pods with the same port frees it
        self._rows[port.protocol, port.port][port.ip].discard(row)
        self._on[row].discard(port)

    def taken(self, wanted: Sequence[HostPort], length: int) -> Mask:
        mask = np.zeros(length, np.bool_)
        for port in wanted:
            by_address = self._rows.get((port.protocol, port.port), {})
            addresses = by_address if port.is_on_every_address else ("0.0.0.0", port.ip)
            for address in addresses:
                mask[list(by_address.get(address, ()))] = True
        return mask

    def move(self, source: int, target: int) -> None:
        for port in tuple(self.on(source)):
            self.remove(source, port)
            self.add(target, port)


def ports_conflict(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> bool:
    return any(
        port.protocol == other.protocol
        and port.port == other.port
        and (port.is_on_every_address or other.is_on_every_address or port.ip == other.ip)
        for port in wanted
        for other in taken
    )


class ImageState(NamedTuple):
    size: int
    """In bytes, as reported by the first node that had the image."""
    rows: set[int]


class ImageIndex(dict[str, ImageState]):
    """Images by each of their names."""

    def add(self, row: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                state = self.get(name)
                if state is None:
                    state = self[name] = ImageState(image.size_bytes, set())
                state.rows.add(row)

    def remove(self, row: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                state = self.get(name)
                if state is not None:
                    state.rows.discard(row)
                    if not state.rows:
                        del self[name]

    def move(self, source: int, target: int, images: Iterable[ContainerImage]) -> None:
        for image in images:
            for name in image.names:
                self[name].rows.discard(source)
                self[name].rows.add(target)


# The same arithmetic for a column and for a plain number.

Number = Any
"""A whole number, or a column of them."""
EXACT_BELOW = 2**45
"""Up to here a quotient of whole numbers, a hundredfold, is exact enough in floating point to be cut off."""


def larger(one: Number, other: Number) -> Number:
    return np.maximum(one, other) if isinstance(one, np.ndarray) else max(one, other)


def smaller(one: Number, other: Number) -> Number:
    return np.minimum(one, other) if isinstance(one, np.ndarray) else min(one, other)


def whole(number: Number) -> Number:
    """Without its fraction."""
    return number.astype(np.int64) if isinstance(number, np.ndarray) else int(number)


def percent(part: Number, of: Number, *, exact: bool) -> Number:
    """part · 100 // of, for 0 ≤ part ≤ of; `exact` keeps to integers, as past EXACT_BELOW it must."""
    if exact or not isinstance(part, np.ndarray):
        return part * 100 // of
    share = np.multiply(part, 100.0)
    return np.divide(share, of, out=share).astype(np.int64)
