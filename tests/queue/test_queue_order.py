"""Whose turn it is, and how the host waits for it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from waiting_room import Fit, Room

from make import make_node, make_pod
from stowplan.api.meta import ObjectMeta
from stowplan.framework import CustomResource, Definition, Plugin


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        pytest.param([(0, "a", 0), (1, "b", 0)], ["a", "b"], id="older first"),
        pytest.param([(0, "a", 0), (1, "b", 5)], ["b", "a"], id="higher priority first"),
        pytest.param([(0, "a", -1), (1, "b", None)], ["b", "a"], id="no priority is priority 0"),
        pytest.param([(0, "b", 1), (0, "a", 1), (0, "c", 1)], ["b", "a", "c"], id="ties: as they came"),
    ],
)
def test_active_pods(arrivals, expected):
    room = Room()
    for later, name, priority in arrivals:
        room.now += later
        room.add(name, priority=priority)
    assert room.names() == expected


def test_an_attempt_that_failed_puts_a_pod_behind_those_who_came_before_it_ended():
    room = Room(max_backoff=0)
    room.add("first")
    queued = room.take()
    room.now += 1
    room.add("second")
    room.now += 1
    room.queue.return_failed(queued)
    assert room.names() == ["second", "first"]


class ByName(Plugin):
    def queue_sort(self, queued):
        if queued.pod.name == "odd":
            raise LookupError("no name to sort by")
        return queued.pod.name


def test_the_profiles_own_order():
    room = Room(ByName, Fit, sort="ByName")
    room.add("c", "odd", "b", "a")
    assert room.names() == ["a", "b", "c", "odd"]
    ((pod, fault),) = room.faults
    said = 'running QueueSort plugin "ByName": LookupError: no name to sort by (pod default/odd, at '
    assert pod == "odd"
    assert fault.startswith(said)


class Rank(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "ranks", "Rank", namespaced=False)
    names: tuple[str, ...] = ()


class ByRank(Plugin):
    """Sorts pods as the last object that it was told of lists them."""

    watches = (Rank,)
    asked = 0

    def queue_sort(self, queued):
        self.asked += 1
        return (*self.handle.watched(Rank).get("rank").names,).index(queued.pod.name)


def ranked(*names):
    return Rank(metadata=ObjectMeta(name="rank"), names=names)


def ranks_of(room):
    """As the cluster has them; a plugin cannot change them."""
    return room.profiles["default-scheduler"].handle.watched(Rank)


def test_pods_are_sorted_again_when_an_object_changes_that_the_order_depends_on():
    room = Room(ByRank, Fit, sort="ByRank")
    ranks = ranks_of(room)
    old, new = ranked("a", "b", "c"), ranked("c", "b", "a")
    ranks.put(old)
    room.add("a", "b", "c")
    ranks.put(new)
    room.queue.resort(old, new)
    assert room.names() == ["c", "b", "a"]
    assert room.faults == []


def test_many_changes_between_two_pods_cost_as_much_as_one():
    room = Room(ByRank, Fit, sort="ByRank")
    plugin = room.plugin("ByRank")
    ranks_of(room).put(ranked("a", "b", "c"))
    room.add("a", "b", "c")
    before = plugin.asked
    for _ in range(100):
        room.queue.resort(ranked("a"), ranked("a", "b", "c"))
        room.queue.resort(None, make_node("other"))
    assert room.names() == ["a", "b", "c"]
    assert plugin.asked - before == 3


def test_objects_that_change_all_the_time_do_not_hold_up_the_queue():
    room, names = Room(ByRank, Fit, sort="ByRank"), [f"p{number:04}" for number in range(1000)]
    plugin, ranks = room.plugin("ByRank"), ranks_of(room)
    ranks.put(ranked(*names))
    room.add(*names)
    before = plugin.asked
    for _ in range(200):
        ranks.put(ranked(*reversed(ranks.get("rank").names)))
        room.queue.resort(None, ranks.get("rank"))
        room.take()
    assert plugin.asked - before <= 20_000 + 200 * 50 + 1000  # instead of 180,000
    ranks.put(ranked(*names))
    room.queue.resort(None, ranks.get("rank"))
    left = room.names()
    assert left[-500:] == sorted(left[-500:])


def test_pods_in_backoff_are_sorted_again_too():
    room = Room(ByRank, Fit, sort="ByRank")
    ranks = ranks_of(room)
    ranks.put(ranked("a", "b"))
    room.add("a", "b")
    for queued in (room.take(), room.take()):
        room.queue.activate([queued.pod])
        room.queue.return_failed(queued, rejectors={"Fit"})
    assert room.queue.counts()["backoff"] == 2
    ranks.put(ranked("b", "a"))
    room.queue.resort(ranked("a", "b"), ranked("b", "a"))
    assert room.names() == ["b", "a"]


def test_pods_of_all_profiles_share_the_queue():
    room = Room()
    room.add("a", schedulerName="second")
    room.add("b", priority=1)
    assert room.names() == ["b", "a"]


def test_what_an_attempt_knows_of_the_pod():
    room = Room()
    room.add("pod")
    room.now += 3
    queued = room.take()
    assert (queued.attempts, queued.place) == (1, None)
    assert queued.initial_attempt_timestamp == queued.timestamp == room.now - 3
    room.queue.return_failed(queued, rejectors={"Fit"}, pending={"Other"})
    assert queued.unschedulable_plugins == {"Fit"}
    assert queued.pending_plugins == {"Other"}
    assert queued.timestamp == room.now
    room.queue.activate([queued.pod])
    assert room.take() is queued
    assert (queued.attempts, queued.rejectors) == (2, frozenset())
    assert queued.initial_attempt_timestamp == room.now - 3


def test_a_pod_that_was_gated_can_first_be_tried_when_it_is_let_through():
    room = Room()
    pod = room.gated()
    room.now += 7
    room.plugin("Door").shut.clear()
    room.queue.activate([pod])
    assert room.take().initial_attempt_timestamp == room.now


def test_a_pod_is_not_tried_twice_at_once():
    room = Room()
    (pod,) = room.add("pod")
    room.take()
    room.queue.add(pod)
    assert room.names() == []


async def test_pop_waits_for_a_pod():
    room = Room()
    popping = asyncio.create_task(room.queue.pop())
    await asyncio.sleep(0)
    assert not popping.done()
    room.add("pod")
    assert (await popping).pod.name == "pod"


async def test_pop_waits_for_a_pod_that_backs_off_too():
    room = Room()
    room.add("pod")
    queued = await room.queue.pop()
    popping = asyncio.create_task(room.queue.pop())
    await asyncio.sleep(0)
    room.queue.activate([queued.pod])
    room.queue.return_failed(queued, rejectors={"Fit"})
    assert room.queue.counts()["backoff"] == 1
    assert await popping is queued


async def test_several_who_wait_get_a_pod_each():
    room = Room()
    popping = [asyncio.create_task(room.queue.pop()) for _ in range(3)]
    await asyncio.sleep(0)
    room.add("a", "b", "c")
    assert {queued.pod.name for queued in await asyncio.gather(*popping)} == {"a", "b", "c"}


async def test_a_closed_queue_gives_nothing_out():
    room = Room()
    popping = asyncio.create_task(room.queue.pop())
    await asyncio.sleep(0)
    room.queue.close()
    assert await popping is None
    room.add("pod")
    assert await room.queue.pop() is None


def test_a_pod_of_no_profile_is_given_out_for_the_host_to_drop():
    room = Room()
    room.queue.add(make_pod("stray", schedulerName="nobody"))
    assert room.names() == ["stray"]
