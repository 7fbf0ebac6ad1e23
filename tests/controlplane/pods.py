"""What tests on a real control plane do most: add nodes, create objects by kubectl, see where pods are."""

from __future__ import annotations

import re
from typing import Any

from controlplane.control_plane import ControlPlane

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"


def placed(control_plane: ControlPlane) -> dict[str, str]:
    """Where each pod is; empty where it has no node."""
    items = control_plane.request("GET", PODS)["items"]
    return {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in items}


def words_of(message: str, control_plane: ControlPlane) -> str:
    """The message without what kube-scheduler has not said since 1.37 of claims that it cannot deallocate."""
    if int(control_plane.request("GET", "/version")["minor"]) < 37:
        return message
    return re.sub(" (no new claims to deallocate|still not schedulable),", "", message)


def condition(control_plane: ControlPlane, name: str) -> dict[str, str]:
    """PodScheduled as the pod has it; empty where it does not."""
    status = control_plane.request("GET", f"{PODS}/{name}")["status"]
    found = [each for each in status.get("conditions", ()) if each["type"] == "PodScheduled"]
    return found[0] if found else {}


def create(control_plane: ControlPlane, *objects: Json) -> None:
    control_plane.kubectl("create", "-f", "-", objects=list(objects))


def add_nodes(control_plane: ControlPlane, *made: Json) -> None:
    for each in made:
        control_plane.request("POST", "/api/v1/nodes", each)
        name = each["metadata"]["name"]
        control_plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": each["status"]})
