"""Makes a record the decision again that it was packed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from stowplan.api.pod import Pod
from stowplan.framework.decision import UNRESOLVABLE_BIT, Decision, ScoreColumn, Statuses, Verdicts
from stowplan.journal.columns import Values
from stowplan.journal.packing import FEW_REASONS
from stowplan.journal.record import KeptFilter, KeptScores, Record

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable


def decision_of(record: Record) -> Decision:
    """The decision as it was made, but for what plugins remembered and what is not told of its pod."""
    nodes = _KeptNodes(list(record.names[: record.node_count]))
    decision = Decision(_pod_of(record), cast("NodeTable", nodes))
    if record.looked_at is not None:
        decision.looked_at = record.looked_at
    looked_at = len(decision.looked_at)
    if record.not_looked_at is not None:
        bits = np.frombuffer(record.not_looked_at, np.uint8)
        decision.not_looked_at = np.unpackbits(bits, count=looked_at).astype(np.bool_)
    decision.narrowed_by, decision.overruled = record.narrowed_by, dict(record.overruled)
    decision.pre_filter, decision.post_filter = record.pre_filter, record.post_filter
    decision.filters = [verdicts_of(each) for each in record.filters]
    decision.chosen, decision.nominated = record.chosen or None, record.nominated or None
    if record.chosen or record.is_scored or record.scores:
        passing = ~decision.refused()
        if decision.not_looked_at is not None:
            passing &= ~decision.not_looked_at
        decision.feasible = decision.looked_at[passing]
    decision.scores = [
        ScoreColumn(each.plugin, each.weight, _scores(each, decision.feasible), None)
        for each in record.scores
    ]
    decision.has_scorers = record.has_scorers
    if record.is_scored:
        decision.differences = np.zeros(len(decision.feasible), np.int64)
        for each in decision.scores:
            decision.differences += each.weighted
    decision.victims = tuple(_named(key, priority=priority) for key, priority in record.victims)
    decision.error = record.error or None
    return decision


class _KeptNodes:
    """As much of a table of nodes as a decision needs to know."""

    def __init__(self, names: list[str]) -> None:
        self.live, self.names, self.rows = self, names, np.arange(len(names))


def _pod_of(record: Record) -> Pod:
    pod = record.pod
    return _named(pod.key, uid=pod.uid, priority=pod.priority, nominated=pod.nominated)


def _named(key: str, *, uid: str = "", priority: int = 0, nominated: str = "") -> Pod:
    namespace, _, name = key.partition("/")
    return Pod.decode(
        msgspec.json.encode(
            {
                "metadata": {"namespace": namespace, "name": name, "uid": uid},
                "spec": {"priority": priority},
                "status": {"nominatedNodeName": nominated},
            }
        )
    )


def verdicts_of(kept: KeptFilter) -> Verdicts | Statuses:
    column = kept.column.whole()
    if kept.statuses:
        refused = np.flatnonzero(column)
        by_row = {place: kept.statuses[column[place] - 1] for place in refused.tolist()}
        return Statuses(kept.plugin, by_row, column > 0)
    if column.dtype == np.uint8:
        bits = column.astype(np.uint64)
        column = bits & np.uint64(127) | (bits >> np.uint64(FEW_REASONS)) << np.uint64(UNRESOLVABLE_BIT)
    return Verdicts(kept.plugin, tuple(kept.reasons), column, column > 0)


def _scores(kept: KeptScores, feasible: Values) -> Values:
    values = kept.column.whole()
    if len(values) != len(feasible):
        values = values[feasible]
    return values.astype(np.int16) if values.dtype == np.uint8 else values
