"""Coscheduling: pod groups of scheduler-plugins and of Volcano, placed as one.

It takes the arguments of the plugin of that name. Nothing is held at Permit: the group cycle places all
members of a group at once, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.api.groups import COSCHEDULING, KINDS_OF_FAMILY, VOLCANO, Group, GroupObject, task_of
from stowplan.api.meta import parse_time
from stowplan.config.field_errors import child, invalid
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    Plugin,
    PluginArgs,
    Pod,
    Queued,
    Resource,
    Right,
    SortKey,
    Status,
)


class CoschedulingArgs(PluginArgs):
    permit_waiting_time_seconds: int = 60
    """Accepted, and without effect: no pod is held at Permit."""
    pod_group_backoff_seconds: int = 0
    """Accepted, and without effect: groups have the backoff of pods."""
    pod_group_reject_percentage: int = 10
    """Accepted, and without effect: a group is never placed in part."""

    def validate(self, path: str) -> Iterator[str]:
        for name, value in (
            ("permitWaitingTimeSeconds", self.permit_waiting_time_seconds),
            ("podGroupBackoffSeconds", self.pod_group_backoff_seconds),
        ):
            if value < 0:
                yield invalid(child(path, name), value, "must be greater than or equal to 0")
        if not 0 <= self.pod_group_reject_percentage <= 100:
            where = child(path, "podGroupRejectPercentage")
            yield invalid(where, self.pod_group_reject_percentage, "must be between 0 and 100")


class Coscheduling(Plugin):
    args: CoschedulingArgs
    families = (COSCHEDULING, VOLCANO)
    watches = tuple(kind for family in families for kind in KINDS_OF_FAMILY[family])
    rights = (
        Right("podgroups/status", ("patch", "update"), COSCHEDULING),
        Right("podgroups", ("patch", "update"), VOLCANO),
    )

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.groups = handle.cluster.groups
        self.groups.use(self.families, handle.scheduler_name)

    def queue_sort(self, queued: Queued) -> SortKey:
        """Priority, then the age of the group, then names, so that members stand next to each other."""
        pod = queued.pod
        key = self.groups.key_of(pod)
        group = None if key is None else self.groups.find(key)
        since = queued.timestamp
        if group is not None and not queued.attempts and group.created:
            since = min(since, parse_time(group.created))
        return (-pod.priority, since, "" if key is None else str(key), pod.key)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        key = self.groups.key_of(pod)
        if key is None or key.family not in self.families:
            return None
        group = self.groups.find(key)
        if group is None:
            return Status.unresolvable("PodGroup not found")
        return self._too_few(pod, group)

    def _too_few(self, pod: Pod, group: Group) -> Status | None:
        if group.limits_note:
            return Status.unresolvable(group.limits_note)
        members = [each for each in self.groups.members(group.key).values() if not each.spec.scheduling_gates]
        count = len(members) + self.groups.succeeded(group.key)
        if count < group.min_count:
            if group.key.family == VOLCANO:
                text = "Not enough valid tasks for gang-scheduling"
                return Status.unresolvable(f"{text}, valid: {count}, min: {group.min_count}")
            return Status.unresolvable(
                f"pre-filter pod {pod.name} cannot find enough sibling pods, "
                f"current pods number: {count}, minMember of group: {group.min_count}"
            )
        by_task: dict[str, int] = {}
        for each in members:
            by_task[task_of(each)] = by_task.get(task_of(each), 0) + 1
        if any(by_task.get(task, 0) < least for task, least in group.min_by_task.items()):
            return Status.unresolvable("Not enough valid pods of each task for gang-scheduling")
        return None

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        kinds = (ClusterEvent(kind.definition.event_resource, Action.ALL) for kind in self.watches)
        return (
            *kinds,
            ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        item = old if new is None else new
        if not isinstance(item, GroupObject):
            return Hint.QUEUE
        key = self.groups.key_of(pod)
        is_own = key is not None and (key.family, key.namespace, key.name) == (
            item.family,
            item.namespace,
            item.name,
        )
        return Hint.QUEUE if is_own else Hint.SKIP

    def pod_added(self, pod: Pod) -> None:
        self.groups.put(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.groups.move(old, new)

    def pod_deleted(self, pod: Pod) -> None:
        self.groups.remove(pod)
