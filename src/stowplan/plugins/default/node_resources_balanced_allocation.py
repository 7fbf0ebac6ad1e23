"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod brings into balance."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import numpy as np

from stowplan.api import requests
from stowplan.framework import MAX_SCORE, CycleState, NodeTable, Plugin, Pod, Reads, Scores, Status
from stowplan.framework.scores import Number, larger, smaller, whole
from stowplan.plugins.default.args import NodeResourcesBalancedAllocationArgs


class NodeResourcesBalancedAllocation(Plugin):
    args: NodeResourcesBalancedAllocationArgs
    reads = Reads.USAGE
    takes_rows = True

    def sign_pod(self, pod: Pod) -> Hashable:
        return self._demand(pod)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if any(amount for _, amount in self._demand(pod)) else Status.skip()

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        before, after, present = [], [], []
        demand, everywhere = self._demand(pod), nodes.live.everywhere
        is_lacking = any(resource not in everywhere for resource, _ in demand)
        for resource, amount in demand:
            capacity, used = nodes.allocatable[resource], nodes.requested[resource]
            room = larger(capacity, 1) if is_lacking else capacity
            before.append(smaller(used / room, 1.0))
            after.append(smaller((used + amount) / room, 1.0))
            present.append(capacity > 0)
        if len(before) == 2 and not is_lacking:
            gain = _evenness(_half_distance(*after)) - _evenness(_half_distance(*before))
        else:
            gain = _evenness(_deviation(after, present)) - _evenness(_deviation(before, present))
        return cast(Scores, 50 + (50 + gain) // 2)

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


def _evenness(apart: Number) -> Number:
    """100 where all resources of a node are used alike, less the further their shares are apart."""
    return whole((1 - apart) * MAX_SCORE)


def _half_distance(one: Number, other: Number) -> Number:
    """The standard deviation of two shares."""
    # parity: worked out without a square root, which might differ in the last bit
    return abs((one - other) / 2)


def _deviation(shares: list[Number], present: list[Number]) -> Number:
    """The standard deviation of each node's shares, of those resources that it has."""
    if not shares or not isinstance(shares[0], np.ndarray):
        having = [share for share, has in zip(shares, present, strict=True) if has]
        return _deviation_of(having) if len(having) > 1 else 0.0
    apart = np.zeros(len(shares[0]))
    for pattern in np.unique(present, axis=1).T:
        if np.count_nonzero(pattern) > 1:
            rows = np.all(np.equal(present, pattern[:, None]), axis=0)
            apart[rows] = _deviation_of(
                [share[rows] for share, has in zip(shares, pattern, strict=True) if has]
            )
    return apart


def _deviation_of(shares: list[Number]) -> Number:
    if len(shares) == 2:
        return _half_distance(*shares)
    mean = _sum(shares) / len(shares)
    return np.sqrt(_sum([(share - mean) * (share - mean) for share in shares]) / len(shares))


def _sum(numbers: list[Number]) -> Number:
    """One after another: another order may differ in the last bit."""
    total: Number = 0.0
    for number in numbers:
        total = total + number
    return total
