"""Controllers and kubelets make a cluster of the real API server, which has no controller manager here."""

from __future__ import annotations

import asyncio

import pytest

from cluster_in_process import at_work
from cluster_scenarios import (
    APPS,
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    SCENARIOS,
    SPEED,
    claim,
    is_phase,
    is_rolled_out,
    pod,
    storage_class,
    workload,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_scenario(scenario, connect):
    async with at_work(await connect(), NODES, speed=SPEED) as cluster:
        await asyncio.wait_for(scenario(cluster), 90)


async def test_kubectl_follows_and_takes_back_roll_outs(connect, control_plane):
    async def kubectl(*arguments, objects=None):
        return await asyncio.to_thread(control_plane.kubectl, *arguments, objects=objects)

    made = [
        workload("Deployment", "web", replicas=2),
        workload("StatefulSet", "db", replicas=2, serviceName="db"),
        workload("DaemonSet", "agent"),
    ]
    async with at_work(await connect(), NODES, speed=SPEED):
        await kubectl("apply", "-f", "-", objects=made)
        for name in ("deployment/web", "statefulset/db", "daemonset/agent"):
            await kubectl("rollout", "status", name, "--timeout=20s")
            await kubectl("set", "image", name, "main=web:2")
            await kubectl("rollout", "status", name, "--timeout=20s")
            assert len((await kubectl("rollout", "history", name)).strip().splitlines()) == 4
            await kubectl("rollout", "undo", name)
            await kubectl("rollout", "status", name, "--timeout=20s")
            shown = await kubectl("get", name, "-o", "jsonpath={.spec.template.spec.containers[0].image}")
            assert shown == "web:1"
        await kubectl("scale", "deployment/web", "--replicas=4")
        await kubectl(
            "wait", "deployment/web", "--for=jsonpath={.status.availableReplicas}=4", "--timeout=20s"
        )
        await kubectl("drain", "node-1", "--ignore-daemonsets", "--timeout=20s")
        places = await kubectl("get", "pods", "-l", "app!=agent", "-o", "jsonpath={.items[*].spec.nodeName}")
        assert "node-1" not in places
        await kubectl("uncordon", "node-1")


async def test_kube_scheduler_has_volumes_made_where_pods_go(connect, control_plane):
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    async with at_work(await connect(), NODES, speed=SPEED, binds=False) as cluster:
        with control_plane.kube_scheduler():
            await cluster.create(CLASSES, storage_class("late", "WaitForFirstConsumer"))
            await cluster.create(CLAIMS, claim("data", "late"))
            await cluster.create(PODS, pod("p", volumes=[volume], requests={"cpu": "1"}))
            running = await cluster.until(f"{PODS}/p", is_phase("Running"), 30)
            bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
            node = await cluster.get(f"/api/v1/nodes/{running['spec']['nodeName']}")
            made = await cluster.get(f"/api/v1/persistentvolumes/{bound['spec']['volumeName']}")
            (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
            assert term["matchExpressions"][0]["values"] == [
                node["metadata"]["labels"]["topology.kubernetes.io/zone"]
            ]


async def test_controllers_go_on_after_the_api_server_was_down(connect, control_plane):
    path = f"{APPS}/deployments/web"
    async with at_work(await connect(), NODES, speed=1) as cluster:
        await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=2))
        await cluster.until(path, is_rolled_out(2))
        control_plane.api_server.kill()
        await asyncio.sleep(0.5)
        control_plane.api_server.start()
        control_plane.request("PATCH", path, {"spec": {"replicas": 4}})
        await cluster.until(path, is_rolled_out(4), 60)
