"""Which weight of a score plugin would let another node win."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.explain.trial import Change, Trial
from stowplan.framework.decision import ScoreColumn
from stowplan.framework.plugin import Scores

MOST = 1000
"""A weight beyond it is no advice any more."""


def weights(trial: Trial) -> Iterator[Change]:
    """The smallest first. Scores do not depend on weights, so totals are linear in each of them."""
    decision, totals = trial.decision, trial.decision.totals
    if totals is None or trial.winner is None:
        return
    place = decision.feasible.tolist().index(decision.names.index(trial.winner))
    behind = totals[place] - totals
    known = {step.name for step in trial.profile.scores}
    steps = {
        column.plugin: _step(column, place, behind) for column in decision.scores if column.plugin in known
    }
    columns = {column.plugin: column for column in decision.scores}
    for plugin, step in sorted(steps.items(), key=lambda item: abs(item[1])):
        was = columns[plugin].weight
        flip = trial.with_weight(plugin, was + step) if step else None
        if flip is not None:
            yield Change(
                kind="weight",
                text=f"weight {was + step} of {plugin} instead of {was}",
                flip=flip,
                was=was,
                now=was + step,
                weight=(plugin, was + step),
                less=was + step - (1 if step > 0 else -1),
            )


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
