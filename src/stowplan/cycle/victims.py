"""Whom a pod may evict from a node, and in which order those who may stay are found."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster import PodTable
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.budgets import Budgets
from stowplan.framework.plugin import Reads
from stowplan.framework.profile import FilterStep, Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Status

Slots = NDArray[np.intp]
NO_VICTIMS = Status.unresolvable("No preemption victims found for incoming pod")


def no_victim_needed(node_name: str) -> Status:
    """The node takes the pod with all pods in place, which the filters denied before."""
    return Status.error(f'expected at least one victim pod on node "{node_name}"')


class Preemptor(NamedTuple):
    """A pod that wants room, and what its trials need."""

    profile: Profile
    state: CycleState
    pod: Pod
    budgets: Budgets

    @property
    def live(self) -> LiveNodeTable:
        return self.profile.handle.cluster.nodes


def usage_steps(preemptor: Preemptor) -> list[FilterStep]:
    """The filters at work whose answer depends on more than the node object."""
    return [
        step
        for step in preemptor.profile.filters
        if step.plugin.reads is not Reads.NODE and step.name not in preemptor.state.skipped_filters
    ]


def looks_at_numbers(preemptor: Preemptor) -> bool:
    """Whether no filter wants to know more of the pods on a node than how much they take."""
    return all(step.takes_rows for step in usage_steps(preemptor))


class Victims(NamedTuple):
    """Pods to evict: the row of each one's node, its place in the pod table, whether a budget forbids it."""

    rows: Slots
    slots: Slots
    violating: NDArray[Any]
    """Only the sum for each node matters."""


def joined(parts: list[Victims]) -> Victims:
    nothing = np.zeros(0, np.intp)
    parts = [*parts, Victims(nothing, nothing, np.zeros(0, np.bool_))]
    return Victims(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def in_order(preemptor: Preemptor, slots: Slots) -> tuple[Slots, NDArray[np.bool_]]:
    """The pods node by node as they get their chance to stay, and which of them a budget protects.

    Those come first, then the more important ones.
    """
    pods = preemptor.live.pods
    slots = slots[np.lexsort((*_importance(pods, slots), pods.row[slots]))]
    violating = preemptor.budgets.violated_by(pods, slots)
    if not violating.any():
        return slots, violating
    order = np.lexsort((*_importance(pods, slots), ~violating, pods.row[slots]))
    return slots[order], violating[order]


def _importance(pods: PodTable, slots: Slots) -> tuple[NDArray[np.generic], ...]:
    """Sort keys, last first: higher priority, then earlier start, then the place on the node."""
    start, place = pods.start[slots], pods.place[slots]
    # parity: pods that have not started come in the reverse order of their node
    return np.where(np.isinf(start), -place, place), start, -pods.priority[slots]
