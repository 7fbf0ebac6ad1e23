"""Pods leave nodes with NoExecute taints: at once, or when the time is up that they tolerate them for."""

from __future__ import annotations

from stowplan.api.meta import parse_time
from stowplan.api.node import Taint, tolerates
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import NODES, PODS, Json, Plain, PodView, TimedToleration
from stowplan.controllers.node_lifecycle import by_node
from stowplan.controllers.stores import Stores

MESSAGE = "Taint manager: deleting due to NoExecute taint"


class TaintEviction(Controller):
    component = "taint-eviction-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._nodes, self._store = self.store(NODES), self.store(PODS)
        self._pods = self._store.index(by_node)
        self._seen: dict[str, float] = {}
        self._nodes.listen(self._on_node)
        self._store.listen(self._on_pod)

    def _on_node(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and evicting(new) != (evicting(old) if old is not None else []):
            for pod in self._pods.of(new.name):
                self.queue.add(pod.key)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        node = self._nodes.get(pod.node) if pod is not None and pod.node else None
        if pod is not None and node is not None and evicting(node):
            self.queue.add(pod.key)

    async def reconcile(self, key: str) -> None:
        pod = self._store.get(key)
        node = self._nodes.get(pod.node) if pod is not None else None
        if pod is None or node is None or not pod.is_active or not evicting(node):
            self._seen.pop(key, None)
            return
        seen = self._seen.setdefault(key, self.clock.now())
        end = leaves_at(pod.spec.tolerations, evicting(node), seen)
        if end is None:
            return
        if end > self.clock.now():
            self.queue.add_after(key, end - self.clock.now())
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": MESSAGE,
            "lastTransitionTime": self.clock.stamp(),
        }
        pod = await self._store.patch_condition(pod, condition)
        await self._store.delete(pod)
        text = f"Marking for deletion Pod {pod.namespace}/{pod.name}"
        self.record(PODS, pod, "TaintManagerEviction", text)


def evicting(node: Plain) -> list[Json]:
    return [each for each in node.spec.get("taints") or () if each["effect"] == "NoExecute"]


def leaves_at(tolerations: tuple[TimedToleration, ...], taints: list[Json], seen: float) -> float | None:
    """When a pod has to go, None if it may stay; `seen` is since when taints without a time are there."""
    ends = []
    for plain_taint in taints:
        taint = Taint(plain_taint["key"], plain_taint.get("value", ""), plain_taint["effect"])
        matching = [each for each in tolerations if tolerates(each, taint)]
        if not matching:
            return 0.0
        limits = [each.toleration_seconds for each in matching if each.toleration_seconds is not None]
        if limits:
            since = plain_taint.get("timeAdded")
            ends.append((parse_time(since) if since else seen) + max(min(limits), 0))
    return min(ends, default=None)
