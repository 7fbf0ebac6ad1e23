"""Which of the feasible nodes is best: pre_score, score, normalize_score, weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from stowplan.api.pod import Pod
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.errors import CycleError, failure
from stowplan.framework.decision import Decision, ScoreColumn
from stowplan.framework.plugin import MAX_SCORE, Scores
from stowplan.framework.profile import Profile, ScoreStep
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code


def run_scores(profile: Profile, state: CycleState, decision: Decision, nodes: NodeTable) -> None:
    """Scores every node of `nodes`, the feasible ones."""
    pod = decision.pod
    _run_pre_scores(profile, state, pod, nodes)
    total: Scores | None = None
    for step in profile.scores:
        if step.name in state.skipped_scores:
            continue
        scores = _checked(step, pod, nodes, _scores(step, state, pod, nodes))
        decision.scores.append(ScoreColumn(step.name, step.weight, scores))
        weighted = scores if step.weight == 1 else scores * step.weight
        total = weighted if total is None else total + weighted
    decision.totals = np.ones(len(nodes), np.int64) if total is None and not profile.scores else total
    if decision.totals is None:
        decision.totals = np.zeros(len(nodes), np.int64)


def _run_pre_scores(profile: Profile, state: CycleState, pod: Pod, nodes: NodeTable) -> None:
    for name, plugin in profile.pre_scores:
        try:
            status = plugin.pre_score(state, pod, nodes)
        except Exception as error:
            raise failure(f'running PreScore plugin "{name}"', error, pod) from error
        if status is None or status.code is Code.SUCCESS:
            continue
        if status.code is not Code.SKIP:
            raise CycleError(f'running PreScore plugin "{name}": {status.message}')
        state.skipped_scores.add(name)


def _scores(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
    doing = f'running Score plugins: plugin "{step.name}" failed with'
    try:
        if step.score_nodes is None:
            scores = _score_each(step, state, pod, nodes, doing)
        elif step.sign is not None:
            (kept,) = nodes.live.keep(
                (step.name, "score", id(step.plugin), step.sign(pod)),
                lambda part: (_as_scores(step.score_nodes(state, pod, part), len(part)),),
                usage=step.reads_usage,
            )
            scores = kept if nodes is nodes.live else kept[nodes.rows]
        else:
            scores = _as_scores(step.score_nodes(state, pod, nodes), len(nodes))
    except Exception as error:
        raise failure(doing, error, pod) from error
    if step.normalize is None:
        return scores
    try:
        return _as_scores(step.normalize(state, pod, scores), len(nodes))
    except Exception as error:
        doing = f'running Normalize on Score plugins: plugin "{step.name}" failed with'
        raise failure(doing, error, pod) from error


def _score_each(step: ScoreStep, state: CycleState, pod: Pod, nodes: NodeTable, doing: str) -> Scores:
    scores = np.empty(len(nodes), np.int64)
    for row in range(len(nodes)):
        try:
            scores[row] = step.score(state, pod, nodes.node(row))
        except Exception as error:
            raise failure(doing, error, pod, nodes.names[row]) from error
    return scores


def _as_scores(answer: Any, length: int) -> Scores:
    scores = np.asarray(answer)
    if scores.shape != (length,) or scores.dtype.kind not in "iub":
        raise ValueError(
            f"expected {length} whole numbers, one a node, got {scores.dtype} of shape {scores.shape}"
        )
    return scores.astype(np.int64, copy=False)


def _checked(step: ScoreStep, pod: Pod, nodes: NodeTable, scores: Scores) -> Scores:
    if (
        len(scores) and scores.view(np.uint64).max() > MAX_SCORE
    ):  # negative ones are huge when read as unsigned
        row = int(np.argmax(scores.view(np.uint64)))
        raise CycleError(
            f'applying score defaultWeights on Score plugins: plugin "{step.name}" returns an invalid score '
            f"{scores[row]}, it should in the range of [0, {MAX_SCORE}] after normalizing "
            f"(pod {pod.key}, node {nodes.names[row]})"
        )
    return scores
