"""NodeUnschedulable: keeps pods off cordoned nodes, unless they tolerate the corresponding taint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.api.node import UNREADABLE_POD, Taint, is_tolerated
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Hint,
    NodeTable,
    Plugin,
    Pod,
    Reads,
    Reject,
    Resource,
)

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


class NodeUnschedulable(Plugin):
    reads = Reads.NODE
    hints_by_spec = True
    limits_daemons = True

    def sign_pod(self, pod: Pod) -> bool:
        # Asked for each pod, and the same for all pods of a shape.
        memo = pod.shape.memo
        found: bool | None = memo.get(NodeUnschedulable)
        if found is None:
            found = memo[NodeUnschedulable] = is_tolerated(UNSCHEDULABLE, pod.spec.tolerations)
        return found

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        illegible = nodes.by_taints(lambda taints: any(taint.key == UNREADABLE_POD for taint in taints))
        yield Reject(illegible, "node(s) had a pod that cannot be read", unresolvable=True)
        if not self.sign_pod(pod):
            yield Reject(nodes.unschedulable, "node(s) were unschedulable", unresolvable=True)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
            ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATION),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is not Resource.NODE:
            helps = new.uid == pod.uid and is_tolerated(UNSCHEDULABLE, new.spec.tolerations)
        else:
            helps = not new.unschedulable and (old is None or old.unschedulable or old.is_closed)
        return Hint.QUEUE if helps else Hint.SKIP
