"""What a plugin answers: a code and, where it rejects, the reasons."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """What a `Status` means; the names of kube-scheduler's codes are in `wire_name`."""

    SUCCESS = 0
    ERROR = 1
    """Something failed: the attempt ends, and the pod is attempted again after its backoff."""
    UNSCHEDULABLE = 2
    """Rejected; evicting pods may help."""
    UNRESOLVABLE = 3
    """Rejected, and evicting pods would not help."""
    WAIT = 4
    """Only of `permit`: hold the pod."""
    SKIP = 5
    """Leave out this plugin's filter or score for the pod; of `bind`: leave it to the next plugin."""
    PENDING = 6
    """Rejected until something that the plugin waits for happens; the pod has no backoff then."""

    @property
    def wire_name(self) -> str:
        """The name of the code in logs and metrics, such as `UnschedulableAndUnresolvable`."""
        return _WIRE_NAMES[self]

    @property
    def is_rejection(self) -> bool:
        """Whether it rejects the pod or the node: UNSCHEDULABLE, UNRESOLVABLE or PENDING."""
        return self in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING)


_WIRE_NAMES = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.WAIT: "Wait",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}


class Preemption(msgspec.Struct, frozen=True):
    """What a search for pods to evict found where it did not help, for people who read a decision."""

    not_eligible: str = ""
    """Why pods were not searched at all."""
    not_helpful: int = 0
    """On how many nodes the pod was rejected for reasons that evicting pods would not resolve."""
    no_victims: int = 0
    """On how many nodes there is no pod that may be evicted."""
    protected: str = ""
    """A sentence about pods of lower priority that may not be evicted."""


class Status(msgspec.Struct, frozen=True):
    """The answer of a plugin. None means success wherever a Status is expected."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    """Why it rejects, for the pod's event and condition; each at most 1,000 characters."""
    plugin: str = ""
    """The plugin that answered; set by the framework."""
    timeout: float = 0.0
    """With WAIT: the longest time to hold the pod, in seconds."""
    stack: str = ""
    """With ERROR: the traceback of what the plugin raised, for the log."""
    was_raised: bool = False
    """With ERROR: the plugin raised it instead of returning it."""
    keeps_nomination: bool = False
    """From post_filter: no other node was looked for, so the pod stays nominated to the one it has."""
    preemption: Preemption | None = None
    """From post_filter of a plugin that preempts: what it found; `handle.preempt` sets it."""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        """Reject; evicting pods may help, so preemption considers the node."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        """Reject; evicting pods would not help, so preemption leaves the node alone."""
        return cls(Code.UNRESOLVABLE, reasons)

    @classmethod
    def pending(cls, *reasons: str) -> Status:
        """Reject until something happens that the plugin waits for; the pod has no backoff then."""
        return cls(Code.PENDING, reasons)

    @classmethod
    def error(cls, text: str, stack: str = "") -> Status:
        """Fail the attempt, as if the plugin had raised an exception with this text."""
        return cls(Code.ERROR, (text,), stack=stack)

    @classmethod
    def skip(cls) -> Status:
        """Leave out this plugin's filter (from `pre_filter`) or score (from `pre_score`) for this pod; from
        `bind`: let the next plugin bind it."""
        return SKIP

    @classmethod
    def wait(cls, timeout: float, *reasons: str) -> Status:
        """Hold the pod, from `permit` only, for at most `timeout` seconds, and never longer than 15 minutes.

        Its node stays reserved meanwhile. The pod is bound once every plugin that returned this has called
        `allow` on its entry in `handle.waiting_pods`; it is rejected when one calls `reject`, or when the
        time is over.
        """
        return cls(Code.WAIT, reasons, timeout=timeout)

    @property
    def is_error(self) -> bool:
        return self.code is Code.ERROR

    @property
    def message(self) -> str:
        """The reasons, joined by commas."""
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """The same answer with the name of the plugin that gave it."""
        return msgspec.structs.replace(self, plugin=plugin)


SKIP = Status(Code.SKIP)
