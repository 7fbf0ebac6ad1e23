"""Someone sets the system's clock while pods wait: nothing that we wait for or measure takes longer."""

from __future__ import annotations

import asyncio
import time

import pytest

from scheduler_staging import node, pod, staged
from stowplan.client.errors import ApiError
from stowplan.journal import Decisions
from stowplan.scheduler.scheduler import steady_clock

HOUR = 3600.0


class WallClock:
    """The time of day, which can be set."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


@pytest.mark.parametrize("jump", [-24 * HOUR, -HOUR, HOUR, 24 * HOUR])
async def test_a_pod_that_failed_is_tried_again_after_its_backoff(jump):
    wall, decisions = WallClock(), Decisions(1 << 20)
    async with staged(now=wall, clock=steady_clock(), decisions=decisions) as stage:
        stage.api.refuse["bind"] = ApiError(500, "InternalError", "no")
        stage.see(node("n1"), pod("p"))
        async with asyncio.timeout(10):
            while not stage.notes("FailedScheduling"):
                await asyncio.sleep(0.01)
            wall.offset = jump
            stage.api.refuse.clear()
            while not stage.api.bound:
                stage.scheduler.queue.flush_backoff()
                await asyncio.sleep(0.05)
        page = stage.scheduler.metrics.render().decode()
        for line in page.splitlines():
            if "_seconds_sum" in line and not line.startswith("#"):
                assert 0 <= float(line.split()[-1]) < 60, line


async def test_what_is_written_down_has_the_time_of_day():
    wall = WallClock()
    async with staged(now=wall, clock=steady_clock()) as stage:
        wall.offset = -HOUR
        stage.see(node("n1"), pod("p"))
        async with asyncio.timeout(10):
            while not stage.api.events:
                await asyncio.sleep(0.01)
    stamp = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - HOUR))
    assert stage.api.events[0]["eventTime"][:15] == stamp[:15]
