"""What a plugin answers: a code and, where it refuses, the reasons."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3
    """Refused, and evicting pods would not help."""
    WAIT = 4
    SKIP = 5
    PENDING = 6

    @property
    def wire_name(self) -> str:
        return _WIRE_NAMES[self]

    @property
    def is_rejection(self) -> bool:
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


class Status(msgspec.Struct, frozen=True):
    """An answer; None stands for success everywhere."""

    code: Code = Code.SUCCESS
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    timeout: float = 0.0
    """With WAIT: for how many seconds."""
    stack: str = ""
    """With ERROR: the traceback of what the plugin raised, for the log."""
    was_raised: bool = False
    """With ERROR: the plugin raised it instead of returning it."""
    keeps_nomination: bool = False
    """From post_filter: no other node was looked for, so the pod stays nominated to the one it has."""

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        return cls(Code.UNRESOLVABLE, reasons)

    @classmethod
    def pending(cls, *reasons: str) -> Status:
        return cls(Code.PENDING, reasons)

    @classmethod
    def error(cls, text: str, stack: str = "") -> Status:
        return cls(Code.ERROR, (text,), stack=stack)

    @classmethod
    def skip(cls) -> Status:
        return SKIP

    @classmethod
    def wait(cls, timeout: float, *reasons: str) -> Status:
        return cls(Code.WAIT, reasons, timeout=timeout)

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """The same answer, signed."""
        return msgspec.structs.replace(self, plugin=plugin)


SKIP = Status(Code.SKIP)
