"""What a kubelet writes, as the API takes it: its node, its lease, and the status of its pods."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from stowplan.api.meta import Json
from stowplan.api.node import NodeObject
from stowplan.api.pod import Container, Pod
from stowplan.client.events import micro_time
from stowplan.controllers.clock import wire_time
from stowplan.kubelet.admission import Rejection

NODE_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
)
POD_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
LEASE_SECONDS = 40
KILLED = 137
TERMINATED = 143
"""The codes that containers exit with when they are killed, and when they are asked to stop."""
MAX_IMAGES = 50
"""A node lists its largest ones."""


def node_of(template: Json, name: str, now: float) -> Json:
    """The template's node by this name, ready; capacity is what is allocatable where one is not said."""
    metadata, status = template.get("metadata", {}), template.get("status", {})
    labels = {"kubernetes.io/hostname": name, **metadata.get("labels", {})}
    addresses = [("InternalIP", address_of(name)), ("Hostname", name)]
    known = {
        "allocatable": status.get("capacity", {}),
        "capacity": status.get("allocatable", {}),
        "conditions": conditions_of_node(now),
        "addresses": [{"type": kind, "address": address} for kind, address in addresses],
    }
    return {
        **template,
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**metadata, "name": name, "labels": labels},
        "status": {**known, **status},
    }


def conditions_of_node(now: float, since: Mapping[str, str | None] | None = None) -> list[Json]:
    """Conditions of a healthy node; `since` has the times of conditions that did not change."""
    at = wire_time(now)
    return [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "lastHeartbeatTime": at,
            "lastTransitionTime": (since or {}).get(kind) or at,
        }
        for kind, value, reason in NODE_CONDITIONS
    ]


def heartbeat_of(node: NodeObject, now: float) -> Json:
    """The status of a healthy node, for a strategic merge patch."""
    wanted = {kind: value for kind, value, _ in NODE_CONDITIONS}
    since = {
        each.type: each.last_transition_time
        for each in node.status.conditions
        if wanted.get(each.type) == each.status
    }
    return {"status": {"conditions": conditions_of_node(now, since)}}


def images_on_node(sizes: Mapping[str, int]) -> list[Json]:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MAX_IMAGES]
    return [{"names": [name], "sizeBytes": size} for name, size in largest]


def lease_of(node: NodeObject, now: float) -> Json:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.metadata.uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node.name, "leaseDurationSeconds": LEASE_SECONDS, **renewal(now)},
    }


def renewal(now: float) -> Json:
    """The field of a lease's spec that is renewed."""
    return {"renewTime": micro_time(now)}


def running_status(
    pod: Pod,
    now: float,
    *,
    address: str = "",
    restarts: int = 0,
    last: Json | None = None,
    is_ready: bool = True,
) -> Json:
    """Status of a pod whose containers have just started; `last` are the codes they exited with before."""
    started = wire_time(now)
    running = {"running": {"startedAt": started}}
    containers = [_container(pod, each, running, restarts) for each in pod.spec.containers]
    for each in containers:
        each["ready"] = is_ready
        if last is not None:
            each["lastState"] = _terminated_state(last[each["name"]], started, started)
    status: Json = {
        "phase": "Running",
        "observedGeneration": pod.generation,
        "startTime": started,
        "conditions": [*_conditions("True", POD_CONDITIONS[:2], started), *readiness(is_ready, now)],
        "containerStatuses": containers,
    }
    if restarts:
        del status["startTime"]
    if pod.spec.init_containers:
        done = _terminated_state(0, started, started)
        status["initContainerStatuses"] = [
            _container(pod, each, running if each.is_sidecar else done) for each in pod.spec.init_containers
        ]
    if address:
        host = address_of(pod.node_name)
        own = host if pod.spec.host_network else address
        status |= {"hostIP": host, "hostIPs": [{"ip": host}], "podIP": own, "podIPs": [{"ip": own}]}
    return status


def readiness(is_ready: bool, now: float, reason: str = "ContainersNotReady") -> list[Json]:
    kinds, at = ("ContainersReady", "Ready"), wire_time(now)
    return _conditions("True", kinds, at) if is_ready else _conditions("False", kinds, at, reason)


def waiting_status(
    pod: Pod, reason: str, message: str, now: float, restarts: int = 0, last: Json | None = None
) -> Json:
    """Status of a pod whose containers cannot start, or wait to be started again."""
    at, waiting = wire_time(now), {"waiting": {"reason": reason, "message": message}}
    containers = [_container(pod, each, waiting, restarts) for each in pod.spec.containers]
    if last is None:
        kept = _conditions("True", POD_CONDITIONS[:2], at)
        conditions, phase = [*kept, *readiness(False, now)], {"phase": "Pending", "startTime": at}
    else:
        conditions, phase = readiness(False, now), {}
        for each in containers:
            each["lastState"] = _terminated_state(last[each["name"]], at, at)
    generation = {"observedGeneration": pod.generation}
    return {**phase, **generation, "conditions": conditions, "containerStatuses": containers}


def ended_status(pod: Pod, codes: Mapping[str, int], now: float, restarts: int = 0) -> Json:
    """Status of a pod whose containers have just exited with these codes."""
    at, exit_code = wire_time(now), max(codes.values(), default=0)
    since = wire_time(pod.start_time) if pod.start_time is not None else at
    reason = "PodFailed" if exit_code else "PodCompleted"
    ended = _conditions("False", ("PodReadyToStartContainers", "ContainersReady", "Ready"), at, reason)
    return {
        "phase": "Failed" if exit_code else "Succeeded",
        "conditions": [*ended, *_conditions("True", ("Initialized",), at, reason)],
        "containerStatuses": [
            _container(pod, each, _terminated_state(codes[each.name], since, at), restarts)
            for each in pod.spec.containers
        ],
    }


def overdue_status(pod: Pod, now: float) -> Json:
    """Status of a pod that was stopped because it ran longer than it may."""
    codes = {each.name: KILLED for each in pod.spec.containers}
    why = "Pod was active on the node longer than the specified deadline"
    return {**ended_status(pod, codes, now), "phase": "Failed", "reason": "DeadlineExceeded", "message": why}


def observed_status(pod: Pod, ephemeral: Iterable[Container], now: float) -> Json:
    """What changes in the status of a pod whose spec has changed."""
    started = {"running": {"startedAt": wire_time(now)}}
    statuses = [{**_container(pod, each, started), "ready": False} for each in ephemeral]
    found: Json = {"observedGeneration": pod.generation}
    return {**found, "ephemeralContainerStatuses": statuses} if statuses else found


def rejected_status(rejection: Rejection, now: float) -> Json:
    return {
        "phase": "Failed",
        "reason": rejection.reason,
        "message": f"Pod was rejected: {rejection.message}",
        "startTime": wire_time(now),
    }


def address_of(node: str) -> str:
    """An address for a node; two names rarely get the same."""
    one, two = hashlib.sha256(node.encode()).digest()[:2]
    return f"172.{16 + one % 16}.{two}.{1 + (one >> 4)}"


def pod_address(node: str, number: int) -> str:
    one, two = hashlib.sha256(node.encode()).digest()[:2]
    return f"10.{one}.{two}.{1 + number % 254}"


def _conditions(status: str, kinds: Iterable[str], at: str, reason: str = "") -> list[Json]:
    why = {"reason": reason} if reason else {}
    return [{"type": kind, "status": status, "lastTransitionTime": at, **why} for kind in kinds]


def _terminated_state(exit_code: int, since: str, at: str) -> Json:
    reason = "Error" if exit_code else "Completed"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": since, "finishedAt": at}}


def _container(pod: Pod, container: Container, state: Json, restarts: int = 0) -> Json:
    is_running = "running" in state
    is_done = container in pod.spec.init_containers and state.get("terminated", {}).get("exitCode") == 0
    digest = hashlib.sha256(f"{pod.uid}/{container.name}/{restarts}".encode()).hexdigest()
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "" if "waiting" in state else container.image,
        "containerID": "" if "waiting" in state else f"simulated://{digest}",
        "ready": is_running or is_done,
        "started": is_running,
        "restartCount": restarts,
        "state": state,
    }
