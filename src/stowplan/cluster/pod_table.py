"""Pods on nodes as columns, for questions about all of them at once: who matches, who could be evicted."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.api.affinity import NO_TERMS, PodTerms, terms_of
from stowplan.api.pod import LabelSet, Pod
from stowplan.api.requests import NATIVE

V = TypeVar("V")


class Counted(Generic[V]):
    """Distinct values in use, each with a small id and the number of its users. Values count by identity."""

    def __init__(self) -> None:
        self.values: list[V | None] = []
        self._users: list[int] = []
        self._index: dict[int, int] = {}
        self._free: list[int] = []

    def take(self, value: V) -> tuple[int, bool]:
        """Add a user of a value; return its id and whether this is the first user."""
        found = self._index.get(id(value))
        if found is not None:
            self._users[found] += 1
            return found, False
        if self._free:
            found = self._free.pop()
            self.values[found], self._users[found] = value, 1
        else:
            found = len(self.values)
            self.values.append(value)
            self._users.append(1)
        self._index[id(value)] = found
        return found, True

    def give_back(self, found: int) -> bool:
        """Remove a user of a value; return whether it was the last."""
        self._users[found] -= 1
        if self._users[found]:
            return False
        del self._index[id(self.values[found])]
        self.values[found] = None
        self._free.append(found)
        return True


class PodTable:
    """A row a pod, dense; the last row fills the hole a removed pod leaves."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self.label_sets: Counted[LabelSet] = Counted()
        self.term_sets: Counted[PodTerms] = Counted()
        self._slots: dict[str, int] = {}
        self._row = np.zeros(64, np.int32)
        self._labels = np.zeros(64, np.int32)
        self._terms = np.zeros(64, np.int32)
        self._priority = np.zeros(64, np.int64)
        self._start = np.zeros(64, np.float64)
        self._live = np.zeros(64, np.bool_)
        self._place = np.zeros(64, np.int32)
        self._nonzero = {"cpu": np.zeros(64, np.int64), "memory": np.zeros(64, np.int64)}
        self._requests: dict[str, NDArray[np.int64]] = {}
        self.followed = set(NATIVE)
        """The resources that are counted: those that nodes offer."""

    def __len__(self) -> int:
        return len(self.pods)

    @property
    def row(self) -> NDArray[np.int32]:
        """The node's row."""
        return self._row[: len(self.pods)]

    @property
    def labels(self) -> NDArray[np.int32]:
        """An id into `label_sets`."""
        return self._labels[: len(self.pods)]

    @property
    def terms(self) -> NDArray[np.int32]:
        """An id into `term_sets`, -1 for pods without affinity."""
        return self._terms[: len(self.pods)]

    @property
    def priority(self) -> NDArray[np.int64]:
        return self._priority[: len(self.pods)]

    @property
    def start(self) -> NDArray[np.float64]:
        """When the pod started, in seconds; infinite where that is not known."""
        return self._start[: len(self.pods)]

    @property
    def live(self) -> NDArray[np.bool_]:
        """False for pods that are being deleted."""
        return self._live[: len(self.pods)]

    @property
    def place(self) -> NDArray[np.int32]:
        """Where the pod stands in its node's list."""
        return self._place[: len(self.pods)]

    @property
    def requests(self) -> dict[str, NDArray[np.int64]]:
        """The requests of the pods, by resource."""
        return {name: column[: len(self.pods)] for name, column in self._requests.items()}

    @property
    def nonzero_requests(self) -> dict[str, NDArray[np.int64]]:
        return {name: column[: len(self.pods)] for name, column in self._nonzero.items()}

    def slot_of(self, pod: Pod) -> int:
        return self._slots[pod.uid]

    def place_of(self, pod: Pod) -> int:
        """Where the pod stands in its node's list."""
        return self._place.item(self._slots[pod.uid])

    def find(self, uid: str) -> int | None:
        return self._slots.get(uid)

    def add(self, row: int, place: int, pod: Pod) -> tuple[int, int, PodTerms | None]:
        """The ids of the pod's labels and terms; the terms themselves where they are new."""
        slot = len(self.pods)
        if slot == len(self._row):
            self._grow(2 * slot)
        self.pods.append(pod)
        self._slots[pod.uid] = slot
        labels, _ = self.label_sets.take(pod.label_set)
        terms, fresh, found = -1, False, terms_of(pod)
        if found is not NO_TERMS and found:
            terms, fresh = self.term_sets.take(found)
        self._row[slot], self._labels[slot], self._terms[slot] = row, labels, terms
        self._priority[slot], self._place[slot] = pod.priority, place
        self._put_state(slot, pod)
        assigned = pod.assigned or pod.shape.assigned
        self._nonzero["cpu"][slot] = assigned.nonzero_cpu
        self._nonzero["memory"][slot] = assigned.nonzero_memory
        taken = assigned.requests
        for resource, column in self._requests.items():
            column[slot] = taken.get(resource, 0)
        for resource in self.followed - self._requests.keys():
            if resource in taken:
                self._requests[resource] = np.zeros(len(self._row), np.int64)
                self._requests[resource][slot] = taken[resource]
        return labels, terms, found if fresh else None

    def follow(self, resource: str) -> None:
        self.followed.add(resource)
        amounts = [(pod.assigned or pod.shape.assigned).requests.get(resource, 0) for pod in self.pods]
        if any(amounts):
            column = self._requests[resource] = np.zeros(len(self._row), np.int64)
            column[: len(amounts)] = amounts

    def remove(self, pod: Pod) -> tuple[int, int, bool, bool]:
        """The ids of the pod's labels and terms, and whether it was the last to use them."""
        slot, last = self._slots.pop(pod.uid), len(self.pods) - 1
        labels, terms = int(self._labels[slot]), int(self._terms[slot])
        moved = self.pods.pop()
        if slot != last:
            self.pods[slot] = moved
            self._slots[moved.uid] = slot
            for column in self._columns():
                column[slot] = column[last]
        return (
            labels,
            terms,
            self.label_sets.give_back(labels),
            terms >= 0 and self.term_sets.give_back(terms),
        )

    def replace(self, place: int, pod: Pod) -> tuple[int, int, bool]:
        """A newer version of a pod: the ids of its labels before and now, and if nobody has the old ones."""
        slot = self._slots[pod.uid]
        known, self.pods[slot] = self.pods[slot], pod
        before, is_last = int(self._labels[slot]), False
        if known.label_set is not pod.label_set:
            is_last = self.label_sets.give_back(before)
            self._labels[slot], _ = self.label_sets.take(pod.label_set)
        self._place[slot] = place
        self._put_state(slot, pod)
        return before, int(self._labels[slot]), is_last

    def _put_state(self, slot: int, pod: Pod) -> None:
        self._start[slot] = np.inf if pod.start_time is None else pod.start_time
        self._live[slot] = not pod.is_terminating

    def put_at(self, place: int, pod: Pod) -> None:
        """The pod moved to another place in its node's list."""
        self._place[self._slots[pod.uid]] = place

    def move(self, source: int, target: int) -> None:
        """The node in row `source` is now in row `target`."""
        self.row[self.row == source] = target

    def _columns(self) -> list[NDArray[Any]]:
        fixed: list[NDArray[Any]] = [
            self._row,
            self._labels,
            self._terms,
            self._priority,
            self._start,
            self._live,
            self._place,
        ]
        return [*fixed, *self._nonzero.values(), *self._requests.values()]

    def _grow(self, length: int) -> None:
        self._row, self._labels, self._terms = (
            np.resize(column, length) for column in (self._row, self._labels, self._terms)
        )
        self._priority, self._start = np.resize(self._priority, length), np.resize(self._start, length)
        self._live, self._place = np.resize(self._live, length), np.resize(self._place, length)
        self._nonzero = {name: np.resize(column, length) for name, column in self._nonzero.items()}
        self._requests = {name: np.resize(column, length) for name, column in self._requests.items()}
