"""The token bucket in front of an API server."""

from __future__ import annotations

import pytest

from stowplan.client.rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))


@pytest.mark.parametrize(
    ("qps", "burst", "asked_at", "waits"),
    [
        pytest.param(10, 3, [0, 0, 0], [], id="a burst does not wait"),
        pytest.param(10, 3, [0] * 5, [0.1, 0.2], id="beyond the burst each waits longer than the one before"),
        pytest.param(10, 2, [0, 0, 0.1, 0.1], [0.1], id="tokens come back with time"),
        pytest.param(10, 2, [0, 0, 60, 60, 60], [0.1], id="but never more than the burst"),
        pytest.param(0, 1, [0] * 9, [], id="no rate, no limit"),
        pytest.param(5, 0, [0, 0], [0.2], id="no burst is a burst of one"),
    ],
)
async def test_waits(qps, burst, asked_at, waits):
    clock = Clock()
    limit = RateLimit(qps, burst, clock=lambda: clock.now, sleep=clock.sleep)
    for clock.now in asked_at:
        await limit.wait()
    assert clock.waits == waits
