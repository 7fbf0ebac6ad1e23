"""The log of both schedulers for the same changes: lines that people follow a pod by, at the same levels."""

from __future__ import annotations

import json
from typing import Any

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, placed
from controlplane.process import Process
from controlplane.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"
STEPS = {
    "About to try and schedule pod",
    "Attempting to schedule pod",
    "Attempting to bind pod to node",
    "Successfully bound pod to node",
    "Pod moved to an internal scheduling queue",
}


def lines(process: Process) -> set[tuple[Any, ...]]:
    """Message, level and object of each line about events and steps; a line may be repeated."""
    found = set()
    for text in process.output.splitlines():
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        if line["msg"] in STEPS or " event for " in line["msg"]:
            item = line.get("pod") or line["node"]
            level = 2 if line["msg"].startswith("Successfully") else line["v"]  # ours is for everyone
            fields = (line.get("event"), line.get("queue"), line.get("logger"))
            found.add((line["msg"], level, item["name"], *fields))
    return found


async def follow(control_plane: ControlPlane, scheduler: Process) -> set[tuple[Any, ...]]:
    """Let pods and nodes come, change and go while a scheduler runs."""

    async def logged(message: str, item: str) -> None:
        await eventually(
            lambda: {each[:3:2] for each in lines(scheduler)}, lambda found: (message, item) in found
        )

    await logged("Add event for node", "n2")
    control_plane.request("POST", PODS, pod("assigned", nodeName="n1"))
    control_plane.request("POST", PODS, pod("foreign", schedulerName="other"))
    control_plane.request("POST", PODS, pod("web"))
    await eventually(lambda: placed(control_plane), lambda each: bool(each["web"]))
    await logged("Add event for scheduled pod", "web")
    control_plane.request("PATCH", f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}})
    await logged("Update event for scheduled pod", "web")
    control_plane.request("PATCH", f"{PODS}/web/status", {"status": {"phase": "Succeeded"}})
    await logged("Delete event for scheduled pod", "web")
    control_plane.request("POST", PODS, pod("large", requests={"cpu": "64"}))
    await logged("Pod moved to an internal scheduling queue", "large")
    await logged("Update event for unscheduled pod", "large")
    for each in ("large", "foreign", "assigned"):
        control_plane.request("DELETE", f"{PODS}/{each}?gracePeriodSeconds=0")
    control_plane.request("PATCH", "/api/v1/nodes/n2", {"metadata": {"labels": {"a": "b"}}})
    await logged("Update event for node", "n2")
    control_plane.request("DELETE", "/api/v1/nodes/n2")
    await logged("Delete event for node", "n2")
    await logged("Delete event for scheduled pod", "assigned")
    return lines(scheduler)


async def test_events_and_steps_are_logged_as_kube_scheduler_does(control_plane):
    flags = ("-v=5", "--logging-format=json")
    seen = []
    for run in (control_plane.kube_scheduler, control_plane.stowplan):
        control_plane.wipe()
        add_nodes(control_plane, node("n1"), node("n2"))
        with run(*flags) as scheduler:
            seen.append(await follow(control_plane, scheduler))
    theirs, ours = seen
    assert ours == theirs
