"""Which nodes can take the pod: pre_filter, filter, and the second look for pods nominated to a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.node_table import NodeSubset, NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.framework.decision import Decision, Statuses, Verdicts
from stowplan.framework.nominations import Nominations
from stowplan.framework.plugin import Mask, Reject
from stowplan.framework.profile import MAX_REASONS, FilterStep, Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status


def run_pre_filters(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable
) -> frozenset[str] | None:
    """The names that plugins narrowed the search to, None for all; a refusal goes into the decision."""
    pod, names, narrowed_by = decision.pod, None, []
    for name, plugin in profile.pre_filters:
        try:
            answer = plugin.pre_filter(state, pod, nodes)
        except Exception as error:
            raise failure(f'running PreFilter plugin "{name}"', error, pod) from error
        if answer is None:
            continue
        if isinstance(answer, frozenset):
            names = answer if names is None else names & answer
            narrowed_by.append(name)
            if not names:
                decision.pre_filter = Status.unresolvable(_nothing_left(narrowed_by))
                break
        elif answer.code is Code.SKIP:
            state.skipped_filters.add(name)
        elif answer.code is Code.UNRESOLVABLE:
            decision.pre_filter = answer.by(name)
            break
        elif answer.code is Code.UNSCHEDULABLE:
            decision.pre_filter = answer.by(name)
        elif answer.code is not Code.SUCCESS:
            raise CycleError(f'running PreFilter plugin "{name}": {answer.message}')
    decision.narrowed_by = tuple(narrowed_by)
    return names


def _nothing_left(plugins: Sequence[str]) -> str:
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"


def run_filters(
    profile: Profile, state: CycleState, pod: Pod, nodes: NodeTable
) -> tuple[list[Verdicts | Statuses], Mask | None]:
    """What each filter refused, and the rows nobody refused (None: nobody refused any)."""
    found: list[Verdicts | Statuses] = []
    passing: Mask | None = None
    for step in profile.filters:
        if step.name in state.skipped_filters:
            continue
        verdicts = _ask(step, state, pod, nodes, passing)
        if verdicts is None:
            continue
        found.append(verdicts)
        passing = ~verdicts.fails if passing is None else passing & ~verdicts.fails
        if not np.count_nonzero(passing):
            break
    return found, passing


def _ask(
    step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable, passing: Mask | None
) -> Verdicts | Statuses | None:
    if step.filter_nodes is None:
        return _ask_each(step, state, pod, nodes, passing)
    step.make_room()
    try:
        if step.sign is not None:
            fails, unresolvable, bits = nodes.keep(
                (step.name, "filter", id(step.plugin), id(step.reasons), step.sign(pod)),
                lambda part: _columns(step, step.filter_nodes(state, pod, part), len(part)),
                usage=step.reads_usage,
            )
        else:
            fails, unresolvable, bits = _columns(step, step.filter_nodes(state, pod, nodes), len(nodes))
    except Exception as error:
        raise failure(f'running "{step.name}" filter plugin', error, pod) from error
    return Verdicts(step.name, step.reasons, fails, unresolvable, bits) if np.count_nonzero(fails) else None


def _columns(step: FilterStep, rejects: Iterable[Reject], length: int) -> tuple[NDArray[Any], ...]:
    fails, unresolvable = np.zeros(length, np.bool_), np.zeros(length, np.bool_)
    bits = np.zeros(length, np.uint64)
    for mask, reason, hard in rejects:
        if not np.count_nonzero(mask):
            continue
        number = step.reason_id(reason) % MAX_REASONS
        fails |= mask
        unresolvable |= mask & hard
        bits |= mask.astype(np.uint64) << np.uint64(number)
    return fails, unresolvable, bits


def _ask_each(
    step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable, passing: Mask | None
) -> Statuses | None:
    refused: dict[int, Status] = {}
    for row in range(len(nodes)) if passing is None else np.flatnonzero(passing).tolist():
        try:
            status = step.filter(state, pod, nodes.node(row))
        except Exception as error:
            raise failure(f'running "{step.name}" filter plugin', error, pod, nodes.names[row]) from error
        if status is None or status.code is Code.SUCCESS:
            continue
        if not status.code.is_rejection:
            raise CycleError(f'running "{step.name}" filter plugin: {status.message}')
        refused[row] = status.by(step.name)
    if not refused:
        return None
    fails = np.zeros(len(nodes), np.bool_)
    fails[list(refused)] = True
    return Statuses(step.name, refused, fails)


def first_refusal(profile: Profile, state: CycleState, pod: Pod, nodes: NodeSubset) -> Status | None:
    """What the filters say of a table of one node."""
    for verdicts in run_filters(profile, state, pod, nodes)[0]:
        return verdicts.status(0)
    return None


def overrule_for_nominated(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable, nominations: Nominations
) -> None:
    """Nodes that would not fit once the pods nominated to them arrive are refused for that."""
    places = {int(row): place for place, row in enumerate(nodes.rows.tolist())}
    for node_name, ahead in nominations.before(decision.pod):
        row = nodes.live.row_of(node_name)
        if row is None or row not in places:
            continue
        status = refusal_with(profile, state, decision.pod, nodes.live.take([row]), ahead)
        if status is not None:
            decision.overruled[places[row]] = status


def refusal_with(
    profile: Profile, state: CycleState, pod: Pod, node: NodeSubset, others: Iterable[Pod]
) -> Status | None:
    """What the filters say of a node once `others` are on it too."""
    state = state.clone()
    for other in others:
        node.add_pod(0, other)
        tell(profile, state, "add_pod", pod, other, node)
    return first_refusal(profile, state, pod, node)


def tell(profile: Profile, state: CycleState, method: str, pod: Pod, other: Pod, node: NodeSubset) -> None:
    """Lets plugins follow, in their state, that `other` came to or left a node that is tried out."""
    for name, plugin in profile.pre_filters:
        if name in state.skipped_filters or not hasattr(plugin, method):
            continue
        try:
            getattr(plugin, method)(state, pod, other, node.node(0))
        except Exception as error:
            point = "AddPod" if method == "add_pod" else "RemovePod"
            raise failure(
                f'running {point} on PreFilter plugin "{name}"', error, pod, node.names[0]
            ) from error
