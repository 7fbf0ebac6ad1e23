"""A pod on its way through the queue, and what the queue counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal, Protocol

from stowplan.api.pod import Pod
from stowplan.framework.events import ClusterEvent

NOBODY: frozenset[str] = frozenset()


class Place(StrEnum):
    """Where a pod waits; pending pods are counted by it."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"


@dataclass(slots=True, eq=False)
class QueuedPod:
    pod: Pod
    timestamp: float
    """When it was added, or requeued after a failed attempt."""
    place: Place | None = None
    """None while it is being attempted, and once it is removed."""
    attempts: int = 0
    initial_attempt_timestamp: float | None = None
    """When it could be attempted for the first time."""
    unschedulable_plugins: frozenset[str] = NOBODY
    pending_plugins: frozenset[str] = NOBODY
    """Plugins that wait for something of their own: after that, the pod skips its backoff."""
    gating_plugin: str = ""
    unschedulable_count: int = 0
    consecutive_errors: int = 0
    backoff_expiration: int | None = None
    held_until: float = 0.0
    """Backs off at least until then, since its attempts delay other pods."""
    waits_out_backoff: bool = False
    """Whether even an idle scheduler must wait until its backoff is over."""
    nominated_node: str = ""
    """The node it was last nominated to."""
    was_flushed: bool = False
    flush_timestamp: float = 0.0

    @property
    def rejectors(self) -> frozenset[str]:
        return self.unschedulable_plugins | self.pending_plugins


POD_ADDED = "UnschedulablePodAdd"
POD_UPDATED = "UnschedulablePodUpdate"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POPPED_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
TIMED_OUT = "UnschedulableTimeout"
POD_POPPED = "PodPopped"


class Recorder(Protocol):
    """Counts what the queue does. For the number of pending pods, ask the queue for `counts()`."""

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
