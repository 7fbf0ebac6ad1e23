"""A Deployment's status, as `kubectl rollout status` reads it."""

from __future__ import annotations

from stowplan.api.meta import parse_time
from stowplan.controllers.kinds import Json, Plain
from stowplan.controllers.owned_pods import with_condition


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
        return _stamped(with_condition(conditions, "Progressing", "Unknown", reason, message, at), old, at)
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
    return _stamped(found, {} if moved and reason == "ReplicaSetUpdated" else old, at)


def _stamped(conditions: list[Json], old: Json, at: str) -> list[Json]:
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
