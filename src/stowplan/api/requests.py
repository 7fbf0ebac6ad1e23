"""A pod's resource requests, computed from containers, init containers, sidecars, overhead and resizes.

Amounts are summed and compared exactly and rounded once, at the end, as kube-scheduler does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from stowplan.api.meta import FrozenDict
from stowplan.api.quantity import NANO, Quantity, milli_units, units
from stowplan.api.selectors import is_qualified_name

if TYPE_CHECKING:
    from stowplan.api.pod import Container, ContainerStatus, PodSpec, PodStatus, Shape

Nanos = dict[str, int]
DEFAULTS: Mapping[str, int] = {"cpu": 100_000_000, "memory": 200 * 2**20 * NANO}
"""What a container that names no request counts as when nodes are scored."""
NATIVE = ("cpu", "memory", "ephemeral-storage")
MAX_TAKEN = 2**53
"""The most that a pod counts for on its node, so that sums over a node's pods stay within 64 bits. No node is
that large; to those that are smaller it makes no difference by how much a pod exceeds them."""
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"


def of_spec(spec: PodSpec, *, pod_level: bool = True, fill: Collection[str] = ()) -> Nanos:
    """Nano-units by resource that `spec` asks for; a container that lacks one in `fill` gets its default."""
    return _total(spec, None, pod_level=pod_level, fill=fill)


def amounts(nanos: Mapping[str, int]) -> dict[str, int]:
    """Rounded amounts of what nodes keep account of: cpu in thousandths, the rest in units."""
    return {
        name: milli_units(amount) if name == "cpu" else units(amount)
        for name, amount in nanos.items()
        if name in NATIVE or is_scalar(name)
    }


def amount_of(resource: str, nanos: int) -> int:
    return milli_units(nanos) if resource == "cpu" else units(nanos)


class Assigned(msgspec.Struct, frozen=True, gc=False):
    """What a pod takes on the node it is on; the non-zero numbers are those that nodes are scored by."""

    requests: Mapping[str, int]
    nonzero_cpu: int
    nonzero_memory: int

    @classmethod
    def of(cls, spec: PodSpec, status: PodStatus | None = None) -> Assigned:
        total = _total(spec, status, pod_level=True)
        fill = [name for name in DEFAULTS if name not in total] if _pod_level(spec) else list(DEFAULTS)
        filled = _total(spec, status, pod_level=True, fill=fill) if fill else total
        taken = {name: min(amount, MAX_TAKEN) for name, amount in amounts(total).items()}
        nonzero_cpu, nonzero_memory = milli_units(filled.get("cpu", 0)), units(filled.get("memory", 0))
        return cls(FrozenDict(taken), min(nonzero_cpu, MAX_TAKEN), min(nonzero_memory, MAX_TAKEN))


def quality_of(shape: Shape) -> str:
    """The quality of service class: Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    found: str | None = shape.memo.get(quality_of)
    if found is None:
        found = shape.memo[quality_of] = _quality_of(shape.spec)
    return found


def _quality_of(spec: PodSpec) -> str:
    containers = (each.resources for each in (*spec.init_containers, *spec.containers))
    parts = tuple(containers) if spec.resources is None else (spec.resources,)
    requests: Nanos = {}
    limits: Nanos = {}
    is_limited = True
    for part in parts:
        limited = {name: part.limits[name] for name in DEFAULTS if part.limits.get(name, 0) > 0}
        # The API server fills in requests that are left out; pods from files may lack them.
        asked = {**limited, **{name: part.requests[name] for name in DEFAULTS if name in part.requests}}
        _add(requests, {name: amount for name, amount in asked.items() if amount > 0})
        _add(limits, limited)
        is_limited = is_limited and len(limited) == len(DEFAULTS)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if is_limited and requests == limits else "Burstable"


def status_counts(status: PodStatus) -> bool:
    """Whether the status has resources of its own, so that it must be asked beside the spec."""
    return status.resources is not None or any(
        container.resources is not None
        for container in (*status.container_statuses, *status.init_container_statuses)
    )


@lru_cache(maxsize=4096)
def is_extended(name: str) -> bool:
    return (
        "/" in name
        and "kubernetes.io/" not in name
        and not name.startswith("requests.")
        and is_qualified_name(f"requests.{name}")
    )


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """A resource counted beside cpu, memory and ephemeral storage; any other name counts nowhere."""
    return (
        name.startswith(("hugepages-", "attachable-volumes-"))
        or "kubernetes.io/" in name
        or is_extended(name)
    )


def is_device_resource(name: str) -> bool:
    """A resource name that a DeviceClass may provide."""
    return is_extended(name) or name.startswith(DEVICE_CLASS_PREFIX)


def _total(spec: PodSpec, status: PodStatus | None, *, pod_level: bool, fill: Collection[str] = ()) -> Nanos:
    statuses = {} if status is None else {each.name: each for each in _all_statuses(status)}
    infeasible = status is not None and any(
        condition.type == "PodResizePending" and condition.reason == "Infeasible"
        for condition in status.conditions
    )
    total: Nanos = {}
    for container in spec.containers:
        _add(total, _of_container(container, statuses.get(container.name), infeasible, fill))
    sidecars: Nanos = {}
    peak: Nanos = {}
    for container in spec.init_containers:
        if container.is_sidecar:
            own = _of_container(container, statuses.get(container.name), infeasible, fill)
            _add(total, own)
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            own = _of_container(container, None, infeasible, fill)
            _add(own, sidecars)
            _raise(peak, own)
    _raise(total, peak)
    if pod_level:
        total.update(_of_pod(spec, status, infeasible))
    _add(total, spec.overhead)
    return total


def _of_container(
    container: Container, status: ContainerStatus | None, infeasible: bool, fill: Collection[str]
) -> Nanos:
    found: Nanos = dict(container.resources.requests)
    if status is not None and status.resources is not None:
        if infeasible:
            found = {}
        _raise(found, status.resources.requests)
        _raise(found, status.allocated_resources)
    for name in fill:
        found.setdefault(name, DEFAULTS[name])
    return found


def _of_pod(spec: PodSpec, status: PodStatus | None, infeasible: bool) -> Nanos:
    """The requests of the pod as a whole, which replace the sum over its containers."""
    found: Nanos = dict(_pod_level(spec))
    if found and status is not None and status.resources is not None:
        for name, asked in found.items():
            given = (status.resources.requests.get(name, 0), status.allocated_resources.get(name, 0))
            found[name] = max(given) if infeasible else max(asked, *given)
    return found


def _pod_level(spec: PodSpec) -> dict[str, Quantity]:
    if spec.resources is None:
        return {}
    return {
        name: amount
        for name, amount in spec.resources.requests.items()
        if name in DEFAULTS or name.startswith("hugepages-")
    }


def _all_statuses(status: PodStatus) -> Iterator[ContainerStatus]:
    yield from status.init_container_statuses
    yield from status.container_statuses


def _add(total: Nanos, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Nanos, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if name not in total or amount > total[name]:
            total[name] = amount
