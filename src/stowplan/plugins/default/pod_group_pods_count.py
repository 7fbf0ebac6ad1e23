"""PodGroupPodsCount: prefers the domain into which most pods of the group fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.api.groups import Group
from stowplan.errors import StowplanError
from stowplan.framework import MAX_SCORE, Plugin, Scores
from stowplan.framework.plugin import Placement


class PodGroupPodsCount(Plugin):
    def placement_score(self, group: Group, placements: Sequence[Placement]) -> Scores:
        counts = np.array([each.placed_count + len(each.members) for each in placements], np.int64)
        most = int(counts.max())
        if not most:
            raise StowplanError("no pods from pod group are assigned to any of the candidate placements")
        return counts * MAX_SCORE // most
