"""What a change seen on the API server means: for the cluster as we know it, and for the pods that wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.framework.hints import happenings
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.waiting import WaitingPods


class EventHandlers:
    def __init__(
        self,
        cluster: Cluster,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        scheduler_names: Collection[str],
    ) -> None:
        self._cluster, self._queue, self._waiting = cluster, queue, waiting
        self._scheduler_names = scheduler_names
        self.pending: dict[str, Pod] = {}
        """Pods of ours without a node, as last seen, by uid."""

    def on_event(self, kind: str, old: Any, new: Any) -> None:
        """An object was added (`old` None), modified, or deleted (`new` None)."""
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
        if new.is_finished:
            self._cluster.remove_pod(new)
        elif self._cluster.pod(new.uid) is None or self._cluster.is_assumed(new):
            self._cluster.add_pod(new)
        else:
            self._cluster.update_pod(new)
        self._tell(old, new)

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
            else:
                self._cluster.forget_pod(pod)
        self._tell(pod, None)

    def _tell(self, old: Any, new: Any) -> None:
        for happening in happenings(old, new):
            self._queue.on_happening(happening)
