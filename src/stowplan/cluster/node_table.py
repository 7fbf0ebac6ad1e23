"""Nodes as columns, and parts of such a table on which changes can be tried out.

A row is a node. Columns follow every change and are read-only to everyone but the cluster. `take` gives the
same table over a few rows, on which pods may be added and removed without changing the cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.meta import FrozenList
from stowplan.api.node import ContainerImage, NodeObject, Taint
from stowplan.api.pod import HostPort, Pod
from stowplan.api.selectors import NodeTerm, Requirement
from stowplan.cluster.columns import (
    Columns,
    Ints,
    LabelColumn,
    Mask,
    Resources,
    RowAmounts,
    Rows,
    lazy,
    ports_conflict,
)

if TYPE_CHECKING:
    from stowplan.cluster.live_nodes import LiveNodeTable


CHANGED = object()
FEW = 16
"""Up to this many rows are looked at one by one, which is faster."""


def as_they_are(columns: Columns) -> Columns:
    return columns


class Node:
    """One node, for plugins that look at one node at a time; read-only."""

    __slots__ = ("_row", "_table", "object")

    def __init__(self, table: NodeTable, row: int) -> None:
        self._table, self._row = table, row
        self.object: NodeObject = table.objects[row]
        """The whole node object."""

    @property
    def name(self) -> str:
        return self.object.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.object.metadata.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.object.metadata.annotations

    @property
    def taints(self) -> tuple[Taint, ...]:
        """Its taints, each with `key`, `value` and `effect`."""
        return self.object.taints

    @property
    def unschedulable(self) -> bool:
        """Whether it is cordoned."""
        return self.object.unschedulable

    @property
    def allocatable(self) -> Mapping[str, int]:
        """What pods may request of the node together, in the units of `Pod.requests`: cpu in thousandths of a
        CPU, memory in bytes, all else in units; `allocatable["pods"]` is how many pods it takes."""
        return self.object.allocatable

    @property
    def requested(self) -> dict[str, int]:
        """What the pods on the node request together, in the same units."""
        requested = self._table.requested
        return {resource: int(requested[resource][self._row]) for resource in requested}

    @property
    def pods(self) -> Sequence[Pod]:
        """The pods on the node, also those placed on it and not bound yet."""
        return FrozenList(self._table.pods_on(self._row))

    @property
    def images(self) -> tuple[ContainerImage, ...]:
        """The container images on the node, with their sizes in bytes."""
        return self.object.images

    @property
    def declared_features(self) -> tuple[str, ...]:
        return self.object.declared_features


class NodeRow:
    """One row with plain numbers in the place of columns.

    A plugin whose arithmetic is the same for a number and for a column can work on this too: for a few rows
    that is much faster.
    """

    __slots__ = ("allocatable", "live", "nonzero_requested", "pod_count", "requested", "rows", "view")

    def __init__(
        self,
        live: LiveNodeTable,
        rows: int,
        allocatable: RowAmounts,
        requested: RowAmounts,
        nonzero_requested: RowAmounts,
        pod_count: int,
    ) -> None:
        self.live, self.rows = live, rows
        self.allocatable, self.requested = allocatable, requested
        self.nonzero_requested, self.pod_count = nonzero_requested, pod_count
        self.view: NodeRow | None = None
        """What plugins of others see of it, once made."""


class NodeTable(ABC):
    """Nodes as columns: NumPy arrays with one row per node, read-only. `len(nodes)` counts the nodes, and
    iterating gives a `Node` for each."""

    objects: Sequence[NodeObject]
    names: Sequence[str]
    allocatable: Resources
    """Columns of int64 by resource, in the units of `Pod.requests`: `allocatable["cpu"]` in thousandths of a
    CPU, `allocatable["memory"]` in bytes, all else in units, `allocatable["pods"]` too. The column of a
    resource that no node has is all zeros."""
    requested: Resources
    """What the pods on each node request together, in the same units."""
    nonzero_requested: Resources
    """The same for cpu and memory, where a container that requests nothing counts as 100 thousandths of a CPU
    and 200 MiB, as in the scores of kube-scheduler."""
    pod_count: Ints
    """How many pods are on each node."""
    unschedulable: Mask
    """Which nodes are cordoned."""
    live: LiveNodeTable
    """The table of the whole cluster."""
    rows: Rows
    """The row in `live` of each row of this table."""

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, row) for row in range(len(self)))

    def node(self, row: int) -> Node:
        """The node of a row."""
        return Node(self, row)

    @abstractmethod
    def label(self, key: str) -> LabelColumn:
        """The values of a label: `ids` has a number per node, -1 where the label is missing, `values[id]` is
        the text, and `present` a mask of the nodes that have the label."""

    @abstractmethod
    def pods_on(self, row: int) -> Sequence[Pod]:
        """The pods on the node of a row."""

    @abstractmethod
    def ports_taken(self, wanted: Sequence[HostPort]) -> Mask:
        """The nodes on which one of these host ports is in use."""

    @abstractmethod
    def has_image(self, name: str) -> Mask:
        """The nodes that have the container image of this name."""

    def by_taints(self, answer: Callable[[tuple[Taint, ...]], int], dtype: type = np.bool_) -> NDArray[Any]:
        """A column from a function of a node's taints, called once for each distinct set of taints."""
        return self.live.taint_sets.each(answer, self.live.taint_sets.ids[self.rows], dtype)

    def by_features(self, answer: Callable[[tuple[str, ...]], bool]) -> Mask:
        """A mask from a function of a node's declared features, called once for each distinct set."""
        return self.live.feature_sets.each(answer, self.live.feature_sets.ids[self.rows])

    def keep(
        self,
        key: Hashable,
        compute: Callable[[NodeTable], Columns],
        *,
        usage: bool = False,
        finish: Callable[[Columns], Any] = as_they_are,
        compute_row: Callable[[NodeRow], tuple[object, ...]] | None = None,
    ) -> Any:
        """Columns that depend, for each row, on `key` and that row alone (with `usage`: on its pods too).

        They are kept under `key` and worked out again only for rows that changed. Never change them in place.
        What `finish` makes of them is what is kept and given back. `compute_row` does the same as `compute`
        for one row, in plain numbers, for where few rows changed.
        """
        return finish(compute(self))

    def still(self, key: Hashable, usage: bool) -> Any:
        """The cached value of the key if no row changed since, else CHANGED."""
        return CHANGED

    def take(self, rows: Iterable[int] | Rows) -> NodeSubset:
        """A copy of some rows: `add_pod` and `remove_pod` change it and nothing else."""
        chosen = rows if isinstance(rows, np.ndarray) else np.fromiter(rows, np.intp)
        return NodeSubset(self, chosen)

    def matches(self, requirement: Requirement) -> Mask:
        """The nodes whose labels fulfil one requirement of a selector."""
        return self.label(requirement.key).matches(requirement)

    def match_term(self, term: NodeTerm, *, names: bool = True) -> Mask:
        """The nodes that a term of a node selector accepts; without `names`, its matchFields are ignored."""
        if term.error or not (term.labels or term.fields):
            return np.zeros(len(self), np.bool_)
        mask = np.ones(len(self), np.bool_)
        for requirement in term.labels:
            mask &= self.matches(requirement)
        for field in term.fields if names else ():
            mask &= self._match_field(field)
        return mask

    def match_terms(self, terms: Iterable[NodeTerm], *, names: bool = True) -> Mask:
        """The nodes that at least one of the terms accepts."""
        mask = np.zeros(len(self), np.bool_)
        for term in terms:
            mask |= self.match_term(term, names=names)
        return mask

    def _match_field(self, field: Requirement) -> Mask:
        if field.key != "metadata.name":  # a node has no other field: it reads as empty text
            return np.full(len(self), field.matches({field.key: ""}))
        mask = np.zeros(len(self), np.bool_)
        for name in field.values:
            if (row := self.row_of(name)) is not None:
                mask[row] = True
        return mask if field.operator == "In" else ~mask

    @abstractmethod
    def row_of(self, name: str) -> int | None:
        """The row of the node with this name; None if it is not in this table."""

    def lookup(self, values: Mapping[str, float], default: float = 0.0) -> NDArray[np.float64]:
        """A column with the value of each node's name in `values`, or `default`."""
        return np.fromiter((values.get(name, default) for name in self.names), np.float64, len(self))


class NodeSubset(NodeTable):
    """Some rows of a table, copied, so that pods can be added and removed without changing the cluster."""

    def __init__(self, source: NodeTable, rows: Rows) -> None:
        self.live = source.live
        self.rows = rows if source is source.live else source.rows[rows]
        self._source, self._local = source, rows
        self._pods: dict[int, list[Pod]] = {}
        self._ports: dict[int, set[HostPort]] = {}
        self._labels: dict[str, LabelColumn] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @lazy
    def names(self) -> Sequence[str]:
        names = self.live.names
        return [names[row] for row in self.rows.tolist()]

    @lazy
    def objects(self) -> Sequence[NodeObject]:
        objects = self.live.objects
        return [objects[row] for row in self.rows.tolist()]

    @lazy
    def allocatable(self) -> Resources:
        return self._source.allocatable.at(self._local)

    @lazy
    def requested(self) -> Resources:
        return self._source.requested.at(self._local)

    @lazy
    def nonzero_requested(self) -> Resources:
        return self._source.nonzero_requested.at(self._local)

    @lazy
    def pod_count(self) -> Ints:
        return self._source.pod_count[self._local]

    @lazy
    def unschedulable(self) -> Mask:
        return self._source.unschedulable[self._local]

    def label(self, key: str) -> LabelColumn:
        if key not in self._labels:
            whole = self._source.label(key)
            self._labels[key] = LabelColumn(whole.ids[self._local], whole.index, whole.values)
        return self._labels[key]

    def pods_on(self, row: int) -> Sequence[Pod]:
        found: Sequence[Pod] | None = self._pods.get(row)
        return self._source.pods_on(int(self._local[row])) if found is None else found

    def ports_taken(self, wanted: Sequence[HostPort]) -> Mask:
        if len(self) <= FEW:
            taken = [ports_conflict(wanted, self._ports_on(row)) for row in range(len(self))]
            return np.array(taken, np.bool_)
        mask = self.live.ports_taken(wanted)[self.rows]
        for row, ports in self._ports.items():
            mask[row] = ports_conflict(wanted, ports)
        return mask

    def has_image(self, name: str) -> Mask:
        state = self.live.images.get(name)
        found = state.rows if state else ()
        return np.array([row in found for row in self.rows.tolist()], np.bool_)

    def row_of(self, name: str) -> int | None:
        return self.names.index(name) if name in self.names else None

    @property
    def is_changed(self) -> bool:
        """Whether pods were added or removed."""
        return bool(self._pods)

    def copy(self) -> NodeSubset:
        """The same rows with the same changes, to try further ones on."""
        twin = NodeSubset(self._source, self._local)
        twin.requested, twin.nonzero_requested = self.requested.copy(), self.nonzero_requested.copy()
        twin.pod_count = self.pod_count.copy()
        twin._pods = {row: list(pods) for row, pods in self._pods.items()}
        twin._ports = {row: set(ports) for row, ports in self._ports.items()}
        return twin

    def add_pod(self, row: int, pod: Pod) -> None:
        self._pods_changed(row).append(pod)
        self._ports_on(row).update(pod.shape.ports)
        self._account(row, pod, 1)

    def remove_pod(self, row: int, pod: Pod) -> None:
        remove_swapping(self._pods_changed(row), pod.uid)
        self._ports_on(row).difference_update(pod.shape.ports)
        self._account(row, pod, -1)

    @lazy
    def _places(self) -> Rows:
        """The index in this table of each row of the live table."""
        places = np.full(len(self.live), -1, np.intp)
        places[self.rows] = np.arange(len(self))
        return places

    def _pods_changed(self, row: int) -> list[Pod]:
        if row not in self._pods:
            self._pods[row] = list(self._source.pods_on(int(self._local[row])))
        return self._pods[row]

    def _ports_on(self, row: int) -> set[HostPort]:
        if row not in self._ports:
            self._ports[row] = set(self.live.ports.on(int(self.rows[row])))
        return self._ports[row]

    def _account(self, row: int, pod: Pod, sign: int) -> None:
        taken = pod.assigned or pod.shape.assigned
        requested = self.requested
        for resource, amount in taken.requests.items():
            if resource in requested.index:  # no others are counted, since no node offers them
                requested.line(resource)[row] += sign * amount
        self.nonzero_requested["cpu"][row] += sign * taken.nonzero_cpu
        self.nonzero_requested["memory"][row] += sign * taken.nonzero_memory
        self.pod_count[row] += sign


def remove_swapping(pods: list[Pod], uid: str) -> None:
    """Take a pod off a node's list; the last one fills the hole.

    As in kube-scheduler: the order shows where victims of a preemption are otherwise alike.
    """
    place = next(place for place, pod in enumerate(pods) if pod.uid == uid)
    last = pods.pop()
    if place < len(pods):
        pods[place] = last
