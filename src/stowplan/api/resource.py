"""Dynamic resource allocation (resource.k8s.io/v1): claims, slices that offer devices, and device classes.

Claims are decoded in full, because the scheduler writes them back; the others only as far as they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from stowplan.api.meta import EMPTY, Condition, NodeSelector, Object, ObjectMeta, Wire, parse_time
from stowplan.api.node import TaintWire
from stowplan.api.pod import Toleration
from stowplan.api.quantity import Quantity
from stowplan.api.requests import DEVICE_CLASS_PREFIX

FINALIZER = "resource.kubernetes.io/delete-protection"
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
EXACT_COUNT, ALL_DEVICES = "ExactCount", "All"

Amount = str | int | float
"""A quantity as it was written: what we write back must be what we read."""
NOTHING = msgspec.Raw(b"null")


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class DeviceToleration(Toleration, frozen=True):
    toleration_seconds: int | None = None


class CapacityRequirements(Wire, frozen=True):
    requests: dict[str, Amount] = EMPTY


class DeviceRequestDetails(Wire, frozen=True):
    """What one request, or one alternative of a request, asks for."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = EXACT_COUNT
    count: int = 1
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(DeviceRequestDetails, frozen=True):
    admin_access: bool | None = None


class DeviceSubRequest(DeviceRequestDetails, frozen=True):
    name: str = ""


class DeviceRequest(Wire, frozen=True):
    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Wire, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(Wire, frozen=True):
    """Settings for a driver. Only the driver knows what is in them: they are passed on as text."""

    driver: str = ""
    parameters: msgspec.Raw = NOTHING


class DeviceConfiguration(Wire, frozen=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Wire, frozen=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceAllocation(Wire, frozen=True):
    """One device, given to one request."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Amount] = EMPTY


class AllocatedConfiguration(DeviceConfiguration, frozen=True):
    source: str = ""


class AllocatedDevices(Wire, frozen=True):
    results: tuple[DeviceAllocation, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()


class Allocation(Wire, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(Wire, frozen=True):
    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceStatus(Wire, frozen=True):
    """What a driver reports of an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[Condition, ...] = ()
    data: msgspec.Raw = NOTHING
    network_data: msgspec.Raw = NOTHING

    def is_of(self, allocated: DeviceAllocation) -> bool:
        return (self.driver, self.pool, self.device, self.share_id) == (
            allocated.driver, allocated.pool, allocated.device, allocated.share_id,
        )  # fmt: skip

    def is_true(self, condition: str) -> bool:
        return any(found.type == condition and found.status == "True" for found in self.conditions)


class ResourceClaimStatus(Wire, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ClaimMeta(ObjectMeta, frozen=True):
    finalizers: tuple[str, ...] = ()


class ResourceClaim(Object, frozen=True):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def allocation(self) -> Allocation | None:
        return self.status.allocation

    def has_lost_allocation(self, old: ResourceClaim | None) -> bool:
        """Whether the devices that it had before are free again."""
        return old is not None and old.allocation is not None and self.allocation is None

    def is_reserved_for(self, uid: str) -> bool:
        return any(consumer.uid == uid for consumer in self.status.reserved_for)


class ResourceClaimTemplate(Object, frozen=True):
    """Turned into claims by a controller; the scheduler only ever sees those."""


class DeviceAttribute(Wire, frozen=True):
    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None

    @property
    def typed_value(self) -> tuple[str, str | int | bool] | None:
        """The value with its type; None for an unknown type."""
        for kind in ("string", "number", "flag", "version"):
            if (value := getattr(self, kind)) is not None:
                return kind, value
        return None


class CapacityRange(Wire, frozen=True):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Wire, frozen=True):
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire, frozen=True):
    value: Quantity = Quantity(0)
    request_policy: CapacityRequestPolicy | None = None


class Counter(Wire, frozen=True):
    value: Quantity = Quantity(0)


class CounterConsumption(Wire, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] = EMPTY


class CounterSet(Wire, frozen=True):
    name: str = ""
    counters: dict[str, Counter] = EMPTY


class NodeScope(Wire, frozen=True):
    """Which nodes can reach a device: a named one, all, or those a selector matches."""

    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False

    @property
    def is_given(self) -> bool:
        return bool(self.node_name) or self.all_nodes or self.node_selector is not None


class Device(NodeScope, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = EMPTY
    capacity: dict[str, DeviceCapacity] = EMPTY
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[TaintWire, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


class ResourcePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(NodeScope, frozen=True):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceClassSpec(Wire, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceClassStore(Protocol):
    version: int

    def get(self, key: str) -> DeviceClass | None: ...
    def __iter__(self) -> Iterator[DeviceClass]: ...


class DeviceClassIndex:
    """The device classes by the extended resources they provide."""

    _known: WeakKeyDictionary[DeviceClassStore, tuple[int, DeviceClassIndex]] = WeakKeyDictionary()

    def __init__(self, classes: Iterable[DeviceClass]) -> None:
        self._classes = tuple(classes)

    @classmethod
    def of(cls, store: DeviceClassStore) -> DeviceClassIndex:
        """The index of a store, rebuilt only after the store changed."""
        version, index = cls._known.get(store, (None, None))
        if index is None or version != store.version:
            index = cls(store)
            cls._known[store] = store.version, index
        return index

    @cached_property
    def _by_resource(self) -> dict[str, DeviceClass]:
        found = {f"{DEVICE_CLASS_PREFIX}{each.name}": each for each in self._classes}
        # The newest comes last and so wins, among equally old ones the lower name.
        for each in sorted(sorted(self._classes, key=attrgetter("name"), reverse=True), key=_creation_time):
            if each.spec.extended_resource_name:
                found[each.spec.extended_resource_name] = each
        return found

    def class_for(self, resource: str) -> DeviceClass | None:
        """The class whose devices serve requests for an extended resource."""
        return self._by_resource.get(resource)

    def __bool__(self) -> bool:
        return bool(self._classes)


def _creation_time(device_class: DeviceClass) -> float:
    created = device_class.metadata.creation_timestamp
    return parse_time(created) if created else 0.0
