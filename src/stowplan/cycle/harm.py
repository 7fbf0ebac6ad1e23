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
    """Fills in the rows that the victims are on; the victims of a row stand together."""
    if not len(victims.rows):
        return
    starts = first_of_each_row(victims.rows)
    rows = victims.rows[starts]
    counts = np.diff(starts, append=len(victims.rows))
    priority, start = live.pods.priority[victims.slots], live.pods.start[victims.slots]
    highest = np.maximum.reduceat(priority, starts)
    is_top = priority == np.repeat(highest, counts)
    harm.violations[rows] = np.add.reduceat(victims.violating, starts, dtype=np.int64)
    harm.highest[rows] = highest
    harm.weight[rows] = np.add.reduceat(priority + 2**31, starts)
    harm.victims[rows] = counts
    harm.youth[rows] = -np.minimum.reduceat(np.where(is_top, start, np.inf), starts)


def first_of_each_row(rows: Slots) -> Slots:
    """Where each row begins in a column in which equal rows stand together."""
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def least(live: LiveNodeTable, rows: Slots, harm: Harm) -> int:
    """Of these rows the one where it hurts least; of equals the first by name."""
    for column in harm:
        if len(rows) > 1:
            values = column[rows]
            rows = rows[values == values.min()]
    return int(rows[live.name_ranks[rows].argmin()])
