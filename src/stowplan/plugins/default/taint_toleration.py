"""TaintToleration: keeps pods off nodes with taints they do not tolerate; fewer soft ones are better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stowplan.api.node import NodeObject, first_untolerated, is_tolerated
from stowplan.api.pod import Toleration
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Hint,
    NodeTable,
    Pod,
    Reads,
    Reject,
    Resource,
    Scores,
    Status,
    scale_to_max,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.node_matching import find_untolerated


class TaintToleration(ExplainingPlugin):
    reads = Reads.NODE
    hints_by_spec = True
    limits_daemons = True

    def sign_pod(self, pod: Pod) -> tuple[Toleration, ...]:
        return pod.spec.tolerations

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        yield Reject(find_untolerated(nodes, pod), "node(s) had untolerated taint(s)", unresolvable=True)

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        taints = (first_untolerated(node.taints, pod.spec.tolerations) for node in nodes)
        counts = Counter(taint.text for taint in taints if taint is not None)
        listed = (f"{text} ({count} node{'s'[: count != 1]})" for text, count in counts.most_common(5))
        return f"the pod does not tolerate {', '.join(listed)}" if counts else ""

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        """How many soft taints of each node the pod does not tolerate."""
        soft = [each for each in pod.spec.tolerations if each.effect in ("", "PreferNoSchedule")]
        return nodes.by_taints(
            lambda taints: sum(
                taint.effect == "PreferNoSchedule" and not is_tolerated(taint, soft) for taint in taints
            ),
            np.int64,
        )

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores, reverse=True)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
            ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATION),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is not Resource.NODE:
            return Hint.QUEUE if new.uid == pod.uid else Hint.SKIP
        tolerations = pod.spec.tolerations
        was_rejected = old is None or first_untolerated(old.taints, tolerations) is not None
        is_rejected = first_untolerated(new.taints, tolerations) is not None
        return Hint.QUEUE if was_rejected and not is_rejected else Hint.SKIP
