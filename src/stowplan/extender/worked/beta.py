"""The beta distribution: how likely a share, whose mean and deviation are known, stays below a threshold."""

from __future__ import annotations

import math

TERMS = 300
ENOUGH = 1e-14


def share_below(threshold: float, mean: float, deviation: float) -> float:
    """The probability; 0 where no beta distribution has such moments."""
    if mean == 0 or deviation == 0:
        return float(mean <= threshold)
    spread = mean * (1 - mean) / deviation**2 - 1
    if spread <= 0:
        return 0.0
    return cumulative(threshold, mean * spread, (1 - mean) * spread)


def cumulative(x: float, alpha: float, beta: float) -> float:
    """The distribution function, by the continued fraction of the incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (alpha + 1) / (alpha + beta + 2):  # where the fraction converges slowly
        return 1 - cumulative(1 - x, beta, alpha)
    front = math.exp(
        alpha * math.log(x)
        + beta * math.log1p(-x)
        + math.lgamma(alpha + beta)
        - math.lgamma(alpha)
        - math.lgamma(beta)
    )
    return front / (alpha * _fraction(x, alpha, beta))


def _fraction(x: float, alpha: float, beta: float) -> float:
    """1 + c1/(1 + c2/(1 + ...)), worked out from the front (Lentz)."""
    value = above = 1.0
    below = 0.0
    for number in range(1, TERMS):
        half = number // 2
        top = -(alpha + half) * (alpha + beta + half) if number % 2 else half * (beta - half)
        step = top * x / ((alpha + number - 1) * (alpha + number))
        below = 1 / (1 + step * below)
        above = 1 + step / above
        value *= above * below
        if abs(above * below - 1) < ENOUGH:
            break
    return value
