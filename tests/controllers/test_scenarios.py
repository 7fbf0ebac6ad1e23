"""Controllers and kubelets on our own API server, in this process."""

from __future__ import annotations

import asyncio

import pytest

from cluster_in_process import running_cluster
from cluster_scenarios import NODES, SCENARIOS, SPEED


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(scenario):
    async with running_cluster(NODES, speed=3 * SPEED) as cluster:
        await asyncio.wait_for(scenario(cluster), 60)
