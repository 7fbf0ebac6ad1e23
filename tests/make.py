"""Small objects for tests: `make_pod` and `make_node` say what matters and leave the rest at its default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stowplan.api.kinds import object_of
from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.registry import Registry

REGISTRY = Registry.installed()
Json = dict[str, Any]


def make_pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    node: str = "",
    requests: Mapping[str, Any] | None = None,
    tolerations: Iterable[str] = (),
    status: Json | None = None,
    metadata: Json | None = None,
    **spec: Any,
) -> Pod:
    """A pod of one container. Other fields of the spec go by their wire names; a toleration is a key."""
    container = {"name": "main", "image": "web", "resources": {"requests": dict(requests or {})}}
    plain = {
        "containers": [container],
        "nodeName": node,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerations],
    }
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": dict(labels or {})}
    return Pod.decode({"metadata": meta | (metadata or {}), "spec": plain | spec, "status": status or {}})


def make_node(
    name: str = "node",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    allocatable: Mapping[str, Any] | None = None,
    images: Mapping[str, int] | None = None,
    unschedulable: bool = False,
    features: Iterable[str] = (),
) -> NodeObject:
    """A node with room for a few pods. A taint is written `key=value:effect`, or `key:effect`."""
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"} if allocatable is None else allocatable
    return decode(
        NodeObject,
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})},
            "spec": {"taints": [_taint(taint) for taint in taints], "unschedulable": unschedulable},
            "status": {
                "allocatable": dict(room),
                "images": [{"names": [image], "sizeBytes": size} for image, size in (images or {}).items()],
                "declaredFeatures": list(features),
            },
        },
    )


def planner(objects: Iterable[Pod | Object | Json], config: Json | None = None) -> Planner:
    """A planner over a cluster of these objects, plain ones among them."""
    found = (object_of(item) if isinstance(item, dict) else item for item in objects)
    cluster = Cluster.of(item for item in found if item is not None)
    return Planner(cluster, load(config, REGISTRY).config if config else None, registry=REGISTRY)


def _taint(text: str) -> Json:
    key_value, _, effect = text.rpartition(":")
    key, _, value = key_value.partition("=")
    return {"key": key, "value": value, "effect": effect}
