"""Ours rejects and scores as scheduler-plugins did where `make test-scheduler-plugins` recorded it."""

from __future__ import annotations

import pytest

from scheduler_plugins_answers import compare, recorded, recorded_plugins


@pytest.mark.parametrize("plugin", recorded_plugins())
async def test_decides_as_scheduler_plugins_did(plugin):
    cases = recorded(plugin)
    assert len(cases) >= 20
    for case in cases:
        ours, wanted, _ = await compare(case)
        assert ours == wanted, case["name"]
