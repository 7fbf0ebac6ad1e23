"""Pod disruption budgets: which pods may not be evicted any more."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import LabelSet
from stowplan.api.selectors import Selector, selector_of
from stowplan.api.workloads import PodDisruptionBudget
from stowplan.cluster import PodTable
from stowplan.errors import SelectorError


class Budgets:
    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._budgets: list[tuple[PodDisruptionBudget, Selector]] = []
        for budget in budgets:
            try:
                selector = selector_of(budget.spec.selector)
            except SelectorError:
                continue  # a budget with a mistake in its selector covers nobody
            if not selector.everything and not selector.nothing:
                self._budgets.append((budget, selector))
        self._covering: WeakKeyDictionary[LabelSet, list[int]] = WeakKeyDictionary()

    def violated_by(self, pods: PodTable, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Of pods node by node in order of importance: whether evicting it too is one too many."""
        violating = np.zeros(len(slots), np.bool_)
        if not self._budgets:
            return violating
        row, left = -1, [0]
        for number, slot in enumerate(slots.tolist()):
            if pods.row[slot] != row:
                row, left = pods.row[slot], [budget.status.disruptions_allowed for budget, _ in self._budgets]
            pod = pods.pods[slot]
            for index in self._covers(pod.label_set):
                if pod.name not in self._budgets[index][0].status.disrupted_pods:
                    left[index] -= 1
                    violating[number] |= left[index] < 0
        return violating

    def _covers(self, labels: LabelSet) -> list[int]:
        found = self._covering.get(labels)
        if found is None:
            found = self._covering[labels] = [
                index
                for index, (budget, selector) in enumerate(self._budgets)
                if budget.namespace == labels.namespace and labels.labels and selector.matches(labels.labels)
            ]
        return found
