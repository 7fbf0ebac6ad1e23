"""Coscheduling: pod groups of scheduler-plugins and of Volcano, placed as one.

It takes the arguments of the plugin of that name. Nothing is held at Permit: the group cycle places all
members of a group at once, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from stowplan.api.groups import (
    COSCHEDULING,
    KINDS_OF_FAMILY,
    VOLCANO,
    CoschedulingPodGroup,
    Group,
    GroupKey,
    GroupObject,
    VolcanoPodGroup,
    task_of,
)
from stowplan.api.meta import Object, parse_time
from stowplan.api.queues import HyperNode
from stowplan.config.field_errors import child, invalid
from stowplan.framework import (
    Action,
    ClusterEvent,
    Handle,
    PluginArgs,
    Pod,
    Queued,
    Resource,
    Right,
    SortKey,
    Status,
)
from stowplan.framework.plugin import SortingPlugin
from stowplan.plugins.group_members import GroupPlugin


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


class Coscheduling(GroupPlugin, SortingPlugin):
    args: CoschedulingArgs
    group_families = (COSCHEDULING, VOLCANO)
    enables = {"preFilter": ("preEnqueue",), "postFilter": (), "reserve": ()}
    watches = (*KINDS_OF_FAMILY[COSCHEDULING], *KINDS_OF_FAMILY[VOLCANO], HyperNode)
    rights = (
        Right("podgroups/status", ("patch", "update"), COSCHEDULING),
        Right("podgroups", ("patch", "update"), VOLCANO),
    )

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        for kind in (CoschedulingPodGroup, VolcanoPodGroup):
            handle.watched(kind).follow(self._check)

    def _check(self, old: GroupObject | None, new: GroupObject | None) -> None:
        before, after = (() if each is None else next(each.groups()).faults for each in (old, new))
        if new is not None and after and before != after:
            self.handle.record_event(new, "Warning", "InvalidPodGroup", "; ".join(after))

    def queue_sort(self, queued: Queued) -> SortKey:
        """Priority, then the age of the group, then names, so that members are next to each other."""
        pod = queued.pod
        key = self.groups.key_of(pod)
        group = None if key is None else self.groups.find(key)
        since = queued.timestamp
        if group is not None and not queued.attempts and group.created:
            since = min(since, parse_time(group.created))
        return (-pod.priority, since, "" if key is None else str(key), pod.key)

    def pods_to_sort_again(self, old: Object | None, new: Object | None) -> Iterable[Pod]:
        item = old if new is None else new
        if not isinstance(item, GroupObject):
            return ()
        times = [None if each is None else each.metadata.creation_timestamp for each in (old, new)]
        return () if times[0] == times[1] else self.groups.members_of(item)

    def check_group(self, pod: Pod, key: GroupKey, group: Group | None) -> Status | None:
        if group is None:
            fault = self.groups.fault_of(key)
            unread = f", since it cannot be read: {fault}" if fault else ""
            return Status.unresolvable(f"PodGroup not found{unread}")
        if group.limits_note:
            return Status.unresolvable(group.limits_note)
        members = [each for each in self.groups.members(key).values() if not each.spec.scheduling_gates]
        count = len(members) + self.groups.succeeded(key)
        if count < group.min_count:
            if key.family == VOLCANO:
                text = "Not enough valid tasks for gang-scheduling"
                return Status.unresolvable(f"{text}, valid: {count}, min: {group.min_count}")
            return Status.unresolvable(
                f"pre-filter pod {pod.name} cannot find enough sibling pods, "
                f"current pods number: {count}, minMember of group: {group.min_count}"
            )
        by_task = Counter(map(task_of, members))
        if any(by_task[task] < least for task, least in group.min_by_task.items()):
            return Status.unresolvable("Not enough valid pods of each task for gang-scheduling")
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            *super().events_to_register(),
            ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED),
            ClusterEvent(
                Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL
            ),
            ClusterEvent(HyperNode.definition.event_resource, Action.ALL),
        )
