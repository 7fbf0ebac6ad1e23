"""Simulated kubelets on our own API server: heartbeats, and clusters from dumps."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise

from cluster_in_process import running_cluster
from stowplan.kubelet import NodeTemplate
from stowplan.kubelet.dump import dump_of
from stowplan.kubelet.kubelets import MAX_LEASES_PER_SECOND

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def test_nodes_beat_until_they_are_killed():
    async with running_cluster(NodeTemplate(count=2), speed=50) as cluster:

        async def renewals():
            return {
                item["metadata"]["name"]: item["spec"]["renewTime"] for item in await cluster.items(LEASES)
            }

        first = await cluster.until(renewals, lambda found: len(found) == 2)
        cluster.kubelets.kill("node-2")
        await asyncio.sleep(0.05)
        dead = (await renewals())["node-2"]
        await cluster.until(renewals, lambda found: found["node-1"] > first["node-1"])
        assert (await renewals())["node-2"] == dead


async def test_many_nodes_do_not_mean_many_writes():
    async with running_cluster(NodeTemplate(count=1000), speed=50) as cluster:
        versions = []
        for _ in range(2):
            await asyncio.sleep(0.5)
            versions.append(int((await cluster.get("/api/v1/nodes?limit=1"))["metadata"]["resourceVersion"]))
        assert versions[1] - versions[0] < MAX_LEASES_PER_SECOND
        assert cluster.kubelets.grace_seconds > 50, "whoever watches them must know"


async def test_leases_are_renewed_several_at_a_time_so_that_watchers_wake_up_rarely():
    async with running_cluster(NodeTemplate(count=100)) as cluster:

        async def leases():
            return [item["spec"]["renewTime"] for item in await cluster.items(LEASES)]

        found = await cluster.until(leases, lambda found: len(found) >= 20)
        times = sorted(map(datetime.fromisoformat, found))
        pauses = [later - at for at, later in pairwise(times) if later - at > timedelta(seconds=0.05)]
        assert len(pauses) < len(times) / 2


async def test_nodes_stay_ready_when_time_passes_faster_at_once():
    async with running_cluster(NodeTemplate(count=20)) as cluster:
        await cluster.until(LEASES, lambda found: len(found["items"]) >= 2)
        cluster.clock.speed = 100
        began = cluster.clock.now()
        while cluster.clock.now() < began + 120:
            nodes = await cluster.items("/api/v1/nodes")
            assert [each["metadata"]["name"] for each in nodes if each["spec"].get("taints")] == []
            await asyncio.sleep(0.02)


async def test_a_cluster_from_a_dump_looks_like_the_one_it_came_from():
    async with running_cluster(NodeTemplate(count=2, labels={"pool": "a"})) as cluster:
        spec = {"nodeName": "node-2", "containers": [{"name": "main", "image": "web:1"}]}
        await cluster.create(
            "/api/v1/namespaces/default/pods",
            {"metadata": {"name": "p", "labels": {"app": "p"}}, "spec": spec},
        )
        running = lambda item: item["status"]["phase"] == "Running"  # noqa: E731
        await cluster.until("/api/v1/namespaces/default/pods/p", running)
        await cluster.until("/api/v1/nodes/node-2", lambda item: item["status"].get("images"))
        lists = [await cluster.get("/api/v1/nodes"), await cluster.get("/api/v1/pods")]
    # A list leaves out the kinds of its items, and clients fill them in.
    objects = [
        {"apiVersion": "v1", "kind": kind, **item}
        for found, kind in zip(lists, ("Node", "Pod"), strict=True)
        for item in found["items"]
    ]
    async with running_cluster(NodeTemplate(count=0)) as cluster:
        dump = dump_of(objects, cluster.clock.now())
        await cluster.kubelets.add(dump.nodes)
        cluster.kubelets.kill(*dump.dead)
        await cluster.create("/api/v1/namespaces/default/pods", *dump.others)
        found = await cluster.until("/api/v1/namespaces/default/pods/p", running)
        assert (found["spec"]["nodeName"], found["metadata"]["labels"]) == ("node-2", {"app": "p"})
        node = await cluster.get("/api/v1/nodes/node-2")
        assert node["metadata"]["labels"]["pool"] == "a"
        assert node["status"]["images"]


PODS = "/api/v1/namespaces/default/pods"


async def running_pod(cluster, **spec):
    whole = {"nodeName": "node-1", "containers": [{"name": "main", "image": "web:1"}], **spec}
    await cluster.create(PODS, {"metadata": {"name": "p"}, "spec": whole})
    return await cluster.until(f"{PODS}/p", lambda item: item["status"]["phase"] == "Running")


async def test_a_kubelet_says_which_generation_it_has_seen():
    async with running_cluster(NodeTemplate(count=1)) as cluster:
        pod = await running_pod(cluster)
        assert (pod["metadata"]["generation"], pod["status"]["observedGeneration"]) == (1, 1)
        for seconds in (9000, 8000, 7000):
            await cluster.patch(f"{PODS}/p", {"spec": {"activeDeadlineSeconds": seconds}})
        await cluster.until(f"{PODS}/p", lambda item: item["status"]["observedGeneration"] == 4)


async def test_a_new_image_restarts_the_container():
    async with running_cluster(NodeTemplate(count=1)) as cluster:
        await running_pod(cluster)
        image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "web:2"}]
        await cluster.api.request("PATCH", f"{PODS}/p", image, content_type="application/json-patch+json")
        found = await cluster.until(f"{PODS}/p", lambda item: item["status"]["observedGeneration"] == 2)
        container = found["status"]["containerStatuses"][0]
        assert (container["image"], container["restartCount"], container["ready"]) == ("web:2", 1, True)


async def test_a_pod_does_not_run_longer_than_it_may():
    async with running_cluster(NodeTemplate(count=1), speed=50) as cluster:
        await running_pod(cluster, activeDeadlineSeconds=100000)
        await cluster.patch(f"{PODS}/p", {"spec": {"activeDeadlineSeconds": 10}})
        found = await cluster.until(f"{PODS}/p", lambda item: item["status"]["phase"] == "Failed")
        assert found["status"]["reason"] == "DeadlineExceeded"


async def test_ephemeral_containers_run():
    async with running_cluster(NodeTemplate(count=1)) as cluster:
        await running_pod(cluster)
        loop = ["sh", "-c", "while true; do echo polo; sleep 2; done"]
        added = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", "command": loop}]}}
        await cluster.patch(f"{PODS}/p/ephemeralcontainers", added)
        found = await cluster.until(
            f"{PODS}/p", lambda item: item["status"].get("ephemeralContainerStatuses")
        )
        assert "running" in found["status"]["ephemeralContainerStatuses"][0]["state"]
        assert cluster.kubelets.log(found, "debug") == "polo\n"


async def test_a_container_that_is_not_ready_still_runs():
    async with running_cluster(NodeTemplate(count=1)) as cluster:
        before = (await running_pod(cluster))["status"]["containerStatuses"][0]
        for is_ready in (False, True):
            annotations = {"kubelet.stowplan/ready": str(is_ready).lower()}
            await cluster.patch(f"{PODS}/p", {"metadata": {"annotations": annotations}})
            wanted = [{**before, "ready": is_ready}]
            await cluster.until(
                f"{PODS}/p", lambda item, wanted=wanted: item["status"]["containerStatuses"] == wanted
            )
