"""Counts of pods by node and by topology domain, kept as pods come and go instead of counted again.

Two kinds of pods are counted: those that a selector matches, and those that carry an affinity term.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.affinity import AffinityTerm, PodTerms
from stowplan.api.pod import LabelSet, Pod
from stowplan.api.selectors import Selector

if TYPE_CHECKING:
    from stowplan.cluster.live_nodes import LiveNodeTable
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

V = TypeVar("V")
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


class Tally:
    """Counts pods of a kind per node and per topology domain."""

    def __init__(self, table: LiveNodeTable, counts: Ints, live_only: bool = False) -> None:
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
    def __init__(self, table: LiveNodeTable) -> None:
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
        """Those of the terms whose selectors may match these labels: all that do, and some others."""
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
        for tally in self._all():
            tally.forget_domains()

    def columns(self) -> Iterator[Ints]:
        return (tally.counts for tally in self._all())

    def grow(self, length: int) -> None:
        for tally in self._all():
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

    def _all(self) -> Iterator[Tally]:
        yield from self._queries.values()
        for known in self.terms.values():
            yield from (entry.tally for entry in known.values() if entry.tally is not None)


def _each(terms: PodTerms) -> Iterator[tuple[str, AffinityTerm, int]]:
    yield from (("required", term, 1) for term in terms.required)
    yield from (("required_anti", term, 1) for term in terms.required_anti)
    yield from (("preferred", entry.term, entry.weight) for entry in terms.preferred)
    yield from (("preferred_anti", entry.term, entry.weight) for entry in terms.preferred_anti)
