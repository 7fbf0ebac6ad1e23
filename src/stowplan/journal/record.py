"""A Record: a Decision with its outcome, packed into little memory; and back to a Decision.

Most records share nearly all of their columns with earlier ones: see `columns.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import msgspec
import numpy as np

from stowplan.api.pod import Pod
from stowplan.framework.decision import (
    UNRESOLVABLE_BIT,
    Decision,
    Evidence,
    ScoreColumn,
    Statuses,
    Verdicts,
)
from stowplan.framework.status import Status
from stowplan.journal.columns import Column, ColumnStore, Values

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable

RECORD_BYTES, STATUS_BYTES = 1500, 300
"""The memory of a record without its columns and texts, and of each of its statuses."""
NAME_BYTES = 8
"""Per name in a list of names: the names themselves belong to the cluster."""
MAX_UNIFORM = 1000
FEW_REASONS = 7
"""So many reasons, and the flag for unresolvable, fit into the bits of one byte."""
PLACE = np.dtype("<i4")

UnixTime = Annotated[float, msgspec.Meta(title="UnixTime")]
"""Seconds since 1970."""


class Outcome(StrEnum):
    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The outcome of a decision."""

    profile: str
    number: int = msgspec.field(name="attempt")
    """Counts the attempts at the pod, from 1."""
    time: UnixTime
    """When it began."""
    seconds: float
    """How long it took until the outcome was known."""
    outcome: Outcome
    message: str = ""
    """Why it failed."""
    wakes: Mapping[str, str] = {}
    """The events that would requeue the pod, by the plugin that rejected it."""


class Victim(NamedTuple):
    """A pod to evict."""

    pod: str
    priority: int


class NodeNames:
    """The names of the nodes by row: the first `count` of a list that decisions share and that may grow."""

    def __init__(self, shared: Sequence[str], count: int) -> None:
        self.shared, self.count = shared, count

    def listed(self) -> list[str]:
        return list(self.shared[: self.count])


class PackedFilter(NamedTuple):
    """The verdicts of a filter on the nodes it was run on."""

    plugin: str
    reasons: Sequence[str]
    """The meaning of the bits of the column, if there are no statuses."""
    statuses: tuple[Status, ...]
    """If there are any, the column has their numbers from 1, and 0 where the node passed."""
    column: Column


class PackedScores(msgspec.Struct, frozen=True, eq=False, gc=False, array_like=True):
    plugin: str
    weight: int
    column: Column
    """For the feasible nodes in order; or for all nodes by row, which changes less, if that is known."""


class Record(Evidence, kw_only=True, gc=False, array_like=True):
    """A field added here or to Evidence is stored in the journal and part of the JSON.

    It is a column of the Parquet files too if its type is one that `parquet.arrow_type` knows.
    """

    number: int
    """Counts the records of one run of a scheduler, from 1, in the order in which outcomes were known."""
    namespace: str
    pod: str
    """namespace/name"""
    uid: str = ""
    priority: int = 0
    nominated_before: str = ""
    """The node that an earlier attempt nominated."""
    attempt: Attempt
    node: str | None = None
    """Where the pod was bound."""
    victims: tuple[Victim, ...] = ()
    is_scored: bool = False
    nodes: NodeNames
    looked_at: bytes | None = None
    """Rows as int32; None for all."""
    not_looked_at: bytes | None = None
    """A bit for each node of `looked_at`."""
    filters: tuple[PackedFilter, ...] = ()
    scores: tuple[PackedScores, ...] = ()
    size: int = 0
    """The memory it takes in bytes, including what later records share with it."""

    def skipped(self) -> Values | None:
        """A mask over the nodes looked at: those that a search over a sample did not reach."""
        if self.not_looked_at is None:
            return None
        count = self.node_count if self.looked_at is None else len(self.looked_at) // PLACE.itemsize
        bits = np.frombuffer(self.not_looked_at, np.uint8)
        return np.unpackbits(bits, count=count).astype(np.bool_)

    def decision(self) -> Decision:
        """The decision as it was made, without the state of plugins and the pod's spec."""
        names = self.nodes.listed()
        pod = _make_pod(self.pod, self.uid, self.priority, self.nominated_before)
        decision = Decision(pod, cast("NodeTable", _RestoredNodes(names)))
        for name in _EVIDENCE:
            setattr(decision, name, getattr(self, name))
        if self.looked_at is not None:
            decision.looked_at = np.frombuffer(self.looked_at, PLACE).astype(np.intp)
        decision.not_looked_at = self.skipped()
        decision.filters = [unpack_filter(each) for each in self.filters]
        if self.chosen or self.is_scored or self.scores:
            passing = ~decision.rejected_rows()
            if decision.not_looked_at is not None:
                passing &= ~decision.not_looked_at
            decision.feasible = decision.looked_at[passing]
        decision.scores = [
            ScoreColumn(each.plugin, each.weight, _unpack_scores(each, decision.feasible), None)
            for each in self.scores
        ]
        if self.is_scored:
            decision.relative_totals = np.zeros(len(decision.feasible), np.int64)
            for each in decision.scores:
                decision.relative_totals += each.weighted
        decision.victims = tuple(_make_pod(each.pod, priority=each.priority) for each in self.victims)
        return decision


_EVIDENCE = Evidence.__struct_fields__


class RecordMaker:
    """Packs decisions. `room` is the memory in bytes for the columns that new ones are compared with."""

    def __init__(self, room: int) -> None:
        self._columns = ColumnStore(room)
        self._uniform: dict[int, tuple[ScoreColumn, PackedScores]] = {}
        self._nodes = NodeNames((), 0)
        self.made = 0
        """How many records were made."""

    def make_record(self, decision: Decision, attempt: Attempt) -> Record:
        pod, shape, node_count = decision.pod, id(decision.pod.shape), decision.node_count
        self.made += 1
        before, taken = self._columns.bytes, RECORD_BYTES + 2 * len(attempt.message)
        if self._nodes.shared is not decision.names or self._nodes.count != node_count:
            taken += 0 if self._nodes.shared is decision.names else NAME_BYTES * node_count
            self._nodes = NodeNames(decision.names, node_count)
        is_whole = len(decision.looked_at) == node_count
        skipped = decision.not_looked_at
        victims = decision.victims
        record = Record(
            number=self.made,
            namespace=pod.namespace,
            pod=pod.key,
            uid=pod.uid,
            priority=pod.priority,
            nominated_before=pod.nominated_node_name,
            attempt=attempt,
            node=decision.chosen if attempt.outcome is Outcome.SCHEDULED else None,
            victims=tuple([Victim(each.key, each.priority) for each in victims]) if victims else (),
            is_scored=decision.relative_totals is not None,
            nodes=self._nodes,
            looked_at=None if is_whole else decision.looked_at.astype(PLACE).tobytes(),
            not_looked_at=None if skipped is None else np.packbits(skipped).tobytes(),
            filters=tuple([self._filter(shape, each) for each in decision.filters]),
            scores=tuple([self._scores(shape, each, node_count) for each in decision.scores]),
        )
        for name in _EVIDENCE:  # faster than to pass them as keyword arguments
            setattr(record, name, getattr(decision, name))
        statuses = len(record.overruled) + sum([len(each.statuses) for each in record.filters])
        taken += STATUS_BYTES * statuses + len(record.not_looked_at or b"") + len(record.looked_at or b"")
        record.size = taken + self._columns.bytes - before
        return record

    def _scores(self, shape: int, found: ScoreColumn, node_count: int) -> PackedScores:
        if found.uniform is not None:
            return self._pack_uniform(found, node_count)
        source = found.scores if found.everywhere is None else found.everywhere
        column = self._columns.column((shape, found.plugin, len(source)), source, _pack_scores)
        return PackedScores(found.plugin, found.weight, column)

    def _pack_uniform(self, found: ScoreColumn, node_count: int) -> PackedScores:
        """Most of these recur as the same object."""
        known = self._uniform.get(id(found))
        if known is None or known[0] is not found or known[1].column.length != node_count:
            assert found.uniform is not None
            column = self._columns.flat(found.uniform, node_count)
            if len(self._uniform) > MAX_UNIFORM:
                self._uniform.clear()
            known = self._uniform[id(found)] = (found, PackedScores(found.plugin, found.weight, column))
        return known[1]

    def _filter(self, shape: int, found: Verdicts | Statuses) -> PackedFilter:
        if isinstance(found, Verdicts):
            pack = _pack_bits if len(found.reasons) <= FEW_REASONS else _keep
            column = self._columns.column((shape, found.plugin, pack), found.bits, pack)
            return PackedFilter(found.plugin, found.reasons, (), column)
        numbers: dict[Status, int] = {}
        source = np.zeros(len(found.fails), np.uint32)
        for place, status in found.by_row.items():
            source[place] = numbers.setdefault(status, len(numbers) + 1)
        column = self._columns.column((shape, found.plugin, _keep), source, _keep)
        return PackedFilter(found.plugin, (), tuple(numbers), column)


def _pack_scores(scores: Values) -> Values:
    """Plugins give 0 to 100; an extender may give anything."""
    return scores.astype(np.uint8) if scores.dtype == np.int16 else scores


def _pack_bits(bits: Values) -> Values:
    """The bits of the reasons, and above them the flag for unresolvable."""
    octets = bits.view(np.uint8).reshape(-1, 8)
    first, last = (0, 7) if sys.byteorder == "little" else (7, 0)
    packed: Values = octets[:, first] | octets[:, last]
    return packed


def _keep(values: Values) -> Values:
    return values


def unpack_filter(packed: PackedFilter) -> Verdicts | Statuses:
    column = packed.column.whole()
    if packed.statuses:
        by_row = {place: packed.statuses[column[place] - 1] for place in np.flatnonzero(column).tolist()}
        return Statuses(packed.plugin, by_row, column > 0)
    if column.dtype == np.uint8:
        bits = column.astype(np.uint64)
        column = bits & np.uint64(127) | (bits >> np.uint64(FEW_REASONS)) << np.uint64(UNRESOLVABLE_BIT)
    return Verdicts(packed.plugin, tuple(packed.reasons), column, column > 0)


def _unpack_scores(packed: PackedScores, feasible: Values) -> Values:
    values = packed.column.whole()
    if len(values) != len(feasible):
        values = values[feasible]
    return values.astype(np.int16) if values.dtype == np.uint8 else values


class _RestoredNodes:
    """The part of a node table that a Decision reads."""

    def __init__(self, names: list[str]) -> None:
        self.live, self.names, self.rows = self, names, np.arange(len(names))


def _make_pod(key: str, uid: str = "", priority: int = 0, nominated: str = "") -> Pod:
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
