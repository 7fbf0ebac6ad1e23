"""Policies for nodes whose GPUs are shared by pods: Random, DotProd, Clustering, Packing and BestFit.

They are those that "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023) compares its own with, which comes with Stowplan as FragmentationGradientDescent. A
profile enables one of them; it filters, scores, and chooses the devices.

A pod asks for GPUs with annotations: `example.com/gpu-count`, `example.com/gpu-milli` (thousandths of each
GPU, 1000 for whole ones), and `example.com/gpu-models`, separated by a bar, if only some will do. A node
says how many it has in its allocatable `example.com/gpu`, and their model in the label
`example.com/gpu-model`. Which devices a pod has is known only to the plugin, so this is for replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan import CycleState, Handle, NodeTable, Plugin, PluginArgs, Pod, Reject, Status

GPU, MODEL = "example.com/gpu", "example.com/gpu-model"
COUNT, MILLI, MODELS = "example.com/gpu-count", "example.com/gpu-milli", "example.com/gpu-models"
WHOLE = 1000
MAX_DEVICES = 8
MAX_CPU, MAX_GPU = 128_000, MAX_DEVICES * WHOLE
"""The largest node, by which amounts are scaled."""
MAX_SCORE = 100
Ints = NDArray[np.int64]
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


class GpuArgs(PluginArgs):
    seed: int = 0
    """For Random."""


class _GpuPolicy(Plugin):
    """Filters nodes by their devices and keeps count of them. Derived classes score.

    Nodes are numbered as they are seen first; columns here are by that number."""

    args: GpuArgs

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._numbers: dict[str, int] = {}
        self._names: Sequence[str] = ()
        self._number_of: Ints = np.zeros(0, np.int64)
        """The number of each row of the table whose names `_names` are."""
        self._is_in_order = True
        """Whether they are 0, 1, 2 and so on."""
        self._model_of: list[str] = []
        self._free: list[list[int]] = []
        """The free thousandths of each device, by node."""
        self._room: NDArray[np.int16] = np.zeros((MAX_DEVICES, 0), np.int16)
        """The same as columns, the most first; -1 where a node has no more devices."""
        self._left: Ints = np.zeros(0, np.int64)
        """All that is free on each node."""
        self._counts: Ints = np.zeros(0, np.int64)
        """How many devices each node has."""
        self._groups: Ints = np.zeros((MAX_DEVICES + 1, 0), np.int64)
        """How many pods of each class have devices on each node."""
        self._kinds: Ints = np.zeros(0, np.int64)
        """How many classes of pods have devices on each node."""
        self._models: dict[frozenset[str], Mask] = {}
        """Which nodes have one of these models."""
        self._taken: dict[str, tuple[int, list[int], Request]] = {}
        """The node and the devices of each pod, by uid."""

    def request(self, pod: Pod) -> Request:
        found = pod.annotations
        cpu = pod.requests.get("cpu", 0)
        return request_of(cpu, found.get(COUNT, "0"), found.get(MILLI, "0"), found.get(MODELS, ""))

    def numbers(self, nodes: NodeTable) -> Ints | slice:
        """The number of each node of the table, to index columns with."""
        names = nodes.live.names
        if names is not self._names or len(names) != len(self._number_of):
            self._add_nodes(nodes.live)
            self._names = names
            self._number_of = np.array([self._numbers[name] for name in names], np.int64)
            self._is_in_order = bool((self._number_of == np.arange(len(names))).all())
        if len(nodes) == len(names):
            return slice(len(names)) if self._is_in_order else self._number_of
        return nodes.rows if self._is_in_order else self._number_of[nodes.rows]

    def _add_nodes(self, nodes: NodeTable) -> None:
        """Nodes that were not seen before have all their devices free."""
        fresh = [nodes.node(row) for row, name in enumerate(nodes.names) if name not in self._numbers]
        self._room = np.pad(self._room, ((0, 0), (0, len(fresh))), constant_values=-1)
        self._groups = np.pad(self._groups, ((0, 0), (0, len(fresh))))
        self._left, self._counts, self._kinds = (
            np.pad(column, (0, len(fresh))) for column in (self._left, self._counts, self._kinds)
        )
        self._models.clear()
        for node in fresh:
            number = self._numbers[node.name] = len(self._free)
            self._model_of.append(node.labels.get(MODEL, ""))
            self._free.append([WHOLE] * node.allocatable.get(GPU, 0))
            self._counts[number] = len(self._free[number])
            self._note(number)

    def _note(self, number: int) -> None:
        """Devices of the node were given away or came back."""
        free = self._free[number]
        self._room[: len(free), number] = sorted(free, reverse=True)
        self._left[number] = sum(free)

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterable[Reject]:
        request = self.request(pod)
        if request.count == 0:
            return
        numbers = self.numbers(nodes)
        if request.models:
            if request.models not in self._models:
                found = [model in request.models for model in self._model_of]
                self._models[request.models] = np.array(found, np.bool_)
            mask = ~self._models[request.models][numbers]
            yield Reject(mask, "node(s) had another GPU model", unresolvable=True)
        yield Reject(self._room[request.count - 1, numbers] < request.milli, f"Insufficient {GPU}")

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        request = self.request(pod)
        if request.count:
            number = self._numbers[node_name]
            free = self._free[number]
            if request.is_shared:
                chosen = [self.choose(request, free)]
            else:
                chosen = [device for device, left in enumerate(free) if left == WHOLE][: request.count]
            self._put(number, chosen, request, 1)
            self._taken[pod.uid] = (number, chosen, request)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self.pod_deleted(pod)

    def pod_deleted(self, pod: Pod) -> None:
        if (taken := self._taken.pop(pod.uid, None)) is not None:
            self._put(*taken, -1)

    def _put(self, number: int, chosen: Sequence[int], request: Request, sign: int) -> None:
        """Give these devices to a pod, or with `sign` -1 take them back."""
        for device in chosen:
            self._free[number][device] -= sign * request.milli
        self._groups[request.group, number] += sign
        self._kinds[number] = np.count_nonzero(self._groups[:, number])
        self._note(number)

    def choose(self, request: Request, free: Sequence[int]) -> int:
        """The device for a pod that needs a part of one: the fullest that fits."""
        return free.index(min(left for left in free if left >= request.milli))


class Random(_GpuPolicy):
    """A random node, and on it a random device."""

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._generator = np.random.default_rng(args.seed)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        scores: Ints = np.zeros(len(nodes), np.int64)
        scores[self._generator.integers(len(nodes))] = MAX_SCORE
        return scores

    def choose(self, request: Request, free: Sequence[int]) -> int:
        fitting = [device for device, left in enumerate(free) if left >= request.milli]
        return fitting[self._generator.integers(len(fitting))]


class _ScoringPolicy(_GpuPolicy):
    """Scores all nodes by the request and by what is free on them."""

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        numbers = self.numbers(nodes)
        return self._scores(self.request(pod), nodes.live)[numbers]

    def _scores(self, request: Request, nodes: NodeTable) -> Ints:
        """The score of each node, by its number; `nodes` are all nodes."""
        raise NotImplementedError

    def _free_cpu(self, nodes: NodeTable) -> Ints:
        """Free thousandths of a CPU, by the node's number."""
        found: Ints = np.zeros(len(self._free), np.int64)
        found[self.numbers(nodes)] = nodes.allocatable["cpu"] - nodes.requested["cpu"]
        return found


class DotProd(_ScoringPolicy):
    """Nodes whose free resources align least with the request."""

    def _scores(self, request: Request, nodes: NodeTable) -> Ints:
        cpu, gpu = self._free_cpu(nodes) / MAX_CPU, self._left / MAX_GPU
        aligned = cpu * (request.cpu / MAX_CPU) + gpu * (request.total / MAX_GPU)
        return (MAX_SCORE * (1 - aligned / 2)).clip(0, MAX_SCORE).astype(np.int64)


class BestFit(_ScoringPolicy):
    """Nodes on which the least is left."""

    def _scores(self, request: Request, nodes: NodeTable) -> Ints:
        cpu, gpu = self._free_cpu(nodes) - request.cpu, self._left - request.total
        return ((1 - (cpu / MAX_CPU / 2 + gpu / MAX_GPU / 2)) * MAX_SCORE).astype(np.int64)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Ints) -> Ints:
        lowest, highest = int(scores.min()), int(scores.max())
        return (scores - lowest) * MAX_SCORE // max(highest - lowest, 1)


class Packing(_ScoringPolicy):
    """Devices in use first, then free devices of nodes in use, then idle nodes."""

    by_fullest = np.maximum(MAX_SCORE - np.arange(WHOLE + 1) * 100 // WHOLE // 10, MAX_SCORE // 2)
    """The score for a part of a device, by what is free on the fullest that fits."""
    by_fullest[WHOLE] = MAX_SCORE // 2 - 1

    def _scores(self, request: Request, nodes: NodeTable) -> Ints:
        if request.count == 0:
            return np.zeros(len(self._free), np.int64)
        idle = np.maximum(MAX_SCORE // 3 - self._counts, self._counts)
        in_use: Ints | int = max(MAX_SCORE // 2 - request.count, MAX_SCORE // 3)
        if request.is_shared:
            fullest = np.where(self._room >= request.milli, self._room, WHOLE).min(axis=0)
            in_use = self.by_fullest.take(fullest)
        return np.where(self._left == self._counts * WHOLE, idle, in_use)


class Clustering(_ScoringPolicy):
    """Nodes that run pods of the same class first, and those that run nothing else before all."""

    with_same = np.array([0, 75] + MAX_DEVICES * [50])
    without_same = np.array([25] + (MAX_DEVICES + 1) * [0])
    """The score by how many classes of pods have devices, the pod's own among them or not."""

    def _scores(self, request: Request, nodes: NodeTable) -> Ints:
        if request.count == 0:
            return np.zeros(len(self._free), np.int64)
        has_same = self._groups[request.group] > 0
        base = np.where(has_same, self.with_same.take(self._kinds), self.without_same.take(self._kinds))
        return base + MAX_SCORE // 4 * (MAX_GPU - self._left) // MAX_GPU
