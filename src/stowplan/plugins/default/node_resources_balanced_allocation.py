"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod brings into balance."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from stowplan.api import requests
from stowplan.framework import MAX_SCORE, CycleState, NodeTable, Plugin, Pod, Reads, Scores, Status
from stowplan.plugins.default.args import NodeResourcesBalancedAllocationArgs

Floats = NDArray[np.float64]
NEUTRAL = 75
"""What a node gets whose balance the pod does not change."""


class NodeResourcesBalancedAllocation(Plugin):
    args: NodeResourcesBalancedAllocationArgs
    reads = Reads.USAGE

    def sign_pod(self, pod: Pod) -> Hashable:
        return tuple(self._wanted(pod))

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if any(self._wanted(pod)) else Status.skip()

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        counted = [
            (resource.name, amount)
            for resource, amount in zip(self.args.resources, self._wanted(pod), strict=True)
            if amount or not requests.is_scalar(resource.name)
        ]
        if len(counted) < 2:
            return np.full(len(nodes), NEUTRAL, np.int64)
        resources, amounts = zip(*counted, strict=True)
        capacity = nodes.allocatable.block(resources)
        used = nodes.requested.block(resources)
        lacking = capacity <= 0
        # Without the pod, and with it: the share of each resource that is used on each node.
        shares = np.empty((2, *capacity.shape))
        np.divide(used, np.maximum(capacity, 1), out=shares[0])
        np.divide(used + np.array(amounts)[:, None], np.maximum(capacity, 1), out=shares[1])
        np.minimum(shares, 1.0, out=shares)
        apart = _apart(shares) if not np.count_nonzero(lacking) else _apart_where(shares, ~lacking)
        even = ((1 - apart) * MAX_SCORE).astype(np.int64)
        return 50 + (50 + even[1] - even[0]) // 2

    def _wanted(self, pod: Pod) -> list[int]:
        taken = (pod.assigned or pod.shape.assigned).requests
        return [taken.get(resource.name, 0) for resource in self.args.resources]


def _apart(shares: Floats) -> Floats:
    """How far the shares of a node's resources are apart: their standard deviation."""
    if shares.shape[1] == 2:
        # parity: two shares are half their distance apart, which is worked out without a square root
        return np.abs((shares[:, 0] - shares[:, 1]) / 2)
    mean = _total(shares) / shares.shape[1]
    distance = shares - mean[:, None]
    return np.sqrt(_total(distance * distance) / shares.shape[1])


def _apart_where(shares: Floats, present: NDArray[np.bool_]) -> Floats:
    """The same for nodes that lack some of the resources: those are left out."""
    apart = np.zeros((shares.shape[0], shares.shape[2]))
    for pattern in np.unique(present, axis=1).T:
        if np.count_nonzero(pattern) >= 2:
            rows = (present == pattern[:, None]).all(0)
            apart[:, rows] = _apart(shares[:, pattern][:, :, rows])
    return apart


def _total(shares: Floats) -> Floats:
    """Summed one resource after another: another order may differ in the last bit."""
    total = np.zeros((shares.shape[0], shares.shape[2]))
    for line in range(shares.shape[1]):
        total += shares[:, line]
    return total
