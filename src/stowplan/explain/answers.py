"""What a running scheduler answers: what it decided, ready to be printed, and what would change that.

Little is imported here: to ask takes no engine.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.explain.changes import Change, Changes, Flip


class Printed(msgspec.Struct, frozen=True):
    """Text for people, or data for programs; or why there is neither."""

    text: str = ""
    data: dict[str, Any] | None = None
    fault: str = ""


class ToldChange(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    text: str
    was: Any
    now: Any
    node: str
    """Where the pod would go."""
    by_preemption: bool


class ChangesAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What a running scheduler says: worked out when it was asked, not when the pod was decided."""

    node: str | None
    """Where the pod would go if nothing were changed."""
    changes: tuple[ToldChange, ...]
    is_complete: bool


def told(change: Change) -> ToldChange:
    flip = change.flip
    return ToldChange(change.kind, change.text, change.was, change.now, flip.node, flip.by_preemption)


def plain_changes(changes: Changes) -> list[dict[str, Any]]:
    """For programs."""
    return [msgspec.to_builtins(told(each)) for each in changes.found]


def changes_of(answer: ChangesAnswer) -> Changes:
    """What was told, as far as words and programs ask for it."""
    found = (
        Change(
            kind=each.kind,
            text=each.text,
            flip=Flip(each.node, each.by_preemption),
            was=each.was,
            now=each.now,
        )
        for each in answer.changes
    )
    return Changes(tuple(found), answer.is_complete)
