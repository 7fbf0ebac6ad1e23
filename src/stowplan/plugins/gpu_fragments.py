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
FITS, FULL, SMALL = 0, 1, 2
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
    """The typical pods, as columns."""

    def __init__(self, pods: Iterable[TypicalPod]) -> None:
        pods = tuple(pods)
        asking = [each for each in pods if each.count]
        self.weights: Floats = np.array([each.weight for each in asking], np.float64)
        self.weight = math.fsum(each.weight for each in pods) or 1.0
        self.weight_without_gpu = math.fsum(each.weight for each in pods if not each.count)
        self.count: Ints = np.array([each.count for each in asking], np.int64)
        self.cpus, self.cpu = np.unique(
            np.array([each.cpu for each in asking], np.int64), return_inverse=True
        )
        """All amounts of CPU, and the place of each pod's among them."""
        self.cpu_list: list[int] = self.cpus.tolist()
        milli = np.array([each.milli if each.count == 1 else WHOLE for each in asking], np.int64)
        self.milli, self.place = np.unique(milli, return_inverse=True)
        self._models = [frozenset(each.models) for each in asking]
        self._allowed: dict[str, NDArray[np.bool_]] = {}

    def allowed(self, model: str) -> NDArray[np.bool_]:
        """Which pods may run on GPUs of a model."""
        found = self._allowed.get(model)
        if found is None:
            answers = [not models or model in models for models in self._models]
            found = self._allowed[model] = np.array(answers, np.bool_)
        return found

    def steps(self, cpu: Ints) -> NDArray[np.intp]:
        """How many of the amounts in `cpus` fit into each of these."""
        return np.searchsorted(self.cpus, cpu, "right")


class State(NamedTuple):
    """What a node's fragment follows from. Nodes that are alike share one, so few are computed."""

    free: tuple[int, ...]
    """Free thousandths of each GPU, the most first."""
    size: int
    """What a whole GPU has: WHOLE, or less if other nodes have larger ones."""
    model: str
    steps: int
    """The free CPUs, in steps of the workload."""


class States:
    """All states that were seen, by number, and the scores that are known for each."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._numbers: dict[State, int] = {}
        self.states: list[State] = []
        self._free: Ints = np.full((64, 1), -1, np.int64)
        self._size: Ints = np.zeros(64, np.int64)
        self._steps: NDArray[np.intp] = np.zeros(64, np.intp)
        self._before: Floats = np.full(64, np.nan)
        """The fragment of each state, for all typical pods together; not a number if unknown."""
        self._allowed: NDArray[np.bool_] = np.zeros((64, len(workload.weights)), np.bool_)
        self._fitting: dict[tuple[int, int], NDArray[np.int8]] = {}
        self._scores: dict[tuple[int, int], NDArray[np.int8]] = {}
        """By the number and the part of GPUs asked for: by state and the CPUs left, see `_table`."""
        self._by_device: dict[tuple[int, int, int], dict[int, int]] = {}

    def number_of(self, state: State) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
            if found == len(self._free) or len(state.free) > self._free.shape[1]:
                self._grow(found, len(state.free))
            self._free[found, : len(state.free)] = state.free
            self._size[found], self._steps[found] = state.size, state.steps
            self._allowed[found] = self.workload.allowed(state.model)
        return found

    def _grow(self, count: int, width: int) -> None:
        length, width = max(2 * count, 64), max(width, self._free.shape[1])
        free = np.full((length, width), -1, np.int64)
        free[:count, : self._free.shape[1]] = self._free[:count]
        self._free = free
        self._before = np.concatenate([self._before[:count], np.full(length - count, np.nan)])
        self._size, self._steps, self._allowed = (
            np.concatenate([column[:count], np.zeros((length - count, *column.shape[1:]), column.dtype)])
            for column in (self._size, self._steps, self._allowed)
        )

    def lacking(self, request: Request, states: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
        """By node, given its state: FULL if too few of its GPUs have enough free, SMALL if too few would even
        if all were free, else FITS."""
        table = self._table(self._fitting, request, ())
        found = table.take(states)
        if found.min(initial=0) < 0:
            unknown = _distinct(states[found < 0], len(table))
            free, size = self._free[unknown], self._size[unknown]
            least = size[:, None] if request.milli == WHOLE else request.milli
            is_full = np.count_nonzero(free >= least, axis=1) < request.gpus
            is_small = (size < request.milli) & (request.milli < WHOLE)
            is_small |= np.count_nonzero(free >= 0, axis=1) < request.gpus
            table[unknown] = np.where(is_full, np.where(is_small, SMALL, FULL), FITS)
            found = table.take(states)
        return found

    def scores(self, request: Request, states: NDArray[np.int32], after: NDArray[np.intp]) -> Scores:
        """The scores of nodes, by their states, and the CPUs that the pod leaves free in steps."""
        width = len(self.workload.cpus) + 1
        table = self._table(self._scores, request, (width,)).reshape(-1)
        places = states * width + after
        found = table.take(places)
        if found.min(initial=0) < 0:
            unknown = _distinct(places[found < 0], len(table))
            fresh, steps = np.divmod(unknown, width)
            fits = self.lacking(request, fresh) == FITS
            table[unknown[~fits]] = MAX_SCORE // 2  # no pod is placed there: no change
            if fits.any():
                scores = self._compute(request, fresh[fits], steps[fits])
                table[unknown[fits]] = np.maximum(scores.max(axis=1), 0)
            found = table.take(places)
        return found.astype(np.int64)

    def _table(
        self, tables: dict[tuple[int, int], NDArray[np.int8]], request: Request, shape: tuple[int, ...]
    ) -> NDArray[np.int8]:
        """What is known for such requests, by state; -1 where it is unknown."""
        key = (request.gpus, request.milli)
        found = tables.get(key)
        if found is None or len(found) < len(self.states):
            grown = np.full((len(self._free), *shape), -1, np.int8)
            if found is not None:
                grown[: len(found)] = found
            elif len(tables) >= MAX_TYPICAL:
                tables.clear()
            found = tables[key] = grown
        return found

    def device_scores(self, request: Request, state: State, after: int) -> dict[int, int]:
        """For a pod that shares a GPU: the score of each that it fits on, by what is free on it."""
        number = self.number_of(state)
        key = (request.milli, number, after)
        found = self._by_device.get(key)
        if found is None:
            if len(self._by_device) > MAX_SHAPES:
                self._by_device.clear()
            scores = self._compute(request, np.array([number]), np.array([after]))[0].tolist()
            found = self._by_device[key] = dict(zip(state.free, scores, strict=False))
        return found

    def _compute(self, request: Request, states: NDArray[np.intp], after: NDArray[np.intp]) -> Scores:
        """By state and GPU for a pod that shares one, -1 where it does not fit; else in one column."""
        free, size = self._free[states], self._size[states]
        milli = np.where(self.workload.milli == WHOLE, size[:, None], self.workload.milli)[:, None, :]
        fits = free[:, :, None] >= milli
        part = np.maximum(free, 0)[:, :, None]
        small = np.where(fits, 0, part)
        left, fitting, smalls = part.sum((1, 2)), fits.sum(1), small.sum(1)
        before = self._before[states]
        if np.isnan(before).any():
            before = self._fragments(states, self._steps[states], left[:, None], fitting, smalls)
            self._before[states] = before
        if request.is_shared:
            rest = part - request.milli
            fits_after = rest >= milli
            fitting = fitting[:, None, :] - fits + fits_after
            smalls = smalls[:, None, :] - small + np.where(fits_after, 0, rest)
            left = left - request.milli
        else:
            left = left - size * request.gpus
            fitting, smalls = (
                (fitting - request.gpus * (size[:, None] >= milli[:, 0]))[:, None],
                smalls[:, None],
            )
        change = before[:, None] - self._fragments(states, after, left[:, None, None], fitting, smalls)
        # Divided only now: sums of whole numbers are exact, and no change must be exactly none.
        scores = (MAX_SCORE / (1 + np.exp(-change / self.workload.weight / WHOLE))).astype(np.int64)
        return np.where(free >= request.milli, scores, -1) if request.is_shared else scores

    def _fragments(
        self, states: NDArray[np.intp], steps: NDArray[np.intp], left: Ints, fitting: Ints, small: Ints
    ) -> Floats:
        """The fragments for all typical pods together; all states of a row are of one node."""
        work = self.workload
        runs = self._allowed[states] & (steps[:, None] > work.cpu)
        runs = (runs if fitting.ndim == 2 else runs[:, None, :]) & (fitting[..., work.place] >= work.count)
        fragments = np.where(runs, small[..., work.place], left)
        found: Floats = fragments @ work.weights + left[..., 0] * work.weight_without_gpu
        return found


def _distinct(numbers: NDArray[np.integer[Any]], limit: int) -> NDArray[np.intp]:
    """The different ones of these numbers, which are below a limit."""
    if 16 * len(numbers) < limit:
        return np.array(list({*numbers.tolist()}))
    is_there = np.zeros(limit, np.bool_)
    is_there[numbers] = True
    return np.flatnonzero(is_there)


def typical_pods(seen: Mapping[Request, int], share: float = TYPICAL_SHARE) -> Iterator[TypicalPod]:
    """The most frequent shapes, until they cover that share of the pods."""
    total, covered = sum(seen.values()), 0
    for shape, number in sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:MAX_TYPICAL]:
        if covered >= share * total:
            return
        covered += number
        yield TypicalPod(number, *shape)
