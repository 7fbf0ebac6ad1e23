"""The scheduler's container: what the Deployment's pod and the static pod have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stowplan.deploy.options import PORT

Json = dict[str, Any]

# 5,000 nodes with 50,000 pods take 240 MB.
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
LOCKED_DOWN = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
TEMPORARY = {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
"""Python's TLS reads certificates from files alone, so that those made at the start need a place."""


def container(name: str, image: str, command: Sequence[str], mounts: Sequence[Json], probes: Json) -> Json:
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "ports": [{"name": "https", "containerPort": PORT}],
        **probes,
        "resources": RESOURCES,
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }


def probes(*, host: str = "", has_standby_cache: bool = True) -> Json:
    """One that stands by without a cache is not ready, and need not be."""

    def probe(path: str, failures: int) -> Json:
        get = {"path": path, "port": "https", "scheme": "HTTPS"} | ({"host": host} if host else {})
        return {"httpGet": get, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": failures}

    return {
        "startupProbe": probe("/livez", 24),
        "livenessProbe": probe("/livez", 8),
        "readinessProbe": probe("/readyz" if has_standby_cache else "/livez", 3),
    }


def read_only(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path, "readOnly": True}
