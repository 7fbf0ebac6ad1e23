"""An index of label sets by label, for the keys that have been queried."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stowplan.api.pod import LabelSet
from stowplan.api.selectors import Requirement, Selector


class LabelIndex:
    """Label sets go by their ids."""

    def __init__(self) -> None:
        self._sets: dict[int, LabelSet] = {}
        self._by_key: dict[str, dict[str, set[int]]] = {}

    def add(self, found: int, labels: LabelSet) -> None:
        if found in self._sets:
            return
        self._sets[found] = labels
        for key, by_value in self._by_key.items():
            if key in labels.labels:
                by_value.setdefault(labels.labels[key], set()).add(found)

    def remove(self, found: int) -> None:
        labels = self._sets.pop(found).labels
        for key, by_value in self._by_key.items():
            if key in labels:
                users = by_value[labels[key]]
                users.remove(found)
                if not users:
                    del by_value[labels[key]]

    def candidates(self, selector: Selector) -> Iterable[tuple[int, LabelSet]]:
        """All that the selector matches, each once, and some others."""
        wanted = [each for each in selector.requirements if each.operator == "In"]
        if not wanted:
            return self._sets.items()
        rarest = min((self._with(each) for each in wanted), key=lambda sets: sum(map(len, sets)))
        return [(found, self._sets[found]) for users in rarest for found in users]

    def _with(self, requirement: Requirement) -> list[Collection[int]]:
        by_value = self._by_key.get(requirement.key)
        if by_value is None:
            by_value = {}
            for found, labels in self._sets.items():
                if requirement.key in labels.labels:
                    by_value.setdefault(labels.labels[requirement.key], set()).add(found)
            self._by_key[requirement.key] = by_value
        return [by_value.get(value, ()) for value in requirement.values]
