"""What the queue reports of itself."""

from __future__ import annotations

import logging

import pytest
from waiting_room import BAD, GOOD, NODE_DELETE, Fit, Room

from make import make_node, make_pod
from stowplan.framework import Action, ClusterEvent, Resource
from stowplan.framework.hints import ObjectChange
from stowplan.metrics import Metrics
from stowplan.queue.waiting import label_of

PROFILE = "default-scheduler"


@pytest.mark.parametrize(
    ("resource", "action", "label"),
    [
        ("NODE", "ADD", "NodeAdd"),
        ("NODE", "UPDATE_NODE_LABEL", "NodeUpdateNodeLabel"),
        ("ASSIGNED_POD", "UPDATE", "AssignedPodUpdate"),
        ("UNSCHEDULABLE_POD", "UPDATE_POD_SCALE_DOWN", "UnschedulablePodUpdatePodScaleDown"),
        ("CSI_NODE", "DELETE", "storage.k8s.io/CSINodeDelete"),
    ],
)
def test_names_of_events(resource, action, label):
    assert label_of(ClusterEvent(Resource[resource], Action[action])) == label


def test_pods_that_enter_a_queue():
    room = Room()
    incoming = room.ledger.incoming
    pod = room.refused("pod", "Fit")
    assert incoming == {("active", "UnschedulablePodAdd"): 1, ("unschedulable", "ScheduleAttemptFailure"): 1}
    incoming.clear()
    room.queue.on_change(GOOD)
    assert incoming == {("backoff", "NodeAdd"): 1}
    incoming.clear()
    queued = room.take()
    assert incoming == {("active", "PopFromBackoffQ"): 1}
    incoming.clear()
    room.queue.return_failed(queued)
    room.now += 2
    room.queue.flush_backoff()
    assert incoming == {("backoff", "ScheduleAttemptFailure"): 1, ("active", "BackoffComplete"): 1}
    incoming.clear()
    room.queue.return_failed(room.take(), rejectors={"Fit"})
    room.queue.activate([pod])
    assert incoming == {("unschedulable", "ScheduleAttemptFailure"): 1, ("active", "ForceActivate"): 1}
    incoming.clear()
    room.queue.return_failed(room.take(), rejectors={"Other"})
    room.now += 301
    room.queue.flush_unschedulable()
    assert incoming == {("unschedulable", "ScheduleAttemptFailure"): 1, ("active", "UnschedulableTimeout"): 1}
    incoming.clear()
    room.queue.return_failed(room.take(), rejectors={"Other"})
    room.now += 301
    room.queue.update(pod, make_pod("pod", labels={"a": "b"}))
    assert incoming["active", "UnschedulablePodUpdatePodLabel"] == 1
    room.queue.done(room.take().pod.uid)
    room.queue.update(pod, pod)
    assert incoming["active", "UnschedulablePodUpdate"] == 1


def test_a_gated_pod_enters_once_however_often_it_is_looked_at():
    room = Room()
    pod = room.gated()
    for _ in range(3):
        room.queue.on_change(ObjectChange(NODE_DELETE, make_node("n"), None))
    assert room.ledger.incoming == {("unschedulable", "UnschedulablePodAdd"): 1}
    assert room.ledger.refused == {("Door", PROFILE): 1}
    room.plugin("Door").shut.clear()
    room.queue.activate([pod])
    room.take()
    assert room.ledger.refused == {("Door", PROFILE): 0}


@pytest.mark.parametrize("end", ["taken", "deleted"])
def test_pods_refused_by_plugin(end):
    room = Room()
    pod = room.refused("pod", "Fit", pending={"Other"}, schedulerName="second")
    assert room.ledger.refused == {("Fit", "second"): 1, ("Other", "second"): 1}
    room.queue.activate([pod])
    assert room.ledger.refused.total() == 2
    if end == "taken":
        room.take()
    else:
        room.queue.delete(pod)
    assert room.ledger.refused == {("Fit", "second"): 0, ("Other", "second"): 0}


@pytest.mark.parametrize("rejectors", [{"rejectors": {"Door"}}, {"pending": {"Door"}}])
def test_a_gate_that_had_refused_the_pod_already_counts_once(rejectors):
    room = Room()
    room.add("pod")
    room.plugin("Door").shut.add("pod")
    room.queue.return_failed(room.take(), **rejectors)
    room.queue.on_change(ObjectChange(NODE_DELETE, make_node("n"), None))
    assert room.queue.counts()["gated"] == 1
    assert room.ledger.refused == {("Door", PROFILE): 1}


def test_hints():
    room = Room()
    room.refused("a", "Fit")
    room.queue.on_change(BAD)
    room.queue.on_change(GOOD)
    assert room.ledger.hints == {("NodeAdd", "QueueSkip", "Fit"): 1, ("NodeAdd", "Queue", "Fit"): 1}


def test_the_schedulers_own_metrics_take_it_all():
    metrics = Metrics()
    room = Room(recorder=metrics)
    room.refused("pod", "Fit")
    room.add("other")
    room.take()
    room.queue.on_change(GOOD)
    metrics.pending(room.queue.counts())
    page = metrics.render().decode()
    for line in (
        'scheduler_pending_pods{queue="backoff"} 1',
        'scheduler_queue_incoming_pods_total{event="NodeAdd",queue="backoff"} 1',
        'scheduler_unschedulable_pods{plugin="Fit",profile="default-scheduler"} 1',
        'scheduler_inflight_events{event="PodPopped"} 1',
        'queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="Queue",plugin="Fit"} 1',
    ):
        assert f"{line}\n" in page


def test_nobody_need_listen():
    room = Room(Fit, recorder=None)
    room.refused("pod", "Fit")
    room.queue.on_change(GOOD)
    assert room.names() == ["pod"]


@pytest.mark.parametrize(("verbosity", "events"), [(2, []), (3, ["ScheduleAttemptFailure"]), (5, None)])
def test_moves_are_logged_for_those_who_ask(verbosity, events, caplog):
    room = Room()
    with caplog.at_level(logging.INFO - verbosity, "stowplan"):
        room.refused("pod", "Fit")
        room.queue.on_change(GOOD)
    found = [record.fields["event"] for record in caplog.records]
    assert found == (
        ["UnschedulablePodAdd", "ScheduleAttemptFailure", "NodeAdd"] if events is None else events
    )
