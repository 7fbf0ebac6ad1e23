"""Looking at some of the nodes only, where percentageOfNodesToScore asks for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.cluster.node_table import NodeTable
from stowplan.framework.plugin import Mask

MIN_NODES = 100


class Sampling:
    """Where the next search starts, and how many feasible nodes are enough."""

    def __init__(self, percentage: int, start: int = 0) -> None:
        self.percentage, self.start = percentage, start


def nodes_to_find(count: int, percentage: int) -> int:
    """How many feasible nodes end the search. A percentage of 0 adapts to the size of the cluster."""
    if count < MIN_NODES:
        return count
    if percentage == 0:
        percentage = max(5, 50 - count // 125)
    return max(count * percentage // 100, MIN_NODES)


def looked_at_by(sampling: Sampling, nodes: NodeTable, passing: Mask) -> Mask:
    """The rows that a search in turn would have looked at.

    The search begins where the last one ended and stops at the first feasible node too many.
    """
    order = _order(nodes)
    turn = np.roll(order, -(sampling.start % len(order))) if len(order) else order
    wanted = nodes_to_find(len(nodes), sampling.percentage)
    found = np.cumsum(passing[turn])
    surplus = np.flatnonzero(found > wanted)
    end = int(surplus[0]) if len(surplus) else len(turn)
    looked_at = np.zeros(len(nodes), np.bool_)
    looked_at[turn[:end]] = True
    sampling.start = (sampling.start + end) % max(len(nodes.live), 1)
    return looked_at


def _order(nodes: NodeTable) -> NDArray[np.intp]:
    if nodes is nodes.live:
        return nodes.live.order
    return np.arange(len(nodes), dtype=np.intp)  # a search narrowed to some nodes has no order of its own
