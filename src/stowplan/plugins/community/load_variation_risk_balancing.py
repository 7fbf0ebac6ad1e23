"""LoadVariationRiskBalancing: prefers nodes whose load is low and steady, by its average and deviation."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.config.field_errors import child, invalid
from stowplan.framework import MAX_SCORE, CycleState, NodeTable, Pod, Reads, Scores
from stowplan.plugins.node_metrics import NO_DATA, Column, LoadArgs, LoadPlugin, round_half_up

Ints = NDArray[np.int64]
MEBIBYTE = 2**20


class LoadVariationRiskBalancingArgs(LoadArgs):
    safe_variance_margin: float = 1
    """How much the deviation counts."""
    safe_variance_sensitivity: float = 1
    """The deviation counts by its root of this degree; 0 leaves deviations below 100 % out."""

    def __post_init__(self) -> None:
        if self.safe_variance_margin < 0:
            self.safe_variance_margin = 1
        if self.safe_variance_sensitivity < 0:
            self.safe_variance_sensitivity = 1

    def validate(self, path: str) -> Iterator[str]:
        yield from super().validate(path)
        for name, number in (
            ("safeVarianceMargin", self.safe_variance_margin),
            ("safeVarianceSensitivity", self.safe_variance_sensitivity),
        ):
            if not math.isfinite(number):
                yield invalid(child(path, name), number, "must be a finite number")


class LoadVariationRiskBalancing(LoadPlugin):
    args: LoadVariationRiskBalancingArgs
    reads = Reads.NODE

    def has_data(self, node: NodeObject) -> bool:
        load = self.source.load_of(node)
        return not (math.isnan(load.cpu) and math.isnan(load.memory))

    def sign_pod(self, pod: Pod) -> Hashable:
        return self.source.reading, pod.requests.get("cpu", 0), pod.requests.get("memory", 0)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        if not self.source.reading:
            return np.full(len(nodes), NO_DATA, np.int64)
        load = self.source.columns(nodes)
        cpu = self._points(load.cpu, load.cpu_deviation, nodes.allocatable["cpu"], pod.requests.get("cpu", 0))
        memory = self._points(
            load.memory,
            load.memory_deviation,
            nodes.allocatable["memory"] / MEBIBYTE,
            pod.requests.get("memory", 0) / MEBIBYTE,
        )
        # fmin takes the number where the other one is missing.
        points = np.fmin(cpu, memory)
        missing = np.isnan(points)
        return np.where(missing, NO_DATA, round_half_up(np.where(missing, 0, points)))

    def _points(self, average: Column, deviation: Column, capacity: Column | Ints, request: float) -> Column:
        """The score by one resource; NaN where its average is not known, 0 where the node has none of it."""
        margin, sensitivity = self.args.safe_variance_margin, self.args.safe_variance_sensitivity
        has_any = capacity > 0
        divisor = np.where(has_any, capacity, 1)
        mu = np.clip((average * capacity / 100 + request) / divisor, 0, 1)
        # A source without deviations, such as the metrics API, says nothing against a node.
        sigma = np.clip(np.nan_to_num(deviation) * capacity / 100 / divisor, 0, 1)
        sigma = np.power(sigma, 1 / sensitivity if sensitivity else np.inf)
        sigma = np.clip(sigma * margin, 0, 1)
        points = (1 - (mu + sigma) / 2) * MAX_SCORE
        return np.where(np.isnan(average), np.nan, np.where(has_any, points, 0))
