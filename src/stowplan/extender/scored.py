"""Scores as prioritize answers them: `[{"Host":"n1","Score":7},…]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.extender import HostPriority, write
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable

MOST = 100
SHOWN = 10


class Scored(NamedTuple):
    answer: bytes
    shown: dict[str, int]
    """The scores of the first nodes, for a line of the log."""

    @classmethod
    def of(cls, names: Sequence[str], scores: Sequence[int]) -> Scored:
        lines = [HostPriority(host=name, score=score) for name, score in zip(names, scores, strict=True)]
        return cls(write(lines), dict(zip(names[:SHOWN], scores, strict=False)))


class ScoreLines:
    """Writes the scores of thousands of nodes: the part of a line that names the node is kept."""

    def __init__(self) -> None:
        self._layout = -1
        self._heads: NDArray[Any] = np.empty(0, object)
        self._tails = _objects([f"{score}}}," for score in range(MOST + 1)])

    def scored(
        self, nodes: LiveNodeTable, rows: Rows, scores: NDArray[np.int64], unknown: Sequence[str]
    ) -> Scored:
        """Those of `unknown` get 0."""
        if unknown or not len(rows):
            names = [nodes.names[row] for row in rows.tolist()]
            return Scored.of([*names, *unknown], [*scores.tolist(), *(0 for _ in unknown)])
        if self._layout != nodes.layout:
            self._layout = nodes.layout
            self._heads = _objects([f'{{"Host":"{name}","Score":' for name in nodes.names])
        pieces = np.empty(2 * len(rows), object)
        pieces[0::2], pieces[1::2] = self._heads[rows], self._tails[scores]
        shown = {nodes.names[row]: int(score) for row, score in zip(rows[:SHOWN], scores, strict=False)}
        return Scored(f"[{''.join(pieces.tolist())[:-1]}]".encode(), shown)


def _objects(texts: list[str]) -> NDArray[Any]:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found
