"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod brings into balance."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple, cast

import numpy as np

from stowplan.api import requests
from stowplan.cluster.columns import Number, larger, smaller, whole
from stowplan.config.gates import BALANCE_BY_IMPROVEMENT
from stowplan.framework import MAX_SCORE, CycleState, Handle, NodeTable, Plugin, Pod, Reads, Scores, Status
from stowplan.plugins.args import NodeResourcesBalancedAllocationArgs

Amounts = tuple[tuple[str, int], ...]
"""Resources, each with an amount."""


class Demand(NamedTuple):
    """The pod's requests for the scored resources, and zero for each."""

    amounts: Amounts
    nothing: Amounts
    resources: frozenset[str]

    @classmethod
    def of(cls, amounts: Amounts) -> Demand:
        names = [resource for resource, _ in amounts]
        return cls(amounts, tuple((name, 0) for name in names), frozenset(names))


class NodeResourcesBalancedAllocation(Plugin):
    args: NodeResourcesBalancedAllocationArgs
    reads = Reads.USAGE
    takes_rows = True

    def __init__(self, args: NodeResourcesBalancedAllocationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.scores_improvement = BALANCE_BY_IMPROVEMENT not in handle.disabled_gates

    def sign_pod(self, pod: Pod) -> Hashable:
        return self._demand(pod).amounts

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        demand = self._demand(pod)
        return Status.skip() if demand.amounts == demand.nothing else None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        amounts, nothing, resources = self._demand(pod)
        is_everywhere = nodes.live.everywhere >= resources
        if not self.scores_improvement:
            return cast(Scores, _evenness(nodes, amounts, is_everywhere))

        def idle(part: Any) -> tuple[Any]:
            return (_evenness(part, nothing, is_everywhere),)

        if nodes is nodes.live:  # how even nodes are without the pod is the same for all pods
            (before,) = nodes.keep((self.serial, nothing), idle, usage=True, compute_row=idle)
        else:
            (before,) = idle(nodes)
        return cast(Scores, 50 + (50 + _evenness(nodes, amounts, is_everywhere) - before) // 2)

    def _demand(self, pod: Pod) -> Demand:
        if pod.assigned is not None:
            return self._demand_of(pod.assigned)
        found: Demand | None = pod.shape.memo.get(self.serial)
        if found is None:
            found = pod.shape.memo[self.serial] = self._demand_of(pod.shape.assigned)
        return found

    def _demand_of(self, assigned: requests.Assigned) -> Demand:
        taken = assigned.requests
        amounts = ((resource.name, taken.get(resource.name, 0)) for resource in self.args.resources)
        return Demand.of(tuple(each for each in amounts if each[1] or not requests.is_scalar(each[0])))


def _evenness(nodes: NodeTable, more: Amounts, is_everywhere: bool) -> Number:
    """100 where a node's resources, with `more` taken, are used alike; less the further they are apart."""
    shares = []
    for resource, amount in more:
        capacity = nodes.allocatable[resource]
        used = nodes.requested[resource] + amount
        shares.append(smaller(used / (capacity if is_everywhere else larger(capacity, 1)), 1.0))
    if len(shares) == 2 and is_everywhere:
        return whole((1 - _half_distance(*shares)) * MAX_SCORE)
    present = [nodes.allocatable[resource] > 0 for resource, _ in more]
    return whole((1 - _deviation(shares, present)) * MAX_SCORE)


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
    # The indices are not used. Without them np.unique imports numpy.ma, as `distinct` says.
    for pattern in np.unique(present, axis=1, return_index=True)[0].T:
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
