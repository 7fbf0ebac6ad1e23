"""Which of the feasible nodes is best: pre_score, score, normalize_score, weights."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Columns, Rows
from stowplan.cluster.node_table import CHANGED, NodeRow, NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.framework.answers import score_of, scores_of, status_of, wrong_answer
from stowplan.framework.decision import Decision, ScoreColumn, SmallScores
from stowplan.framework.observer import Observer
from stowplan.framework.profile import Profile, ScoreStep
from stowplan.framework.scores import MAX_SCORE, Scores
from stowplan.framework.sealed import seal_state
from stowplan.framework.state import CycleState
from stowplan.framework.status import SKIP, Code


def run_scores(profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable) -> NDArray[Any]:
    """Score the feasible nodes; return their totals without scores that are equal on all of them."""
    _run_pre_scores(profile, state, decision.pod, nodes)
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
    decision.has_scorers = bool(profile.scores)
    return np.zeros(len(nodes), profile.total_type) if total is None else total


def _run_pre_scores(profile: Profile, state: CycleState, pod: Pod, nodes: NodeTable) -> None:
    observer = profile.observer.start("PreScore")
    for name, plugin, pre_score in profile.pre_scores:
        if observer is not None:
            observer.enter("PreScore", plugin)
        try:
            status = pre_score(state, pod, nodes)
            if status is not None and status is not SKIP:
                status = status_of("pre_score", status)
        except BaseException as error:
            raise failure(f'running PreScore plugin "{name}"', error, (plugin, "pre_score"), pod) from error
        finally:
            if observer is not None:
                observer.leave("PreScore", plugin)
        if status is None:
            continue
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
        return ScoreColumn(step.name, step.weight, _normalize(step, state, pod, nodes, asked, observer), None)
    kept = _cached_scores(step, state, pod, nodes)
    if kept.final is None or kept.final[0] is not nodes.rows or kept.final[1].weight != step.weight:
        scores: Any = kept.raw if nodes is nodes.live else kept.raw[nodes.rows]
        everywhere: SmallScores | None = kept.raw
        if step.normalize is not None:
            scores, everywhere = _normalize(step, state, pod, nodes, scores, observer), None
        uniform = None if step.reads_usage else _uniform(scores)
        kept.final = (nodes.rows, ScoreColumn(step.name, step.weight, scores, uniform, everywhere))
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
