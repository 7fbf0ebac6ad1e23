"""The decisions that a scheduler keeps: `Decisions` has recent ones in memory and hands all to the journal.

A Record is a Decision with its outcome, packed into little memory, and can be turned back into a Decision.
Most records share nearly all of their columns with earlier ones: see `ColumnStore`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.framework.decision import (
    UNRESOLVABLE_BIT,
    Decision,
    Evidence,
    ScoreColumn,
    Statuses,
    Verdicts,
)
from stowplan.framework.scores import MAX_SCORE
from stowplan.framework.status import Status

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable


Values = NDArray[Any]

COLUMN_BYTES, BASE_BYTES, FLAT_BYTES = 450, 250, 150
"""The memory of a column, of a base and of a flat column, without their numbers."""
BASES_COMPARED = 3
"""Some columns alternate, such as those of pods spread over zones."""
MAX_FLAT = 1000
NOWHERE, NO_SCORES = np.empty(0, np.intp), np.empty(0, np.uint8)


class Base(msgspec.Struct, eq=False, gc=False):
    """Values that many columns start from; a single value stands for a column that is the same everywhere."""

    values: Values


FLAT = [Base(np.array([score], np.uint8)) for score in range(MAX_SCORE + 1)]


class Column:
    """A base with the places that differ from it. No msgspec type: `codec.py` encodes it with a hook."""

    __slots__ = ("base", "length", "places", "values")

    def __init__(self, base: Base, length: int, places: Values, values: Values) -> None:
        self.base, self.length, self.places, self.values = base, length, places, values

    @property
    def is_flat(self) -> bool:
        return len(self.base.values) == 1 and not len(self.places)

    def whole(self) -> Values:
        base = self.base.values
        column = np.full(self.length, base[0]) if len(base) == 1 and self.length != 1 else base.copy()
        column[self.places] = self.values
        return column


class _Known(msgspec.Struct, eq=False, gc=False):
    base: Base
    source: Values
    """The unpacked values of the base."""
    last: Values
    """The last source that resembled it, and its column."""
    column: Column


class ColumnStore:
    """Makes columns and counts their bytes. It holds up to `room` bytes itself, which are not counted.

    Which column a new one is compared with only affects its size: any of the same length would do.
    """

    def __init__(self, room: int) -> None:
        self.bytes = 0
        """The size of the columns made so far."""
        self._room = room
        self._held = 0
        self._known: dict[Hashable, list[_Known]] = {}
        self._flat: dict[tuple[int, int], Column] = {}
        self._differs = np.empty(0, np.bool_)

    def flat(self, value: int, length: int) -> Column:
        """A column with the same score everywhere."""
        found = self._flat.get((value, length))
        if found is None:
            if len(self._flat) > MAX_FLAT:
                self._flat.clear()
            found = self._flat[value, length] = Column(FLAT[value], length, NOWHERE, NO_SCORES)
            self.bytes += FLAT_BYTES
        return found

    def column(self, key: Hashable, source: Values, pack: Callable[[Values], Values]) -> Column:
        """`key` is shared by columns that are likely to be similar. `source` must not change later.

        `pack` converts the values to a smaller type.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = []
        for known in found:
            if known.last is source:
                return known.column
        for place, known in enumerate(found):
            column = self._difference(known, source, pack)
            if column is not None:
                known.last, known.column = source, column
                if place:
                    found.insert(0, found.pop(place))
                return column
        return self._new(found, source, pack(source))

    def _difference(self, known: _Known, source: Values, pack: Callable[[Values], Values]) -> Column | None:
        """None if they differ so much that a new base would cost less memory."""
        before, length = known.source, len(source)
        if len(before) != length or before.dtype != source.dtype:
            return None
        if len(self._differs) != length:
            self._differs = np.empty(length, np.bool_)
        places = np.not_equal(before, source, self._differs).nonzero()[0]
        if len(places) ** 2 > length:  # up to the root of the length costs the least memory overall
            return None
        self.bytes += COLUMN_BYTES + 9 * len(places)
        return Column(known.base, length, places, pack(source[places]))

    def _new(self, found: list[_Known], source: Values, values: Values) -> Column:
        base = Base(_shorten(values))
        column = Column(base, len(values), NOWHERE, values[:0])
        found.insert(0, _Known(base, source, source, column))
        del found[BASES_COMPARED:]
        self.bytes += COLUMN_BYTES + BASE_BYTES + base.values.nbytes
        self._held += 2 * source.nbytes + base.values.nbytes + COLUMN_BYTES
        if self._held > self._room:
            self._known.clear()
            self._held = 0
        return column


def _shorten(values: Values) -> Values:
    # Comparing the ends first is faster: they differ in most columns.
    is_flat = len(values) > 0 and values[0] == values[-1] and bool((values == values[0]).all())
    return values[:1].copy() if is_flat else values


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

    def to_list(self) -> list[str]:
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

    def skipped_mask(self) -> Values | None:
        """A mask over the nodes looked at: those that a search over a sample did not reach."""
        if self.not_looked_at is None:
            return None
        count = self.node_count if self.looked_at is None else len(self.looked_at) // PLACE.itemsize
        bits = np.frombuffer(self.not_looked_at, np.uint8)
        return np.unpackbits(bits, count=count).astype(np.bool_)

    def decision(self) -> Decision:
        """The decision as it was made, without the state of plugins and the pod's spec."""
        names = self.nodes.to_list()
        pod = _make_pod(self.pod, self.uid, self.priority, self.nominated_before)
        decision = Decision(pod, cast("NodeTable", _RestoredNodes(names)))
        for name in _EVIDENCE:
            setattr(decision, name, getattr(self, name))
        if self.looked_at is not None:
            decision.looked_at = np.frombuffer(self.looked_at, PLACE).astype(np.intp)
        decision.not_looked_at = self.skipped_mask()
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
        taken += sum([2 * len(note) for note in record.notes]) if record.notes else 0
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


MEMORY_BYTES = 64 * 2**20
BATCH = 8
"""How many decisions are packed at once, which takes half the time of packing each alone."""


class JournalState(Protocol):
    @property
    def is_failing(self) -> bool: ...
    @property
    def lost(self) -> int: ...


class Decisions:
    """`write` is called with every record, for a journal. A budget of 0 keeps none in memory."""

    def __init__(self, budget: int = MEMORY_BYTES, write: Callable[[Record], None] | None = None) -> None:
        self.budget, self.write = budget, write
        # A quarter is for what later records still share with those that were dropped.
        self._recent = RecentDecisions(budget // 2)
        self._maker = RecordMaker(budget // 4)
        self._fresh: list[tuple[Decision, Attempt]] = []
        self.journal: JournalState | None = None
        """The state of the journal on disk, while there is one."""

    @property
    def recent(self) -> RecentDecisions:
        self.flush()
        return self._recent

    def keep(self, decision: Decision, attempt: Attempt) -> None:
        """Keep the decision of an attempt whose outcome is known."""
        if self.budget or self.write is not None:
            self._fresh.append((decision, attempt))
            if len(self._fresh) >= BATCH:
                self.flush()

    def flush(self) -> None:
        """Pack the last few. The scheduler calls this every second, so that the journal has them soon."""
        fresh, self._fresh = self._fresh, []
        for decision, attempt in fresh:
            record = self._maker.make_record(decision, attempt)
            self._recent.add(record)
            if self.write is not None:
                self.write(record)


class RecentDecisions:
    """As many records as fit into the budget; the oldest are dropped first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._records: deque[Record] = deque()
        self._by_pod: dict[str, tuple[Record, ...]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._by_pod[record.pod] = (*self._by_pod.get(record.pod, ()), record)
        self.bytes += record.size
        while self.bytes > self.budget and self._records:
            self._drop()

    def of(self, pod: str) -> list[Record]:
        """The attempts at a pod (`namespace/name`) that are still in memory, the newest first."""
        return list(reversed(self._by_pod.get(pod, ())))

    def newest(self, limit: int, after: int = 0) -> Iterator[Record]:
        """The newest first, without those up to the number `after`."""
        for record in islice(reversed(self._records), limit):
            if record.number <= after:
                return
            yield record

    def pods(self) -> Iterator[str]:
        return iter(self._by_pod)

    def _drop(self) -> None:
        record = self._records.popleft()
        self.bytes -= record.size
        _, *others = self._by_pod.pop(record.pod)
        if others:
            self._by_pod[record.pod] = tuple(others)
