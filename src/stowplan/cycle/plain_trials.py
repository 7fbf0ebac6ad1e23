"""Trying out whom to evict from a node in plain numbers, which for a handful of nodes is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Mask
from stowplan.cycle.errors import failure
from stowplan.cycle.filters import error_status, passing_all, run_filters
from stowplan.cycle.victims import (
    NO_VICTIMS,
    Preemptor,
    Slots,
    Victims,
    in_order,
    joined,
    no_victim_needed,
    usage_steps,
)
from stowplan.framework.answers import reason_of, row_reject_of, text_of
from stowplan.framework.plugin import FilterError
from stowplan.framework.profile import FilterStep
from stowplan.framework.status import Code, Status

FEW = 16
"""So many nodes are a handful."""


def try_plainly(
    preemptor: Preemptor, rows: Slots, ahead: Mapping[int, Sequence[Pod]], refusals: dict[int, Status]
) -> tuple[Victims, Slots]:
    """What is found on these rows, and those of them for which the node object speaks against the pod.

    `ahead` has the pods nominated to a row, for which there must be room, too.
    """
    steps, found = usage_steps(preemptor), []
    passing = _passing_by_node(preemptor, rows, steps)
    for row in rows[passing].tolist():
        lower = [other for other in preemptor.live.pods_on(row) if other.priority < preemptor.pod.priority]
        victims = _Trial(preemptor, row, steps, ahead.get(row, ())).run(lower) if lower else NO_VICTIMS
        if isinstance(victims, Status):
            refusals[row] = victims
        else:
            found.append(victims)
    return joined(found), rows[~passing]


def _passing_by_node(preemptor: Preemptor, rows: Slots, steps: Sequence[FilterStep]) -> Mask:
    state = preemptor.state.clone()
    state.skipped_filters = state.skipped_filters | {step.name for step in steps}
    passing = passing_all(run_filters(preemptor.profile, state, preemptor.pod, preemptor.live))
    return np.ones(len(rows), np.bool_) if passing is None else passing[rows]


class _Trial:
    """One node, from which pods are taken and to which they come back."""

    def __init__(
        self, preemptor: Preemptor, row: int, steps: Sequence[FilterStep], ahead: Sequence[Pod]
    ) -> None:
        self._preemptor, self._steps, self._ahead = preemptor, steps, ahead
        self._node = preemptor.live.plain_row(row)
        self._observer = preemptor.profile.observer.start("Filter")

    def run(self, lower: Sequence[Pod]) -> Victims | Status:
        """Which of the pods have to go; a refusal if not even evicting all of them helps."""
        pods = self._preemptor.live.pods
        for other in lower:
            self._account(other, -1)
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        slots, violating = in_order(
            self._preemptor, np.array([pods.slot_of(other) for other in lower], np.intp)
        )
        gone = np.zeros(len(slots), np.bool_)
        for number, slot in enumerate(slots.tolist()):
            self._account(pods.pods[slot], 1)
            if self._refusal() is not None:
                gone[number] = True
                self._account(pods.pods[slot], -1)
        if not gone.any():
            return no_victim_needed(self._preemptor.live.names[self._node.rows])
        return Victims(np.full(int(gone.sum()), self._node.rows), slots[gone], violating[gone])

    def _account(self, pod: Pod, sign: int) -> None:
        node, taken = self._node, pod.assigned or pod.shape.assigned
        for resource, amount in taken.requests.items():
            if resource in node.requested:  # no others are counted, since no node offers them
                node.requested[resource] += sign * amount
        node.nonzero_requested["cpu"] += sign * taken.nonzero_cpu
        node.nonzero_requested["memory"] += sign * taken.nonzero_memory
        node.pod_count += sign

    def _refusal(self) -> Status | None:
        """What the filters say with the pods nominated to the node, then without them."""
        if self._ahead:
            for other in self._ahead:
                self._account(other, 1)
            status = self._first_refusal()
            for other in self._ahead:
                self._account(other, -1)
            if status is not None:
                return status
        return self._first_refusal()

    def _first_refusal(self) -> Status | None:
        _, state, pod, _ = self._preemptor
        for step in self._steps:
            if self._observer is not None:
                self._observer.enter("Filter", step.plugin)
            try:
                answers = step.filter_row(state, pod, self._node)
                found = [row_reject_of(each) for each in answers if each.mask is not False]
                rejects = [(reason_of(why), hard) for is_rejected, why, hard in found if is_rejected]
            except FilterError as error:
                return Status.error(f'running "{step.name}" filter plugin: {text_of(error)}').by(step.name)
            except BaseException as error:
                return error_status(failure(f'running "{step.name}" filter plugin', error, pod))
            finally:
                if self._observer is not None:
                    self._observer.leave("Filter", step.plugin)
            if rejects:
                code = Code.UNRESOLVABLE if any(hard for _, hard in rejects) else Code.UNSCHEDULABLE
                return Status(code, tuple(dict.fromkeys(reason for reason, _ in rejects)), step.name)
        return None
