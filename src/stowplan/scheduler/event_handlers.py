"""What a change seen on the API server means: for the cluster as we know it, and for the pods that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from stowplan.api.meta import Object
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.framework.events import Resource
from stowplan.framework.hints import RESOURCES, happenings
from stowplan.metrics import Metrics
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.stillness import Stillness
from stowplan.scheduler.waiting import WaitingPods

ACTIONS = {"added": "Add", "modified": "Update", "deleted": "Delete"}
COUNTED: Mapping[type[Object], Resource] = {**RESOURCES, NodeObject: Resource.NODE}


class EventHandlers:
    def __init__(
        self,
        cluster: Cluster,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        scheduler_names: Collection[str],
        metrics: Metrics,
        stillness: Stillness,
        on_unreadable: Callable[[Pod], None] = lambda pod: None,
    ) -> None:
        self._cluster, self._queue, self._waiting, self._metrics = cluster, queue, waiting, metrics
        self._stillness = stillness
        self._scheduler_names = scheduler_names
        self.pending: dict[str, Pod] = {}
        """Pods of ours without a node, as last seen, by uid."""
        self.unreadable: dict[str, Pod] = {}
        """Pods that cannot be read, or only in part, by uid: those with a node, and those of ours without."""
        self._on_unreadable = on_unreadable

    def on_event(self, kind: str, old: Any, new: Any) -> None:
        """An object was added (`old` None), modified, or deleted (`new` None)."""
        if self._stillness.is_kept:
            self._stillness.after(partial(self.on_event, kind, old, new))
            return
        began = perf_counter()
        self._take_in(old, new)
        label = _label(kind, old if new is None else new)
        if label:
            self._metrics.event_handled(label, perf_counter() - began)

    def _take_in(self, old: Any, new: Any) -> None:
        if isinstance(old if new is None else new, Pod):
            self._on_pod(old, new)
        else:
            if new is not None:
                self._cluster.apply(new)
            else:
                self._cluster.remove(old)
            self._tell(old, new)

    def on_room(self, pod: Pod) -> None:
        """A pod that we had placed is not going to its node after all: others may want the room."""
        for happening in happenings(pod, None):
            self._queue.on_happening(happening, only=lambda other: other.uid != pod.uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self.unreadable or (new is not None and new.fault):
            self._on_unreadable_pod(old, new)
        else:
            self._follow_pod(old, new)

    def _on_unreadable_pod(self, old: Pod | None, new: Pod | None) -> None:
        """One with a node counts as far as it can be read; one without is not tried until it can be."""
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
            self._tell_opened(old.node_name)

    def _tell_opened(self, node_name: str) -> None:
        row = self._cluster.nodes.row_of(node_name)
        if row is not None and not (node := self._cluster.nodes.objects[row]).is_closed:
            self._tell(node.closed(), node)

    def _follow_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.node_name:
            self._on_placed(old, new)
        elif old is not None and old.node_name:
            self._cluster.remove_pod(old)
            self._tell(old, None)
        elif new is None:
            assert old is not None
            self._on_gone(old)
        elif new.scheduler_name in self._scheduler_names:
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
        self._tell(old, new)
        if was_assumed and known is not None and known.node_name != new.node_name:
            self.on_room(known)  # someone else has bound it, elsewhere

    def _on_pending(self, old: Pod | None, new: Pod) -> None:
        known = self.pending.get(new.uid)
        self.pending[new.uid] = new
        if known is None:
            self._queue.add(new)
        elif not self._cluster.is_assumed(new):
            self._queue.update(known, new)
            if known.nominated_node_name and known.nominated_node_name != new.nominated_node_name:
                self._tell(known, new)

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
                self.on_room(placed)
        self._tell(pod, None)

    def _tell(self, old: Any, new: Any) -> None:
        for happening in happenings(old, new):
            self._queue.on_happening(happening)


def _label(kind: str, item: Any) -> str:
    """As kube-scheduler names events: `NodeAdd`, `AssignedPodDelete`; empty for kinds that wake nobody."""
    if isinstance(item, Pod):
        resource: Resource | None = Resource.ASSIGNED_POD if item.node_name else Resource.UNSCHEDULABLE_POD
    else:
        resource = COUNTED.get(type(item))
    return "" if resource is None else resource + ACTIONS[kind]
