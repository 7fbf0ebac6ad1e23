"""A small made-up trace: nodes at the start, pods that arrive, run and leave."""

from __future__ import annotations

from typing import Any

from stowplan.replay import Event, Trace
from stowplan.replay.trace import event_of

Json = dict[str, Any]


def node(name: str, cpu: str = "4", memory: str = "8Gi", **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
    }


def pod(name: str, cpu: str = "1", *, owner: str = "", **spec: Any) -> Json:
    meta: Json = {"name": name, "namespace": "default", "uid": name}
    if owner:
        reference = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner,
            "uid": owner,
            "controller": True,
        }
        meta["ownerReferences"] = [reference]
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    container = {"name": "main", "image": "web", "resources": resources}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def add(time: float, data: Json, **more: Any) -> Event:
    return event_of(time, "add", data, **more)


def change(time: float, verb: Any, data: Json, **more: Any) -> Event:
    return event_of(time, verb, data, **more)


def trace_of(*events: Event) -> Trace:
    return Trace(sorted(events, key=lambda event: event.time), "made-up")


def busy_trace(nodes: int = 5, pods: int = 60) -> Trace:
    """More pods than fit at times; each runs for a while."""
    events = [add(0, node(f"node-{number}")) for number in range(nodes)]
    events += [
        add(
            1 + 7.0 * number,
            pod(f"pod-{number}", f"{500 + 500 * (number % 4)}m"),
            run_seconds=60.0 + 17 * (number % 9),
        )
        for number in range(pods)
    ]
    return trace_of(*events)
