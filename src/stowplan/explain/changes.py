"""Changes that would alter a decision, and the answers of a running scheduler. Imports no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stowplan.explain.layout import wrap

if TYPE_CHECKING:
    from stowplan.api.node import NodeObject
    from stowplan.api.pod import Pod

MAX_PER_KIND = 3
"""How many changes of one kind are listed."""


class Flip(NamedTuple):
    """The different outcome: where the pod would go."""

    node: str
    by_preemption: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and where the pod would go after it."""

    kind: str
    text: str
    flip: Flip
    was: object = None
    now: Any = None
    pod: Pod | None = None
    """The changed pod."""
    node: NodeObject | None = None
    """The changed node."""
    weight: tuple[str, int] | None = None
    """A plugin and its new weight."""
    less: Pod | int | None = None
    """The next smaller change, which has no effect: a pod or a weight. None if the change has no size."""


class Changes(msgspec.Struct, frozen=True):
    found: tuple[Change, ...] = ()
    is_complete: bool = True
    """False if time ran out before all kinds were tried."""
    tried: str = "single change that was tried"


class Printed(msgspec.Struct, frozen=True):
    """Text for people, or data for programs, or an error."""

    text: str = ""
    data: dict[str, object] | None = None
    fault: str = ""


class ReportedChange(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    text: str
    was: object
    now: object
    node: str
    """Where the pod would go."""
    by_preemption: bool


class ChangesAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of a running scheduler, computed when it was asked, not when the pod was decided."""

    node: str | None
    """Where the pod would go without a change."""
    changes: tuple[ReportedChange, ...]
    is_complete: bool
    notes: tuple[str, ...] = ()
    """What plugins say about nodes that they rejected."""


def report_change(change: Change) -> ReportedChange:
    flip = change.flip
    return ReportedChange(change.kind, change.text, change.was, change.now, flip.node, flip.by_preemption)


def plain_changes(changes: Changes) -> list[dict[str, object]]:
    """The changes as plain data."""
    return [msgspec.to_builtins(report_change(each)) for each in changes.found]


def changes_of(answer: ChangesAnswer) -> Changes:
    """The changes of an answer, without the changed objects."""
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
    """Describe the changes. `is_placed` says whether the pod has a node without them."""
    aim = "move it to another node" if is_placed else "let it fit"
    left = "" if changes.is_complete else "; time ran out before all changes were tried"
    if not changes.found:
        return wrap(f"No {changes.tried} would {aim}{left}.")
    lines = [wrap(f"Each of these changes alone would {aim}; no smaller one of its kind would{left}:")]
    for each in changes.found:
        where = f"evicts pods on {each.flip.node}" if each.flip.by_preemption else each.flip.node
        lines.append(wrap(f"{each.text}: {where}", indent=5, start="   - "))
    return "\n".join(lines)


def present_changes_text(answer: ChangesAnswer) -> str:
    """Describe changes computed when the scheduler was asked: the decision may be older."""
    would = "fit nowhere" if answer.node is None else f"go to {answer.node}"
    basis = wrap(f"Computed for the cluster as it is now, where the pod would {would}.")
    basis = "\n".join([basis, *(wrap(note, indent=5, start="   - ") for note in answer.notes)])
    return f"{basis}\n{changes_text(changes_of(answer), is_placed=answer.node is not None)}"
