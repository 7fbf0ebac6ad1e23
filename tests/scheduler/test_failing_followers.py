"""Plugins that follow pods and fail: that is logged, and neither pods nor other plugins notice."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Pod
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard


class Witness(Plugin):
    """Comes after the one that fails."""

    told: ClassVar[list[str]] = []

    def pod_added(self, pod: Pod) -> None:
        self.told.append(pod.name)

    def filter(self, state: Any, pod: Any, node: Any) -> None:
        return None


class Broken(Witness):
    budget: ClassVar[float] = 0.1

    def pod_added(self, pod: Pod) -> None:
        if pod.name == "slow":
            time.sleep(30)
        raise SystemExit("not interested")


async def test_a_follower_that_fails_or_hangs_stops_nothing(caplog):
    Witness.told.clear()
    plugins = {"Broken": Broken, "Witness": Witness}
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": name} for name in plugins]}}}]}
    metrics = Metrics()
    began = time.monotonic()
    with Guard(metrics) as guard:
        async with staged(config, plugins, guard=guard) as stage:
            stage.see(node("n1"), pod("web"), pod("slow"))
            await stage.settle()
            assert sorted(stage.api.bound) == ["default/slow", "default/web"]
    assert time.monotonic() - began < 20
    assert Witness.told == ["web", "slow"]
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    failed = [each for each in fields if each.get("method") == "pod_added"]
    assert {each["plugin"] for each in failed} == {"Broken"}
    assert any("SystemExit: not interested (at " in each["err"] for each in failed)
    assert any("OverdueError: took longer than its budget of 0.1s" in each["err"] for each in failed)
    assert any("test_failing_followers.py" in each.get("stacktrace", "") for each in failed)
    assert b'stowplan_plugin_interruptions_total{method="pod_added"' in metrics.render()
