"""Plugins of the community in a running scheduler, with objects that are created after it has started."""

from __future__ import annotations

from stowplan.embedded.cluster import embedded_cluster
from stowplan.plugins.community.preemption_toleration import MINIMUM, SECONDS

NAMES = ("PreemptionToleration", "NodeResourceTopologyMatch", "PodState", "NodeResourcesAllocatable")
PLUGINS = {"enabled": [{"name": name} for name in NAMES], "disabled": [{"name": "DefaultPreemption"}]}
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"plugins": {"multiPoint": PLUGINS}}],
}


def pod(name, cpu, priority_class=""):
    amounts = {"cpu": cpu, "memory": "1Gi"}
    container = {"name": "main", "image": "web", "resources": {"requests": amounts, "limits": amounts}}
    spec = {"containers": [container]} | ({"priorityClassName": priority_class} if priority_class else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def priority_class(name, value, **annotations):
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}


def topology(name, *cpus):
    def zone(number, cpu):
        found = [
            {"name": key, "capacity": amount, "allocatable": amount, "available": amount}
            for key, amount in (("cpu", cpu), ("memory", "64Gi"))
        ]
        return {"name": f"node-{number}", "type": "Node", "resources": found}

    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [zone(*each) for each in enumerate(cpus)],
    }


async def test_topologies_and_priority_classes_are_watched():
    async with embedded_cluster(1, config=CONFIG) as cluster:
        (node,) = await cluster.list("Node", "")
        await cluster.apply(
            priority_class("safe", 10, **{MINIMUM: "1000", SECONDS: "-1"}),
            priority_class("middle", 100),
            priority_class("high", 2000),
            topology(node["metadata"]["name"], "4", "4"),
        )
        await cluster.settle()
        await cluster.create(pod("large", "6"))
        assert "1 cannot align container" in await cluster.rejected("large")
        await cluster.create(pod("one", "4", "safe"), pod("two", "4", "safe"))
        await cluster.bound("one")
        await cluster.bound("two")
        await cluster.create(pod("middle", "4", "middle"))
        assert "2 of PriorityClass safe (priority 1000 or more may)" in await cluster.rejected("middle")
        await cluster.create(pod("high", "4", "high"))
        await cluster.bound("high")
