"""Follows the cluster: watches, and what a change seen there means for the cluster and for waiting pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupKey
from stowplan.api.meta import Object, UnreadableObject, prepare
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient, WatchedResource, custom
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.errors import ApiError, Forbidden
from stowplan.client.watch import MAX_REPORTED, MISSING_SECONDS, OnEvent, OnUnreadable, Reflector
from stowplan.cluster import Cluster
from stowplan.framework.events import Resource
from stowplan.framework.handle import PodFollowers
from stowplan.framework.hints import RESOURCES, object_changes
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.shared import Shared

Kind = type[CustomResource]
ACTIONS = {"added": "Add", "modified": "Update", "deleted": "Delete"}
COUNTED: Mapping[type[Object], Resource] = {**RESOURCES, NodeObject: Resource.NODE}
BEHIND_SECONDS = 10.0
"""How often the log says what a new leader waits for."""


class ClusterFollower:
    """Watches everything that decisions depend on, and knows when all of it has been read."""

    def __init__(
        self,
        shared: Shared,
        watched: Iterable[tuple[WatchedResource, OnEvent]],
        kinds: KindWatches,
    ) -> None:
        self._api, self.kinds = shared.api, kinds
        self.reflectors = [
            Reflector(shared.api, resource, on_event=on_event, on_unreadable=shared.metrics.unreadable)
            for resource, on_event in watched
        ]
        self.is_synced = False
        self._behind: set[str] = set()
        """Kinds that may have changed before we began to lead, in ways that we do not know yet."""

    @property
    def not_ready(self) -> str | None:
        """Why pods are not decided yet, apart from another instance leading; None if nothing prevents it."""
        if not self.is_synced:
            return f"handlers are not fully synchronized: waiting for {', '.join(self._list_unsynced())}"
        if self._behind:
            return f"caches are not known to be current: waiting for {', '.join(sorted(self._behind))}"
        return None

    def start(self, core: CoreTasks) -> None:
        for reflector in self.reflectors:
            core.start(f"watch of {reflector.resource.name}", reflector.run())
        core.start("watches of plugins' kinds", self.kinds.run())

    async def sync(self) -> None:
        """Wait until the cluster is known, and its objects can be read without delay."""
        for reflector in self._all():  # the requests for their lists are on their way
            if reflector.resource.struct is not None:
                # A kind of a plugin that cannot be decoded, for its annotations, must not end the scheduler:
                # each of its objects will be reported.
                with suppress(Exception):
                    prepare(reflector.resource.struct)
        for reflector in self.reflectors:
            await reflector.synced.wait()
        await self.kinds.sync()
        self.is_synced = True

    async def catch_up(self, since: float) -> None:
        """Wait until all is known that was there at a time of the event loop, when we began to lead.

        The leader before us may have placed pods until a moment ago. A watch of ours that stalled, or an API
        server that is behind, would not have shown them, and their capacity would be given away twice.
        """
        behind = [each for each in self._all() if not each.is_listed_since(since)]
        if not behind:
            return
        log.log(0, "Bringing caches up to date before scheduling")
        self._api.drop_idle()
        async with asyncio.TaskGroup() as tasks:
            reminder = tasks.create_task(self._log_what_is_behind())
            await asyncio.gather(*(self._catch_up_with(each, since) for each in behind))
            reminder.cancel()

    async def _catch_up_with(self, reflector: Reflector, since: float) -> None:
        name = reflector.resource.name
        self._behind.add(name)
        await reflector.catch_up(since)
        self._behind.discard(name)

    async def _log_what_is_behind(self) -> None:
        while True:
            await asyncio.sleep(BEHIND_SECONDS)
            log.warn(
                "Not scheduling yet: caches are not known to be current", waitingFor=sorted(self._behind)
            )

    def _all(self) -> tuple[Reflector, ...]:
        return (*self.reflectors, *self.kinds.reflectors)

    def _list_unsynced(self) -> list[str]:
        return [each.resource.name for each in self._all() if not each.synced.is_set()]


class EventHandlers:
    """Applies changes from the API server to the cluster, and passes events that may help pods to the queue.

    Pods of `scheduler_names` are queued. `on_unreadable` is called for pods that cannot be read.
    """

    def __init__(
        self,
        shared: Shared,
        queue: SchedulingQueue,
        scheduler_names: Collection[str],
        on_unreadable: Callable[[Pod], None] = lambda pod: None,
        followers: PodFollowers | None = None,
    ) -> None:
        self.followers = followers or PodFollowers()
        self._cluster, self._waiting, self._metrics = shared.cluster, shared.waiting, shared.metrics
        self._queue, self._changes = queue, shared.changes
        self._scheduler_names = scheduler_names
        self.pending = shared.pending
        self.unreadable: dict[str, Pod] = {}
        """Pods that cannot be read, or only in part, by uid: those with a node, and those of ours without."""
        self._on_unreadable = on_unreadable

    def on_event(self, kind: str, old: object, new: object) -> None:
        """An object was added (`old` None), modified, or deleted (`new` None)."""
        if self._changes.is_deferring:
            self._changes.make(partial(self.on_event, kind, old, new))
            return
        if log.is_verbose(3):
            self._log_event(old, new)
        if not self._metrics.are_read:
            self._apply(old, new)
            return
        began = perf_counter()
        self._apply(old, new)
        label = _label(kind, old if new is None else new)
        if label:
            self._metrics.event_handled(label, perf_counter() - began)

    def _log_event(self, old: Any, new: Any) -> None:
        """Log it as kube-scheduler does: a pod that gets its node is deleted from those without one."""
        item = new if old is None else old
        if isinstance(item, NodeObject):
            before, after = (None if each is None else "node" for each in (old, new))
        elif isinstance(item, Pod):
            before, after = self._describe_pod(old), self._describe_pod(new)
        else:
            return
        field = "node" if isinstance(item, NodeObject) else "pod"
        if before is not None and before != after:
            log.log(3, f"Delete event for {before}", **{field: old})
        if after is not None:
            verbosity, action = (4, "Update") if before == after else (3, "Add")
            log.log(verbosity, f"{action} event for {after}", **{field: new})

    def _describe_pod(self, pod: Pod | None) -> str | None:
        """What kube-scheduler calls it in its log; None if it handles no events of such pods."""
        if pod is None or pod.is_finished:
            return None
        if pod.node_name:
            return "scheduled pod"
        return "unscheduled pod" if pod.scheduler_name in self._scheduler_names else None

    def _apply(self, old: Any, new: Any) -> None:
        if isinstance(old if new is None else new, Pod):
            self._on_pod(old, new)
        else:
            if new is not None:
                self._cluster.apply(new)
            else:
                self._cluster.remove(old)
            self._notify(old, new)
            self._queue.resort(old, new)

    def on_capacity_freed(self, pod: Pod) -> None:
        """A pod that we had placed is not going to its node after all: others may want the capacity."""
        for change in object_changes(pod, None):
            self._queue.on_change(change, only=lambda other: other.uid != pod.uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self.unreadable or (new is not None and new.fault):
            self._on_unreadable_pod(old, new)
        else:
            self._follow_pod(old, new)

    def _on_unreadable_pod(self, old: Pod | None, new: Pod | None) -> None:
        """One with a node counts as far as it can be read; one without is not attempted until it can be."""
        if new is None or not new.fault:
            self.unreadable.pop((new or old).uid, None)  # type: ignore[union-attr]
        elif new.node_name or new.scheduler_name in self._scheduler_names:
            known, self.unreadable[new.uid] = self.unreadable.get(new.uid), new
            if known is None or known.fault != new.fault:
                self._on_unreadable(new)
        if new is not None and new.fault and not new.node_name:
            new = None
        if old is not None or new is not None:
            self._follow_pod(old, new)
        if old is not None and old.is_illegible:
            self._report_reopened(old.node_name)

    def _report_reopened(self, node_name: str) -> None:
        row = self._cluster.nodes.row_of(node_name)
        if row is not None and not (node := self._cluster.nodes.objects[row]).is_closed:
            self._notify(node.closed(), node)

    def _follow_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.node_name:
            self._on_placed(old, new)
        elif old is not None and old.node_name:
            self._cluster.remove_pod(old)
            self.followers.tell(old, is_gone=True)
            self._notify(old, None)
        elif new is None:
            assert old is not None
            self.followers.tell(old, is_gone=True)
            self._on_gone(old)
        else:
            self.followers.tell(new)
            if new.scheduler_name in self._scheduler_names:
                self._on_pending(old, new)

    def _on_placed(self, old: Pod | None, new: Pod) -> None:
        if self.pending.pop(new.uid, None) is not None:
            self._queue.delete(new)
        known, was_assumed = self._cluster.pod(new.uid), self._cluster.is_assumed(new)
        if new.is_finished:
            self._cluster.remove_pod(new)
        elif known is None or was_assumed:
            self._cluster.add_pod(new)
        else:
            self._cluster.update_pod(new)
        self.followers.tell(new)
        if known is None and (key := self._cluster.group_of(new)) is not None:
            self._wake_group(key, new)
        self._notify(old, new)
        if was_assumed and known is not None and known.node_name != new.node_name:
            self.on_capacity_freed(known)  # someone else has bound it, elsewhere

    def _on_pending(self, old: Pod | None, new: Pod) -> None:
        known = self.pending.get(new.uid)
        self.pending[new.uid] = new
        if known is None:
            self._queue.add(new)
            if (key := self._cluster.group_of(new)) is not None:
                self._wake_group(key, new)
        elif not self._cluster.is_assumed(new):
            self._queue.update(known, new)
            if known.nominated_node_name and known.nominated_node_name != new.nominated_node_name:
                self._notify(known, new)

    def _wake_group(self, key: GroupKey, pod: Pod) -> None:
        """With a new member the group may be complete, or fit as it did not before."""
        groups = self._cluster.groups
        group = groups.find(key)
        if group is not None and groups.known_count(key) >= group.min_count:
            members = groups.members(key).values()
            self._queue.wake(each for each in members if each.uid != pod.uid and not each.node_name)

    def _on_gone(self, pod: Pod) -> None:
        if self.pending.pop(pod.uid, None) is None:
            return
        self._queue.delete(pod)
        if self._cluster.is_assumed(pod):
            waiting = self._waiting.find(pod.uid)
            if waiting is not None:
                waiting.reject("", "removed")
            elif (placed := self._cluster.pod(pod.uid)) is not None:
                self._cluster.forget_pod(placed)
                self.on_capacity_freed(placed)
        self._notify(pod, None)

    def _notify(self, old: object, new: object) -> None:
        if self._queue.listens:
            for change in object_changes(old, new):
                self._queue.on_change(change)


class KindWatches:
    """Watches the kinds that plugins ask for, one watch per kind, started and ended while the scheduler runs.

    The API server need not have such a kind. Until it does, its store says so (`is_served`) and is empty.
    `on_event` is told of every change, `on_served` that a kind is served now that was not before, and
    `on_fault` of objects that cannot be read.
    """

    def __init__(
        self,
        api: ApiClient,
        cluster: Cluster,
        *,
        on_event: OnEvent,
        on_served: Callable[[], None],
        missing: tuple[float, float] = MISSING_SECONDS,
        on_unreadable: OnUnreadable = lambda resource, count: None,
        on_fault: Callable[[Kind, UnreadableObject], None] = lambda kind, found: None,
    ) -> None:
        self._retry, self._on_unreadable, self._on_fault = missing, on_unreadable, on_fault
        self._api, self._cluster, self._on_event, self._on_served = api, cluster, on_event, on_served
        self._reflectors: dict[Kind, Reflector] = {}
        self._tasks: dict[Kind, asyncio.Task[None]] = {}
        self._group: CoreTasks | None = None
        self._ended: set[Kind] = set()
        """Decisions under way may still look at these; they are forgotten with the next change."""
        self._missing: dict[Kind, type[ApiError]] = {}
        """Why kinds are not served, as last reported."""

    def watch(self, kinds: Iterable[Kind]) -> None:
        """Watch these kinds from now on, and no others."""
        wanted = dict.fromkeys(kinds)
        for kind in self._ended - wanted.keys():
            self._cluster.forget_kind(kind)
        self._ended = self._reflectors.keys() - wanted.keys()
        for kind in self._ended:
            del self._reflectors[kind]
            self._missing.pop(kind, None)
            if kind in self._tasks and self._group is not None:
                self._group.end(self._tasks.pop(kind))
        for kind in wanted:
            if kind not in self._reflectors:
                self._add(kind)

    async def run(self) -> None:
        """Run until cancelled."""
        async with CoreTasks() as self._group:
            for kind in self._reflectors:
                self._start(kind, self._group)
            await asyncio.Event().wait()

    @property
    def reflectors(self) -> tuple[Reflector, ...]:
        return tuple(self._reflectors.values())

    @property
    def unreadable(self) -> Iterator[tuple[Kind, UnreadableObject]]:
        """As many objects that cannot be read as are reported."""
        for kind, reflector in self._reflectors.items():
            for found in islice(reflector.unreadable.values(), MAX_REPORTED):
                yield kind, found

    async def sync(self) -> None:
        """Wait until all objects are known, or that their kind is not served."""
        for reflector in tuple(self._reflectors.values()):
            await reflector.synced.wait()

    def _add(self, kind: Kind) -> None:
        store = self._cluster.watched(kind)
        for item in tuple(store):
            self._cluster.remove(item)
        store.is_served = False
        reflector = self._reflectors[kind] = Reflector(
            self._api,
            custom(kind),
            on_event=self._on_event,
            on_served=partial(self._on_kind_served, kind),
            missing=self._retry,
            on_unreadable=self._on_unreadable,
            on_fault=partial(self._on_fault, kind),
        )
        store.unreadable = reflector.unreadable
        if self._group is not None:
            self._start(kind, self._group)

    def _start(self, kind: Kind, group: CoreTasks) -> None:
        self._tasks[kind] = group.start(f"watch of {kind.definition.plural}", self._reflectors[kind].run())

    def _on_kind_served(self, kind: Kind, error: ApiError | None) -> None:
        store = self._cluster.watched(kind)
        store.is_served, was_served = error is None, store.is_served
        if error is not None:
            self._report_missing(kind, error)
        elif not was_served:
            if self._missing.pop(kind, None):
                log.log(0, "CRD is now served", kind=kind.definition.kind, objects=len(store))
            self._on_served()

    def _report_missing(self, kind: Kind, error: ApiError) -> None:
        """Log it once, and again only if it is missing for another reason."""
        if self._missing.get(kind) is type(error):
            return
        self._missing[kind] = type(error)
        where = kind.definition
        if isinstance(error, Forbidden):
            advice = (
                f"give this account the verbs get, list and watch of {where.plural} in the API group "
                f"{where.group!r}"
            )
        elif kind.missing_advice:
            advice = kind.missing_advice
        else:
            source = f"{kind.__module__}:{kind.__qualname__}"
            advice = f"install its CustomResourceDefinition: stowplan crd {source} | kubectl apply -f -"
        report = partial(log.log, 2) if kind.is_optional and not isinstance(error, Forbidden) else log.warn
        report(
            "Kind is not served; plugins that watch it see none until it is",
            kind=where.kind,
            resource=f"{where.plural}.{where.group}/{where.version}",
            err=error.message,
            advice=advice,
        )


def _label(kind: str, item: Any) -> str:
    """As kube-scheduler names events: `NodeAdd`, `AssignedPodDelete`; empty for kinds that wake no pods."""
    if isinstance(item, Pod):
        resource: Resource | None = Resource.ASSIGNED_POD if item.node_name else Resource.UNSCHEDULABLE_POD
    else:
        resource = COUNTED.get(type(item))
    return "" if resource is None else resource + ACTIONS[kind]
