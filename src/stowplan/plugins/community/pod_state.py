"""PodState: prefers nodes that pods are leaving, and avoids those that other pods are nominated to."""

from __future__ import annotations

import numpy as np

from stowplan.framework import CycleState, NodeTable, Plugin, Pod, Scores
from stowplan.framework.scores import scale_to_range


class PodState(Plugin):
    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        live = nodes.live
        leaving = live.pods.row[~live.pods.live]
        scores: Scores = np.bincount(leaving, minlength=len(live))
        if self.handle.nominations:
            scores = scores - self.handle.nominations.counts(live)
        return scores if nodes is live else scores[nodes.rows]

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_range(scores)
