"""Pods on nodes as columns, and counts of them by node and topology domain that follow every change.

`PodTable` answers questions about all pods at once, such as which ones could be evicted. `Tallies` counts the
pods that match a selector or carry an affinity term; `terms_of` builds the terms of a pod.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import LabelSet, Pod, PodAffinity, PodAffinityTerm
from stowplan.api.requests import NATIVE
from stowplan.api.selectors import NOTHING, Selector, selector_of
from stowplan.cluster.columns import LabelColumn
from stowplan.errors import SelectorError

V = TypeVar("V")


class AffinityTerm(NamedTuple):
    namespaces: frozenset[str]
    selector: Selector
    topology_key: str
    namespace_selector: Selector = NOTHING

    def matches(self, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
        return self.covers(pod.namespace, namespace_labels) and self.selector.matches(pod.labels)

    def covers(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        return namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)


class WeightedTerm(NamedTuple):
    weight: int
    term: AffinityTerm


class PodTerms(NamedTuple):
    """The four groups of a pod's terms; one with a term that cannot be built is empty and leaves an error."""

    required: tuple[AffinityTerm, ...] = ()
    required_anti: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedTerm, ...] = ()
    preferred_anti: tuple[WeightedTerm, ...] = ()
    errors: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.required_anti or self.preferred or self.preferred_anti)


NO_TERMS = PodTerms()


def terms_of(pod: Pod) -> PodTerms:
    """The terms of a pod, computed once for all pods of its shape and namespace."""
    affinity = pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NO_TERMS
    key = ("affinity terms", pod.namespace)
    found: PodTerms | None = pod.shape.memo.get(key)
    if found is None:
        found = pod.shape.memo[key] = _build(pod.namespace, affinity.pod_affinity, affinity.pod_anti_affinity)
    return found


def _build(namespace: str, affinity: PodAffinity | None, anti: PodAffinity | None) -> PodTerms:
    affinity, anti = affinity or PodAffinity(), anti or PodAffinity()
    errors: list[str] = []

    def group(label: str, terms: Iterable[PodAffinityTerm]) -> tuple[AffinityTerm, ...]:
        try:
            return tuple(term_of(namespace, term) for term in terms)
        except SelectorError as error:
            errors.append(f"{label}: {error}")
            return ()

    def weighted(label: str, side: PodAffinity) -> tuple[WeightedTerm, ...]:
        preferred = side.preferred_during_scheduling_ignored_during_execution
        built = group(label, (entry.pod_affinity_term for entry in preferred))
        return tuple(WeightedTerm(entry.weight, term) for entry, term in zip(preferred, built, strict=False))

    return PodTerms(
        group("requiredAffinityTerms", affinity.required_during_scheduling_ignored_during_execution),
        group("requiredAntiAffinityTerms", anti.required_during_scheduling_ignored_during_execution),
        weighted("preferredAffinityTerms", affinity),
        weighted("preferredAntiAffinityTerms", anti),
        tuple(errors),
    )


def term_of(namespace: str, term: PodAffinityTerm) -> AffinityTerm:
    own = not term.namespaces and term.namespace_selector is None
    return AffinityTerm(
        frozenset((namespace,) if own else term.namespaces),
        selector_of(term.label_selector),
        term.topology_key,
        selector_of(term.namespace_selector),
    )


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
    """One row per pod, without gaps: when a pod is removed, the last row moves into its place."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self.label_sets: Counted[LabelSet] = Counted()
        self.term_sets: Counted[PodTerms] = Counted()
        self._slots: dict[str, int] = {}
        self._row = np.zeros(64, np.int32)
        self._labels = np.zeros(64, np.int32)
        self._terms = np.zeros(64, np.int32)
        self._priority = np.zeros(64, np.int64)
        self._of_priority: dict[int, int] = {}
        """How many pods have each priority."""
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
        """The pod's index in its node's list."""
        return self._place[: len(self.pods)]

    @property
    def requests(self) -> dict[str, NDArray[np.int64]]:
        """The requests of the pods, by resource."""
        return {name: column[: len(self.pods)] for name, column in self._requests.items()}

    @property
    def nonzero_requests(self) -> dict[str, NDArray[np.int64]]:
        return {name: column[: len(self.pods)] for name, column in self._nonzero.items()}

    def has_below(self, priority: int) -> bool:
        """Whether a pod has a lower priority."""
        return min(self._of_priority, default=priority) < priority

    def slot_of(self, pod: Pod) -> int:
        return self._slots[pod.uid]

    def place_of(self, pod: Pod) -> int:
        """The pod's index in its node's list."""
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
        self._of_priority[pod.priority] = self._of_priority.get(pod.priority, 0) + 1
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
        priority = self._priority.item(slot)
        if self._of_priority[priority] == 1:
            del self._of_priority[priority]
        else:
            self._of_priority[priority] -= 1
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
        """Replace a pod: the ids of its labels before and now, and whether no pod has the old ones now."""
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


Label = tuple[str, str]

NAMESPACE = ""
"""The namespace is indexed as if it were a label with this key, which no label has."""
_ANY: Label = (NAMESPACE, "")  # no namespace has such a name


class SelectorIndex(Generic[V]):
    """Stores each value under the labels of which its selector requires one, or under its namespaces if fewer
    values are there; compares values by identity."""

    def __init__(self) -> None:
        self._by_label: dict[Label, dict[int, V]] = {}
        self._labels_of: dict[int, list[Label]] = {}

    def add(self, selector: Selector, namespaces: frozenset[str] | None, value: V) -> None:
        labels = self._labels_of[id(value)] = self._rarest(selector, namespaces)
        for label in labels:
            self._by_label.setdefault(label, {})[id(value)] = value

    def remove(self, value: V) -> None:
        for label in self._labels_of.pop(id(value)):
            values = self._by_label[label]
            del values[id(value)]
            if not values:
                del self._by_label[label]

    def candidates(self, labels: LabelSet) -> Iterator[V]:
        """Candidates: every value whose selector matches these labels, each once, and a few others."""
        for label in (_ANY, (NAMESPACE, labels.namespace), *labels.labels.items()):
            yield from self._by_label.get(label, {}).values()

    def _rarest(self, selector: Selector, namespaces: frozenset[str] | None) -> list[Label]:
        """The labels of the most selective requirement."""
        wanted = [
            [(requirement.key, value) for value in requirement.values]
            for requirement in selector.requirements
            if requirement.operator == "In"
        ]
        if namespaces is not None:
            wanted.append([(NAMESPACE, namespace) for namespace in namespaces])
        return min(wanted, key=self._users, default=[_ANY])

    def _users(self, labels: list[Label]) -> int:
        return sum(len(self._by_label.get(label, ())) for label in labels)


class LabelIndex:
    """Label sets are given by their ids."""

    def __init__(self) -> None:
        self._sets: dict[int, LabelSet] = {}
        self._by_key: dict[str, dict[str, set[int]]] = {}

    def add(self, found: int, labels: LabelSet) -> None:
        if found in self._sets:
            return
        self._sets[found] = labels
        for key, by_value in self._by_key.items():
            if (value := _value(labels, key)) is not None:
                by_value.setdefault(value, set()).add(found)

    def remove(self, found: int) -> None:
        labels = self._sets.pop(found)
        for key, by_value in self._by_key.items():
            if (value := _value(labels, key)) is not None:
                users = by_value[value]
                users.remove(found)
                if not users:
                    del by_value[value]

    def candidates(self, query: PodQuery) -> Iterable[tuple[int, LabelSet]]:
        """Candidates: every label set that the query matches, each once, and a few others."""
        wanted = [
            self._with(each.key, each.values) for each in query.selector.requirements if each.operator == "In"
        ]
        if query.namespaces is not None:
            wanted.append(self._with(NAMESPACE, query.namespaces))
        if not wanted:
            return self._sets.items()
        rarest = min(wanted, key=lambda sets: sum(map(len, sets)))
        return [(found, self._sets[found]) for users in rarest for found in users]

    def _with(self, key: str, values: Iterable[str]) -> list[Collection[int]]:
        by_value = self._by_key.get(key)
        if by_value is None:
            by_value = {}
            for found, labels in self._sets.items():
                if (value := _value(labels, key)) is not None:
                    by_value.setdefault(value, set()).add(found)
            self._by_key[key] = by_value
        return [by_value.get(value, ()) for value in values]


def _value(labels: LabelSet, key: str) -> str | None:
    return labels.namespace if key == NAMESPACE else labels.labels.get(key)


Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
KEPT_BYTES, MAX_QUERIES = 64 * 2**20, 8192


class PodQuery(NamedTuple):
    """Which pods to count: of these namespaces (None: all), matched by the selector, maybe only live ones."""

    namespaces: frozenset[str] | None
    selector: Selector
    live_only: bool = False

    def matches(self, labels: LabelSet) -> bool:
        inside = self.namespaces is None or labels.namespace in self.namespaces
        return inside and self.selector.matches(labels.labels)


class CountedNodes(Protocol):
    """What counting needs of the live table of nodes."""

    pods: PodTable

    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def label(self, key: str) -> LabelColumn: ...


class Tally:
    """Counts pods of a kind per node and per topology domain."""

    def __init__(self, table: CountedNodes, counts: Ints, live_only: bool = False) -> None:
        self._table, self.counts, self.live_only = table, counts, live_only
        self._domains: dict[tuple[str, int], tuple[Ints, Mask | None]] = {}
        self.total = int(counts.sum())

    @property
    def by_row(self) -> Ints:
        return self.counts[: len(self._table)]

    def by_domain(self, key: str, counted: Mask | None = None) -> Ints:
        """The count for each value of the label, by value id; of rows in `counted` only, if given."""
        found = self._domains.get((key, id(counted)))
        if found is None:
            column = self._table.label(key)
            inside = column.ids >= 0 if counted is None else (column.ids >= 0) & counted
            sums = np.bincount(column.ids[inside], self.by_row[inside], len(column.values)).astype(np.int64)
            if len(self._domains) > 8:
                self._domains.clear()
            found = self._domains[key, id(counted)] = (sums, counted)
        return found[0]

    def add(self, row: int, amount: int) -> None:
        self.counts[row] += amount
        self.total += amount
        for (key, _), (sums, counted) in self._domains.items():
            domain = self._table.label(key).ids[row]
            if domain >= 0 and (counted is None or counted[row]):
                sums[domain] += amount

    def forget_domains(self) -> None:
        self._domains.clear()


class TermEntry:
    """A term that pods on nodes carry, with the sets of terms it is in and how often."""

    __slots__ = ("sets", "tally", "term", "weight")

    def __init__(self, term: AffinityTerm, weight: int) -> None:
        self.term, self.weight = term, weight
        self.sets: dict[int, int] = {}
        self.tally: Tally | None = None


GROUPS = ("required", "required_anti", "preferred", "preferred_anti")


class Tallies:
    def __init__(self, table: CountedNodes) -> None:
        self._table = table
        self._queries: OrderedDict[PodQuery, Tally] = OrderedDict()
        self._queries_by_label: SelectorIndex[PodQuery] = SelectorIndex()
        self._sets = LabelIndex()
        self._by_labels: dict[int, list[Tally]] = {}
        self._entries_of_set: dict[int, list[tuple[TermEntry, int]]] = {}
        self.terms: dict[str, dict[tuple[AffinityTerm, int], TermEntry]] = {group: {} for group in GROUPS}
        self._terms_by_label: dict[str, SelectorIndex[TermEntry]] = {
            group: SelectorIndex() for group in GROUPS
        }
        self.terms_version = 0
        """Increases when a new term appears, or the last pod with a term leaves."""

    @property
    def has_terms(self) -> bool:
        """Whether any pod on a node carries an affinity term."""
        return bool(self._entries_of_set)

    def of_pods(self, query: PodQuery) -> Tally:
        """The pods that match, counted; kept up to date as long as it is asked for now and then."""
        tally = self._queries.get(query)
        if tally is not None:
            self._queries.move_to_end(query)
            return tally
        pods = self._table.pods
        hits = [found for found, labels in self._sets.candidates(query) if query.matches(labels)]
        weights = np.zeros(len(pods.label_sets.values))
        weights[hits] = 1
        weights = weights[pods.labels]
        if query.live_only:
            weights *= pods.live
        tally = self._tally(weights, query.live_only)
        self._queries_by_label.add(query.selector, query.namespaces, query)
        self._queries[query] = tally
        for found in hits:
            if found in self._by_labels:
                self._by_labels[found].append(tally)
        while len(self._queries) > min(MAX_QUERIES, max(64, KEPT_BYTES // (8 * len(tally.counts)))):
            oldest, _ = self._queries.popitem(last=False)
            self._queries_by_label.remove(oldest)
            self._by_labels.clear()
        return tally

    def terms_for(self, group: str, labels: LabelSet) -> Iterator[TermEntry]:
        """Terms whose selectors may match these labels: all that do, and some others."""
        return self._terms_by_label[group].candidates(labels)

    def of_term(self, entry: TermEntry) -> Tally:
        """The pods that carry a term (twice, if they have it twice), counted."""
        if entry.tally is None:
            pods = self._table.pods
            times = np.zeros(len(pods.term_sets.values) + 1)  # the last place answers for pods without terms
            for found, count in entry.sets.items():
                times[found] = count
            entry.tally = self._tally(times[pods.terms])
        return entry.tally

    def pod_added(self, row: int, pod: Pod, labels: int, terms: int, fresh: PodTerms | None) -> None:
        self._sets.add(labels, pod.label_set)
        if fresh is not None:
            self._set_added(terms, fresh)
        self._count(row, pod, labels, terms, 1)

    def pod_removed(self, row: int, pod: Pod, ids: tuple[int, int, bool, bool]) -> None:
        labels, terms, last_labels, last_terms = ids
        self._count(row, pod, labels, terms, -1)
        if last_labels:
            self._sets.remove(labels)
            self._by_labels.pop(labels, None)
        if last_terms:
            self._set_removed(terms)

    def forget_domains(self) -> None:
        for tally in self:
            tally.forget_domains()

    def columns(self) -> Iterator[Ints]:
        return (tally.counts for tally in self)

    def grow(self, length: int) -> None:
        for tally in self:
            counts = np.zeros(length, np.int64)
            counts[: len(tally.counts)] = tally.counts
            tally.counts = counts

    def _count(self, row: int, pod: Pod, labels: int, terms: int, amount: int) -> None:
        if self._queries:
            found = self._by_labels.get(labels)
            if found is None:
                found = self._by_labels[labels] = [
                    self._queries[query]
                    for query in self._queries_by_label.candidates(pod.label_set)
                    if query.matches(pod.label_set)
                ]
            for tally in found:
                if not (tally.live_only and pod.is_terminating):
                    tally.add(row, amount)
        if terms >= 0:
            for entry, times in self._entries_of_set[terms]:
                if entry.tally is not None:
                    entry.tally.add(row, amount * times)

    def _set_added(self, found: int, terms: PodTerms) -> None:
        entries: dict[int, tuple[TermEntry, int]] = {}
        for group, term, weight in _each(terms):
            known = self.terms[group]
            entry = known.get((term, weight))
            if entry is None:
                entry = known[term, weight] = TermEntry(term, weight)
                namespaces = term.namespaces if term.namespace_selector.nothing else None
                self._terms_by_label[group].add(term.selector, namespaces, entry)
                self.terms_version += 1
            entry.sets[found] = entry.sets.get(found, 0) + 1
            entries[id(entry)] = (entry, entry.sets[found])
        self._entries_of_set[found] = list(entries.values())

    def _set_removed(self, found: int) -> None:
        for entry, _ in self._entries_of_set.pop(found):
            del entry.sets[found]
            if not entry.sets:
                self.terms_version += 1
                for group, known in self.terms.items():
                    if known.get((entry.term, entry.weight)) is entry:
                        del known[entry.term, entry.weight]
                        self._terms_by_label[group].remove(entry)

    def _tally(self, weights: NDArray[np.float64], live_only: bool = False) -> Tally:
        pods = self._table.pods
        length = self._table.capacity
        return Tally(self._table, np.bincount(pods.row, weights, length).astype(np.int64), live_only)

    def __iter__(self) -> Iterator[Tally]:
        yield from self._queries.values()
        for known in self.terms.values():
            yield from (entry.tally for entry in known.values() if entry.tally is not None)


def _each(terms: PodTerms) -> Iterator[tuple[str, AffinityTerm, int]]:
    yield from (("required", term, 1) for term in terms.required)
    yield from (("required_anti", term, 1) for term in terms.required_anti)
    yield from (("preferred", entry.term, entry.weight) for entry in terms.preferred)
    yield from (("preferred_anti", entry.term, entry.weight) for entry in terms.preferred_anti)
