"""Pods that change, go, are activated or promised a node while they wait."""

from __future__ import annotations

from itertools import pairwise

import pytest
from waiting_room import GOOD, LABELLED, Room

from make import make_pod
from stowplan.api.pod import Pod
from stowplan.framework.handle import Nominations
from stowplan.framework.hints import object_changes

REFUSED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


def promised(node, **status):
    return {"nominatedNodeName": node, **status}


# Changes


@pytest.mark.parametrize(
    ("rejectors", "changes", "place"),
    [
        pytest.param({"Other"}, {"labels": {"a": "b"}}, "backoff", id="a change that a rejector listens to"),
        pytest.param({"Fit"}, {"labels": {"a": "b"}}, "unschedulable", id="one that it does not"),
        pytest.param({"Fit"}, {"tolerations": ["x"]}, "backoff", id="one of several kinds"),
        pytest.param(
            {"Fit"}, {"tolerations": ["x"], "labels": {"a": "b"}}, "backoff", id="the second of two changes"
        ),
        pytest.param({"Silent"}, {"tolerations": ["x"]}, "backoff", id="who hears of everything"),
        pytest.param({"Extender"}, {"labels": {"a": "b"}}, "backoff", id="extenders"),
    ],
)
def test_an_unschedulable_pod_that_changes(rejectors, changes, place):
    room = Room()
    old = room.refused("pod", *rejectors)
    new = make_pod("pod", **changes)
    room.queue.update(old, new)
    assert room.place(new) == place
    assert room.find(new).pod is new


@pytest.mark.parametrize("rejector", ["Silent", "Extender"])
@pytest.mark.parametrize(
    ("changes", "place"),
    [
        pytest.param({"status": REFUSED}, "unschedulable", id="the condition that says it was refused"),
        pytest.param({"status": promised("n", **REFUSED)}, "unschedulable", id="and the node it is promised"),
        pytest.param({"metadata": {"resourceVersion": "7"}}, "unschedulable", id="nothing we know of"),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, "backoff", id="annotations"),
        pytest.param({"metadata": {"generation": 7}}, "backoff", id="a part of the spec we do not know"),
        pytest.param({"nodeSelector": {"a": "b"}}, "backoff", id="the spec"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "backoff", id="deletion"),
    ],
)
def test_a_pods_own_status_is_no_reason_to_try_it_again(rejector, changes, place):
    """kube-scheduler tries twice in a row whom an extender refused: its own patch looks like news to it."""
    room = Room()
    old = room.refused("pod", rejector)
    new = make_pod("pod", **changes)
    room.queue.update(old, new)
    assert room.place(new) == place


def test_nor_when_it_arrives_during_the_next_attempt():
    room = Room()
    (old,) = room.add("pod")
    queued = room.take()
    new = make_pod("pod", status=REFUSED)
    room.queue.update(old, new)
    room.queue.return_failed(queued, rejectors={"Extender"})
    assert room.place(new) == "unschedulable"


def test_a_change_that_moves_nothing_stops_at_the_gate():
    room = Room()
    old = room.refused("pod", "Other")
    room.plugin("Door").shut.add("pod")
    room.queue.update(old, make_pod("pod", labels={"a": "b"}))
    assert room.place(old) == "gated"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        pytest.param({"labels": {"a": "b"}}, "backoff", id="that helps"),
        pytest.param({"nodeSelector": {"a": "b"}}, "unschedulable", id="that does not"),
    ],
)
def test_a_change_while_it_is_tried(changes, place):
    room = Room()
    (old,) = room.add("pod")
    queued = room.take()
    new = make_pod("pod", **changes)
    room.queue.update(old, new)
    assert room.names() == []
    room.queue.return_failed(queued, rejectors={"Other"})
    assert room.place(new) == place


def test_another_pods_change_while_it_is_tried():
    room = Room()
    old, pod = room.add("changed", "pod")
    room.take()
    queued = room.take()
    room.queue.update(old, make_pod("changed", labels={"a": "b"}))
    room.queue.return_failed(queued, rejectors={"Other"})
    assert room.place(pod) == "unschedulable"


def test_an_active_pod_takes_the_place_of_its_new_priority():
    room = Room()
    a, _, c = room.add("a", "b", "c", priority=5)
    room.queue.update(a, make_pod("a", priority=1))
    room.queue.update(c, make_pod("c", priority=9))
    assert room.names() == ["c", "b", "a"]


def test_an_active_pod_that_changes_otherwise_keeps_its_place():
    room = Room()
    a, _ = room.add("a", "b")
    new = make_pod("a", labels={"x": "y"})
    room.queue.update(a, new)
    assert room.take().pod is new


def test_a_pod_that_backs_off_takes_the_place_of_its_new_priority():
    room = Room()
    a, b = (room.refused(name, "Fit", priority=5) for name in "ab")
    room.queue.on_change(GOOD)
    room.queue.update(b, make_pod("b", priority=9))
    assert [room.place(pod) for pod in (a, b)] == ["backoff", "backoff"]
    assert room.names() == ["b", "a"]


@pytest.mark.parametrize("door", ["add", "update"])
def test_a_pod_nobody_told_us_of(door):
    room = Room()
    pod = make_pod("pod")
    getattr(room.queue, door)(*((pod,) if door == "add" else (pod, pod)))
    assert room.names() == ["pod"]


def test_told_twice_of_a_pod():
    room = Room()
    pod = room.refused("pod", "Other")
    room.queue.add(pod)
    assert room.place(pod) == "unschedulable"
    room.queue.add(make_pod("pod", labels={"a": "b"}))
    assert room.place(pod) == "backoff"


def test_another_pod_of_the_same_name():
    room = Room()
    old = room.refused("pod", "Fit")
    new = make_pod("pod", metadata={"uid": "new"})
    room.queue.update(old, new)
    assert room.place(old) is None
    assert room.names() == ["pod"]


# Deletions


def waiting(room):
    room.gated("gated")
    room.refused("unschedulable", "Fit")
    room.failed("failed")
    room.refused("refused", "Other")
    room.queue.on_change(LABELLED)
    room.add("active")
    return {queued.pod.name: queued.pod for queued in room.queue}


@pytest.mark.parametrize("name", ["gated", "unschedulable", "failed", "refused", "active"])
def test_a_pod_that_is_gone(name):
    room = Room()
    pods = waiting(room)
    assert set(room.queue.counts().values()) == {1, 2}
    room.queue.delete(pods[name])
    assert {queued.pod.name for queued in room.queue} == pods.keys() - {name}
    assert sum(room.queue.counts().values()) == 4
    room.now += 400
    room.plugin("Door").shut.clear()
    room.queue.flush_backoff()
    room.queue.flush_unschedulable()
    assert set(room.names()) == pods.keys() - {name}


def test_deletions_while_it_is_tried_and_of_others_of_its_name():
    room = Room()
    (pod,) = room.add("pod")
    queued = room.take()
    room.queue.delete(pod)
    room.queue.done(queued.pod.uid)
    assert room.queue.counts()["active"] == 0
    (pod,) = room.add("pod")
    room.queue.delete(make_pod("pod", metadata={"uid": "other"}))
    assert room.place(pod) == "active"


def test_a_pod_that_comes_and_goes_often_leaves_nothing_behind():
    room = Room()
    room.add("stays")
    for number in range(1000):
        room.queue.delete(room.add(f"goes-{number}", priority=-1)[0])
    assert room.names() == ["stays"]


# Activation


def test_activation():
    room = Room()
    pods = waiting(room)
    room.queue.activate(pods.values())
    assert {pod.name: room.place(pod) for pod in pods.values()} == {
        "gated": "gated",
        "unschedulable": "active",
        "failed": "active",
        "refused": "active",
        "active": "active",
    }


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param("pod", "backoff", id="this pod"),
        pytest.param("other", "unschedulable", id="another pod"),
        pytest.param("unknown", "unschedulable", id="a pod nobody knows"),
    ],
)
def test_activation_while_it_is_tried(name, place):
    room = Room()
    pod, _ = room.add("pod", "other")
    queued, _ = room.take(), room.take()
    room.queue.activate([make_pod(name)])
    room.queue.return_failed(queued, rejectors={"Fit"})
    assert room.place(pod) == place


@pytest.mark.parametrize("is_in_flight", [False, True], ids=["after the attempt", "during the attempt"])
def test_a_refused_eviction_does_not_make_the_preemptor_spin(is_in_flight):
    """kube-scheduler activates it at once, hundreds of times a second: ours backs off, longer each time."""
    room = Room()
    (pod,) = room.add("pod")
    attempts = []
    while room.now < 1040 and len(attempts) < 100:
        queued = room.queue.pop_nowait()
        if queued is not None:
            attempts.append(room.now)
            if is_in_flight:
                room.queue.activate([pod], backoff=True)
            room.queue.return_failed(queued, rejectors={"Fit"})
            if not is_in_flight:
                room.queue.activate([pod], backoff=True)
        else:
            room.now = float(int(room.now) + 1)
            room.queue.flush_backoff()
    assert [later - earlier for earlier, later in pairwise(attempts)] == [1.75, 3, 5, 9, 11]


def test_an_eviction_that_is_refused_late_counts_from_then_on():
    room = Room()
    pod = room.refused("pod", "Fit")
    room.now += 100
    room.queue.activate([pod], backoff=True)
    assert room.place(pod) == "backoff"
    assert room.names() == []


def test_backing_off_in_earnest_takes_a_pod_from_those_an_idle_scheduler_tries():
    room = Room()
    pod = room.refused("pod", "Fit")
    room.queue.on_change(GOOD)
    room.queue.activate([pod], backoff=True)
    assert room.place(pod) == "backoff"
    assert room.names() == []
    room.now += 2
    room.queue.flush_backoff()
    room.queue.return_failed(room.take(), rejectors={"Fit"})
    room.queue.on_change(GOOD)
    assert room.names() == ["pod"]  # only the one pause was in earnest


def test_backing_off_in_earnest_does_not_open_gates_or_stop_active_pods():
    room = Room()
    gated, (active,) = room.gated("gated"), room.add("active")
    room.queue.activate([gated, active], backoff=True)
    assert (room.place(gated), room.place(active)) == ("gated", "active")


# Nominations


def on(room, node="n"):
    return list(room.queue.nominations.on(node))


def test_a_new_pod_brings_its_nomination():
    room = Room()
    (pod,) = room.add("pod", status=promised("n"))
    assert on(room) == [pod]


def test_a_gated_pod_does_not():
    room = Room()
    pod = room.gated(status=promised("n"))
    assert on(room) == []
    room.plugin("Door").shut.clear()
    room.queue.activate([pod])
    assert on(room) == []


@pytest.mark.parametrize(
    ("status", "node", "expected"),
    [
        pytest.param({}, "n", "n", id="a node"),
        pytest.param(promised("m"), "n", "n", id="another node than its status has"),
        pytest.param(promised("m"), None, "m", id="nothing new, so the one of its status"),
        pytest.param(promised("m"), "", None, id="no node any more"),
        pytest.param({}, None, None, id="nothing, and there was nothing"),
    ],
)
def test_nominations_by_the_host(status, node, expected):
    room = Room()
    pod = room.refused("pod", "Fit", status=status)
    room.queue.nominate(pod, node)
    assert {name: on(room, name) for name in ("n", "m")} == {
        name: [pod] if name == expected else [] for name in ("n", "m")
    }


def test_a_pod_that_has_a_node_needs_no_nomination():
    room = Room()
    room.queue.nominate(make_pod("pod", node="n"), "n")
    assert not room.queue.nominations


def test_hosts_may_share_nominations():
    nominations = Nominations()
    room = Room(nominations=nominations)
    assert room.queue.nominations is nominations


def test_deleted_pods_lose_their_nomination():
    room = Room()
    (waits, tried) = room.add("waits", "tried", status=promised("n"))
    room.take()
    room.take()
    room.queue.delete(tried)
    assert on(room) == [waits]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param("", "", "memory", id="what the API server does not know yet is kept"),
        pytest.param("", "n", "n", id="a first one"),
        pytest.param("n", "m", "m", id="another one"),
        pytest.param("n", "", None, id="none any more"),
    ],
)
@pytest.mark.parametrize("place", ["active", "backoff", "unschedulable"])
def test_nominations_of_pods_that_change(place, before, after, expected):
    room = Room()
    old = room.refused("pod", "Fit", status=promised(before))
    if place == "backoff":
        room.queue.on_change(GOOD)
    elif place == "active":
        room.queue.activate([old])
    room.queue.nominate(old, before or "memory")
    assert room.place(old) == place
    new = make_pod("pod", status=promised(after), labels={"a": "b"})
    room.queue.update(old, new)
    assert {name: on(room, name) for name in ("n", "m", "memory")} == {
        name: [new] if name == expected else [] for name in ("n", "m", "memory")
    }


def test_a_nomination_that_was_used_does_not_come_back_with_a_change():
    room = Room()
    old = room.refused("pod", "Fit")
    room.queue.nominate(old, "n")
    room.queue.nominations.remove(old)
    room.queue.update(old, make_pod("pod", labels={"a": "b"}))
    assert not room.queue.nominations


def changed(room, old: Pod, new: Pod) -> None:
    """A change as a host passes it on."""
    room.queue.update(old, new)
    for happening in object_changes(old, new):
        room.queue.on_change(happening)


@pytest.mark.parametrize("is_told", [False, True], ids=["nominations as they were", "nomination removed"])
def test_who_loses_its_promised_room_to_another_is_tried_again(is_told):
    room = Room()
    old = room.refused("pod", "Fit", status=promised("n"))
    if is_told:
        room.queue.nominations.remove(old)
    changed(room, old, make_pod("pod"))
    assert room.place(old) == "backoff"


def test_who_gives_it_up_itself_is_not():
    """Only others may now fit there."""
    room = Room()
    old = room.refused("pod", "Fit", status=promised("n"))
    other = room.refused("other", "Fit")
    room.queue.nominate(old, "")
    changed(room, old, make_pod("pod", status=REFUSED))
    assert (room.place(old), room.place(other)) == ("unschedulable", "backoff")
