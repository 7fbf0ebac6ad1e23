"""Turns are given in order, and more of them at once only where the wait is long."""

from __future__ import annotations

import asyncio

import pytest

from stowplan.client.turns import Turns


async def in_line(turns: Turns, names: str, had: list[str]) -> dict[str, asyncio.Task[None]]:
    async def wait(name: str) -> None:
        await turns.take()
        had.append(name)

    tasks = {name: asyncio.create_task(wait(name)) for name in names}
    await asyncio.sleep(0)
    return tasks


async def test_first_come_first_served():
    turns, had = Turns(first=2), list[str]()
    await in_line(turns, "abcd", had)
    assert had == ["a", "b"]
    turns.give_back()
    await asyncio.sleep(0)
    assert had == ["a", "b", "c"]
    turns.give_back()
    await asyncio.sleep(0)
    assert had == ["a", "b", "c", "d"]


@pytest.mark.parametrize("moment", ["before its turn", "just as its turn comes"])
async def test_who_gives_up_does_not_take_the_turn_along(moment):
    turns, had = Turns(first=1), list[str]()
    tasks = await in_line(turns, "abc", had)
    if moment == "before its turn":
        tasks["b"].cancel()
        await asyncio.sleep(0)
        turns.give_back()
    else:
        turns.give_back()
        tasks["b"].cancel()
    await asyncio.gather(tasks["b"], return_exceptions=True)
    await asyncio.sleep(0)
    assert had == ["a", "c"]


async def test_long_waits_bring_more_turns_at_once_up_to_a_limit():
    turns, had = Turns(first=1, most=3, long_seconds=0), list[str]()
    await in_line(turns, "abcdefg", had)
    await asyncio.sleep(0.001)
    turns.give_back()
    await asyncio.sleep(0)
    assert turns.at_once == 3
    assert had == ["a", "b", "c", "d"]
    for _ in range(6):
        turns.give_back()
        await asyncio.sleep(0)
    assert had == list("abcdefg")
    assert turns.at_once == 1  # as it was, once nobody has one


async def test_short_waits_do_not():
    turns, had = Turns(first=1, long_seconds=60), list[str]()
    await in_line(turns, "abc", had)
    turns.give_back()
    await asyncio.sleep(0)
    assert (turns.at_once, had) == (1, ["a", "b"])
