"""Which weight of a score plugin would let another node win."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from stowplan.explain.changes import Change, Flip
from stowplan.framework.decision import Decision, ScoreColumn

if TYPE_CHECKING:
    from stowplan.explain.trial import Trial
    from stowplan.framework.scores import Scores

MOST = 1000
"""A weight beyond it is no advice any more."""


def weights(trial: Trial) -> Iterator[Change]:
    """The smallest first."""
    known = {step.name for step in trial.profile.scores}
    for column, step in _steps(trial.decision):
        weight = column.weight + step
        if column.plugin in known and (flip := trial.with_weight(column.plugin, weight)) is not None:
            yield _change(column, step, flip)


def kept_weights(decision: Decision) -> Iterator[Change]:
    """The same for a decision that was kept, whose columns are all there is to decide it again with."""
    totals, names = decision.totals, decision.names
    if totals is None:
        return
    for column, step in _steps(decision):
        changed = totals + step * column.scores.astype(np.int64)
        best = decision.feasible[changed == changed.max()]
        yield _change(column, step, Flip(min(names[row] for row in best.tolist())))


def _steps(decision: Decision) -> list[tuple[ScoreColumn, int]]:
    """Columns with what their weights must change by, the smallest first. Scores do not depend on weights,
    so totals are linear in each of them."""
    totals = decision.totals
    if totals is None or decision.chosen is None:
        return []
    place = decision.feasible.tolist().index(decision.names.index(decision.chosen))
    behind = totals[place] - totals
    steps = [(column, _step(column, place, behind)) for column in decision.scores]
    return sorted(((column, step) for column, step in steps if step), key=lambda each: abs(each[1]))


def _step(column: ScoreColumn, place: int, behind: Scores) -> int:
    """By how much the weight must change, at least, for some node to get ahead; 0 if no weight helps."""
    gains = column.scores.astype(np.int64) - int(column.scores[place])
    found = [0]
    for sign, most in ((1, MOST - column.weight), (-1, column.weight - 1)):
        helps = sign * gains > 0
        if helps.any():
            least = int((behind[helps] // (sign * gains[helps])).min()) + 1
            found += [sign * least] if least <= most else []
    return min((step for step in found if step), key=abs, default=0)


def _change(column: ScoreColumn, step: int, flip: Flip) -> Change:
    was, now = column.weight, column.weight + step
    return Change(
        kind="weight",
        text=f"weight {now} of {column.plugin} instead of {was}",
        flip=flip,
        was=was,
        now=now,
        weight=(column.plugin, now),
        less=now - (1 if step > 0 else -1),
    )
