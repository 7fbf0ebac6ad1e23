"""Requests get their turn in order, and more at once only where the wait is long."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from itertools import count

import pytest

from stowplan.client import connection
from stowplan.client.connection import INITIAL_REQUESTS, MAX_REQUESTS, AdaptiveSemaphore


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


async def most_at_once(
    monkeypatch: pytest.MonkeyPatch,
    answered_a_second: float,
    seconds: float,
    turns: AdaptiveSemaphore | None = None,
    now: float = 1000.0,
    varying: Callable[[int], float] = lambda number: 1.0,
) -> int:
    """The highest limit while many requests wait; each takes `seconds`, or as long as the server is busy.

    The server says that request `number` took `varying(number)` times as long.
    """
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    turns = turns or AdaptiveSemaphore()
    waiting = [asyncio.create_task(turns.acquire()) for _ in range(5000)]
    await asyncio.sleep(0)
    found, sent_at, numbers = 0, deque([now] * turns.held), count()
    while not waiting[-1].done():
        now = max(now + 1 / answered_a_second, sent_at[0] + seconds)
        turns.write_took((now - sent_at.popleft()) * varying(next(numbers)))
        turns.release()
        sent_at += [now] * (turns.held - len(sent_at))
        found = max(found, turns.limit)
        await asyncio.sleep(0)
    while turns.held:
        turns.release()
    return found


async def test_a_server_far_away_gets_more_at_once(monkeypatch):
    assert await most_at_once(monkeypatch, answered_a_second=10_000, seconds=0.05) == MAX_REQUESTS


async def test_a_busy_server_does_not(monkeypatch):
    assert await most_at_once(monkeypatch, answered_a_second=300, seconds=0.01) == INITIAL_REQUESTS


async def test_a_server_that_was_busy_gets_more_once_it_is_far_away(monkeypatch):
    turns = AdaptiveSemaphore()
    assert await most_at_once(monkeypatch, 300, 0.01, turns) == INITIAL_REQUESTS
    assert await most_at_once(monkeypatch, 10_000, 0.05, turns, now=1020.0) == MAX_REQUESTS
    assert await most_at_once(monkeypatch, 300, 0.01, turns, now=1040.0) == INITIAL_REQUESTS


def sometimes(share: int, factor: float, first: int = 0) -> Callable[[int], float]:
    """One request of so many takes another time than the others."""
    return lambda number: factor if number % share == first else 1.0


def jitter() -> Callable[[int], float]:
    draw = random.Random(1)
    return lambda number: draw.lognormvariate(0, 0.25)


@pytest.mark.parametrize(
    "varying",
    [
        pytest.param(sometimes(10**9, 0.1), id="the first write was quick"),
        pytest.param(sometimes(50, 0.1, 30), id="some are quick"),
        pytest.param(sometimes(50, 10, 30), id="some are slow"),
        pytest.param(jitter(), id="all differ"),
    ],
)
async def test_a_server_far_away_whose_writes_differ_gets_more_at_once(varying, monkeypatch):
    assert await most_at_once(monkeypatch, 10_000, 0.05, varying=varying) == MAX_REQUESTS


@pytest.mark.parametrize(
    "varying",
    [
        pytest.param(sometimes(50, 0.1, 30), id="some are quick"),
        pytest.param(sometimes(50, 10, 30), id="some are slow"),
        pytest.param(jitter(), id="all differ"),
    ],
)
async def test_a_busy_server_whose_writes_differ_does_not(varying, monkeypatch):
    assert await most_at_once(monkeypatch, 300, 0.01, varying=varying) == INITIAL_REQUESTS
