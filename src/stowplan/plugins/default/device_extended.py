"""Extended resources that device classes stand behind: the claim made for a pod that asks for them by name.

A pod's containers ask for numbers of a resource; on nodes that do not have it otherwise these become requests
of one special claim, which is written only once the pod is bound.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from stowplan.api.meta import OwnerReference
from stowplan.api.pod import Container, Pod
from stowplan.api.quantity import NANO
from stowplan.api.requests import is_device_resource
from stowplan.api.resource import (
    EXTENDED_RESOURCE_CLAIM,
    ClaimMeta,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)

NOT_YET_NAMED = "<extended-resources>"
ClassFor = Callable[[str], DeviceClass | None]


class RequestMapping(NamedTuple):
    """Which request of the special claim serves a container."""

    container: str
    resource: str
    request: str

    def as_json(self) -> dict[str, str]:
        return {"containerName": self.container, "resourceName": self.resource, "requestName": self.request}


class _Need(NamedTuple):
    name: str
    size: int


def device_resources(pod: Pod) -> Iterator[str]:
    """The resources a pod asks for that may be backed by devices."""
    return (name for name, amount in pod.requests.items() if amount and is_device_resource(name))


def special_claim(pod: Pod, claims: Iterable[ResourceClaim]) -> ResourceClaim:
    """The claim for extended resources: one left by an earlier attempt, or a new one without requests."""
    for claim in claims:
        if claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true" and any(
            owner.controller and owner.name == pod.name and owner.uid == pod.uid
            for owner in claim.metadata.owner_references
        ):
            return claim
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.name, uid=pod.uid, controller=True)
    return ResourceClaim(
        metadata=ClaimMeta(
            name=NOT_YET_NAMED,
            namespace=pod.namespace,
            uid=str(uuid.uuid4()),
            generate_name=f"{pod.name}-extended-resources-",
            owner_references=(owner,),
            annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        )
    )


def with_requests(claim: ResourceClaim, requests: Iterable[DeviceRequest]) -> ResourceClaim:
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=tuple(requests)))
    return msgspec.structs.replace(claim, spec=spec)


def requests_for(
    pod: Pod, resources: Iterable[str], class_for: ClassFor
) -> tuple[list[DeviceRequest], list[RequestMapping]]:
    """The requests that serve a pod's containers with these resources, and which container uses which."""
    requests: dict[str, DeviceRequest] = {}
    mappings: list[RequestMapping] = []
    for resource in sorted(resources):
        device_class = class_for(resource)
        if device_class is None:
            continue
        needs, used = _needs_of(pod, resource)
        mappings += used
        for need in needs:
            exactly = ExactDeviceRequest(device_class_name=device_class.name, count=need.size)
            requests[need.name] = DeviceRequest(name=need.name, exactly=exactly)
    return [requests[name] for name in sorted(requests)], mappings


def _needs_of(pod: Pod, resource: str) -> tuple[list[_Need], list[RequestMapping]]:
    """Containers that keep running need devices of their own; the others run before, and share."""
    before = len(pod.spec.init_containers)
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    lasting: dict[int, _Need] = {}
    passing: list[int] = []
    for place, container in enumerate(containers):
        if place < before and not container.is_sidecar:
            passing.append(place)
        elif need := _need(place, container, resource):
            lasting[place] = need
    mappings = [
        RequestMapping(containers[place].name, resource, need.name) for place, need in lasting.items()
    ]
    extra: list[_Need] = []
    used: list[tuple[str, str]] = []
    for place in passing:
        if (need := _need(place, containers[place], resource)) is None:
            continue
        missing = need.size
        for later in (other for at, other in lasting.items() if at >= place):
            if missing <= 0:
                break
            missing -= later.size
            used.append((containers[place].name, later.name))
        if missing > 0:
            extra.append(_Need(need.name, missing))
            used.append((containers[place].name, need.name))
    largest = max(extra, key=lambda need: need.size, default=None)
    replaced = {need.name: largest.name for need in extra} if largest else {}
    mappings += [RequestMapping(name, resource, replaced.get(request, request)) for name, request in used]
    return [*lasting.values(), *([largest] if largest else [])], mappings


def _need(place: int, container: Container, resource: str) -> _Need | None:
    requests = container.resources.requests
    count, rest = divmod(requests.get(resource, 0), NANO)
    if rest or not count:
        return None
    return _Need(f"container-{place}-request-{sorted(requests).index(resource)}", count)
