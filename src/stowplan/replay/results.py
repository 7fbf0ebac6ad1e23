"""Results of a replay: each pod's placement, the state of the cluster over time, and the measures of both.

Everything but the decision times depends on trace, configuration and options alone, so the same replay
writes the same bytes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.errors import InputError
from stowplan.replay.trace import Trace, arrow

SHAPES_SHARE, MAX_SHAPES = 0.95, 50
"""Fragmentation is measured by the most frequent shapes of pods that make up this share of all pods."""
Floats = NDArray[np.float64]


class PodResult(msgspec.Struct, omit_defaults=True):
    """What became of one pod; times are those of the trace."""

    uid: str
    namespace: str
    name: str
    arrived: float
    recorded_node: str = ""
    """Where it was bound when the trace was recorded."""
    node: str = ""
    bound: float | None = None
    ended: float | None = None
    attempts: int = 0
    is_evicted: bool = False
    is_dropped: bool = False
    """Whether it did not fit, and pods are not retried."""
    is_error: bool = False
    message: str = ""
    """Why its last failed attempt failed."""
    feasible: int = 0
    """How many nodes fitted when it was placed."""
    ties: int = 0
    """How many of them had the highest score; 0 if they were not scored."""


class Sample(msgspec.Struct):
    """The cluster at one moment."""

    time: float
    allocated: dict[str, float]
    """The share of each resource that pods request, from 0 to 1."""
    pending: int
    nodes_used: int
    fragmented: dict[str, float]
    """The share of each resource's free amount that pods of the trace's shapes cannot use."""
    balance_cv: float
    """Coefficient of variation of the nodes' allocated shares; 0 if all are alike."""
    balance_jain: float
    """Jain's index of the nodes' allocated shares: 1 if all are alike, 1/n if one has all."""


class Results(msgspec.Struct):
    source: str
    start: float
    end: float
    pods: list[PodResult] = []
    samples: list[Sample] = []
    mean_allocated: dict[str, float] = {}
    """The share of each resource that pods request, over time."""
    mean_pending: float = 0.0
    ignored: dict[str, int] = {}
    """How many events were of kinds that do not concern scheduling, by kind."""
    explanations: dict[str, str] = {}
    decision_seconds: list[float] = []
    """How long each decision took, in real time."""

    @property
    def placements(self) -> dict[str, str]:
        """The node of each pod, by id; empty for a pod that got none."""
        return {pod.uid: pod.node for pod in self.pods}

    def metrics(self) -> dict[str, float]:
        """All measures, by name, such as `waiting.p95`; the units are in docs/replay.md."""
        waits = sorted(self._waits())
        times = np.array(self.decision_seconds or [0.0]) * 1e3
        found: dict[str, float] = {
            "pods.total": len(self.pods),
            "pods.bound": sum(pod.bound is not None for pod in self.pods),
            "pods.pending": sum(pod.bound is None and pod.ended is None for pod in self.pods),
            "pods.dropped": sum(pod.is_dropped for pod in self.pods),
            "evictions": sum(pod.is_evicted for pod in self.pods),
            "attempts": sum(pod.attempts for pod in self.pods),
            "waiting.p50": _percentile(waits, 50),
            "waiting.p95": _percentile(waits, 95),
            "waiting.max": waits[-1] if waits else 0.0,
            "pending.mean": self.mean_pending,
            "pending.max": max((each.pending for each in self.samples), default=0),
        }
        for resource, share in self.mean_allocated.items():
            found[f"allocated.{resource}"] = share
        found |= {f"fragmented.{name}": value for name, value in self._means("fragmented").items()}
        found["nodes.used"] = _mean([each.nodes_used for each in self.samples])
        found["nodes.used.max"] = max((each.nodes_used for each in self.samples), default=0)
        found["balance.cv"] = _mean([each.balance_cv for each in self.samples])
        found["balance.jain"] = _mean([each.balance_jain for each in self.samples])
        found["decision.p50"], found["decision.p95"] = (
            float(np.percentile(times, each)) for each in (50, 95)
        )
        return found

    def _waits(self) -> Iterable[float]:
        """The time from arrival to binding; for pods that were never bound, until they or the replay
        ended."""
        for pod in self.pods:
            over = pod.bound if pod.bound is not None else pod.ended if pod.ended is not None else self.end
            if not pod.is_dropped:
                yield over - pod.arrived

    def _means(self, field: str) -> dict[str, float]:
        rows: list[dict[str, float]] = [getattr(each, field) for each in self.samples]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _mean([row[name] for row in rows if name in row]) for name in names}

    def write(self, file: Path) -> None:
        """Write the pods: Parquet to a file named `*.parquet`, JSON lines to any other."""
        try:
            if file.suffix == ".parquet":
                pa = arrow()
                plain = [
                    {name: getattr(pod, name) for name in PodResult.__struct_fields__} for pod in self.pods
                ]
                types = {str: pa.string(), float: pa.float64(), float | None: pa.float64(), int: pa.int64()}
                schema = pa.schema(
                    [
                        (field.name, types.get(field.type, pa.bool_()))
                        for field in msgspec.structs.fields(PodResult)
                    ]
                )
                pa.parquet.write_table(pa.Table.from_pylist(plain, schema), file, compression="zstd")
            else:
                file.write_bytes(b"".join(msgspec.json.encode(pod) + b"\n" for pod in self.pods))
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", where=str(file)) from None


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else 0.0


def _percentile(ordered: list[float], percent: float) -> float:
    """The smallest value that at least `percent` percent of the values do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else 0.0


class Samples:
    """Measures the cluster while a replay runs: totals at every step, the rest at evenly spread moments."""

    def __init__(self, results: Results, trace: Trace, nodes: LiveNodeTable, number: int) -> None:
        self._results, self._nodes = results, nodes
        self.pending = 0
        """Pods without a node."""
        self._used: defaultdict[str, int] = defaultdict(int)
        self._capacity: dict[str, int] | None = None
        self.allocated_seconds: dict[str, float] = {}
        """For each resource, its allocated share integrated over time."""
        self.pending_seconds, self._now, self._end = 0.0, trace.start, trace.end
        self._step = (trace.end - trace.start) / number if number else 0.0
        self._taken = 0
        """How many samples were taken; the last one is at the end of the trace."""
        self._is_over = False
        self._shapes = _common_shapes(trace)

    def take_nodes(self) -> None:
        """Nodes came, changed or went."""
        self._capacity = None

    def count(self, pod: Pod, sign: int) -> None:
        """A pod got its node, or left it."""
        for resource, amount in pod.requests.items():
            self._used[resource] += sign * amount

    def advance(self, time: float) -> None:
        """Nothing changes from now until then. What comes after the end of the trace is not measured."""
        if self._is_over:
            return
        while self._step > 0 and (due := self._now_of(self._taken + 1)) <= time and due < self._end:
            self._taken += 1
            self._add_up(due)
            self._results.samples.append(self.measure(due))
        self._add_up(min(time, self._end))
        if time > self._end:
            self._is_over = True
            self._results.samples.append(self.measure(self._end))

    def _now_of(self, number: int) -> float:
        return self._results.start + number * self._step

    def _add_up(self, time: float) -> None:
        passed, self._now = time - self._now, time
        if passed > 0:
            for resource, share in self._shares().items():
                self.allocated_seconds[resource] = self.allocated_seconds.get(resource, 0.0) + share * passed
            self.pending_seconds += self.pending * passed

    def _shares(self) -> dict[str, float]:
        if self._capacity is None:
            allocatable = self._nodes.allocatable
            self._capacity = {name: int(allocatable[name].sum()) for name in allocatable if name != "pods"}
        return {name: self._used[name] / total for name, total in self._capacity.items() if total}

    def measure(self, time: float) -> Sample:
        """The cluster as it is."""
        nodes, shares = self._nodes, self._shares()
        cv = jain = 0.0
        if len(nodes) and shares:
            columns = [
                nodes.requested[name] / np.maximum(nodes.allocatable[name], 1)
                for name in ("cpu", "memory")
                if name in shares
            ]
            loads: Floats = np.mean(columns, axis=0) if columns else np.zeros(len(nodes))
            mean, square = float(loads.mean()), float((loads**2).mean())
            cv = float(loads.std()) / mean if mean else 0.0
            jain = mean * mean / square if square else 1.0
        used = int(np.count_nonzero(nodes.pod_count))
        return Sample(time, shares, self.pending, used, self._fragmented_shares(shares), cv, jain)

    def _fragmented_shares(self, shares: Mapping[str, float]) -> dict[str, float]:
        """For each resource, the part of what is free that is on nodes where a shape does not fit, by
        weight."""
        nodes = self._nodes
        if not len(nodes) or not self._shapes:
            return {}
        free = {name: nodes.allocatable[name] - nodes.requested[name] for name in shares}
        fits = np.ones((len(self._shapes), len(nodes)), np.bool_)
        for row, (requests, _) in zip(fits, self._shapes, strict=True):
            for name, amount in requests.items():
                row &= free[name] >= amount if name in free else amount == 0
        weights = np.array([weight for _, weight in self._shapes])
        found: dict[str, float] = {}
        for name, column in free.items():
            total = int(np.maximum(column, 0).sum())
            if total:
                found[name] = float(weights @ (~fits @ np.maximum(column, 0))) / total
        return found

    def finish(self, end: float, pods: Iterable[PodResult]) -> Results:
        results, length = self._results, self._end - self._results.start
        self.advance(math.inf)
        results.end = max(end, self._end)
        results.pods = list(pods)
        if length > 0:
            results.mean_allocated = {name: value / length for name, value in self.allocated_seconds.items()}
            results.mean_pending = self.pending_seconds / length
        else:
            results.mean_allocated = results.samples[-1].allocated
            results.mean_pending = float(results.samples[-1].pending)
        return results


def _common_shapes(trace: Trace) -> list[tuple[Mapping[str, int], float]]:
    """The requests of the most frequent kinds of pods, with their weights."""
    known: dict[bytes, Mapping[str, int]] = {}
    counts: Counter[bytes] = Counter()
    for event in trace.events:
        if event.kind == "Pod" and event.verb == "add":
            spec = _spec_of(bytes(event.object))
            counts[spec] += 1
            if spec not in known:
                known[spec] = Pod.decode(b'{"metadata":{"name":"shape"},"spec":' + spec + b"}").requests
    total, covered = sum(counts.values()), 0
    chosen: list[tuple[Mapping[str, int], int]] = []
    for spec, number in counts.most_common(MAX_SHAPES):
        if covered >= SHAPES_SHARE * total:
            break
        covered += number
        chosen.append((known[spec], number))
    return [(requests, number / covered) for requests, number in chosen]


class _OnlySpec(msgspec.Struct):
    spec: msgspec.Raw = msgspec.Raw(b"{}")


_only_spec = msgspec.json.Decoder(_OnlySpec).decode


def _spec_of(data: bytes) -> bytes:
    return bytes(_only_spec(data).spec)
