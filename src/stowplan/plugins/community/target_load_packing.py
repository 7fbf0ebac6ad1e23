"""TargetLoadPacking: fills nodes up to a target CPU utilization, and avoids those above it.

The utilization is measured. To it the plugin adds what the pod will use by its limits and requests, and what
pods will use that were bound too recently to be in the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import PodSpec, ResourceRequirements
from stowplan.api.quantity import milli_units, parse
from stowplan.config.field_errors import child, invalid
from stowplan.framework import CycleState, Handle, Mask, NodeTable, Pod, Reads, Scores, Status
from stowplan.plugins.node_metrics import NO_DATA, Column, LoadArgs, LoadPlugin, RecentPods, round_half_up

DEFAULT_TARGET = 40


class TargetLoadPackingArgs(LoadArgs):
    default_requests: dict[str, str | int | float] = msgspec.field(default_factory=lambda: {"cpu": "1000m"})
    """What a container without CPU request and limit is expected to use."""
    default_requests_multiplier: str = "1.5"
    """A container without CPU limit is expected to use so many times its request."""
    target_utilization: int = DEFAULT_TARGET
    """The CPU utilization to aim for, in percent."""

    def __post_init__(self) -> None:
        self.default_requests_multiplier = self.default_requests_multiplier or "1.5"
        if self.target_utilization <= 0:
            self.target_utilization = DEFAULT_TARGET

    def validate(self, path: str) -> Iterator[str]:
        yield from super().validate(path)
        if self.target_utilization > 100:
            yield invalid(child(path, "targetUtilization"), self.target_utilization, "must be at most 100")
        if not 0 <= self.multiplier < math.inf:
            where, text = child(path, "defaultRequestsMultiplier"), self.default_requests_multiplier
            yield invalid(where, text, 'must be a number in quotes, such as "1.5", and not negative')
        for name, amount in self.default_requests.items():
            try:
                is_bad = parse(amount) < 0
            except ValueError:
                is_bad = True
            if is_bad:
                where = f"{child(path, 'defaultRequests')}[{name}]"
                yield invalid(where, amount, "must be a quantity, such as 1000m, and not negative")

    @property
    def multiplier(self) -> float:
        """NaN if it is not a number."""
        try:
            return float(self.default_requests_multiplier)
        except ValueError:
            return math.nan


class TargetLoadPacking(LoadPlugin):
    args: TargetLoadPackingArgs
    enables = {"score": ("reserve",)}
    reads = Reads.USAGE

    def __init__(self, args: TargetLoadPackingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._multiplier = args.multiplier
        self._default = milli_units(parse(args.default_requests.get("cpu", 0)))
        self._recent = RecentPods(self.source, self._predict, handle.now)

    def sign_pod(self, pod: Pod) -> Hashable:
        return self.source.reading, self._predict(pod)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        if not self.source.reading:
            return np.full(len(nodes), NO_DATA, np.int64)
        target = self.args.target_utilization
        used, capacity, missing = self._node_columns(nodes)
        predicted = used + self._predict(pod)
        predicted += self._recent.column(nodes)
        predicted *= 100
        predicted /= capacity
        points = (100 - target) * predicted
        points /= target
        points += target
        above = np.subtract(100, predicted, out=used)
        above *= target
        above /= max(100 - target, 1)
        points = np.where(predicted > target, above, points)
        # It is below 0 if more than all CPU would be used.
        scores = round_half_up(np.maximum(points, 0, out=points))
        scores[missing] = NO_DATA
        return scores

    def _node_columns(self, nodes: NodeTable) -> tuple[Column, Column, NDArray[np.intp]]:
        """The CPU in use, which the caller may change, the capacity, and the rows without metrics."""

        def compute(part: NodeTable) -> tuple[Column, Column, Mask]:
            load = self.source.columns(part)
            missing = np.isnan(load.last_cpu)
            used = np.where(missing, 0, load.last_cpu / 100 * load.cpu_capacity)
            return used, np.where(load.cpu_capacity > 0, load.cpu_capacity, math.inf), missing

        used, capacity, missing = nodes.live.keep((self.serial, "load", self.source.reading), compute)
        if nodes is nodes.live:
            return used.copy(), capacity, np.flatnonzero(missing)
        rows = nodes.rows
        return used.take(rows), capacity.take(rows), np.flatnonzero(missing.take(rows))

    # Which pods the metrics do not show yet

    def pod_added(self, pod: Pod) -> None:
        if pod.node_name:
            self._recent.add(pod, pod.node_name)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        if new.node_name and not old.node_name:
            self._recent.add(new, new.node_name)

    def pod_deleted(self, pod: Pod) -> None:
        self._recent.remove(pod, pod.node_name)

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        self._recent.add(pod, node_name)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self._recent.remove(pod, node_name)

    def _predict(self, pod: Pod) -> int:
        """Thousandths of a CPU that the pod's containers are expected to use."""
        found: int | None = pod.shape.memo.get((self.serial, "cpu"))
        if found is None:
            spec = pod.spec
            found = milli_units(spec.overhead.get("cpu", 0))
            for resources in _running_parts(spec):
                limit = resources.limits.get("cpu")
                request = resources.requests.get("cpu")
                if limit is not None:
                    found += milli_units(limit)
                elif request is not None:
                    found += math.floor(milli_units(request) * self._multiplier + 0.5)
                else:
                    found += self._default
            pod.shape.memo[self.serial, "cpu"] = found
        return found


def _running_parts(spec: PodSpec) -> list[ResourceRequirements]:
    """What tells how much CPU the pod uses while it runs: of the pod as a whole, else of each container."""
    whole = spec.resources
    if whole is not None and ("cpu" in whole.limits or "cpu" in whole.requests):
        return [whole]
    sidecars = (each for each in spec.init_containers if each.is_sidecar)
    return [each.resources for each in (*sidecars, *spec.containers)]
