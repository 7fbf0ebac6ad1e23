"""What we write into a pod's status: that it could not be scheduled, and which node it is promised."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stowplan.api.pod import Pod
from stowplan.client.events import truncated

MAX_MESSAGE_BYTES = 2**18
"""kube-scheduler writes any message, but an API server rejects a pod that grows past about 1.5 MB by it."""


def unscheduled_patch(
    pod: Pod, reason: str, message: str, nominated: str | None, now: float
) -> dict[str, Any]:
    """A strategic merge patch; empty if the pod says so already. `nominated` None leaves that as it is."""
    status: dict[str, Any] = {}
    message = truncated(message, MAX_MESSAGE_BYTES)
    known = pod.condition("PodScheduled")
    if known is None or (known.status, known.reason, known.message) != ("False", reason, message):
        condition: dict[str, Any] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "observedGeneration": pod.generation,
        }
        if known is None or known.status != "False":
            condition |= {"lastProbeTime": None, "lastTransitionTime": timestamp(now)}
        status["conditions"] = [condition]
    if nominated is not None and nominated != pod.nominated_node_name:
        status["nominatedNodeName"] = nominated or None
    return {"status": status} if status else {}


def disrupted_patch(pod: Pod, scheduler_name: str, now: float) -> dict[str, Any]:
    """Says on a victim why it goes."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{scheduler_name}: preempting to accommodate a higher priority pod",
        "observedGeneration": pod.generation,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}


def timestamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
