"""What claims ask for, what they hold, and how the outcome of a search is written into a claim."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stowplan.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, OwnerReference
from stowplan.api.node import is_tolerated
from stowplan.api.pod import Container, Pod
from stowplan.api.quantity import NANO, canonical, parse
from stowplan.api.requests import is_device_resource
from stowplan.api.resource import (
    EXTENDED_RESOURCE_CLAIM,
    AllocatedConfiguration,
    AllocatedDevices,
    Allocation,
    ClaimMeta,
    DeviceAllocation,
    DeviceClaim,
    DeviceClass,
    DeviceClassIndex,
    DeviceRequest,
    DeviceRequestDetails,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from stowplan.config.gates import EXTENDED_RESOURCE
from stowplan.framework import Handle, Node
from stowplan.plugins.devices.pools import AllocationError, DeviceId, OfferedDevice

MAX_LOG = 4096
"""The minimum number of changes of devices that are kept, for code that follows them."""


class Ask(NamedTuple):
    """A request, or one of the alternatives of a request, with the class it names."""

    base: str
    """The request's name."""
    name: str
    """That, or `request/alternative`."""
    details: DeviceRequestDetails
    device_class: DeviceClass
    selectors: tuple[tuple[str, DeviceSelector], ...]
    """The selectors of the class, then those of the request, each with its location for messages."""
    is_admin: bool = False

    def tolerates(self, device: OfferedDevice) -> bool:
        return all(is_tolerated(taint, self.details.tolerations) for taint in device.kind.hard_taints)


class Demand(NamedTuple):
    """A claim to allocate: the alternatives of each request, usually just one."""

    claim: ResourceClaim
    requests: tuple[tuple[Ask, ...], ...]


class Usage:
    """The devices that claims hold already, and a log of those for which that changed."""

    def __init__(self) -> None:
        self.taken: dict[DeviceId, int] = {}
        """By device, how many allocations name it."""
        self.shared: dict[DeviceId, dict[str, int]] = {}
        """How much is consumed of each capacity of the devices that several claims may hold."""
        self.version = 0
        """Grows with each change of a device."""
        self._shares: dict[DeviceId, dict[str, _Share]] = {}
        self._log: list[DeviceId] = []

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> Usage:
        usage = cls()
        for allocation in allocations:
            usage.add(allocation)
        return usage

    def add(self, allocation: Allocation) -> None:
        for result in allocation.devices.results:
            if result.admin_access:
                continue  # looking on takes nothing away from others
            device = DeviceId(result.driver, result.pool, result.device)
            if result.share_id is None:
                self.taken[device] = self.taken.get(device, 0) + 1
            else:
                self._add_share(device, result)
            self._note_change(device)

    def remove(self, allocation: Allocation) -> None:
        """Undo `add` of the same allocation."""
        for result in allocation.devices.results:
            if result.admin_access:
                continue
            device = DeviceId(result.driver, result.pool, result.device)
            if result.share_id is not None:
                self._remove_share(device, result.share_id)
            elif self.taken[device] > 1:
                self.taken[device] -= 1
            else:
                del self.taken[device]
            self._note_change(device)

    def includes(self, device: DeviceId) -> bool:
        return device in self.taken or device in self.shared

    def changed_since(self, version: int) -> Sequence[DeviceId] | None:
        """The devices that changed since, some perhaps several times; None if that is too long ago."""
        count = self.version - version
        if count > len(self._log):
            return None
        return self._log[len(self._log) - count :] if count else ()

    def _note_change(self, device: DeviceId) -> None:
        self.version += 1
        self._log.append(device)
        if len(self._log) > 2 * MAX_LOG:
            del self._log[:MAX_LOG]

    def _add_share(self, device: DeviceId, result: DeviceAllocation) -> None:
        shares = self._shares.setdefault(device, {})
        share = shares.get(result.share_id or "")
        if share is None:
            amounts = {name: parse(amount) for name, amount in result.consumed_capacity.items()}
            share = shares[result.share_id or ""] = _Share(amounts)
            consumed = self.shared.setdefault(device, {})
            for name, amount in amounts.items():
                consumed[name] = consumed.get(name, 0) + amount
        share.count += 1

    def _remove_share(self, device: DeviceId, share_id: str) -> None:
        shares = self._shares[device]
        share = shares[share_id]
        share.count -= 1
        if share.count:
            return
        del shares[share_id]
        if not shares:
            del self._shares[device], self.shared[device]
            return
        consumed = self.shared[device]
        for name, amount in share.amounts.items():
            consumed[name] -= amount


class _Share:
    """A share of a device. An allocation counts once, even if it is both in flight and seen."""

    __slots__ = ("amounts", "count")

    def __init__(self, amounts: Mapping[str, int]) -> None:
        self.amounts, self.count = amounts, 0


class Held(NamedTuple):
    """A device allocated to a request during the search."""

    ask: Ask
    device: OfferedDevice
    place: int
    """The index of the device among those on offer."""
    consumed: Mapping[str, int]
    is_shared: bool
    counted: bool
    """Whether the pool's counters were charged for it."""


ClassOf = Callable[[str, str], DeviceClass]
"""Finds a class by name, for the request of that name."""


def demand_of(claim: ResourceClaim, class_of: ClassOf) -> Demand:
    requests = claim.spec.devices.requests
    return Demand(claim, tuple(tuple(_asks(claim, request, class_of)) for request in requests))


def _asks(claim: ResourceClaim, request: DeviceRequest, class_of: ClassOf) -> Iterator[Ask]:
    base, exactly = request.name, request.exactly
    if exactly is not None:
        device_class = class_of(exactly.device_class_name, base)
        selectors = _selectors(claim, device_class, exactly)
        yield Ask(base, base, exactly, device_class, selectors, bool(exactly.admin_access))
        return
    for each in request.first_available:
        name = f"{base}/{each.name}"
        device_class = class_of(each.device_class_name, name)
        yield Ask(base, name, each, device_class, _selectors(claim, device_class, each))


def _selectors(
    claim: ResourceClaim, device_class: DeviceClass, details: DeviceRequestDetails
) -> tuple[tuple[str, DeviceSelector], ...]:
    places = (
        (f"class {device_class.name}", device_class.spec.selectors),
        (f"claim {claim.key}", details.selectors),
    )
    return tuple(
        (f"{place}: selector #{number}", selector)
        for place, selectors in places
        for number, selector in enumerate(selectors)
    )


def new_share_id() -> str:
    return str(uuid.uuid4())


def allocation_of(
    demand: Demand, held: Sequence[Held], node: Node, share_id: Callable[[], str] = new_share_id
) -> Allocation:
    return Allocation(
        devices=AllocatedDevices(
            results=tuple(_result(each, share_id) for each in held),
            config=tuple(_configuration(demand, held)),
        ),
        node_selector=_node_selector(held, node),
    )


def _result(held: Held, share_id: Callable[[], str]) -> DeviceAllocation:
    device = held.device
    return DeviceAllocation(
        request=held.ask.name,
        driver=device.id.driver,
        pool=device.id.pool,
        device=device.id.device,
        admin_access=True if held.ask.is_admin else None,
        tolerations=held.ask.details.tolerations,
        binding_conditions=device.spec.binding_conditions,
        binding_failure_conditions=device.spec.binding_failure_conditions,
        share_id=share_id() if held.is_shared else None,
        consumed_capacity={name: canonical(amount) for name, amount in held.consumed.items()},
    )


def _configuration(demand: Demand, held: Sequence[Held]) -> Iterable[AllocatedConfiguration]:
    """Settings of the classes in use, then those of the claim that concern what was chosen."""
    chosen = {each.ask.name: each.ask for each in held}
    by_class: dict[str, list[Ask]] = {}
    for ask in chosen.values():
        by_class.setdefault(ask.device_class.name, []).append(ask)
    for asks in by_class.values():
        for setting in asks[0].device_class.spec.config:
            names = tuple(ask.name for ask in asks)
            yield AllocatedConfiguration(source="FromClass", requests=names, opaque=setting.opaque)
    known = chosen.keys() | {ask.base for ask in chosen.values()}
    for setting in demand.claim.spec.devices.config:
        if not setting.requests or known.intersection(setting.requests):
            yield AllocatedConfiguration(source="FromClaim", requests=setting.requests, opaque=setting.opaque)


def _node_selector(held: Sequence[Held], node: Node) -> NodeSelector | None:
    """Which nodes can use what was allocated; None for all."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    for each in held:
        scope = each.device.scope
        if scope.node_name or each.device.spec.binds_to_node:
            here = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node.name,))
            return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(here,)),))
        if scope.node_selector is None:
            continue
        terms = scope.node_selector.node_selector_terms
        if len(terms) > 1:
            raise AllocationError(f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms")
        for term in terms:
            fields += [new for new in term.match_fields if new not in fields]
            expressions += [new for new in term.match_expressions if new not in expressions]
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(match_fields=tuple(fields), match_expressions=tuple(expressions))
    return NodeSelector(node_selector_terms=(term,))


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
    """The claim for extended resources: one left by an earlier attempt, or a new one without requests.

    `claims` are those for extended resources that have to do with the pod.
    """
    for claim in claims:
        if any(
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


def device_class_for(handle: Handle, resource: str) -> DeviceClass | None:
    """The DeviceClass whose devices serve requests for an extended resource.

    Nodes that do not count the resource themselves leave it to DynamicResources.
    """
    classes = handle.cluster.device_classes
    if not len(classes) or not is_device_resource(resource) or EXTENDED_RESOURCE in handle.disabled_gates:
        return None
    return DeviceClassIndex.of(classes).class_for(resource)


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
