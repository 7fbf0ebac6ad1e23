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
MAX_SCORED = 1000
"""For how many different requests scores are kept."""
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


class Devices:
    """The GPUs of one node."""

    __slots__ = ("free", "groups", "left", "model", "sorted")

    def __init__(self, model: str, count: int) -> None:
        self.model, self.free = model, [WHOLE] * count
        """The free thousandths of each device."""
        self.groups = [0] * (MAX_DEVICES + 1)
        """How many pods of each class have devices here."""
        self.add_up()

    def add_up(self) -> None:
        self.left, self.sorted = sum(self.free), tuple(sorted(self.free, reverse=True))
        """All that is free, and the free parts, largest first."""


class GpuArgs(PluginArgs):
    seed: int = 0
    """For Random."""


class _GpuPolicy(Plugin):
    """Filters nodes by their devices and keeps count of them. Derived classes score.

    Nodes are numbered as they are seen first; most columns here are by that number."""

    args: GpuArgs

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._devices: list[Devices] = []
        self._numbers: dict[str, int] = {}
        self._names: Sequence[str] = ()
        self._number_of: Ints = np.zeros(0, np.int64)
        """The number of each row of the table whose names `_names` are."""
        self._is_in_order = True
        """Whether they are 0, 1, 2 and so on."""
        self._room: Ints = np.zeros((MAX_DEVICES, 0), np.int64)
        """How much is free on the devices of each node, the most first; -1 where it has no more devices."""
        self._clock = 0
        self._changed: Ints = np.zeros(0, np.int64)
        """When each node changed last, by `_clock`."""
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
        self._changed = np.pad(self._changed, (0, len(fresh)))
        self._models.clear()
        for node in fresh:
            number = self._numbers[node.name] = len(self._devices)
            self._devices.append(Devices(node.labels.get(MODEL, ""), node.allocatable.get(GPU, 0)))
            self._note(number)

    def _note(self, number: int) -> None:
        """Devices of the node were given away or came back."""
        node = self._devices[number]
        node.add_up()
        self._room[: len(node.sorted), number] = node.sorted
        self._clock += 1
        self._changed[number] = self._clock

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterable[Reject]:
        request = self.request(pod)
        if request.count == 0:
            return
        numbers = self.numbers(nodes)
        if request.models:
            if request.models not in self._models:
                found = [node.model in request.models for node in self._devices]
                self._models[request.models] = np.array(found, np.bool_)
            mask = ~self._models[request.models][numbers]
            yield Reject(mask, "node(s) had another GPU model", unresolvable=True)
        yield Reject(self._room[request.count - 1, numbers] < request.milli, f"Insufficient {GPU}")

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        request = self.request(pod)
        if request.count:
            number = self._numbers[node_name]
            node = self._devices[number]
            if request.is_shared:
                chosen = [self.choose(request, node, node_name)]
            else:
                chosen = [device for device, free in enumerate(node.free) if free == WHOLE][: request.count]
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
        node = self._devices[number]
        for device in chosen:
            node.free[device] -= sign * request.milli
        node.groups[request.group] += sign
        self._note(number)

    def choose(self, request: Request, node: Devices, node_name: str) -> int:
        """The device for a pod that needs a part of one: the fullest that fits."""
        return node.free.index(min(free for free in node.free if free >= request.milli))


class Random(_GpuPolicy):
    """A random node, and on it a random device."""

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._generator = np.random.default_rng(args.seed)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        scores: Ints = np.zeros(len(nodes), np.int64)
        scores[self._generator.integers(len(nodes))] = MAX_SCORE
        return scores

    def choose(self, request: Request, node: Devices, node_name: str) -> int:
        fitting = [device for device, free in enumerate(node.free) if free >= request.milli]
        return fitting[self._generator.integers(len(fitting))]


class Scored(NamedTuple):
    scores: Ints
    at: int
    """When, by the policy's clock."""


class _ScoringPolicy(_GpuPolicy):
    """Scores a node by the request and by what is free on it. Scores are kept for each request, and only
    those of nodes that changed are computed again."""

    def __init__(self, args: GpuArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._cpu: Ints = np.zeros(0, np.int64)
        """Free thousandths of a CPU."""
        self._scored: dict[Request, Scored] = {}

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Ints:
        request, numbers = self.request(pod), self.numbers(nodes)
        self._follow_cpu(nodes.live)
        known = self._scored.get(request)
        if known is None or len(known.scores) != len(self._devices):
            if len(self._scored) >= MAX_SCORED:
                self._scored.clear()
            known = Scored(np.zeros(len(self._devices), np.int64), -1)
        (changed,) = (self._changed > known.at).nonzero()
        if len(changed):
            devices = map(self._devices.__getitem__, changed.tolist())
            known.scores[changed] = self.score_some(request, devices, self._cpu[changed].tolist())
        self._scored[request] = Scored(known.scores, self._clock)
        return known.scores[numbers].copy()

    def _follow_cpu(self, nodes: NodeTable) -> None:
        cpu = self._cpu.copy() if len(self._cpu) == len(self._devices) else np.full(len(self._devices), -1)
        cpu[self._number_of] = nodes.allocatable["cpu"] - nodes.requested["cpu"]
        if len(self._cpu) == len(cpu):
            (changed,) = (self._cpu != cpu).nonzero()
            self._clock += 1
            self._changed[changed] = self._clock
        self._cpu = cpu

    def score_some(self, request: Request, nodes: Iterable[Devices], cpu: Sequence[int]) -> list[int]:
        return [self.score_one(request, node, free) for node, free in zip(nodes, cpu, strict=True)]

    def score_one(self, request: Request, node: Devices, cpu: int) -> int:
        """The score of a node with so much CPU free."""
        raise NotImplementedError


class DotProd(_ScoringPolicy):
    """Nodes whose free resources align least with the request."""

    def score_one(self, request: Request, node: Devices, cpu: int) -> int:
        aligned = cpu / MAX_CPU * (request.cpu / MAX_CPU) + node.left / MAX_GPU * (request.total / MAX_GPU)
        return int(min(max(MAX_SCORE * (1 - aligned / 2), 0), MAX_SCORE))


class BestFit(_ScoringPolicy):
    """Nodes on which the least is left."""

    def score_one(self, request: Request, node: Devices, cpu: int) -> int:
        left = (cpu - request.cpu) / MAX_CPU / 2 + (node.left - request.total) / MAX_GPU / 2
        return int((1 - left) * MAX_SCORE)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Ints) -> Ints:
        lowest, highest = int(scores.min()), int(scores.max())
        return (scores - lowest) * MAX_SCORE // max(highest - lowest, 1)


class Packing(_ScoringPolicy):
    """Devices in use first, then free devices of nodes in use, then idle nodes."""

    def score_one(self, request: Request, node: Devices, cpu: int) -> int:
        count = len(node.free)
        if request.count == 0:
            return 0
        if node.left == count * WHOLE:
            return max(MAX_SCORE // 3 - count, count)
        if not request.is_shared:
            return max(MAX_SCORE // 2 - request.count, MAX_SCORE // 3)
        fullest = min((free for free in node.free if free >= request.milli), default=WHOLE)
        if fullest == WHOLE:
            return MAX_SCORE // 2 - 1
        return max(MAX_SCORE - fullest * 100 // WHOLE // 10, MAX_SCORE // 2)


class Clustering(_ScoringPolicy):
    """Nodes that run pods of the same class first, and those that run nothing else before all."""

    def score_one(self, request: Request, node: Devices, cpu: int) -> int:
        if request.count == 0:
            return 0
        kinds = sum(map(bool, node.groups))
        base = 0 if kinds else 25
        if node.groups[request.group]:
            base = 75 if kinds == 1 else 50
        return base + MAX_SCORE // 4 * (MAX_GPU - node.left) // MAX_GPU
