"""Stowplan on large clusters, with nodes and pods as large as those of production.

    python benchmarks/scale.py --size 5000:15000 --size 50000:150000 --size 100000:0:small

For each size, the objects are written straight into etcd before kube-apiserver starts: that takes a minute
where creating them one by one takes an hour. Then each workload runs as in benchmarks/cluster.py: its pods
wait when the scheduler starts. The table has the seconds from the scheduler's start until it is ready, the
CPU time that takes, its peak memory, its rate, and that rate as a share of the one at the first size.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from cluster import (
    ADMIN,
    KUBE_SCHEDULER,
    STOWPLAN,
    UNLIMITED,
    Bench,
    ControlPlane,
    cpu_ms,
    in_parallel,
    pods_for,
)
from stowplan.bench.memory import plain_node, plain_pod
from stowplan.bench.workloads import Workload, fill_template, read_workloads
from stowplan.client.api import ApiClient
from stowplan.client.connection import HttpPool
from stowplan.client.kubeconfig import load

Json = dict[str, Any]

WORKLOADS = ("plain", "hard-zone-spread", "anti-affinity")
OBJECTS_A_WRITE = 64
"""etcd accepts 128 operations and 1.5 MB in a transaction."""
START_SECONDS = 900
HEADER = (
    "| nodes | running pods | size | workload | who | ready s | CPU s | peak MB | pods/s | share "
    "| CPU ms a pod |\n" + "|---" * 11 + "|"
)


class Size(NamedTuple):
    nodes: int
    pods: int
    is_small: bool

    @classmethod
    def parse(cls, text: str) -> Size:
        nodes, pods, *kind = text.split(":")
        if kind not in ([], ["small"]):
            raise ValueError(text)
        return cls(int(nodes), int(pods), bool(kind))


class Row(msgspec.Struct):
    nodes: int
    pods: int
    size: str
    """Mean bytes of JSON of a node and of a pod."""
    workload: str
    who: str
    ready: float
    ready_cpu: float
    """Seconds from the start until it is ready, on the clock and of its own CPU time."""
    peak_mb: float
    per_second: float
    cpu: float


class ScaleBench(Bench):
    """Also measures how long the scheduler takes to become ready, and its peak memory."""

    ready = ready_cpu = peak_mb = 0.0

    @asynccontextmanager
    async def _contender(self, who: str, names: list[str]) -> AsyncIterator[Any]:
        began = time.monotonic()
        async with super()._contender(who, names) as process:
            self.ready, self.ready_cpu = time.monotonic() - began, cpu_ms(process.pid) / 1000
            yield process
            self.peak_mb = peak_mb(process.pid)


def nodes_of(size: Size, workload: Workload) -> Iterator[tuple[str, Json]]:
    """Yield keys and nodes; they have the names, labels and resources of the workload's."""
    for number in range(size.nodes):
        node = fill_template(workload.node_template, number)
        name = node["metadata"]["name"]
        whole: Json = {"metadata": {}, "spec": {}, "status": {}} if size.is_small else plain_node(number)
        labels = {**whole["metadata"].get("labels", {}), **node["metadata"].get("labels", {})}
        amounts = node["status"]["allocatable"]
        status = whole["status"] | {"allocatable": amounts, "capacity": amounts}
        status["conditions"] = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        meta = whole["metadata"] | _identity(name, number) | {"labels": labels}
        if not size.is_small:
            meta["managedFields"] = managed_fields("kubelet", 14)
        yield (
            f"/registry/minions/{name}",
            {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": whole["spec"], "status": status},
        )


def pods_of(size: Size) -> Iterator[tuple[str, Json]]:
    """Yield keys and running pods, spread over the nodes."""
    for number in range(size.pods):
        pod = plain_pod(number, size.nodes)
        meta = pod["metadata"]
        meta |= _identity(meta["name"], size.nodes + number) | {"namespace": "default"}
        del meta["resourceVersion"]
        meta["managedFields"] = managed_fields("kube-controller-manager", 30) + managed_fields("kubelet", 16)
        yield f"/registry/pods/default/{meta['name']}", pod


def managed_fields(manager: str, fields: int) -> list[Json]:
    """Return who manages which fields, in as many lines as there are fields; each has about 90 bytes."""
    owned = {
        f"f:field-number-{number}": {".": {}, "f:name": {}, "f:value": {}, "f:resources": {}}
        for number in range(fields)
    }
    entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    return [entry | {"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": owned}}]


def _identity(name: str, number: int) -> Json:
    uid = f"30000000-0000-4000-8000-{number:012d}"
    return {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}


async def write(etcd: str, objects: Iterator[tuple[str, Json]]) -> float:
    """Write objects into etcd, as the API server would; return their mean size in bytes."""
    pool, count, total = HttpPool(etcd), 0, 0

    async def put(batch: list[tuple[str, bytes]]) -> None:
        puts = [
            {"requestPut": {"key": _base64(key.encode()), "value": _base64(value)}} for key, value in batch
        ]
        body = msgspec.json.encode({"success": puts})
        reply = await pool.request("POST", "/v3/kv/txn", (), body, timeout=120)
        if reply.status != 200:
            raise RuntimeError(f"etcd answered {reply.status}: {reply.data[:200]!r}")

    def batches() -> Iterator[Any]:
        nonlocal count, total
        while found := [(key, msgspec.json.encode(each)) for key, each in islice(objects, OBJECTS_A_WRITE)]:
            count, total = count + len(found), total + sum(len(value) for _, value in found)
            yield put(found)

    await in_parallel(batches())
    await pool.close()
    return total / max(count, 1)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def peak_mb(pid: int) -> float:
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


async def measure(
    size: Size, workloads: list[Workload], who: tuple[str, ...], pods: int, folder: Path
) -> list[Row]:
    control_plane = ControlPlane(folder)
    control_plane.start_seconds = START_SECONDS
    rows: list[Row] = []
    try:
        control_plane.etcd.start()
        began = time.monotonic()
        node_bytes = await write(control_plane.etcd_url, nodes_of(size, workloads[0]))
        pod_bytes = await write(control_plane.etcd_url, pods_of(size))
        click.echo(f"{size}: written in {time.monotonic() - began:.0f} s", err=True)
        await asyncio.to_thread(control_plane.start_api_server)
        click.echo(f"{size}: the API server is ready after {time.monotonic() - began:.0f} s", err=True)
        connection = load(str(control_plane.kubeconfig(ADMIN)))
        async with ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED, timeout=300) as api:
            bench = ScaleBench(control_plane, api, size.nodes)
            for workload in workloads:
                for each in who:
                    count = pods_for(workload.name, pods, size.nodes)
                    found = await bench.run(each, workload, count, 50)
                    row = Row(
                        nodes=size.nodes,
                        pods=size.pods,
                        size=f"{node_bytes / 1000:.1f} and {pod_bytes / 1000:.1f} KB",
                        workload=workload.name,
                        who=each,
                        ready=round(bench.ready, 1),
                        ready_cpu=round(bench.ready_cpu, 1),
                        peak_mb=round(bench.peak_mb),
                        per_second=round(found.per_second, 1),
                        cpu=round(found.cpu, 3),
                    )
                    click.echo(json.dumps(msgspec.to_builtins(row)), err=True)
                    rows.append(row)
    finally:
        control_plane.stop()
    return rows


def table(rows: list[Row]) -> str:
    first: dict[tuple[str, str], float] = {}
    lines = [HEADER]
    for row in rows:
        base = first.setdefault((row.workload, row.who), row.per_second)
        lines.append(
            f"| {row.nodes:,} | {row.pods:,} | {row.size} | {row.workload} | {row.who} | {row.ready:.0f} "
            f"| {row.ready_cpu:.0f} | {row.peak_mb:,.0f} | {row.per_second:,.0f} "
            f"| {row.per_second / base:.0%} | {row.cpu:.2f} |"
        )
    return "\n".join(lines)


@click.command()
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=("5000:15000", "50000:150000", "100000:0:small"),
    show_default=True,
    help="NODES:PODS, or NODES:PODS:small for nodes without images. Shares are of the first size's rates.",
)
@click.option("--workloads", "names", default=",".join(WORKLOADS), show_default=True)
@click.option("--pods", default=2000, show_default=True, help="Pods to schedule in each run.")
@click.option("--who", default=STOWPLAN, show_default=True, help=f"Or also {KUBE_SCHEDULER}, with a comma.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to keep data and logs.")
def main(sizes: tuple[str, ...], names: str, pods: int, who: str, folder: Path | None) -> None:
    """Measure start-up, memory and rate on large clusters, on a real control plane.

    Small sizes run the plain workload only. 50,000 nodes and 150,000 pods need about 16 GB of memory.
    """
    known = {workload.name: workload for workload in read_workloads()}
    rows: list[Row] = []
    for text in sizes:
        try:
            size = Size.parse(text)
        except ValueError:
            raise click.BadParameter(f"{text!r}: expected NODES:PODS or NODES:PODS:small") from None
        workloads = [known[name] for name in (("plain",) if size.is_small else names.split(","))]
        with tempfile.TemporaryDirectory(dir=folder) as place:
            rows += asyncio.run(measure(size, workloads, tuple(who.split(",")), pods, Path(place)))
    click.echo(table(rows))


if __name__ == "__main__":
    sys.exit(main())
