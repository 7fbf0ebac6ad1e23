"""Changes that would alter a decision, and the answers of a running scheduler. Imports no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stowplan.explain.layout import wrapped

if TYPE_CHECKING:
    from stowplan.api.node import NodeObject
    from stowplan.api.pod import Pod

SHOWN = 3
"""Changes of one kind: more of them would tell nothing new."""


class Flip(NamedTuple):
    """Where the pod would go instead."""

    node: str
    by_preemption: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What to change, and where the pod would go then."""

    kind: str
    text: str
    flip: Flip
    was: Any = None
    now: Any = None
    pod: Pod | None = None
    """The pod, changed."""
    node: NodeObject | None = None
    """The node, changed."""
    weight: tuple[str, int] | None = None
    """A plugin and its new weight."""
    less: Pod | int | None = None
    """One step smaller, which changes nothing: the pod, or the weight. None where there are no steps."""


class Changes(msgspec.Struct, frozen=True):
    found: tuple[Change, ...] = ()
    is_complete: bool = True
    """False where time ran out before all kinds had been tried."""
    tried: str = "single change that was tried"


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


def changes_text(changes: Changes, *, is_placed: bool) -> str:
    """For a pod that has a node, or has none, as long as nothing is changed."""
    aim = "send it elsewhere" if is_placed else "find it a node"
    left = "" if changes.is_complete else "; time ran out before all had been tried"
    if not changes.found:
        return f"No {changes.tried} would {aim}{left}."
    lines = [f"Any one of these changes, and none smaller of its kind, would {aim}{left}:"]
    for each in changes.found:
        where = f"evicts pods on {each.flip.node}" if each.flip.by_preemption else each.flip.node
        lines.append(wrapped(f"{each.text}: {where}", indent=5, start="   - "))
    return "\n".join(lines)


def present_changes_text(answer: ChangesAnswer) -> str:
    """What a scheduler worked out when it was asked: the decision may be older."""
    would = "find no node" if answer.node is None else f"go to {answer.node}"
    basis = wrapped(f"Worked out on the cluster as it is now, where it would {would}.")
    return f"{basis}\n{changes_text(changes_of(answer), is_placed=answer.node is not None)}"
