"""/metrics/resources: what every pod asks for and is limited to, one series for each resource."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from stowplan.api import requests
from stowplan.api.pod import Container, Pod, PodSpec, ResourceRequirements
from stowplan.api.quantity import approximate
from stowplan.metrics import sample

LABELS = ("namespace", "node", "pod", "priority", "resource", "scheduler", "unit")
FAMILIES = {
    "kube_pod_resource_request": "[STABLE] Resources that a pod asks for.",
    "kube_pod_resource_limit": "[STABLE] Resources that a pod is limited to.",
}
PODS_AT_ONCE = 500
"""So many pods are written before others have their turn: a page of all pods must not hold up scheduling."""
_UNITS = {"cpu": "cores", "memory": "bytes", "storage": "bytes", "ephemeral-storage": "bytes"}

Amounts = tuple[tuple[str, str, float], ...]
"""Resource, unit and amount; none that is zero."""


async def render_resources(pods: Iterable[Pod]) -> bytes:
    """The page; pods that have ended on their node take no resources any more."""
    shown = [pod for pod in pods if not (pod.node_name and pod.is_finished)]
    parts: list[str] = []
    for family, (name, text) in enumerate(FAMILIES.items()):
        header = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        for start in range(0, len(shown), PODS_AT_ONCE):
            some = shown[start : start + PODS_AT_ONCE]
            lines = "".join(line for pod in some for line in _lines(name, pod, _amounts(pod)[family]))
            parts.append(header + lines if lines else "")
            header = "" if lines else header
            await asyncio.sleep(0)
    return "".join(parts).encode()


def _lines(name: str, pod: Pod, amounts: Amounts) -> Iterator[str]:
    priority = "" if pod.spec.priority is None else str(pod.spec.priority)
    for resource, unit, amount in amounts:
        values = (pod.namespace, pod.node_name, pod.name, priority, resource, pod.scheduler_name, unit)
        yield sample(name, LABELS, values, amount) + "\n"


def _amounts(pod: Pod) -> tuple[Amounts, Amounts]:
    """Requests and limits, worked out once for all pods of a shape."""
    found: tuple[Amounts, Amounts] | None = pod.shape.memo.get(_amounts)
    if found is None:
        found = pod.shape.memo[_amounts] = (_shown(requests.of_spec(pod.spec)), _shown(_limits(pod.spec)))
    return found


def _limits(spec: PodSpec) -> dict[str, int]:
    """The arithmetic of requests, over limits; overhead counts only beside a limit."""
    as_requests = msgspec.structs.replace(
        spec,
        containers=tuple(map(_limits_as_requests, spec.containers)),
        init_containers=tuple(map(_limits_as_requests, spec.init_containers)),
        resources=spec.resources and ResourceRequirements(requests=spec.resources.limits),
        overhead={},
    )
    limits = requests.of_spec(as_requests)
    return {name: limit + spec.overhead.get(name, 0) for name, limit in limits.items() if limit}


def _limits_as_requests(container: Container) -> Container:
    swapped = ResourceRequirements(requests=container.resources.limits)
    return msgspec.structs.replace(container, resources=swapped)


def _shown(nanos: Mapping[str, int]) -> Amounts:
    return tuple((name, _unit(name), approximate(amount)) for name, amount in sorted(nanos.items()) if amount)


def _unit(resource: str) -> str:
    if resource.startswith("hugepages-"):
        return "bytes"
    if resource.startswith("attachable-volumes-") or requests.is_extended(resource):
        return "integer"
    return _UNITS.get(resource, "")
