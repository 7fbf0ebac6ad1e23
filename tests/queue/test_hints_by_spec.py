"""Pods that are alike are asked about once a change, where the plugin says that nothing else matters."""

from __future__ import annotations

from typing import Any

import pytest
from waiting_room import BAD, GOOD, POD_DELETE, Fit, Room

from make import make_pod
from stowplan.framework import QUEUE, SKIP_HINT
from stowplan.framework.hints import ObjectChange


class BySpec(Fit):
    hints_by_spec = True

    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Any:
        self.asked += 1
        helps = pod.labels.get("app") == "a" or pod.priority > 5 or (old is not None and old.uid == pod.uid)
        return QUEUE if helps else SKIP_HINT


def asked(room: Room, plugin: str, change: ObjectChange) -> int:
    before = room.plugin(plugin).asked
    room.queue.on_change(change)
    return room.plugin(plugin).asked - before


def test_pods_that_are_alike_are_asked_about_once():
    room = Room(BySpec)
    pods = [room.refused(f"p{number}", "BySpec", labels={"app": "a"}) for number in range(20)]
    assert asked(room, "BySpec", GOOD) == 1
    assert [room.place(pod) for pod in pods] == ["backoff"] * 20


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param({"labels": {"app": "a"}}, {"labels": {"app": "b"}}, id="labels"),
        pytest.param({"namespace": "x", "labels": {"app": "a"}}, {"namespace": "y"}, id="namespaces"),
        pytest.param({"priority": 9}, {"priority": 1}, id="specs"),
    ],
)
def test_pods_that_differ_are_asked_about_each(one, two):
    room = Room(BySpec)
    first, second = room.refused("p1", "BySpec", **one), room.refused("p2", "BySpec", **two)
    assert asked(room, "BySpec", GOOD) == 2
    assert (room.place(first), room.place(second)) == ("backoff", "unschedulable")


def test_the_pod_that_changed_is_asked_about_by_itself():
    room = Room(BySpec)
    pods = [room.refused(name, "BySpec") for name in "abc"]
    gone = ObjectChange(POD_DELETE, make_pod("b", node="n"), None)
    assert asked(room, "BySpec", gone) == 2
    assert [room.place(pod) for pod in pods] == ["unschedulable", "backoff", "unschedulable"]


def test_plugins_that_look_at_more_are_asked_about_every_pod():
    room = Room(Fit, BySpec)
    for number in range(3):
        room.refused(f"p{number}", "Fit")
    assert asked(room, "Fit", BAD) == 3
    room.refused("both", "Fit", "BySpec")
    room.refused("both-too", "Fit", "BySpec")
    assert asked(room, "Fit", BAD) == 5


class Derived(BySpec):
    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Any:
        self.asked += 1
        return QUEUE if pod.name == "p1" else SKIP_HINT


def test_another_hint_does_not_inherit_the_promise():
    room = Room(Derived)
    pods = [room.refused(f"p{number}", "Derived") for number in range(3)]
    assert asked(room, "Derived", GOOD) == 3
    assert [room.place(pod) for pod in pods] == ["unschedulable", "backoff", "unschedulable"]


def test_answers_are_not_kept_for_the_next_change():
    room = Room(BySpec)
    for number in range(2):
        room.refused(f"p{number}", "BySpec")
    assert [asked(room, "BySpec", BAD) for _ in range(3)] == [1, 1, 1]
