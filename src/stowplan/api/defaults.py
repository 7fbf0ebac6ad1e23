"""What the API server fills in before a scheduler sees an object, for manifests that never went through one.

Functions from plain data to plain data. What a dump of a cluster has already comes out as it went in; what
has the wrong form is left for the decoder to complain about. Not added: the tolerations every pod gets for
unready nodes, and what LimitRange, RuntimeClass and webhooks would make of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from stowplan.api.storage import CLASS_ANNOTATION, StorageClass
from stowplan.api.workloads import PriorityClass
from stowplan.errors import InputError

Plain = dict[str, Any]

NAMESPACED = frozenset(
    (
        "Pod",
        "Service",
        "ReplicationController",
        "ReplicaSet",
        "StatefulSet",
        "Deployment",
        "DaemonSet",
        "Job",
        "PersistentVolumeClaim",
        "CSIStorageCapacity",
        "PodDisruptionBudget",
        "ResourceClaim",
        "ResourceClaimTemplate",
    )
)
SYSTEM_PRIORITY_CLASSES = {
    "system-cluster-critical": PriorityClass(value=2_000_000_000),
    "system-node-critical": PriorityClass(value=2_000_001_000),
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
CONTAINERS = ("containers", "initContainers")
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
DEFAULT_STORAGE_CLASS = "storageclass.kubernetes.io/is-default-class"


def with_namespace(data: Plain, namespace: str) -> Plain:
    """Puts an object that names no namespace into this one, if its kind has one."""
    meta = _part(data, "metadata")
    if data.get("kind") not in NAMESPACED or not meta or meta.get("namespace"):
        return data
    return data | {"metadata": meta | {"namespace": namespace}}


def with_defaults(
    data: Plain, priority_classes: Mapping[str, PriorityClass], storage_class: str | None
) -> Plain:
    match data.get("kind"):
        case "Pod":
            return pod_with_defaults(data, priority_classes)
        case "Node":
            return node_with_defaults(data)
        case "Namespace":
            return namespace_with_defaults(data)
        case "PersistentVolumeClaim":
            return claim_with_defaults(data, storage_class)
    return data


def pod_with_defaults(data: Plain, priority_classes: Mapping[str, PriorityClass]) -> Plain:
    """Raise InputError if the API server would reject the pod for its priority class."""
    spec = _part(data, "spec")
    if not spec:
        return data
    filled = spec | _priority(spec, priority_classes)
    for group in CONTAINERS:
        if group in spec and isinstance(spec[group], list):
            filled[group] = [
                _with_container_defaults(each, bool(spec.get("hostNetwork"))) for each in spec[group]
            ]
    if resources := _part(spec, "resources"):
        filled["resources"] = _with_requests(resources, except_for=_asked_by_containers(spec))
    if affinity := _part(spec, "affinity"):
        filled["affinity"] = with_label_keys(affinity, _part(_part(data, "metadata"), "labels"))
    return data | {"spec": filled}


def node_with_defaults(data: Plain) -> Plain:
    """A node that names no allocatable amounts gives away all its capacity."""
    status = _part(data, "status")
    if status.get("allocatable") is not None or status.get("capacity") is None:
        return data
    return data | {"status": status | {"allocatable": status["capacity"]}}


def namespace_with_defaults(data: Plain) -> Plain:
    meta = _part(data, "metadata")
    labels = meta.get("labels") or {}
    if not meta.get("name") or not isinstance(labels, dict):
        return data
    return data | {"metadata": meta | {"labels": labels | {NAMESPACE_NAME_LABEL: meta["name"]}}}


def claim_with_defaults(data: Plain, storage_class: str | None) -> Plain:
    """A claim that names no class, not even the empty one, gets the default class."""
    spec = _part(data, "spec")
    named = spec.get("storageClassName") is not None
    named = named or CLASS_ANNOTATION in _part(_part(data, "metadata"), "annotations")
    if named or storage_class is None:
        return data
    return data | {"spec": spec | {"storageClassName": storage_class}}


def default_storage_class(classes: Iterable[StorageClass]) -> str | None:
    """The newest class that is marked as the default, the first by name of several."""
    marked = [each for each in classes if each.metadata.annotations.get(DEFAULT_STORAGE_CLASS) == "true"]
    marked.sort(key=lambda each: each.name)
    marked.sort(key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    return marked[0].name if marked else None


def _priority(spec: Plain, classes: Mapping[str, PriorityClass]) -> Plain:
    name = spec.get("priorityClassName")
    if name and not isinstance(name, str):
        return {}
    found = classes.get(name) or SYSTEM_PRIORITY_CLASSES.get(name) if name else _default_class(classes)
    if found is None:
        if name and spec.get("priority") is None:
            raise InputError(
                f"PriorityClass {name!r} not found, and spec.priority is not set",
                field="spec.priorityClassName",
            )
        return {}
    given: Plain = {"priority": found.value, "preemptionPolicy": found.preemption_policy}
    return {field: value for field, value in given.items() if spec.get(field) is None}


def _default_class(classes: Mapping[str, PriorityClass]) -> PriorityClass | None:
    defaults = (each for each in classes.values() if each.global_default)
    return min(defaults, key=lambda each: each.value, default=None)


def _with_container_defaults(container: object, on_host: bool) -> object:
    """Default requests to limits, and host ports to container ports on the host's network."""
    if not isinstance(container, dict):
        return container
    filled = dict(container)
    if resources := _part(container, "resources"):
        filled["resources"] = _with_requests(resources)
    if on_host and isinstance(container.get("ports"), list):
        filled["ports"] = [_with_host_port(port) for port in container["ports"]]
    return filled


def _with_requests(resources: Plain, except_for: Container[str] = ()) -> Plain:
    requests = resources.get("requests") or {}
    if not isinstance(requests, dict):
        return resources
    limits = {name: limit for name, limit in _part(resources, "limits").items() if name not in except_for}
    return resources | {"requests": limits | requests}


def _asked_by_containers(spec: Plain) -> set[str]:
    """Resources for which a pod-level limit does not imply a request."""
    containers = (container for group in CONTAINERS for container in _items(spec, group))
    resources = [_part(container, "resources") for container in containers]
    return {name for each in resources for part in ("requests", "limits") for name in _part(each, part)}


def _with_host_port(port: object) -> object:
    if not isinstance(port, dict) or port.get("hostPort") or "containerPort" not in port:
        return port
    return port | {"hostPort": port["containerPort"]}


def with_label_keys(affinity: Plain, labels: Plain) -> Plain:
    """The pod's own values of matchLabelKeys and mismatchLabelKeys become part of the terms' selectors."""
    filled = dict(affinity)
    for side in ("podAffinity", "podAntiAffinity"):
        group = _part(affinity, side)
        if terms := _items(group, REQUIRED):
            group = group | {REQUIRED: [_with_selector(term, labels) for term in terms]}
        if entries := _items(group, PREFERRED):
            group = group | {PREFERRED: [_with_inner_selector(entry, labels) for entry in entries]}
        if group:
            filled[side] = group
    return filled


def _with_inner_selector(entry: Any, labels: Plain) -> Any:
    term = _part(entry, "podAffinityTerm")
    return entry | {"podAffinityTerm": _with_selector(term, labels)} if term else entry


def _with_selector(term: Any, labels: Plain) -> Any:
    selector = term.get("labelSelector") if isinstance(term, dict) else None
    if not isinstance(selector, dict):
        return term
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in _items(term, field)
        if isinstance(key, str) and key in labels
    ]
    if not added or not isinstance(selector.get("matchExpressions") or [], list):
        return term
    expressions = [*_items(selector, "matchExpressions"), *added]
    return term | {"labelSelector": selector | {"matchExpressions": expressions}}


def _part(holder: object, name: str) -> Plain:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, dict) else {}


def _items(holder: object, name: str) -> list[object]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, list) else []
