"""Pods that a plugin does not let into the queue proper."""

from __future__ import annotations

import logging

import pytest
from waiting_room import BAD, EVERYTHING, GOOD, LABELLED, NODE_DELETE, Fit, Other, Room

from make import make_node, make_pod
from stowplan.framework import Status
from stowplan.framework.hints import ObjectChange
from stowplan.plugins.default.scheduling_gates import SchedulingGates

NODE_GONE = ObjectChange(NODE_DELETE, make_node("n"), None)


def test_a_gated_pod_is_not_tried():
    room = Room()
    pod = room.gated()
    assert room.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 1}
    assert room.names() == []
    queued = room.find(pod)
    assert (queued.gating_plugin, queued.unschedulable_plugins) == ("Door", {"Door"})
    assert queued.attempts == 0
    assert queued.initial_attempt_timestamp is None


@pytest.mark.parametrize(
    ("happening", "asked"),
    [
        pytest.param(GOOD, 0, id="what its gating plugin does not hear of"),
        pytest.param(NODE_GONE, 1, id="what it hears of"),
        pytest.param(ObjectChange(EVERYTHING, None, None), 1, id="anything"),
    ],
)
def test_events_that_have_a_gated_pod_looked_at_again(happening, asked):
    room = Room()
    door = room.plugin("Door")
    pod = room.gated()
    before = door.asked
    room.queue.on_change(happening)
    assert door.asked - before == asked
    assert room.place(pod) == "gated"
    door.shut.clear()
    room.queue.on_change(happening)
    assert room.place(pod) == ("active" if asked else "gated")


def test_a_gated_pod_that_was_refused_before_waits_for_its_gate_alone():
    room = Room()
    (pod,) = room.add("pod")
    queued = room.take()
    room.plugin("Door").shut.add("pod")
    room.queue.on_change(LABELLED)
    room.queue.return_failed(queued, rejectors={"Other"})
    assert room.place(pod) == "gated"
    room.plugin("Door").shut.clear()
    room.queue.on_change(LABELLED)
    assert room.place(pod) == "gated"
    room.queue.on_change(NODE_GONE)
    assert room.place(pod) == "backoff"


def test_who_held_the_pod_back_is_asked_first():
    room = Room()
    door, gate = room.plugin("Door"), room.plugin("Gate")
    pod = room.gated(door="Gate")
    door.asked = gate.asked = 0
    room.queue.activate([pod])
    assert (gate.asked, door.asked) == (1, 0)


def test_all_must_let_the_pod_through():
    room = Room()
    door, gate = room.plugin("Door"), room.plugin("Gate")
    gate.shut.add("pod")
    pod = room.gated()
    door.shut.clear()
    room.queue.activate([pod])
    queued = room.find(pod)
    assert (room.place(pod), queued.gating_plugin) == ("gated", "Gate")
    assert queued.unschedulable_plugins == {"Door", "Gate"}
    gate.shut.clear()
    door.asked = gate.asked = 0
    room.queue.activate([pod])
    assert (room.place(pod), queued.gating_plugin) == ("active", "")
    assert (door.asked, gate.asked) == (1, 1)


def test_gates_are_asked_on_the_way_to_backoff_and_not_again_on_the_way_from_it():
    room = Room()
    door = room.plugin("Door")
    pod = room.failed()
    assert room.place(pod) == "backoff"
    door.shut.add("pod")
    room.now += 5
    before = door.asked
    room.queue.flush_backoff()
    assert (room.place(pod), door.asked) == ("active", before)
    room.queue.return_failed(room.take())
    assert room.place(pod) == "gated"


def test_activated_from_backoff_without_asking():
    room = Room()
    pod = room.failed()
    room.plugin("Door").shut.add("pod")
    room.queue.activate([pod])
    assert room.place(pod) == "active"


def test_who_is_refused_while_its_gate_is_shut_waits_like_others():
    room = Room()
    (pod,) = room.add("pod")
    room.plugin("Door").shut.add("pod")
    room.queue.return_failed(room.take(), rejectors={"Fit"})
    assert room.place(pod) == "unschedulable"
    room.queue.on_change(GOOD)
    assert room.place(pod) == "gated"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(OSError("no door"), "OSError: no door", id="raises"),
        pytest.param("shut", "TypeError: expected a Status or None, got 'shut'", id="answers nonsense"),
        pytest.param(Status.error("door is stuck"), "door is stuck", id="answers with an error"),
    ],
)
def test_a_plugin_that_fails_holds_the_pod_back(answer, text):
    room = Room()
    room.plugin("Door").answer = answer
    pod = room.gated()
    assert room.place(pod) == "gated"
    ((name, fault),) = room.faults
    assert name == "pod"
    assert fault.startswith(f'running PreEnqueue plugin "Door": {text} (pod default/pod')


def test_faults_are_logged_unless_the_host_wants_them(caplog):
    room = Room(keeps_faults=False)
    room.plugin("Door").answer = OSError("no door")
    with caplog.at_level(logging.ERROR):
        room.gated()
    (record,) = caplog.records
    assert str(record.fields["err"]).startswith(
        'running PreEnqueue plugin "Door": OSError: no door (pod default/pod, at '
    )


def test_an_answer_that_says_success():
    room = Room()
    room.plugin("Door").answer = Status()
    assert room.place(room.gated()) == "active"


def gates(*names):
    return [{"name": name} for name in names]


def test_scheduling_gates():
    room = Room(SchedulingGates, Fit, Other)
    two, one, none = (make_pod("pod", schedulingGates=gates(*names)) for names in (("a", "b"), ("a",), ()))
    room.queue.add(two)
    assert room.place(two) == "gated"
    room.queue.update(two, one)
    assert room.place(one) == "gated"
    room.queue.on_change(GOOD)
    room.queue.on_change(BAD)
    assert room.place(one) == "gated"
    room.queue.update(one, none)
    assert room.names() == ["pod"]
