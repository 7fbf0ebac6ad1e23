"""Packs decisions into records that share what is the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from stowplan.framework.decision import Decision, ScoreColumn, Statuses, Verdicts
from stowplan.framework.status import Status
from stowplan.journal.columns import ColumnStore, Values
from stowplan.journal.record import Attempt, KeptFilter, KeptPod, KeptScores, Outcome, Record

RECORD_BYTES, STATUS_BYTES = 1500, 300
"""What a record takes besides its columns and its text, and each of its statuses."""
NAME_BYTES = 8
"""Of a list of names, for each: the names themselves are the cluster's."""
FLATS_KEPT = 1000
FEW_REASONS = 7
"""So many reasons and the mark for unresolvable are the bits of one byte."""


class RecordMaker:
    """`room` is for what is held to compare with, in bytes."""

    def __init__(self, room: int) -> None:
        self._columns = ColumnStore(room)
        self._flats: dict[int, tuple[ScoreColumn, KeptScores]] = {}
        self._names: Sequence[str] = ()
        self.made = 0
        """How many, so far."""

    def record_of(self, decision: Decision, attempt: Attempt) -> Record:
        pod, shape = decision.pod, id(decision.pod.shape)
        self.made += 1
        before, taken = self._columns.bytes, RECORD_BYTES + 2 * len(attempt.message)
        if self._names is not decision.names:
            self._names = decision.names
            taken += NAME_BYTES * len(decision.names)
        whole = len(decision.looked_at) == decision.node_count
        skipped = decision.not_looked_at
        chosen = decision.chosen or ""
        record = Record(
            number=self.made,
            pod=KeptPod(pod.namespace, pod.name, pod.uid, pod.priority, pod.nominated_node_name),
            attempt=attempt,
            node=chosen if attempt.outcome is Outcome.SCHEDULED else "",
            nominated=decision.nominated or "",
            victims=tuple((victim.key, victim.priority) for victim in decision.victims),
            names=decision.names,
            node_count=decision.node_count,
            looked_at=None if whole else decision.looked_at.copy(),
            not_looked_at=None if skipped is None else np.packbits(skipped).tobytes(),
            narrowed_by=decision.narrowed_by,
            pre_filter=decision.pre_filter,
            post_filter=decision.post_filter,
            filters=tuple([self._filter(shape, each) for each in decision.filters]),
            overruled=decision.overruled,
            scores=tuple([self._scores(shape, each, decision.node_count) for each in decision.scores]),
            chosen=chosen,
            is_scored=decision.differences is not None,
            has_scorers=decision.has_scorers,
            error=decision.error or "",
        )
        statuses = len(record.overruled) + sum(len(each.statuses) for each in record.filters)
        taken += STATUS_BYTES * statuses + len(record.not_looked_at or b"")
        taken += 0 if record.looked_at is None else record.looked_at.nbytes
        record.bytes = taken + self._columns.bytes - before
        return record

    def _scores(self, shape: int, found: ScoreColumn, node_count: int) -> KeptScores:
        if found.uniform is not None:
            return self._flat(found, node_count)
        source = found.scores if found.everywhere is None else found.everywhere
        column = self._columns.column((shape, found.plugin, len(source)), source, _bytes)
        return KeptScores(found.plugin, found.weight, column)

    def _flat(self, found: ScoreColumn, node_count: int) -> KeptScores:
        """Most of these come again and again, as the very same ones."""
        known = self._flats.get(id(found))
        if known is None or known[0] is not found or known[1].column.length != node_count:
            assert found.uniform is not None
            column = self._columns.flat(found.uniform, node_count)
            if len(self._flats) > FLATS_KEPT:
                self._flats.clear()
            known = self._flats[id(found)] = (found, KeptScores(found.plugin, found.weight, column))
        return known[1]

    def _filter(self, shape: int, found: Verdicts | Statuses) -> KeptFilter:
        if isinstance(found, Verdicts):
            packed = _few_bits if len(found.reasons) <= FEW_REASONS else _as_they_are
            column = self._columns.column((shape, found.plugin, packed), found.bits, packed)
            return KeptFilter(found.plugin, found.reasons, (), column)
        numbers: dict[Status, int] = {}
        source = np.zeros(len(found.fails), np.uint32)
        for place, status in found.by_row.items():
            source[place] = numbers.setdefault(status, len(numbers) + 1)
        column = self._columns.column((shape, found.plugin, _as_they_are), source, _as_they_are)
        return KeptFilter(found.plugin, (), tuple(numbers), column)


def _bytes(scores: Values) -> Values:
    """Those of plugins, which are 0 to 100; an extender's may be anything."""
    return scores.astype(np.uint8) if scores.dtype == np.int16 else scores


def _few_bits(bits: Values) -> Values:
    """The bits of the reasons, and above them the one that stands for unresolvable."""
    octets = bits.view(np.uint8).reshape(-1, 8)
    first, last = (0, 7) if sys.byteorder == "little" else (7, 0)
    packed: Values = octets[:, first] | octets[:, last]
    return packed


def _as_they_are(values: Values) -> Values:
    return values
