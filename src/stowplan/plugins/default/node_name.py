"""NodeName: a pod that names its node runs there or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

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


class NodeName(Plugin):
    reads = Reads.NODE
    hints_by_spec = True
    limits_daemons = True

    def sign_pod(self, pod: Pod) -> str:
        return pod.node_name

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        if pod.node_name:
            others = np.ones(len(nodes), np.bool_)
            if (row := nodes.row_of(pod.node_name)) is not None:
                others[row] = False
            yield Reject(others, "node(s) didn't match the requested node name", unresolvable=True)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.NODE, Action.ADD),)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        return Hint.QUEUE
