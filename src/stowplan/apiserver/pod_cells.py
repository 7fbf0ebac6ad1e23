"""The cells of a pod's row, with its ready containers and its status in one word."""

from __future__ import annotations

from typing import Any

from stowplan.api.meta import Json
from stowplan.apiserver.times import since

_NONE = "<none>"


def pod_cells(pod: Json, age: str) -> list[Any]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    containers = status.get("containerStatuses") or []
    sidecars = {
        each["name"] for each in spec.get("initContainers") or [] if each.get("restartPolicy") == "Always"
    }
    inits: list[Json] = status.get("initContainerStatuses") or []
    beside = [each for each in inits if each["name"] in sidecars]
    ready = sum(bool(each.get("ready")) for each in [*containers, *beside])
    total = len(spec.get("containers") or []) + len(sidecars)
    counted = [*containers, *beside] if not _is_starting(inits, sidecars) else inits
    return [
        pod["metadata"]["name"],
        f"{ready}/{total}",
        reason_of(pod),
        _restarts(counted),
        age,
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _gates(spec, status),
    ]


def reason_of(pod: Json) -> str:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    reason: str = status.get("reason") or status.get("phase", "")
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    starting = _init_reason(spec, status)
    reason = starting or _container_reason(status, conditions, reason)
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _is_starting(inits: list[Json], sidecars: set[str]) -> bool:
    return any(not _is_done(each, each["name"] in sidecars) for each in inits)


def _is_done(status: Json, is_sidecar: bool) -> bool:
    ended = status.get("state", {}).get("terminated")
    return bool(ended and ended.get("exitCode") == 0) or (is_sidecar and bool(status.get("started")))


def _init_reason(spec: Json, status: Json) -> str:
    """The status of a pod whose init containers have not finished."""
    declared = spec.get("initContainers") or []
    sidecars = {each["name"] for each in declared if each.get("restartPolicy") == "Always"}
    for index, each in enumerate(status.get("initContainerStatuses") or []):
        if _is_done(each, each["name"] in sidecars):
            continue
        state = each.get("state", {})
        if ended := state.get("terminated"):
            return f"Init:{_exit_text(ended)}"
        waiting = state.get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(declared)}"
    return ""


def _container_reason(status: Json, conditions: Json, reason: str) -> str:
    is_running = False
    for each in reversed(status.get("containerStatuses") or []):
        state = each.get("state", {})
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif state.get("terminated") is not None:
            reason = _exit_text(state["terminated"])
        elif each.get("ready") and state.get("running") is not None:
            is_running = True
    if reason == "Completed" and is_running:
        reason = "Running" if conditions.get("Ready", {}).get("status") == "True" else "NotReady"
    return reason


def _exit_text(state: Json) -> str:
    if state.get("reason"):
        return str(state["reason"])
    return f"Signal:{state['signal']}" if state.get("signal") else f"ExitCode:{state.get('exitCode', 0)}"


def _restarts(statuses: list[Json]) -> str:
    count = sum(each.get("restartCount", 0) for each in statuses)
    ends = [(each.get("lastState", {}).get("terminated") or {}).get("finishedAt") for each in statuses]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({since(last)} ago)" if count and last else str(count)


def _gates(spec: Json, status: Json) -> str:
    gates = spec.get("readinessGates") or []
    if not gates:
        return _NONE
    true = {each["type"] for each in status.get("conditions") or [] if each.get("status") == "True"}
    return f"{sum(each['conditionType'] in true for each in gates)}/{len(gates)}"
