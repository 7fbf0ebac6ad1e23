"""Whatever happens to a cluster, in the end it is as its owners want it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from cluster_in_process import running_cluster
from cluster_scenarios import APPS, NODES, PODS, is_rolled_out, with_image, workload
from node_operations import cordon, uncordon
from stowplan.client.errors import NotFound

NAMES = ("node-1", "node-2", "node-3")
DEPLOYMENT, STATEFUL_SET = f"{APPS}/deployments/web", f"{APPS}/statefulsets/db"


async def disturb(cluster, draw):
    node = draw.choice(NAMES)
    path = draw.choice((DEPLOYMENT, STATEFUL_SET))
    match draw.randrange(7):
        case 0:
            await cluster.patch(path, {"spec": {"replicas": draw.randrange(6)}})
        case 1:
            await cluster.patch(path, with_image(f"web:{draw.randrange(4)}"))
        case 2:
            for pod in draw.sample(names := await cluster.names(PODS), min(len(names), 2)):
                await cluster.delete(f"{PODS}/{pod}")
        case 3:
            cluster.kubelets.kill(node)
        case 4:
            cluster.kubelets.revive(node)
        case 5:
            await (cordon if draw.random() < 0.5 else uncordon)(cluster.api, node)
        case 6:
            for name in (await cluster.names(f"{APPS}/replicasets"))[:1]:
                await cluster.delete(f"{APPS}/replicasets/{name}")


@pytest.mark.parametrize("seed", range(3))
async def test_all_is_well_in_the_end(seed):
    draw = random.Random(seed)
    async with running_cluster(NODES, speed=100) as cluster:
        await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=3))
        await cluster.create(
            f"{APPS}/statefulsets", workload("StatefulSet", "db", replicas=2, serviceName="db")
        )
        await cluster.create(f"{APPS}/daemonsets", workload("DaemonSet", "agent"))
        for _ in range(40):
            with suppress(NotFound):  # of a pod that was gone already
                await disturb(cluster, draw)
            await asyncio.sleep(draw.random() * 0.05)
        cluster.kubelets.revive(*NAMES)
        for name in NAMES:
            await uncordon(cluster.api, name)
        await cluster.patch(DEPLOYMENT, {"spec": {"replicas": 4}})
        await cluster.patch(STATEFUL_SET, {"spec": {"replicas": 3}})
        await cluster.until(DEPLOYMENT, is_rolled_out(4), 30)

        def is_settled(found):
            names = sorted(
                item["metadata"]["name"] for item in found["items"] if item["status"]["phase"] == "Running"
            )
            numbers = [name for name in names if name.startswith("db-")]
            counts = [sum(name.startswith(prefix) for name in names) for prefix in ("web-", "agent-")]
            return numbers == ["db-0", "db-1", "db-2"] and counts == [4, 3] and len(found["items"]) == 10

        await cluster.until(PODS, is_settled, 30)
        is_updated = lambda item: item["status"]["currentRevision"] == item["status"]["updateRevision"]  # noqa: E731
        await cluster.until(STATEFUL_SET, is_updated, 30)
