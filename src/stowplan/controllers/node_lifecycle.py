"""Nodes that fall silent: they become Unknown and get taints, and their pods become unready and are evicted.

A node is alive as long as its lease, or the heartbeat in its status, changes; what it says about the time of
it is not believed.
"""

from __future__ import annotations

from collections.abc import Callable

from stowplan.api.meta import Json, parse_time
from stowplan.api.node import Taint, tolerates
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import LEASES, NODES, PODS, Lease, Plain, PodView, TimedToleration
from stowplan.controllers.owned_pods import with_condition
from stowplan.controllers.stores import Stores

GRACE_SECONDS = 50.0
CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
OURS = frozenset((NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()))


def by_node(pod: PodView) -> tuple[str, ...]:
    return (pod.node,) if pod.node else ()


class NodeLifecycle(Controller):
    """`grace_seconds` is how long a node may be silent, or is asked for that every time."""

    component = "node-controller"

    def __init__(self, stores: Stores, grace_seconds: float | Callable[[], float] = GRACE_SECONDS) -> None:
        super().__init__(stores)
        self._nodes, self._pod_store, leases = self.store(NODES), self.store(PODS), self.store(LEASES)
        self._grace_seconds = grace_seconds
        self._pods = self._pod_store.index(by_node)
        self._heard: dict[str, float] = {}
        self._nodes.listen(self._on_node)
        leases.listen(self._on_lease)

    @property
    def _grace(self) -> float:
        given = self._grace_seconds
        return given() if callable(given) else given

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None and new.namespace == "kube-node-lease":
            self._hear(new.name)

    def _on_node(self, old: Plain | None, new: Plain | None) -> None:
        if new is None:
            self._heard.pop(old.name if old is not None else "", None)
            return
        if old is None or _heartbeat(old) != _heartbeat(new):
            self._hear(new.name)
        self.queue.add(new.key)

    def _hear(self, name: str) -> None:
        was_late = self.clock.now() - self._heard.get(name, 0.0) >= self._grace
        self._heard[name] = self.clock.now()
        if was_late:
            self.queue.add(name)

    async def reconcile(self, key: str) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        left = self._heard.get(key, self.clock.now()) + self._grace - self.clock.now()
        if left > 0:
            self.queue.add_after(key, left)
        else:
            node = await self._give_up(node)
        ready = _conditions(node).get("Ready", "True")
        await self._taint(node)
        if ready != "True":
            for pod in self._pods.of(key):
                await self._mark(pod)

    async def _give_up(self, node: Plain) -> Plain:
        conditions, at = node.status.get("conditions") or [], self.clock.stamp()
        known = {each["type"] for each in conditions}
        for kind in CONDITIONS:
            said = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
            if kind not in known:
                said = ("NodeStatusNeverUpdated", "Kubelet never posted node status.")
            if _conditions(node).get(kind) != "Unknown":
                conditions = with_condition(conditions, kind, "Unknown", *said, at)
        if conditions == node.status.get("conditions"):
            return node
        text = f"Node {node.name} status is now: NodeNotReady"
        self.record(NODES, node, "NodeNotReady", text)
        return await self._nodes.patch_status(node, {"conditions": conditions})

    async def _taint(self, node: Plain) -> None:
        """Taints for conditions and cordoning, together with the node's other taints."""
        wanted = list(taints_of(node))
        known = node.spec.get("taints") or []
        ours = [each for each in known if each["key"] in OURS]
        if sorted(map(_name, ours)) == sorted(wanted):
            return
        kept = [each for each in known if each["key"] not in OURS or _name(each) in wanted]
        added: list[Json] = []
        for key, effect in wanted:
            if (key, effect) not in map(_name, ours):
                stamped = {"timeAdded": self.clock.stamp()} if effect == "NoExecute" else {}
                added.append({"key": key, "effect": effect, **stamped})
        await self._nodes.patch(node, {"spec": {"taints": kept + added}})

    async def _mark(self, pod: PodView) -> None:
        if not pod.is_ready:
            return
        at = self.clock.stamp()
        ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": at}
        await self._pod_store.patch_condition(pod, ready)
        self.record(PODS, pod, "NodeNotReady", "Node is not ready", "Warning")


def taints_of(node: Plain) -> list[tuple[str, str]]:
    conditions = _conditions(node)
    found = []
    if conditions.get("Ready") == "False":
        found += [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
    elif conditions.get("Ready") == "Unknown":
        found += [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    found += [(taint, "NoSchedule") for kind, taint in PRESSURES.items() if conditions.get(kind) == "True"]
    if node.spec.get("unschedulable"):
        found.append((UNSCHEDULABLE, "NoSchedule"))
    return found


def _conditions(node: Plain) -> dict[str, str]:
    return {each["type"]: each["status"] for each in node.status.get("conditions") or ()}


def _heartbeat(node: Plain) -> list[Json]:
    return [each.get("lastHeartbeatTime") for each in node.status.get("conditions") or ()]


def _name(taint: Json) -> tuple[str, str]:
    return taint["key"], taint["effect"]


MESSAGE = "Taint manager: deleting due to NoExecute taint"


# Eviction: pods leave nodes with NoExecute taints, at once or after the time that they tolerate them


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
