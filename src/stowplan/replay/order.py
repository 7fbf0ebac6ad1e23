"""The order of decisions that a recording allows.

A recording has the arrival of each pod and its binding. The live scheduler decided some time in between, and
counted what it had decided by then. A replay that is to do the same must decide in the same order, as far as
the recording tells it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.cluster import Cluster
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.pod_table import PodTable
from stowplan.cycle.preempt import preempt
from stowplan.cycle.schedule import TieBreak
from stowplan.cycle.victims import VictimOrder
from stowplan.queue.waiting import QueuedPod
from stowplan.replay.trace import Event, Trace, node_of
from stowplan.scheduler.scheduler import Scheduler

MAX_LATENCY = 5.0
"""The longest time in seconds that a live scheduler takes to decide and bind a pod that need not wait."""
WINDOWS = (1, 8, 64)
"""How many pods that were pending at the start are considered as the next one; more where fewer leave a
recorded node unexplained."""
MAX_TRIALS = 10_000
"""How many decisions are made in vain, at most, to find the order of pods that were pending at the start."""
MAX_SHUFFLES = 32
"""How many orders of equally important pods are tried to find the one by which a pod preempted others."""
TRIALS_PER_POD = 20
"""How many of them in one of the likely orders."""
MAX_DISPLACEMENT = 0.1
"""A share of the number of pods. Two unrelated orders differ by about a third."""
CHANGES = ("update", "delete", "finish")
OUTCOMES = ("reject", "bind")


class RecordedOrder:
    """Hands out the pods of a replay's queue, each at a moment and in an order that the recording allows.

    Four things are unknown, and the recorded nodes tell about them:

    - When between its arrival and its binding a pod was decided. If its recorded node is the best only after
      a change in between, the pod is decided after it.
    - The order of pods that were pending at the start. Neither their creation nor their bindings show it for
      sure: many bindings are under way at once, and overtake each other. `_plan` looks for an order in which
      the recorded node of each is the best.
    - Which of equally important pods were evicted first on nodes other than the recorded one.
    - How far behind the scheduler was. A pod that has no outcome yet when one of higher priority, which
      arrived later, has its own was overtaken in the queue, and is decided after that one.
    """

    def __init__(self, trace: Trace, now: Callable[[], float]) -> None:
        self._now = now
        self._nodes = recorded_nodes(trace)
        self._bound_at = {event.id: event.time for event in trace.events if event.verb == "bind"}
        self._unordered = {event.id for event in trace.events if event.time == trace.start}
        """What was there at the start, in an order that may be another one."""
        self._listed = {event.id: place for place, event in enumerate(trace.events) if event.verb == "add"}
        self._planned: deque[Pod] = deque()
        """Pods to decide next."""
        self._trials_left = MAX_TRIALS
        self._changes = [event.time for event in trace.events if event.kind != "Pod" or event.verb in CHANGES]
        self._early: list[QueuedPod] = []
        """Pods to decide after the next events."""
        self._current = ""
        """The pod that is being decided."""
        self._outcomes: dict[str, list[float]] = {}
        """When each pod was rejected or bound."""
        for event in trace.events:
            if event.verb in OUTCOMES:
                self._outcomes.setdefault(event.id, []).append(event.time)
        arrivals = [event for event in trace.events if _is_pending(event)]
        self._arrivals = [event.time for event in arrivals]
        self._arriving = [
            (-_minus_priority(event), self._outcomes.get(event.id, [inf])[0]) for event in arrivals
        ]
        self._first_outcomes: dict[int, list[float]] = {}
        """By priority: for each arrival, the first outcome of it and later ones with a higher priority."""
        self._victim_order = _RecordedVictims(frozenset(trace.preempted()))
        self._nominated = {
            event.id: event.node for event in reversed(trace.events) if event.verb == "reject" and event.node
        }
        """The node that was first nominated for each pod that preempted others."""

    def follow(self, scheduler: Scheduler) -> None:
        """Decide with this scheduler."""
        self._scheduler, self._queue, self._cluster = scheduler, scheduler.queue, scheduler.cluster
        for profile in scheduler.profiles.values():
            profile.handle.preempt = partial(preempt, profile, order=self._victim_order)

    def tie_break(self, otherwise: TieBreak) -> TieBreak:
        """Takes the recorded node where it is among the best."""

        def prefer_recorded(nodes: LiveNodeTable, feasible: Rows, totals: Any) -> int:
            row = nodes.row_of(self._nodes.get(self._current, ""))
            if row is not None:
                (places,) = (feasible == row).nonzero()
                if len(places) and totals[places[0]] == totals.max():
                    return int(places[0])
            return otherwise(nodes, feasible, totals)

        return prefer_recorded

    def begin(self) -> None:
        """Events have been applied: pods that were held back may be decided now."""
        pending = self._scheduler.shared.pending
        self._planned.clear()
        while self._early:
            queued = self._early.pop()
            pod = pending.get(queued.pod.uid)
            if pod is None:  # deleted meanwhile
                self._queue.done(queued.pod.uid)
                continue
            queued.pod = pod
            self._queue.give_back(queued)

    def pop(self) -> QueuedPod | None:
        found = self._next_planned()
        while found is None and (queued := self._queue.pop_nowait()) is not None:
            if self._is_overtaken(queued.pod):
                self._early.append(queued)
            elif queued.pod.uid in self._unordered:
                found = self._first_of(self._with_unordered(queued))
            elif self._is_recorded_best(queued) is False:
                self._early.append(queued)
            else:
                found = queued
        if found is not None:
            self._current = found.pod.uid
            self._victim_order.favoured_node = self._nodes.get(found.pod.uid, "")
            self._shuffle_victims(found.pod)
        return found

    def _shuffle_victims(self, pod: Pod) -> None:
        """Find an order of equally important pods by which preemption takes the recorded node.

        A node lists pods in the order in which a scheduler heard of them last, which no recording has.
        """
        order, wanted = self._victim_order, self._nominated.get(pod.uid)
        profile = self._scheduler.profiles.get(pod.scheduler_name)
        order.version = 0
        if wanted is None or profile is None or pod.nominated_node_name:
            return
        for order.version in range(MAX_SHUFFLES):
            decision = self._scheduler.loop.decide(profile, pod, None)
            if decision.nominated == wanted or decision.nominated is None:
                return
        order.version = 0

    def _next_planned(self) -> QueuedPod | None:
        while self._planned:
            taken = self._queue.take_members([self._planned.popleft()])
            if taken:  # unless it was decided with its group
                return taken[0]
        return None

    def _with_unordered(self, first: QueuedPod) -> list[QueuedPod]:
        """The pod, and those after it in the queue that may have been decided before it."""
        found, limit = [first], inf if self._trials_left > 0 else WINDOWS[1]
        while len(found) < limit and (queued := self._queue.pop_nowait()) is not None:
            if self._is_overtaken(queued.pod):
                self._early.append(queued)
            elif queued.pod.uid in self._unordered and queued.pod.priority == first.pod.priority:
                found.append(queued)
            else:
                self._queue.give_back(queued)
                break
        return found

    def _first_of(self, waiting: list[QueuedPod]) -> QueuedPod | None:
        """The pod to decide first; None if all are decided after the next events."""
        plan = self._plan(waiting)
        left = waiting if plan else self._without_early(waiting)
        first = next(iter(plan or left), None)
        for each in left:
            if each is not first:
                self._queue.give_back(each)
        self._planned.extend(each.pod for each in plan[1:])
        return first

    def _without_early(self, waiting: list[QueuedPod]) -> list[QueuedPod]:
        """From the first pod on that need not wait for the next events."""
        for place, queued in enumerate(waiting):
            if not self._may_change(queued.pod) or self._is_recorded_best(queued) is not False:
                return waiting[place:]
            self._early.append(queued)
        return []

    def _plan(self, waiting: list[QueuedPod]) -> list[QueuedPod]:
        """An order in which each pod's recorded node is the best; if none is found, of fewer pods."""
        best: list[QueuedPod] = []
        orders = self._likely_orders(waiting)
        for window in WINDOWS:
            for order in orders:
                best = max(best, self._search(order, window), key=len)
                if len(best) == len(waiting) or self._trials_left <= 0:
                    return best
        return best

    def _likely_orders(self, waiting: list[QueuedPod]) -> list[list[QueuedPod]]:
        found = [waiting]
        for order in (
            sorted(waiting, key=lambda each: self._listed[each.pod.uid]),
            sorted(waiting, key=lambda each: (each.pod.namespace, each.pod.name)),
            sorted(waiting, key=lambda each: self._bound_at.get(each.pod.uid, inf)),
        ):
            if order not in found:
                found.append(order)
        return found

    def _search(self, order: list[QueuedPod], window: int) -> list[QueuedPod]:
        """The longest sequence found whose next pod is always one of the first few left in `order`.

        Where none of them can be next, the last choice is undone. Which pods can follow depends only on the
        set of pods before, because each is on its recorded node; so no set is looked at twice.
        """
        trials = _Trials(self._cluster, order)
        best: list[QueuedPod] = []
        allowed = min(max(self._trials_left, WINDOWS[1]), TRIALS_PER_POD * len(order))
        left = allowed
        choices = [trials.next_places(window)]
        try:
            while choices and len(trials.path) < len(order) and left > 0:
                place = next(choices[-1], None)
                if place is None:
                    if len(trials.path) > len(best):
                        best = trials.found()
                    choices.pop()
                    trials.undo()
                elif trials.is_new(place):
                    left -= 1
                    agrees = self._is_recorded_best(order[place])
                    if agrees is not False:
                        trials.place(place, self._nodes[order[place].pod.uid] if agrees else "")
                        choices.append(trials.next_places(window))
            if len(trials.path) > len(best):
                best = trials.found()
        finally:
            while trials.path:
                trials.undo()
        self._trials_left -= max(allowed - left - len(best), 0)
        return best

    def _is_overtaken(self, pod: Pod) -> bool:
        """Whether a pod that has yet to arrive was decided before this one."""
        if self._cluster.group_of(pod) is not None:
            return False
        now = self._now()
        place = bisect_right(self._arrivals, now)
        if place == len(self._arrivals):
            return False
        outcomes = self._outcomes.get(pod.uid, ())
        after = bisect_right(outcomes, now)
        own = outcomes[after] if after < len(outcomes) else inf
        return self._first_outcomes_above(pod.priority)[place] < own

    def _first_outcomes_above(self, priority: int) -> list[float]:
        found = self._first_outcomes.get(priority)
        if found is None:
            found, first = [], inf
            for each, outcome in reversed(self._arriving):
                first = min(first, outcome) if each > priority else first
                found.append(first)
            found.reverse()
            self._first_outcomes[priority] = found
        return found

    def _is_recorded_best(self, queued: QueuedPod) -> bool | None:
        """Whether the recorded node is among the best; None if a decision could not be about that."""
        pod, nodes = queued.pod, self._cluster.nodes
        profile, recorded = self._scheduler.profiles.get(pod.scheduler_name), self._nodes.get(pod.uid, "")
        if profile is None or nodes.row_of(recorded) is None or pod.nominated_node_name:
            return None
        if pod.uid not in self._unordered and not self._may_change(pod):
            return None
        if self._cluster.group_of(pod) is not None:
            return None
        self._current = pod.uid
        chosen = self._scheduler.loop.decide(profile, pod, None).chosen
        return None if chosen is None else chosen == recorded

    def _may_change(self, pod: Pod) -> bool:
        """Whether the cluster changes between the pod's arrival and its binding soon after."""
        now = self._now()
        place = bisect_right(self._changes, now)
        if place == len(self._changes):
            return False
        return self._changes[place] < self._bound_at.get(pod.uid, -inf) <= now + MAX_LATENCY


class _Trials:
    """Pods placed on their recorded nodes one after another, to see which can be next, and taken back."""

    def __init__(self, cluster: Cluster, order: list[QueuedPod]) -> None:
        self._cluster, self._order = cluster, order
        self.path: list[tuple[int, Pod | None]] = []
        """The places in `order`, each with the pod as it was placed, if it was."""
        self._taken = 0
        """The same places as bits."""
        self._seen: set[int] = set()

    def found(self) -> list[QueuedPod]:
        return [self._order[place] for place, _ in self.path]

    def next_places(self, window: int) -> Iterator[int]:
        """The first places that are not taken."""
        taken = self._taken
        start = (~taken & (taken + 1)).bit_length() - 1
        free = (place for place in range(start, len(self._order)) if not taken >> place & 1)
        return islice(free, window)

    def is_new(self, place: int) -> bool:
        """Whether the set of pods with this one is looked at for the first time."""
        return self._taken | 1 << place not in self._seen

    def place(self, place: int, node_name: str) -> None:
        pod = self._order[place].pod
        self._taken |= 1 << place
        self._seen.add(self._taken)
        self.path.append((place, self._cluster.assume_pod(pod, node_name) if node_name else None))

    def undo(self) -> None:
        if self.path:
            place, placed = self.path.pop()
            self._taken ^= 1 << place
            if placed is not None:
                self._cluster.forget_pod(placed)


def recorded_nodes(trace: Trace) -> dict[str, str]:
    """The node that each pod was bound to, by id."""
    return {event.id: event.node for event in trace.events if event.verb == "bind" and event.kind == "Pod"}


class _Prioritized(msgspec.Struct):
    priority: int = 0


class _OnlyPriority(msgspec.Struct):
    spec: _Prioritized = msgspec.field(default_factory=_Prioritized)


def in_queue_order(events: list[Event]) -> list[Event]:
    """The events, with pods that were pending at the start in the order of the live scheduler's queue.

    A queue sorts by priority, then by arrival: the order in which pods were created, as it was recorded, or
    that of their names if the scheduler started later than they came. Bindings show which. A scheduler may
    start with another order, as kube-scheduler does; then the order of the bindings is closest.
    """
    end = next((place for place, event in enumerate(events) if event.time > events[0].time), len(events))
    pending = [event for event in events[:end] if _is_pending(event)]
    bound = {event.id: place for place, event in enumerate(events) if event.verb == "bind"}
    known = sorted((event for event in pending if event.id in bound), key=lambda event: bound[event.id])
    if len(known) < 2:
        return events
    candidates = ([*pending], sorted(pending, key=lambda event: (event.namespace, event.name)))
    for each in candidates:
        each.sort(key=_minus_priority)
    best = min(candidates, key=lambda each: _displacement(each, known))
    if _displacement(best, known) > MAX_DISPLACEMENT * len(known):
        best = [*known, *(event for event in best if event.id not in bound)]
    others = [event for event in events[:end] if not _is_pending(event)]
    return [*others, *best, *events[end:]]


def _is_pending(event: Event) -> bool:
    return event.kind == "Pod" and event.verb == "add" and not node_of(event)


def _minus_priority(event: Event) -> int:
    try:
        return -msgspec.json.decode(event.object, type=_OnlyPriority).spec.priority
    except (msgspec.DecodeError, RecursionError):  # whoever decodes the whole pod says why
        return 0


def _displacement(order: list[Event], known: list[Event]) -> float:
    """How many places, in the mean, a pod is away from where `known` has it."""
    places = {event.id: place for place, event in enumerate(known)}
    found = [places[event.id] for event in order if event.id in places]
    return sum(abs(place - here) for here, place in enumerate(found)) / len(found)


class _RecordedVictims(VictimOrder):
    """Evicts the pods that were evicted when recorded before others that are as important.

    `version` draws an order of the others; 0 goes by their place on the node.
    """

    def __init__(self, victims: frozenset[str]) -> None:
        self._victims = victims
        self.favoured_node = ""
        """The node that wins where the harm is equal."""

    def sort_keys(self, pods: PodTable, slots: Rows) -> tuple[NDArray[np.generic], ...]:
        keys = super().sort_keys(pods, slots)
        if self.version:
            keys = (np.random.default_rng(self.version).permutation(len(pods))[slots],)
        if not self._victims:
            return keys
        return *keys, np.array([pods.pods[slot].uid in self._victims for slot in slots], np.bool_)

    def choose_row(self, live: LiveNodeTable, rows: Rows) -> int:
        row = live.row_of(self.favoured_node)
        return row if row is not None and row in rows else super().choose_row(live, rows)
