"""Custom resources on a real control plane: their definitions, and the right to read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controlplane.control_plane import DEFINITIONS, SCHEDULER, ControlPlane
from controlplane.process import wait_until
from stowplan import CustomResource
from stowplan.api.crd import crd_of

Json = dict[str, Any]

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def install(control_plane: ControlPlane, definition: Json) -> None:
    """Creates a CustomResourceDefinition and waits until the API server serves the kind."""
    control_plane.kubectl("apply", "-f", "-", objects=[definition])
    name = definition["metadata"]["name"]
    control_plane.kubectl("wait", "--for=condition=established", f"crd/{name}", "--timeout=30s")


def install_kind(control_plane: ControlPlane, kind: type[CustomResource]) -> None:
    install(control_plane, crd_of(kind))


def uninstall(control_plane: ControlPlane, kind: type[CustomResource]) -> None:
    where = f"{DEFINITIONS}/{kind.definition.plural}.{kind.definition.group}"
    control_plane.request("DELETE", where)
    wait_until(
        lambda: not control_plane.request("GET", DEFINITIONS)["items"], lambda: "it is still there", 30
    )


@contextmanager
def readable(
    control_plane: ControlPlane, *kinds: type[CustomResource], user: str = SCHEDULER
) -> Iterator[None]:
    """Within, the user may read these kinds, and the role that says so goes afterwards."""
    name = "stowplan-tests-custom"
    rules = [
        {
            "apiGroups": [kind.definition.group],
            "resources": [kind.definition.plural],
            "verbs": ["get", "list", "watch"],
        }
        for kind in kinds
    ]
    control_plane.request("POST", ROLES, {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    control_plane.request("POST", BINDINGS, binding)
    try:
        yield
    finally:
        control_plane.request("DELETE", f"{BINDINGS}/{name}")
        control_plane.request("DELETE", f"{ROLES}/{name}")
