"""Measure the CPU of deciding pod groups, without a cluster.

    python benchmarks/groups.py
    python benchmarks/groups.py --rounds 5 --nodes 1000

Each round decides a group on a fresh cluster after one that is thrown away, so that nothing is measured that
happens only once. The median of the rounds counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click

from stowplan.api.groups import IN_TREE, GroupKey
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.config.gates import DEPENDENCIES
from stowplan.config.types import with_gates
from stowplan.cycle import Planner

Json = dict[str, Any]
RACKS = 200


def node(number: int, cpu: str) -> Json:
    name = f"node-{number}"
    zone, rack = f"zone-{number % 3}", f"rack-{number % RACKS}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, "rack": rack}
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": allocatable},
    }


def pod(name: str, cpu: str, *, group: str = "", on: str = "") -> Json:
    spec: Json = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], "nodeName": on}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}


def pod_group(name: str, least: int, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
    }


def milliseconds(
    objects: list[Json], count: int, cpu: str, gates: frozenset[str], **spec: Any
) -> tuple[float, str]:
    """CPU of one decision for a group of `count` pods, and its result."""
    groups = [pod_group("warm", 1, **spec), pod_group("g", count, **spec)]
    found = [object_of(each) for each in (*objects, *groups)]
    config = with_gates(KubeSchedulerConfiguration(), gates)
    planner = Planner(Cluster.of(each for each in found if each is not None), config)
    members = {
        name: [object_of(pod(f"{name}-{number}", cpu, group=name)) for number in range(size)]
        for name, size in (("warm", 1), ("g", count))
    }
    for pods in members.values():
        planner.expect(pods)  # type: ignore[arg-type]
    planner.decide_group(GroupKey(IN_TREE, "default", "warm"), members["warm"])  # type: ignore[arg-type]
    began = time.process_time()
    decision = planner.decide_group(GroupKey(IN_TREE, "default", "g"), members["g"])  # type: ignore[arg-type]
    return (time.process_time() - began) * 1000, decision.result


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--nodes", type=click.IntRange(RACKS), default=5000, show_default=True)
def main(rounds: int, nodes: int) -> None:
    gates = frozenset(DEPENDENCIES)
    plain = gates - {"TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"}
    large, full = [node(n, "8") for n in range(nodes)], [node(n, "8") for n in range(nodes)]
    full += [pod(f"low-{n}", "2", on=f"node-{n % nodes}") for n in range(4 * nodes)]
    rack = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
    whole = plain | {"WorkloadAwarePreemption"}
    cases: dict[str, Callable[[], tuple[float, str]]] = {
        "gang of 1,000 plain pods": lambda: milliseconds(large, 1000, "1", plain),
        f"gang of 100, required topology, {RACKS} racks": lambda: milliseconds(
            large, 100, "1", gates, **rack
        ),
        "gang of 1,000 that cannot fit": lambda: milliseconds(large, 1000, "16", plain),
        f"gang of 40 preempts as one among {4 * nodes:,} pods": lambda: milliseconds(
            full, 40, "1", whole, priority=1000
        ),
    }
    click.echo(f"| {nodes:,} nodes | result | CPU, ms |\n|---|---|---|")
    for name, measure in cases.items():
        measured = [measure() for _ in range(rounds)]
        median = statistics.median(each for each, _ in measured)
        click.echo(f"| {name} | {measured[0][1]} | {median:.0f} |")


if __name__ == "__main__":
    main()
