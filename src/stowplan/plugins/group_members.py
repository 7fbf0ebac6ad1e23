"""Base class of the plugins for pod groups: follows the members, and wakes them by their group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.api.groups import IN_TREE, Group, GroupKey, GroupObject
from stowplan.config.gates import PREEMPTION, TOPOLOGY
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    PluginArgs,
    Pod,
    Status,
)
from stowplan.framework.plugin import ExplainingPlugin


class GroupPlugin(ExplainingPlugin):
    """Keeps pods of some API groups' pod groups out of the queue until their group can be attempted."""

    hints_by_group = True
    reports_gate = True

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.groups = handle.cluster.groups
        self.groups.use(self.group_families, handle.scheduler_name)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        key = self.groups.key_of(pod)
        if key is None or key.family not in self.group_families:
            return None
        return self.check_group(pod, key, self.groups.find(key))

    def check_group(self, pod: Pod, key: GroupKey, group: Group | None) -> Status | None:
        """Say why the group is not attempted yet; `group` is None while its object does not exist."""
        raise NotImplementedError

    def explain_pod(self, pod: Pod) -> Iterator[str]:
        key = self.groups.key_of(pod)
        group = None if key is None or key.family not in self.group_families else self.groups.find(key)
        if group is not None and group.faults:
            yield f"PodGroup {key}: {'; '.join(group.faults)}."

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return None  # the group cycle has placed the whole group: there is nothing to wait for

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        kinds = (kind for kind in self.watches if issubclass(kind, GroupObject))
        return tuple(ClusterEvent(kind.definition.event_resource, Action.ALL) for kind in kinds)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        item, key = old if new is None else new, self.groups.key_of(pod)
        if not isinstance(item, GroupObject):
            return Hint.QUEUE
        if key is None:
            return Hint.SKIP
        name = key.name.partition("/")[0]  # a Workload may have several groups
        is_own = (key.family, key.namespace, name) == (item.family, item.namespace, item.name)
        if not is_own:
            return Hint.SKIP
        # What is written to its status, by ourselves too, lets no group fit.
        is_same = isinstance(old, GroupObject) and new is not None and [*old.groups()] == [*new.groups()]
        return Hint.SKIP if is_same else Hint.QUEUE

    def pod_added(self, pod: Pod) -> None:
        self.groups.put(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.groups.move(old, new)

    def pod_deleted(self, pod: Pod) -> None:
        self.groups.remove(pod)


def not_alone(handle: Handle, pod: Pod) -> str:
    """Why a member of an in-tree pod group does not preempt by itself; empty if it does."""
    groups, gates = handle.cluster.groups, handle.gates
    key = groups.key_of(pod)
    if key is None or key.family != IN_TREE:
        return ""
    if PREEMPTION in gates:
        return "not eligible due to workload aware preemption enabled"
    if TOPOLOGY in gates:
        group = groups.find(key)
        if group is None:
            return "pod group for pod not found"
        if group.topology is not None:
            return "not eligible due to placement-based pod group scheduling limitation"
    return ""
