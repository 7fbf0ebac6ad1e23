"""Measure the CPU of deciding pod groups, and the memory that they take, without a cluster.

    python benchmarks/groups.py
    python benchmarks/groups.py --rounds 5 --nodes 1000 --no-memory

Each round decides a group on a fresh cluster after one that is thrown away, so that nothing is measured that
happens only once. The median of the rounds counts.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import click
import msgspec

from stowplan.api.groups import IN_TREE, GroupKey
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.bench.decisions import resident_bytes
from stowplan.bench.memory import plain_node, plain_pod
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.config.gates import DEPENDENCIES
from stowplan.config.types import with_gates
from stowplan.cycle import Planner

Json = dict[str, Any]
RACKS = 200
CLAIMING, DEVICES = 64, 8
"""Members with a device claim each, and how many devices a node has."""
GROUPS, MEMBERS = 2000, 10
"""Groups whose memory is measured, and members of each."""


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


def device_objects(nodes: int, names: list[str]) -> list[Json]:
    """Devices on every node, and a claim for one of them for each of the pods."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    found: list[Json] = [
        {
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example"'}}]},
        }
    ]
    found += (
        {
            "kind": "ResourceSlice",
            "metadata": {"name": f"node-{number}"},
            "spec": {
                "driver": "gpu.example",
                "nodeName": f"node-{number}",
                "pool": {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"gpu-{device}"} for device in range(DEVICES)],
            },
        }
        for number in range(nodes)
    )
    found += (
        {
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        }
        for name in names
    )
    return found


def pod(name: str, cpu: str, *, group: str = "", on: str = "", claims: bool = False) -> Json:
    spec: Json = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], "nodeName": on}
    if claims:
        spec["resourceClaims"] = [{"name": "devices", "resourceClaimName": name}]
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
    objects: list[Json], count: int, cpu: str, gates: frozenset[str], *, claims: bool = False, **spec: Any
) -> tuple[float, str]:
    """CPU of one decision for a group of `count` pods, with a device claim each if so, and its result."""
    groups = [pod_group("warm", 1, **spec), pod_group("g", count, **spec)]
    found = [object_of(each) for each in (*objects, *groups)]
    config = with_gates(KubeSchedulerConfiguration(), gates)
    planner = Planner(Cluster.of(each for each in found if each is not None), config)
    members = {
        name: [object_of(pod(f"{name}-{number}", cpu, group=name, claims=claims)) for number in range(size)]
        for name, size in (("warm", 1), ("g", count))
    }
    for pods in members.values():
        planner.expect(pods)  # type: ignore[arg-type]
    planner.decide_group(GroupKey(IN_TREE, "default", "warm"), members["warm"])  # type: ignore[arg-type]
    began = time.process_time()
    decision = planner.decide_group(GroupKey(IN_TREE, "default", "g"), members["g"])  # type: ignore[arg-type]
    return (time.process_time() - began) * 1000, decision.result


def megabytes(nodes: int, *, grouped: bool) -> float:
    """The memory of a cluster with running pods as an API server describes them, in groups or not."""
    before = resident_bytes()
    cluster = Cluster()
    for number in range(nodes):
        cluster.apply(object_of(plain_node(number)))  # type: ignore[arg-type]
    for number in range(GROUPS * MEMBERS):
        plain = plain_pod(number, nodes)
        if grouped:
            plain["spec"]["schedulingGroup"] = {"podGroupName": f"group-{number // MEMBERS}"}
            if number % MEMBERS == 0:
                group = pod_group(f"group-{number // MEMBERS}", MEMBERS)
                group["metadata"]["namespace"] = plain["metadata"]["namespace"]
                cluster.apply(object_of(group))  # type: ignore[arg-type]
        cluster.apply(Pod.decode(msgspec.json.encode(plain)))
    gates = frozenset(("GenericWorkload", "GangScheduling")) if grouped else frozenset()
    planner = Planner(cluster, with_gates(KubeSchedulerConfiguration(), gates))
    gc.collect()
    assert len(planner.cluster.groups.whole()) == 0  # reads every group once, as preemption does
    return (resident_bytes() - before) / 2**20


def measure_memory(nodes: int) -> tuple[float, float]:
    """Without groups and with them, each in a process of its own."""
    found = []
    for grouped in (False, True):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found.append(process.submit(megabytes, nodes, grouped=grouped).result())
    return found[0], found[1]


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--nodes", type=click.IntRange(RACKS), default=5000, show_default=True)
@click.option("--memory/--no-memory", default=True, show_default=True, help="Also measure memory.")
def main(rounds: int, nodes: int, *, memory: bool) -> None:
    gates = frozenset(DEPENDENCIES)
    plain = gates - {"TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"}
    large, full = [node(n, "8") for n in range(nodes)], [node(n, "8") for n in range(nodes)]
    full += [pod(f"low-{n}", "2", on=f"node-{n % nodes}") for n in range(4 * nodes)]
    rack = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
    whole = plain | {"WorkloadAwarePreemption"}
    few = max(nodes // 5, RACKS)
    claiming = ["warm-0", *(f"g-{number}" for number in range(CLAIMING))]
    devices = [*large[:few], *device_objects(few, claiming)]
    cases: dict[str, Callable[[], tuple[float, str]]] = {
        "gang of 1,000 plain pods": lambda: milliseconds(large, 1000, "1", plain),
        f"gang of 100, required topology, {RACKS} racks": lambda: milliseconds(
            large, 100, "1", gates, **rack
        ),
        f"gang of {CLAIMING} with a device claim each, {few:,} nodes": lambda: milliseconds(
            devices, CLAIMING, "1", plain, claims=True
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
    if memory:
        without, grouped = measure_memory(nodes)
        click.echo(
            f"\n{GROUPS * MEMBERS:,} pods: {without:.0f} MB; "
            f"in {GROUPS:,} groups: {grouped:.0f} MB ({grouped / without - 1:+.1%})"
        )


if __name__ == "__main__":
    main()
