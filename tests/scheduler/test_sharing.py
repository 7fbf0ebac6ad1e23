"""The scheduler shares its one thread, and does not have the garbage collector look at what stays."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from scheduler_staging import Stage, node, pod, staged
from stowplan import Plugin


class Slow(Plugin):
    """Takes longer for a pod than the loop may go on without a pause."""

    def pre_filter(self, state, pod, nodes):
        time.sleep(0.002)


class Quick(Plugin):
    def pre_filter(self, state, pod, nodes):
        return None


async def decided_at_each_turn(plugin: type, pods: int) -> list[int]:
    """How many pods had been decided whenever someone else got a turn, until all were."""
    points = {"multiPoint": {"enabled": [{"name": plugin.__name__}]}}
    found: list[int] = []
    async with staged({"profiles": [{"plugins": points}]}, {plugin.__name__: plugin}) as stage:
        stage.see(node("n1", cpu="1000", pods="1000"))
        stage.see(*(pod(f"p{number}", cpu="1m") for number in range(pods)))
        while not found or found[-1] < pods:
            await asyncio.sleep(0)
            found.append(stage.scheduler.cluster.assumed_count)
    return found


async def test_others_get_a_turn_after_a_pod_that_took_long():
    assert {1, 2, 3, 4, 5} <= set(await decided_at_each_turn(Slow, 6))


async def test_others_get_turns_while_the_queue_is_full_but_not_after_each_pod():
    turns = len(set(await decided_at_each_turn(Quick, 800)))
    assert 5 < turns < 600


class Knot:
    """Kept alive by itself, until the garbage collector finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def _collector() -> Iterator[None]:
    """As Python has it by itself: all tests tune it as a scheduler does."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)


@asynccontextmanager
async def synced() -> AsyncIterator[Stage]:
    """A scheduler that has seen all there is: nothing, as its API server knows no resources."""
    async with staged(owns_process=True) as stage:
        running = asyncio.create_task(stage.scheduler.run())
        while not stage.scheduler.is_synced:
            await asyncio.sleep(0)
        yield stage
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.usefixtures("_collector")
async def test_what_stays_is_left_alone_once_the_cluster_is_known():
    garbage = weakref.ref(Knot())
    assert gc.get_freeze_count() == 0
    async with synced():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] > 10_000
        assert garbage() is None  # what does not stay is not kept for ever


@pytest.mark.usefixtures("_collector")
async def test_what_an_earlier_scheduler_left_is_found_by_the_next():
    knot = Knot()
    left = weakref.ref(knot)
    async with synced():
        pass
    del knot
    gc.collect()
    assert left() is not None
    async with synced():
        assert left() is None
