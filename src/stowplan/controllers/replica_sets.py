"""ReplicaSets and ReplicationControllers: as many pods as wanted."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import ClassVar

from stowplan.api.meta import Json, parse_time
from stowplan.client.errors import ApiError
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, Kind, Plain, PodView
from stowplan.controllers.owned_pods import (
    OwnedPods,
    available_in,
    differs,
    one_then_all,
    pod_from,
    with_condition,
)
from stowplan.controllers.stores import Stores

BURST = 500
"""Pods that are made or deleted in one go."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSets(Controller):
    component = "replicaset-controller"
    kind: ClassVar[Kind[Plain]] = REPLICA_SETS

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._sets = self.store(self.kind)
        self._pods = OwnedPods(self, self._sets, self.store(PODS))

    async def reconcile(self, key: str) -> None:
        owner = self._sets.get(key)
        if owner is None:
            return
        pods = await self._pods.claim(owner)
        failure: ApiError | None = None
        if not owner.is_terminating:
            try:
                await self._scale(owner, [pod for pod in pods if pod.is_active])
            except ApiError as error:
                failure = error
        await self._write_status(owner, pods, failure)
        if failure is not None:
            raise failure

    async def _scale(self, owner: Plain, active: list[PodView]) -> None:
        missing = owner.replicas - len(active)
        if missing > 0:
            pod = pod_from(owner.spec["template"], self.kind, owner, generateName=f"{owner.name}-")
            await one_then_all([partial(self._pods.create, owner, pod)] * min(missing, BURST))
        elif missing < 0:
            doomed = sorted(active, key=Rank(active))[: min(-missing, BURST)]
            await one_then_all([partial(self._pods.delete, owner, pod) for pod in doomed])

    async def _write_status(self, owner: Plain, pods: list[PodView], failure: ApiError | None) -> None:
        status, wait = status_of(owner, [pod for pod in pods if pod.is_active], self.clock.now())
        old = owner.status.get("conditions", [])
        if failure is not None:
            message = failure.message
            status["conditions"] = with_condition(
                old, "ReplicaFailure", "True", "FailedCreate", message, self.clock.stamp()
            )
        elif old:
            status["conditions"] = [each for each in old if each["type"] != "ReplicaFailure"]
        if differs(owner.status, status):
            await self._sets.patch_status(owner, status)
        if wait is not None:
            self.queue.add_after(owner.key, wait)


class ReplicationControllers(ReplicaSets):
    """The same, with a map of labels as their selector."""

    component = "replication-controller"
    kind = REPLICATION_CONTROLLERS


def status_of(owner: Plain, active: list[PodView], now: float) -> tuple[Json, float | None]:
    """With the seconds until another pod counts as available, if one is about to."""
    labels = (owner.spec["template"].get("metadata") or {}).get("labels") or {}
    waits = [available_in(pod, owner.spec.get("minReadySeconds", 0), now) for pod in active]
    counts = {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels.items() <= pod.labels.items() for pod in active),
        "readyReplicas": sum(pod.is_ready for pod in active),
        "availableReplicas": waits.count(0.0),
        "observedGeneration": owner.metadata.generation,
    }
    return counts, min((wait for wait in waits if wait), default=None)


class Rank:
    """The order in which pods are given up: those that do least first."""

    def __init__(self, active: list[PodView]) -> None:
        self._together: Counter[str] = Counter(pod.node for pod in active if pod.node)

    def __call__(self, pod: PodView) -> tuple[object, ...]:
        ready, created = pod.condition("Ready"), pod.metadata.creation_timestamp
        since = ready.last_transition_time if ready is not None else None
        return (
            bool(pod.node),
            PHASES.get(pod.phase, 0),
            pod.is_ready,
            _cost(pod),
            -self._together[pod.node],
            -parse_time(since) if pod.is_ready and since else 0.0,
            -sum(each.restart_count for each in pod.status.container_statuses),
            -parse_time(created) if created else 0.0,
        )


def _cost(pod: PodView) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0
