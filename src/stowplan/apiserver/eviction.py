"""Eviction: a deletion that pod disruption budgets may refuse."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.api.meta import LabelSelector
from stowplan.api.selectors import selector_of
from stowplan.apiserver import times
from stowplan.apiserver.failures import Failure, bad_request, internal
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.messages import Answer
from stowplan.apiserver.options import DeleteOptions
from stowplan.apiserver.store import Record
from stowplan.apiserver.verbs import Target, Verbs
from stowplan.errors import SelectorError

Json = dict[str, Any]

BUDGETS = "poddisruptionbudgets.policy"
MAX_DISRUPTED = 2000
_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_MANAGER = Manager("kube-apiserver", "Update", "policy/v1", "status")
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


def evict(verbs: Verbs, target: Target, sent: Json) -> Answer:
    objects = verbs.objects
    name = (sent.get("metadata") or {}).get("name") or target.name
    if name != target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    record = objects.get(target.resource, target.namespace, target.name)
    given = sent.get("deleteOptions") or {}
    conditions = given.get("preconditions") or {}
    dry_run = bool(given.get("dryRun")) or "All" in target.query.all("dryRun")
    options = DeleteOptions(
        dry_run,
        given.get("gracePeriodSeconds"),
        conditions.get("uid") or "",
        conditions.get("resourceVersion") or "",
        given.get("propagationPolicy") or "",
    )
    pod = record.data()
    budgets = [] if _is_free_to_go(pod) else _budgets(verbs, record)
    if len(budgets) > 1:
        raise internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    if budgets and not (_is_unready(pod) and _may_evict_unready(budgets[0].data())):
        _spend(verbs, budgets[0], target.name, dry_run)
    if not dry_run and not _is_free_to_go(pod):
        _mark(verbs, target, record, pod)
    objects.delete(target.resource, target.namespace, target.name, options)
    return Answer.of(201, _DONE)


def _is_free_to_go(pod: Json) -> bool:
    done = pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending")
    return done or bool(pod["metadata"].get("deletionTimestamp"))


def _budgets(verbs: Verbs, pod: Record) -> list[Record]:
    found = []
    for record in verbs.objects.all(BUDGETS):
        if record.key[0] != pod.key[0]:
            continue
        try:
            selector = record.data().get("spec", {}).get("selector")
            chosen = selector_of(msgspec.convert(selector, LabelSelector) if selector is not None else None)
        except SelectorError:
            continue
        if chosen.matches(pod.labels):
            found.append(record)
    return found


def _is_unready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _may_evict_unready(budget: Json) -> bool:
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    healthy, wanted = (budget.get("status", {}).get(each, 0) for each in ("currentHealthy", "desiredHealthy"))
    return bool(healthy >= wanted > 0)


def _spend(verbs: Verbs, record: Record, pod: str, dry_run: bool) -> None:
    """Note one more disruption in the budget, or refuse."""
    budget = record.data()
    status, name = budget.setdefault("status", {}), record.key[1]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0 or len(status.get("disruptedPods") or {}) > MAX_DISRUPTED:
        raise internal("pdb disruptions allowed is negative")
    if allowed == 0:
        wanted, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _too_many(
            f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently", 0
        )

    def spend(data: Json) -> Json:
        status = data["status"]
        status["disruptionsAllowed"] = allowed - 1
        status.setdefault("disruptedPods", {})[pod] = times.now()
        if allowed == 1:
            status["conditions"] = [_exhausted(data["metadata"].get("generation", 0))]
        return data

    resource = verbs.resource_of(BUDGETS)
    verbs.objects.update(resource, *record.key, spend, _MANAGER, dry_run=dry_run)


def _exhausted(generation: int) -> Json:
    return {
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": generation,
        "lastTransitionTime": times.now(),
        "reason": "InsufficientPods",
        "message": "",
    }


def _mark(verbs: Verbs, target: Target, record: Record, pod: Json) -> None:
    """Tell controllers why the pod goes."""
    conditions = [
        each
        for each in pod.setdefault("status", {}).get("conditions") or []
        if each["type"] != "DisruptionTarget"
    ]
    conditions.append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": times.now(),
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
    )
    pod["status"]["conditions"] = conditions
    verbs.objects.write(target.resource, record, pod)


def _too_many(said: str, seconds: int) -> Failure:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": said}]}
    if seconds:
        details["retryAfterSeconds"] = seconds
    headers = (("Retry-After", str(seconds)),) if seconds else ()
    return Failure(429, "TooManyRequests", _VIOLATES, details=details, headers=headers)
