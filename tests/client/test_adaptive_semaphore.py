"""Requests get their turn in order, and more at once only where the wait is long."""

from __future__ import annotations

import asyncio

import pytest

from stowplan.client.connection import AdaptiveSemaphore


async def in_line(turns: AdaptiveSemaphore, names: str, had: list[str]) -> dict[str, asyncio.Task[None]]:
    async def wait(name: str) -> None:
        await turns.acquire()
        had.append(name)

    tasks = {name: asyncio.create_task(wait(name)) for name in names}
    await asyncio.sleep(0)
    return tasks


async def test_first_come_first_served():
    turns, had = AdaptiveSemaphore(initial=2), list[str]()
    await in_line(turns, "abcd", had)
    assert had == ["a", "b"]
    turns.release()
    await asyncio.sleep(0)
    assert had == ["a", "b", "c"]
    turns.release()
    await asyncio.sleep(0)
    assert had == ["a", "b", "c", "d"]


@pytest.mark.parametrize("moment", ["before its turn", "just as its turn comes"])
async def test_who_gives_up_does_not_take_the_turn_along(moment):
    turns, had = AdaptiveSemaphore(initial=1), list[str]()
    tasks = await in_line(turns, "abc", had)
    if moment == "before its turn":
        tasks["b"].cancel()
        await asyncio.sleep(0)
        turns.release()
    else:
        turns.release()
        tasks["b"].cancel()
    await asyncio.gather(tasks["b"], return_exceptions=True)
    await asyncio.sleep(0)
    assert had == ["a", "c"]


async def test_while_waits_are_long_there_is_one_more_now_and_then_up_to_a_limit():
    turns, had = AdaptiveSemaphore(initial=1, maximum=3, long_seconds=0.01), list[str]()
    await in_line(turns, "abcdefgh", had)
    for at_once, expected in ((2, "abc"), (3, "abcde"), (3, "abcdef")):
        await asyncio.sleep(0.011)
        turns.release()
        await asyncio.sleep(0)
        assert (turns.limit, "".join(had)) == (at_once, expected)
    turns.release()
    await asyncio.sleep(0)
    assert turns.limit == 3
    for _ in range(4):
        turns.release()
        await asyncio.sleep(0)
    assert had == list("abcdefgh")
    assert turns.limit == 1  # as it was, once nobody has one


async def test_many_long_waits_at_once_bring_one():
    turns, had = AdaptiveSemaphore(initial=4, long_seconds=0.01), list[str]()
    await in_line(turns, "abcdefgh", had)
    await asyncio.sleep(0.011)
    for _ in range(3):
        turns.release()
    assert turns.limit == 5


async def test_short_waits_do_not():
    turns, had = AdaptiveSemaphore(initial=1, long_seconds=60), list[str]()
    await in_line(turns, "abc", had)
    turns.release()
    await asyncio.sleep(0)
    assert (turns.limit, had) == (1, ["a", "b"])
