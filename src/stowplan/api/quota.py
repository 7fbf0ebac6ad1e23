"""What objects use of ResourceQuotas, and which quotas count them.

Both sides share it: admission, which charges a new object, and the controller, which sums up all of them.
Objects are plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stowplan.api.meta import Json
from stowplan.api.quantity import NANO, Quantity, canonical, parse
from stowplan.api.requests import is_extended
from stowplan.api.storage import CLASS_ANNOTATION

Amounts = dict[str, Quantity]

PODS, SERVICES, CLAIMS = "pods", "services", "persistentvolumeclaims"
RESOURCE_CLAIMS = "resourceclaims.resource.k8s.io"
COUNTED_BY_NAME = ("configmaps", "resourcequotas", "replicationcontrollers", "secrets")
"""Kinds with an older name for their count, besides `count/…`."""
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_POD_NAMES = {
    "count/pods",
    "pods",
    *(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in _COMPUTE),
}
_MUST_SPECIFY = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_SERVICE_NAMES = {"count/services", "services", "services.nodeports", "services.loadbalancers"}
_CLAIM_NAMES = ("persistentvolumeclaims", "requests.storage")
_OF_CLASS = ".storageclass.storage.k8s.io/"
_OF_DEVICE_CLASS = ".deviceclass.resource.k8s.io/devices"
_MAX_DEVICES = 32
"""What a claim for all devices counts as: no claim can be given more."""
ONE = Quantity(NANO)


def add(left: Quantity, right: Quantity) -> Quantity:
    """The sum, written as the left one is, unless that is zero."""
    is_binary = (left if left else right).is_binary
    return Quantity.binary(left + right) if is_binary else Quantity(left + right)


def read(amounts: Mapping[str, str] | None) -> Amounts:
    return {name: parse(text) for name, text in (amounts or {}).items()}


def write(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: canonical(amounts[name]) for name in sorted(amounts)}


def _add_all(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = add(total[name], amount) if name in total else amount


def _raise_all(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def pod_amounts(spec: Json, part: str, *, overhead: bool = True) -> Amounts:
    """The `requests` or `limits` of a whole pod, from all its containers."""

    def of(container: Json) -> Amounts:
        return read((container.get("resources") or {}).get(part))

    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add_all(total, of(container))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = of(container)
        if container.get("restartPolicy") == "Always":
            _add_all(total, own)
            _add_all(sidecars, own)
            own = sidecars
        else:
            _add_all(own, sidecars)
        _raise_all(peak, own)
    _raise_all(total, peak)
    for name, amount in read((spec.get("resources") or {}).get(part)).items():
        if name in ("cpu", "memory") or (overhead and name.startswith("hugepages-")):
            total[name] = amount
    if overhead:
        added = read(spec.get("overhead"))
        _add_all(total, added if part == "requests" else {key: added[key] for key in added if total.get(key)})
    return total


def usage_of(resource: str, data: Json) -> Amounts:
    """What one object of a resource, such as `pods` or `deployments.apps`, counts for."""
    if resource == PODS:
        return _pod_usage(data)
    found: Amounts = {f"count/{resource}": ONE}
    if resource in COUNTED_BY_NAME:
        found[resource] = ONE
    elif resource == SERVICES:
        found |= _service_usage(data.get("spec") or {})
    elif resource == CLAIMS:
        found |= _claim_usage(data)
    elif resource == RESOURCE_CLAIMS:
        _add_all(found, _device_usage(data))
    return found


def _pod_usage(data: Json) -> Amounts:
    found: Amounts = {"count/pods": ONE}
    if (data.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return found
    spec = data.get("spec") or {}
    return found | _compute_usage(pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))


def _compute_usage(requests: Amounts, limits: Amounts) -> Amounts:
    found: Amounts = {"pods": ONE}
    for name in _COMPUTE:
        if name in requests:
            found[name] = found[f"requests.{name}"] = requests[name]
        if name in limits:
            found[f"limits.{name}"] = limits[name]
    for name, amount in requests.items():
        if name.startswith("hugepages-"):
            found[name] = found[f"requests.{name}"] = amount
        elif is_extended(name):
            found[f"requests.{name}"] = amount
    return found


def _service_usage(spec: Json) -> Amounts:
    ports = spec.get("ports") or ()
    kind, node_ports = spec.get("type"), 0
    if kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)):
        node_ports = len(ports)
    elif kind == "LoadBalancer":
        node_ports = sum(bool(port.get("nodePort")) for port in ports)
    return {
        "services": ONE,
        "services.nodeports": Quantity(node_ports * NANO),
        "services.loadbalancers": Quantity((kind == "LoadBalancer") * NANO),
    }


def _claim_usage(data: Json) -> Amounts:
    spec = data.get("spec") or {}
    found: Amounts = {"persistentvolumeclaims": ONE}
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is not None:
        found["requests.storage"] = parse(size)
        allocated = ((data.get("status") or {}).get("allocatedResources") or {}).get("storage")
        if allocated is not None:
            found["requests.storage"] = max(found["requests.storage"], parse(allocated))
    annotations = data["metadata"].get("annotations") or {}
    if name := annotations.get(CLASS_ANNOTATION) or spec.get("storageClassName"):
        found |= {f"{name}{_OF_CLASS}{key}": amount for key, amount in found.items()}
    return found


def _device_usage(data: Json) -> Amounts:
    found: Amounts = {}
    for request in ((data.get("spec") or {}).get("devices") or {}).get("requests") or ():
        worst: Amounts = {}
        exactly = [request["exactly"]] if request.get("exactly") else []
        for each in request.get("firstAvailable") or exactly:
            mode = each.get("allocationMode")
            count = {"ExactCount": each.get("count", 0), "All": _MAX_DEVICES}.get(mode, 0)
            _raise_all(worst, {f"{each.get('deviceClassName')}{_OF_DEVICE_CLASS}": Quantity(count * NANO)})
        _add_all(found, worst)
    return found


def counted_names(resource: str, names: Iterable[str]) -> list[str]:
    """The names in a quota under which objects of this resource are counted."""
    return [name for name in names if name == f"count/{resource}" or _is_counted(resource, name)]


def _is_counted(resource: str, name: str) -> bool:
    if resource == PODS:
        return (
            name in _POD_NAMES
            or name.startswith(("hugepages-", "requests.hugepages-"))
            or (name.startswith("requests.") and is_extended(name.removeprefix("requests.")))
        )
    if resource == SERVICES:
        return name in _SERVICE_NAMES
    if resource == CLAIMS:
        return name in _CLAIM_NAMES or name.endswith(tuple(_OF_CLASS + each for each in _CLAIM_NAMES))
    if resource == RESOURCE_CLAIMS:
        return name.endswith(_OF_DEVICE_CLASS)
    return resource in COUNTED_BY_NAME and name == resource


def resources_of(names: Iterable[str]) -> set[str]:
    """The resources whose objects count for names of a quota."""
    found = set()
    for name in names:
        if name.startswith("count/"):
            found.add(name.removeprefix("count/"))
            continue
        known = (PODS, SERVICES, CLAIMS, RESOURCE_CLAIMS, *COUNTED_BY_NAME)
        found |= {resource for resource in known if _is_counted(resource, name)}
    return found


def missing_names(names: Iterable[str], spec: Json) -> str:
    """What containers lack that a quota requires of them, as the API says it; empty if nothing."""
    if spec.get("resources"):
        return ""
    lacking: dict[str, set[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        given = container.get("resources") or {}
        usage = _compute_usage(read(given.get("requests")), read(given.get("limits")))
        for name in names:
            if name in _MUST_SPECIFY and name not in usage:
                lacking.setdefault(name, set()).add(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(lacking[name]))}" for name in sorted(lacking))


def scopes_of(spec: Json) -> Iterator[Json]:
    """All scopes of a quota, as terms of a selector."""
    for name in spec.get("scopes") or ():
        yield {"scopeName": name, "operator": "Exists"}
    yield from (spec.get("scopeSelector") or {}).get("matchExpressions") or ()


def matches_scopes(resource: str, quota_spec: Json, data: Json) -> bool:
    return all(_matches_scope(resource, scope, data) for scope in scopes_of(quota_spec))


def _matches_scope(resource: str, scope: Json, data: Json) -> bool:
    spec, name = data.get("spec") or {}, scope.get("scopeName")
    if resource == CLAIMS and name == "VolumeAttributesClass":
        status = data.get("status") or {}
        used = {spec.get("volumeAttributesClassName"), status.get("currentVolumeAttributesClassName")}
        used.add((status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName"))
        return any(_selects(scope, each or "") for each in (used - {None, ""} or {""}))
    if resource != PODS:
        return False
    match name:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            return _selects(scope, spec.get("priorityClassName") or "")
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(spec.get("affinity") or {})
    return False


def _selects(scope: Json, value: str) -> bool:
    match scope.get("operator"):
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
        case "In":
            return bool(value) and value in (scope.get("values") or ())
        case "NotIn":
            return value not in (scope.get("values") or ())
    return False


def _is_best_effort(spec: Json) -> bool:
    parts = [spec] if spec.get("resources") else [*spec["containers"], *(spec.get("initContainers") or ())]
    return not any(
        parse(amount) > 0
        for each in parts
        for part in ("requests", "limits")
        for name, amount in ((each.get("resources") or {}).get(part) or {}).items()
        if name in ("cpu", "memory")
    )


def _crosses_namespaces(affinity: Json) -> bool:
    for side in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(side) or {}
        required = terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        preferred = terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        for term in (*required, *(each.get("podAffinityTerm") or {} for each in preferred)):
            if term.get("namespaces") or term.get("namespaceSelector") is not None:
                return True
    return False
