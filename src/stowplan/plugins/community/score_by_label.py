"""ScoreByLabel: prefers nodes whose label holds a larger number; what is no number from 0 to 2**63-1 is 0."""

import numpy as np

from stowplan import CycleState, NodeTable, Plugin, PluginArgs, Pod, Reads, Scores, scale_to_max


class ScoreByLabelArgs(PluginArgs):
    label_key: str = "score-by-label"


class ScoreByLabel(Plugin):
    args: ScoreByLabelArgs
    reads = Reads.NODE  # with sign_pod: the column is kept until a node changes

    def sign_pod(self, pod: Pod) -> str:
        return ""  # all pods are alike

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        label = nodes.label(self.args.label_key)
        points = [int(s) if s.isdecimal() and len(s) < 64 and int(s) < 2**63 else 0 for s in label.values]
        return np.array([*points, 0], np.int64)[label.ids]  # the id of a node without the label is -1

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores)
