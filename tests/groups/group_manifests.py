"""Manifests of nodes, pod groups and their pods, for commands that read files."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def node(name: str, *, cpu: str = "4", gpus: int = 0, labels: Json | None = None, **spec: Any) -> Json:
    amounts = {"cpu": cpu, "memory": "32Gi", "pods": "110"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(
    name: str, *, cpu: str = "1", gpus: int = 0, on: str = "", labels: Json | None = None, **spec: Any
) -> Json:
    asked = {"cpu": cpu} | ({GPU: str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": labels or {},
            "creationTimestamp": "2026-11-16T08:00:00Z",
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": asked}}],
            **({"nodeName": on} if on else {}),
            **spec,
        },
    }


def gang(name: str, least: int, *, topology: str = "", created: str = "2026-11-16T08:00:00Z") -> Json:
    """A PodGroup of Kubernetes 1.36."""
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    meta = {"name": name, "namespace": "default", "creationTimestamp": created}
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": meta, "spec": spec}


def members(group: str, count: int, **more: Any) -> list[Json]:
    return [
        pod(f"{group}-{number}", schedulingGroup={"podGroupName": group}, **more) for number in range(count)
    ]


def labelled_gang(name: str, least: int) -> Json:
    """A PodGroup of scheduler-plugins."""
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": least},
    }


def labelled_members(group: str, count: int, **more: Any) -> list[Json]:
    labels = {"scheduling.x-k8s.io/pod-group": group}
    return [pod(f"{group}-{number}", labels=labels, **more) for number in range(count)]


def as_text(*items: Json | list[Json]) -> str:
    flat = [each for item in items for each in (item if isinstance(item, list) else [item])]
    return "".join(f"---\n{json.dumps(item)}\n" for item in flat)
