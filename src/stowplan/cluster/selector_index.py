"""Things that have a selector each, found by the labels that selectors ask for instead of asking all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from stowplan.api.selectors import Selector

V = TypeVar("V")
Label = tuple[str, str]

_ANY: Label = ("", "")  # no label has such a key


class SelectorIndex(Generic[V]):
    """Stores each value under the labels of which its selector requires one; compares values by identity."""

    def __init__(self) -> None:
        self._by_label: dict[Label, dict[int, V]] = {}
        self._labels_of: dict[int, list[Label]] = {}

    def add(self, selector: Selector, value: V) -> None:
        labels = self._labels_of[id(value)] = self._rarest(selector)
        for label in labels:
            self._by_label.setdefault(label, {})[id(value)] = value

    def remove(self, value: V) -> None:
        for label in self._labels_of.pop(id(value)):
            values = self._by_label[label]
            del values[id(value)]
            if not values:
                del self._by_label[label]

    def candidates(self, labels: Mapping[str, str]) -> Iterator[V]:
        """All whose selectors match these labels, each once, and some others."""
        for label in (_ANY, *labels.items()):
            yield from self._by_label.get(label, {}).values()

    def _rarest(self, selector: Selector) -> list[Label]:
        """The labels of that requirement which tells the selector from most others."""
        wanted = [
            [(requirement.key, value) for value in requirement.values]
            for requirement in selector.requirements
            if requirement.operator == "In"
        ]
        return min(wanted, key=self._users, default=[_ANY])

    def _users(self, labels: list[Label]) -> int:
        return sum(len(self._by_label.get(label, ())) for label in labels)
