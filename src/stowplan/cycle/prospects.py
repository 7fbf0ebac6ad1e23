"""What evicting pods would achieve on each node, kept for the next pod of the same kind.

Where every filter's answer can be kept, so can this: it depends on the node, on the pods there and on
disruption budgets alone. It is worked out again for nodes where one of these has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from stowplan.api.pod import Pod
from stowplan.api.workloads import PodDisruptionBudget
from stowplan.cluster.cluster import ObjectStore
from stowplan.cluster.columns import Columns
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.victims import Budgets, Slots, Victims, add_harm, first_of_each_row, no_harm
from stowplan.framework.handle import Nominations
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status

KINDS = 16
"""Kinds of pods whose prospects are cached at a time."""
SPARE = 4096
"""How many outdated entries to keep before everything is recomputed."""

NOT_REJECTED = -1
MEMORY = "preemption"


def kind_of(profile: Profile, state: CycleState, pod: Pod) -> Hashable | None:
    """A key that is equal for pods with the same prospects; None if these cannot be cached."""
    steps = [step for step in profile.filters if step.name not in state.skipped_filters]
    if any(not (step.is_cached and step.takes_columns) for step in steps):
        return None
    try:
        kind = (pod.priority, *((step.plugin.serial, step.sign(pod)) for step in steps))
        hash(kind)
    except BaseException:  # who asks the plugin for its answer will say what is wrong with it
        return None
    return kind


class Prospects:
    """The prospects of pods of one kind, for rows that were computed and have not changed since."""

    def __init__(self, length: int) -> None:
        self.known = np.zeros(length, np.bool_)
        self.harm = no_harm(length)
        self._first = np.zeros(length, np.intp)
        """Where the victims of each row start in `_places`."""
        self._places: list[int] = []
        """The positions of the victims in their node's list of pods."""
        self._rejection = np.zeros(length, np.intp)
        """The number of each row's status; a row where the pod fits as it is has none."""
        self._statuses: list[Status] = []

    @property
    def is_overgrown(self) -> bool:
        return len(self._places) + len(self._statuses) > int(self.harm.victims.sum()) + SPARE

    def learn(
        self, live: LiveNodeTable, rows: Slots, victims: Victims, rejections: dict[int, Status]
    ) -> None:
        """Store what was found on these rows; the victims of a row are adjacent."""
        self.harm.victims[rows], self.harm.violations[rows], self._rejection[rows] = 0, 0, NOT_REJECTED
        where = victims.rows
        starts = first_of_each_row(where)
        self._first[where[starts]] = len(self._places) + starts
        self._places += live.pods.place[victims.slots].tolist()
        add_harm(self.harm, live, victims)
        numbers = {status: number for number, status in enumerate(self._statuses)}
        for row, status in rejections.items():
            self._rejection[row] = numbers.setdefault(status, len(numbers))
        self._statuses = list(numbers)
        self.known[rows] = True
        # What failed may well succeed the next time.
        self.known[[row for row, status in rejections.items() if status.code is Code.ERROR]] = False

    def until_enough(self, rows: Slots, wanted: int) -> Slots:
        """Rows in turn until `wanted` candidates are found, one of them without violating a budget."""
        found = self._rejection[rows] == NOT_REJECTED
        harmless = np.logical_or.accumulate(found & (self.harm.violations[rows] == 0))
        enough = np.flatnonzero(harmless & (np.cumsum(found) >= wanted))
        return rows[: enough[0] + 1] if len(enough) else rows

    def victims_on(self, live: LiveNodeTable, row: int) -> list[Pod]:
        first, pods = int(self._first[row]), live.pods_on(row)
        return [pods[place] for place in self._places[first : first + int(self.harm.victims[row])]]

    def rejections(self, rows: Slots) -> Counter[Status]:
        """The reasons why evicting pods helps on none of the rows, with the number of rows for each."""
        numbers = self._rejection[rows]
        counts = np.bincount(numbers[numbers != NOT_REJECTED], minlength=len(self._statuses)).tolist()
        return +Counter(dict(zip(self._statuses, counts, strict=True)))  # without those that none has


class Memory:
    """The prospects of several kinds of pods, kept until rows are added, removed or moved."""

    def __init__(self) -> None:
        self.budgets = Budgets(())
        self._kinds: dict[Hashable, Prospects] = {}
        self._version = 0
        self._positions: tuple[int, ...] = (0, 0, 0)
        self._nominations: Nominations | None = None
        self._nominated = 0

    @classmethod
    def of(
        cls, live: LiveNodeTable, budgets: ObjectStore[PodDisruptionBudget], nominations: Nominations
    ) -> Memory:
        found: Memory = live.keep(MEMORY, _nothing, finish=lambda columns: cls())
        found._follow(live, budgets)
        found._follow_nominations(live, nominations)
        return found

    def prospects(self, kind: Hashable, length: int) -> Prospects:
        found = self._kinds.pop(kind, None)
        if found is None or found.is_overgrown:
            found = Prospects(length)
        self._kinds[kind] = found  # the last, since those not used lately go
        if len(self._kinds) > KINDS:
            del self._kinds[next(iter(self._kinds))]
        return found

    def _follow(self, live: LiveNodeTable, budgets: ObjectStore[PodDisruptionBudget]) -> None:
        logs = live.kept.node_changes, live.kept.usage_changes, live.kept.pod_changes
        changed = [log.since(position) for log, position in zip(logs, self._positions, strict=True)]
        self._positions = tuple(log.position for log in logs)
        if budgets.version != self._version:
            self.budgets, self._version = Budgets(budgets), budgets.version
            self._kinds.clear()
        elif None in changed:
            self._kinds.clear()
        else:
            for prospects in self._kinds.values():
                for rows in changed:
                    prospects.known[rows] = False

    def _follow_nominations(self, live: LiveNodeTable, nominations: Nominations) -> None:
        names = nominations.changes.since(self._nominated) if nominations is self._nominations else None
        self._nominations, self._nominated = nominations, nominations.changes.position
        if names is None:
            self._kinds.clear()
            return
        rows = [row for name in names if (row := live.row_of(name)) is not None]
        for prospects in self._kinds.values() if rows else ():
            prospects.known[rows] = False


def _nothing(nodes: NodeTable) -> Columns:
    """An empty column: the table itself caches nothing for a row."""
    return (np.zeros(len(nodes), np.bool_),)
