"""A summary of a record's evidence, for queries: which plugins rejected nodes, which nodes nearly won."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stowplan.framework.scores import MAX_SCORE
from stowplan.journal.record import PLACE, Column, NodeNames, PackedFilter, PackedScores, Record, Values

MAX_RUNNERS_UP = 3
LOWEST = {kind().itemsize: int(np.iinfo(kind).min) for kind in (np.int16, np.int64)}


class Rejection(NamedTuple):
    plugin: str
    reason: str
    nodes: int
    """How many nodes. Each counts for the first plugin that rejected it, with all of its reasons."""


class Points(NamedTuple):
    plugin: str
    points: int
    """Scores times the weight of the plugin."""


class RunnerUp(NamedTuple):
    node: str
    behind: int
    """How many points the chosen node is ahead in total."""
    lost: list[Points]
    """How many points the chosen node is ahead by plugin, the most first; negative if it is behind."""


class Standing(NamedTuple):
    """Columns of the journal."""

    feasible: int
    """How many nodes fit."""
    tied: int
    """How many other nodes have the total of the chosen one."""
    rejections: list[Rejection]
    points: list[Points]
    """The points of the chosen node."""
    runners_up: list[RunnerUp]
    """The best nodes with a lower total than the chosen one, at most MAX_RUNNERS_UP."""


class Standings:
    """Summarizes the records of one group, which share many of their columns."""

    def __init__(self) -> None:
        self._whole: dict[int, tuple[Values, Column]] = {}
        """Unpacked columns by id; the column is kept so that its id stays in use."""
        self._names: NodeNames | None = None
        self._rows: dict[str, int] = {}

    def summarize(self, record: Record) -> Standing:
        if record.pre_filter is not None:
            status = record.pre_filter
            whole = [Rejection(status.plugin, each, record.node_count) for each in status.reasons]
            return Standing(0, 0, whole, [], [])
        count = record.node_count if record.looked_at is None else len(record.looked_at) // PLACE.itemsize
        fits, rejections = self._reject(record, count)
        if not (record.chosen or record.is_scored or record.scores):
            return Standing(0, 0, rejections, [], [])
        feasible = count if fits is None else int(np.count_nonzero(fits))
        if not record.is_scored or record.chosen is None:
            return Standing(feasible, 0, rejections, [], [])
        return Standing(feasible, *self._rank(record, fits, feasible, rejections))

    def _reject(self, record: Record, count: int) -> tuple[Values | None, list[Rejection]]:
        """A mask of the nodes looked at that fit, None if all do; and why the others do not."""
        counts: dict[tuple[str, str], int] = {}
        if record.narrowed_by and count < record.node_count:
            counts[" and ".join(record.narrowed_by), record.narrowed_reason] = record.node_count - count
        fits = None
        if record.filters or record.overruled or record.not_looked_at:
            skipped = record.skipped_mask()
            fits = np.ones(count, np.bool_) if skipped is None else ~skipped
            for place, status in record.overruled.items():
                if fits[place]:
                    _count(counts, status.plugin, status.reasons, 1)
                    fits[place] = False
            for packed in record.filters:
                column = self._unpack(packed.column)
                fresh = (column != 0) & fits
                if fresh.any():
                    fits &= ~fresh
                    for value, number in _count_values(column[fresh]):
                        _count(counts, packed.plugin, _reasons(packed, value), number)
        return fits, [Rejection(plugin, reason, number) for (plugin, reason), number in counts.items()]

    def _rank(
        self, record: Record, fits: Values | None, feasible: int, rejections: list[Rejection]
    ) -> tuple[int, list[Rejection], list[Points], list[RunnerUp]]:
        columns, flat = [], []
        for each in record.scores:
            if each.column.is_flat:
                flat.append(Points(each.plugin, int(each.column.base.values[0]) * each.weight))
            else:
                columns.append((each, each.column.whole()))
        if not columns:
            return feasible - 1, rejections, flat, []
        rows: Values | None = None
        if record.looked_at is not None or any(len(values) != record.node_count for _, values in columns):
            rows = np.arange(record.node_count)
            rows = rows if record.looked_at is None else np.frombuffer(record.looked_at, PLACE)
            rows = rows if fits is None else rows[fits]
            columns = [
                (each, values if len(values) == feasible else values[rows]) for each, values in columns
            ]
        totals = _add_up(columns)
        lowest = LOWEST[totals.itemsize]
        if rows is None and fits is not None:  # by row, which is faster than to select the feasible ones
            np.putmask(totals, ~fits, lowest)
        row = self._row_of(record.nodes, record.chosen)
        places = [row if rows is None else int(np.flatnonzero(rows == row)[0])]
        best = totals[totals.argmax()]  # faster than max
        is_best = totals == best
        tied = int(np.count_nonzero(is_best)) - 1
        np.putmask(totals, is_best, lowest)
        runners_up = []
        for _ in range(MAX_RUNNERS_UP):
            place = int(totals.argmax())
            total = int(totals[place])
            if total == lowest:
                break
            places.append(place)
            name = record.nodes.shared[place if rows is None else int(rows[place])]
            runners_up.append((name, int(best) - total))
            totals[place] = lowest
        table = [
            (each.plugin, [int(values[place]) * each.weight for place in places]) for each, values in columns
        ]
        points = [Points(plugin, chosen) for plugin, (chosen, *_) in table]
        return (
            tied,
            rejections,
            points + flat,
            [RunnerUp(*each, _leads(table, at)) for at, each in enumerate(runners_up, 1)],
        )

    def _unpack(self, column: Column) -> Values:
        found = self._whole.get(id(column))
        if found is None:
            found = self._whole[id(column)] = (column.whole(), column)
        return found[0]

    def _row_of(self, nodes: NodeNames, name: str | None) -> int:
        if self._names is not nodes:
            self._names, self._rows = nodes, {each: row for row, each in enumerate(nodes.to_list())}
        return self._rows[name or ""]


def _add_up(columns: list[tuple[PackedScores, Values]]) -> Values:
    """The weighted totals, in the smallest type that holds them: this takes most of the time."""
    weights = sum([each.weight for each, _ in columns])
    is_small = weights * MAX_SCORE < -LOWEST[2] and all(values.itemsize == 1 for _, values in columns)
    kind = np.int16 if is_small else np.int64
    totals: Values | None = None
    for each, values in columns:
        weighted = values.astype(kind)
        if each.weight != 1:
            weighted = weighted * each.weight
        totals = weighted if totals is None else totals + weighted
    assert totals is not None
    return totals


def _leads(table: list[tuple[str, list[int]]], at: int) -> list[Points]:
    leads = [Points(plugin, points[0] - points[at]) for plugin, points in table if points[0] != points[at]]
    return leads if len(leads) < 2 else sorted(leads, key=lambda each: -each.points)


def _reasons(packed: PackedFilter, value: int) -> tuple[str, ...]:
    if packed.statuses:
        return packed.statuses[value - 1].reasons
    return tuple(reason for k, reason in enumerate(packed.reasons) if value >> k & 1)


def _count_values(values: Values) -> Iterator[tuple[int, int]]:
    if values.dtype == np.uint8:  # counting is faster than sorting
        counts = np.bincount(values)
        return ((value, int(counts[value])) for value in np.flatnonzero(counts).tolist())
    found, numbers = np.unique(values, return_counts=True)
    return zip(found.tolist(), numbers.tolist(), strict=True)


def _count(counts: dict[tuple[str, str], int], plugin: str, reasons: tuple[str, ...], number: int) -> None:
    for reason in reasons:
        counts[plugin, reason] = counts.get((plugin, reason), 0) + number
