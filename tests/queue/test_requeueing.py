"""Where pods go when they come back, and which events bring them out again."""

from __future__ import annotations

import logging

import pytest
from waiting_room import (
    BAD,
    EVERYTHING,
    GOOD,
    LABELLED,
    NODE_DELETE,
    POD_ADD,
    POD_DELETE,
    UNHEARD,
    Fit,
    Room,
)

from make import make_node, make_pod
from stowplan.framework import Action, ClusterEvent, Resource
from stowplan.framework.hints import ObjectChange

NODE_GONE = ObjectChange(NODE_DELETE, make_node("n"), None)
SOMETHING = ObjectChange(EVERYTHING, None, None)
OTHER_POD = ObjectChange(EVERYTHING, None, make_pod("another"))
THIS_POD = ObjectChange(EVERYTHING, None, make_pod("pod"))


def event(resource, action=Action.ADD):
    return ObjectChange(ClusterEvent(resource, action), make_node("n"), make_node("n"))


HINTS = [
    pytest.param({"Fit"}, (), GOOD, "backoff", id="a rejector says yes"),
    pytest.param({"Fit"}, (), BAD, "unschedulable", id="a rejector says no"),
    pytest.param({"Other"}, (), GOOD, "unschedulable", id="who says yes did not refuse it"),
    pytest.param({"Fit", "Other"}, (), GOOD, "backoff", id="one of two says yes"),
    pytest.param({"Other"}, (), LABELLED, "backoff", id="no hint means yes"),
    pytest.param({"Raising"}, (), LABELLED, "backoff", id="a hint that fails means yes"),
    pytest.param({"Unknown"}, (), GOOD, "unschedulable", id="a rejector that listens to nothing"),
    pytest.param((), {"Fit"}, GOOD, "active", id="who waits itself says yes"),
    pytest.param((), {"Fit"}, BAD, "unschedulable", id="who waits itself says no"),
    pytest.param({"Other"}, {"Fit"}, GOOD, "active", id="of both kinds, the waiting one says yes"),
    pytest.param({"Other"}, {"Fit"}, LABELLED, "backoff", id="of both kinds, the other one says yes"),
    pytest.param({"Silent", "Extender"}, {"Fit"}, GOOD, "active", id="all say yes, one waits itself"),
    pytest.param({"Fit", "Extender"}, {"Silent"}, GOOD, "active", id="all say yes, another waits itself"),
    pytest.param({"Silent"}, (), event(Resource.CSI_NODE), "backoff", id="who says nothing hears of much"),
    pytest.param({"Silent"}, (), event(Resource.RESOURCE_SLICE), "unschedulable", id="but not of all"),
    pytest.param({"Extender"}, (), event(Resource.NODE), "backoff", id="extenders: nodes"),
    pytest.param({"Extender"}, (), event(Resource.STORAGE_CLASS), "backoff", id="extenders: storage"),
    pytest.param(
        {"Extender"}, (), event(Resource.VOLUME_ATTACHMENT), "unschedulable", id="extenders: not all"
    ),
    pytest.param({"Fit"}, (), SOMETHING, "backoff", id="anything may have happened"),
    pytest.param({"Unknown"}, (), SOMETHING, "backoff", id="anything, and nobody listens"),
    pytest.param((), {"Fit"}, SOMETHING, "backoff", id="anything, to one who waits itself"),
    pytest.param({"Fit"}, (), THIS_POD, "backoff", id="anything, to this pod"),
    pytest.param({"Fit"}, (), OTHER_POD, "unschedulable", id="anything, to another pod"),
]


@pytest.mark.parametrize(("rejectors", "pending", "happening", "place"), HINTS)
def test_an_event_after_the_attempt(rejectors, pending, happening, place):
    room = Room()
    pod = room.refused("pod", *rejectors, pending=pending)
    assert room.place(pod) == "unschedulable"
    room.queue.on_change(happening)
    assert room.place(pod) == place


@pytest.mark.parametrize(("rejectors", "pending", "happening", "place"), HINTS)
def test_an_event_during_the_attempt(rejectors, pending, happening, place):
    room = Room()
    (pod,) = room.add("pod")
    queued = room.take()
    room.queue.on_change(happening)
    room.queue.return_failed(queued, rejectors=rejectors, pending=pending)
    assert room.place(pod) == place


def test_an_event_before_the_attempt():
    room = Room()
    room.add("other")
    other = room.take()
    room.queue.on_change(GOOD)
    pod = room.refused("pod", "Fit")
    assert room.place(pod) == "unschedulable"
    room.queue.return_failed(other, rejectors={"Fit"})
    assert room.place(other.pod) == "backoff"


def test_the_best_of_several_events_counts():
    room = Room()
    (pod,) = room.add("pod")
    queued = room.take()
    for happening in (LABELLED, GOOD, BAD):
        room.queue.on_change(happening)
    room.queue.return_failed(queued, rejectors={"Other"}, pending={"Fit"})
    assert room.place(pod) == "active"


def test_who_fails_after_its_attempt_was_decided_backs_off():
    room = Room()
    (pod,) = room.add("pod")
    queued = room.take()
    room.queue.done(pod.uid)
    room.queue.return_failed(queued, rejectors={"Fit"})
    assert room.place(pod) == "backoff"


def test_who_was_refused_by_nobody_waits_for_no_event():
    room = Room()
    pod = room.failed()
    room.queue.on_change(SOMETHING)
    assert room.place(pod) == "backoff"
    assert room.names() == []


@pytest.mark.parametrize(
    ("end", "text"),
    [
        pytest.param({"rejectors": {"Fit"}}, "unschedulable queue", id="unschedulable"),
        pytest.param({}, "the backoff queue", id="backing off"),
        pytest.param(None, "the active queue", id="active"),
    ],
)
def test_a_pod_that_is_back_already(end, text, caplog):
    room = Room()
    room.add("pod")
    queued = room.take()
    if end is None:
        room.queue.done(queued.pod.uid)
        room.queue.update(queued.pod, queued.pod)  # unknown, so it is taken for a new one
    else:
        room.queue.return_failed(queued, **end)
    before = room.queue.counts()
    with caplog.at_level(logging.ERROR):
        room.queue.return_failed(queued, rejectors={"Other"})
    (record,) = caplog.records
    assert record.fields["err"] == f"Pod default/pod is already present in {text}"
    assert room.queue.counts() == before
    assert len(room.queue.in_flight) == 0


def test_events_move_pods_of_every_profile():
    room = Room()
    pods = [room.refused("a", "Fit"), room.refused("b", "Fit", schedulerName="second")]
    room.queue.on_change(GOOD)
    assert [room.place(pod) for pod in pods] == ["backoff", "backoff"]


def test_only_some_pods():
    room = Room()
    a, b = room.refused("a", "Fit"), room.refused("b", "Fit")
    room.queue.on_change(GOOD, only=lambda pod: pod.uid != a.uid)
    assert (room.place(a), room.place(b)) == ("unschedulable", "backoff")


PROMISED = {"nominatedNodeName": "n"}


@pytest.mark.parametrize(
    ("gone", "place"),
    [
        pytest.param(make_pod("other", priority=1, node="n"), "backoff", id="a less important pod left"),
        pytest.param(make_pod("other", priority=5, status=PROMISED), "backoff", id="as important, promised"),
        pytest.param(
            make_pod("other", priority=6, status=PROMISED), "backoff", id="more important, promised"
        ),
        pytest.param(make_pod("other", priority=4, status=PROMISED), "unschedulable", id="less, promised"),
    ],
)
@pytest.mark.parametrize("is_in_flight", [False, True], ids=["waiting", "being tried"])
def test_promised_room_that_is_given_up(gone, place, is_in_flight):
    room = Room()
    happening = ObjectChange(POD_DELETE, gone, None)
    (pod,) = room.add("pod", priority=5)
    queued = room.take()
    if is_in_flight:
        room.queue.on_change(happening)
    room.queue.return_failed(queued, rejectors={"Fit"})
    if not is_in_flight:
        room.queue.on_change(happening)
    assert room.place(pod) == place


def test_a_waiting_pods_change_is_no_news_to_others():
    room = Room()
    pod = room.refused("pod", "Silent")
    changed = make_pod("changed")
    update = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_LABEL)
    room.queue.on_change(ObjectChange(update, changed, changed))
    assert room.place(pod) == "unschedulable"


# What is kept for pods being tried


def test_events_are_kept_as_long_as_someone_may_need_them():
    room = Room()
    room.add("a", "b")
    room.queue.on_change(GOOD)
    first = room.take()
    room.queue.on_change(BAD)
    second = room.take()
    room.queue.on_change(GOOD)
    assert room.ledger.kept == {"NodeAdd": 2, "PodPopped": 2}
    room.queue.done(first.pod.uid)
    assert room.ledger.kept == {"NodeAdd": 1, "PodPopped": 1}
    room.queue.done(first.pod.uid)
    room.queue.return_failed(second, rejectors={"Fit"})
    assert room.ledger.kept == {"NodeAdd": 0, "PodPopped": 0}
    assert len(room.queue.in_flight) == 0


def test_events_stay_while_an_earlier_pod_is_tried():
    room = Room()
    room.add("a", "b")
    first, second = room.take(), room.take()
    room.queue.on_change(GOOD)
    room.queue.done(second.pod.uid)
    room.queue.return_failed(first, rejectors={"Fit"})
    assert room.place(first.pod) == "backoff"


def test_events_are_found_after_others_were_dropped():
    room = Room()
    room.add("a", "b")
    room.take()
    room.queue.on_change(BAD)
    room.queue.done("uid-a")
    second = room.take()
    room.queue.on_change(GOOD)
    room.queue.return_failed(second, rejectors={"Fit"})
    assert room.place(second.pod) == "backoff"


def test_events_that_nobody_listens_to_are_not_kept():
    room = Room(Fit)
    room.add("pod")
    room.take()
    room.queue.on_change(UNHEARD)
    assert room.ledger.kept == {"PodPopped": 1}


def test_a_hint_is_asked_only_of_those_who_refused_and_listen():
    room = Room()
    for number in range(200):
        room.refused(f"fit-{number}", "Fit")
        room.refused(f"other-{number}", "Other")
    fit = room.plugin("Fit")
    room.queue.on_change(ObjectChange(POD_ADD, None, make_pod("new", node="n")))
    assert fit.asked == 0
    room.queue.on_change(BAD)
    assert fit.asked == 200
    assert room.queue.counts()["unschedulable"] == 400
