"""Weights of score plugins that would let another node win."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from stowplan.explain.changes import Change, Flip
from stowplan.framework.decision import Decision, ScoreColumn

if TYPE_CHECKING:
    from stowplan.framework.scores import Scores

MAX_WEIGHT = 1000
"""Higher weights are not worth suggesting."""


def vary_recorded_weights(decision: Decision) -> Iterator[Change]:
    """Changes of weights, found from the scores of a recorded decision alone."""
    totals, names = decision.totals, decision.names
    if totals is None:
        return
    for column, step in weight_steps(decision):
        changed = totals + step * column.scores.astype(np.int64)
        best = decision.feasible[changed == changed.max()]
        yield weight_change(column, step, Flip(min(names[row] for row in best.tolist())))


def weight_steps(decision: Decision) -> list[tuple[ScoreColumn, int]]:
    """By how much the weight of each column must change, the smallest change first.

    Scores do not depend on weights, so totals are linear in each weight.
    """
    totals = decision.totals
    if totals is None or decision.chosen is None:
        return []
    place = decision.feasible.tolist().index(decision.names.index(decision.chosen))
    behind = totals[place] - totals
    steps = [(column, _step(column, place, behind)) for column in decision.scores]
    return sorted(((column, step) for column, step in steps if step), key=lambda each: abs(each[1]))


def _step(column: ScoreColumn, place: int, behind: Scores) -> int:
    """The smallest change of the weight that lets another node win; 0 if none does."""
    gains = column.scores.astype(np.int64) - int(column.scores[place])
    found = [0]
    for sign, most in ((1, MAX_WEIGHT - column.weight), (-1, column.weight - 1)):
        helps = sign * gains > 0
        if helps.any():
            least = int((behind[helps] // (sign * gains[helps])).min()) + 1
            found += [sign * least] if least <= most else []
    return min((step for step in found if step), key=abs, default=0)


def weight_change(column: ScoreColumn, step: int, flip: Flip) -> Change:
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
