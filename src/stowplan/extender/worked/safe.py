"""Nodes by how much of them is really used: safe-overload and safe-balance.

Usage comes from Prometheus (`--set read_usage.prometheus=URL`), or from annotations that someone else writes:
mean-free-cpu and std-free-cpu in thousandths of a CPU, mean-free-memory and std-free-memory in bytes, and
forcasted-free-cpu and forcasted-free-memory, which are spelt so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import aiohttp

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.extender.functions import Node, background, predicate, priority
from stowplan.plugins.community.low_risk_over_commitment import chance_below
from stowplan.plugins.prometheus import PrometheusError, run_query

CPU_USED = "1000 * sum by (NODE) (rate(node_cpu_seconds_total{mode!='idle'}[5m]))"
MEMORY_USED = "sum by (NODE) (node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes)"
STALE_SECONDS = 600.0
TOLD_SECONDS = 10.0


class Used(NamedTuple):
    """The usage of a resource over a period, in the units of requests."""

    mean: float
    deviation: float


class Usage(NamedTuple):
    """All that Prometheus said, by resource and node."""

    read_at: float
    nodes: dict[tuple[str, str], Used]


class Load(NamedTuple):
    """What would be used of a resource with the pod, as shares of what there is."""

    mean: float
    deviation: float


usage = Usage(-math.inf, {})


@background
async def read_usage(
    *,
    prometheus: str = "",
    node_label: str = "node",
    window: str = "6h",
    step: str = "5m",
    cpu: str = CPU_USED,
    memory: str = MEMORY_USED,
    refresh_seconds: float = 60.0,
) -> None:
    """Keeps `usage` fresh; NODE in a query stands for the label that has the node's name."""
    global usage
    while prometheus:
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TOLD_SECONDS)) as session:
                found = {
                    (resource, name): used
                    for resource, query in (("cpu", cpu), ("memory", memory))
                    for name, used in (
                        await _read(session, prometheus, query, node_label, f"{window}:{step}")
                    ).items()
                }
        except (PrometheusError, aiohttp.ClientError, TimeoutError) as error:
            log.error("Cannot read the usage of nodes", error, prometheus=prometheus)
        else:
            usage = Usage(time.monotonic(), found)
            log.log(2, "Read the usage of nodes", nodes=len({name for _, name in found}))
        await asyncio.sleep(refresh_seconds)


async def _read(
    session: aiohttp.ClientSession, prometheus: str, query: str, label: str, span: str
) -> dict[str, Used]:
    within = f"({query.replace('NODE', label)})[{span}]"
    means, deviations = [
        {
            sample.metric.get(label, ""): sample.amount
            for sample in await run_query(session, prometheus, f"{function}({within})")
        }
        for function in ("avg_over_time", "stddev_over_time")
    ]
    return {name: Used(mean, deviations.get(name) or 0.0) for name, mean in means.items() if mean is not None}


@predicate(path="/safe/predicates/safe-overload", name="safe-overload")
def overload_is_unlikely(
    pod: Pod, node: Node, *, utilization: int = 90, percentile: int = 30, forecast_weight: int = 20
) -> bool | str:
    """Rejects a node whose usage exceeds `utilization` percent more often than `percentile` percent."""
    limit = _percent(percentile, 30)
    for resource, load in _loads(pod, node, forecast_weight):
        risk = _risk(load, utilization)
        if risk > limit:
            return f"{resource} would be used beyond {utilization}% with a risk of {risk:.2f}"
    return True


@priority(path="/safe/priorities/safe-overload", name="safe-overload")
def safe_overload(
    pod: Pod, node: Node, *, utilization: int = 90, percentile: int = 30, forecast_weight: int = 20
) -> int:
    """Prefers nodes where usage seldom goes beyond `utilization` percent."""
    limit = _percent(percentile, 30)

    def score(load: Load) -> int:
        risk = _risk(load, utilization)
        part = min(risk / limit, 1.0) if limit else float(risk > 0)
        return int((1 - math.sqrt(part)) * 10)

    return _least(pod, node, forecast_weight, score)


@priority(path="/safe/priorities/safe-balance", name="safe-balance")
def safe_balance(pod: Pod, node: Node, *, forecast_weight: int = 20) -> int:
    """Prefers nodes that are used little, and steadily."""
    return _least(
        pod,
        node,
        forecast_weight,
        lambda load: int((1 - (load.mean + math.sqrt(load.deviation)) / 2) * 10 + 0.5),
    )


def _least(pod: Pod, node: Node, forecast_weight: int, score: Callable[[Load], int]) -> int:
    """The score of the scarcer resource; a node without data gets the lowest score."""
    return min((score(load) for _, load in _loads(pod, node, forecast_weight)), default=0)


def _risk(load: Load, utilization: int) -> float:
    return 1 - chance_below(load.mean, load.deviation, _percent(utilization, 90))


def _loads(pod: Pod, node: Node, forecast_weight: int) -> Iterator[tuple[str, Load]]:
    allocatable = node.allocatable
    for resource in ("cpu", "memory"):
        capacity = allocatable.get(resource, 0)
        used = _usage_of(node, resource, capacity, _percent(forecast_weight, 20))
        if used is not None and capacity > 0:
            mean = (used.mean + pod.requests.get(resource, 0)) / capacity
            yield resource, Load(_share(mean), _share(used.deviation / capacity))


def _usage_of(node: Node, resource: str, capacity: int, forecast_weight: float) -> Used | None:
    """As Prometheus has it; where it has not, as the annotations say."""
    if time.monotonic() - usage.read_at < STALE_SECONDS and (resource, node.name) in usage.nodes:
        return usage.nodes[resource, node.name]
    free, deviation = (_number(node, f"{what}-free-{resource}") for what in ("mean", "std"))
    if free is None:
        return None
    forecast = _number(node, f"forcasted-free-{resource}")
    if forecast is not None:
        free = (1 - forecast_weight) * free + forecast_weight * forecast
    return Used(max(capacity - free, 0.0), deviation or 0.0)


def _number(node: Node, annotation: str) -> float | None:
    try:
        found = float(node.annotations[annotation])
    except (KeyError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _percent(value: int, default: int) -> float:
    """A share; what is no percentage is taken for the default, as the original does."""
    return (value if 0 <= value <= 100 else default) / 100
