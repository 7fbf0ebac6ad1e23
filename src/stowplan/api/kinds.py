"""The kinds a scheduler reads, by the names they have on the wire."""

from __future__ import annotations

from typing import Any

from stowplan.api.groups import KINDS_OF_FAMILY
from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, PodObject
from stowplan.api.queues import ElasticQuota, HyperNode, Queue
from stowplan.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from stowplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from stowplan.api.workloads import (
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)
from stowplan.errors import InputError

KINDS: dict[str, type[Object]] = {
    "Node": NodeObject,
    "Namespace": Namespace,
    "Service": Service,
    "ReplicationController": ReplicationController,
    "ReplicaSet": ReplicaSet,
    "StatefulSet": StatefulSet,
    "PersistentVolume": PersistentVolume,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "StorageClass": StorageClass,
    "CSINode": CSINode,
    "CSIDriver": CSIDriver,
    "CSIStorageCapacity": CSIStorageCapacity,
    "VolumeAttachment": VolumeAttachment,
    "PodDisruptionBudget": PodDisruptionBudget,
    "PriorityClass": PriorityClass,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "ResourceSlice": ResourceSlice,
    "DeviceClass": DeviceClass,
}


GROUP_KINDS: dict[tuple[str, str], type[Object]] = {
    (kind.definition.api_version, kind.definition.kind): kind
    for kinds in (*KINDS_OF_FAMILY.values(), (ElasticQuota, Queue, HyperNode))
    for kind in kinds
}
"""Kinds of pod groups, their queues and quotas; several have the same name."""


def object_of(data: object) -> Pod | Object | None:
    """The object that plain data describes; None for a kind that does not concern scheduling."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise InputError("is not a Kubernetes object: it needs at least apiVersion, kind and metadata")
    kind, what = data["kind"], describe(data)
    struct: type[Object] | None = PodObject if kind == "Pod" else KINDS.get(kind)
    if struct is None:
        struct = GROUP_KINDS.get((str(data.get("apiVersion")), kind))
    if struct is None:
        return None
    try:
        found = decode(struct, data)
        if not found.name and not found.metadata.generate_name:
            raise InputError("is required", field="metadata.name")
        return Pod.of(found) if isinstance(found, PodObject) else found
    except InputError as error:
        raise InputError(error.message, what=what, field=error.field) from None


def describe(data: Any) -> str:
    """`Pod default/web-1`: how messages name an object."""
    meta = data.get("metadata") if isinstance(data, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    name = meta.get("name") or meta.get("generateName") or "without a name"
    namespace = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{data.get('kind')} {namespace}{name}"
