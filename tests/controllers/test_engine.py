"""The cluster's clock, and the queue of keys that controllers work from."""

from __future__ import annotations

import asyncio

import pytest

from stowplan.controllers.clock import Clock
from stowplan.controllers.engine import WorkQueue
from virtual_time import elapsed, in_virtual_time


@in_virtual_time
async def test_time_passes_as_fast_as_it_is_set():
    clock = Clock(10, start=1000)
    await clock.sleep(50)
    assert elapsed() == pytest.approx(5)
    assert clock.now() == pytest.approx(1050)


@in_virtual_time
async def test_who_sleeps_wakes_earlier_when_time_is_sped_up_and_not_while_it_stands_still():
    clock = Clock(1, start=0)
    woken = asyncio.create_task(clock.sleep(100))
    await asyncio.sleep(10)
    clock.speed = 0
    await asyncio.sleep(1000)
    assert not woken.done()
    assert clock.now() == pytest.approx(10)
    clock.speed = 90
    await woken
    assert elapsed() == pytest.approx(1011)


@in_virtual_time
async def test_calls_come_in_order():
    clock, called = Clock(), []
    for seconds in (3, 1, 2):
        clock.call_after(seconds, lambda seconds=seconds: called.append(seconds))
    await clock.sleep(4)
    assert called == [1, 2, 3]


@in_virtual_time
async def test_a_key_is_worked_on_once_at_a_time_and_again_if_it_was_added_meanwhile():
    queue = WorkQueue(Clock())
    queue.add("a")
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.take() == "b", "a is under work"
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100):
            await queue.take()


@in_virtual_time
async def test_what_fails_waits_longer_each_time_until_it_succeeds():
    queue, waits = WorkQueue(Clock()), []
    queue.add("a")
    for _ in range(4):
        before = elapsed()
        await queue.take()
        waits.append(elapsed() - before)
        queue.done("a", failed=True)
    assert waits == pytest.approx([0, 0.02, 0.04, 0.08])
    await queue.take()
    queue.done("a")
    queue.add("a")
    await queue.take()
    queue.done("a", failed=True)
    before = elapsed()
    await queue.take()
    assert elapsed() - before == pytest.approx(0.02)


@in_virtual_time
async def test_the_first_of_several_times_counts():
    queue = WorkQueue(Clock())
    for seconds in (30, 10, 20):
        queue.add_after("a", seconds)
    await queue.take()
    assert elapsed() == pytest.approx(10)


@in_virtual_time
async def test_a_key_that_is_always_added_again_leaves_others_their_turn():
    queue, turns = WorkQueue(Clock()), 0

    async def spin() -> None:
        nonlocal turns
        queue.add("a")
        while True:
            key = await queue.take()
            turns += 1
            queue.add(key)
            queue.done(key)

    spinning = asyncio.create_task(spin())
    await asyncio.sleep(10)
    spinning.cancel()
    assert 1000 < turns < 3000
