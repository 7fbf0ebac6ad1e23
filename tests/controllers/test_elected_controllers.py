"""`stowplan controllers --leader-elect`: one replica works, another takes over."""

from __future__ import annotations

import asyncio

from stowplan.api.group_crds import PUBLISHED
from stowplan.client.api import ApiClient
from stowplan.config import Duration, LeaderElection
from stowplan.controllers.elected import run_group_controllers
from stowplan.controllers.groups import DEFINITIONS
from stowplan.embedded.cluster import EmbeddedCluster

LEASE = LeaderElection(
    resource_name="c",
    resource_namespace="kube-system",
    lease_duration=Duration(3),
    renew_deadline=Duration(2),
    retry_period=Duration(0.1),
)
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/c"


async def until(question, seconds=20):
    async with asyncio.timeout(seconds):
        while not (found := await question()):
            await asyncio.sleep(0.02)
        return found


async def test_one_replica_works_and_the_other_takes_over():
    cluster = EmbeddedCluster()  # not entered: only its API server answers, no controller of its own runs
    async with ApiClient(cluster.connection, qps=0) as api:

        async def holder():
            try:
                return (await api.get_json(LEASES))["spec"].get("holderIdentity")
            except Exception:
                return None

        async def has_default_queue():
            try:
                return (await api.get_json(f"{QUEUES}/default"))["status"]["state"] == "Open"
            except Exception:
                return False

        first = asyncio.create_task(run_group_controllers(cluster.connection, LEASE))
        leader = await until(holder)
        second = asyncio.create_task(run_group_controllers(cluster.connection, LEASE))
        await asyncio.sleep(0.5)
        assert await holder() == leader
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        async def other():
            found = await holder()
            return found if found not in ("", None, leader) else None

        assert await until(other)
        # The one that took over does the work.
        for name in ("podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh"):
            await api.request("POST", DEFINITIONS.path, PUBLISHED[name])
        assert await until(has_default_queue)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert await holder() == ""
