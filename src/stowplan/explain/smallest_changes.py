"""The smallest changes that would change a decision, each decided again before it is told.

Only one thing is changed at a time: a weight, a request, a label, a toleration, a priority, a term that the
pod asks for, a cordon. Of an amount, the least change is sought to the last unit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from stowplan.cycle import Planner
from stowplan.explain import candidates, changed_nodes, changed_weights
from stowplan.explain.changes import SHOWN, Change, Changes
from stowplan.explain.trial import TimeIsUp, Trial
from stowplan.framework.decision import Decision

SECONDS = 0.15
"""Of processor time, so that the same question has the same answer on a busy machine."""
KINDS: tuple[Callable[[Trial], Iterator[Change]], ...] = (
    changed_weights.weights,
    candidates.tolerations,
    candidates.terms,
    candidates.labels,
    candidates.priorities,
    changed_nodes.labels,
    changed_nodes.cordons,
)


def smallest_changes(
    planner: Planner,
    decision: Decision,
    *,
    seconds: float = SECONDS,
    now: Callable[[], float] = time.process_time,
) -> Changes:
    """Asked with the cluster as it was when the decision was made, and left so."""
    if decision.error is not None or decision.not_looked_at is not None:  # a sample may leave out any node
        return Changes()
    trial = Trial(planner, decision, seconds, now)
    found: list[Change] = []
    try:
        for kind in _in_order(trial):
            found.extend(islice(kind(trial), SHOWN))
    except TimeIsUp:
        return Changes(tuple(found), is_complete=False)
    return Changes(tuple(found))


def _in_order(trial: Trial) -> Sequence[Callable[[Trial], Iterator[Change]]]:
    """Requests come first where they can be searched quickly, and mean the most: for a pod without a node."""
    requests = candidates.requests
    return (requests, *KINDS) if trial.winner is None else (*KINDS, requests)
