"""Changes that would change an outcome, as they were found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

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
