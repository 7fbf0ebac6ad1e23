"""A Decision: the outcome of a scheduling cycle for one pod, with all the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.framework.status import Code, Status

if TYPE_CHECKING:  # a recorded decision is read without the rest of the engine
    from stowplan.cluster import NodeTable
    from stowplan.cluster.live_nodes import LiveNodeTable
    from stowplan.framework.plugin import Mask
    from stowplan.framework.scores import Scores
    from stowplan.framework.state import CycleState

SmallScores = NDArray[np.int16]
NO_NODES = "no nodes available to schedule pods"
NO_ROWS: NDArray[np.intp] = np.empty(0, np.intp)
NO_ROWS.flags.writeable = False
UNRESOLVABLE_BIT = 63


class Verdicts(NamedTuple):
    """The verdicts of a filter by row: bit k of `bits` is for `reasons[k]`, the last one for unresolvable."""

    plugin: str
    reasons: Sequence[str]
    bits: NDArray[np.uint64]
    fails: Mask

    def status(self, row: int) -> Status:
        bits = int(self.bits[row])
        reasons = tuple(reason for k, reason in enumerate(self.reasons) if bits >> k & 1)
        code = Code.UNRESOLVABLE if bits >> UNRESOLVABLE_BIT else Code.UNSCHEDULABLE
        return Status(code, reasons, self.plugin)

    def statuses(self, places: NDArray[np.intp]) -> list[Status]:
        """The statuses of many rows at once, of which few differ."""
        bits = self.bits[places].tolist()
        examples = dict(zip(bits, places.tolist(), strict=True))
        known = {each: self.status(place) for each, place in examples.items()}
        return [known[each] for each in bits]

    @property
    def codes(self) -> NDArray[np.int8]:
        unresolvable = self.bits >> np.uint64(UNRESOLVABLE_BIT) > 0
        return np.where(unresolvable, Code.UNRESOLVABLE, Code.UNSCHEDULABLE).astype(np.int8)


class Statuses(NamedTuple):
    """The verdicts of a filter that checks one node at a time: a status for each row it rejected."""

    plugin: str
    by_row: dict[int, Status]
    fails: Mask

    def status(self, row: int) -> Status:
        return self.by_row[row]

    def statuses(self, places: NDArray[np.intp]) -> list[Status]:
        return [self.by_row[place] for place in places.tolist()]


class Failures(Statuses):
    """Statuses of which some are errors."""

    __slots__ = ()


class ScoreColumn(msgspec.Struct, frozen=True, gc=False):
    plugin: str
    weight: int
    scores: SmallScores | Scores
    """For the feasible nodes in order: 0 to 100; extenders may give any number."""
    uniform: int | None
    """The score of all nodes, if it is known to be the same."""
    everywhere: SmallScores | None = None
    """For all nodes of the cluster by row, feasible or not, if known."""
    raw: SmallScores | Scores | None = None
    """What the plugin returned for the feasible nodes, if it has a `normalize_score`; not kept in records."""

    @property
    def weighted(self) -> Scores:
        return self.scores.astype(np.int64) * self.weight


class Evidence(msgspec.Struct, kw_only=True, eq=False):
    """The fields that a decision has in memory, in the journal and in JSON: each is named here alone."""

    node_count: int = 0
    candidate_count: int | None = None
    """How many nodes could be chosen, if the pod's group was confined to a domain."""
    narrowed_by: tuple[str, ...] = ()
    """Plugins whose PreFilter limited the search to some nodes."""
    pre_filter: Status | None = None
    """Set if a plugin rejected the pod as a whole."""
    overruled: dict[int, Status] = {}
    """Nodes, by index in `looked_at`, that do not fit only because of pods nominated to them."""
    has_scorers: bool = True
    """Without any score plugin, every node has a total of 1."""
    chosen: str | None = None
    """The node that the cycle chose."""
    post_filter: Status | None = None
    nominated: str | None = None
    error: str | None = None
    group: str = ""
    """What became of the pod's group, in a sentence or two; empty for a pod that was decided alone."""
    notes: tuple[str, ...] = ()
    """What plugins say about their scores as a whole, such as that their metrics are too old."""

    @property
    def narrowed_reason(self) -> str:
        return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(self.narrowed_by))}]"


class Decision(Evidence):
    """What became of a pod. Rows are those of the node table when the decision was made."""

    pod: Pod
    nodes: NodeTable | None
    """Only passed in; None afterwards, because a decision must not keep the table alive."""
    names: list[str] = []
    looked_at: NDArray[np.intp] = NO_ROWS
    """The rows that filters were run on: all, unless a plugin limited the search."""
    not_looked_at: Mask | None = None
    """The rows among them that a sampled search would not have reached."""
    filters: list[Verdicts | Statuses] = []
    feasible: NDArray[np.intp] = NO_ROWS
    scores: list[ScoreColumn] = []
    relative_totals: NDArray[Any] | None = None
    """The totals minus what all nodes have in common; None if a single node needed no scores."""
    state: CycleState | None = None
    """What plugins stored, for the extension points after the choice."""
    victims: tuple[Pod, ...] = ()
    stack: str = ""
    """The traceback of the plugin that raised `error`, for the log."""

    def __post_init__(self) -> None:
        nodes, self.nodes = self.nodes, None
        assert nodes is not None
        self.names = nodes.live.names
        self.node_count = len(self.names)
        self.looked_at = nodes.rows

    @property
    def best(self) -> NDArray[np.intp]:
        """The rows of the nodes with the highest total."""
        if self.chosen is None:
            return self.feasible[:0]
        if self.relative_totals is None:
            return self.feasible
        is_best: Mask = self.relative_totals == self.relative_totals.max()
        return self.feasible[is_best]

    def status_of(self, node_name: str) -> Status | None:
        """Why a node was rejected; None if it was not rejected or not evaluated."""
        if self.pre_filter is not None:
            return None
        places = np.flatnonzero(self.looked_at == self.names.index(node_name))
        return self._status(int(places[0])) if len(places) else None

    def rejected(self) -> dict[str, Status]:
        """The rejected nodes, with the status of the first filter that rejected each."""
        is_rejected = self.rejected_rows()
        found = {
            self.names[self.looked_at[place]]: status
            for place, status in self.overruled.items()
            if is_rejected[place]
        }
        for verdicts, fresh in self._first_rejections():
            places = np.flatnonzero(fresh & is_rejected)
            names = [self.names[row] for row in self.looked_at[places].tolist()]
            found.update(zip(names, verdicts.statuses(places), strict=True))
        return found

    def rejected_rows(self) -> Mask:
        """A mask over `looked_at`: the rows that some filter rejected."""
        mask = np.zeros(len(self.looked_at), np.bool_)
        for verdicts in self.filters:
            mask |= verdicts.fails[: len(mask)]
        mask[list(self.overruled)] = True
        return mask if self.not_looked_at is None else mask & ~self.not_looked_at

    def codes(self) -> NDArray[np.int8]:
        """The status code of every rejected node of the cluster, by row; 0 for the others."""
        codes = np.zeros(self.node_count, np.int8)
        if self.pre_filter is not None:
            codes[:] = self.pre_filter.code
            return codes
        if self.narrowed_by:
            codes[:] = Code.UNRESOLVABLE
            codes[self.looked_at] = 0
        for verdicts in reversed(self.filters):  # the first filter that rejects a node determines the code
            if isinstance(verdicts, Verdicts):
                codes[self.looked_at[verdicts.fails]] = verdicts.codes[verdicts.fails]
            else:
                for place, status in verdicts.by_row.items():
                    codes[self.looked_at[place]] = status.code
        for place, status in self.overruled.items():
            codes[self.looked_at[place]] = status.code
        return codes

    def victims_leaving(self, nodes: LiveNodeTable, node_name: str | None) -> Iterator[Pod]:
        """The pods that were evicted from a node and are still there; none where the pod cannot use it then.

        A pod that is nominated to the node waits for them, rather than have more pods evicted.
        """
        row = nodes.row_of(node_name) if node_name else None
        if row is not None and self.codes()[row] != Code.UNRESOLVABLE:
            yield from (other for other in nodes.pods_on(row) if other.is_preempted)

    def _status(self, place: int) -> Status | None:
        if place in self.overruled:
            return self.overruled[place]
        return next((each.status(place) for each in self.filters if each.fails[place]), None)

    def _first_rejections(self) -> Iterator[tuple[Verdicts | Statuses, Mask]]:
        """Each filter with the rows that it was the first to reject."""
        closed: Mask | None = None
        if self.overruled:
            closed = np.zeros(len(self.looked_at), np.bool_)
            closed[list(self.overruled)] = True
        for verdicts in self.filters:
            fails = verdicts.fails
            yield verdicts, fails if closed is None else fails & ~closed
            closed = fails if closed is None else closed | fails

    def histogram(self) -> dict[str, int]:
        """How many nodes were rejected for each reason."""
        counts: dict[str, int] = {}
        statuses = [*self.overruled.values()]
        for verdicts, fresh in self._first_rejections():
            if isinstance(verdicts, Statuses):
                statuses += [verdicts.by_row[place] for place in np.flatnonzero(fresh).tolist()]
                continue
            bits = verdicts.bits if fresh is verdicts.fails else verdicts.bits[fresh]
            given = int(np.bitwise_or.reduce(bits)) if len(bits) else 0
            for k, reason in enumerate(verdicts.reasons):
                if given >> k & 1:
                    hits = int(np.count_nonzero(bits & np.uint64(1 << k)))
                    counts[reason] = counts.get(reason, 0) + hits
        for status, nodes in _count_by_id(statuses):
            for reason in status.reasons:
                counts[reason] = counts.get(reason, 0) + nodes
        if self.narrowed_by:
            absent = self._candidates - len(self.looked_at)
            if absent:
                counts[self.narrowed_reason] = absent
        return counts

    @property
    def _candidates(self) -> int:
        return self.node_count if self.candidate_count is None else self.candidate_count

    @property
    def totals(self) -> Scores | None:
        """The weighted sums for the feasible nodes in order; None if a single node needed no scores."""
        if self.relative_totals is None:
            return None
        if not self.has_scorers:
            return np.ones(len(self.feasible), np.int64)
        total = np.zeros(len(self.feasible), np.int64)
        for column in self.scores:
            total += column.weighted
        return total

    @property
    def message(self) -> str:
        """The message of the pod's condition if no node fits."""
        if self.chosen is not None or self.error is not None:
            return ""
        if not self.node_count:
            return NO_NODES
        after = self.post_filter.message if self.post_filter is not None else ""
        text = fit_message(
            self._candidates,
            self.pre_filter.message if self.pre_filter is not None else "",
            {} if self.pre_filter is not None else self.histogram(),
        )
        return f"{text} {after}" if after else text

    @property
    def rejectors(self) -> frozenset[str]:
        """The plugins that rejected the pod."""
        names = {status.plugin for status in self.overruled.values()} | set(self.narrowed_by)
        names |= {verdicts.plugin for verdicts, fresh in self._first_rejections() if np.count_nonzero(fresh)}
        if self.pre_filter is not None:
            names.add(self.pre_filter.plugin)
        return frozenset(names - {""})

    @property
    def pending_plugins(self) -> frozenset[str]:
        """The plugins that rejected nodes as pending."""
        statuses = [*self.overruled.values()]
        for each in self.filters:
            statuses += each.by_row.values() if isinstance(each, Statuses) else ()
        return frozenset(status.plugin for status in statuses if status.code is Code.PENDING)

    def as_golden(self) -> dict[str, Any]:
        """The decision as `stowplan decide` prints it."""
        found: dict[str, Any] = {"pod": self.pod.key}
        if self.error is not None:
            return found | {"error": self.error}
        if self.pre_filter is not None:
            found["preFilter"] = _plain(self.pre_filter)
        elif self.narrowed_by:
            found["preFilterNodes"] = sorted(self.names[row] for row in self.looked_at.tolist())
        if rejected := self.rejected():
            found["rejected"] = {name: _plain(rejected[name]) for name in sorted(rejected)}
        names = [self.names[row] for row in self.feasible.tolist()]
        if names:
            found["feasible"] = sorted(names)
        totals = self.totals
        if totals is not None:
            found["scores"] = {
                column.plugin: dict(zip(names, column.weighted.tolist(), strict=True))
                for column in self.scores
            }
            found["totals"] = dict(zip(names, totals.tolist(), strict=True))
        if self.chosen is not None:
            found["best"] = sorted(self.names[row] for row in self.best.tolist())
            found["chosen"] = self.chosen
        else:
            found["message"] = self.message
        if self.nominated is not None:
            found["nominated"] = self.nominated
            found["victims"] = sorted(victim.key for victim in self.victims)
        return found


def fit_message(node_count: int, rejection: str, histogram: dict[str, int]) -> str:
    """The sentence that says why no node is available."""
    text = f"0/{node_count} nodes are available:"
    if rejection:
        return f"{text} {rejection}."
    counted = ", ".join(sorted(f"{count} {reason}" for reason, count in histogram.items()))
    return f"{text} {counted}." if counted else text


def _count_by_id(statuses: Sequence[Status]) -> Iterator[tuple[Status, int]]:
    """Counts by identity: many are the same object, and may have thousands of reasons."""
    by_id = {id(status): status for status in statuses}
    return ((by_id[key], count) for key, count in Counter(map(id, statuses)).items())


def _plain(status: Status) -> dict[str, object]:
    found: dict[str, object] = {"code": status.code.wire_name, "reasons": list(status.reasons)}
    return found | {"plugin": status.plugin} if status.plugin else found
