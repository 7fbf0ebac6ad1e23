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
        columns = self._node_columns(nodes)
        cpu = _points(columns[:3], pod.requests.get("cpu", 0))
        memory = _points(columns[3:], pod.requests.get("memory", 0) / MEBIBYTE)
        # fmin takes the number where the other one is missing.
        points = np.fmin(cpu, memory)
        missing = np.isnan(points)
        points[missing] = 0
        scores = round_half_up(points)
        scores[missing] = NO_DATA
        return scores

    def _node_columns(self, nodes: NodeTable) -> tuple[Column, ...]:
        """What does not depend on the pod, for CPU and for memory: the load, the capacity and sigma."""

        def compute(part: NodeTable) -> tuple[Column, ...]:
            load, allocatable = self.source.columns(part), part.allocatable
            cpu = self._resource_columns(load.cpu, load.cpu_deviation, allocatable["cpu"])
            capacity = allocatable["memory"] / MEBIBYTE
            return (*cpu, *self._resource_columns(load.memory, load.memory_deviation, capacity))

        live: tuple[Column, ...] = nodes.live.keep((self.serial, "risk", self.source.reading), compute)
        return live if nodes is nodes.live else tuple(column[nodes.rows] for column in live)

    def _resource_columns(
        self, average: Column, deviation: Column, capacity: Column | Ints
    ) -> tuple[Column, Column, Column]:
        margin, sensitivity = self.args.safe_variance_margin, self.args.safe_variance_sensitivity
        has_any = capacity > 0
        divisor = np.where(has_any, capacity, 1)
        # A source without deviations, such as the metrics API, says nothing against a node.
        sigma = np.clip(np.nan_to_num(deviation) * capacity / 100 / divisor, 0, 1)
        sigma = np.power(sigma, 1 / sensitivity if sensitivity else np.inf)
        sigma = np.clip(sigma * margin, 0, 1)
        # A node that has nothing of the resource, but a load, gets the highest risk.
        used = np.where(has_any | np.isnan(average), average * capacity / 100, np.inf)
        return used, divisor.astype(np.float64), np.where(has_any, sigma, 1.0)


def _points(columns: tuple[Column, ...], request: float) -> Column:
    """The score by one resource; NaN where its average is not known, 0 where the node has none of it."""
    used, capacity, sigma = columns
    mu = used + request
    mu /= capacity
    np.minimum(mu, 1, out=mu)
    mu += sigma
    mu /= 2
    points: Column = np.subtract(1, mu, out=mu)
    points *= MAX_SCORE
    return points
