"""Ways to bring raw scores into 0 to 100."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.framework.plugin import MAX_SCORE, Scores

EXACT_BELOW = 2**45
"""Up to here a quotient of whole numbers, a hundredfold, is exact enough in floating point to be cut off."""


def scale_to_max(scores: Scores, *, reverse: bool = False) -> Scores:
    """The highest becomes 100, the others in proportion; reversed, the highest becomes 0."""
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full(len(scores), MAX_SCORE, np.int64) if reverse else scores
    scaled = scores * MAX_SCORE // highest
    return MAX_SCORE - scaled if reverse else scaled


def percent(part: NDArray[np.int64], whole: NDArray[np.int64], *, exact: bool) -> NDArray[np.int64]:
    """part · 100 // whole for 0 ≤ part ≤ whole; `exact` keeps to integers, as past EXACT_BELOW it must."""
    if exact:
        return part * MAX_SCORE // whole
    share = np.multiply(part, float(MAX_SCORE))
    return np.divide(share, whole, out=share).astype(np.int64)
