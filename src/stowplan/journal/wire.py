"""The JSON that a scheduler's pages return about its decisions."""

from __future__ import annotations

import msgspec
import numpy as np

from stowplan.framework.decision import Verdicts
from stowplan.framework.status import Status
from stowplan.journal.codec import LEAVES
from stowplan.journal.record import PLACE, NodeNames, PackedFilter, Record, Victim, unpack_filter


class WireStruct(msgspec.Struct, rename="camel", kw_only=True):
    """Base of what is sent as JSON."""


class Waiting(WireStruct):
    """What a pod without a node waits for."""

    place: str
    """active, backoff, unschedulable or gated; `permit`; or `trying` while it is decided or bound."""
    plugins: tuple[str, ...] = ()
    """The plugins that gate or rejected it."""
    message: str = ""
    """What the plugin says that gates it."""
    wakes: dict[str, str] = {}
    attempts: int = 0
    """Finished attempts, whether or not they are recorded."""
    until: float | None = None
    """When its backoff ends."""
    scheduler: str = ""


class PodAnswer(WireStruct):
    """All that is known about a pod."""

    pod: str
    waiting: Waiting | None = None
    attempts: list[dict[str, object]] = []
    """Summaries, the newest first."""
    decision: dict[str, object] | None = None
    """The newest, or the one that was requested; None if there is none yet."""


class ListAnswer(WireStruct):
    kept: int
    bytes: int
    budget: int
    decisions: list[dict[str, object]]
    """Summaries, the newest first."""


def plain_record(record: Record) -> dict[str, object]:
    """All evidence as data for JSON. Nodes are given by their index in `nodes`."""
    found = {_camel(name): plain(leaf.get(record)) for name, leaf in LEAVES.items()}
    looked_at, skipped = record.looked_at, record.skipped_mask()
    found["lookedAt"] = None if looked_at is None else np.frombuffer(looked_at, PLACE).tolist()
    found["notLookedAt"] = [] if skipped is None else np.flatnonzero(skipped).tolist()
    found["scores"] = [
        {"plugin": each.plugin, "weight": each.weight, "scores": each.scores.tolist()}
        for each in record.decision().scores
    ]
    return found


SUMMARY = (
    "number",
    "pod",
    "profile",
    "attempt",
    "time",
    "seconds",
    "outcome",
    "node",
    "nominated",
    "message",
)


def summarize_record(record: Record) -> dict[str, object]:
    """A record in one line."""
    return {name: LEAVES[name].get(record) for name in SUMMARY}


def plain(value: object) -> object:
    """A value of a field as plain data."""
    match value:
        case Status():
            return {"code": value.code.wire_name, "reasons": value.reasons, "plugin": value.plugin}
        case NodeNames():
            return value.to_list()
        case PackedFilter():
            return _plain_filter(value)
        case Victim():
            return value._asdict()
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case tuple() if value and not isinstance(value[0], str):
            return [plain(each) for each in value]
    return value


def _plain_filter(packed: PackedFilter) -> dict[str, object]:
    """`column` has 0 for a node that passed, else n for `statuses[n - 1]`."""
    if packed.statuses:
        statuses, column = list(packed.statuses), packed.column.whole()
    else:
        verdicts = unpack_filter(packed)
        assert isinstance(verdicts, Verdicts)
        bits, first, column = np.unique(verdicts.bits, return_index=True, return_inverse=True)
        rejects = bits > 0
        statuses = [verdicts.status(row) for row in first[rejects].tolist()]
        column = column + rejects[:1].astype(np.intp)  # a node that passed is 0 even if there is none
    return {"plugin": packed.plugin, "statuses": plain(tuple(statuses)), "column": column.tolist()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
