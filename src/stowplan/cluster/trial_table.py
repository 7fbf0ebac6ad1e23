"""Nodes on which changes are tried out, many at a time: pods that are evicted, pods that are nominated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import HostPort, Pod
from stowplan.cluster.columns import Ints, Mask, Rows, distinct, ports_conflict
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeSubset
from stowplan.cluster.pod_table import PodQuery, PodTable, PodTerms

MAX_ADDED = 2**61
"""Sums over nominated pods stop here: added to what pods on the node take, they do not overflow."""
UNKNOWN = -1


class PodChange(NamedTuple):
    """Pods of a table that are on the trial nodes and not on the live ones (sign 1), or the reverse (-1)."""

    pods: PodTable
    slots: Rows
    places: Rows
    """The row of the trial table for each of them."""
    sign: int


class TrialTable(NodeSubset):
    """Some rows of the live table, each tried out by itself.

    What changes on one row is not seen from the others, even if they share a topology domain: a filter that
    counts pods by domain adds `change_of` to the count of each row's domain.
    """

    def __init__(self, live: LiveNodeTable, rows: Rows) -> None:
        super().__init__(live, rows)
        self._is_gone: Mask | None = None
        """Which slots of the live pod table are set aside."""
        self._added: PodChange | None = None
        self._port_changes: list[PodChange] = []
        """Evictions that `_ports` does not have yet: few filters look at ports."""
        self._added_ports: dict[int, set[HostPort]] | None = None
        """The ports of nominated pods, apart: evicting a pod frees its ports, but never theirs."""
        self._matching: dict[tuple[int, PodQuery], NDArray[np.int8]] = {}

    def set_aside(self, slots: Rows) -> None:
        """Remove pods, given by their slots in the live pod table."""
        self._move(slots, -1)

    def bring_back(self, slots: Rows) -> None:
        """Undo `set_aside` for some of the pods."""
        self._move(slots, 1)

    def add_nominated(self, pods: PodTable, slots: Rows, rows: Rows) -> None:
        """Add nominated pods, given by their slots in `pods` and the live rows of their nodes."""
        places = self._places[rows]
        self._added = PodChange(pods, slots, places, 1)
        self._account_all(self._added)

    def pods_on(self, row: int) -> Sequence[Pod]:
        found = self._source.pods_on(int(self._local[row]))
        if (is_gone := self._is_gone) is not None:
            slot_of = self.live.pods.slot_of
            found = [pod for pod in found if not is_gone[slot_of(pod)]]
        return [*found, *self._added_on(row)] if self._added is not None else found

    def ports_taken(self, wanted: Sequence[HostPort]) -> Mask:
        for pods, slots, places, sign in self._port_changes:
            for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
                if ports := pods.pods[slot].shape.ports:
                    taken = self._ports_on(place)
                    taken.update(ports) if sign > 0 else taken.difference_update(ports)
        self._port_changes.clear()
        mask = super().ports_taken(wanted)
        for place, ports in self._ports_of_nominated().items():
            mask[place] |= ports_conflict(wanted, ports)
        return mask

    def change_of(self, query: PodQuery) -> Ints:
        """How many more pods that the query matches are on each row than on the live one."""
        found = np.zeros(len(self), np.int64)
        for pods, slots, places, sign in self._changes():
            hits = places[self._matches(pods, pods.labels[slots], query)]
            if len(hits):
                found += sign * np.bincount(hits, minlength=len(self))
        return found

    def change_by_terms(self, count: Callable[[PodTerms], Mapping[str, int]]) -> dict[str, Ints]:
        """The change of what `count` finds in the affinity terms of a pod, by its keys, for each row."""
        found: dict[str, Ints] = {}
        for pods, slots, places, sign in self._changes():
            ids = pods.terms[slots]
            times: dict[str, NDArray[np.float64]] = {}
            for each in distinct(ids[ids >= 0]).tolist():
                terms = pods.term_sets.values[each]
                assert terms is not None
                for key, number in count(terms).items():
                    # The last place is for pods without terms, whose id is -1.
                    column = times.setdefault(key, np.zeros(len(pods.term_sets.values) + 1))
                    column[each] = number
            for key, column in times.items():
                change = np.bincount(places, column[ids], len(self)).astype(np.int64)
                found[key] = found.get(key, 0) + sign * change
        return found

    def sum_added(self, number_of: Callable[[Pod], int]) -> Ints:
        """The sum over the nominated pods of each row."""
        found = np.zeros(len(self), np.int64)
        if self._added is not None:
            pods, slots, places, _ = self._added
            for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
                found[place] += number_of(pods.pods[slot])
        return found

    def _ports_of_nominated(self) -> dict[int, set[HostPort]]:
        if self._added_ports is None:
            self._added_ports = {}
            if self._added is not None:
                pods, slots, places, _ = self._added
                for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
                    if ports := pods.pods[slot].shape.ports:
                        self._added_ports.setdefault(place, set()).update(ports)
        return self._added_ports

    def _move(self, slots: Rows, sign: int) -> None:
        pods = self.live.pods
        if self._is_gone is None:
            self._is_gone = np.zeros(len(pods), np.bool_)
        self._is_gone[slots] = sign < 0
        change = PodChange(pods, slots, self._places[pods.row[slots]], sign)
        self._account_all(change)
        self._port_changes.append(change)

    def _changes(self) -> Iterator[PodChange]:
        if self._is_gone is not None:
            slots = np.flatnonzero(self._is_gone)
            pods = self.live.pods
            yield PodChange(pods, slots, self._places[pods.row[slots]], -1)
        if self._added is not None:
            yield self._added

    def _matches(self, pods: PodTable, labels: NDArray[np.int32], query: PodQuery) -> Mask:
        """For label sets given by their ids, whether the query matches; each is asked about once."""
        key = (id(pods), query)
        known = self._matching.get(key)
        if known is None:
            known = self._matching[key] = np.full(len(pods.label_sets.values), UNKNOWN, np.int8)
        found = known[labels]
        if np.count_nonzero(found == UNKNOWN):
            for each in distinct(labels[found == UNKNOWN]).tolist():
                label_set = pods.label_sets.values[each]
                assert label_set is not None
                known[each] = query.matches(label_set)
            found = known[labels]
        return found > 0

    def _account_all(self, change: PodChange) -> None:
        pods, slots, places, sign = change
        for mine, theirs in (
            (self.requested, pods.requests),
            (self.nonzero_requested, pods.nonzero_requests),
        ):
            for resource, amounts in theirs.items():
                sums = np.bincount(places, amounts[slots], len(self))
                mine.line(resource)[:] += sign * np.minimum(sums, MAX_ADDED).astype(np.int64)
        self.pod_count[:] = self.pod_count + sign * np.bincount(places, minlength=len(self))

    def _added_on(self, row: int) -> list[Pod]:
        """The nominated pods of a row, in the order in which they were nominated."""
        assert self._added is not None
        pods, slots, places, _ = self._added
        mine = slots[places == row]
        return [pods.pods[slot] for slot in mine[np.argsort(pods.place[mine])].tolist()]
