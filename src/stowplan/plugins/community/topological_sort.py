"""TopologicalSort: schedules the pods of an AppGroup in the order of its workloads.

Pods of different AppGroups, and pods without one, are sorted as by PrioritySort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stowplan.framework import Handle, Pod, Queued
from stowplan.framework.plugin import ExplainingPlugin, SortingPlugin
from stowplan.plugins.app_groups import GROUP_LABEL, WORKLOAD_LABEL, AppGroup, AppGroupArgs, AppGroups

UNLISTED = -1
"""The place of a workload that its AppGroup does not list: before the others."""


class TopologicalSortArgs(AppGroupArgs):
    pass


class Waiting(NamedTuple):
    """The pods of an AppGroup that are in the queue."""

    since: float
    """When the first of them was queued."""
    uids: set[str]


class TopologicalSort(SortingPlugin, ExplainingPlugin):
    args: TopologicalSortArgs
    watches = (AppGroup,)

    def __init__(self, args: TopologicalSortArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._groups = AppGroups(handle, args.namespaces)
        handle.watched(AppGroup).follow(self._follow)
        self._orders: dict[str, tuple[Mapping[str, int], str]] = {}
        """By AppGroup: the place of each workload, and what is wrong with it."""
        self._group_of: dict[str, tuple[str, str]] = {}
        """The AppGroup of each pod in the queue, by uid: its name, as labelled, and its key if it exists."""
        self._naming: dict[str, dict[str, Pod]] = {}
        """The same pods by this name, then by uid."""
        self._waiting: dict[str, Waiting] = {}
        """Those with an AppGroup that exists, by its key."""

    def queue_sort(self, queued: Queued) -> tuple[int, float, str, int, float]:
        """Priority, then time. All pods of an AppGroup have the time of its first one, so that they are
        next to each other: by place, then by their own times."""
        pod, group = queued.pod, self._groups.find(queued.pod)
        name, key = pod.labels.get(GROUP_LABEL, ""), "" if group is None else group.key
        if self._group_of.get(pod.uid, ("", "")) != (name, key):
            self._leave(pod.uid)
        if name:
            self._group_of[pod.uid] = (name, key)
            self._naming.setdefault(name, {})[pod.uid] = pod
        if group is None:
            return (-pod.priority, queued.timestamp, "", 0, queued.timestamp)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = Waiting(queued.timestamp, set())
        waiting.uids.add(pod.uid)
        place = self._order(group)[0].get(pod.labels.get(WORKLOAD_LABEL, ""), UNLISTED)
        return (-pod.priority, waiting.since, key, place, queued.timestamp)

    def explain_pod(self, pod: Pod) -> Iterator[str]:
        if not pod.labels.get(GROUP_LABEL):
            return
        group = self._groups.find(pod)
        if group is None:
            yield f"{self.name} sorts it as a pod without AppGroup: {self._groups.missing_text(pod)}."
        elif text := self._order(group)[1]:
            yield f"{self.name}: in AppGroup {group.key}, {text}."

    def pods_to_sort_again(self, old: AppGroup | None, new: AppGroup | None) -> tuple[Pod, ...]:
        if old is not None and new is not None and _order_source(old) == _order_source(new):
            return ()
        item = old if new is None else new
        assert item is not None
        return tuple(self._naming.get(item.name, {}).values())

    def pod_updated(self, old: Pod, new: Pod) -> None:
        if new.node_name:
            self._leave(new.uid)

    def pod_deleted(self, pod: Pod) -> None:
        self._leave(pod.uid)

    def _leave(self, uid: str) -> None:
        name, key = self._group_of.pop(uid, ("", ""))
        if name:
            del self._naming[name][uid]
            if not self._naming[name]:
                del self._naming[name]
        if key:
            uids = self._waiting[key].uids
            uids.remove(uid)
            if not uids:
                del self._waiting[key]

    def _follow(self, old: AppGroup | None, new: AppGroup | None) -> None:
        item = old if new is None else new
        if item is not None:
            self._orders.pop(item.key, None)

    def _order(self, group: AppGroup) -> tuple[Mapping[str, int], str]:
        found = self._orders.get(group.key)
        if found is None:
            listed, text = sorted(group.status.topology_order, key=lambda each: -each.index), ""
            order = {each.workload.selector: each.index for each in listed}
            if not order:
                order, cycle = sort_workloads(group)
                if cycle:
                    text = (
                        f"workloads {', '.join(cycle[:5])} depend on each other in a cycle, so that they are "
                        "sorted as listed; write status.topologyOrder for another order"
                    )
                    self.handle.record_event(group, "Warning", "CyclicAppGroup", text)
            found = self._orders[group.key] = (order, text)
        return found


def _order_source(group: AppGroup) -> tuple[object, ...]:
    """What the order of its pods is made from."""
    return (group.spec.workloads, group.status.topology_order)


def sort_workloads(group: AppGroup) -> tuple[dict[str, int], list[str]]:
    """The place of each workload by its selector, dependents before what they depend on, and those workloads
    that are on a cycle or behind one: these come last, as listed."""
    needs: dict[str, dict[str, None]] = {each.workload.selector: {} for each in group.spec.workloads}
    for each in group.spec.workloads:
        found = needs[each.workload.selector]
        found.update((other.workload.selector, None) for other in each.dependencies)
        found.pop(each.workload.selector, None)
    users = Counter(other for found in needs.values() for other in found if other in needs)
    ready = [selector for selector in needs if not users[selector]]
    for selector in ready:  # which grows on the way
        for other in needs[selector]:
            users[other] -= 1
            if not users[other]:
                ready.append(other)
    cycle = [selector for selector in needs if users[selector]]
    return {selector: place for place, selector in enumerate((*ready, *cycle), 1)}, cycle
