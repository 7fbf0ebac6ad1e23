"""The cluster as plugins of others see it: the same memory, with no way to write to it.

Our own plugins and the cycle work on the tables themselves. Others get these views, which cost nothing
unless they are used. What has a name with an underscore is not meant for plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.api.custom import CustomResource
from stowplan.api.groups import Group, GroupKey, GroupObject
from stowplan.api.meta import FrozenDict, FrozenList, Object, ReadOnly, UnreadableObject, assign
from stowplan.api.node import NodeObject, Taint
from stowplan.api.pod import HostPort, Pod
from stowplan.api.selectors import NodeTerm, Requirement
from stowplan.cluster.cluster import ClusterView, ObjectStore, Totals
from stowplan.cluster.columns import MANY, Columns, Ids, Ints, LabelColumn, Mask, Resources, Rows
from stowplan.cluster.groups import Groups
from stowplan.cluster.node_table import Node, NodeRow, NodeSubset, NodeTable, as_they_are

Kind = TypeVar("Kind", bound=CustomResource)
T = TypeVar("T", bound=Object)


class _Memory:
    """Owns an array for NumPy, which then has no `base` that could be written to."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> dict[str, object]:
        found = self._array.__array_interface__
        found["data"] = (found["data"][0], True)
        return found


def sealed_array(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be made writeable; a read-only flag alone could be cleared."""
    return np.asarray(_Memory(array))


class SealedColumn:
    """Gives out views of an array, made as fast as any other once it is sealed."""

    __slots__ = ("_form", "_raw", "_sealed")

    def __init__(self, raw: NDArray[Any]) -> None:
        self._raw, self._sealed = raw, sealed_array(raw)
        self._form = (raw.shape, raw.strides, raw.dtype)

    def view(self, at: Any = ...) -> NDArray[Any]:
        sealed = self._sealed
        # A plugin can change the form of a view, and that of its `base`, which is ours.
        if (sealed.shape, sealed.strides, sealed.dtype) != self._form:
            sealed = self._sealed = sealed_array(self._raw)
        found: NDArray[Any] = sealed[at]
        return found


class SealedResources(ReadOnly, Resources):
    __slots__ = ("_amounts", "_lines", "_raw_index")
    _amounts: SealedColumn
    _lines: int
    _raw_index: dict[str, int]

    def __init__(self, raw: Resources) -> None:
        amounts, index = SealedColumn(raw.amounts), MappingProxyType(raw.index)
        assign(self, _amounts=amounts, _lines=len(raw.amounts), index=index, _raw_index=raw.index)

    def is_outdated(self, raw: Resources) -> bool:
        return self._raw_index is not raw.index

    @property
    def amounts(self) -> Ints:  # type: ignore[override]
        return self._amounts.view()

    def __getitem__(self, resource: str) -> Ints:
        line = self.index.get(resource, MANY)
        if line < self._lines:
            return self._amounts.view(line)
        return super().__getitem__(resource)


class SealedLabels(ReadOnly, LabelColumn):
    __slots__ = ("_ids", "_raw", "_values")
    _ids: SealedColumn
    _raw: LabelColumn
    _values: FrozenList[str]

    def __init__(self, raw: LabelColumn) -> None:
        index: Any = MappingProxyType(raw.index)
        assign(self, _ids=SealedColumn(raw.ids), index=index, _raw=raw, _values=FrozenList())

    @property
    def ids(self) -> Ids:  # type: ignore[override]
        return self._ids.view()

    @property
    def values(self) -> list[str]:  # type: ignore[override]
        if len(self._values) != len(self._raw.values):  # new ones are added at the end
            assign(self, _values=FrozenList(self._raw.values))
        return self._values


class SealedNodes(ReadOnly, NodeTable):
    """A read-only view of a table of nodes."""

    __slots__ = ("_seen", "_table")
    _table: NodeTable
    _seen: dict[Hashable, tuple[object, Any]]

    def __init__(self, table: NodeTable) -> None:
        assign(self, _table=table, _seen={})

    def _sealed(self, name: Hashable, raw: object, seal: Callable[[Any], Any]) -> Any:
        """What was made of a column, as long as the table has that very one."""
        found = self._seen.get(name)
        if found is None or found[0] is not raw:
            found = self._seen[name] = (raw, seal(raw))
        return found[1]

    def _resources(self, name: str, raw: Resources) -> Resources:
        found = self._seen.get(name)
        # Those of a copy are changed where pods that are tried on it ask for more.
        if found is None or found[0] is not raw.amounts or found[1].is_outdated(raw):
            found = self._seen[name] = (raw.amounts, SealedResources(raw))
        sealed: Resources = found[1]
        return sealed

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._table)

    def node(self, row: int) -> Node:
        return self._table.node(row)

    @property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        raw = self._table.names
        found: FrozenList[str] = self._sealed("names", raw, FrozenList)
        if len(found) != len(raw):
            found = FrozenList(raw)
            self._seen["names"] = (raw, found)
        return found

    @property
    def objects(self) -> Sequence[NodeObject]:  # type: ignore[override]
        return FrozenList(self._table.objects)

    @property
    def allocatable(self) -> Resources:  # type: ignore[override]
        return self._resources("allocatable", self._table.allocatable)

    @property
    def requested(self) -> Resources:  # type: ignore[override]
        return self._resources("requested", self._table.requested)

    @property
    def nonzero_requested(self) -> Resources:  # type: ignore[override]
        return self._resources("nonzero_requested", self._table.nonzero_requested)

    @property
    def pod_count(self) -> Ints:  # type: ignore[override]
        column: SealedColumn = self._sealed("pod_count", self._table.pod_count, SealedColumn)
        return column.view()

    @property
    def unschedulable(self) -> Mask:  # type: ignore[override]
        column: SealedColumn = self._sealed("unschedulable", self._table.unschedulable, SealedColumn)
        return column.view()

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        column: SealedColumn = self._sealed("rows", self._table.rows, SealedColumn)
        return column.view()

    @property
    def live(self) -> Any:  # type: ignore[override]
        return sealed_table(self._table.live)

    def label(self, key: str) -> LabelColumn:
        found: LabelColumn = self._sealed(("label", key), self._table.label(key), SealedLabels)
        return found

    def pods_on(self, row: int) -> Sequence[Pod]:
        return FrozenList(self._table.pods_on(row))

    def ports_taken(self, wanted: Sequence[HostPort]) -> Mask:
        return self._table.ports_taken(wanted)

    def has_image(self, name: str) -> Mask:
        return self._table.has_image(name)

    def by_taints(self, answer: Callable[[tuple[Taint, ...]], int], dtype: type = np.bool_) -> NDArray[Any]:
        return self._table.by_taints(answer, dtype)

    def by_features(self, answer: Callable[[tuple[str, ...]], bool]) -> Mask:
        return self._table.by_features(answer)

    def keep(
        self,
        key: Hashable,
        compute: Callable[[NodeTable], Columns],
        *,
        usage: bool = False,
        finish: Callable[[Columns], Any] = as_they_are,
        compute_row: Callable[[NodeRow], tuple[object, ...]] | None = None,
    ) -> Any:
        return self._table.keep(
            ("plugin", key),
            lambda part: compute(sealed_table(part)),
            usage=usage,
            finish=finish,
            compute_row=None if compute_row is None else lambda row: compute_row(sealed_row(row)),
        )

    def still(self, key: Hashable, usage: bool) -> Any:
        return self._table.still(("plugin", key), usage)

    def take(self, rows: Iterable[int] | Rows) -> Any:
        """A copy of some rows, on which pods can be added and removed."""
        return TrialNodes(self._table.take(np.array(rows) if isinstance(rows, np.ndarray) else rows))

    def match_term(self, term: NodeTerm, *, names: bool = True) -> Mask:
        return self._table.match_term(term, names=names)

    def matches(self, requirement: Requirement) -> Mask:
        return self._table.matches(requirement)

    def row_of(self, name: str) -> int | None:
        return self._table.row_of(name)

    def lookup(self, values: Mapping[str, float], default: float = 0.0) -> NDArray[np.float64]:
        return self._table.lookup(values, default)


class TrialNodes(SealedNodes):
    """A copy of some rows, on which a plugin may try out changes."""

    __slots__ = ()
    _table: NodeSubset

    def add_pod(self, row: int, pod: Pod) -> None:
        self._table.add_pod(row, pod)

    def remove_pod(self, row: int, pod: Pod) -> None:
        self._table.remove_pod(row, pod)

    def copy(self) -> TrialNodes:
        return TrialNodes(self._table.copy())


class SealedAmounts(FrozenDict[str, int]):
    __slots__ = ()

    def __missing__(self, resource: str) -> int:
        return 0


class SealedRow(ReadOnly, NodeRow):
    __slots__ = ()

    def __init__(self, row: NodeRow) -> None:
        assign(
            self,
            live=sealed_table(row.live),
            rows=row.rows,
            allocatable=SealedAmounts(row.allocatable),
            requested=SealedAmounts(row.requested),
            nonzero_requested=SealedAmounts(row.nonzero_requested),
            pod_count=row.pod_count,
        )


class SealedStore(ReadOnly, ObjectStore[T]):
    __slots__ = ("_store",)
    _store: ObjectStore[T]

    def __init__(self, store: ObjectStore[T]) -> None:
        assign(self, _store=store)

    @property
    def version(self) -> int:  # type: ignore[override]
        return self._store.version

    @property
    def is_served(self) -> bool:  # type: ignore[override]
        return self._store.is_served

    @property
    def unreadable(self) -> Mapping[str, UnreadableObject]:  # type: ignore[override]
        return MappingProxyType(self._store.unreadable)

    def get(self, key: str) -> T | None:
        return self._store.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._store)

    def __len__(self) -> int:
        return len(self._store)

    def put(self, item: T) -> None:
        raise AttributeError("objects are changed through the Kubernetes API, see `handle.api`")

    def remove(self, key: str) -> None:
        raise AttributeError("objects are changed through the Kubernetes API, see `handle.api`")

    def follow(self, follower: Callable[[T | None, T | None], None]) -> None:
        raise AttributeError("changes are followed with `queueing_hint`, or by comparing `version`")


class SealedGroups(ReadOnly, Groups):
    """Pod groups and their members, to read."""

    __slots__ = ("_groups",)
    _groups: Groups

    def __init__(self, groups: Groups) -> None:
        assign(self, _groups=groups)

    @property
    def families(self) -> frozenset[str]:  # type: ignore[override]
        return self._groups.families

    def key_of(self, pod: Pod) -> GroupKey | None:
        return self._groups.key_of(pod)

    def find(self, key: GroupKey) -> Group | None:
        return self._groups.find(key)

    def object_of(self, key: GroupKey) -> GroupObject | None:
        return self._groups.object_of(key)

    def members(self, key: GroupKey) -> Mapping[str, Pod]:
        return MappingProxyType(self._groups.members(key))

    def members_of(self, item: GroupObject) -> list[Pod]:
        return self._groups.members_of(item)

    def succeeded(self, key: GroupKey) -> int:
        return self._groups.succeeded(key)

    def known_count(self, key: GroupKey) -> int:
        return self._groups.known_count(key)

    def placed(self, key: GroupKey) -> list[Pod]:
        return self._groups.placed(key)

    def whole(self) -> Mapping[GroupKey, Group]:
        return MappingProxyType(self._groups.whole())

    def use(self, families: Iterable[str], scheduler_name: str) -> None:
        raise AttributeError("enable GangScheduling or Coscheduling in the profile to have groups followed")

    def put(self, pod: Pod) -> None:
        raise AttributeError("the scheduler follows the members of groups itself")

    def move(self, old: Pod, new: Pod) -> None:
        self.put(new)

    def remove(self, pod: Pod) -> None:
        self.put(pod)


class SealedCluster(ReadOnly, ClusterView):
    def __init__(self, cluster: ClusterView) -> None:
        stores = {name: each for name, each in vars(cluster).items() if isinstance(each, ObjectStore)}
        assign(self, _cluster=cluster, **{name: SealedStore(each) for name, each in stores.items()})

    _cluster: ClusterView

    @property
    def nodes(self) -> Any:  # type: ignore[override]
        return sealed_table(self._cluster.nodes)

    @property
    def groups(self) -> Groups:  # type: ignore[override]
        return SealedGroups(self._cluster.groups)

    def watched(self, kind: type[Kind]) -> ObjectStore[Kind]:
        return SealedStore(self._cluster.watched(kind))

    def pod(self, uid: str) -> Pod | None:
        return self._cluster.pod(uid)

    def pods(self, namespace: str | None = None) -> Iterable[Pod]:
        return self._cluster.pods(namespace)

    def totals(self, keys: Callable[[Pod], Iterable[Hashable]]) -> Totals:
        return self._cluster.totals(keys)

    def is_assumed(self, pod: Pod) -> bool:
        return self._cluster.is_assumed(pod)


def unseal(cluster: ClusterView) -> ClusterView:
    """The cluster behind the view that a plugin of others has, for parts of ours that such a plugin uses."""
    return cluster._cluster if isinstance(cluster, SealedCluster) else cluster


def sealed_table(table: NodeTable) -> SealedNodes:
    """The view of a table, the same one every time."""
    found: SealedNodes | None = table.__dict__.get("_view")
    if found is None:
        if isinstance(table, SealedNodes):
            return table
        found = table.__dict__["_view"] = SealedNodes(table)
    return found


def sealed_row(row: NodeRow) -> NodeRow:
    """The view of a row, the same one every time; not of one on which changes are tried out."""
    if isinstance(row, SealedRow):
        return row
    found = row.view
    if found is None:
        found = SealedRow(row)
        if row.live.is_shared(row):
            row.view = found
    return found
