"""Measures decisions: each pod is decided on the cluster that the ones before it left, and placed."""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stowplan.bench.workloads import Workload, build, nominated, pending
from stowplan.cycle import Planner
from stowplan.errors import StowplanError

WARM_UP = 20


class Measurement(msgspec.Struct, rename="camel"):
    """In microseconds: `p50` and `p99` of deciding and placing a pod; `cpu` is the mean CPU time."""

    workload: str
    nodes: int
    decisions: int
    per_second: float
    p50: float
    p99: float
    cpu: float
    rss_mb: float


def measure(workload: Workload, nodes: int, count: int | None = None) -> Measurement:
    """One workload, in a process of its own so that the memory is its own too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as process:
        return process.submit(measure_here, workload, nodes, count).result()


def measure_here(workload: Workload, nodes: int, count: int | None = None) -> Measurement:
    total = (count or workload.measured) + WARM_UP
    planner = Planner(build(workload, nodes, total))
    planner.keep_nominations(nominated(workload, nodes))
    pods = list(pending(workload, total))
    gc.collect()
    gc.freeze()
    for pod in pods[:WARM_UP]:
        _place(planner, pod)
    times, cpu = [], time.process_time_ns()
    for pod in pods[WARM_UP:]:
        began = time.perf_counter_ns()
        _place(planner, pod)
        times.append(time.perf_counter_ns() - began)
    cpu = time.process_time_ns() - cpu
    spent = np.array(times) / 1000
    return Measurement(
        workload.name,
        nodes,
        len(times),
        round(1e6 / float(spent.mean()), 1),
        round(float(np.percentile(spent, 50)), 1),
        round(float(np.percentile(spent, 99)), 1),
        round(cpu / 1000 / len(times), 1),
        round(resident_bytes() / 2**20, 1),
    )


def _place(planner: Planner, pod: Any) -> None:
    decision = planner.decide(pod)
    if decision.chosen is None and decision.nominated is None:
        raise StowplanError(
            f"pod {pod.key} of the workload does not fit on any node: {decision.error or decision.message}"
        )
    if pod.spec.resource_claims and decision.state and decision.chosen:
        # Else the next pod would be offered the same devices.
        for _, plugin in planner.profile_of(pod).at("reserve"):
            plugin.reserve(decision.state, pod, decision.chosen)
    planner.carry_out(decision)


def resident_bytes() -> int:
    """The resident memory of this process; 0 if the kernel does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
