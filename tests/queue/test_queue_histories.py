"""Whatever happens to a queue, its pods are where a simple model, without heaps and indexes, has them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from waiting_room import BAD, EVERYTHING, GOOD, LABELLED, NODE_DELETE, START, Door, Fit, Other, Room

from example_share import examples
from make import make_node, make_pod
from stowplan.api.pod import Pod
from stowplan.framework.hints import ObjectChange

SOMETHING = ObjectChange(EVERYTHING, None, None)
NODE_GONE = ObjectChange(NODE_DELETE, make_node("n"), None)
EVENTS = {"good": GOOD, "bad": BAD, "labelled": LABELLED, "gone": NODE_GONE, "something": SOMETHING}
HELPS: dict[str, set[str]] = {
    "good": {"Fit"}, "bad": set(), "labelled": {"Other"}, "gone": {"Door"}, "own label": {"Other"}
}  # fmt: skip
"""Whose hint says yes to an event."""
HEARD_BY_DOOR = ("gone", "something")


@dataclass
class ModelPod:
    """What the rules say of one pod, kept as plainly as they are written."""

    pod: Pod
    since: float
    place: str = "active"
    refusals: int = 0
    errors: int = 0
    refused_by: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    in_earnest: bool = False
    flushed: float = 0.0
    news: list[str] = field(default_factory=list)

    @property
    def rejectors(self) -> set[str]:
        return self.refused_by | self.pending

    @property
    def due(self) -> int:
        count = self.errors or self.refusals
        return math.floor(self.since + min(10, 2 ** (count - 1))) if count else 0

    @property
    def must_wait(self) -> bool:
        return self.in_earnest or not self.rejectors

    def turn(self) -> tuple[float, float]:
        return (-self.pod.priority, self.since)


class QueueHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.room = Room(Fit, Other, Door)
        self.door = self.room.plugin("Door")
        self.pods: dict[str, ModelPod] = {}
        self.flying: dict[str, Any] = {}
        self.count = 0

    # What a host does

    @rule(priority=st.integers(0, 2), is_shut=st.booleans())
    def add(self, priority: int, is_shut: bool) -> None:
        self.count += 1
        name = f"p{self.count}"
        if is_shut:
            self.door.shut.add(name)
        pod = make_pod(name, priority=priority)
        self.pods[name] = model = ModelPod(pod, self.room.now)
        self._let_in(model, "active")
        self.room.queue.add(pod)

    @rule()
    def pop(self) -> None:
        expected = self._next_turn()
        queued = self.room.queue.pop_nowait()
        if not expected:
            assert queued is None
            return
        assert queued is not None
        assert queued.pod.name in expected
        model = self.pods[queued.pod.name]
        model.place, model.news, model.in_earnest = "in flight", [], False
        model.refused_by, model.pending = set(), set()
        self.flying[queued.pod.name] = queued

    @precondition(lambda self: self.flying)
    @rule(
        data=st.data(),
        rejectors=st.sets(st.sampled_from(["Fit", "Other"])),
        pending=st.sets(st.sampled_from(["Fit", "Other"]), max_size=1),
    )
    def fail(self, data: st.DataObject, rejectors: set[str], pending: set[str]) -> None:
        name = data.draw(st.sampled_from(sorted(self.flying)))
        model = self.pods[name]
        model.refused_by, model.pending = set(rejectors), set(pending)
        if model.rejectors:
            model.refusals, model.errors = model.refusals + 1, 0
        else:
            model.errors += 1
        model.since, model.flushed = self.room.now, 0.0
        if model.must_wait:
            self._requeue(model, "backoff")
        else:
            answers = [self._answer(model, event) for event in model.news]
            best = next((each for each in ("active", "backoff") if each in answers), "unschedulable")
            self._requeue(model, best)
        self.room.queue.return_failed(self.flying.pop(name), rejectors=rejectors, pending=pending)

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.flying)))
        self.room.queue.done(self.flying.pop(name).pod.uid)
        del self.pods[name]

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        model = self.pods.pop(name)
        self.room.queue.delete(model.pod)
        if name in self.flying:
            self.room.queue.done(self.flying.pop(name).pod.uid)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), priority=st.integers(0, 2), has_label=st.booleans())
    def change(self, data: st.DataObject, priority: int, has_label: bool) -> None:
        model = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        old = model.pod
        model.pod = make_pod(old.name, priority=priority, labels={"x": "y"} if has_label else {})
        if old.labels != model.pod.labels:
            self._hear(model, "own label")
        if model.place == "in flight":
            self.flying[old.name].pod = model.pod
        self.room.queue.update(old, model.pod)

    @rule(name=st.sampled_from(sorted(EVENTS)))
    def happen(self, name: str) -> None:
        for model in self.pods.values():
            if model.place != "gated" or name in HEARD_BY_DOOR:
                self._hear(model, name)
        self.room.queue.on_change(EVENTS[name])

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), backoff=st.booleans())
    def activate(self, data: st.DataObject, backoff: bool) -> None:
        model = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        if model.place == "in flight":
            model.in_earnest = model.in_earnest or backoff
            if not backoff:
                model.news.append("something")
        elif model.place != "active" and backoff:
            model.in_earnest, model.since = True, self.room.now
            self._requeue(model, "backoff", asks_again=True)
        elif model.place != "active":
            self._let_in(model, "active")
        self.room.queue.activate([model.pod], backoff=backoff)

    @precondition(lambda self: self.door.shut)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.door.shut.discard(data.draw(st.sampled_from(sorted(self.door.shut))))

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.5, 170.0]))
    def wait(self, seconds: float) -> None:
        self.room.now += seconds

    @rule()
    def flush_backoff(self) -> None:
        for model in self.pods.values():
            if model.place == "backoff" and not self._backs_off(model):
                model.place = "active"
        self.room.queue.flush_backoff()

    @rule()
    def flush_unschedulable(self) -> None:
        overdue = [
            model
            for model in self.pods.values()
            if model.place in ("unschedulable", "gated")
            and self.room.now - max(model.since, model.flushed) > 300
        ]
        for model in overdue:
            model.flushed = self.room.now
            self._requeue(model, "backoff")
        for model in self.pods.values():
            if overdue and model.place == "in flight":
                model.news.append("something")
        self.room.queue.flush_unschedulable()

    # What must hold

    @invariant()
    def every_pod_is_where_it_should_be(self) -> None:
        waiting = {name: model.place for name, model in self.pods.items() if model.place != "in flight"}
        assert {queued.pod.name: queued.place for queued in self.room.queue} == waiting
        assert len(list(self.room.queue)) == len(waiting)
        counts = self.room.queue.counts()
        assert counts == {place: list(waiting.values()).count(place) for place in counts}
        assert len(self.room.queue.in_flight) == len(self.flying)

    @invariant()
    def what_is_reported_adds_up(self) -> None:
        ledger = self.room.ledger
        for plugin in ("Fit", "Other", "Door"):
            refused = sum(plugin in model.rejectors for model in self.pods.values())
            assert ledger.refused[plugin, "default-scheduler"] == refused
        assert ledger.kept["PodPopped"] == len(self.flying)
        if not self.flying:
            assert not any(ledger.kept.values())

    # The rules

    def _next_turn(self) -> set[str]:
        """Who may come next: several, where they are equal in all that counts."""
        waiting = [model for model in self.pods.values() if model.place == "active"]
        if waiting:
            first = min(model.turn() for model in waiting)
            return {model.pod.name for model in waiting if model.turn() == first}
        waiting = [model for model in self.pods.values() if model.place == "backoff" and not model.must_wait]
        if not waiting:
            return set()
        first = min((model.due, model.turn()) for model in waiting)
        return {model.pod.name for model in waiting if (model.due, model.turn()) == first}

    def _hear(self, model: ModelPod, name: str) -> None:
        if model.place == "in flight":
            model.news.append(name)
        elif model.place in ("unschedulable", "gated"):
            answer = self._answer(model, name)
            if answer != "unschedulable":
                self._requeue(model, answer)

    def _answer(self, model: ModelPod, name: str) -> str:
        if name == "something":
            return "backoff"
        if HELPS[name] & model.pending:
            return "active"
        return "backoff" if HELPS[name] & model.rejectors else "unschedulable"

    def _requeue(self, model: ModelPod, place: str, *, asks_again: bool = False) -> None:
        if place == "unschedulable":
            model.place = place
        elif place == "backoff" and self._backs_off(model):
            self._let_in(model, "backoff", asks_again=asks_again)
        else:
            self._let_in(model, "active")

    def _let_in(self, model: ModelPod, place: str, *, asks_again: bool = False) -> None:
        if model.pod.name in self.door.shut and (asks_again or model.place != "backoff"):
            model.place = "gated"
            model.refused_by.add("Door")
        else:
            model.place = place

    def _backs_off(self, model: ModelPod) -> bool:
        return model.due >= math.floor(self.room.now)


assert START % 1, "a clock that does not start on the second, so that rounding shows"
QueueHistory.TestCase.settings = examples(150, stateful_step_count=40)
TestQueueHistory = QueueHistory.TestCase
