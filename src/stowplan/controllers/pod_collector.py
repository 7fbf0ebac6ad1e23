"""Pods that no kubelet will ever finish: of nodes that are gone, or deleted before they had one.

Also of pods that have ended, and that nobody has cleared away, no more than so many are kept.
"""

from __future__ import annotations

from stowplan.client.errors import NotFound
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import NODES, PODS, Plain, PodView
from stowplan.controllers.node_lifecycle import by_node
from stowplan.controllers.stores import Stores

QUARANTINE_SECONDS = 40.0
"""A node that comes back so soon keeps its pods."""
MOST_ENDED = 12_500


class PodCollector(Controller):
    def __init__(
        self, stores: Stores, quarantine_seconds: float = QUARANTINE_SECONDS, most_ended: int = MOST_ENDED
    ) -> None:
        super().__init__(stores)
        self._nodes, self._store = self.store(NODES), self.store(PODS)
        self._pods = self._store.index(by_node)
        self._quarantine = quarantine_seconds
        self._missed: dict[str, float] = {}
        self._most_ended = most_ended
        self._ended: dict[str, None] = {}
        """Keys of pods that have ended, the first first."""
        self._nodes.listen(self._on_node)
        self._store.listen(self._on_pod)

    def _on_node(self, old: Plain | None, new: Plain | None) -> None:
        if new is None and old is not None:
            for pod in self._pods.of(old.name):
                self.queue.add(pod.key)
        elif new is not None:
            self._missed.pop(new.name, None)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        if pod is not None and (new is None or not new.is_finished):
            self._ended.pop(pod.key, None)
        elif pod is not None:
            self._ended.setdefault(pod.key)
            if len(self._ended) > self._most_ended:
                self.queue.add(next(iter(self._ended)))
        is_lost = new is not None and new.node and self._nodes.get(new.node) is None
        if new is not None and (is_lost or (new.is_terminating and not new.node)):
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        pod = self._store.get(key)
        if pod is None:
            return
        if pod.is_finished and len(self._ended) > self._most_ended:
            await self._store.delete(pod, grace=0)
            return
        if not pod.node:
            if pod.is_terminating:
                await self._store.delete(pod, grace=0)
            return
        if self._nodes.get(pod.node) is not None:
            return
        since = self._missed.setdefault(pod.node, self.clock.now())
        left = since + self._quarantine - self.clock.now()
        if left > 0:
            self.queue.add_after(key, left)
        elif await self._is_gone(pod.node):
            await self._end(pod)

    async def _end(self, pod: PodView) -> None:
        if not pod.is_finished:
            pod = await self._store.patch_status(pod, {"phase": "Failed"})
        await self._store.delete(pod, grace=0)

    async def _is_gone(self, name: str) -> bool:
        try:
            await self._nodes.read("", name)
        except NotFound:
            return True
        return False
