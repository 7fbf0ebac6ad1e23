"""What the queue tells about itself, and the names it uses for what moves pods."""

from __future__ import annotations

from functools import cache
from typing import Literal, Protocol

from stowplan.framework.events import ClusterEvent

POD_ADDED = "UnschedulablePodAdd"
POD_UPDATED = "UnschedulablePodUpdate"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POPPED_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
TIMED_OUT = "UnschedulableTimeout"
POD_POPPED = "PodPopped"


class Recorder(Protocol):
    """Counts. How many pods are pending is not among them: whoever wants to know asks for `counts()`."""

    def pod_queued(self, event: str, queue: str) -> None: ...
    def unschedulable(self, plugin: str, profile: str, change: int) -> None: ...
    def inflight_events(self, event: str, change: int) -> None: ...
    def hint_asked(
        self, event: str, hint: Literal["Queue", "QueueSkip"], plugin: str, seconds: float
    ) -> None: ...
    def extension_point(self, point: str, profile: str, status: str, seconds: float) -> None: ...


@cache
def label_of(event: ClusterEvent) -> str:
    """`NodeAdd`, `AssignedPodUpdatePodLabel`."""
    words = (event.action.name or "").split("_")
    return str(event.resource) + "".join(word.capitalize() for word in words)
