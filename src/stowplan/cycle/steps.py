"""The steps of a cycle that call plugins: pre_filter and filter find the nodes that can take the pod;
pre_score, score and normalize_score find the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Columns, Mask, Rows, read_only
from stowplan.cluster.node_table import CHANGED, FEW, NodeRow, NodeSubset, NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.framework.answers import (
    iterable_of,
    pre_filter_of,
    reason_of,
    reject_of,
    row_errors_of,
    row_reject_of,
    score_of,
    scores_of,
    status_of,
    wrong_answer,
)
from stowplan.framework.decision import (
    UNRESOLVABLE_BIT,
    Decision,
    Failures,
    ScoreColumn,
    SmallScores,
    Statuses,
    Verdicts,
)
from stowplan.framework.observer import Observer
from stowplan.framework.plugin import FilterError, Plugin, Reject
from stowplan.framework.profile import MAX_REASONS, FilterStep, Profile, ScoreStep, TooManyReasonsError
from stowplan.framework.scores import MAX_SCORE, Scores
from stowplan.framework.state import CycleState, seal_state
from stowplan.framework.status import SKIP, Code, Status

Answer = TypeVar("Answer")
Rejections = list[Verdicts | Statuses]
UNRESOLVABLE = np.uint64(1 << UNRESOLVABLE_BIT)
BITS = tuple(np.uint64(1 << number) for number in range(MAX_REASONS))
"""The bit of each reason in a verdict; in HARD_BITS, with that of nodes where evicting pods does not help."""
HARD_BITS = tuple(bit | UNRESOLVABLE for bit in BITS)


def run_pre_filters(
    profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable
) -> frozenset[str] | None:
    """The names that plugins narrowed the search to, None for all; a rejection goes into the decision."""
    pod, names, narrowed_by = decision.pod, None, []
    observer = profile.observer.start("PreFilter")
    for name, answer in _ask_plugins(_PRE_FILTER, profile.pre_filters, observer, state, pod, nodes):
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


class _Point(NamedTuple, Generic[Answer]):
    """An extension point whose plugins are asked once before all nodes are looked at."""

    name: str
    method: str
    check: Callable[[object], Answer | None]


_PRE_FILTER: _Point[Status | frozenset[str]] = _Point("PreFilter", "pre_filter", pre_filter_of)
_PRE_SCORE: _Point[Status] = _Point("PreScore", "pre_score", partial(status_of, "pre_score"))


def _ask_plugins(
    point: _Point[Answer],
    steps: Iterable[tuple[str, Plugin, Callable[[CycleState, Pod, NodeTable], Answer | None]]],
    observer: Observer | None,
    state: CycleState,
    pod: Pod,
    nodes: NodeTable,
) -> Iterator[tuple[str, Answer]]:
    """Ask the plugins in turn; yields the names and answers of those that answer anything but success."""
    for name, plugin, method in steps:
        if observer is not None:
            observer.enter(point.name, plugin)
        try:
            answer = method(state, pod, nodes)
            if answer is not None and answer is not SKIP:
                answer = point.check(answer)
        except BaseException as error:
            doing = f'running {point.name} plugin "{name}"'
            raise failure(doing, error, (plugin, point.method), pod) from error
        finally:
            if observer is not None:
                observer.leave(point.name, plugin)
        if answer is not None:
            yield name, answer


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
    skipped = state.skipped_filters
    for step in profile.filters:
        if step.name in skipped:
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
            found = mask * (HARD_BITS if hard is True else BITS)[number]
            if hard is not True and hard is not False:
                found |= (mask & hard) * UNRESOLVABLE
            if bits is None:
                bits = found
            else:
                bits |= found
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


def error_status(error: CycleError) -> Status:
    """The status of an error on one node; an error that is final is raised again."""
    if error.is_final:
        raise error
    return Status.error(str(error), error.stack)


def run_scores(profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable) -> NDArray[Any]:
    """Score the feasible nodes; return their totals without scores that are equal on all of them."""
    run_pre_scores(profile, state, decision.pod, nodes)
    return add_up_scores(profile, state, decision, nodes)


def add_up_scores(profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable) -> NDArray[Any]:
    """Do the same after pre_score."""
    pod = decision.pod
    total: NDArray[Any] | None = None
    observer = profile.observer.start("Score")
    for step in profile.scores:
        if step.name in state.skipped_scores:
            continue
        if observer is not None:
            observer.enter("Score", step.plugin)
        try:
            column = _column(step, state, pod, nodes, observer)
        finally:
            if observer is not None:
                observer.leave("Score", step.plugin)
        decision.scores.append(column)
        if column.uniform is None:
            weighted = column.scores.astype(profile.total_type, copy=False)
            if step.weight != 1:
                weighted = weighted * profile.total_type(step.weight)
            total = weighted if total is None else total + weighted
    if profile.explaining:
        decision.notes += tuple(_notes(profile, state, pod, observer))
    decision.has_scorers = bool(profile.scores)
    return np.zeros(len(nodes), profile.total_type) if total is None else total


def _notes(profile: Profile, state: CycleState, pod: Pod, observer: Observer | None) -> Iterator[str]:
    for step, explain in profile.explaining:
        if step.name in state.skipped_scores:
            continue
        if observer is not None:
            observer.enter("Score", step.plugin)
        try:
            yield from map(reason_of, iterable_of(explain(pod)))
        except BaseException as error:
            raise _score_failure(step, error, pod) from error
        finally:
            if observer is not None:
                observer.leave("Score", step.plugin)


def run_pre_scores(profile: Profile, state: CycleState, pod: Pod, nodes: NodeTable) -> None:
    observer = profile.observer.start("PreScore")
    for name, status in _ask_plugins(_PRE_SCORE, profile.pre_scores, observer, state, pod, nodes):
        if status.code is not Code.SKIP:
            raise CycleError(f'running PreScore plugin "{name}": {status.message}')
        state.skipped_scores.add(name)


class KeptScores:
    """Scores of all nodes of the cluster, with the column last made of them for the feasible ones."""

    __slots__ = ("final", "raw")

    def __init__(self, columns: Columns) -> None:
        (self.raw,) = columns
        self.final: tuple[Rows, ScoreColumn] | None = None


def _column(
    step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable, observer: Observer | None
) -> ScoreColumn:
    if not step.is_cached:
        asked = _call_score(step, state, pod, nodes)
        normalized = _normalize(step, state, pod, nodes, asked, observer)
        raw = None if step.normalize is None else asked
        return ScoreColumn(step.name, step.weight, normalized, None, None, raw)
    kept = _cached_scores(step, state, pod, nodes)
    if kept.final is None or kept.final[0] is not nodes.rows or kept.final[1].weight != step.weight:
        scores: Any = kept.raw if nodes is nodes.live else kept.raw[nodes.rows]
        everywhere: SmallScores | None = kept.raw
        raw = None
        if step.normalize is not None:
            raw, scores, everywhere = scores, _normalize(step, state, pod, nodes, scores, observer), None
        uniform = None if step.reads_usage else _uniform(scores)
        kept.final = (nodes.rows, ScoreColumn(step.name, step.weight, scores, uniform, everywhere, raw))
    return kept.final[1]


def _uniform(scores: SmallScores) -> int | None:
    return int(scores[0]) if np.count_nonzero(scores == scores[0]) == len(scores) else None


def _cached_scores(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable) -> KeptScores:
    try:
        key = ("score", step.plugin.serial, step.sign(pod))
        found: KeptScores = nodes.live.still(key, step.reads_usage)
        return _refresh(step, state, pod, nodes, key) if found is CHANGED else found
    except BaseException as error:
        raise _score_failure(step, error, pod) from error


def _refresh(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable, key: Hashable) -> KeptScores:
    def compute(part: NodeTable) -> Columns:
        scores = scores_of(step.score_nodes(state, pod, part), len(part))
        return (scores if step.normalize is not None else _check_range(step, pod, part, scores),)

    def compute_row(row: NodeRow) -> tuple[int]:
        answer = step.score_row(state, pod, row)
        score = answer if answer.__class__ is int and 0 <= answer <= MAX_SCORE else score_of(answer)
        if step.normalize is None and not 0 <= score <= MAX_SCORE:
            raise ValueError(f"score {score} is not in the range of [0, {MAX_SCORE}]")
        return (score,)

    found: KeptScores = nodes.live.keep(
        key,
        compute,
        usage=step.reads_usage,
        finish=KeptScores,
        compute_row=compute_row if step.takes_rows else None,
    )
    return found


def _call_score(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
    if not step.takes_columns:
        return _score_each(step, state, pod, nodes)
    try:
        return scores_of(step.score_nodes(state, pod, nodes), len(nodes))
    except BaseException as error:
        raise _score_failure(step, error, pod) from error


def _normalize(
    step: ScoreStep,
    state: CycleState,
    pod: Pod,
    nodes: NodeTable,
    scores: Scores,
    observer: Observer | None,
) -> SmallScores:
    if step.normalize is not None:
        given = scores.view()  # which others may hold on to
        given.setflags(write=False)
        if observer is not None:
            observer.enter("ScoreExtensionNormalize", step.plugin)
        try:
            answer = step.normalize(state, pod, given)
            scores = scores if answer is given else scores_of(answer, len(scores))
        except BaseException as error:
            doing = f'running Normalize on Score plugins: plugin "{step.name}" failed with'
            raise failure(doing, error, (step.plugin, "normalize_score"), pod) from error
        finally:
            if observer is not None:
                observer.leave("ScoreExtensionNormalize", step.plugin)
    return _check_range(step, pod, nodes, scores)


def _score_failure(step: ScoreStep, error: BaseException, pod: Pod, node_name: str = "") -> CycleError:
    doing = f'running Score plugins: plugin "{step.name}" failed with'
    return failure(doing, error, step.method, pod, node_name)


def _score_each(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
    scores = np.empty(len(nodes), np.int64)
    row, score = 0, step.score
    state = seal_state(step.plugin, state)
    try:
        for row, node in enumerate(nodes):
            scores[row] = score_of(score(state, pod, node))
    except BaseException as error:
        raise _score_failure(step, error, pod, nodes.names[row]) from error
    return scores


def _check_range(step: ScoreStep, pod: Pod, nodes: NodeTable, scores: Scores) -> SmallScores:
    """Check that scores are 0 to 100, and store them in a smaller type."""
    unsigned = scores.view(np.uint64)  # in which negative ones are huge
    # argmax has less to set up than max, as long as the column may be written to
    if len(scores) and unsigned[row := int(unsigned.argmax())] > MAX_SCORE:
        fault = wrong_answer(
            f'plugin "{step.name}" returns an invalid score {scores[row]}, it should in the range of '
            f"[0, {MAX_SCORE}] after normalizing",
            step.method if step.normalize is None else (step.plugin, "normalize_score"),
            pod,
            nodes.names[row],
            doing="applying score defaultWeights on Score plugins: ",
        )
        raise CycleError(str(fault), fault.stack)
    return scores.astype(np.int16)
