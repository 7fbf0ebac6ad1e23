"""Two profiles of one scheduler have the same plugin with other arguments: both keep to their own."""

from __future__ import annotations

from typing import Any

import pytest
from alone import scores

from make import make_node, make_pod, planner
from stowplan.api.meta import decode
from stowplan.cycle import Planner
from stowplan.plugins.app_groups import GROUP_LABEL, WORKLOAD_LABEL, AppGroup
from stowplan.plugins.community.network_overhead import REGION, ZONE, NetworkTopology
from stowplan.plugins.community.sysched import SeccompProfile
from stowplan.plugins.node_metrics import LoadPlugin, NodeLoad
from stowplan.plugins.node_resource_topologies import NodeResourceTopology

Json = dict[str, Any]
GPUS, MILLI = "alibabacloud.com/gpu-count", "alibabacloud.com/gpu-milli"
WATCHER = {"watcherAddress": "http://127.0.0.1:1"}
LOW, HIGH = {"k0": 100, "k1": 20, "k2": 0.01}, {"k0": 100, "k1": 50, "k2": 0.01}
BY_LABEL = {"metadataKey": "example.com/rank", "metadataSource": "Label", "metadataType": "Number"}
ARGS: dict[str, tuple[Json, Json]] = {
    "NodeResourcesAllocatable": ({"mode": "Least"}, {"mode": "Most"}),
    "NodeMetadata": (BY_LABEL | {"scoringStrategy": "Highest"}, BY_LABEL | {"scoringStrategy": "Lowest"}),
    "NodeResourceTopologyMatch": (
        {"scoringStrategy": {"type": "LeastAllocated"}},
        {"scoringStrategy": {"type": "MostAllocated"}},
    ),
    "TargetLoadPacking": (WATCHER | {"targetUtilization": 40}, WATCHER | {"targetUtilization": 80}),
    "LoadVariationRiskBalancing": (WATCHER | {"safeVarianceMargin": 0}, WATCHER | {"safeVarianceMargin": 2}),
    "LowRiskOverCommitment": (
        WATCHER | {"riskLimitWeights": {"cpu": 0}},
        WATCHER | {"riskLimitWeights": {"cpu": 1}},
    ),
    "Peaks": (
        {"WatcherAddress": "http://127.0.0.1:1", "NodePowerModel": {"a": LOW, "b": HIGH, "c": HIGH}},
        {"WatcherAddress": "http://127.0.0.1:1", "NodePowerModel": {"a": HIGH, "b": LOW, "c": LOW}},
    ),
    "NetworkOverhead": ({"weightsName": "Near"}, {"weightsName": "Far"}),
    "SySched": ({"defaultProfileName": "web"}, {"defaultProfileName": "db"}),
    "FragmentationGradientDescent": (
        {"typicalPods": [{"cpu": 1000, "count": 1, "milli": 500}]},
        {"typicalPods": [{"cpu": 1000, "count": 1, "milli": 700}]},
    ),
}


def node(name: str, cpu: str, rank: str) -> Any:
    labels = {"example.com/rank": rank, REGION: "r", ZONE: f"zone-{name}"}
    room = {"cpu": cpu, "memory": "16Gi", "pods": "9", GPUS: "1"}
    return make_node(name, labels=labels, allocatable=room)


def numa(name: str, cpu: str) -> NodeResourceTopology:
    amounts = {"cpu": cpu, "memory": "8Gi"}
    resources = [
        {"name": each, "capacity": amount, "allocatable": amount, "available": amount}
        for each, amount in amounts.items()
    ]
    zone = {"name": "node-0", "type": "Node", "resources": resources}
    policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
    return decode(NodeResourceTopology, {"metadata": {"name": name}, "attributes": [policy], "zones": [zone]})


def costs(name: str, to_b: int, to_c: int) -> Json:
    origins = [
        {"origin": origin, "costList": [{"destination": "zone-a", "networkCost": cost}]}
        for origin, cost in (("zone-b", to_b), ("zone-c", to_c))
    ]
    return {"name": name, "topologyList": [{"topologyKey": ZONE, "originList": origins}]}


def profile(name: str, *calls: str) -> SeccompProfile:
    groups = [{"action": "SCMP_ACT_ALLOW", "names": list(calls)}]
    meta = {"name": name, "namespace": "default"}
    return decode(SeccompProfile, {"metadata": meta, "spec": {"syscalls": groups}})


def pod(name: str, uses: str = "", gpu: str = "", **more: Any) -> Any:
    """A pod of the AppGroup that has half a GPU, and uses the system calls of a profile."""
    labels = {GROUP_LABEL: "shop", WORKLOAD_LABEL: name}
    metadata = {"annotations": {MILLI: "500"} | ({"alibabacloud.com/gpu-index": gpu} if gpu else {})}
    if uses:
        path = f"operator/default/{uses}.json"
        more["securityContext"] = {"seccompProfile": {"type": "Localhost", "localhostProfile": path}}
    return make_pod(name, labels=labels, metadata=metadata, **more)


def container(limit: str, request: str = "2") -> list[Json]:
    requests = {"cpu": request, "memory": "2Gi"}
    return [{"name": "main", "resources": {"requests": requests, "limits": requests | {"cpu": limit}}}]


def world() -> list[Any]:
    needs = [{"workload": {"selector": "cart"}, "maxNetworkCost": 100}]
    group = {"workloads": [{"workload": {"selector": "front"}, "dependencies": needs}]}
    network = {"weights": [costs("Near", 5, 10), costs("Far", 10, 5)]}
    return [
        node("a", "4", "10"),
        node("b", "8", "20"),
        node("c", "6", "40"),
        numa("a", "4"),
        numa("b", "8"),
        numa("c", "6"),
        decode(AppGroup, {"metadata": {"name": "shop", "namespace": "default"}, "spec": group}),
        decode(
            NetworkTopology, {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": network}
        ),
        profile("web", "read", "write"),
        profile("db", "read", "fsync", "mmap"),
        pod("cart", "web", "0", node="a", containers=container("9", "1")),
        pod("store", "db", "0", node="b", containers=container("2")),
    ]


LOADS = {
    "a": NodeLoad(cpu=20, cpu_deviation=20, last_cpu=20, first_cpu=20),
    "b": NodeLoad(cpu=40, cpu_deviation=2, last_cpu=40, first_cpu=40),
    "c": NodeLoad(cpu=60, cpu_deviation=9, last_cpu=60, first_cpu=60),
}


def scheduler(name: str, **args: Json) -> Planner:
    """A profile for each of `args`, with no other plugin that scores."""
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", name)]
    profiles = [
        {
            "schedulerName": each,
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": name, "args": given}],
        }
        for each, given in args.items()
    ]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    found = planner(world(), kind | {"profiles": profiles})
    for each in found.profiles.values():
        plugin = each.plugins[name]
        if isinstance(plugin, LoadPlugin):
            plugin.source.loads = LOADS
            plugin.source.poller.took(plugin.handle.now())
    return found


@pytest.mark.parametrize("name", ARGS)
def test_two_profiles_keep_their_own_arguments(name):
    one, other = ARGS[name]
    both = scheduler(name, one=one, other=other)
    wanted = {each: pod("front", containers=container("2"), schedulerName=each) for each in ("one", "other")}
    expected = {
        "one": scores(scheduler(name, one=one).decide(wanted["one"])),
        "other": scores(scheduler(name, other=other).decide(wanted["other"])),
    }
    assert expected["one"] != expected["other"]
    for _ in range(2):
        for each, pending in wanted.items():
            assert scores(both.decide(pending)) == expected[each]
