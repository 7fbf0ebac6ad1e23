"""NodePorts: rejects nodes where a host port of the pod is already in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stowplan.api.node import NodeObject
from stowplan.cluster.columns import ports_conflict
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Hint,
    NodeTable,
    Pod,
    Reject,
    Resource,
    Status,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.node_matching import required_text


class NodePorts(ExplainingPlugin):
    takes_trials = True
    hints_by_spec = True

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if pod.shape.ports else Status.skip()

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        taken = nodes.ports_taken(pod.shape.ports)
        yield Reject(taken, "node(s) didn't have free ports for the requested pod ports")

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        return required_text(f"host port {each.port}/{each.protocol}" for each in pod.shape.ports)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.POD, Action.DELETE), ClusterEvent(Resource.NODE, Action.ADD))

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is Resource.NODE:
            return Hint.QUEUE
        held_room = old.node_name or old.nominated_node_name
        return Hint.QUEUE if held_room and ports_conflict(pod.shape.ports, old.shape.ports) else Hint.SKIP
