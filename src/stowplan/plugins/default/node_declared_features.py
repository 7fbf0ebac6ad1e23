"""NodeDeclaredFeatures: rejects nodes that do not declare a kubelet feature that the pod needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.api.pod import PodSpec
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
    Status,
)


class NodeDeclaredFeatures(Plugin):
    reads = Reads.OBJECTS
    hints_by_spec = True

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None if needed_features(pod) else Status.skip()

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        needed = needed_features(pod)
        lacking = nodes.by_features(lambda declared: not needed.issubset(declared))
        yield Reject(lacking, "node(s) didn't match Pod's required features", unresolvable=True)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_DECLARED_FEATURE),
            ClusterEvent(Resource.POD, Action.UPDATE),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is Resource.NODE:
            unchanged = old is not None and old.declared_features == new.declared_features
            return Hint.SKIP if unchanged else Hint.QUEUE
        changed = new.uid == pod.uid and needed_features(old) != needed_features(new)
        return Hint.QUEUE if changed else Hint.SKIP


def needed_features(pod: Pod) -> frozenset[str]:
    found: frozenset[str] | None = pod.shape.memo.get(needed_features)
    if found is None:
        found = pod.shape.memo[needed_features] = frozenset(_required_features(pod.spec))
    return found


def _required_features(spec: PodSpec) -> Iterator[str]:
    rules = (rule for each in (*spec.init_containers, *spec.containers) for rule in each.restart_policy_rules)
    if any(rule.action == "RestartAllContainers" for rule in rules):
        yield "RestartAllContainersOnContainerExits"
    if spec.host_network and spec.host_users is False:
        yield "UserNamespacesHostNetworkSupport"
