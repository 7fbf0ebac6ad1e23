"""Nodes and pods in plain words: what is not said has a default that gets in nobody's way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod

_numbers = count(1)


def a_node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    unschedulable: bool = False,
) -> NodeObject:
    """A node. `resources` are further ones, such as GPUs; a taint is `key=value:effect` or `key:effect`."""
    plain = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": [_taint(taint) for taint in taints], "unschedulable": unschedulable},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **(resources or {})}},
    }
    return decode(NodeObject, plain)


def a_pod(
    name: str = "pod",
    *,
    namespace: str = "default",
    cpu: str = "",
    memory: str = "",
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    tolerations: Iterable[str] = (),
    node: str = "",
    **spec: Any,
) -> Pod:
    """A pod of one container; on `node`, if that is given. A toleration is a key, or `*` for every taint.

    Other fields of the spec go by their names in manifests: `priority=10`, `nodeSelector={…}`.
    """
    asked = {"cpu": cpu, "memory": memory, **(resources or {})}
    requests = {resource: amount for resource, amount in asked.items() if amount}
    plain = {
        "containers": [{"name": "main", "image": "main", "resources": {"requests": requests}}],
        "tolerations": [{"operator": "Exists", "key": "" if key == "*" else key} for key in tolerations],
        "nodeName": node,
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{name}-{next(_numbers)}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return Pod.decode({"metadata": metadata, "spec": plain | spec, "status": {}})


def _taint(text: str) -> dict[str, str]:
    key_value, _, effect = text.rpartition(":")
    key, _, value = key_value.partition("=")
    return {"key": key, "value": value, "effect": effect}
