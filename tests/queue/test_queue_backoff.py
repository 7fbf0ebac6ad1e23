"""How long pods back off, and what ends it."""

from __future__ import annotations

import pytest
from waiting_room import GOOD, START, Room


def gaps(room, end_attempt, count):
    """Seconds between attempts of a pod when the host flushes every second, on the second."""
    found, last = [], room.now
    end_attempt(room.take())
    while len(found) < count:
        room.now = float(int(room.now) + 1)
        room.queue.flush_backoff()
        queued = room.queue.pop_nowait()
        if queued is not None:
            found.append(room.now - last)
            last = room.now
            end_attempt(queued)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, [1.75, 3, 5, 9, 11, 11], id="by default"),
        pytest.param({"initial_backoff": 3}, [3.75, 7, 11, 11], id="longer at first"),
        pytest.param({"max_backoff": 3}, [1.75, 3, 4, 4], id="shorter at last"),
        pytest.param({"initial_backoff": 20}, [10.75, 11], id="longer at first than at last"),
    ],
)
def test_attempts_that_go_wrong(options, expected):
    room = Room(**options)
    room.add("pod")
    assert gaps(room, room.queue.return_failed, len(expected)) == expected


def test_after_very_many_attempts():
    room = Room()
    room.add("pod")
    queued = room.take()
    queued.consecutive_errors = 5000
    room.queue.return_failed(queued)
    assert queued.backoff_expiration is not None
    assert queued.backoff_expiration == int(START + 10)


def test_no_backoff_at_all():
    room = Room(max_backoff=0)
    pod = room.failed()
    assert room.place(pod) == "active"


@pytest.mark.parametrize(
    ("later", "place"),
    [
        pytest.param(0, "backoff", id="at once"),
        pytest.param(1.7, "backoff", id="in the second in which it ends"),
        pytest.param(1.75, "active", id="in the next second"),
    ],
)
def test_an_event_that_comes(later, place):
    room = Room()
    pod = room.refused("pod", "Fit")
    room.now += later
    room.queue.on_change(GOOD)
    assert room.place(pod) == place


def test_refusals_count_for_ever_and_errors_until_the_next_refusal():
    room = Room()
    room.add("pod")
    ends = []
    for rejectors in (["Fit"], ["Fit"], ["Fit"], [], [], ["Fit"], []):
        queued = room.take()
        room.queue.return_failed(queued, rejectors=rejectors)
        room.queue.on_change(GOOD)
        ends.append(queued.backoff_expiration - int(room.now))
        room.now += 20
        room.queue.flush_backoff()
    assert ends == [1, 2, 4, 1, 2, 8, 1]


def test_an_idle_scheduler_does_not_wait_for_a_refused_pod():
    room = Room()
    room.refused("pod", "Fit")
    room.queue.on_change(GOOD)
    assert room.queue.counts()["backoff"] == 1
    assert room.names() == ["pod"]


def test_an_idle_scheduler_waits_for_a_pod_whose_attempt_went_wrong():
    room = Room()
    room.failed()
    assert room.names() == []
    room.now += 2
    room.queue.flush_backoff()
    assert room.names() == ["pod"]


def test_a_busy_scheduler_tries_active_pods_first():
    room = Room()
    room.refused("refused", "Fit", priority=9)
    room.queue.on_change(GOOD)
    room.add("new")
    assert room.names() == ["new", "refused"]


def test_of_refused_pods_the_first_to_be_due_goes_first_and_in_one_second_the_more_important():
    room = Room()
    later = room.refused("later", "Fit", priority=9)
    room.queue.activate([later])
    room.queue.return_failed(room.take(), rejectors={"Fit"})  # its second refusal: two seconds
    room.refused("low", "Fit", priority=1)
    room.now += 0.5  # the backoff still ends in the same second
    room.refused("high", "Fit", priority=2)
    room.queue.on_change(GOOD)
    assert room.queue.counts()["backoff"] == 3
    assert room.names() == ["high", "low", "later"]


def test_flushed_pods_go_in_order_of_priority():
    room = Room()
    room.failed("error", priority=5)
    room.refused("low", "Fit", priority=1)
    room.refused("high", "Fit", priority=9)
    room.queue.on_change(GOOD)
    room.queue.flush_backoff()
    assert room.queue.counts()["backoff"] == 3
    room.now += 1.75
    room.queue.flush_backoff()
    assert room.queue.counts() == {"active": 3, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert room.names() == ["high", "error", "low"]


# Waiting too long


@pytest.mark.parametrize(
    ("later", "place"),
    [
        pytest.param(300, "unschedulable", id="just as long as allowed"),
        pytest.param(300.5, "active", id="longer"),
    ],
)
def test_pods_that_no_event_has_helped(later, place):
    room = Room()
    pod = room.refused("pod", "Fit")
    room.now += later
    room.queue.flush_unschedulable()
    assert room.place(pod) == place
    assert room.find(pod).was_flushed is (place == "active")


def test_a_flush_is_forgotten_with_the_next_failure():
    room = Room()
    pod = room.refused("pod", "Fit")
    room.now += 301
    room.queue.flush_unschedulable()
    room.queue.return_failed(room.take(), rejectors={"Fit"})
    assert not room.find(pod).was_flushed


def test_a_pod_that_backs_off_for_longer_than_it_may_wait_backs_off():
    room = Room(initial_backoff=100, max_backoff=100, max_in_unschedulable=30)
    pod = room.refused("pod", "Fit")
    room.now += 31
    room.queue.flush_unschedulable()
    assert room.place(pod) == "backoff"


def test_gated_pods_are_looked_at_again_each_time_they_waited_too_long():
    room = Room()
    pod = room.gated()
    door = room.plugin("Door")
    looked = []
    for later in (301, 1, 299, 1):
        room.now += later
        before = door.asked
        room.queue.flush_unschedulable()
        looked.append(door.asked - before)
    assert looked == [1, 0, 0, 1]
    assert room.place(pod) == "gated"
    door.shut.clear()
    room.now += 301
    room.queue.flush_unschedulable()
    assert room.place(pod) == "active"


def test_a_flush_counts_as_an_event_for_pods_being_tried():
    room = Room()
    room.refused("old", "Fit")
    (pod,) = room.add("new")
    queued = room.take()
    room.now += 301
    room.queue.flush_unschedulable()
    room.queue.return_failed(queued, rejectors={"Fit"})
    assert room.place(pod) == "backoff"


def test_pods_whose_attempts_take_long_leave_time_to_others():
    """All slow pods of a namespace together get a tenth of the time; those of others are not held back."""
    room = Room()
    slow = room.add("a", "b", "c")
    for _ in slow:
        room.now += 2
        room.queue.return_failed(room.take(), rejectors=["Fit"], seconds=2.0)
    room.queue.on_change(GOOD)
    found = {}
    while len(found) < len(slow):
        room.now = float(int(room.now) + 1)
        room.queue.flush_backoff()
        if (queued := room.queue.pop_nowait()) is not None:
            found[queued.pod.name] = room.now - START
    assert sorted(found.values()) == list(found.values())
    assert found["a"] >= 2 + 20
    assert found["c"] >= 2 + 60

    (other,) = room.add("quick")
    room.queue.return_failed(room.take(), rejectors=["Fit"], seconds=0.1)
    room.queue.on_change(GOOD)
    room.now += 2
    room.queue.flush_backoff()
    assert room.place(other) == "active"
