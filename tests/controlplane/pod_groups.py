"""Pod groups on a real control plane: their API, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.control_plane import ControlPlane
from controlplane.objects import pod
from controlplane.pods import create

Json = dict[str, Any]

GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
TOPOLOGY = f"{GATES},TopologyAwareWorkloadScheduling=true"
WHOLE = f"{GATES},WorkloadAwarePreemption=true"
ALL = f"{TOPOLOGY},WorkloadAwarePreemption=true"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
WAIT = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)
SCHEDULED = [("PodGroupScheduled", "True", "Scheduled", "")]
UNSCHEDULABLE = [("PodGroupScheduled", "False", "Unschedulable", "pod group is unschedulable")]


@contextmanager
def plane_with_groups(folder: Path) -> Iterator[ControlPlane]:
    """A control plane that serves pod groups, with all their gates."""
    plane = ControlPlane(folder, ALL, "--runtime-config=scheduling.k8s.io/v1alpha2=true")
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def wipe(plane: ControlPlane) -> None:
    """Delete everything, groups included: no controller takes their finalizers off here."""
    plane.wipe()
    for item in plane.request("GET", GROUPS)["items"]:
        remove_group(plane, item["metadata"]["name"])


def remove_group(plane: ControlPlane, name: str = "g") -> None:
    path = f"{GROUPS}/{name}"
    plane.request("DELETE", path)
    plane.request("PATCH", path, {"metadata": {"finalizers": None}})  # which kept it


def create_group(
    plane: ControlPlane,
    count: int,
    least: int | None,
    name: str = "g",
    cpu: str = "1",
    pods: Json | None = None,
    **spec: Any,
) -> None:
    """A PodGroup with its pods; without a minimum a basic one."""
    policy: Json = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy, **spec},
    }
    plane.request("POST", GROUPS, group)
    add_members(plane, range(count), name, cpu, **(pods or {}))


def add_members(
    plane: ControlPlane,
    numbers: range,
    group: str = "g",
    cpu: str = "1",
    labels: Json | None = None,
    **spec: Any,
) -> None:
    if not numbers:
        return
    own = {"schedulingGroup": {"podGroupName": group}, "terminationGracePeriodSeconds": 0, **spec}
    create(
        plane,
        *(pod(f"{group}{number}", requests={"cpu": cpu}, labels=labels, **own) for number in numbers),
    )


def create_class(plane: ControlPlane, name: str = "high", value: int = 1000, **spec: Any) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    create(plane, kind | {"value": value, **spec})


def victims(plane: ControlPlane) -> set[str]:
    """The pods that are being deleted."""
    items = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    return {item["metadata"]["name"] for item in items if item["metadata"].get("deletionTimestamp")}


def nominated(plane: ControlPlane) -> dict[str, str]:
    items = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    found = {item["metadata"]["name"]: item["status"].get("nominatedNodeName", "") for item in items}
    return {name: node_name for name, node_name in found.items() if node_name}


def group_condition(plane: ControlPlane, name: str = "g") -> list[tuple[str, str, str, str]]:
    found = plane.request("GET", f"{GROUPS}/{name}").get("status", {}).get("conditions", [])
    return [(each["type"], each["status"], each["reason"], each.get("message", "")) for each in found]
