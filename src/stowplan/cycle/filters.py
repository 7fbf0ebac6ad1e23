"""Which nodes can take the pod: pre_filter, filter, and the second look for pods nominated to a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Mask, Rows, read_only
from stowplan.cluster.node_table import CHANGED, FEW, NodeSubset, NodeTable
from stowplan.cluster.trial_table import TrialTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.framework.answers import (
    iterable_of,
    pre_filter_of,
    reason_of,
    reject_of,
    row_errors_of,
    row_reject_of,
    status_of,
)
from stowplan.framework.decision import UNRESOLVABLE_BIT, Decision, Failures, Statuses, Verdicts
from stowplan.framework.handle import Nominations
from stowplan.framework.plugin import FilterError, Reject, overrides
from stowplan.framework.profile import FilterStep, Profile, TooManyReasonsError
from stowplan.framework.sealed import seal_state
from stowplan.framework.state import CycleState
from stowplan.framework.status import SKIP, Code, Status

Rejections = list[Verdicts | Statuses]
NOTHING, ONE = np.uint64(0), np.uint64(1)
UNRESOLVABLE = ONE << np.uint64(UNRESOLVABLE_BIT)


def run_pre_filters(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable
) -> frozenset[str] | None:
    """The names that plugins narrowed the search to, None for all; a rejection goes into the decision."""
    pod, names, narrowed_by = decision.pod, None, []
    observer = profile.observer.start("PreFilter")
    for name, plugin, pre_filter in profile.pre_filters:
        if observer is not None:
            observer.enter("PreFilter", plugin)
        try:
            answer = pre_filter(state, pod, nodes)
            if answer is not None and answer is not SKIP:
                answer = pre_filter_of(answer)
        except BaseException as error:
            raise failure(f'running PreFilter plugin "{name}"', error, (plugin, "pre_filter"), pod) from error
        finally:
            if observer is not None:
                observer.leave("PreFilter", plugin)
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
    profile: Profile, state: CycleState, pod: Pod, nodes: NodeTable, *, first_error: bool = False
) -> Rejections:
    """What each filter rejected, in order; filters that rejected nothing are left out.

    Nodes on which a filter failed count as rejected by it, see `errors_in`. With `first_error` the first of
    them is all that matters, and nothing more is asked.
    """
    found: Rejections = []
    observer = profile.observer.start("Filter")
    for step in profile.filters:
        if step.name in state.skipped_filters:
            continue
        if observer is not None:
            observer.enter("Filter", step.plugin)
        try:
            if step.is_cached:
                rejected: Verdicts | Statuses | None = _ask_kept(step, state, pod, nodes)
            else:
                passing = passing_all(found)
                if passing is not None and not np.count_nonzero(passing):
                    break
                rejected = _ask_all(step, state, pod, nodes, passing, first_error)
        except CycleError as error:
            if error.is_final:
                raise
            rejected = _fails_everywhere(step, error, passing_all(found), len(nodes))
        finally:
            if observer is not None:
                observer.leave("Filter", step.plugin)
        if rejected is not None:
            found.append(rejected)
            if first_error and rejected.__class__ is Failures and errors_in(found):
                break
    return found


def errors_in(rejections: Rejections) -> dict[int, Status]:
    """The errors by row, for rows that no earlier filter has rejected."""
    found: dict[int, Status] = {}
    for number, rejected in enumerate(rejections):
        if rejected.__class__ is Failures:
            passing = passing_all(rejections[:number])
            found |= {
                row: status
                for row, status in rejected.by_row.items()
                if status.code is Code.ERROR and (passing is None or passing[row])
            }
    return found


def _fails_everywhere(
    step: FilterStep, error: CycleError, passing: Mask | None, length: int
) -> Statuses | None:
    rows = range(length) if passing is None else np.flatnonzero(passing).tolist()
    return _statuses(step, dict.fromkeys(rows, error_status(error).by(step.name)), length)


def passing_all(rejections: Rejections) -> Mask | None:
    """The rows that no filter rejected; None for all."""
    passing: Mask | None = None
    for rejected in rejections:
        passing = ~rejected.fails if passing is None else passing & ~rejected.fails
    return passing


def _ask_kept(step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Verdicts | Statuses | None:
    try:
        step.make_room()
        key = ("filter", step.plugin.serial, step.generation, step.sign(pod))
        found: Verdicts | Statuses | None = nodes.still(key, step.reads_usage)
        if found is not CHANGED:
            return found
        if nodes.__class__ is NodeSubset and len(nodes) <= FEW and not nodes.is_changed:
            if step.takes_rows:
                return _ask_rows(step, state, pod, nodes)
            if not step.reads_usage and nodes.live.kept.is_repeated(key):
                whole = _ask_kept(step, state, pod, nodes.live)
                if whole is None or isinstance(whole, Verdicts):
                    return None if whole is None else step.verdicts((whole.bits[nodes.rows],))
        found = nodes.keep(
            key,
            lambda part: (_all_bits(step, step.filter_nodes(state, pod, part), len(part)),),
            usage=step.reads_usage,
            finish=step.verdicts,
            compute_row=(lambda row: _numbers(step, step.filter_row(state, pod, row)))
            if step.takes_rows
            else None,
        )
    except (TooManyReasonsError, FilterError):
        return _ask_at_length(step, state, pod, nodes)
    except BaseException as error:
        raise failure(f'running "{step.name}" filter plugin', error, step.method, pod) from error
    return found


def _ask_rows(step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Verdicts | None:
    """For a few rows, in plain numbers."""
    answers = (
        _numbers(step, step.filter_row(state, pod, nodes.live.row(row))) for row in nodes.rows.tolist()
    )
    return step.verdicts((np.fromiter((bits for (bits,) in answers), np.uint64, len(nodes)),))


def _ask_all(
    step: FilterStep,
    state: CycleState,
    pod: Pod,
    nodes: NodeTable,
    passing: Mask | None,
    first_error: bool,
) -> Verdicts | Statuses | None:
    if not step.takes_columns:
        return _ask_each(step, state, pod, nodes, passing, first_error)
    state.passing = passing
    try:
        step.make_room()
        bits = _bits(step, step.filter_nodes(state, pod, nodes), len(nodes))
        return None if bits is None else step.verdicts((bits,))
    except (TooManyReasonsError, FilterError):
        return _ask_at_length(step, state, pod, nodes)
    except BaseException as error:
        raise failure(f'running "{step.name}" filter plugin', error, step.method, pod) from error


def _bits(step: FilterStep, rejects: Iterable[Reject], length: int) -> NDArray[np.uint64] | None:
    """The reasons as bits by row; None if nothing was rejected."""
    bits: NDArray[np.uint64] | None = None
    for reject in iterable_of(rejects):
        mask, reason, hard = reject_of(reject, length)
        number = step.reason_id(reason)
        if np.count_nonzero(mask):
            found = mask * (ONE << np.uint64(number) | (UNRESOLVABLE if hard is True else NOTHING))
            if not isinstance(hard, bool):
                found |= (mask & hard) * UNRESOLVABLE
            bits = found if bits is None else bits | found
    return bits


def _all_bits(step: FilterStep, rejects: Iterable[Reject], length: int) -> NDArray[np.uint64]:
    bits = _bits(step, rejects, length)
    return _no_bits(length) if bits is None else bits


@lru_cache(maxsize=64)
def _no_bits(length: int) -> NDArray[np.uint64]:
    """No reasons: one shared column for all filters that reject nothing."""
    return read_only(np.zeros(length, np.uint64))


def _numbers(step: FilterStep, rejects: Iterable[Any]) -> tuple[int]:
    """The same for one row, whose masks are plain booleans."""
    bits = 0
    for reject in rejects:
        if reject.mask is False:
            continue
        is_rejected, reason, is_hopeless = row_reject_of(reject)
        if is_rejected:
            bits |= 1 << step.reason_id(reason)
            bits |= 1 << UNRESOLVABLE_BIT if is_hopeless else 0
    return (bits,)


def _ask_at_length(step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Statuses | None:
    """For a filter with more reasons than a verdict has bits for, or with errors: a status for each node."""
    reasons: list[str] = []
    masks: list[Mask] = []
    hard = np.zeros(len(nodes), np.bool_)
    errors: Mapping[int, str] = {}
    try:
        try:
            for reject in iterable_of(step.filter_nodes(state, pod, nodes)):
                mask, reason, is_hard = reject_of(reject, len(nodes))
                reasons.append(reason_of(reason))
                masks.append(mask)
                hard |= mask & is_hard
        except FilterError as error:
            errors = row_errors_of(error, len(nodes))
    except BaseException as error:
        raise failure(f'running "{step.name}" filter plugin', error, step.method, pod) from error
    rejected = _shared_statuses(step, reasons, masks, hard)
    rejected |= {row: _filter_error(step, text) for row, text in errors.items()}
    return _statuses(step, rejected, len(nodes))


def _shared_statuses(
    step: FilterStep, reasons: Sequence[str], masks: Sequence[Mask], hard: Mask
) -> dict[int, Status]:
    """A status for each row that is rejected, one and the same for rows that are rejected alike.

    A pod that asks for thousands of resources has as many reasons, on all nodes.
    """
    mixed = [mask for mask in (*masks, hard) if not mask.all()]
    patterns = np.packbits(np.array(mixed), axis=0).T if mixed else np.zeros((len(hard), 0), np.uint8)
    found: dict[int, Status] = {}
    known: dict[bytes, Status | None] = {}
    for row in range(len(hard)):
        pattern = patterns[row].tobytes()
        if pattern not in known:
            own = tuple(reason for reason, mask in zip(reasons, masks, strict=True) if mask[row])
            code = Code.UNRESOLVABLE if hard[row] else Code.UNSCHEDULABLE
            known[pattern] = Status(code, own, step.name) if own else None
        if (status := known[pattern]) is not None:
            found[row] = status
    return found


def _ask_each(
    step: FilterStep,
    state: CycleState,
    pod: Pod,
    nodes: NodeTable,
    passing: Mask | None,
    first_error: bool,
) -> Statuses | None:
    rejected: dict[int, Status] = {}
    is_first = True  # of thousands of errors one traceback is enough
    state = seal_state(step.plugin, state)
    for row in range(len(nodes)) if passing is None else np.flatnonzero(passing).tolist():
        status = _ask_one(step, state, pod, nodes, row, with_stack=is_first)
        if status is not None:
            rejected[row] = status.by(step.name)
            if status.code is Code.ERROR:
                is_first = False
                if first_error:
                    break
    return _statuses(step, rejected, len(nodes))


def _ask_one(
    step: FilterStep, state: CycleState, pod: Pod, nodes: NodeTable, row: int, *, with_stack: bool
) -> Status | None:
    try:
        status = status_of("filter", step.filter(state, pod, nodes.node(row)))
    except BaseException as error:
        doing = f'running "{step.name}" filter plugin'
        found = failure(doing, error, step.method, pod, nodes.names[row], with_stack=with_stack)
        if found.is_final:
            raise found from error
        return error_status(found)
    if status is None or status.code.is_rejection:
        return status
    return _filter_error(step, status.message)


def _filter_error(step: FilterStep, text: str) -> Status:
    return Status.error(f'running "{step.name}" filter plugin: {text}').by(step.name)


def _statuses(step: FilterStep, rejected: dict[int, Status], length: int) -> Statuses | None:
    if not rejected:
        return None
    fails = np.zeros(length, np.bool_)
    fails[list(rejected)] = True
    kind = Failures if any(status.code is Code.ERROR for status in rejected.values()) else Statuses
    return kind(step.name, rejected, fails)


def first_rejection(profile: Profile, state: CycleState, pod: Pod, nodes: NodeSubset) -> Status | None:
    """The rejection or error of the filters for a table of one node; None if it passes."""
    for rejected in run_filters(profile, state, pod, nodes):
        return rejected.status(0)
    return None


def overrule_for_nominated(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable, nominations: Nominations
) -> None:
    """Reject nodes where the pod would not fit together with the pods nominated to them."""
    pod, live = decision.pod, nodes.live
    slots, rows = nominations.ahead_of(pod, live)
    if nodes is not live:
        is_inside = np.zeros(len(live), np.bool_)
        is_inside[nodes.rows] = True
        slots, rows = slots[is_inside[rows]], rows[is_inside[rows]]
    if not len(slots):
        return
    is_promised = np.zeros(len(live), np.bool_)
    is_promised[rows] = True
    promised = np.flatnonzero(is_promised)
    places = promised if nodes is live else np.flatnonzero(is_promised[nodes.rows])
    if nodes is not live:
        promised = nodes.rows[places]
    if profile.told <= state.skipped_filters and all(
        step.tries_many or not step.takes_columns or step.name in state.skipped_filters
        for step in profile.filters
    ):
        trial = TrialTable(live, promised)
        trial.add_nominated(nominations.pods, slots, rows)
        overruled = run_filters(profile, state, pod, trial)
        for at, statuses in _unlike(decision.filters, overruled, places):
            decision.overruled.update(zip(places[at].tolist(), statuses, strict=True))
    else:
        for place, row in zip(places.tolist(), promised.tolist(), strict=True):
            ahead = nominations.ahead_on(live.names[row], pod)
            status = rejection_with(profile, state, pod, live.take([row]), ahead)
            if status is not None:
                decision.overruled[place] = status


def _unlike(plain: Rejections, trial: Rejections, places: Rows) -> Iterator[tuple[Rows, Sequence[Status]]]:
    """Rows of the trial that are rejected, but not for the same reasons as without changes, with statuses.

    `places` has each row's place in what was answered without changes.
    """
    before = dict(zip((rejected.plugin for rejected in plain), first_rejected(plain, places), strict=True))
    for rejected, fresh in zip(trial, first_rejected(trial), strict=True):
        known = before.get(rejected.plugin)
        if known is not None and isinstance(rejected, Verdicts):
            verdicts = next(each for each in plain if each.plugin == rejected.plugin)
            if isinstance(verdicts, Verdicts) and verdicts.reasons is rejected.reasons:
                fresh = fresh & ~(known & (verdicts.bits[places] == rejected.bits))
        at = np.flatnonzero(fresh)
        if len(at):
            yield at, rejected.statuses(at)


def first_rejected(rejections: Rejections, places: Rows | None = None) -> Iterator[Mask]:
    """For each filter, the rows (at these places only, if given) that it was the first to reject."""
    still_open: Mask | None = None
    for rejected in rejections:
        fails = rejected.fails if places is None else rejected.fails[places]
        yield fails if still_open is None else fails & still_open
        still_open = ~fails if still_open is None else still_open & ~fails


def rejection_with(
    profile: Profile, state: CycleState, pod: Pod, node: NodeSubset, others: Iterable[Pod]
) -> Status | None:
    """The rejection or error of the filters for a node once `others` are on it, too."""
    state = state.clone()
    try:
        for other in others:
            node.add_pod(0, other)
            tell(profile, state, "add_pod", pod, other, node)
    except CycleError as error:
        return error_status(error)
    return first_rejection(profile, state, pod, node)


def error_status(error: CycleError) -> Status:
    """The status of an error on one node; an error that is final is raised again."""
    if error.is_final:
        raise error
    return Status.error(str(error), error.stack)


def tell(profile: Profile, state: CycleState, method: str, pod: Pod, other: Pod, node: NodeSubset) -> None:
    """Tell plugins to update their state because `other` was added to or removed from a trial node."""
    for name, plugin, _ in profile.pre_filters:
        if name in state.skipped_filters or not overrides(plugin, method):
            continue
        doing = f'running {"AddPod" if method == "add_pod" else "RemovePod"} on PreFilter plugin "{name}"'
        profile.observer.enter("PreFilter", plugin)
        try:
            follow = plugin.add_pod if method == "add_pod" else plugin.remove_pod
            status = status_of(method, follow(seal_state(plugin, state), pod, other, node.node(0)))
        except BaseException as error:
            raise failure(doing, error, (plugin, method), pod, node.names[0]) from error
        finally:
            profile.observer.leave("PreFilter", plugin)
        if status is not None:
            raise CycleError(f"{doing}: {status.message}")
