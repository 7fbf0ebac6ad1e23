"""The kinds that controllers look at, and as much of each as they read; the rest is never decoded."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr

from stowplan.api.meta import Condition, Json, NodeSelector, Object, ObjectMeta, OwnerReference, Wire
from stowplan.api.pod import ClaimVolume, PodResourceClaim, ResourceClaimStatus, Toleration
from stowplan.api.quantity import encode_hook

T = TypeVar("T")

UNUSED_CONDITIONS = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady")
MAX_SHARED = 100_000
_shared: dict[Any, Any] = {}


def share(what: str, key: Hashable, value: T) -> T:
    """Return one shared object for equal values: pods of an owner have most of them in common."""
    if len(_shared) > MAX_SHARED:  # what was shared comes and goes: start over rather than keep it all
        _shared.clear()
    return _shared.setdefault((what, key), value)  # type: ignore[no-any-return]


class Owner(OwnerReference, frozen=True):
    block_owner_deletion: bool | None = None


class Meta(ObjectMeta, frozen=True):
    owner_references: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "labels", share("labels", tuple(self.labels.items()), self.labels))
        force_setattr(self, "owner_references", share("owners", self.owner_references, self.owner_references))


class Known(Object, frozen=True):
    """An object of any kind: its identity and its owners."""

    metadata: Meta = msgspec.field(default_factory=Meta)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def version(self) -> int:
        text = self.metadata.resource_version
        return int(text) if text.isdecimal() else 0

    @property
    def is_terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None


class Plain(Known, frozen=True):
    """An object with spec and status as plain data."""

    spec: Json = {}
    status: Json = {}

    @property
    def replicas(self) -> int:
        """The number of wanted replicas; 1 if the spec does not set it."""
        wanted: int = self.spec.get("replicas", 1)
        return wanted


class TimedToleration(Toleration, frozen=True):
    toleration_seconds: int | None = None


class EphemeralSource(Wire, frozen=True):
    volume_claim_template: Json = {}


class VolumeView(Wire, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: EphemeralSource | None = None


class NodeAffinityView(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class AffinityView(Wire, frozen=True):
    node_affinity: NodeAffinityView = NodeAffinityView()


class PortView(Wire, frozen=True):
    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class ContainerView(Wire, frozen=True):
    name: str = ""
    ports: tuple[PortView, ...] = ()
    restart_policy: str = ""


class GroupView(Wire, frozen=True):
    pod_group_name: str = ""


class PodSpecView(Wire, frozen=True):
    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] = ()
    affinity: AffinityView = AffinityView()
    tolerations: tuple[TimedToleration, ...] = ()
    volumes: tuple[VolumeView, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_group: GroupView | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "tolerations", share("tolerations", self.tolerations, self.tolerations))
        force_setattr(self, "containers", share("containers", self.containers, self.containers))
        if self.init_containers:
            force_setattr(
                self, "init_containers", share("containers", self.init_containers, self.init_containers)
            )

    @property
    def meant_for(self) -> str:
        """The node named by the required affinity of a DaemonSet's pod."""
        required = self.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        for term in required.node_selector_terms if required is not None else ():
            for field in term.match_fields:
                if field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1:
                    return field.values[0]
        return ""


class TerminatedView(Wire, frozen=True):
    exit_code: int = 0
    reason: str = ""


class ContainerStateView(Wire, frozen=True):
    terminated: TerminatedView | None = None


class ContainerStatusView(Wire, frozen=True):
    name: str = ""
    restart_count: int = 0
    state: ContainerStateView = ContainerStateView()


class PodStatusView(Wire, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatusView, ...] = ()
    init_container_statuses: tuple[ContainerStatusView, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    resource_claim_statuses: tuple[ResourceClaimStatus, ...] = ()

    def __post_init__(self) -> None:
        kept = tuple(each for each in self.conditions if each.type not in UNUSED_CONDITIONS)
        force_setattr(self, "conditions", kept)
        statuses = self.container_statuses
        force_setattr(self, "container_statuses", share("statuses", statuses, statuses))


class PodView(Known, frozen=True):
    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()

    @property
    def node(self) -> str:
        return self.spec.node_name

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_active(self) -> bool:
        return not self.is_finished and not self.is_terminating

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    @property
    def claim_names(self) -> list[str]:
        """The PersistentVolumeClaims that its volumes use."""
        found = [
            each.persistent_volume_claim.claim_name
            for each in self.spec.volumes
            if each.persistent_volume_claim
        ]
        return found + [f"{self.name}-{each.name}" for each in self.spec.volumes if each.ephemeral]


class LeaseSpec(Wire, frozen=True):
    renew_time: str | None = None


class Lease(Known, frozen=True):
    spec: LeaseSpec = LeaseSpec()


class StorageClassView(Known, frozen=True):
    provisioner: str = ""
    reclaim_policy: str = "Delete"
    volume_binding_mode: str = "Immediate"
    mount_options: tuple[str, ...] = ()
    allowed_topologies: tuple[Json, ...] = ()


class EndpointsView(Known, frozen=True):
    subsets: tuple[Json, ...] = ()


class Slice(Known, frozen=True):
    address_type: str = ""
    endpoints: tuple[Json, ...] | None = None
    ports: tuple[Json, ...] | None = None


class ConfigMap(Known, frozen=True):
    data: dict[str, str] = {}


class Revision(Known, frozen=True):
    data: Json = {}
    revision: int = 0


K = TypeVar("K", bound=Known)


class Kind(NamedTuple, Generic[K]):
    api_version: str
    name: str
    plural: str
    type: type[K]
    namespaced: bool = True

    @property
    def path(self) -> str:
        root = "/apis" if "/" in self.api_version else "/api"
        return f"{root}/{self.api_version}/{self.plural}"


PODS = Kind("v1", "Pod", "pods", PodView)
NODES = Kind("v1", "Node", "nodes", Plain, namespaced=False)
NAMESPACES = Kind("v1", "Namespace", "namespaces", Plain, namespaced=False)
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", Plain)
VOLUMES = Kind("v1", "PersistentVolume", "persistentvolumes", Plain, namespaced=False)
REPLICATION_CONTROLLERS = Kind("v1", "ReplicationController", "replicationcontrollers", Plain)
QUOTAS = Kind("v1", "ResourceQuota", "resourcequotas", Plain)
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments", Plain)
REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets", Plain)
STATEFUL_SETS = Kind("apps/v1", "StatefulSet", "statefulsets", Plain)
DAEMON_SETS = Kind("apps/v1", "DaemonSet", "daemonsets", Plain)
REVISIONS = Kind("apps/v1", "ControllerRevision", "controllerrevisions", Revision)
AUTOSCALERS = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Plain)
CRON_JOBS = Kind("batch/v1", "CronJob", "cronjobs", Plain)
SERVICES = Kind("v1", "Service", "services", Plain)
ENDPOINTS = Kind("v1", "Endpoints", "endpoints", EndpointsView)
SLICES = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", Slice)
POLICIES = Kind(
    "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    Plain,
    namespaced=False,
)
ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts", Known)
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", ConfigMap)
JOBS = Kind("batch/v1", "Job", "jobs", Plain)
BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", Plain)
CLASSES = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", StorageClassView, namespaced=False)
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases", Lease)
RESOURCE_CLAIMS = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", Plain)
CLAIM_TEMPLATES = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", Plain)

COSCHEDULING_GROUPS = Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", Plain)
ELASTIC_QUOTAS = Kind("scheduling.x-k8s.io/v1alpha1", "ElasticQuota", "elasticquotas", Plain)
VOLCANO_GROUPS = Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", Plain)
QUEUES = Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues", Plain, namespaced=False)
CUSTOM_TYPES: dict[str, type[Known]] = {
    kind.path: kind.type for kind in (COSCHEDULING_GROUPS, ELASTIC_QUOTAS, VOLCANO_GROUPS, QUEUES)
}
"""The types as which kinds that may be installed later are read, by all users of the stores."""


def reference_to(kind: Kind[Any], item: Known) -> Json:
    """An ObjectReference."""
    found = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "namespace": item.namespace,
        "name": item.name,
        "uid": item.uid,
        "resourceVersion": item.metadata.resource_version,
    }
    return {name: value for name, value in found.items() if value}


def plain(value: object) -> Any:
    """A struct, or a tuple of them, as the API spells it."""
    return msgspec.to_builtins(value, enc_hook=encode_hook)
