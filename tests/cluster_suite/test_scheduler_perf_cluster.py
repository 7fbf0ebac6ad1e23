"""benchmarks/scheduler_perf.py on real control planes: every operation, with both schedulers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perf_files import read_rows
from perf_world import write_world
from scheduler_perf import Result, Runner


@pytest.mark.parametrize("scheduler", ["kube-scheduler", "stowplan"])
def test_runs_every_operation(scheduler: str, tmp_path: Path) -> None:
    everything, _, devices = read_rows(write_world(tmp_path))
    runner = Runner(tmp_path, embedded=False, before=None, timeout=100)

    def run(row: object) -> Result:
        return asyncio.run(runner.run(row, scheduler, 1))

    ran = run(everything)
    assert (ran.error, ran.pods, ran.wanted, ran.nodes) == ("", 6, 6, 2)
    assert ran.by_call["create pods/binding"] == 1
    assert ran.conflicts == 0
    assert ran.cpu > 0
    assert ran.api_server_cpu > 0
    steady = run(devices)
    assert (steady.error, steady.wanted) == ("", None)
    assert steady.pods >= 4, "pods of a steady state must be replaced once they are bound"
    assert steady.seconds == pytest.approx(8, abs=1)
