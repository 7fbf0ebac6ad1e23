"""The nodes of the cluster as columns that follow every change.

Rows are dense: the last row fills the hole a removed node leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.api.pod import HostPort, Pod
from stowplan.api.requests import DEFAULTS, MAX_TAKEN, NATIVE, Assigned
from stowplan.cluster.columns import (
    Columns,
    ImageIndex,
    Interned,
    Ints,
    KeptColumns,
    LabelColumn,
    Mask,
    PortIndex,
    Resources,
    Rows,
    longer,
    read_only,
)
from stowplan.cluster.node_table import CHANGED, NodeRow, NodeTable, as_they_are
from stowplan.cluster.pod_table import PodTable, Tallies

FEW = 16
"""Up to this many changed rows are recomputed one by one in plain numbers, which is faster."""
MAX_SUM = 2**62
"""Sums over the pods of a node stop here, which leaves room to add to them without overflow."""
SUMMED = MAX_SUM - MAX_TAKEN
"""Sums from here on may have been clamped, so that removing a pod means summing again."""


class LiveNodeTable(NodeTable):
    objects: list[NodeObject]
    names: list[str]

    def __init__(self) -> None:
        self.live = self
        self.objects, self.names = [], []
        self.layout = 0
        """Increases whenever rows are added, removed or moved: results for another layout are invalid."""
        self.largest = 0
        """The largest amount of any resource that a node has had."""
        self.everywhere: set[str] = set()
        """Resources that no node is, or has been, without."""
        self.taint_sets, self.feature_sets = Interned(), Interned()
        self.images, self.ports = ImageIndex(), PortIndex()
        self.pods = PodTable()
        self.tallies = Tallies(self)
        self.kept = KeptColumns()
        self._row_of: dict[str, int] = {}
        self._pods_on: list[list[Pod]] = []
        self._allocatable, self._requested, self._nonzero = (
            Resources(
                np.zeros((len(names), 8), np.int64),
                {name: line for line, name in enumerate(names)},
                owns_index=True,
            )
            for names in (NATIVE, NATIVE, tuple(DEFAULTS))
        )
        self._pod_count = np.zeros(8, np.int64)
        self._all_rows = np.arange(8, dtype=np.intp)
        self._unschedulable = np.zeros(8, np.bool_)
        self._taint_ids, self._feature_ids = np.zeros(8, np.int32), np.zeros(8, np.int32)
        self._label_ids: dict[str, LabelColumn] = {}
        self._labels: dict[str, LabelColumn] = {}
        self._domain_sizes: dict[tuple[str, int], tuple[Ints, Mask]] = {}
        self._names_sorted: tuple[int, Rows, Rows] = (-1, self._all_rows, self._all_rows)
        self._order: tuple[int, Rows] = (-1, self._all_rows)
        self._plain_rows: dict[int, NodeRow] = {}
        self._lay_out()

    # What is asked

    @property
    def capacity(self) -> int:
        """How many rows the columns have room for."""
        return len(self._pod_count)

    def row_of(self, name: str) -> int | None:
        return self._row_of.get(name)

    def rows_of(self, names: Sequence[str]) -> Rows:
        """The rows of many nodes at once; -1 for unknown ones."""
        try:
            return np.fromiter(map(self._row_of.__getitem__, names), np.intp, len(names))
        except KeyError:
            return np.fromiter((self._row_of.get(name, -1) for name in names), np.intp, len(names))

    def label(self, key: str) -> LabelColumn:
        found = self._labels.get(key)
        if found is None:
            column = LabelColumn(np.full(self.capacity, -1, np.int32), {}, [])
            for row, node in enumerate(self.objects):
                column.put(row, node.labels.get(key))
            found = self._visible(column)
            self._label_ids[key] = column  # only now that it is filled: whatever fails before leaves no trace
            self._labels[key] = found
        return found

    def pods_on(self, row: int) -> Sequence[Pod]:
        return self._pods_on[row]

    def ports_taken(self, wanted: Sequence[HostPort]) -> Mask:
        return self.ports.taken(wanted, len(self))

    def has_image(self, name: str) -> Mask:
        mask = np.zeros(len(self), np.bool_)
        if (state := self.images.get(name)) is not None:
            mask[list(state.rows)] = True
        return mask

    def keep(
        self,
        key: Hashable,
        compute: Callable[[NodeTable], Columns],
        *,
        usage: bool = False,
        finish: Callable[[Columns], Any] = as_they_are,
        compute_row: Callable[[NodeRow], tuple[object, ...]] | None = None,
    ) -> Any:
        kept = self.kept
        entry = kept.entries.get(key)
        if entry is not None:
            entry.is_used = True
            changed = kept.changed_since(entry, usage)
            if changed is not None and not changed:
                return entry.product
            if changed is not None and len(changed) * 8 <= len(self) + 64:
                if compute_row is not None and len(changed) <= FEW:
                    columns = self._refresh_singly(entry.columns, changed, compute_row)
                else:
                    columns = self._refresh(entry.columns, changed, compute)
                if columns is not entry.columns:
                    entry.columns, entry.product = columns, finish(columns)
                kept.catch_up(entry)
                return entry.product
        columns = compute(self)
        product = finish(columns)
        kept.put(key, columns, product)
        return product

    def still(self, key: Hashable, usage: bool) -> Any:
        entry = self.kept.entries.get(key)
        if (
            entry is None
            or entry.nodes != self.kept.node_changes.position
            or (usage and entry.usage != self.kept.usage_changes.position)
        ):
            return CHANGED
        entry.is_used = True
        return entry.product

    def domain_sizes(self, key: str, counted: Mask) -> Ints:
        """How many rows of `counted` have each value of the label, by value id."""
        found = self._domain_sizes.get((key, id(counted)))
        if found is None:
            column = self.label(key)
            inside = counted & (column.ids >= 0)
            if len(self._domain_sizes) > 256:
                self._domain_sizes.clear()
            sizes = np.bincount(column.ids[inside], minlength=len(column.values))
            found = self._domain_sizes[key, id(counted)] = (sizes, counted)
        return found[0]

    @property
    def by_name(self) -> Rows:
        """Rows in the order of their names."""
        return self._sort_names()[1]

    @property
    def name_ranks(self) -> Rows:
        """The place of each row's name among all names, sorted."""
        return self._sort_names()[2]

    def _sort_names(self) -> tuple[int, Rows, Rows]:
        if self._names_sorted[0] != self.layout:
            by_name = np.array(sorted(range(len(self)), key=self.names.__getitem__), np.intp)
            ranks = np.empty(len(self), np.intp)
            ranks[by_name] = self.rows
            self._names_sorted = (self.layout, by_name, ranks)
        return self._names_sorted

    @property
    def order(self) -> Rows:
        """Rows in the order in which nodes are looked at when not all are: zone by zone in turn."""
        if self._order[0] != self.layout:
            self._order = (self.layout, np.array(_in_turn(self._row_of.values(), self.objects), np.intp))
        return self._order[1]

    # What changes

    def add_node(self, node: NodeObject) -> int:
        """Add a node, or replace the one with its name; return its row."""
        row = self._row_of.get(node.name)
        if row is None:
            row = self._row_of[node.name] = len(self.names)
            self._grow(row + 1)
            self.names.append(node.name)
            self.objects.append(node)
            self._pods_on.append([])
            self._fill(row, node)
            self.images.add(row, node.images)
            self._lay_out()
            return row
        old, self.objects[row] = self.objects[row], node
        self._fill(row, node)
        if old.images != node.images:
            self.images.remove(row, old.images)
            self.images.add(row, node.images)
        if old.labels != node.labels:
            self._forget_domains()
        self.kept.node_changes.mark(row)
        self._plain_rows.pop(row, None)
        return row

    def touch(self, name: str) -> None:
        """Recompute what is cached for a node, because something that describes it has changed."""
        row = self._row_of.get(name)
        if row is not None:
            self.kept.node_changes.mark(row)

    def remove_node(self, name: str) -> list[Pod]:
        """Remove a node; return the pods that were on it."""
        row, last = self._row_of.pop(name), len(self.names) - 1
        orphans = list(self._pods_on[row])
        for pod in orphans:
            self.remove_pod(row, pod)
        self.images.remove(row, self.objects[row].images)
        self.names = list(self.names)  # decisions hold on to the list they were made with
        if row != last:
            self._move(last, row)
        for rows in (self.names, self.objects, self._pods_on):
            rows.pop()
        for column in self._columns():
            column[last] = 0
        self._lay_out()
        return orphans

    def add_pod(self, row: int, pod: Pod) -> None:
        self.tallies.pod_added(row, pod, *self.pods.add(row, len(self._pods_on[row]), pod))
        self._pods_on[row].append(pod)
        for port in pod.shape.ports:
            self.ports.add(row, port)
        self._account(row, pod, 1)

    def remove_pod(self, row: int, pod: Pod) -> None:
        self._remove_from_list(row, pod)
        self.tallies.pod_removed(row, pod, self.pods.remove(pod))
        for port in pod.shape.ports:
            self.ports.remove(row, port)
        self._account(row, pod, -1)

    def replace_pod(self, row: int, known: Pod, pod: Pod) -> None:
        """Replace a pod whose usage is unchanged: only its labels may need recounting."""
        # parity: it goes to the end of the node's list, as if it were removed and added
        self._remove_from_list(row, pod)
        self._pods_on[row].append(pod)
        self.kept.pod_changes.mark(row)
        before, after, is_last = self.pods.replace(len(self._pods_on[row]) - 1, pod)
        if known.label_set is not pod.label_set or known.is_terminating != pod.is_terminating:
            self.tallies.pod_removed(row, known, (before, -1, is_last, False))
            self.tallies.pod_added(row, pod, after, -1, None)

    # How

    def _remove_from_list(self, row: int, pod: Pod) -> None:
        """As `remove_swapping` does, without a search: a node may have thousands of pods."""
        pods, place = self._pods_on[row], self.pods.place_of(pod)
        last = pods.pop()
        if place < len(pods):
            pods[place] = last
            self.pods.put_at(place, last)

    def _account(self, row: int, pod: Pod, sign: int) -> None:
        taken: Assigned = pod.assigned or pod.shape.assigned
        lines = self._requested.index
        for resource, amount in taken.requests.items():
            # What no node offers is not counted: anyone could think of thousands of names.
            if (line := lines.get(resource)) is not None:
                used = self._requested.amounts.item(line, row) + sign * amount
                if used >= SUMMED:
                    used = _sum(each.requests.get(resource, 0) for each in self._usages_on(row))
                self._requested.amounts[line, row] = used
        cpu = self._nonzero.amounts.item(0, row) + sign * taken.nonzero_cpu
        memory = self._nonzero.amounts.item(1, row) + sign * taken.nonzero_memory
        if cpu >= SUMMED or memory >= SUMMED:
            cpu = _sum(each.nonzero_cpu for each in self._usages_on(row))
            memory = _sum(each.nonzero_memory for each in self._usages_on(row))
        self._nonzero.amounts[0, row], self._nonzero.amounts[1, row] = cpu, memory
        self._pod_count[row] += sign
        self.kept.usage_changes.mark(row)
        self._plain_rows.pop(row, None)

    def _usages_on(self, row: int) -> Iterator[Assigned]:
        return (pod.assigned or pod.shape.assigned for pod in self._pods_on[row])

    def _fill(self, row: int, node: NodeObject) -> None:
        allocatable = node.allocatable
        for resource in allocatable.keys() - self._allocatable.index.keys():
            self._allocatable.line(resource)
            self.allocatable = self._allocatable.view(len(self.names))
            self._follow(resource)
        for resource, line in self._allocatable.index.items():
            amount = allocatable.get(resource, 0)
            self._allocatable.amounts[line, row] = amount
            self.largest = max(self.largest, amount)
        found = {resource for resource, amount in allocatable.items() if amount > 0}
        self.everywhere = found if len(self.names) == 1 else self.everywhere & found
        self._unschedulable[row] = node.unschedulable
        self._taint_ids[row] = self.taint_sets.id_of(node.taints)
        self._feature_ids[row] = self.feature_sets.id_of(node.declared_features)
        for key, labels in self._label_ids.items():
            labels.put(row, node.labels.get(key))

    def _follow(self, resource: str) -> None:
        """Start counting a resource that a node now offers; pods may have requested it before."""
        if resource in self._requested.index or resource == "pods":  # which are counted by themselves
            return
        line = self._requested.line(resource)
        self.pods.follow(resource)
        for row, pods in enumerate(self._pods_on):
            line[row] = _sum((pod.assigned or pod.shape.assigned).requests.get(resource, 0) for pod in pods)
        self.requested = self._requested.view(len(self.names))

    def _move(self, source: int, target: int) -> None:
        for column in self._columns():
            column[target] = column[source]
        node = self.objects[target] = self.objects[source]
        self.names[target], self._pods_on[target] = node.name, self._pods_on[source]
        self._row_of[node.name] = target
        self.pods.move(source, target)
        self.images.move(source, target, node.images)
        self.ports.move(source, target)

    def _columns(self) -> Iterator[NDArray[Any]]:
        for group in (self._allocatable, self._requested, self._nonzero):
            yield from group.amounts
        yield from (labels.ids for labels in self._label_ids.values())
        yield from self.tallies.columns()
        yield from (self._pod_count, self._unschedulable, self._taint_ids, self._feature_ids)

    def _grow(self, needed: int) -> None:
        if needed <= self.capacity:
            return
        length = max(needed, 2 * self.capacity)
        for group in (self._allocatable, self._requested, self._nonzero):
            group.grow(0, length)
        for labels in self._label_ids.values():
            labels.ids = longer(labels.ids, length)
        self.tallies.grow(length)
        self._all_rows = np.arange(length, dtype=np.intp)
        self._unschedulable = longer(self._unschedulable, length)
        self._taint_ids, self._feature_ids = (
            longer(self._taint_ids, length),
            longer(self._feature_ids, length),
        )
        self._pod_count = longer(self._pod_count, length)

    def _lay_out(self) -> None:
        """Renew the views after rows were added, removed or moved."""
        length = len(self.names)
        self.layout += 1
        self.rows = read_only(self._all_rows[:length])
        self.allocatable, self.requested = self._allocatable.view(length), self._requested.view(length)
        self.nonzero_requested = self._nonzero.view(length)
        self.pod_count = read_only(self._pod_count[:length])
        self.unschedulable = read_only(self._unschedulable[:length])
        self.taint_sets.ids = read_only(self._taint_ids[:length])
        self.feature_sets.ids = read_only(self._feature_ids[:length])
        self._labels = {key: self._visible(column) for key, column in self._label_ids.items()}
        self.kept.clear()
        self._plain_rows.clear()
        self._forget_domains()

    def _forget_domains(self) -> None:
        self._domain_sizes.clear()
        self.tallies.forget_domains()

    def _visible(self, column: LabelColumn) -> LabelColumn:
        return LabelColumn(read_only(column.ids[: len(self.names)]), column.index, column.values)

    def _refresh(self, columns: Columns, rows: list[int], compute: Callable[[NodeTable], Columns]) -> Columns:
        """The columns with these rows recomputed; the same objects if nothing changed."""
        part = self.take(rows)
        fresh, is_same = [], True
        for column, values in zip(columns, compute(part), strict=True):
            if column[part.rows].tobytes() != values.tobytes():
                column, is_same = column.copy(), False
                column[part.rows] = values
            fresh.append(column)
        return columns if is_same else tuple(fresh)

    def _refresh_singly(
        self, columns: Columns, rows: list[int], compute: Callable[[NodeRow], tuple[object, ...]]
    ) -> Columns:
        fresh = columns
        for row in rows:
            for place, value in enumerate(compute(self.row(row))):
                if fresh[place][row] != value:
                    if fresh[place] is columns[place]:
                        fresh = (*fresh[:place], columns[place].copy(), *fresh[place + 1 :])
                    fresh[place][row] = value
        return fresh

    def row(self, row: int) -> NodeRow:
        """A row as plain numbers, read-only and cached until it changes."""
        found = self._plain_rows.get(row)
        if found is None:
            if len(self._plain_rows) > 4096:
                self._plain_rows.clear()
            found = self._plain_rows[row] = self.plain_row(row)
        return found

    def is_shared(self, row: NodeRow) -> bool:
        """Whether it came from `row`, so that it is not changed."""
        return self._plain_rows.get(row.rows) is row

    def plain_row(self, row: int) -> NodeRow:
        """A row as plain numbers, for the caller to change."""
        return NodeRow(
            self,
            row,
            self.allocatable.row(row),
            self.requested.row(row),
            self.nonzero_requested.row(row),
            int(self.pod_count[row]),
        )


ZONE_LABELS = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
REGION_LABELS = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")


def zone_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Region and zone of a node; the older labels win."""

    def first(keys: Sequence[str]) -> str:
        return next((labels[key] for key in keys if key in labels), "")

    return first(REGION_LABELS), first(ZONE_LABELS)


def _in_turn(rows_by_age: Iterable[int], objects: Sequence[NodeObject]) -> list[int]:
    zones: dict[tuple[str, str], list[int]] = {}
    for row in rows_by_age:
        zones.setdefault(zone_of(objects[row].labels), []).append(row)
    longest = max(map(len, zones.values()), default=0)
    return [rows[turn] for turn in range(longest) for rows in zones.values() if turn < len(rows)]


def _sum(amounts: Iterable[int]) -> int:
    return min(sum(amounts), MAX_SUM)
