"""Storage objects: volumes, claims on them, their classes, and what CSI drivers say of nodes and capacity."""

from __future__ import annotations

from stowplan.api.meta import EMPTY, LabelSelector, NodeSelector, Object, Wire
from stowplan.api.pod import (
    AwsElasticBlockStore,
    AzureDisk,
    AzureFile,
    GcePersistentDisk,
    IdVolume,
    VsphereVolume,
)
from stowplan.api.quantity import Quantity
from stowplan.api.selectors import NodeTerm, node_terms_of

CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
FILESYSTEM = "Filesystem"


class ClaimResources(Wire, frozen=True):
    requests: dict[str, Quantity] = EMPTY


class PersistentVolumeClaimSpec(Wire, frozen=True):
    access_modes: tuple[str, ...] = ()
    resources: ClaimResources = ClaimResources()
    selector: LabelSelector | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    volume_attributes_class_name: str | None = None


class Phase(Wire, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: Phase = Phase()

    @property
    def class_name(self) -> str:
        return self.metadata.annotations.get(CLASS_ANNOTATION, self.spec.storage_class_name or "")

    @property
    def is_fully_bound(self) -> bool:
        """A volume is named and the controller has confirmed it from both sides."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def requested(self) -> Quantity | None:
        return self.spec.resources.requests.get("storage")


class ObjectReference(Wire, frozen=True):
    kind: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class VolumeNodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = None


class CsiSource(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(Wire, frozen=True):
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = EMPTY
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    azure_disk: AzureDisk | None = None
    azure_file: AzureFile | None = None
    cinder: IdVolume | None = None
    portworx_volume: IdVolume | None = None
    vsphere_volume: VsphereVolume | None = None


class PersistentVolume(Object, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: Phase = Phase()

    @property
    def class_name(self) -> str:
        return self.metadata.annotations.get(CLASS_ANNOTATION, self.spec.storage_class_name)

    @property
    def capacity(self) -> int:
        """In nano-units, as quantities are."""
        return self.spec.capacity.get("storage", 0)

    @property
    def node_terms(self) -> tuple[NodeTerm, ...] | None:
        """Where the volume can be reached, by labels alone; None: everywhere."""
        affinity = self.spec.node_affinity
        if affinity is None or affinity.required is None:
            return None
        return node_terms_of(affinity.required)

    def belongs_to(self, claim: PersistentVolumeClaim) -> bool:
        """The volume names this claim, or one of its name if it knows no uid yet."""
        ref = self.spec.claim_ref
        return (
            ref is not None
            and (ref.namespace, ref.name) == (claim.namespace, claim.name)
            and ref.uid in ("", claim.metadata.uid)
        )


class TopologySelectorRequirement(Wire, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Wire, frozen=True):
    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(Object, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()

    @property
    def waits_for_consumer(self) -> bool:
        """Volumes of this class are bound only once a pod that needs them has a node."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


class VolumeNodeResources(Wire, frozen=True):
    count: int | None = None


class CSINodeDriver(Wire, frozen=True):
    name: str = ""
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Wire, frozen=True):
    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object, frozen=True):
    spec: CSINodeSpec = CSINodeSpec()

    @property
    def limits(self) -> dict[str, int]:
        """The maximum number of volumes per driver, for drivers that report it."""
        return {
            driver.name: driver.allocatable.count
            for driver in self.spec.drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    @property
    def migrated_plugins(self) -> frozenset[str]:
        """In-tree plugins whose volumes the kubelet of this node hands to CSI drivers."""
        return frozenset(self.metadata.annotations.get(MIGRATED_PLUGINS, "").split(","))


class CSIDriverSpec(Wire, frozen=True):
    storage_capacity: bool | None = None


class CSIDriver(Object, frozen=True):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, frozen=True):
    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None

    @property
    def limit(self) -> Quantity | None:
        """The maximum size of a volume here."""
        return self.capacity if self.maximum_volume_size is None else self.maximum_volume_size


class VolumeAttachmentSource(Wire, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Object, frozen=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
