"""Paths below an object (status, scale, binding, eviction, finalize), and resources that are only created."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stowplan.api.meta import Json, LabelSelector
from stowplan.api.selectors import selector_of
from stowplan.apiserver import bodies, forms, patches, pipeline, tables, times
from stowplan.apiserver.bodies import BuiltIn
from stowplan.apiserver.cells import selector_text
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.failures import (
    Failure,
    bad_request,
    conflict,
    internal,
    invalid,
    invalid_object,
    modified,
    other_uid,
)
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.options import DeleteOptions
from stowplan.apiserver.pipeline import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from stowplan.apiserver.resources import Column, Resource
from stowplan.apiserver.reviews import REVIEWS, request_token
from stowplan.apiserver.store import Record
from stowplan.apiserver.strategies import Strategy
from stowplan.errors import SelectorError
from stowplan.http11.messages import Response

Handler = Callable[[RequestContext], Response]

CREATED = Response.of(
    201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
)


def _read(context: RequestContext, schema: str, group_version: str, kind: str) -> Json:
    """The body of a subresource that is an object of another kind."""
    validation = context.read_options().validation
    data, _ = bodies.read_object(context.request, BuiltIn(schema), group_version, kind, validation)
    return data


def _part(context: RequestContext) -> Response:
    """A part of the object that is written by itself, such as its status."""
    if context.verb == "get":
        return get(context)
    return pipeline.run(context)


def get(context: RequestContext) -> Response:
    form, resource = context.form, context.resource
    return forms.render_object(
        form, resource, context.objects.published(resource, context.namespace, context.name)
    )


def finalize(context: RequestContext) -> Response:
    """A namespace goes when the last of its finalizers is removed."""
    form, resource, objects = context.form, context.resource, context.objects
    pipeline.decode_object(context)
    sent, before, data = context.data, context.before, context.old
    assert before is not None
    version = (sent.get("metadata") or {}).get("resourceVersion")
    if version and version != str(before.version):
        raise modified(context.name, resource.plural, resource.group)
    data["spec"] = {key: value for key, value in (sent.get("spec") or {}).items() if value}
    meta = data["metadata"]
    if meta.get("deletionTimestamp") and not data["spec"] and not meta.get("finalizers"):
        return forms.render_object(form, resource, objects.remove(resource, before.key, data))
    record = objects.put(resource, before.key, data, before.managed, dry_run=context.dry_run)
    return forms.render_object(form, resource, record)


# Scale: the one number of a workload that autoscalers and `kubectl scale` know.

SCALE, SCALE_VERSION = "io.k8s.api.autoscaling.v1.Scale", "autoscaling/v1"
_SCALES = Resource(
    group="autoscaling",
    version="v1",
    plural="scales",
    singular="scale",
    kind="Scale",
    namespaced=True,
    columns=(Column("Name"), Column("Desired", "integer"), Column("Available", "integer"), Column("Age")),
    codec=BuiltIn(SCALE),
    strategy=Strategy(),
)


def scale(context: RequestContext) -> Response:
    form, resource = context.form, context.resource
    if context.verb == "get":
        record = context.objects.published(resource, context.namespace, context.name)
    else:
        _decode_scale(context)
        record = pipeline.write(context)
    found = _scale_of(resource, record, must_have=context.verb == "get")
    if form.what == forms.TABLE:
        table = tables.table_of(_SCALES, [found], form, found["metadata"])
        return forms.render(form, 200, msgspec.json.encode(table))
    return forms.render_data(form, 200, found)


def _decode_scale(context: RequestContext) -> None:
    resource, before = context.resource, context.load()
    path = resource.scale_paths.wanted
    if context.verb == "update":
        sent = _read(context, SCALE, SCALE_VERSION, "Scale")
    else:
        context.read_options()
        sent = _patched_scale(context, _scale_of(resource, before))
    meta, wanted = sent.get("metadata") or {}, (sent.get("spec") or {}).get("replicas", 0)
    if meta.get("name") and meta["name"] != context.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({context.name})"
        )
    if meta.get("resourceVersion") and meta["resourceVersion"] != str(before.version):
        raise modified(context.name, resource.plural, resource.group)
    if wanted < 0 and resource.is_custom:
        raise invalid_object(
            resource.kind,
            context.name,
            [invalid(path, wanted, "should be a non-negative integer")],
            resource.group,
        )
    if wanted < 0:
        error = invalid("spec.replicas", wanted, "must be greater than or equal to 0")
        raise invalid_object("Scale", context.name, [error], "autoscaling")
    context.data = holder = forms.served(resource, before)
    *way, last = path.strip(".").split(".")
    for part in way:
        holder = holder.setdefault(part, {})
    holder[last] = wanted


def _patched_scale(context: RequestContext, now: Json) -> Json:
    patch = bodies.decode_patch(context.request.body)
    if context.media == JSON_PATCH:
        new = patches.json_patch(now, patch)
    elif context.media in (MERGE_PATCH, STRATEGIC_PATCH):
        new = patches.merge_patch(now, patches.check_is_map(patch))
    else:
        raise Failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    found, _ = bodies.normalize(new, BuiltIn(SCALE), lambda problem: patches.unfit(patch, problem, new))
    return found


def _scale_of(resource: Resource, record: Record, must_have: bool = False) -> Json:
    data, paths = forms.served(resource, record), resource.scale_paths
    meta, wanted = data["metadata"], _value_at(data, paths.wanted)
    if wanted is None and must_have and resource.is_custom:
        said = f'the spec replicas field "{paths.wanted}" does not exist'
        details = {"causes": [{"message": said}]}
        raise Failure(500, "InternalError", f"Internal error occurred: {said}", details=details)
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = _value_at(data, paths.selector) if paths.selector else None
    status: Json = {"replicas": _value_at(data, paths.current) or 0}
    if text := _selector_text(selector):
        status["selector"] = text
    return {
        "kind": "Scale",
        "apiVersion": SCALE_VERSION,
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def _selector_text(selector: Any) -> str:
    if isinstance(selector, dict) and ("matchLabels" in selector or "matchExpressions" in selector):
        return selector_text(selector)
    if isinstance(selector, dict):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return selector or ""


def _value_at(data: object, path: str) -> Any:
    for part in filter(None, path.strip(".").split(".")):
        data = data.get(part) if isinstance(data, dict) else None
    return data


# Binding a pod to a node: what a scheduler does at the end.

TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def binding(context: RequestContext) -> Response:
    return _bind(context, _read(context, "io.k8s.api.core.v1.Binding", "v1", "Binding"))


def _bind(context: RequestContext, sent: Json) -> Response:
    objects, resource = context.objects, context.resource
    forms.check_not_table(context.form)
    meta = sent.get("metadata") or {}
    name, node = meta.get("name", ""), (sent.get("target") or {}).get("name", "")
    if context.name and name != context.name:
        raise bad_request("name in URL does not match name in Binding object")
    _check_bind_target(sent.get("target") or {})
    before = objects.get(resource, context.namespace, name)
    data = before.data()
    _check_can_bind(data, meta, name)
    data["spec"]["nodeName"] = node
    own = data["metadata"]
    if meta.get("annotations"):
        own["annotations"] = {**own.get("annotations", {}), **meta["annotations"]}
    found = objects.find("nodes", node)
    if found is not None:
        labels, known = own.get("labels") or {}, found.labels
        topology = {
            key: known[key] for key in TOPOLOGY_LABELS if key in known and labels.get(key) != known[key]
        }
        if topology:
            own["labels"] = {**labels, **topology}
    status = data.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    _set_scheduled(status.setdefault("conditions", []))
    objects.put(resource, before.key, data, before.managed, dry_run=context.dry_run)
    return CREATED


def _check_bind_target(target: Json) -> None:
    problems = []
    if target.get("kind") not in ("", None, "Node"):
        problems.append(
            f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        )
    if not target.get("name"):
        problems.append("target.name: Required value")
    if problems:
        raise internal(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")


def _check_can_bind(data: Json, meta: Json, name: str) -> None:
    own, spec, why = data["metadata"], data["spec"], ""
    if meta.get("uid") and meta["uid"] != own["uid"]:
        raise other_uid(name, "pods", "", f"pods/{own['namespace']}/{name}", meta["uid"], own["uid"])
    if own.get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    if why:
        raise conflict(name, "pods/binding", "", why)


def _set_scheduled(conditions: list[Json]) -> None:
    known = next((each for each in conditions if each["type"] == "PodScheduled"), None)
    if known is None:
        known = {"type": "PodScheduled"}
        conditions.append(known)
    if known.get("status") != "True":
        known["lastTransitionTime"] = times.now()
    for key in ("reason", "message"):
        known.pop(key, None)
    known["status"] = "True"
    known.setdefault("lastProbeTime", None)


# Eviction: a deletion that pod disruption budgets may reject.

BUDGETS = "poddisruptionbudgets.policy"
MAX_DISRUPTED = 2000
_BUDGET_MANAGER = Manager("kube-apiserver", "Update", "policy/v1", "status")


def eviction(context: RequestContext) -> Response:
    sent = _read(context, "io.k8s.api.policy.v1.Eviction", "policy/v1", "Eviction")
    objects, resource = context.objects, context.resource
    name = (sent.get("metadata") or {}).get("name") or context.name
    if name != context.name:
        raise bad_request("name in URL does not match name in Eviction object")
    record = objects.get(resource, context.namespace, name)
    given = sent.get("deleteOptions") or {}
    conditions = given.get("preconditions") or {}
    dry_run = bool(given.get("dryRun")) or context.dry_run
    options = DeleteOptions(
        dry_run,
        given.get("gracePeriodSeconds"),
        conditions.get("uid") or "",
        conditions.get("resourceVersion") or "",
        given.get("propagationPolicy") or "",
    )
    pod = record.data()
    if not _needs_no_budget(pod):
        budgets = list(_budgets(context, record))
        if len(budgets) > 1:
            raise internal(
                "This pod has more than one PodDisruptionBudget, "
                "which the eviction subresource does not support."
            )
        if budgets and not (_is_unready(pod) and _may_evict_unready(budgets[0].data())):
            _spend(context, budgets[0], dry_run)
        if not dry_run:
            _mark_disrupted(pod)
            objects.put(resource, record.key, pod, record.managed)
    objects.delete(resource, context.namespace, name, options)
    return CREATED


def _needs_no_budget(pod: Json) -> bool:
    done = pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending")
    return done or bool(pod["metadata"].get("deletionTimestamp"))


def _budgets(context: RequestContext, pod: Record) -> Iterable[Record]:
    for record in context.objects.all(BUDGETS):
        if record.key[0] != pod.key[0]:
            continue
        try:
            selector = record.data().get("spec", {}).get("selector")
            chosen = selector_of(msgspec.convert(selector, LabelSelector) if selector is not None else None)
        except SelectorError:
            continue
        if chosen.matches(pod.labels):
            yield record


def _is_unready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _may_evict_unready(budget: Json) -> bool:
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    healthy, wanted = (budget.get("status", {}).get(each, 0) for each in ("currentHealthy", "desiredHealthy"))
    return bool(healthy >= wanted > 0)


def _spend(context: RequestContext, record: Record, dry_run: bool) -> None:
    """Count one more disruption in the budget; a 429 if it allows none."""
    budget, name = record.data(), record.key[1]
    status, generation = budget.setdefault("status", {}), budget["metadata"].get("generation", 0)
    if status.get("observedGeneration", 0) < generation:
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0 or len(status.get("disruptedPods") or {}) > MAX_DISRUPTED:
        raise internal("pdb disruptions allowed is negative")
    if allowed == 0:
        wanted, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _too_many(
            f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently", 0
        )
    status["disruptionsAllowed"] = allowed - 1
    status.setdefault("disruptedPods", {})[context.name] = times.now()
    if allowed == 1:
        exhausted = {"type": "DisruptionAllowed", "status": "False", "observedGeneration": generation}
        exhausted |= {"lastTransitionTime": times.now(), "reason": "InsufficientPods", "message": ""}
        status["conditions"] = [exhausted]
    resource = context.objects.resources.kept_in(BUDGETS)
    spending = RequestContext(
        context.objects, resource, *record.key, "patch", manager=_BUDGET_MANAGER, dry_run=dry_run
    )
    spending.load()
    spending.data = budget
    pipeline.write(spending)


def _mark_disrupted(pod: Json) -> None:
    """Set the condition that tells controllers why the pod is deleted."""
    status = pod.setdefault("status", {})
    others = [each for each in status.get("conditions") or [] if each["type"] != "DisruptionTarget"]
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": times.now(),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    status["conditions"] = [*others, condition]


def _too_many(message: str, seconds: int) -> Failure:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    if seconds:
        details["retryAfterSeconds"] = seconds
    headers = (("Retry-After", str(seconds)),) if seconds else ()
    violates = "Cannot evict pod as it would violate the pod's disruption budget."
    return Failure(429, "TooManyRequests", violates, details=details, headers=headers)


SUBRESOURCES: dict[str, Handler] = {
    "status": _part,
    "resize": _part,
    "ephemeralcontainers": _part,
    "scale": scale,
    "binding": binding,
    "eviction": eviction,
    "finalize": finalize,
    "approval": _part,
    "token": request_token,
}


# Resources that are only ever created: questions that are answered at once, and bindings by themselves.


def _bare_binding(context: RequestContext) -> Response:
    pipeline.decode_object(context)
    context.resource = context.objects.resources.kept_in("pods")
    return _bind(context, context.data)


CREATED_ONLY: dict[str, Handler] = {**REVIEWS, "bindings": _bare_binding}
