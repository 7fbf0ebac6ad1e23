"""`tick` moves everything that waits by the cluster's clock; snapshots bring back what was."""

from __future__ import annotations

import json

import pytest

from stowplan.apiserver.times import seconds_of
from stowplan.client.errors import NotFound
from stowplan.embedded import embedded_cluster


def pod(name, *, annotations=None, **spec):
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "100m"}}}
    meta = {"name": name, "annotations": annotations or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [container], **spec},
    }


def job(name, **spec):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "job:1"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


@pytest.fixture
async def cluster():
    async with embedded_cluster(nodes=3) as made:
        yield made


async def phase(cluster, name):
    return (await cluster.get("Pod", name))["status"]["phase"]


async def node_ready(cluster, name):
    conditions = (await cluster.get("Node", name))["status"]["conditions"]
    return next(each["status"] for each in conditions if each["type"] == "Ready")


async def test_pods_start_and_end_in_the_clusters_time(cluster):
    slow = {"kubelet.stowplan/start-seconds": "60", "kubelet.stowplan/run-seconds": "600"}
    await cluster.create(pod("slow", annotations=slow, restartPolicy="Never"))
    await cluster.bound("slow")
    await cluster.tick("50s")
    assert await phase(cluster, "slow") == "Pending"
    await cluster.tick("20s")
    assert await phase(cluster, "slow") == "Running"
    await cluster.tick("10m")
    assert await phase(cluster, "slow") == "Succeeded"


async def test_a_finished_job_goes_after_its_time_to_live(cluster):
    await cluster.create(job("once", ttlSecondsAfterFinished=300))
    await cluster.tick("10s")
    assert (await cluster.get("Job", "once"))["status"]["succeeded"] == 1
    await cluster.tick("6m")
    with pytest.raises(NotFound):
        await cluster.get("Job", "once")


async def test_a_cron_job_runs_as_often_as_it_should(cluster):
    spec = {
        "schedule": "*/10 * * * *",
        "successfulJobsHistoryLimit": 100,
        "jobTemplate": {"spec": job("x")["spec"]},
    }
    await cluster.create(
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "often"}, "spec": spec}
    )
    await cluster.tick("1h")
    jobs = await cluster.list("Job")
    assert len(jobs) == 6
    assert all(each["status"].get("succeeded") == 1 for each in jobs)


async def test_nodes_that_live_stay_ready_and_a_dead_one_is_given_up(cluster):
    cluster.kubelets.kill("node-2")
    await cluster.tick("5m")
    assert [await node_ready(cluster, f"node-{number}") for number in (1, 2, 3)] == [
        "True",
        "Unknown",
        "True",
    ]


async def test_pods_of_a_dead_node_are_evicted(cluster):
    await cluster.create(pod("web"))
    node = await cluster.bound("web")
    await cluster.settle()
    cluster.kubelets.kill(node)
    await cluster.tick("7m")
    assert (await cluster.get("Pod", "web"))["metadata"].get("deletionTimestamp")


async def test_grace_periods_pass(cluster):
    await cluster.create(pod("web", annotations={"kubelet.stowplan/stop-seconds": "25"}))
    await cluster.bound("web")
    await cluster.settle()
    await cluster.delete("Pod", "web")
    await cluster.tick("20s")
    assert (await cluster.get("Pod", "web"))["metadata"]["deletionTimestamp"]
    await cluster.tick("10s")
    with pytest.raises(NotFound):
        await cluster.get("Pod", "web")


async def test_objects_get_the_clusters_time(cluster):
    before = cluster.clock.now()
    await cluster.tick("2h")
    (made,) = await cluster.create(pod("late"))
    await cluster.bound("late")
    assert cluster.clock.now() - before >= 7200
    assert seconds_of(made["metadata"]["creationTimestamp"]) - before >= 7199


async def test_a_token_expires():
    async with embedded_cluster(rbac=True) as cluster:
        await cluster.until(lambda: cluster.get("ServiceAccount", "default"))
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600},
        }
        answer = await cluster.api.request("POST", path, asked)
        token = json.loads(answer.data)["status"]["token"]
        assert cluster.server.access.user_of(token)[0] is not None
        await cluster.tick("9m")
        assert cluster.server.access.user_of(token)[0] is not None
        await cluster.tick("2m")
        assert cluster.server.access.user_of(token)[0] is None


async def test_a_clock_that_stands_still_is_moved_by_ticks_alone():
    async with embedded_cluster(speed=0) as cluster:
        start = cluster.clock.now()
        await cluster.tick(1.5)
        assert cluster.clock.now() == start + 1.5


async def test_a_snapshot_brings_everything_back(cluster):
    await cluster.create(pod("kept"), pod("changed"))
    for name in ("kept", "changed"):
        await cluster.bound(name)
    await cluster.settle()
    before = {name: await cluster.get("Pod", name) for name in ("kept", "changed")}
    taken = cluster.snapshot()
    await cluster.delete("Pod", "kept")
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "changed", "labels": {"a": "b"}}}
    )
    await cluster.create(pod("new"))
    await cluster.bound("new")
    cluster.kubelets.kill("node-1")
    await cluster.tick("2m")
    for _ in range(2):
        await cluster.restore(taken)
        assert sorted(each["metadata"]["name"] for each in await cluster.list("Pod")) == ["changed", "kept"]
        for name, old in before.items():
            now = await cluster.get("Pod", name)
            assert now["metadata"]["uid"] == old["metadata"]["uid"]
            assert now["spec"] == old["spec"]
            assert now["metadata"].get("labels") == old["metadata"].get("labels")
        assert await node_ready(cluster, "node-1") == "True"
    await cluster.create(pod("after"))
    await cluster.bound("after")
    await cluster.tick("2m")
    assert [await phase(cluster, name) for name in ("kept", "changed", "after")] == ["Running"] * 3


async def test_controllers_go_on_after_a_deleted_object_is_restored(cluster):
    await cluster.tick("1m")
    await cluster.wait_for("lease/node-1", "exists", "kube-node-lease")
    taken = cluster.snapshot()
    await cluster.delete("Node", "node-1")
    await cluster.wait_for("lease/node-1", "deleted", "kube-node-lease")
    await cluster.restore(taken)
    cluster.kubelets.kill("node-2")
    await cluster.tick("1m")
    assert await node_ready(cluster, "node-2") == "Unknown"
    assert await node_ready(cluster, "node-1") == "True"
