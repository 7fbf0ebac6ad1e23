"""The plugins that score by load, with what Debian's Prometheus answers about 10 minutes of made series."""

from __future__ import annotations

import math
import statistics
import subprocess
import time

import pytest
from traffic import prometheus

from fake_prometheus import running, until
from make import REGISTRY, make_node, make_pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.plugins.node_metrics import NodeLoad

CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"
SHARES = {
    "steady": ([0.1] * 20, [0.3] * 20),
    "swinging": ([0.05, 0.75] * 10, [0.2, 0.6] * 10),
    "busy": ([0.7, 0.8] * 10, [0.6] * 20),
    "broken": ([math.nan] * 20, [-0.5] * 20),
    "silent": ([0.1] * 8, [0.3] * 8),
}
"""What of CPU and memory is in use, every 30 seconds. The last two count as without metrics: one has no
numbers, and the other stopped reporting more than 5 minutes ago."""
NODES = [
    make_node(name, allocatable={"cpu": "16", "memory": "64Gi", "pods": "110"})
    for name in (*SHARES, "unknown")
]


POD = make_pod(requests={"cpu": "800m", "memory": "1Gi"})


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder, now = tmp_path_factory.mktemp("load"), int(time.time())
    lines = []
    for place, metric in enumerate((CPU, MEMORY)):
        lines.append(f"# TYPE {metric} gauge")
        for name, shares in SHARES.items():
            for number, value in enumerate(shares[place]):
                lines.append(f'{metric}{{instance="{name}:9100"}} {value} {now - 600 + 30 * number}')
    (folder / "series.txt").write_text("\n".join([*lines, "# EOF", ""]))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "series.txt", "prometheus"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, timeout=60)
    with prometheus(folder, {}) as found:
        yield found.server


def percent(shares):
    return 100 * statistics.fmean(shares), 100 * statistics.pstdev(shares)


def planner_with(plugin, address):
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", plugin)]
    provider = {"type": "Prometheus", "address": address}
    profile = {
        "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
        "pluginConfig": [{"name": plugin, "args": {"metricProvider": provider}}],
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = load(kind | {"profiles": [profile]}, REGISTRY).config
    made = Planner(Cluster.of(NODES), config, registry=REGISTRY, now=time.time)
    return made, made.profiles["default-scheduler"].plugins[plugin]


def scores(planner):
    decision = planner.decide(POD)
    names = [decision.names[row] for row in decision.feasible.tolist()]
    return dict(zip(names, decision.scores[0].scores.tolist(), strict=True))


@pytest.mark.parametrize("name", ["TargetLoadPacking", "LoadVariationRiskBalancing"])
async def test_scores_follow_the_series(name, address):
    planner, plugin = planner_with(name, address)
    async with running(plugin):
        await until(lambda: plugin.source.reading == 1)
        found, loads = scores(planner), plugin.source.loads
    assert plugin.source.poller.fault == ""
    assert found["broken"] == found["silent"] == found["unknown"]
    assert "silent" not in loads
    exact, other = planner_with(name, "http://127.0.0.1:1")
    other.source.loads = {}
    for node in ("steady", "swinging", "busy"):
        cpu, memory = map(percent, SHARES[node])
        assert loads[node][:4] == pytest.approx((*cpu, *memory), abs=1e-9)
        other.source.loads[node] = NodeLoad(cpu[0], cpu[1], memory[0], memory[1], cpu[0], cpu[0])
    other.source.poller.took(time.time())
    assert found == scores(exact)
    assert len(set(found.values())) > 1
