"""A Record: a Decision and what came of it, in the least room that holds all of its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.framework.status import Status
from stowplan.journal.columns import Column


class Outcome(StrEnum):
    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What came of a decision."""

    profile: str
    number: int
    """Of the attempts at the pod, from 1."""
    time: float
    """When it began."""
    seconds: float
    """Until its outcome was known."""
    outcome: Outcome
    message: str = ""
    """Why it came to nothing."""
    wakes: Mapping[str, str] = {}
    """By rejecting plugin, what would make the pod worth another try."""


class KeptPod(msgspec.Struct, frozen=True, gc=False, array_like=True):
    namespace: str
    name: str
    uid: str
    priority: int = 0
    nominated: str = ""
    """The node that was promised to it before."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class KeptFilter(NamedTuple):
    """What a filter said of the nodes looked at."""

    plugin: str
    reasons: Sequence[str]
    """What the bits of the column mean."""
    statuses: tuple[Status, ...]
    """Where there are some, the column numbers them from 1, and 0 is no refusal."""
    column: Column


class KeptScores(msgspec.Struct, frozen=True, eq=False, gc=False):
    plugin: str
    weight: int
    column: Column
    """For the nodes that fit in order, or for all nodes by row, where that is at hand: it changes less."""


class Record(msgspec.Struct, eq=False, gc=False, kw_only=True):
    number: int
    """In the order in which outcomes were known, from 1, in one run of a scheduler."""
    pod: KeptPod
    attempt: Attempt
    node: str = ""
    """Where the pod went."""
    nominated: str = ""
    victims: tuple[tuple[str, int], ...] = ()
    """Pods to be evicted, with their priorities."""
    names: Sequence[str]
    """The nodes by row, in a list that decisions share: the first `node_count` are meant."""
    node_count: int
    looked_at: NDArray[np.intp] | None = None
    """Rows; None for all."""
    not_looked_at: bytes | None = None
    """A bit for each of these."""
    narrowed_by: tuple[str, ...] = ()
    pre_filter: Status | None = None
    post_filter: Status | None = None
    filters: tuple[KeptFilter, ...] = ()
    overruled: Mapping[int, Status] = {}
    scores: tuple[KeptScores, ...] = ()
    chosen: str = ""
    """What the cycle chose; the node, unless something after the choice failed."""
    is_scored: bool = False
    has_scorers: bool = True
    error: str = ""
    bytes: int = 0
    """What it takes, with what later ones share with it."""
