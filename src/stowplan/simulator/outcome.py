"""The answer to a what-if: what became of each pod that was decided, moved or evicted."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from stowplan.api.pod import Pod
from stowplan.explain.report import Rejection


class Cause(StrEnum):
    """Why a pod has to be decided."""

    NEW = "new"
    PENDING = "pending"
    DRAINED = "drained"
    LOST = "lost"
    EVICTED = "evicted"
    AFRESH = "afresh"


class Ending(StrEnum):
    PLACED = "placed"
    """It lands on a node; `victims` had to go for it."""
    PENDING = "pending"
    HELD_BACK = "held back"
    """A plugin such as SchedulingGates keeps it from being attempted."""
    GONE = "gone"
    """It has no controller that would make it again."""
    STAYS = "stays"
    """A disruption budget does not let it be evicted from the node that is drained."""
    ELSEWHERE = "other scheduler"
    """No profile has the name of its scheduler."""
    FAILED = "failed"
    """A plugin raised."""


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to a pod. One that its controller creates again is listed under its current name."""

    pod: Pod
    cause: Cause
    ending: Ending
    node: str = ""
    """The node that it gets or keeps."""
    before: str = ""
    """The node that it was on."""
    victims: tuple[str, ...] = ()
    evicted_by: str = ""
    message: str = ""
    """For a pod without a node, kube-scheduler's message; for others, a remark or nothing."""
    rejections: tuple[Rejection, ...] = ()
    """What it waits for, in groups of nodes; of pods of very many kinds, only the first have it."""

    @property
    def is_moved(self) -> bool:
        return self.ending is Ending.PLACED and bool(self.before) and self.node != self.before


class GroupFate(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a pod group."""

    group: str
    starts: bool
    text: str
    """How many of its pods fit, and what is missing."""


class Outcome(msgspec.Struct, frozen=True):
    fates: tuple[Fate, ...]
    """In the order in which they were decided."""
    changes: tuple[str, ...] = ()
    """What was supposed, in words."""
    groups: tuple[GroupFate, ...] = ()
    """In the order in which they were decided."""

    @property
    def placed(self) -> list[Fate]:
        return list(self.having(Ending.PLACED))

    @property
    def pending(self) -> list[Fate]:
        return list(self.having(Ending.PENDING))

    @property
    def evicted(self) -> list[Fate]:
        """Pods that were evicted for others, wherever they went afterwards."""
        return [each for each in self.fates if each.evicted_by]

    def having(self, *endings: Ending) -> Iterator[Fate]:
        return (each for each in self.fates if each.ending in endings)


def as_json(outcome: Outcome) -> dict[str, object]:
    """Plain data for programs: a count by result, then pod by pod."""
    counts = {ending.value: len(list(outcome.having(ending))) for ending in Ending}
    return {
        "changes": list(outcome.changes),
        "counts": {ending: count for ending, count in counts.items() if count},
        **({"groups": msgspec.to_builtins(outcome.groups)} if outcome.groups else {}),
        "pods": [_plain(each) for each in outcome.fates],
    }


def _plain(fate: Fate) -> dict[str, object]:
    return {
        "pod": fate.pod.key,
        "cause": fate.cause,
        "outcome": fate.ending,
        "node": fate.node or None,
        "before": fate.before or None,
        "victims": list(fate.victims),
        "evictedBy": fate.evicted_by or None,
        "message": fate.message,
        "refused": [
            {
                "plugin": each.status.plugin,
                "code": each.status.code.wire_name,
                "reasons": list(each.status.reasons),
                "nodes": len(each.nodes),
                "detail": each.detail,
            }
            for each in fate.rejections
        ],
    }
