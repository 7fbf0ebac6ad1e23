"""Where evicting pods hurts least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.victims import Slots, Victims


class Harm(NamedTuple):
    """What the victims of each row of the live table are worth; the order is that of comparing them."""

    violations: NDArray[np.int64]
    """How many of them a disruption budget protects."""
    highest: NDArray[np.int64]
    """The highest priority among them."""
    weight: NDArray[np.int64]
    """The sum of their priorities."""
    victims: NDArray[np.int64]
    """How many there are: none where evicting does not help."""
    youth: NDArray[np.float64]
    """The lower, the later the longest running of the most important has started."""


def no_harm(length: int) -> Harm:
    violations, highest, weight, victims = np.zeros((4, length), np.int64)
    return Harm(violations, highest, weight, victims, np.zeros(length, np.float64))


def add_harm(harm: Harm, live: LiveNodeTable, victims: Victims) -> None:
    """Fills in the rows that the victims are on."""
    rows, where = np.unique(victims.rows, return_inverse=True)
    priority, start = live.pods.priority[victims.slots], live.pods.start[victims.slots]
    highest = np.full(len(rows), np.iinfo(np.int64).min)
    np.maximum.at(highest, where, priority)
    earliest = np.full(len(rows), np.inf)
    top = priority == highest[where]
    np.minimum.at(earliest, where[top], start[top])
    weight = np.zeros(len(rows), np.int64)
    np.add.at(weight, where, priority + 2**31)
    harm.violations[rows] = np.bincount(where, victims.violating, len(rows))
    harm.highest[rows], harm.weight[rows] = highest, weight
    harm.victims[rows] = np.bincount(where, minlength=len(rows))
    harm.youth[rows] = -earliest


def least(live: LiveNodeTable, rows: Slots, harm: Harm) -> int:
    """Of these rows the one where it hurts least; of equals the first by name."""
    for column in harm:
        if len(rows) > 1:
            values = column[rows]
            rows = rows[values == values.min()]
    return int(rows[live.name_ranks[rows].argmin()])
