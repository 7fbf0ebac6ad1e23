"""Pods. The wire form is decoded once and folded into a small `Pod` that shares what it can with others.

Pods of one owner differ in name, uid and node, hardly in spec: equal specs become one `Shape`, equal labels
one `LabelSet`, and whatever is worked out from a spec alone is worked out once and kept on its shape.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from stowplan.api import requests
from stowplan.api.meta import (
    EMPTY,
    Condition,
    FrozenDict,
    LabelSelector,
    Memo,
    NodeSelector,
    NodeSelectorTerm,
    Object,
    OwnerReference,
    ReadOnly,
    Wire,
    assign,
    decode,
    decode_partly,
    freeze,
    parse_time,
)
from stowplan.api.quantity import Quantity
from stowplan.api.requests import Assigned
from stowplan.errors import InputError

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KEPT_CONDITIONS = ("PodScheduled", "DisruptionTarget", "PodResizePending")
DEFAULT_SCHEDULER = "default-scheduler"


class ClaimUse(Wire, frozen=True):
    name: str = ""
    request: str = ""


class ResourceRequirements(Wire, frozen=True):
    requests: dict[str, Quantity] = EMPTY
    limits: dict[str, Quantity] = EMPTY
    claims: tuple[ClaimUse, ...] = ()


class ContainerPort(Wire, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class RestartRule(Wire, frozen=True):
    action: str = ""


class SeccompProfile(Wire, frozen=True):
    type: str = ""
    localhost_profile: str = ""


class SecurityContext(Wire, frozen=True):
    """The security context of a container or of the whole pod."""

    seccomp_profile: SeccompProfile | None = None


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""
    restart_policy_rules: tuple[RestartRule, ...] = ()
    security_context: SecurityContext | None = None

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container is a sidecar, which keeps running beside the others."""
        return self.restart_policy == "Always"


class ClaimVolume(Wire, frozen=True):
    claim_name: str = ""
    read_only: bool = False


class EphemeralVolume(Wire, frozen=True):
    pass


class GcePersistentDisk(Wire, frozen=True):
    pd_name: str = ""
    read_only: bool = False


class AwsElasticBlockStore(Wire, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")
    read_only: bool = False


class AzureDisk(Wire, frozen=True):
    disk_name: str = ""
    disk_uri: str = msgspec.field(default="", name="diskURI")


class AzureFile(Wire, frozen=True):
    share_name: str = ""


class IdVolume(Wire, frozen=True):
    """Cinder and Portworx volumes, identified by an ID."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class VsphereVolume(Wire, frozen=True):
    volume_path: str = ""


class Rbd(Wire, frozen=True):
    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False


class Iscsi(Wire, frozen=True):
    target_portal: str = ""
    iqn: str = ""
    lun: int = 0
    read_only: bool = False


class CsiVolume(Wire, frozen=True):
    driver: str = ""


class ImageVolume(Wire, frozen=True):
    reference: str = ""


class Volume(Wire, frozen=True):
    """A volume and its source, as far as it affects scheduling."""

    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: EphemeralVolume | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    azure_file: AzureFile | None = None
    cinder: IdVolume | None = None
    portworx_volume: IdVolume | None = None
    vsphere_volume: VsphereVolume | None = None
    rbd: Rbd | None = None
    iscsi: Iscsi | None = None
    csi: CsiVolume | None = None
    image: ImageVolume | None = None

    @property
    def matters(self) -> bool:
        return self != Volume(self.name)


class PreferredSchedulingTerm(Wire, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] | None = None


class PodAffinityTerm(Wire, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""


class WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """Affinity or anti-affinity: the two look the same."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: tuple[str, ...] = ()


class PodResourceClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class SchedulingGroup(Wire, frozen=True):
    pod_group_name: str = ""


class WorkloadReference(Wire, frozen=True):
    """How pods of Kubernetes 1.35 name their group."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodSpec(Wire, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    scheduler_name: str = DEFAULT_SCHEDULER
    overhead: dict[str, Quantity] = EMPTY
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    host_network: bool = False
    host_users: bool | None = None
    active_deadline_seconds: float | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    security_context: SecurityContext | None = None


class StatusResources(Wire, frozen=True):
    requests: dict[str, Quantity] = EMPTY


class ContainerStatus(Wire, frozen=True):
    name: str = ""
    resources: StatusResources | None = None
    allocated_resources: dict[str, Quantity] = EMPTY


class ResourceClaimStatus(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: StatusResources | None = None
    allocated_resources: dict[str, Quantity] = EMPTY
    resource_claim_statuses: tuple[ResourceClaimStatus, ...] = ()


class PodObject(Object, frozen=True):
    """A pod as the API has it; `Pod.of` folds it."""

    spec: PodSpec = PodSpec()
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class _PlacementSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER


class _Phase(Wire, frozen=True):
    phase: str = ""


class _Placement(Object, frozen=True):
    """Identifies a pod and its node."""

    spec: _PlacementSpec = _PlacementSpec()
    status: _Phase = _Phase()


class _Change(Object, frozen=True):
    """What can differ between two versions of a pod with the same generation."""

    spec: _PlacementSpec = _PlacementSpec()
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class HostPort(msgspec.Struct, frozen=True, gc=False):
    """A host port used by a pod; two conflict unless they name different addresses."""

    ip: str
    protocol: str
    port: int

    @property
    def is_on_every_address(self) -> bool:
        return self.ip == "0.0.0.0"  # parity: "::" is not a wildcard


class Shape(ReadOnly):
    """Everything that follows from a pod's spec; `memo` caches values derived from it by key."""

    __slots__ = (
        "__weakref__", "assigned", "memo", "nonzero_cpu", "nonzero_memory", "ports", "requests", "spec"
    )  # fmt: skip
    spec: PodSpec
    memo: Memo[Hashable, Any]
    ports: tuple[HostPort, ...]
    requests: Mapping[str, int]
    assigned: Assigned
    nonzero_cpu: int
    nonzero_memory: int

    def __init__(self, spec: PodSpec) -> None:
        assigned = requests.Assigned.of(spec)
        assign(
            self,
            spec=freeze(spec),
            memo=Memo(),
            ports=tuple(_host_ports(spec)),
            requests=FrozenDict(requests.amounts(requests.of_spec(spec))),
            assigned=assigned,
            nonzero_cpu=assigned.nonzero_cpu,
            nonzero_memory=assigned.nonzero_memory,
        )


class LabelSet(ReadOnly):
    """The namespace and labels of a pod, which is all that a selector can match."""

    __slots__ = ("__weakref__", "labels", "memo", "namespace")
    namespace: str
    labels: FrozenDict[str, str]
    memo: Memo[Hashable, Any]

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        put = object.__setattr__
        put(self, "namespace", namespace)
        put(self, "labels", FrozenDict(labels))
        put(self, "memo", Memo())


class Annotations(FrozenDict[str, str]):
    __slots__ = ("__weakref__",)


_shapes: WeakValueDictionary[bytes, Shape] = WeakValueDictionary()
_label_sets: WeakValueDictionary[tuple[object, ...], LabelSet] = WeakValueDictionary()
_annotations: WeakValueDictionary[tuple[object, ...], Annotations] = WeakValueDictionary()
_encode = msgspec.msgpack.Encoder(enc_hook=str).encode  # a Quantity may exceed 64 bits, so it is spelt out
_NONE = Annotations()


class Pod(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A pod as plugins see it, read-only."""

    name: str
    label_set: LabelSet
    """Namespace and labels, shared by all pods for which they are equal."""
    shape: Shape
    """What follows from the spec alone, shared by all pods whose specs are equal."""
    uid: str = ""
    node_name: str = ""
    """The node that the pod is bound to or was placed on; empty for a pending pod."""
    nominated_node_name: str = ""
    """The node that preemption is making room on for it; empty if there is none."""
    annotations: Mapping[str, str] = _NONE
    controller: OwnerReference | None = None
    """The object that controls the pod, such as its ReplicaSet."""
    phase: str = ""
    """Pending, Running, Succeeded, Failed or Unknown."""
    start_time: float | None = None
    """When its kubelet accepted it, in seconds since 1970; None before."""
    deletion_timestamp: str | None = None
    """When it is to be gone, as the API writes times; None unless it is being deleted."""
    creation_timestamp: str | None = None
    """When it was created, such as `2026-11-15T22:00:00Z`."""
    resource_version: str = ""
    generation: int = 0
    conditions: tuple[Condition, ...] = ()
    """The conditions of its status that the scheduler uses."""
    resource_claim_statuses: Mapping[str, str | None] = _NONE
    """The names of ResourceClaims generated for it, by their names in the spec."""
    assigned: requests.Assigned | None = None
    """The resources it holds on its node while they differ from its spec, as during a resize."""
    fault: str = ""
    """Why the pod cannot be read as a whole: then it has only what can be read of it."""
    is_illegible: bool = False
    """Whether the pod's usage on its node is unreadable."""
    group_name: str = ""
    """The pod group that its spec names; empty for a pod without one."""

    @property
    def claim_names(self) -> Iterator[str | None]:
        """The name of each ResourceClaim in its spec; None for one that is not generated, or not yet."""
        for use in self.spec.resource_claims:
            is_made = use.resource_claim_template_name is not None
            yield self.resource_claim_statuses.get(use.name) if is_made else use.resource_claim_name

    @classmethod
    def decode(cls, data: bytes | str | dict[str, Any]) -> Pod:
        return cls.of(decode(PodObject, data))

    @classmethod
    def salvage(cls, data: bytes, fault: str) -> Pod:
        """As much as can be read of a pod that `decode` rejects, for the reason given."""
        try:
            pod = cls.of(decode_partly(PodObject, data))
        except Exception:
            placement = decode_partly(_Placement, data)
            spec = PodSpec(node_name=placement.spec.node_name, scheduler_name=placement.spec.scheduler_name)
            status = PodStatus(phase=placement.status.phase)
            pod = cls.of(PodObject(metadata=placement.metadata, spec=spec, status=status))
        return msgspec.structs.replace(pod, fault=fault, is_illegible=not pod.spec.containers)

    @classmethod
    def decode_change(cls, data: bytes, known: Mapping[str, object]) -> Pod:
        """The same as `decode`, for a pod that may be in `known`, by key, as it was before.

        Of a spec that is still the same only the node is read: setting it does not make a new generation.
        """
        wire = decode(_Change, data)
        meta, status = wire.metadata, wire.status
        old = known.get(f"{meta.namespace or 'default'}/{meta.name}")
        if (
            not isinstance(old, Pod)
            or not 0 < meta.generation == old.generation
            or meta.uid != old.uid
            or old.fault
            or requests.status_counts(status)
        ):
            return cls.decode(data)
        has_same_labels = old.label_set.labels == meta.labels
        return msgspec.structs.replace(
            old,
            label_set=old.label_set if has_same_labels else label_set_of(old.namespace, meta.labels),
            node_name=sys.intern(wire.spec.node_name),
            nominated_node_name=status.nominated_node_name,
            annotations=_share_annotations(meta.annotations) if meta.annotations else _NONE,
            controller=_share_owner(meta.controller()) if meta.owner_references else None,
            phase=sys.intern(status.phase),
            start_time=_start_of(status),
            deletion_timestamp=meta.deletion_timestamp,
            creation_timestamp=meta.creation_timestamp,
            resource_version=meta.resource_version,
            conditions=tuple(_relevant_conditions(status.conditions)) if status.conditions else (),
            resource_claim_statuses=_claim_names(status),
            assigned=None,
        )

    @classmethod
    def of(cls, wire: PodObject) -> Pod:
        meta, spec, status = wire.metadata, wire.spec, wire.status
        return cls(
            name=meta.name,
            label_set=label_set_of(meta.namespace or "default", meta.labels),
            shape=shape_of(spec),
            uid=meta.uid or f"{meta.namespace or 'default'}/{meta.name}",
            node_name=sys.intern(spec.node_name),
            nominated_node_name=status.nominated_node_name,
            annotations=_share_annotations(meta.annotations) if meta.annotations else _NONE,
            controller=_share_owner(meta.controller()) if meta.owner_references else None,
            phase=sys.intern(status.phase),
            start_time=_start_of(status),
            deletion_timestamp=meta.deletion_timestamp,
            creation_timestamp=meta.creation_timestamp,
            resource_version=meta.resource_version,
            generation=meta.generation,
            conditions=tuple(_relevant_conditions(status.conditions)) if status.conditions else (),
            resource_claim_statuses=_claim_names(status),
            assigned=requests.Assigned.of(spec, status) if requests.status_counts(status) else None,
            group_name=_group_name(spec),
        )

    @property
    def spec(self) -> PodSpec:
        """The spec without its nodeName, which is `node_name`, and without its group (`group_name`)."""
        return self.shape.spec

    @property
    def namespace(self) -> str:
        return self.label_set.namespace

    @property
    def labels(self) -> Mapping[str, str]:
        return self.label_set.labels

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.label_set.namespace}/{self.name}"

    @property
    def requests(self) -> Mapping[str, int]:
        """The resources that its containers request together, by name, as whole numbers.

        `requests["cpu"]` counts thousandths of a CPU: 500 for `500m`, 2000 for `2`. `requests["memory"]` and
        `requests["ephemeral-storage"]` count bytes, all others units, such as devices. A resource that is not
        requested is missing: use `pod.requests.get("cpu", 0)`.
        """
        return self.shape.requests

    @property
    def priority(self) -> int:
        """The value of its PriorityClass; 0 without one. Higher is more important."""
        return self.shape.spec.priority or 0

    @property
    def scheduler_name(self) -> str:
        return self.shape.spec.scheduler_name

    @property
    def is_terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.deletion_timestamp is not None

    @property
    def is_preempted(self) -> bool:
        """Whether a scheduler has evicted it for another pod, and it is still there."""
        disrupted = self.condition("DisruptionTarget") if self.is_terminating else None
        return (
            disrupted is not None
            and disrupted.status == "True"
            and disrupted.reason == "PreemptionByScheduler"
        )

    @property
    def is_finished(self) -> bool:
        """Whether it has ended: its phase is Succeeded or Failed."""
        return self.phase in ("Succeeded", "Failed")

    def on(self, node_name: str) -> Pod:
        """The same pod, placed on a node."""
        return msgspec.structs.replace(self, node_name=node_name)

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.conditions if condition.type == kind), None)


def shape_of(spec: PodSpec) -> Shape:
    """Return the shared Shape for equal specs."""
    volumes = spec.volumes and tuple(volume for volume in spec.volumes if volume.matters)
    if spec.node_name or spec.scheduling_group or spec.workload_ref or len(volumes) != len(spec.volumes):
        # Groups are left out, too, so that pods of many groups can have one shape.
        spec = msgspec.structs.replace(
            spec, node_name="", volumes=volumes, scheduling_group=None, workload_ref=None
        )
    key = _encode(spec)
    shape = _shapes.get(key)
    if shape is None:
        shape = _shapes[key] = Shape(spec)
    return shape


def _group_name(spec: PodSpec) -> str:
    if (group := spec.scheduling_group) is not None:
        return sys.intern(group.pod_group_name)
    if (workload := spec.workload_ref) is not None:
        parts = (workload.name, workload.pod_group, workload.pod_group_replica_key)
        return sys.intern("/".join(parts))  # a slash is in no name
    return ""


def label_set_of(namespace: str, labels: dict[str, str]) -> LabelSet:
    """Return the shared LabelSet for pods of a namespace with equal labels."""
    key = (namespace, *sorted(labels.items()))
    found = _label_sets.get(key)
    if found is None:
        found = _label_sets[key] = LabelSet(sys.intern(namespace), labels)
    return found


def _share_annotations(annotations: dict[str, str]) -> Mapping[str, str]:
    key = tuple(sorted(item for item in annotations.items() if item[0] != LAST_APPLIED))
    found = _annotations.get(key)
    if found is None:
        found = _annotations[key] = Annotations(key)
    return found


_owners: dict[OwnerReference, OwnerReference] = {}


def _share_owner(owner: OwnerReference | None) -> OwnerReference | None:
    if owner is None:
        return None
    if len(_owners) > 100_000:  # owners come and go: start over rather than keep all that ever were
        _owners.clear()
    return _owners.setdefault(owner, owner)


def _relevant_conditions(conditions: tuple[Condition, ...]) -> Iterator[Condition]:
    """Conditions that a scheduler reads. PodScheduled=True is not needed: the pod's node says it."""
    for condition in conditions:
        if condition.type in KEPT_CONDITIONS and not (
            condition.type == "PodScheduled" and condition.status == "True"
        ):
            yield condition


def _start_of(status: PodStatus) -> float | None:
    if not status.start_time:
        return None
    try:
        return parse_time(status.start_time)
    except InputError as error:
        raise InputError(error.message, field="status.startTime") from None


def _claim_names(status: PodStatus) -> Mapping[str, str | None]:
    if not status.resource_claim_statuses:
        return _NONE
    return FrozenDict((entry.name, entry.resource_claim_name) for entry in status.resource_claim_statuses)


def _host_ports(spec: PodSpec) -> Iterator[HostPort]:
    """Ports of sidecars, then of containers; plain init containers are gone before they matter."""
    sidecars = (container for container in spec.init_containers if container.is_sidecar)
    for container in (*sidecars, *spec.containers):
        for port in container.ports:
            if port.host_port > 0:
                yield HostPort(port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
