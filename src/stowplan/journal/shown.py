"""Records as plain data: what a scheduler's pages answer."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from stowplan.framework.decision import Verdicts
from stowplan.framework.status import Status
from stowplan.journal.columns import NOWHERE, Values
from stowplan.journal.record import KeptFilter, Outcome, Record
from stowplan.journal.restoring import decision_of, verdicts_of


class Plain(msgspec.Struct, rename="camel", kw_only=True):
    pass


class Summary(Plain):
    """A decision in a line."""

    number: int
    pod: str
    profile: str
    attempt: int
    time: float
    seconds: float
    outcome: Outcome
    node: str
    nominated: str
    message: str


class ShownStatus(Plain):
    code: str
    reasons: tuple[str, ...]
    plugin: str


class ShownFilter(Plain):
    """By node that was looked at: 0 where it has nothing against it, else n for `statuses[n - 1]`."""

    plugin: str
    statuses: list[ShownStatus]
    column: list[int]


class ShownScores(Plain):
    """By node that fits."""

    plugin: str
    weight: int
    scores: list[int]


class ShownDecision(Summary):
    """The whole evidence. Nodes go by their place in `nodes`."""

    uid: str
    priority: int
    nominated_before: str
    victims: tuple[tuple[str, int], ...]
    wakes: dict[str, str]
    nodes: list[str]
    looked_at: list[int] | None
    """None for all."""
    not_looked_at: list[int]
    """Places in `looked_at`."""
    narrowed_by: tuple[str, ...]
    pre_filter: ShownStatus | None
    post_filter: ShownStatus | None
    filters: list[ShownFilter]
    overruled: dict[int, ShownStatus]
    """By place in `looked_at`."""
    scores: list[ShownScores]
    chosen: str
    is_scored: bool
    has_scorers: bool
    error: str


class Waiting(Plain):
    """What a pod without a node waits for."""

    place: str
    """active, backoff, unschedulable, gated; `permit`, or `trying` while it is decided or bound."""
    plugins: tuple[str, ...] = ()
    """Those that hold it back or refused it."""
    wakes: dict[str, str] = {}
    attempts: int = 0
    """Those that are over, whether or not they are kept."""
    until: float | None = None
    """When its backoff ends."""
    scheduler: str = ""


class PodAnswer(Plain):
    """All that is known of a pod."""

    pod: str
    waiting: Waiting | None = None
    attempts: list[Summary] = []
    """The newest first."""
    decision: ShownDecision | None = None
    """The newest, or the one that was asked for; None where there is none yet."""


class ListAnswer(Plain):
    kept: int
    bytes: int
    budget: int
    decisions: list[Summary]
    """The newest first."""


def summary_of(record: Record) -> Summary:
    return Summary(**_summary(record))


def shown(record: Record) -> ShownDecision:
    skipped: Values = NOWHERE
    if record.not_looked_at is not None:
        count = record.node_count if record.looked_at is None else len(record.looked_at)
        bits = np.frombuffer(record.not_looked_at, np.uint8)
        skipped = np.flatnonzero(np.unpackbits(bits, count=count))
    return ShownDecision(
        **_summary(record),
        uid=record.pod.uid,
        priority=record.pod.priority,
        nominated_before=record.pod.nominated,
        victims=record.victims,
        wakes=dict(record.attempt.wakes),
        nodes=list(record.names[: record.node_count]),
        looked_at=None if record.looked_at is None else record.looked_at.tolist(),
        not_looked_at=skipped.tolist(),
        narrowed_by=record.narrowed_by,
        pre_filter=_status(record.pre_filter),
        post_filter=_status(record.post_filter),
        filters=[_filter(each) for each in record.filters],
        overruled={place: _shown_status(status) for place, status in record.overruled.items()},
        scores=[
            ShownScores(plugin=each.plugin, weight=each.weight, scores=each.scores.tolist())
            for each in decision_of(record).scores
        ],
        chosen=record.chosen,
        is_scored=record.is_scored,
        has_scorers=record.has_scorers,
        error=record.error,
    )


def _summary(record: Record) -> dict[str, Any]:
    attempt = record.attempt
    return {
        "number": record.number,
        "pod": record.pod.key,
        "profile": attempt.profile,
        "attempt": attempt.number,
        "time": attempt.time,
        "seconds": attempt.seconds,
        "outcome": attempt.outcome,
        "node": record.node,
        "nominated": record.nominated,
        "message": attempt.message,
    }


def _filter(kept: KeptFilter) -> ShownFilter:
    if kept.statuses:
        statuses, column = list(kept.statuses), kept.column.whole()
    else:
        verdicts = verdicts_of(kept)
        assert isinstance(verdicts, Verdicts)
        bits, first, column = np.unique(verdicts.bits, return_index=True, return_inverse=True)
        refusing = bits > 0
        statuses = [verdicts.status(row) for row in first[refusing].tolist()]
        column = column + refusing[:1].astype(np.intp)  # nothing refused is 0, also where it does not occur
    return ShownFilter(
        plugin=kept.plugin,
        statuses=[_shown_status(status) for status in statuses],
        column=column.tolist(),
    )


def _status(status: Status | None) -> ShownStatus | None:
    return None if status is None else _shown_status(status)


def _shown_status(status: Status) -> ShownStatus:
    return ShownStatus(code=status.code.wire_name, reasons=status.reasons, plugin=status.plugin)
