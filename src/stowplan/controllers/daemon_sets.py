"""DaemonSets: a pod on every node that takes it. Where each goes is in its affinity; a scheduler binds it."""

from __future__ import annotations

from functools import partial

from stowplan.api.meta import Json, decode
from stowplan.api.node import NodeObject, is_tolerated
from stowplan.api.pod import Affinity, Toleration
from stowplan.api.selectors import node_terms_of, selector_of_map
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import DAEMON_SETS, NODES, PODS, REVISIONS, Plain, PodView
from stowplan.controllers.owned_pods import OwnedPods, available_in, differs, one_then_all, pod_from, share_of
from stowplan.controllers.revisions import HASH_LABEL, Revisions
from stowplan.controllers.stores import Store, Stores

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


class DaemonSets(Controller):
    component = "daemonset-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._sets, self._nodes = self.store(DAEMON_SETS), self.store(NODES)
        self._pods = OwnedPods(self, self._sets, self.store(PODS))
        self._revisions = Revisions(DAEMON_SETS, self.store(REVISIONS))
        self._nodes.listen(self._on_node)

    def _on_node(self, old: Plain | None, new: Plain | None) -> None:
        if old is None or new is None or old.labels != new.labels or old.spec != new.spec:
            for item in self._sets:
                self.queue.add(item.key)

    async def reconcile(self, key: str) -> None:
        owner = self._sets.get(key)
        if owner is None:
            return
        pods = await self._pods.claim(owner)
        if owner.is_terminating:
            return
        in_use = {f"{owner.name}-{pod.labels.get(HASH_LABEL, '')}" for pod in pods}
        templates = await self._revisions.sync(owner, in_use)
        revision = templates.update.removeprefix(f"{owner.name}-")
        wanted = Placement(owner.spec["template"]).nodes(self._nodes)
        by_node = _by_node(pods)
        surge = surge_of(owner, len(wanted))
        doomed = _find_misplaced(by_node, wanted, revision if surge else None)
        for pod in doomed:
            if pod.phase == "Failed":
                name = f"{pod.namespace}/{pod.name}"
                text = f"Found failed daemon pod {name} on node {pod.node}, will try to kill it"
                self.record(DAEMON_SETS, owner, "FailedDaemonPod", text, "Warning")
        await one_then_all([partial(self._pods.delete, owner, pod) for pod in doomed])
        missing = [name for name in sorted(wanted) if not by_node.get(name)]
        await one_then_all([partial(self._create, owner, name, revision) for name in missing])
        if not missing and not doomed:
            if surge:
                await self._surge(owner, by_node, wanted, revision, surge)
            else:
                await self._update(owner, by_node, wanted, revision)
        await self._pods.store.settled()
        await self._write_status(owner, _by_node(self._pods.of(owner)), wanted, revision)

    async def _create(self, owner: Plain, node: str, revision: str) -> None:
        pod = pod_from(owner.spec["template"], DAEMON_SETS, owner, generateName=f"{owner.name}-")
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), HASH_LABEL: revision}
        pod["spec"] = {
            **pod["spec"],
            "affinity": _only_on(pod["spec"].get("affinity") or {}, node),
            "tolerations": [*(pod["spec"].get("tolerations") or ()), *_tolerations(pod["spec"])],
        }
        await self._pods.create(owner, pod)

    async def _surge(
        self, owner: Plain, by_node: dict[str, list[PodView]], wanted: set[str], revision: str, limit: int
    ) -> None:
        """Create new pods beside old ones, and delete the old ones once the new ones are available."""
        ready: list[str] = []
        waiting: list[str] = []
        replaced: list[PodView] = []
        surging = 0
        for name in sorted(wanted):
            live = [pod for pod in by_node.get(name, ()) if pod.is_active]
            new = [pod for pod in live if pod.labels.get(HASH_LABEL) == revision]
            old = [pod for pod in live if pod not in new]
            if not old and new:
                continue
            is_up = any(self._wait_of(owner, pod) == 0 for pod in old)
            if not new:
                (waiting if is_up else ready).append(name)
            elif not is_up or any(self._wait_of(owner, pod) == 0 for pod in new):
                replaced += old
            else:
                surging += 1
        await one_then_all([partial(self._pods.delete, owner, pod) for pod in replaced])
        names = ready + waiting[: max(limit - surging, 0)]
        await one_then_all([partial(self._create, owner, name, revision) for name in names])

    async def _update(
        self, owner: Plain, by_node: dict[str, list[PodView]], wanted: set[str], revision: str
    ) -> None:
        """Deletes pods of older revisions, as many as may be missing at once."""
        strategy = owner.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        allowed = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        limit = max(share_of(allowed, len(wanted), round_up=True), 1)
        there = [pod for name in wanted for pod in by_node.get(name, ())]
        limit -= sum(
            self._wait_of(owner, pod) != 0 and pod.labels.get(HASH_LABEL) == revision for pod in there
        )
        old = [pod for pod in there if pod.labels.get(HASH_LABEL) != revision]
        limit -= sum(pod.is_terminating for pod in old)
        old = sorted((pod for pod in old if not pod.is_terminating), key=lambda pod: pod.is_ready)
        broken = [pod for pod in old if self._wait_of(owner, pod) is None]
        sound = [pod for pod in old if pod not in broken]
        for pod in (*broken, *sound[: max(limit - len(broken), 0)]):
            await self._pods.delete(owner, pod)

    def _wait_of(self, owner: Plain, pod: PodView) -> float | None:
        wait = available_in(pod, owner.spec.get("minReadySeconds", 0), self.clock.now())
        if wait:
            self.queue.add_after(owner.key, wait)
        return wait

    async def _write_status(
        self, owner: Plain, by_node: dict[str, list[PodView]], wanted: set[str], revision: str
    ) -> None:
        there = [_newest(pods, revision) for name, pods in by_node.items() if name in wanted]
        available = sum(self._wait_of(owner, pod) == 0 for pod in there)
        status = {
            "observedGeneration": owner.metadata.generation,
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(there),
            "numberMisscheduled": sum(name not in wanted and bool(name) for name in by_node),
            "numberReady": sum(pod.is_ready for pod in there),
            "updatedNumberScheduled": sum(pod.labels.get(HASH_LABEL) == revision for pod in there),
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
        }
        if differs(owner.status, status):
            await self._sets.patch_status(owner, status)


class Placement:
    """Which nodes a DaemonSet's pods belong on."""

    def __init__(self, template: Json) -> None:
        spec = template.get("spec") or {}
        self._selector = selector_of_map(spec.get("nodeSelector") or {})
        affinity = decode(Affinity, spec.get("affinity") or {}).node_affinity
        required = (
            affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
        )
        self._terms = None if required is None else node_terms_of(required)
        given = [*(spec.get("tolerations") or ()), *_tolerations(spec)]
        self._tolerations = [decode(Toleration, each) for each in given]
        self._name = spec.get("nodeName") or ""

    def nodes(self, nodes: Store[Plain]) -> set[str]:
        return {node.name for node in nodes if self.takes(node)}

    def takes(self, node: Plain) -> bool:
        if self._name not in ("", node.name) or not self._selector.matches(node.labels):
            return False
        if self._terms is not None and not any(term.matches(node.labels, node.name) for term in self._terms):
            return False
        taints = decode(NodeObject, {"spec": {"taints": node.spec.get("taints") or []}}).taints
        return all(is_tolerated(taint, self._tolerations) for taint in taints if taint.is_hard)


def _by_node(pods: list[PodView]) -> dict[str, list[PodView]]:
    """By the node that each is on, or meant for; the oldest first."""
    found: dict[str, list[PodView]] = {}
    for pod in sorted(pods, key=lambda pod: (not pod.node, pod.metadata.creation_timestamp or "", pod.name)):
        found.setdefault(pod.node or pod.spec.meant_for, []).append(pod)
    return found


def _find_misplaced(
    by_node: dict[str, list[PodView]], wanted: set[str], surging: str | None
) -> list[PodView]:
    """Pods where none should be, second ones, and those that have ended.

    While pods of a newer revision are created beside others, `surging`, one of each may stay.
    """
    found: list[PodView] = []
    for name, pods in by_node.items():
        ended = [pod for pod in pods if pod.is_finished]
        live = [pod for pod in pods if pod.is_active]
        new = [pod for pod in live if pod.labels.get(HASH_LABEL) == surging]
        if name not in wanted:
            found += ended + live
        elif surging is None:
            found += ended + live[1:]
        else:
            found += ended + new[1:] + [pod for pod in live if pod not in new][1:]
    return [pod for pod in found if not pod.is_terminating]


def _newest(pods: list[PodView], revision: str) -> PodView:
    """The pod of a node that counts: the one of the newest revision, if there is one."""
    return next((pod for pod in pods if pod.labels.get(HASH_LABEL) == revision), pods[0])


def surge_of(owner: Plain, nodes: int) -> int:
    """How many pods may be there besides those that they replace."""
    strategy = owner.spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return 0
    return share_of((strategy.get("rollingUpdate") or {}).get("maxSurge"), nodes, round_up=True)


def _only_on(affinity: Json, node: str) -> Json:
    """The affinity restricted to one node."""
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    of_nodes = affinity.get("nodeAffinity") or {}
    return {**affinity, "nodeAffinity": {**of_nodes, REQUIRED: {"nodeSelectorTerms": [field]}}}


def _tolerations(spec: Json) -> list[Json]:
    """The tolerations of every DaemonSet's pods."""
    names = [*TOLERATED]
    if spec.get("hostNetwork"):
        names.append(("node.kubernetes.io/network-unavailable", "NoSchedule"))
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in names]
