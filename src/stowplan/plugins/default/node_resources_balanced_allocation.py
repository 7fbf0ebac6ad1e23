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
        return self._demand(pod)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if any(amount for _, amount in self._demand(pod)) else Status.skip()

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        demand = self._demand(pod)
        if len(demand) < 2:
            return np.full(len(nodes), NEUTRAL, np.int64)
        resources, amounts = zip(*demand, strict=True)
        capacity = nodes.allocatable.block(resources)
        # Without the pod, and with it: the share of each resource that is used on each node.
        shares = np.empty((2, *capacity.shape))
        shares[0] = nodes.requested.block(resources)
        np.add(shares[0], np.array(amounts)[:, None], out=shares[1])
        is_lacking = not nodes.live.lacked.isdisjoint(resources)
        shares /= np.maximum(capacity, 1) if is_lacking else capacity
        np.minimum(shares, 1.0, out=shares)
        apart = _apart_where(shares, capacity > 0) if is_lacking else _apart(shares)
        np.subtract(1, apart, out=apart)
        apart *= MAX_SCORE
        even = apart.astype(np.int64)
        scores: Scores = 50 + (50 + even[1] - even[0]) // 2
        return scores

    def _demand(self, pod: Pod) -> tuple[tuple[str, int], ...]:
        """The resources that count and what the pod takes of them."""
        if pod.assigned is not None:
            return self._demand_of(pod.assigned)
        found: tuple[tuple[str, int], ...] | None = pod.shape.memo.get(self.serial)
        if found is None:
            found = pod.shape.memo[self.serial] = self._demand_of(pod.shape.assigned)
        return found

    def _demand_of(self, assigned: requests.Assigned) -> tuple[tuple[str, int], ...]:
        taken = assigned.requests
        amounts = ((resource.name, taken.get(resource.name, 0)) for resource in self.args.resources)
        return tuple(each for each in amounts if each[1] or not requests.is_scalar(each[0]))


def _apart(shares: Floats) -> Floats:
    """How far the shares of a node's resources are apart: their standard deviation."""
    if shares.shape[1] == 2:
        # parity: two shares are half their distance apart, which is worked out without a square root
        distance: Floats = shares[:, 0] - shares[:, 1]
        distance /= 2
        return np.abs(distance, out=distance)
    mean = _total(shares) / shares.shape[1]
    distance = shares - mean[:, None]
    apart: Floats = np.sqrt(_total(distance * distance) / shares.shape[1])
    return apart


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
