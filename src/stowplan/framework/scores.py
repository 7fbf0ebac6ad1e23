"""Scores, and ways to bring raw ones into 0 to 100."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.int64]
MAX_SCORE = 100
TOO_LARGE = 2**63 // MAX_SCORE
"""From here on a hundredfold does not fit into 64 bits."""


def scale_to_max(scores: Scores, *, reverse: bool = False) -> Scores:
    """The highest becomes 100, the others in proportion; reversed, the highest becomes 0."""
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), MAX_SCORE, np.int64) if reverse else scores
    numbers = scores.astype(object) if highest >= TOO_LARGE else scores
    scaled = (numbers * MAX_SCORE // highest).astype(np.int64, copy=False)
    return MAX_SCORE - scaled if reverse else scaled


def scale_to_range(scores: Scores) -> Scores:
    """The highest becomes 100, the lowest 0, those between in proportion, cut off; all 0 if all are equal."""
    lowest, highest = int(scores.min(initial=2**63 - 1)), int(scores.max(initial=-(2**63)))
    if lowest >= highest:
        return np.zeros(len(scores), np.int64)
    numbers = scores.astype(object) if highest - lowest >= TOO_LARGE else scores
    return ((numbers - lowest) * MAX_SCORE // (highest - lowest)).astype(np.int64, copy=False)
