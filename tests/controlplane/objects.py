"""Small objects as the API takes them, for tests on a real control plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

NODE_TEMPLATE: Json = {"status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}
"""For `kubelets.register`: a node with room for a few pods."""


def node(name: str, *, labels: Mapping[str, str] | None = None, **spec: Any) -> Json:
    """A node with room for a few pods."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": NODE_TEMPLATE["status"] | {"allocatable": NODE_TEMPLATE["status"]["capacity"]},
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod of one container that nobody has to pull; other fields of the spec go by their wire names."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "containers": [{"name": "main", "image": "web", "resources": {"requests": dict(requests or {})}}],
            "automountServiceAccountToken": False,
            **spec,
        },
    }
