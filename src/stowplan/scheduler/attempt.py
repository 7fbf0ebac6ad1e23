"""One attempt at a pod: the decision and what followed from it."""

from __future__ import annotations

from typing import NamedTuple

from stowplan.api.pod import Pod
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Status
from stowplan.queue.queued_pod import QueuedPod


class Attempt(NamedTuple):
    queued: QueuedPod
    profile: Profile
    decision: Decision
    began: float
    """When the attempt began, by the host's clock."""
    seconds: float = 0.0
    """How long deciding took, during which no other pod was decided."""
    is_measured: bool = False
    """Whether the time of each plugin is measured, as in every tenth decision."""

    @property
    def pod(self) -> Pod:
        return self.queued.pod

    @property
    def state(self) -> CycleState:
        assert self.decision.state is not None
        return self.decision.state


class Failure(NamedTuple):
    """Why an attempt failed. Without rejectors the pod is requeued after its backoff."""

    message: str
    is_error: bool = True
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_moot: bool = False
    """Whether there is nothing to report: the pod is gone, has a node, or is not ours any more."""
    advice: str = ""
    """What an administrator can do about it, for the log only."""
    stack: str = ""
    """The traceback of what a plugin raised, for the log."""

    @property
    def reason(self) -> str:
        return "SchedulerError" if self.is_error else "Unschedulable"


def failure_of(decision: Decision) -> Failure:
    if decision.error is not None:
        return Failure(decision.error, stack=decision.stack)
    # parity: without any node the pod is Unschedulable, but as nobody refused it, it backs off like an error
    return Failure(
        decision.message, False, decision.rejectors, decision.pending_plugins, stack=decision.stack
    )


def failure_at(status: Status, plugin: str, doing: str, stack: str = "") -> Failure:
    """The failure of a pod that a plugin rejected after its node was chosen."""
    if status.code.is_rejection:
        message = fit_message(1, "", dict.fromkeys(status.reasons, 1))
        return Failure(message, False, frozenset((plugin,)) if plugin else frozenset())
    text = f'{doing} "{plugin}": {status.message}' if plugin else f"{doing}: {status.message}"
    return Failure(text, stack=stack)
