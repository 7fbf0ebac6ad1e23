"""GangScheduling: holds the pods of a PodGroup back until enough of them exist to be placed together.

The group cycle places them, so there is nothing to wait for after that: `permit` lets every pod pass.
"""

from __future__ import annotations

from typing import Any

from stowplan.api.groups import IN_TREE, KINDS_OF_FAMILY, GroupObject
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    Plugin,
    PluginArgs,
    Pod,
    Right,
    Status,
)


class GangScheduling(Plugin):
    watches = KINDS_OF_FAMILY[IN_TREE]
    rights = (Right("podgroups/status", ("patch", "update"), IN_TREE),)  # which the host writes for it

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.groups = handle.cluster.groups
        self.groups.use((IN_TREE,), handle.scheduler_name)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        if not pod.group_name:
            return None
        key = self.groups.key_of(pod)
        if key is None or key.family != IN_TREE:
            return None
        group = self.groups.find(key)
        if group is None:
            # parity: kube-scheduler's spelling
            return Status.unresolvable(
                f'waiting for pods\'s pod group "{key.name}" to appear in scheduling queue'
            )
        if group.policy == "basic" or group.was_scheduled or self.groups.known_count(key) >= group.min_count:
            return None
        return Status.unresolvable("waiting for minCount pods from a gang to appear in scheduling queue")

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return tuple(ClusterEvent(kind.definition.event_resource, Action.ALL) for kind in self.watches)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        item: GroupObject = old if new is None else new
        is_own = item.namespace == pod.namespace and item.name == pod.group_name.partition("/")[0]
        return Hint.QUEUE if is_own else Hint.SKIP

    def pod_added(self, pod: Pod) -> None:
        self.groups.put(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.groups.move(old, new)

    def pod_deleted(self, pod: Pod) -> None:
        self.groups.remove(pod)
