"""Policies for nodes whose GPUs are shared by pods: Random, DotProd, Clustering, Packing, BestFit and FGD.

They are those of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023). A profile enables one of them; it filters, scores, and chooses the devices.

A pod asks for GPUs with annotations: `example.com/gpu-count`, `example.com/gpu-milli` (thousandths of each
GPU, 1000 for whole ones), and `example.com/gpu-models`, separated by a bar, if only some will do. A node
says how many it has in its allocatable `example.com/gpu`, their model in the label `example.com/gpu-model`,
and its own name in `kubernetes.io/hostname`. Which devices a pod has is known only to the plugin, so this
is for replays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan import CycleState, Handle, NodeTable, Plugin, PluginArgs, Pod, Reads, Reject, Status

GPU, MODEL, HOSTNAME = "example.com/gpu", "example.com/gpu-model", "kubernetes.io/hostname"
COUNT, MILLI, MODELS = "example.com/gpu-count", "example.com/gpu-milli", "example.com/gpu-models"
WHOLE = 1000
MAX_DEVICES = 8
MAX_CPU, MAX_GPU = 128_000, MAX_DEVICES * WHOLE
"""The largest node, by which amounts are scaled."""
MAX_SCORE = 100
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Request(NamedTuple):
    """What a pod asks for."""

    cpu: int
    count: int = 0
    milli: int = 0
    models: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        return self.count == 1 and self.milli < WHOLE

    @property
    def total(self) -> int:
        return self.count * self.milli

    @property
    def group(self) -> int:
        """Pods that ask for a part of a GPU are one class, those for 1, 2, … whole ones another each."""
        return 0 if self.is_shared else self.count


@lru_cache(maxsize=4096)
def request_of(cpu: int, count: str, milli: str, models: str) -> Request:
    if int(count) == 0:
        return Request(cpu)
    return Request(cpu, int(count), int(milli), frozenset(models.split("|")) if models else frozenset())


class Devices(NamedTuple):
    """Some nodes as columns."""

    cpu: Ints
    """Free thousandths of a CPU."""
    free: Ints
    """Free thousandths of each device, by node and device; -1 where there is none."""
    model: Ints
    """The number of each node's model, -1 for none."""

    @property
    def left(self) -> Ints:
        """All that is free on a node."""
        return np.maximum(self.free, 0).sum(1)


class GpuArgs(PluginArgs):
    seed: int = 0
    """For Random."""


class _GpuPolicy(Plugin):
    """Filters nodes by their devices and keeps count of them. Derived classes score."""

    args: GpuArgs

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._free: Ints = np.full((0, MAX_DEVICES), -1, np.int64)
        """By the number of the hostname in its label column, and by device."""
        self._model: Ints = np.zeros(0, np.int64)
        self._models_known: list[str] = []
        self._groups: Ints = np.zeros((0, MAX_DEVICES + 1), np.int64)
        """How many pods of each class are on each node."""
        self._taken: dict[str, tuple[int, list[int], Request]] = {}
        """The node and the devices of each pod, by uid."""

    def request(self, pod: Pod) -> Request:
        found = pod.annotations
        cpu = pod.requests.get("cpu", 0)
        return request_of(cpu, found.get(COUNT, "0"), found.get(MILLI, "0"), found.get(MODELS, ""))

    def hosts(self, nodes: NodeTable) -> Ints:
        """The number of each node in the columns kept here."""
        ids = nodes.label(HOSTNAME).ids
        if len(ids) and int(ids.max()) >= len(self._free):
            self._add_nodes(nodes.live)
        return ids

    def devices(self, nodes: NodeTable) -> Devices:
        hosts = self.hosts(nodes)
        cpu = nodes.allocatable["cpu"] - nodes.requested["cpu"]
        return Devices(cpu, self._free[hosts], self._model[hosts])

    def _add_nodes(self, nodes: NodeTable) -> None:
        """Nodes that were not seen before have all their devices free."""
        hosts, known = nodes.label(HOSTNAME), len(self._free)
        free: Ints = np.full((len(hosts.values), MAX_DEVICES), -1, np.int64)
        model: Ints = np.full(len(free), -1, np.int64)
        groups: Ints = np.zeros((len(free), MAX_DEVICES + 1), np.int64)
        free[:known], model[:known], groups[:known] = self._free, self._model, self._groups
        models, counts = nodes.label(MODEL), nodes.allocatable[GPU].tolist()
        for host, number, count in zip(hosts.ids.tolist(), models.ids.tolist(), counts, strict=True):
            if host >= known:
                free[host, :count], model[host] = WHOLE, number
        self._free, self._model, self._groups = free, model, groups
        self._models_known = list(models.values)

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterable[Reject]:
        request = self.request(pod)
        if request.count == 0:
            return
        hosts = self.hosts(nodes)
        if request.models:
            allowed = np.array([*(value in request.models for value in self._models_known), False])
            mask = ~allowed[self._model[hosts]]
            yield Reject(mask, "node(s) had another GPU model", unresolvable=True)
        fitting = (self._free[hosts] >= request.milli).sum(1)
        yield Reject(fitting < request.count, f"Insufficient {GPU}")

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        request = self.request(pod)
        if request.count:
            nodes = self.handle.cluster.nodes
            row, host = nodes.row_of(node_name), nodes.label(HOSTNAME).index[node_name]
            assert row is not None
            used = nodes.requested["cpu"][row] - request.cpu  # the pod is on it already
            cpu = nodes.allocatable["cpu"][row] - used
            node = Devices(np.array([cpu]), self._free[[host]], self._model[[host]])
            chosen = self.choose(node, request)
            self._free[host, chosen] -= request.milli
            self._groups[host, request.group] += 1
            self._taken[pod.uid] = (host, chosen, request)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self.pod_deleted(pod)

    def pod_deleted(self, pod: Pod) -> None:
        host, chosen, request = self._taken.pop(pod.uid, (0, [], None))
        if request is not None:
            self._free[host, chosen] += request.milli
            self._groups[host, request.group] -= 1

    def choose(self, node: Devices, request: Request) -> list[int]:
        """The devices of a single node: the first free ones, or for a part of one the fullest that fits."""
        free = node.free[0]
        if not request.is_shared:
            return np.flatnonzero(free == WHOLE)[: request.count].tolist()
        return [int(np.where(free >= request.milli, free, WHOLE + 1).argmin())]


class _CachedPolicy(_GpuPolicy):
    """What it says of a node depends on the request, and on the pods of that node."""

    reads = Reads.USAGE

    def sign_pod(self, pod: Pod) -> Hashable:
        return self.request(pod)


class Random(_GpuPolicy):
    """A random node, and on it a random device."""

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._generator = np.random.default_rng(args.seed)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        scores: Ints = np.zeros(len(nodes), np.int64)
        scores[self._generator.integers(len(nodes))] = MAX_SCORE
        return scores

    def choose(self, node: Devices, request: Request) -> list[int]:
        if not request.is_shared:
            return super().choose(node, request)
        return [int(self._generator.choice(np.flatnonzero(node.free[0] >= request.milli)))]


class DotProd(_CachedPolicy):
    """Nodes whose free resources align least with the request."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        found, request = self.devices(nodes), self.request(pod)
        cpu = found.cpu / MAX_CPU * (request.cpu / MAX_CPU)
        gpu = found.left / MAX_GPU * (request.total / MAX_GPU)
        return np.clip(MAX_SCORE * (1 - (cpu + gpu) / 2), 0, MAX_SCORE).astype(np.int64)


class BestFit(_CachedPolicy):
    """Nodes on which the least is left."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        found, request = self.devices(nodes), self.request(pod)
        left = (found.cpu - request.cpu) / MAX_CPU / 2 + (found.left - request.total) / MAX_GPU / 2
        return ((1 - left) * MAX_SCORE).astype(np.int64)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Ints) -> Ints:
        lowest, highest = int(scores.min()), int(scores.max())
        return (scores - lowest) * MAX_SCORE // max(highest - lowest, 1)


class Packing(_CachedPolicy):
    """Devices in use first, then free devices of nodes in use, then idle nodes."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        request = self.request(pod)
        if request.count == 0:
            return np.zeros(len(nodes), np.int64)
        free = self._free[self.hosts(nodes)]
        if request.is_shared:
            fullest = np.where(free >= request.milli, free, WHOLE).min(1)
            shared = np.maximum(MAX_SCORE - fullest * 100 // WHOLE // 10, MAX_SCORE // 2)
            score = np.where(fullest == WHOLE, MAX_SCORE // 2 - 1, shared)
        else:
            score = np.full(len(nodes), max(MAX_SCORE // 2 - request.count, MAX_SCORE // 3))
        count = np.count_nonzero(free >= 0, axis=1)
        is_idle = np.count_nonzero(free == WHOLE, axis=1) == count
        return np.where(is_idle, np.maximum(MAX_SCORE // 3 - count, count), score)


class Clustering(_CachedPolicy):
    """Nodes that run pods of the same class first, and those that run nothing else before all."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        request = self.request(pod)
        if request.count == 0:
            return np.zeros(len(nodes), np.int64)
        hosts = self.hosts(nodes)
        groups, left = self._groups[hosts] > 0, np.maximum(self._free[hosts], 0).sum(1)
        kinds, has_same = np.count_nonzero(groups, axis=1), groups[:, request.group]
        base = np.select([has_same & (kinds == 1), has_same, kinds == 0], [75, 50, 25], 0)
        return base + MAX_SCORE // 4 * (MAX_GPU - left) // MAX_GPU


class TypicalPod(msgspec.Struct, rename="camel"):
    """A frequent shape of pods, and how many pods have it."""

    weight: float
    cpu: int
    """Thousandths of a CPU."""
    count: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()


class FGDArgs(GpuArgs):
    typical_pods: tuple[TypicalPod, ...] = ()


class Sums(NamedTuple):
    """Of some states of nodes: what their fragments follow from. One column for each amount a typical pod
    asks of a device."""

    cpu: Ints
    left: Ints
    fitting: Ints
    """How many devices have at least that much free."""
    small: Ints
    """What is free on the other devices, together."""


class FGD(_CachedPolicy):
    """Fragmentation Gradient Descent: the node whose expected fragment grows least, or shrinks most.

    For one typical pod the fragment of a node is all that is free on its devices if the pod cannot run
    there, and else what is free on devices that are too small for it. The expected fragment is the mean
    over typical pods."""

    args: FGDArgs

    def __init__(self, args: FGDArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        pods = [each for each in args.typical_pods if each.count]
        self._weights: Floats = np.array([each.weight for each in pods], np.float64)
        self._weight = sum(each.weight for each in args.typical_pods) or 1.0
        self._weight_without_gpu = sum(each.weight for each in args.typical_pods if not each.count)
        self._cpu, self._count, milli = (
            np.array([getattr(each, name) for each in pods], np.int64) for name in ("cpu", "count", "milli")
        )
        self._milli, self._place = np.unique(milli, return_inverse=True)
        self._models = [frozenset(each.models) for each in pods]
        self._allowed: Mask = np.zeros((0, len(pods)), np.bool_)
        """By the number of a model, with the last row for nodes without one."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        found = self.devices(nodes)
        values = (*self._models_known, "")
        if len(self._allowed) != len(values):
            rows = [[not models or value in models for models in self._models] for value in values]
            self._allowed = np.array(rows, np.bool_).reshape(len(values), len(self._models))
        return np.maximum(self._scores(found, self.request(pod)).max(1), 0)

    def choose(self, node: Devices, request: Request) -> list[int]:
        if not request.is_shared:
            return super().choose(node, request)
        return [int(self._scores(node, request)[0].argmax())]

    def _scores(self, nodes: Devices, request: Request) -> Ints:
        """By node and device for a pod that shares one, -1 where it does not fit; else by node, in one
        column."""
        free = nodes.free
        fits = free[:, :, None] >= self._milli
        part = np.maximum(free, 0)[:, :, None]
        small = np.where(fits, 0, part)
        before = Sums(nodes.cpu, part.sum((1, 2)), fits.sum(1), small.sum(1))
        cpu = nodes.cpu - request.cpu
        if request.is_shared:
            left = part - request.milli
            fits_after = left >= self._milli
            after = Sums(
                cpu[:, None],
                (before.left - request.total)[:, None],
                before.fitting[:, None, :] - fits + fits_after,
                before.small[:, None, :] - small + np.where(fits_after, 0, left),
            )
        else:
            after = Sums(
                cpu[:, None],
                (before.left - request.total)[:, None],
                (before.fitting - request.count)[:, None, :],
                before.small[:, None, :],
            )
        # Divided only now: sums of whole numbers are exact, and no change must be exactly none.
        change = self._fragment(before, nodes.model)[:, None] - self._fragment(after, nodes.model)
        change /= self._weight
        scores = (MAX_SCORE / (1 + np.exp(-change / WHOLE))).astype(np.int64)
        return np.where(free >= request.milli, scores, -1) if request.is_shared else scores

    def _fragment(self, sums: Sums, model: Ints) -> Floats:
        """The fragment of each state, for all pods together; all states of a row are of one node."""
        allowed = self._allowed[model]
        if sums.fitting.ndim == 3:
            allowed = allowed[:, None, :]
        runs = (sums.fitting[..., self._place] >= self._count) & (sums.cpu[..., None] >= self._cpu) & allowed
        left = sums.left[..., None]
        fragments = np.where(runs, sums.small[..., self._place], left)
        found: Floats = fragments @ self._weights + left[..., 0] * self._weight_without_gpu
        return found
