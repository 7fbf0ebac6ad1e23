"""Deployments: one ReplicaSet per version of the template, and rollouts from one to the next."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from stowplan.api.meta import Json, parse_time
from stowplan.client.errors import Conflict
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import DEPLOYMENTS, PODS, REPLICA_SETS, Plain
from stowplan.controllers.owned_pods import (
    differs,
    owner_of,
    selector_in,
    share_of,
    with_condition,
    without_owners,
)
from stowplan.controllers.stores import Stores, encode_sorted, owner_keys

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
NOT_INHERITED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED, MAX_REPLICAS)


class Versions(NamedTuple):
    """The ReplicaSets of a deployment: the one with its template now, if it exists, and the others by age."""

    new: Plain | None
    old: list[Plain]

    @property
    def all(self) -> list[Plain]:
        return [*self.old, *([self.new] if self.new is not None else [])]


class Deployments(Controller):
    component = "deployment-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._deployments, self._sets = self.store(DEPLOYMENTS), self.store(REPLICA_SETS)
        self._pods = self.store(PODS).index(owner_keys)
        self._owned = self._sets.index(owner_keys)
        self._deployments.listen_keys(self.queue.add)
        self._sets.listen(self._on_set)

    def _on_set(self, old: Plain | None, new: Plain | None) -> None:
        item = new or old
        owner = item.metadata.controller() if item is not None else None
        if item is not None and owner is not None and owner.kind == DEPLOYMENTS.name:
            self.queue.add(f"{item.namespace}/{owner.name}")

    async def reconcile(self, key: str) -> None:
        deployment = self._deployments.get(key)
        if deployment is None:
            return
        versions = versions_of(deployment, await self._claim(deployment))
        if not deployment.is_terminating:
            if deployment.spec.get("paused") or is_scaled(deployment, versions):
                await self._scale_all(deployment, versions)
            else:
                versions = await self._with_new(deployment, versions)
                deployment = await self._with_revision(deployment, versions.new)
                await self._roll(deployment, versions)
                await self._forget_oldest(deployment, versions)
        await self._sets.settled()
        fresh = versions_of(deployment, self._owned.of(deployment.uid))
        await self._write_status(deployment, fresh)

    async def _claim(self, deployment: Plain) -> list[Plain]:
        selector, found = selector_in(deployment.spec), []
        for item in self._owned.of(deployment.uid):
            if selector.matches(item.labels) or deployment.is_terminating:
                found.append(item)
            else:
                others = without_owners(item, {deployment.uid})
                await self._sets.patch(item, {"metadata": {"ownerReferences": others}})
        if not deployment.is_terminating:
            for item in self._owned.of(f"free/{deployment.namespace}"):
                if selector.matches(item.labels) and not item.is_terminating:
                    owner = {"metadata": {"ownerReferences": [owner_of(DEPLOYMENTS, deployment)]}}
                    found.append(await self._sets.patch(item, owner))
        return found

    async def _with_new(self, deployment: Plain, versions: Versions) -> Versions:
        """Return the versions, including one for the current template, which has the highest revision."""
        last = max((revision_of(each) for each in versions.old), default=0)
        new = versions.new
        if new is None:
            new = await self._create(deployment, versions, last + 1)
        elif revision_of(new) <= last:
            annotations = {"metadata": {"annotations": {REVISION: str(last + 1)}}}
            new = await self._sets.patch(new, annotations)
        return Versions(new, versions.old)

    async def _with_revision(self, deployment: Plain, new: Plain | None) -> Plain:
        revision = "" if new is None else new.metadata.annotations[REVISION]
        if deployment.metadata.annotations.get(REVISION) == revision:
            return deployment
        return await self._deployments.patch(deployment, {"metadata": {"annotations": {REVISION: revision}}})

    async def _create(self, deployment: Plain, versions: Versions, revision: int) -> Plain:
        template, collisions = deployment.spec["template"], deployment.status.get("collisionCount", 0)
        hashed = hash_of(template, collisions)
        meta = template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), HASH_LABEL: hashed}
        selector = deployment.spec["selector"]
        inherited = {
            name: value
            for name, value in deployment.metadata.annotations.items()
            if name not in NOT_INHERITED
        }
        body = {
            "metadata": {
                "name": f"{deployment.name}-{hashed}",
                "labels": labels,
                "annotations": {**inherited, REVISION: str(revision), **sizes_of(deployment)},
                "ownerReferences": [owner_of(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": min(self._room(deployment, versions.old), deployment.replicas),
                "minReadySeconds": deployment.spec.get("minReadySeconds", 0),
                "selector": {
                    **selector,
                    "matchLabels": {**selector.get("matchLabels", {}), HASH_LABEL: hashed},
                },
                "template": {**template, "metadata": {**meta, "labels": labels}},
            },
        }
        try:
            made = await self._sets.create(deployment.namespace, body)
            if made.replicas:
                text = f"Scaled up replica set {made.name} from 0 to {made.replicas}"
                self.record(DEPLOYMENTS, deployment, "ScalingReplicaSet", text)
            return made
        except Conflict:
            known = await self._sets.read(deployment.namespace, f"{deployment.name}-{hashed}")
            owner = known.metadata.controller()
            if owner is not None and owner.uid == deployment.uid and _same_template(deployment, known):
                return known
            await self._deployments.patch_status(deployment, {"collisionCount": collisions + 1})
            raise

    async def _roll(self, deployment: Plain, versions: Versions) -> None:
        assert versions.new is not None
        if (deployment.spec.get("strategy") or {}).get("type") == "Recreate":
            await self._recreate(deployment, versions.new, versions.old)
            return
        new, old = versions.new, [each for each in versions.old if each.replicas]
        await self._scale(deployment, new, self._new_size(deployment, new, old))
        _, unavailable = limits_of(deployment)
        spare = _sum_replicas(versions.all) - (deployment.replicas - unavailable)
        spare -= max(new.replicas - _available(new), 0)
        for item in old:  # those that are not there yet are no loss
            broken = min(max(item.replicas - _available(item), 0), max(spare, 0))
            healthy_spare = sum(map(_available, versions.all)) - (deployment.replicas - unavailable)
            healthy = min(item.replicas - broken, max(healthy_spare, 0), max(spare - broken, 0))
            taken = broken + healthy
            if taken:
                spare -= taken
                await self._scale(deployment, item, item.replicas - taken)
                break  # the others after this one shows

    def _new_size(self, deployment: Plain, new: Plain, old: list[Plain]) -> int:
        if not old or new.replicas > deployment.replicas:
            return deployment.replicas
        return min(new.replicas + max(self._room(deployment, [*old, new]), 0), deployment.replicas)

    def _room(self, deployment: Plain, sets: list[Plain]) -> int:
        """How many pods more there may be."""
        if (deployment.spec.get("strategy") or {}).get("type") == "Recreate":
            return 0 if _sum_replicas(sets) else deployment.replicas
        surge, _ = limits_of(deployment)
        return max(deployment.replicas + surge - _sum_replicas(sets), 0)

    async def _recreate(self, deployment: Plain, new: Plain, old: list[Plain]) -> None:
        for item in old:
            await self._scale(deployment, item, 0)
        left = [pod for item in old for pod in self._pods.of(item.uid) if not pod.is_finished]
        if not left:
            await self._scale(deployment, new, deployment.replicas)

    async def _scale_all(self, deployment: Plain, versions: Versions) -> None:
        """Share a new number of replicas among the versions that have pods, in proportion to their sizes."""
        active, new = [each for each in versions.all if each.replicas], versions.new
        if len(active) < 2:
            for item in active or versions.all[-1:]:
                await self._scale(deployment, item, deployment.replicas)
            return
        if new is not None and new.replicas == _available(new) == deployment.replicas:
            for item in versions.old:
                await self._scale(deployment, item, 0)
            return
        if (deployment.spec.get("strategy") or {}).get("type") == "Recreate":
            return
        largest = deployment.replicas + limits_of(deployment)[0] if deployment.replicas else 0
        change = left = largest - _sum_replicas(active)
        newest_first = active[::-1] if change > 0 else active
        order = sorted(newest_first, key=lambda each: -each.replicas)
        sizes = {}
        for item in order:
            before = int(item.metadata.annotations.get(MAX_REPLICAS, "0")) or deployment.status.get(
                "replicas", 0
            )
            share = round(item.replicas * largest / max(before, 1)) - item.replicas
            share = min(share, left) if change > 0 else max(share, left) if change < 0 else 0
            sizes[item.uid] = item.replicas + share
            left -= share
        sizes[order[0].uid] += left
        for item in order:
            await self._scale(deployment, item, max(sizes[item.uid], 0))

    async def _scale(self, deployment: Plain, item: Plain, replicas: int) -> None:
        counts = sizes_of(deployment)
        if item.replicas == replicas and counts.items() <= item.metadata.annotations.items():
            return
        await self._sets.patch(item, {"metadata": {"annotations": counts}, "spec": {"replicas": replicas}})
        if item.replicas != replicas:
            way = "up" if replicas > item.replicas else "down"
            text = f"Scaled {way} replica set {item.name} from {item.replicas} to {replicas}"
            self.record(DEPLOYMENTS, deployment, "ScalingReplicaSet", text)

    async def _forget_oldest(self, deployment: Plain, versions: Versions) -> None:
        kept = deployment.spec.get("revisionHistoryLimit", 10)
        idle = [
            each
            for each in sorted(versions.old, key=revision_of)
            if not each.replicas and not each.status.get("replicas") and not each.is_terminating
        ]
        for item in idle[: max(len(versions.old) - kept, 0)]:
            await self._sets.delete(item)

    async def _write_status(self, deployment: Plain, versions: Versions) -> None:
        status = status_of(
            deployment, versions.new, versions.all, limits_of(deployment)[1], self.clock.stamp()
        )
        if differs(deployment.status, status):
            await self._deployments.patch_status(deployment, status)
        deadline = deployment.spec.get("progressDeadlineSeconds")
        progress = next((each for each in status["conditions"] if each["type"] == "Progressing"), None)
        if deadline is not None and progress is not None and progress["reason"] == "ReplicaSetUpdated":
            since = parse_time(progress.get("lastUpdateTime") or self.clock.stamp())
            if (left := since + deadline - self.clock.now()) > -1:
                self.queue.add_after(deployment.key, max(left, 0) + 1)


def versions_of(deployment: Plain, sets: list[Plain]) -> Versions:
    sets = sorted(
        sets, key=lambda each: (each.metadata.creation_timestamp or "", revision_of(each), each.name)
    )
    new = next((each for each in sets if _same_template(deployment, each)), None)
    return Versions(new, [each for each in sets if each is not new])


def sizes_of(deployment: Plain) -> dict[str, str]:
    """What ReplicaSets remember of their deployment, so that a change of its size is noticed."""
    surge, _ = limits_of(deployment)
    return {DESIRED: str(deployment.replicas), MAX_REPLICAS: str(deployment.replicas + surge)}


def is_scaled(deployment: Plain, versions: Versions) -> bool:
    """Whether the wanted number of replicas has changed since the ReplicaSets were given theirs."""
    wanted = str(deployment.replicas)
    return any(
        each.replicas and each.metadata.annotations.get(DESIRED, wanted) != wanted for each in versions.all
    )


def limits_of(deployment: Plain) -> tuple[int, int]:
    """The maximum number of extra pods, and of unavailable pods, during a rollout."""
    if (deployment.spec.get("strategy") or {}).get("type") == "Recreate":
        return 0, deployment.replicas
    rolling = (deployment.spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = share_of(rolling.get("maxSurge", "25%"), deployment.replicas, round_up=True)
    unavailable = share_of(rolling.get("maxUnavailable", "25%"), deployment.replicas, round_up=False)
    return surge, min(unavailable, deployment.replicas) if surge or unavailable else 1


def revision_of(item: Plain) -> int:
    text = item.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def hash_of(template: Json, collisions: int = 0) -> str:
    """A name for a template, of letters and digits that spell no words."""
    digest = hashlib.sha256(encode_sorted([template, collisions])).digest()
    return "".join("bcdfghjklmnpqrstvwxz2456789"[byte % 27] for byte in digest[:10])


def _same_template(deployment: Plain, item: Plain) -> bool:
    return _bare(deployment.spec["template"]) == _bare(item.spec["template"])


def _bare(template: Json) -> Json:
    meta = template.get("metadata") or {}
    labels = {name: value for name, value in (meta.get("labels") or {}).items() if name != HASH_LABEL}
    rest = {name: value for name, value in meta.items() if name not in ("labels", "creationTimestamp")}
    return {**template, "metadata": {**rest, "labels": labels}}


def _sum_replicas(sets: list[Plain]) -> int:
    return sum(each.replicas for each in sets)


def _available(item: Plain) -> int:
    found: int = item.status.get("availableReplicas", 0)
    return min(found, item.replicas)


def status_of(deployment: Plain, new: Plain | None, sets: list[Plain], unavailable: int, at: str) -> Json:
    """`unavailable`: how many of the pods may be missing."""
    available = _sum(sets, "availableReplicas")
    total = _sum(sets, "replicas")
    counts: Json = {
        "observedGeneration": deployment.metadata.generation,
        "replicas": total,
        "updatedReplicas": _sum([new] if new is not None else [], "replicas"),
        "readyReplicas": _sum(sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(max(total, deployment.replicas) - available, 0),
    }
    conditions = [dict(each) for each in deployment.status.get("conditions", ())]
    if available >= deployment.replicas - unavailable:
        text = "Deployment has minimum availability."
        conditions = with_condition(conditions, "Available", "True", "MinimumReplicasAvailable", text, at)
    else:
        text = "Deployment does not have minimum availability."
        conditions = with_condition(conditions, "Available", "False", "MinimumReplicasUnavailable", text, at)
    conditions = _with_progress(deployment, new, counts, conditions, at)
    failure = next((each for item in sets for each in item.status.get("conditions", ())), None)
    conditions = [each for each in conditions if each["type"] != "ReplicaFailure"]
    if failure is not None:
        conditions.append({**failure, "lastUpdateTime": failure.get("lastTransitionTime", at)})
    return {**counts, "conditions": conditions}


def _with_progress(
    deployment: Plain, new: Plain | None, counts: Json, conditions: list[Json], at: str
) -> list[Json]:
    old = next((each for each in conditions if each["type"] == "Progressing"), {})
    if deployment.spec.get("paused"):
        reason, message = "DeploymentPaused", "Deployment is paused"
        return _stamp(with_condition(conditions, "Progressing", "Unknown", reason, message, at), old, at)
    if new is None:
        return conditions
    status, reason, message = "True", "ReplicaSetUpdated", f'ReplicaSet "{new.name}" is progressing.'
    moved = any(counts[field] != deployment.status.get(field, 0) for field in counts)
    if _is_complete(deployment, counts):
        reason, message = "NewReplicaSetAvailable", f'ReplicaSet "{new.name}" has successfully progressed.'
    elif not moved and _is_late(deployment, old, at):
        status, reason = "False", "ProgressDeadlineExceeded"
        message = f'ReplicaSet "{new.name}" has timed out progressing.'
    found = with_condition(conditions, "Progressing", status, reason, message, at)
    return _stamp(found, {} if moved and reason == "ReplicaSetUpdated" else old, at)


def _stamp(conditions: list[Json], old: Json, at: str) -> list[Json]:
    """When progress was last seen is a time of its own."""
    for each in conditions:
        if each["type"] == "Progressing" and any(
            each.get(name) != old.get(name) for name in ("status", "reason")
        ):
            each["lastUpdateTime"] = at
        each.setdefault("lastUpdateTime", at)
    return conditions


def _is_complete(deployment: Plain, counts: Json) -> bool:
    return bool(
        counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == deployment.replicas
    )


def _is_late(deployment: Plain, old: Json, at: str) -> bool:
    deadline = deployment.spec.get("progressDeadlineSeconds")
    if deadline is None or not old:
        return False
    if old.get("reason") == "ProgressDeadlineExceeded":
        return True
    since = old.get("lastUpdateTime")
    is_under_way = old.get("reason") == "ReplicaSetUpdated"
    return bool(is_under_way and since and parse_time(at) - parse_time(since) >= deadline)


def _sum(sets: list[Plain], field: str) -> int:
    return sum(each.status.get(field, 0) for each in sets)
