"""The order of decisions that a recording allows.

A recording has the arrival of each pod and its binding. The live scheduler decided some time in between, and
counted what it had decided by then. A replay that is to do the same must decide in the same order, as far as
the recording tells it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.schedule import TieBreak
from stowplan.queue.waiting import QueuedPod
from stowplan.replay.trace import PREEMPTION, Event, Trace, node_of
from stowplan.scheduler.scheduler import Scheduler

MAX_LATENCY = 5.0
"""The longest time in seconds that a live scheduler takes to decide and bind a pod that need not wait."""
MAX_SWAPPED = 8
"""How many pods that were pending at the start are considered as the next one."""
MAX_DISPLACEMENT = 0.1
"""A share of the number of pods. Two unrelated orders differ by about a third."""
CHANGES = ("update", "delete", "finish")
OUTCOMES = ("reject", "bind")


class RecordedOrder:
    """Hands out the pods of a replay's queue, each at a moment and in an order that the recording allows.

    Three things are unknown, and the recorded nodes tell about them:

    - When between its arrival and its binding a pod was decided. If its recorded node is the best only after
      a change in between, the pod is decided after it.
    - The order of pods that were pending at the start. Where the recorded node of one is not the best, it may
      be another one's turn.
    - How far behind the scheduler was. A pod that has no outcome yet when one of higher priority, which
      arrived later, has its own was overtaken in the queue, and is decided after that one.
    """

    def __init__(self, trace: Trace, now: Callable[[], float]) -> None:
        self._now = now
        self._nodes = recorded_nodes(trace)
        self._bound_at = {event.id: event.time for event in trace.events if event.verb == "bind"}
        self._unordered = {event.id for event in trace.events if event.time == trace.start}
        """What was there at the start, in an order that may be another one."""
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
        self._victims = frozenset(
            event.id for event in trace.events if event.verb == "delete" and event.by == PREEMPTION
        )

    def follow(self, scheduler: Scheduler) -> None:
        """Decide with this scheduler."""
        self._scheduler, self._queue, self._cluster = scheduler, scheduler.queue, scheduler.cluster
        self._cluster.nodes.pods.favoured_victims = self._victims

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
        while self._early:
            queued = self._early.pop()
            pod = pending.get(queued.pod.uid)
            if pod is None:  # deleted meanwhile
                self._queue.done(queued.pod.uid)
                continue
            queued.pod = pod
            self._give_back(queued)

    def pop(self) -> QueuedPod | None:
        tried: list[QueuedPod] = []
        found = None
        while len(tried) < MAX_SWAPPED and (queued := self._queue.pop_nowait()) is not None:
            if self._is_overtaken(queued.pod):
                self._early.append(queued)
                continue
            agrees = self._is_recorded_best(queued)
            if agrees is False and self._may_change(queued.pod):
                self._early.append(queued)
                continue
            tried.append(queued)
            is_ordered = queued.pod.uid not in self._unordered
            if queued.pod.priority != tried[0].pod.priority or (is_ordered and queued is not tried[0]):
                break
            if agrees is not False or is_ordered:
                found = queued
                break
        found = found or (tried[0] if tried else None)
        for each in tried:
            if each is not found:
                self._give_back(each)
        if found is not None:
            self._current = found.pod.uid
            self._cluster.nodes.favoured = self._cluster.nodes.row_of(self._nodes.get(found.pod.uid, ""))
        return found

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

    def _give_back(self, queued: QueuedPod) -> None:
        queued.attempts -= 1
        self._queue.give_back(queued)


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
    start with another order, as kube-scheduler does; then that of the bindings comes closest.
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
