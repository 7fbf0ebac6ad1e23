"""Changes in words."""

from __future__ import annotations

from stowplan.explain.answers import ChangesAnswer, changes_of
from stowplan.explain.changes import Changes
from stowplan.explain.layout import wrapped


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
