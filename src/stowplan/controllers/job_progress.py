"""How far a Job is: what its status has counted, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from stowplan.controllers.kinds import Json, Plain, PodView

INDEX = "batch.kubernetes.io/job-completion-index"


class Verdict(NamedTuple):
    succeeded: bool
    reason: str
    message: str
    is_final: bool = False


def verdict_on(job: Plain) -> Verdict | None:
    """What the conditions say already."""
    known = {each["type"]: each for each in job.status.get("conditions", ()) if each["status"] == "True"}
    for kind, succeeded, is_final in (
        ("Complete", True, True),
        ("Failed", False, True),
        ("SuccessCriteriaMet", True, False),
        ("FailureTarget", False, False),
    ):
        if kind in known:
            said = known[kind]
            return Verdict(succeeded, said.get("reason", ""), said.get("message", ""), is_final)
    return None


class Counts(msgspec.Struct):
    """Of the job's pods: those counted, and those that ended and are written down by uid only."""

    wanted: int | None
    """Completions; None if one that succeeds is enough, and the others are left to end."""
    indexed: bool
    succeeded: int
    failed: int
    done: set[str]
    broken: set[str]
    completed: set[int]

    @classmethod
    def of(cls, job: Plain) -> Counts:
        status, waiting = job.status, job.status.get("uncountedTerminatedPods") or {}
        return cls(
            job.spec.get("completions"),
            job.spec.get("completionMode") == "Indexed",
            status.get("succeeded", 0),
            status.get("failed", 0),
            set(waiting.get("succeeded") or ()),
            set(waiting.get("failed") or ()),
            indexes_of(status.get("completedIndexes", "")),
        )

    @property
    def uncounted(self) -> set[str]:
        return self.done | self.broken

    def fold(self, ended: Iterable[PodView]) -> None:
        """Counts what was written down, whose finalizers are gone, and writes down what ended since."""
        before = self.uncounted
        self.succeeded += 0 if self.indexed else len(self.done)
        self.failed += len(self.broken)
        self.done, self.broken = set(), set()
        for pod in ended:
            if pod.uid in before:
                continue
            if pod.phase != "Succeeded":  # one that was deleted before its end counts as a failure
                self.broken.add(pod.uid)
                continue
            self.done.add(pod.uid)
            if self.indexed:
                self.completed.add(int(pod.metadata.annotations.get(INDEX, "0")))
        if self.indexed:
            self.succeeded = len(self.completed)

    @property
    def succeeded_all(self) -> int:
        return self.succeeded if self.indexed else self.succeeded + len(self.done)

    @property
    def failed_all(self) -> int:
        return self.failed + len(self.broken)

    def are_enough(self, active: int) -> bool:
        """Whether no more need to succeed; without a number, one must, and the others must have ended."""
        if self.wanted is None:
            return bool(self.succeeded_all) and not active
        return self.succeeded_all >= self.wanted

    def missing(self, active: int) -> int:
        """How many pods may be at work, besides what their number is limited to."""
        if self.wanted is None:
            return active if self.succeeded_all else 2**31
        return max(self.wanted - self.succeeded_all, 0)

    def as_status(self) -> Json:
        uncounted = {"succeeded": sorted(self.done) or None, "failed": sorted(self.broken) or None}
        found: Json = {
            "succeeded": self.succeeded,
            "failed": self.failed,
            "uncountedTerminatedPods": uncounted,
        }
        if self.indexed:
            found["completedIndexes"] = spelled(self.completed)
        return found


def indexes_of(text: str) -> set[int]:
    """`1,3-5` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def spelled(indexes: set[int]) -> str:
    """Numbers as `1,3-5`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
