"""Storage objects for the tests of volume plugins, written as manifests, and the question put to a plugin."""

from __future__ import annotations

from typing import Any

import numpy as np

from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from stowplan.cluster import Cluster
from stowplan.framework import CycleState, Handle, Plugin, PluginArgs, Status
from stowplan.framework.plugin import overrides

Manifest = dict[str, Any]

KINDS: dict[str, type[Object]] = {
    "Node": NodeObject,
    "PersistentVolume": PersistentVolume,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "StorageClass": StorageClass,
    "CSINode": CSINode,
    "CSIDriver": CSIDriver,
    "CSIStorageCapacity": CSIStorageCapacity,
    "VolumeAttachment": VolumeAttachment,
}

BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
SELECTED = "volume.kubernetes.io/selected-node"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
GI = 2**30


def with_meta(manifest: Manifest, **meta: Any) -> Manifest:
    return manifest | {"metadata": manifest["metadata"] | meta}


def read(manifest: Manifest) -> Pod | Object:
    kind = manifest["kind"]
    return Pod.decode(manifest) if kind == "Pod" else decode(KINDS[kind], manifest)


def pod(
    *volumes: Manifest, name: str = "p", node: str = "", namespace: str = "default", **meta: Any
) -> Manifest:
    named = [{"name": f"v{place}", **volume} for place, volume in enumerate(volumes)]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", **meta},
        "spec": {"nodeName": node, "containers": [{"name": "c"}], "volumes": named},
    }


def uses(claim: str) -> Manifest:
    """A volume of a pod that names a claim."""
    return {"persistentVolumeClaim": {"claimName": claim}}


def node(name: str, **labels: str) -> Manifest:
    spelt = {label.replace("__", "/").replace("_", "."): value for label, value in labels.items()}
    return {"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **spelt}}}


def claim(
    name: str = "c",
    storage_class: str | None = "wait",
    volume: str = "",
    annotations: dict[str, str] | None = None,
    size: str | None = "5Gi",
    **spec: Any,
) -> Manifest:
    """A claim; one with a volume is bound to it unless `annotations` say otherwise."""
    marks = annotations if annotations is not None else (BOUND if volume else {})
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": marks},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size} if size else {}},
            **({"storageClassName": storage_class} if storage_class is not None else {}),
            "volumeName": volume,
            **spec,
        },
        "status": {"phase": "Bound" if volume else "Pending"},
    }


def volume(
    name: str = "pv",
    storage_class: str = "wait",
    size: str = "10Gi",
    on: dict[str, list[str]] | None = None,
    labels: dict[str, str] | None = None,
    phase: str = "Available",
    meta: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    """A volume, reached from nodes whose labels are as `on` says; a CSI one unless `spec` says otherwise."""
    wanted = [{"key": key, "operator": "In", "values": values} for key, values in (on or {}).items()]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": wanted}]}}
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels or {}, **(meta or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "storageClassName": storage_class,
            **({"nodeAffinity": affinity} if on is not None else {}),
            **(spec or {"csi": {"driver": "csi.example.com", "volumeHandle": f"handle-{name}"}}),
        },
        "status": {"phase": phase},
    }


def storage_class(
    name: str = "wait",
    mode: str | None = "WaitForFirstConsumer",
    provisioner: str = "csi.example.com",
    topologies: list[dict[str, list[str]]] | None = None,
) -> Manifest:
    terms = [
        {"matchLabelExpressions": [{"key": key, "values": values} for key, values in term.items()]}
        for term in topologies or []
    ]
    found: Manifest = {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}
    return found | {"allowedTopologies": terms} | ({"volumeBindingMode": mode} if mode else {})


def csi_node(name: str, limits: dict[str, int | None] | None = None, migrated: str = "") -> Manifest:
    drivers = [
        {"name": driver, "allocatable": {"count": count}} if count is not None else {"name": driver}
        for driver, count in (limits or {}).items()
    ]
    marks = {MIGRATED: migrated} if migrated else {}
    return {
        "kind": "CSINode",
        "metadata": {"name": name, "annotations": marks},
        "spec": {"drivers": drivers},
    }


def csi_driver(name: str = "csi.example.com", storage_capacity: bool | None = True) -> Manifest:
    spec = {} if storage_capacity is None else {"storageCapacity": storage_capacity}
    return {"kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


def capacity(
    name: str = "cap",
    storage_class: str = "wait",
    topology: Manifest | None = None,
    **amounts: str,
) -> Manifest:
    found: Manifest = {"kind": "CSIStorageCapacity", "metadata": {"name": name, "namespace": "default"}}
    found |= {"storageClassName": storage_class, **amounts}
    return found if topology is None else found | {"nodeTopology": topology}


def attachment(volume: str | None, node: str, attacher: str = "csi.example.com") -> Manifest:
    source = {} if volume is None else {"persistentVolumeName": volume}
    return {
        "kind": "VolumeAttachment",
        "metadata": {"name": f"{attacher}-{volume}-{node}"},
        "spec": {"attacher": attacher, "nodeName": node, "source": source},
    }


def cluster_of(*manifests: Manifest) -> Cluster:
    return Cluster.of(read(manifest) for manifest in manifests)


def plugin_in(kind: type[Plugin], cluster: Cluster, args: PluginArgs | None = None) -> Plugin:
    return kind(args or PluginArgs(), Handle(cluster))


Verdict = tuple[str, tuple[str, ...]]


def refusals(plugin: Any, manifest: Manifest) -> dict[str, Verdict] | Status | None:
    """The nodes a plugin refuses, with code and reasons; what pre_filter says where it says anything."""
    waiting, state, nodes = Pod.decode(manifest), CycleState(), plugin.handle.cluster.nodes
    status: Status | None = plugin.pre_filter(state, waiting, nodes)
    return status if status is not None else filtered(plugin, state, waiting, nodes)


def filtered(plugin: Any, state: CycleState, waiting: Pod, nodes: Any) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    if overrides(plugin, "filter"):
        for each in nodes:
            status = plugin.filter(state, waiting, each)
            if status is not None:
                found[each.name] = (status.code.wire_name, status.reasons)
        return found
    for reject in plugin.filter_nodes(state, waiting, nodes):
        code = "UnschedulableAndUnresolvable" if reject.unresolvable else "Unschedulable"
        for row in np.flatnonzero(reject.mask).tolist():
            _, reasons = found.get(nodes.names[row], ("", ()))
            found[nodes.names[row]] = (code, (*reasons, reject.reason))
    return found
