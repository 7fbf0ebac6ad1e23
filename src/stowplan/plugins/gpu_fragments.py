"""Fragments of GPUs: what is free on a node's GPUs but of no use to typical pods, and how a pod changes it.

The measure is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023). For one typical pod, the fragment of a node is all that is free on its GPUs if the
pod cannot run there, and otherwise what is free on GPUs that are too small for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.framework import MAX_SCORE, Scores

WHOLE = 1000
MAX_DEVICES = 64
"""Devices of one node; more are ignored."""
TYPICAL_SHARE = 0.95
"""The share of the pods seen that have one of the typical shapes."""
MAX_TYPICAL = 256
MAX_SHAPES = 4096
"""If more shapes of pods were seen, all counts are halved and those below one are forgotten."""
MAX_BYTES = 2**27
"""Of all tables of fragments; if they were to take more, they are computed again."""
MAX_PRODUCTS = 2**20
"""Up to so many products, fragments are computed for all amounts of CPU at once."""
FEW = 64
"""Up to so many states, fragments are computed for all of them at once."""
MAX_CELLS = 2**18
"""Otherwise only those that are needed, so many groups of pods and GPUs at once."""
UNKNOWN, NO_FIT = math.nan, math.inf
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TypicalPod(msgspec.Struct, frozen=True, rename="camel"):
    """A frequent shape of pods, and how many pods have it."""

    weight: float = 1
    cpu: int = 0
    """Thousandths of a CPU."""
    count: int = 0
    milli: int = 0
    models: tuple[str, ...] = ()


class Request(NamedTuple):
    """What a pod asks for."""

    cpu: int
    """Thousandths of a CPU."""
    gpus: int = 0
    milli: int = 0
    """Thousandths of each GPU; WHOLE if there are several."""
    models: tuple[str, ...] = ()
    """In alphabetical order; empty if any will do."""

    @property
    def is_shared(self) -> bool:
        return self.gpus == 1 and self.milli < WHOLE


class Workload:
    """The typical pods, as columns. Those that differ only in CPUs are a group."""

    def __init__(self, pods: Iterable[TypicalPod]) -> None:
        pods = tuple(pods)
        self.weight = math.fsum(each.weight for each in pods)
        asking = [each for each in pods if each.count]
        self.cpus: Ints = np.unique(np.array([each.cpu for each in asking], np.int64))
        """All amounts of CPU."""
        self.width = len(self.cpus) + 1
        """How many numbers of steps there are."""
        groups: dict[tuple[int, int, frozenset[str]], list[TypicalPod]] = {}
        for each in asking:
            milli = each.milli if each.count == 1 else WHOLE
            groups.setdefault((milli, each.count, frozenset(each.models)), []).append(each)
        groups = dict(sorted(groups.items(), key=lambda item: item[0][0]))
        self.count: Ints = np.array([count for _, count, _ in groups], np.int64)
        self.milli: Ints = np.array([milli for milli, _, _ in groups], np.int64)
        """The number of GPUs that each group asks for, and the part of each."""
        self.weights: Floats = np.zeros((len(groups), self.width))
        """By group and the CPUs of a node in steps: how many of its pods have enough CPUs there."""
        for line, group in zip(self.weights, groups.values(), strict=True):
            for each in group:
                line[self.cpus.searchsorted(each.cpu, "right") :] += each.weight
        self.by_step: Floats = np.ascontiguousarray(self.weights.T)
        parts = [milli for milli, _, _ in groups if milli < WHOLE]
        self.parts = len(parts)
        """How many groups ask for a part of a GPU. They come first, by how much they ask for."""
        self.fitting: Ints = np.searchsorted(parts, np.arange(WHOLE + 1), "right")
        """By what is free on a GPU: how many of these groups it has enough for."""
        self._models = [models for _, _, models in groups]
        self._allowed: dict[str, NDArray[np.bool_]] = {}

    def allowed(self, model: str) -> NDArray[np.bool_]:
        """Which groups may run on GPUs of a model."""
        found = self._allowed.get(model)
        if found is None:
            answers = [not models or model in models for models in self._models]
            found = self._allowed[model] = np.array(answers, np.bool_)
        return found

    def steps(self, cpu: Ints) -> NDArray[np.intp]:
        """How many of the amounts in `cpus` fit into each of these."""
        return self.cpus.searchsorted(cpu, "right")

    def score(self, change: Floats) -> Scores:
        """The scores of nodes whose fragments shrink by so much."""
        # Divided only now: sums of whole numbers are exact, and no change must be exactly none.
        share = change / -(self.weight or 1.0)
        share /= WHOLE
        np.exp(share, out=share)
        share += 1
        return np.divide(MAX_SCORE, share, out=share).astype(np.int64)


class State(NamedTuple):
    """What a node's fragment follows from, besides its CPUs. Nodes that are alike share one."""

    free: tuple[int, ...]
    """Free thousandths of each GPU, the most first."""
    size: int
    """What a whole GPU has: WHOLE, or less if other nodes have larger ones."""
    model: str


class States:
    """All states that were seen, by number, and the fragments that are known for each.

    Fragments are for all typical pods together, by state and the CPUs that are free, in steps of the
    workload."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._numbers: dict[State, int] = {}
        self.states: list[State] = []
        groups = len(workload.count)
        self._free: Ints = np.full((1, FEW), -1, np.int64)
        """By GPU and state."""
        self._size: Ints = np.zeros(FEW, np.int64)
        self._devices: Ints = np.zeros(FEW, np.int64)
        """How many GPUs there are."""
        self._left: Ints = np.zeros((FEW, 1), np.int64)
        """All that is free."""
        self._asked: Ints = np.zeros((FEW, groups), np.int64)
        """By group of typical pods: what must be free on a GPU."""
        self._spare: Ints = np.zeros((FEW, groups), np.int64)
        """By group: how many GPUs have that free besides those that it needs; less than none if it cannot
        run there."""
        self._gain: Ints = np.zeros((FEW, groups), np.int64)
        """By group: what is free on GPUs that have less, without all that is free. The fragment is that
        much more if the group can run."""
        self._fragments: Floats = np.full((FEW, workload.width), UNKNOWN)
        self._after: dict[tuple[int, int], Floats] = {}
        """By the number and the part of GPUs asked for: the fragments once the pod has the best ones."""
        self._by_device: dict[tuple[int, int], Floats] = {}
        """By the part of a GPU asked for and the state: the fragments by the GPU that the pod has."""

    def number_of(self, state: State) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
            if found == len(self._size) or len(state.free) > len(self._free):
                self._grow(found, len(state.free))
            self._put(found, state)
        return found

    def _put(self, number: int, state: State) -> None:
        work, free, left = self.workload, np.array(state.free, np.int64)[:, None], sum(state.free)
        asked = np.where(work.milli == WHOLE, state.size, work.milli)
        fits = free >= asked
        self._free[: len(free), number] = state.free
        self._size[number], self._left[number], self._devices[number] = state.size, left, len(free)
        self._asked[number], self._gain[number] = asked, (free * ~fits).sum(0) - left
        self._spare[number] = np.where(work.allowed(state.model), fits.sum(0) - work.count, -1)
        self._fragments[number] = self._weigh(self._spare[number] >= 0, self._gain[number], left)

    def _grow(self, count: int, devices: int) -> None:
        length, devices = max(2 * count, FEW), max(devices, len(self._free))
        free = np.full((devices, length), -1, np.int64)
        free[: len(self._free), :count] = self._free[:, :count]
        self._free = free
        self._fragments = _longer(self._fragments, length)
        self._size, self._devices, self._left, self._asked, self._spare, self._gain = (
            np.concatenate([column[:count], np.zeros((length - count, *column.shape[1:]), column.dtype)])
            for column in (self._size, self._devices, self._left, self._asked, self._spare, self._gain)
        )

    def lacking(
        self, request: Request, states: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """By node, given its state: whether too few of its GPUs have enough free, and whether too few would
        even if all were free."""
        if not request.gpus or request.gpus > len(self._free):
            found = np.full(len(states), request.gpus > 0)
            return found, found
        free = self._free[request.gpus - 1].take(states)  # the GPU that must have enough, too
        if request.milli == WHOLE:
            return free < self._size.take(states), free < 0
        return free < request.milli, (free < 0) | (self._size.take(states) < request.milli)

    def scores(
        self,
        request: Request,
        states: NDArray[np.integer[Any]],
        before: NDArray[np.intp],
        after: NDArray[np.intp],
    ) -> Scores:
        """The scores of nodes, by their states, and the CPUs free without and with the pod, in steps."""
        width, table = self.workload.width, self._table(request)
        first = states * width
        cells = first + after
        found = table.take(cells)
        if len(found) and math.isnan(found[found.argmin()]):  # which is the first that is not a number
            missing = np.isnan(found)
            if missing.all():  # as for the first pod of its kind
                self._fill(request, table, states, after)
            else:
                self._fill(request, table, states[missing], after[missing])
            found = table.take(cells)
        change = self._fragments.take(first + before) - found
        change[found == NO_FIT] = 0  # no pod is placed there
        return self.workload.score(change)

    def device_scores(self, request: Request, number: int, before: int, after: int) -> dict[int, int]:
        """For a pod that shares a GPU of a node: the score of each that it fits on, by what is free on it."""
        key = (request.milli, number)
        found = self._by_device.get(key)
        if found is None:
            if len(self._by_device) > MAX_SHAPES:
                self._by_device.clear()
            found = self._by_device[key] = self._compute(request, np.array([number]))[:, 0]
        scores = self.workload.score(self._fragments[number, before] - found[:, after]).tolist()
        return dict(zip(self.states[number].free, scores, strict=False))

    def _table(self, request: Request) -> Floats:
        """The fragments with the pod as far as they are known, NO_FIT where it does not fit."""
        key = (request.gpus, request.milli)
        found = self._after.get(key)
        if found is None or len(found) < len(self.states):
            if found is None and (len(self._after) + 1) * self._fragments.nbytes > MAX_BYTES:
                self._after.clear()
            known = self._fragments[:0] if found is None else found
            found = self._after[key] = _longer(known, len(self._fragments))
        return found

    def _fill(
        self, request: Request, table: Floats, states: NDArray[np.integer[Any]], steps: NDArray[np.intp]
    ) -> None:
        """Compute what is not known of a table, for these states and CPUs, in steps."""
        groups, width = len(self.workload.count), self.workload.width
        known = len(self.states)
        if known <= FEW and known * groups * width * len(self._free) <= MAX_PRODUCTS:
            # To compute all of them is less work than to look for those that are needed.
            table[:known] = self._compute(request, slice(known)).min(axis=0, initial=NO_FIT)
            return
        distinct = _distinct(states, len(table))
        devices = int(self._devices[distinct].max())
        if len(distinct) * groups * width * devices <= MAX_PRODUCTS or not request.gpus:
            table[distinct] = self._compute(request, distinct).min(axis=0, initial=NO_FIT)
            return
        is_full, _ = self.lacking(request, distinct)
        table[distinct[is_full]] = NO_FIT
        cells = _distinct(states * width + steps, table.size)
        states, steps = np.divmod(cells[np.isnan(table.take(cells))], width)
        # Few states with many GPUs must not make the others slow.
        order = np.argsort(self._devices[states], kind="stable")
        states, steps = states[order], steps[order]
        size = MAX_CELLS // max(groups, MAX_DEVICES)
        for start in range(0, len(states), size):
            some, at = states[start : start + size], steps[start : start + size]
            table[some, at] = self._compute_cells(request, some, at)

    def _compute(self, request: Request, states: NDArray[np.intp] | slice) -> Floats:
        """By GPU for a pod that shares one, else in one line: the fragments with the pod, by state and CPUs;
        NO_FIT where it does not fit."""
        if not request.gpus:
            return self._fragments[None, states]
        spare, gain, left = self._spare[states], self._gain[states], self._left[states]
        if not request.is_shared:
            # Groups that can run ask for no more than a whole GPU, so that each one taken is one less.
            size, wanted = self._size[states], request.gpus
            taken = wanted * size[:, None]
            found = self._weigh(spare >= wanted, gain + taken, left - taken)
            if wanted > len(self._free):
                found[:] = NO_FIT
            else:
                found[self._free[wanted - 1, states] < size] = NO_FIT
            return found[None]
        # On the GPU that the pod takes a part of, groups that fit before and after gain that part. Those that
        # fit no more gain all that was free there, and have one GPU less.
        free = self._free[: self._devices[states].max(), states, None]
        rest, asked = free - request.milli, self._asked[states]
        fits = asked <= free
        stops = fits ^ (asked <= rest)
        more = request.milli * fits
        more += rest * stops
        more += gain
        found = self._weigh(spare >= stops, more, left - request.milli)
        found[rest[..., 0] < 0] = NO_FIT
        return found

    def _compute_cells(self, request: Request, states: NDArray[Any], steps: NDArray[Any]) -> Floats:
        """The fragments with the pod on the best GPUs, for states and CPUs, in steps.

        What a pod that shares a GPU changes depends only on what is free on that GPU (see `_compute`). So
        sums over groups, in the order of what they ask for, are the same for all GPUs of a node."""
        work, milli, size = self.workload, request.milli, self._size[states]
        left, weights, spare = self._left[states], work.by_step[steps], self._spare[states]
        if not request.is_shared:
            taken = request.gpus * size[:, None]
            gain = weights * (spare >= request.gpus) * (self._gain[states] + taken)
            whole: Floats = gain.sum(axis=1) + (left - taken)[:, 0] * work.weight
            return whole
        running, lasting, gain = weights * (spare >= 0), weights * (spare > 0), self._gain[states]
        total: Floats = (running * gain).sum(axis=1) + left[:, 0] * work.weight
        sums = np.zeros((3, len(states), len(work.count) + 1))
        for line, part in zip(sums, (running, lasting, (running - lasting) * gain), strict=True):
            np.cumsum(part, axis=1, out=line[:, 1:])
        ran, lasts, stops = sums
        free = self._free[: self._devices[states].max(), states]
        rest = free - milli
        row, low, high = np.arange(len(states)), work.fitting[np.maximum(rest, 0)], work.fitting[free]
        found = milli * (ran[row, low] - work.weight) + stops[row, low] - stops[row, high]
        found += free * (lasts[row, high] - lasts[row, low])
        whole_lasts, whole_stops = (each[:, -1] - each[:, work.parts] for each in (lasts, stops))
        found += (free >= size) * (free * whole_lasts - whole_stops)
        found[rest < 0] = NO_FIT
        best: Floats = total + found.min(axis=0)
        return best

    def _weigh(self, runs: NDArray[np.bool_], gain: Ints, left: Ints | int) -> Floats:
        """The fragments for all typical pods: what is left, and more or less for those that can run."""
        work = self.workload
        found: Floats = (runs * gain) @ work.weights + left * work.weight
        return found


def _longer(fragments: Floats, length: int) -> Floats:
    grown = np.full((length, fragments.shape[1]), UNKNOWN)
    grown[: len(fragments)] = fragments
    return grown


def _distinct(numbers: NDArray[np.integer[Any]], limit: int) -> NDArray[np.intp]:
    """The different ones of these numbers, which are below a limit."""
    if 16 * len(numbers) < limit:
        return np.array(list({*numbers.tolist()}))
    return np.flatnonzero(np.bincount(numbers))


def typical_pods(seen: Mapping[Request, int], share: float = TYPICAL_SHARE) -> Iterator[TypicalPod]:
    """The most frequent shapes, until they cover that share of the pods."""
    total, covered = sum(seen.values()), 0
    for shape, number in sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:MAX_TYPICAL]:
        if covered >= share * total:
            return
        covered += number
        yield TypicalPod(number, *shape)
