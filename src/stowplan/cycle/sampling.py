"""Looking at some of the nodes only, where percentageOfNodesToScore asks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from stowplan.cluster.node_table import NodeTable
from stowplan.framework.plugin import Mask

MIN_NODES = 100


class SearchStart:
    """Where the next search starts: one for all profiles of a scheduler."""

    def __init__(self, index: int = 0) -> None:
        self.index = index


class Sampling:
    """How many feasible nodes are enough for a profile, and where its next search starts."""

    def __init__(self, percentage: int, start: SearchStart | None = None) -> None:
        self.percentage, self.start = percentage, start or SearchStart()

    @classmethod
    def of(cls, percentages: Mapping[str, int]) -> dict[str, Sampling]:
        """The sampling of each profile by name; empty if all profiles evaluate all nodes."""
        if not any(1 <= percentage <= 99 for percentage in percentages.values()):
            return {}
        start = SearchStart()
        return {
            name: cls(percentage if 1 <= percentage <= 99 else 100, start)
            for name, percentage in percentages.items()
        }

    @property
    def is_partial(self) -> bool:
        """Whether it may skip nodes."""
        return self.percentage < 100

    def look(
        self, nodes: NodeTable, passing: Mask, errors: Collection[int], rejected_before: Collection[int]
    ) -> tuple[Mask, int | None]:
        """The rows that a search in turn would have looked at, and the row whose error ended it, if one did.

        The search begins where the last one ended and stops at the first feasible node too many. Rows in
        `rejected_before`, by their place in the cluster, have been looked at already.
        """
        order = _order(nodes)
        turn = np.roll(order, -(self.start.index % len(order))) if len(order) else order
        wanted = nodes_to_find(len(nodes), self.percentage)
        surplus = np.flatnonzero(np.cumsum(passing[turn]) > wanted)
        end = int(surplus[0]) if len(surplus) else len(turn)
        first_error = None
        if errors and len(failing := np.flatnonzero(np.isin(turn[:end], list(errors)))):
            end = int(failing[0])
            first_error = int(turn[end])
        looked_at = np.zeros(len(nodes), np.bool_)
        looked_at[turn[:end]] = True
        for row in rejected_before:
            looked_at[nodes.rows == row] = True
        # parity: a node that was rejected before the search counts as one it has come by
        self.start.index = (self.start.index + int(np.count_nonzero(looked_at))) % max(len(nodes.live), 1)
        return looked_at, first_error


def nodes_to_find(count: int, percentage: int) -> int:
    """How many feasible nodes end the search. A percentage of 0 adapts to the size of the cluster."""
    if count < MIN_NODES:
        return count
    if percentage == 0:
        percentage = max(5, 50 - count // 125)
    return max(count * percentage // 100, MIN_NODES)


def _order(nodes: NodeTable) -> NDArray[np.intp]:
    if nodes is nodes.live:
        return nodes.live.order
    return np.arange(len(nodes), dtype=np.intp)  # a search narrowed to some nodes has no order of its own
