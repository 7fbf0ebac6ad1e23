"""LowRiskOverCommitment: prefers nodes where pods are unlikely to need more than the node has.

The risk of a node is a mean of two: how far the limits of its pods exceed its capacity, and how likely its
load, taken as Beta distributed, exceeds what its pods request.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.api.pod import Container
from stowplan.api.requests import MAX_TAKEN, amount_of
from stowplan.cluster.node_table import NodeRow
from stowplan.config.field_errors import child, invalid
from stowplan.framework import MAX_SCORE, CycleState, Handle, Mask, NodeTable, Pod, Reads, Scores, Status
from stowplan.plugins.node_metrics import NO_DATA, Column, LoadArgs, LoadPlugin, round_half_up

Ints = NDArray[np.int64]
RESOURCES = ("cpu", "memory")
DEFAULT_WEIGHT = 0.5
MAX_VARIANCE = 0.99
"""The largest variance for a mean, as a share of the one that no Beta distribution reaches."""
STEADY = 1e-9
"""A deviation below this counts as none."""
NARROW = 1e5
"""Above this sum of its parameters, a Beta distribution counts as a normal one: it needs too many terms."""
FEW = 16
"""Up to so many nodes plain numbers are faster than columns."""


class LowRiskOverCommitmentArgs(LoadArgs):
    smoothing_window_size: int = 5
    """How many samples a source has averaged; deviations count by the root of it."""
    risk_limit_weights: dict[str, float] = {}
    """By resource, how much limits beyond capacity count, against the load: 0 to 1, 0.5 if absent."""

    def __post_init__(self) -> None:
        if self.smoothing_window_size <= 0:
            self.smoothing_window_size = 5
        self.risk_limit_weights = {
            name: DEFAULT_WEIGHT if weight < 0 or weight > 1 else weight
            for name, weight in (dict.fromkeys(RESOURCES, DEFAULT_WEIGHT) | self.risk_limit_weights).items()
        }

    def validate(self, path: str) -> Iterator[str]:
        yield from super().validate(path)
        for name, weight in self.risk_limit_weights.items():
            if math.isnan(weight):
                yield invalid(f"{child(path, 'riskLimitWeights')}[{name}]", weight, "must be between 0 and 1")


class Demand(NamedTuple):
    """What a pod requests, and its limits, which are at least as high."""

    cpu: int
    memory: int
    cpu_limit: int
    memory_limit: int


class LowRiskOverCommitment(LoadPlugin):
    args: LowRiskOverCommitmentArgs
    reads = Reads.USAGE
    takes_rows = True

    def __init__(self, args: LowRiskOverCommitmentArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._root = math.sqrt(args.smoothing_window_size)

    def has_data(self, node: NodeObject) -> bool:
        load = self.source.load_of(node)
        return not (math.isnan(load.cpu) and math.isnan(load.memory))

    def sign_pod(self, pod: Pod) -> Hashable:
        return self.source.reading, demand_of(pod)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        """Nothing to prepare; profiles of scheduler-plugins enable the plugin at preScore too."""
        return None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        demand = demand_of(pod)
        if isinstance(nodes, NodeRow):
            return self._score_row(nodes, demand)
        if not any(demand):  # a best-effort pod: nothing is known of its needs
            return np.zeros(len(nodes), np.int64)
        if not self.source.reading:
            return np.full(len(nodes), NO_DATA, np.int64)
        cpu_limits, memory_limits, cpu_load, memory_load, missing = self._node_columns(nodes)
        worst = np.maximum(
            self._risk(nodes, "cpu", demand.cpu, demand.cpu_limit, cpu_limits, cpu_load),
            self._risk(nodes, "memory", demand.memory, demand.memory_limit, memory_limits, memory_load),
        )
        scores = round_half_up((1 - worst) * MAX_SCORE)
        scores[missing] = NO_DATA
        return scores

    def _score_row(self, node: NodeRow, demand: Demand) -> Any:
        """The score of one node, in plain numbers."""
        load = self.source.load_of(node.live.objects[node.rows])
        if not any(demand):
            return 0
        if not self.source.reading or (math.isnan(load.cpu) and math.isnan(load.memory)):
            return NO_DATA
        pods = [demand_of(each) for each in node.live.pods_on(node.rows)]
        worst = 0.0
        for resource, request, limit, limits, average, deviation in (
            ("cpu", demand.cpu, demand.cpu_limit, sum(each.cpu_limit for each in pods), *load[:2]),
            (
                "memory",
                demand.memory,
                demand.memory_limit,
                sum(each.memory_limit for each in pods),
                *load[2:4],
            ),
        ):
            capacity, before = node.allocatable[resource], node.requested[resource]
            total = limits + limit
            over = 0.0
            if total > capacity:
                over = (total - capacity) / (total - min(before + request, capacity))
            sigma = 0.0 if math.isnan(deviation) else deviation / 100 * self._root
            risk = load_risk(capacity, before, limits, average / 100, sigma)
            weight = self.args.risk_limit_weights[resource]
            share = weight * over + (1 - weight) * (0.0 if math.isnan(risk) else risk)
            worst = max(worst, min(max(share, 0.0), 1.0))
        points = (1 - worst) * MAX_SCORE
        return math.floor(points) + (points - math.floor(points) >= 0.5)

    def _risk(
        self, nodes: NodeTable, resource: str, request: int, limit: int, limits: Column, load: Column
    ) -> Column:
        """The risk by one resource; `load` is what the measured load contributes to it."""
        capacity = nodes.allocatable[resource]
        requested = np.minimum(nodes.requested[resource] + request, capacity)
        total = limits + limit
        # Requests are at most the capacity, so where limits exceed it by 1 or more, they exceed requests by
        # as much; elsewhere the risk is 0, whatever it is divided by.
        risk = np.maximum(total - capacity, 0)
        risk /= np.maximum(total - requested, 1)
        risk *= self.args.risk_limit_weights[resource]
        risk += load
        return np.minimum(risk, 1, out=risk)  # it is not negative

    def _node_columns(self, nodes: NodeTable) -> tuple[Column, Column, Column, Column, Mask]:
        """Sums of limits, the risks by the measured load times their weights, and which nodes have no
        metrics. A resource without metrics has a load risk of 0, as in scheduler-plugins."""

        def compute(part: NodeTable) -> tuple[Any, ...]:
            limits = np.zeros((2, len(part)))
            for row in range(len(part)):
                for pod in part.pods_on(row):
                    demand = demand_of(pod)
                    limits[0, row] += demand.cpu_limit
                    limits[1, row] += demand.memory_limit
            load = self.source.columns(part)
            measured = ((load.cpu, load.cpu_deviation), (load.memory, load.memory_deviation))
            risks = [
                load_risks(
                    part.allocatable[resource],
                    part.requested[resource],
                    total,
                    average / 100,
                    np.nan_to_num(deviation) / 100 * self._root,
                )
                for resource, total, (average, deviation) in zip(RESOURCES, limits, measured, strict=True)
            ]
            weights = [1 - self.args.risk_limit_weights[resource] for resource in RESOURCES]
            loads = [weight * np.nan_to_num(risk) for weight, risk in zip(weights, risks, strict=True)]
            return (*limits, *loads, np.isnan(risks[0]) & np.isnan(risks[1]))

        if nodes is not nodes.live:
            return compute(nodes)
        found: Any = nodes.keep((self.serial, "risk", self.source.reading), compute, usage=True)
        return found  # type: ignore[no-any-return]


def demand_of(pod: Pod) -> Demand:
    found: Demand | None = pod.shape.memo.get(demand_of)
    if found is None:
        requests = [pod.requests.get(resource, 0) for resource in RESOURCES]
        limits = [
            min(max(limit_of(pod, resource), request), MAX_TAKEN)
            for resource, request in zip(RESOURCES, requests, strict=True)
        ]
        found = pod.shape.memo[demand_of] = Demand(*requests, *limits)
    return found


def limit_of(pod: Pod, resource: str) -> int:
    """The limits of a pod's containers together, counted as its requests are; 0 for one without a limit."""

    def of(container: Container) -> int:
        return container.resources.limits.get(resource, 0)

    sidecars, peak = 0, 0
    for container in pod.spec.init_containers:
        if container.is_sidecar:
            sidecars += of(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + of(container))
    total = max(sum(map(of, pod.spec.containers)) + sidecars, peak)
    whole = pod.spec.resources.limits.get(resource) if pod.spec.resources is not None else None
    return amount_of(resource, (total if whole is None else whole) + pod.spec.overhead.get(resource, 0))


# The risk by the measured load


def load_risks(capacity: Ints, requested: Ints, limits: Column, mu: Column, sigma: Column) -> Column:
    """The chance that a node's load exceeds what its pods request; NaN where the load is not known."""
    if len(mu) <= FEW:
        rows = zip(capacity, requested, limits, mu, sigma, strict=True)
        return np.array([load_risk(*map(float, row)) for row in rows], np.float64)
    has_any = capacity > 0
    divisor = np.where(has_any, capacity, 1)
    requests_share = np.minimum(requested, capacity) / divisor
    limits_share = limits / divisor
    mu = np.clip(mu, 0, 1)
    sigma = np.minimum(np.clip(sigma, 0, 1), np.sqrt(MAX_VARIANCE * mu * (1 - mu)))
    chance = _below(mu, sigma, requests_share)
    within = (limits < capacity) & (np.minimum(requested, capacity) <= limits)
    below_limits = _below(mu, sigma, np.minimum(limits_share, 1))
    # A load above all limits is a risk: nothing is left to divide by then.
    ratio = chance.copy()
    np.divide(chance, below_limits, out=ratio, where=below_limits > 0)
    chance = np.where(within, np.where(limits == 0, 1, np.clip(ratio, 0, 1)), chance)
    return np.where(np.isnan(mu), np.nan, np.where(has_any, 1 - chance, 0))


def _below(mu: Column, sigma: Column, threshold: Column) -> Column:
    steady = (sigma < STEADY) | (mu == 0)
    chance = np.where(mu <= threshold, 1.0, 0.0)
    chance[mu == 0] = 1
    chance[np.isnan(mu)] = np.nan
    varies = np.flatnonzero(~steady & ~np.isnan(mu))
    if len(varies):
        mean, deviation = mu[varies], sigma[varies]
        scale = mean * (1 - mean) / (deviation * deviation) - 1
        is_narrow = scale > NARROW
        bounded = np.minimum(scale, NARROW)
        found = beta_cdfs(mean * bounded, (1 - mean) * bounded, threshold[varies])
        if is_narrow.any():
            erf = np.frompyfunc(math.erf, 1, 1)
            apart = (threshold[varies] - mean) / (deviation * math.sqrt(2))
            found = np.where(is_narrow, (1 + np.asarray(erf(apart), np.float64)) / 2, found)
        chance[varies] = found
    return chance


def load_risk(capacity: float, requested: float, limits: float, mu: float, sigma: float) -> float:
    """The same for one node."""
    if math.isnan(mu):
        return math.nan
    if capacity <= 0:
        return 0.0
    requested = min(requested, capacity)
    mu = min(max(mu, 0.0), 1.0)
    sigma = min(max(sigma, 0.0), 1.0, math.sqrt(MAX_VARIANCE * mu * (1 - mu)))
    chance = chance_below(mu, sigma, requested / capacity)
    if limits < capacity and requested <= limits:
        if limits == 0:
            chance = 1.0
        elif (below_limits := chance_below(mu, sigma, limits / capacity)) > 0:
            chance = min(max(chance / below_limits, 0.0), 1.0)
    return 1 - chance


def chance_below(mu: float, sigma: float, threshold: float) -> float:
    """The chance that a share with this mean and deviation is at most the threshold; 0 where no Beta
    distribution has such moments."""
    if mu == 0 or sigma < STEADY:
        return 1.0 if mu == 0 or mu <= threshold else 0.0
    scale = mu * (1 - mu) / (sigma * sigma) - 1
    if scale <= 0:
        return 0.0
    if scale > NARROW:
        return (1 + math.erf((threshold - mu) / (sigma * math.sqrt(2)))) / 2
    return beta_cdf(mu * scale, (1 - mu) * scale, threshold)


MAX_TERMS = 1000
TINY = 1e-300
CLOSE = 1e-13


def beta_cdf(a: float, b: float, x: float) -> float:
    """The chance that a Beta distributed number is at most x, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    is_other = x > (a + 1) / (a + b + 2)  # then it converges faster for the other tail
    if is_other:
        a, b, x = b, a, 1 - x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < CLOSE:
            break
    found = min(max(math.exp(log_front) * value / a, 0.0), 1.0)
    return 1 - found if is_other else found


def _nonzero(number: float) -> float:
    return number if abs(number) > TINY else TINY


def beta_cdfs(a: Column, b: Column, x: Column) -> Column:
    """The same for columns."""
    other = x > (a + 1) / (a + b + 2)
    a, b, y = np.where(other, b, a), np.where(other, a, b), np.clip(np.where(other, 1 - x, x), 0, 1)
    inside = (y > 0) & (y < 1)
    z = np.where(inside, y, 0.5)
    log_gamma = np.frompyfunc(math.lgamma, 1, 1)
    log_front: Column = np.asarray(log_gamma(a + b) - log_gamma(a) - log_gamma(b), np.float64)
    log_front += a * np.log(z) + b * np.log1p(-z)

    def nonzero(numbers: Column) -> Column:
        return np.where(np.abs(numbers) > TINY, numbers, TINY)

    c, d = np.ones(len(a)), 1 / nonzero(1 - (a + b) * z / (a + 1))
    value = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * z / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / nonzero(1 + term * d)
            c = nonzero(1 + term / c)
            value = value * (c * d)
        if (np.abs(c * d - 1) < CLOSE).all():
            break
    found = np.clip(np.exp(log_front) * value / a, 0, 1)
    found = np.where(inside, found, np.where(y <= 0, 0.0, 1.0))
    return np.where(other, 1 - found, found)
