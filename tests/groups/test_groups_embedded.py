"""Groups on the embedded cluster: objects come and go through its API server."""

from __future__ import annotations

from groups_staging import member

from scheduler_staging import pod
from stowplan.embedded.cluster import EmbeddedCluster, embedded_cluster

GATES = {"GenericWorkload": True, "GangScheduling": True}
PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    }
}
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [PROFILE],
}


def created(plain, **labels):
    metadata = {"name": plain["metadata"]["name"], "namespace": "default", "labels": labels}
    containers = [{**each, "image": "web"} for each in plain["spec"]["containers"]]
    spec = {key: value for key, value in plain["spec"].items() if key not in ("nodeName", "priority")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "containers": containers},
    }


async def test_scenario_44_plain_pods_are_scheduled_where_the_api_is_not_served():
    async with EmbeddedCluster() as cluster:
        await cluster.add_nodes(1)
        await cluster.schedule(feature_gates=GATES)
        await cluster.apply(created(pod("plain")), created(member("a")))
        assert await cluster.bound("plain")
        assert cluster.scheduler is not None
        assert cluster.scheduler.not_ready is None


async def test_a_group_of_scheduler_plugins_starts_as_one():
    async with embedded_cluster(nodes=2, config=CONFIG) as cluster:
        label = {"scheduling.x-k8s.io/pod-group": "train"}
        pods = [created(pod(f"p{number}", cpu="100m"), **label) for number in range(3)]
        await cluster.apply(*pods[:2])
        group = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"minMember": 3},
        }
        await cluster.apply(group)
        await cluster.apply(created(pod("plain", cpu="100m")))
        assert await cluster.bound("plain")
        assert not [each for each in cluster.scheduler.cluster.pods() if each.name.startswith("p0")]
        await cluster.apply(pods[2])
        for number in range(3):
            assert await cluster.bound(f"p{number}")
