"""The token bucket in front of an API server."""

from __future__ import annotations

import pytest

from stowplan.client.api import RateLimit


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
def test_waits(qps, burst, asked_at, waits):
    now = [0.0]
    limit = RateLimit(qps, burst, clock=lambda: now[0])
    found = []
    for now[0] in asked_at:
        found.append(round(limit.take(), 6))
    assert [each for each in found if each] == waits
