"""The API paths of the kinds we know, and which of them a scheduler watches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import msgspec

from stowplan.api.custom import CustomResource
from stowplan.api.kinds import KINDS
from stowplan.api.meta import Object, decode, decode_partly
from stowplan.api.pod import Pod, PodObject
from stowplan.api.resource import ResourceClaim

Watched = Pod | Object


class WatchedResource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind as one collection over all namespaces. Anything with a decoder can be watched, CRDs included."""

    path: str
    """Path of the collection, such as /apis/apps/v1/replicasets."""
    decode: Callable[[bytes], Watched]
    salvage: Callable[[bytes, str], Watched] | None = None
    """Reads what it can of an object that cannot be decoded, for the reason given. For kinds that hold what
    others must not get, so that they count whatever is wrong with them; all others count as deleted."""
    namespaced: bool = True
    field_selector: str = ""
    label_selector: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        """The plural that paths and permissions use."""
        return self.path.rpartition("/")[2]

    @property
    def api_version(self) -> str:
        return self.path.removeprefix("/api/").removeprefix("/apis/").rpartition("/")[0]

    def collection(self, namespace: str) -> str:
        if not self.namespaced:
            return self.path
        group, _, plural = self.path.rpartition("/")
        return f"{group}/namespaces/{namespace}/{plural}"

    def item(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{name}"

    def query(self, **others: str) -> dict[str, str]:
        """What a request for the collection says besides its path."""
        if self.field_selector:
            others["fieldSelector"] = self.field_selector
        if self.label_selector:
            others["labelSelector"] = self.label_selector
        return others


CORE, STORAGE, DEVICES = "/api/v1", "/apis/storage.k8s.io/v1", "/apis/resource.k8s.io/v1"


def _resource(
    kind: str,
    path: str,
    *,
    namespaced: bool = True,
    salvage: Callable[[bytes, str], Watched] | None = None,
) -> WatchedResource:
    return WatchedResource(
        kind=kind, path=path, decode=partial(decode, KINDS[kind]), salvage=salvage, namespaced=namespaced
    )


def _salvage_claim(data: bytes, fault: str) -> Watched:
    """Devices that the claim holds must not be given to others."""
    return decode_partly(ResourceClaim, data)


PODS = WatchedResource(
    kind="Pod",
    path=f"{CORE}/pods",
    decode=Pod.decode,
    salvage=Pod.salvage,
    field_selector="status.phase!=Succeeded,status.phase!=Failed",
)

RESOURCES = (
    # Nodes and namespaces first: a pod means little before they are known.
    _resource("Namespace", f"{CORE}/namespaces", namespaced=False),
    _resource("Node", f"{CORE}/nodes", namespaced=False),
    PODS,
    _resource("PersistentVolume", f"{CORE}/persistentvolumes", namespaced=False),
    _resource("PersistentVolumeClaim", f"{CORE}/persistentvolumeclaims"),
    _resource("ReplicationController", f"{CORE}/replicationcontrollers"),
    _resource("Service", f"{CORE}/services"),
    _resource("ReplicaSet", "/apis/apps/v1/replicasets"),
    _resource("StatefulSet", "/apis/apps/v1/statefulsets"),
    _resource("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets"),
    _resource("CSIDriver", f"{STORAGE}/csidrivers", namespaced=False),
    _resource("CSINode", f"{STORAGE}/csinodes", namespaced=False),
    _resource("CSIStorageCapacity", f"{STORAGE}/csistoragecapacities"),
    _resource("StorageClass", f"{STORAGE}/storageclasses", namespaced=False),
    _resource("VolumeAttachment", f"{STORAGE}/volumeattachments", namespaced=False),
    _resource("DeviceClass", f"{DEVICES}/deviceclasses", namespaced=False),
    _resource("ResourceClaim", f"{DEVICES}/resourceclaims", salvage=_salvage_claim),
    _resource("ResourceSlice", f"{DEVICES}/resourceslices", namespaced=False),
)
"""Everything that a scheduler watches."""
FOLLOWED = tuple(
    msgspec.structs.replace(PODS, field_selector=f"{PODS.field_selector},spec.nodeName!=")
    if resource is PODS
    else resource
    for resource in RESOURCES
)
"""The same without pods that have no node, for processes that schedule none."""

_BY_TYPE: dict[type, WatchedResource] = {
    Pod: PODS,
    PodObject: PODS,
    **{KINDS[resource.kind]: resource for resource in RESOURCES if resource is not PODS},
}


def resource_of(item: Watched) -> WatchedResource:
    """Return the resource of an object."""
    return custom(type(item)) if isinstance(item, CustomResource) else _BY_TYPE[type(item)]


@lru_cache(maxsize=256)
def custom(kind: type[CustomResource]) -> WatchedResource:
    """Return the resource of a kind that is declared as a struct."""
    where = kind.definition
    return WatchedResource(
        kind=where.kind,
        path=where.path,
        decode=partial(decode, kind),
        namespaced=where.namespaced,
        label_selector=where.label_selector,
    )
