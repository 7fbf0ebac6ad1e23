"""What a kubelet writes, as the API takes it: its node, its lease, and the status of a pod that runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stowplan.api.node import NodeObject
from stowplan.api.pod import Container, Pod
from stowplan.client.event_forms import micro_time

Json = dict[str, Any]

NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
)
POD_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
LEASE_SECONDS = 40


def node_of(template: Json, name: str, now: float) -> Json:
    """The template's node by this name, ready; capacity is what is allocatable where one is not said."""
    metadata, status = template.get("metadata", {}), template.get("status", {})
    labels = {"kubernetes.io/hostname": name, **metadata.get("labels", {})}
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "lastHeartbeatTime": wire_time(now),
            "lastTransitionTime": wire_time(now),
        }
        for kind, value, reason in NODE_CONDITIONS
    ]
    known = {
        "allocatable": status.get("capacity", {}),
        "capacity": status.get("allocatable", {}),
        "conditions": conditions,
        "addresses": [{"type": "Hostname", "address": name}],
    }
    return {
        **template,
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**metadata, "name": name, "labels": labels},
        "status": {**known, **status},
    }


def lease_of(node: NodeObject, now: float) -> Json:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.metadata.uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node.name, "leaseDurationSeconds": LEASE_SECONDS, **renewal(now)},
    }


def renewal(now: float) -> Json:
    """The field of a lease's spec that says its holder is alive."""
    return {"renewTime": micro_time(now)}


def running_status(pod: Pod, now: float) -> Json:
    """Of a pod whose containers all started just now."""
    started = wire_time(now)
    return {
        "phase": "Running",
        "startTime": started,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": started} for kind in POD_CONDITIONS
        ],
        "containerStatuses": [_running(container, started) for container in pod.spec.containers],
    }


def wire_time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _running(container: Container, started: str) -> Json:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": started}},
    }
