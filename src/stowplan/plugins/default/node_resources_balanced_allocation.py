"""NodeResourcesBalancedAllocation: prefers nodes whose resources the pod brings into balance."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from stowplan.api import requests
from stowplan.framework import MAX_SCORE, CycleState, NodeTable, Plugin, Pod, Reads, Scores, Status
from stowplan.plugins.default.args import NodeResourcesBalancedAllocationArgs

Floats = NDArray[np.float64]


class NodeResourcesBalancedAllocation(Plugin):
    args: NodeResourcesBalancedAllocationArgs
    reads = Reads.USAGE

    def sign_pod(self, pod: Pod) -> Hashable:
        return tuple(self._wanted(pod))

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if any(self._wanted(pod)) else Status.skip()

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        before: list[Floats] = []
        after: list[Floats] = []
        missing: list[NDArray[np.bool_]] = []
        for resource, wanted in zip(self.args.resources, self._wanted(pod), strict=True):
            capacity = nodes.allocatable[resource.name]
            lacking = capacity <= 0
            if (wanted == 0 and requests.is_scalar(resource.name)) or lacking.all():
                continue
            used, whole = nodes.requested[resource.name], np.maximum(capacity, 1)
            before.append(np.minimum(used / whole, 1.0))
            after.append(np.minimum((used + wanted) / whole, 1.0))
            missing.append(lacking)
        gain = _evenness(after, missing, len(nodes)) - _evenness(before, missing, len(nodes))
        return 50 + (50 + gain) // 2

    def _wanted(self, pod: Pod) -> list[int]:
        taken = (pod.assigned or pod.shape.assigned).requests
        return [taken.get(resource.name, 0) for resource in self.args.resources]


def _evenness(shares: list[Floats], missing: list[NDArray[np.bool_]], length: int) -> Scores:
    """100 where all resources of a node are used alike, less the further their shares are apart."""
    if len(shares) < 2:
        return np.full(length, MAX_SCORE, np.int64)
    if len(shares) == 2:
        apart = np.abs((shares[0] - shares[1]) / 2)
        apart[missing[0] | missing[1]] = 0.0
    else:
        apart = _deviation(shares, missing)
    return ((1 - apart) * MAX_SCORE).astype(np.int64)


def _deviation(shares: list[Floats], missing: list[NDArray[np.bool_]]) -> Floats:
    """The standard deviation of each node's shares, of those resources that it has."""
    counts = sum(~lacking for lacking in missing).astype(np.int64)  # type: ignore[union-attr]
    present = [np.where(lacking, 0.0, share) for share, lacking in zip(shares, missing, strict=True)]
    mean = _total(present) / np.maximum(counts, 1)
    squares = [
        np.where(lacking, 0.0, (share - mean) * (share - mean))
        for share, lacking in zip(shares, missing, strict=True)
    ]
    deviation = np.sqrt(_total(squares) / np.maximum(counts, 1))
    highest = np.max(
        [np.where(lacking, -1.0, share) for share, lacking in zip(shares, missing, strict=True)], 0
    )
    lowest = np.min(
        [np.where(lacking, 2.0, share) for share, lacking in zip(shares, missing, strict=True)], 0
    )
    # parity: two shares are half their distance apart, which is worked out without a square root
    return np.where(counts < 2, 0.0, np.where(counts == 2, (highest - lowest) / 2, deviation))


def _total(columns: list[Floats]) -> Floats:
    """Summed one after another: another order may differ in the last bit."""
    total = np.zeros(len(columns[0]))
    for column in columns:
        total = total + column
    return total
