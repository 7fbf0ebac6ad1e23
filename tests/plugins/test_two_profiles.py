"""Two profiles of one scheduler that use a plugin with different arguments: each gets its own."""

from __future__ import annotations

from typing import Any

import pytest
from alone import scores

import make
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.cycle import Planner
from stowplan.plugins.community.sysched import SeccompProfile
from stowplan.plugins.node_metrics import NodeLoad
from stowplan.plugins.node_resource_topologies import NodeResourceTopology

KEY = "example.com/value"
WATCHER = "http://127.0.0.1:1"
METADATA = {"metadataKey": KEY, "metadataSource": "Label", "metadataType": "Number"}
MODELS = {"a": {"k1": 50, "k2": 0.01}, "b": {"k1": 9, "k2": 0.02}, "c": {"k1": 20, "k2": 0.01}}
SYSTEM_CALLS = {"web": ("a", ["read", "write"]), "db": ("b", ["read", "fsync", "mmap"])}
"""SeccompProfiles, each with the node of a pod that uses it."""
NOW = 1_000_000.0


def objects() -> list[Any]:
    found: list[Any] = []
    for number, name in enumerate("abc", start=1):
        allocatable = {"cpu": str(8 * number), "memory": f"{100 // number}Gi", "pods": "99"}
        meta = {"name": name, "labels": {KEY: str(number * number)}}
        found.append(decode(NodeObject, {"metadata": meta, "status": {"allocatable": allocatable}}))
        resources = [
            {"name": each, "capacity": amount, "allocatable": amount, "available": amount}
            for each, amount in (("cpu", str(4 * number)), ("memory", f"{50 // number}Gi"))
        ]
        policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
        zones = [{"name": "node-0", "type": "Node", "resources": resources}]
        topology = {"metadata": {"name": name}, "attributes": [policy], "zones": zones}
        found.append(decode(NodeResourceTopology, topology))
    for profile, (node, calls) in SYSTEM_CALLS.items():
        groups = [{"action": "SCMP_ACT_ALLOW", "names": calls}]
        meta = {"name": profile, "namespace": "default"}
        found.append(decode(SeccompProfile, {"metadata": meta, "spec": {"syscalls": groups}}))
        seccomp = {"type": "Localhost", "localhostProfile": f"operator/default/{profile}.json"}
        found.append(make.make_pod(profile, node=node, securityContext={"seccompProfile": seccomp}))
    return found


def planner(plugin: str, *args: dict[str, Any]) -> Planner:
    """A profile for each of the arguments, called `0`, `1` and so on."""
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", plugin)]
    profiles = [
        {
            "schedulerName": str(number),
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": plugin, "args": each}],
        }
        for number, each in enumerate(args)
    ]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    found = make.planner(objects(), kind | {"profiles": profiles})
    for profile in found.profiles.values():
        profile.handle.now = lambda: NOW
        source = getattr(profile.plugins[plugin], "source", None)
        if source is not None:
            for name, load in (("a", 20.0), ("b", 45.0), ("c", 70.0)):
                source.loads = dict(source.loads) | {name: NodeLoad(load, 20, load / 2, 5, load, load)}
            source.poller.took(NOW)
    return found


def scored(found: Planner, profile: int, limit: str = "2") -> dict[str, int]:
    resources = {"cpu": "2", "memory": "2Gi"}
    container = {"name": "main", "resources": {"requests": resources, "limits": resources | {"cpu": limit}}}
    pod = make.make_pod(containers=[container], schedulerName=str(profile))
    return scores(found.decide(pod))


@pytest.mark.parametrize(
    ("plugin", "one", "other"),
    [
        ("NodeResourcesAllocatable", {"mode": "Least"}, {"mode": "Most"}),
        ("NodeMetadata", METADATA | {"scoringStrategy": "Highest"}, METADATA | {"scoringStrategy": "Lowest"}),
        (
            "NodeResourceTopologyMatch",
            {"scoringStrategy": {"type": "LeastAllocated"}},
            {"scoringStrategy": {"type": "MostAllocated"}},
        ),
        (
            "TargetLoadPacking",
            {"watcherAddress": WATCHER, "targetUtilization": 40},
            {"watcherAddress": WATCHER, "targetUtilization": 80},
        ),
        (
            "LoadVariationRiskBalancing",
            {"watcherAddress": WATCHER},
            {"watcherAddress": WATCHER, "safeVarianceMargin": 3},
        ),
        (
            "LowRiskOverCommitment",
            {"watcherAddress": WATCHER, "riskLimitWeights": {"cpu": 1, "memory": 1}},
            {"watcherAddress": WATCHER, "riskLimitWeights": {"cpu": 0, "memory": 0}},
        ),
        (
            "Peaks",
            {"WatcherAddress": WATCHER, "NodePowerModel": MODELS},
            {"WatcherAddress": WATCHER, "NodePowerModel": MODELS | {"a": {"k1": 1, "k2": 0.001}}},
        ),
        ("SySched", {"defaultProfileName": "web"}, {"defaultProfileName": "db"}),
    ],
)
def test_each_profile_has_its_own_arguments(plugin, one, other):
    together, limit = planner(plugin, one, other), "20" if plugin == "LowRiskOverCommitment" else "2"
    found = [scored(together, number, limit) for number in range(2)]
    assert found == [scored(planner(plugin, each), 0, limit) for each in (one, other)]
    assert found[0] != found[1]
    assert [scored(together, number, limit) for number in range(2)] == found  # from cached columns
