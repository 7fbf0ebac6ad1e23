"""Custom resources of the community's plugins, changed at random: no plugin fails, and other pods go on."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from example_share import SHARE
from mutated_objects import Mutator
from scheduler_staging import Stage, node, pod, staged
from stowplan.api.groups import CoschedulingPodGroup, VolcanoPodGroup
from stowplan.api.meta import UnreadableObject, decode
from stowplan.api.queues import ElasticQuota, Queue
from stowplan.errors import InputError
from stowplan.plugins.app_groups import AppGroup
from stowplan.plugins.community.network_overhead import NetworkTopology
from stowplan.plugins.community.sysched import SeccompProfile
from stowplan.plugins.priority_classes import PriorityClass

Json = dict[str, Any]
TOLERATION = "preemption-toleration.scheduling.x-k8s.io/"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def workload(name: str, *needs: str) -> Json:
    info = {"kind": "Deployment", "name": name, "selector": name, "apiVersion": "apps/v1", "namespace": "a"}
    return {
        "workload": info,
        "dependencies": [
            {"workload": info | {"selector": each}, "minBandwidth": "1", "maxNetworkCost": 5}
            for each in needs
        ],
    }


COSTS = [{"destination": f"z{number}", "networkCost": 5, "bandwidthCapacity": "1"} for number in range(2)]
EXAMPLES: dict[type, Json] = {
    CoschedulingPodGroup: {
        "spec": {"minMember": 2, "minResources": {"cpu": "1", "memory": "1Gi"}, "scheduleTimeoutSeconds": 5},
        "status": {"phase": "Pending", "running": 1},
    },
    VolcanoPodGroup: {
        "spec": {
            "minMember": 1,
            "minTaskMember": {"a": 1},
            "queue": "x",
            "minResources": {"cpu": "1"},
            "networkTopology": {"mode": "soft", "highestTierAllowed": 1},
        },
        "status": {"phase": "Inqueue"},
    },
    ElasticQuota: {"spec": {"min": {"cpu": "3", "pods": "5"}, "max": {"cpu": "4", "memory": "8Gi"}}},
    Queue: {"spec": {"weight": 1, "capability": {"cpu": "4"}, "priority": 1, "parent": "root"}},
    AppGroup: {
        "spec": {
            "numMembers": 3,
            "topologySortingAlgorithm": "KahnSort",
            "workloads": [workload("a", "b"), workload("b", "c"), workload("c", "a")],
        },
        "status": {"topologyOrder": [{"workload": {"selector": "a"}, "index": 1}], "runningWorkloads": 2},
    },
    NetworkTopology: {
        "spec": {
            "weights": [
                {
                    "name": "UserDefined",
                    "topologyList": [
                        {"topologyKey": key, "originList": [{"origin": "z0", "costList": COSTS}]}
                        for key in (ZONE, REGION)
                    ],
                }
            ],
            "configmapName": "x",
        },
        "status": {"nodeCount": 2, "weightCalculationTime": "2026-01-01T00:00:00Z"},
    },
    SeccompProfile: {
        "spec": {
            "defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}],
        },
        "status": {"localhostProfile": "operator/default/x.json"},
    },
    PriorityClass: {
        "metadata": {
            "annotations": {
                f"{TOLERATION}minimum-preemptable-priority": "10000",
                f"{TOLERATION}toleration-seconds": "3600",
            }
        },
        "value": 5,
    },
}
NAMES = {NetworkTopology: "nt-default", SeccompProfile: "all-syscalls"}
CLUSTER_WIDE = (Queue, PriorityClass)


def profile(sort: str, *names: str, preempts: str = "") -> Json:
    plugins: Json = {
        "multiPoint": {"enabled": [{"name": name} for name in names]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": sort}]},
    }
    if preempts:
        plugins["postFilter"] = {"disabled": [{"name": "*"}], "enabled": [{"name": preempts}]}
    return {"profiles": [{"plugins": plugins}]}


PROFILES = {
    "quotas": profile("Coscheduling", "Coscheduling", "CapacityScheduling", preempts="CapacityScheduling"),
    "queues": profile("VolcanoQueue", "Coscheduling", "VolcanoQueue"),
    "apps": profile("TopologicalSort", "NetworkOverhead", "SySched", preempts="PreemptionToleration"),
    "samples": profile("QOSSort", "PodState", "SySched", preempts="CrossNodePreemption"),
}


class World:
    """The API server's custom resources, each with its last version."""

    def __init__(self, stage: Stage, mutator: Mutator) -> None:
        self.stage, self.mutator = stage, mutator
        self.known: dict[type, Any] = {}
        self.versions = 0

    def write(self, kind: type[Any]) -> None:
        self.versions += 1
        draw = self.mutator.draw
        plain = self.mutator.mutated(EXAMPLES[kind], draw.choice((0, 1, 1, 2, 5)))
        meta = {
            "name": NAMES.get(kind, "x"),
            "uid": f"uid-{kind.__name__}",
            "resourceVersion": str(self.versions),
        }
        if kind not in CLUSTER_WIDE:
            meta["namespace"] = "default"
        given = plain.get("metadata")
        plain["metadata"] = {**(given if isinstance(given, dict) else {}), **meta}
        plain |= {"apiVersion": kind.definition.api_version, "kind": kind.definition.kind}
        store = self.stage.scheduler.cluster.watched(kind)
        try:
            item = None if draw.random() < 0.1 else decode(kind, plain)
            store.unreadable = {}
        except InputError as error:
            item = None
            found = UnreadableObject(meta.get("namespace", ""), meta["name"], meta["uid"], "1", error)
            store.unreadable = {f"default/{meta['name']}": found}
        old = self.known.get(kind)
        self.known[kind] = item
        if old is not None or item is not None:
            event = "added" if old is None else "deleted" if item is None else "modified"
            self.stage.scheduler.handlers.on_event(event, old, item)


def member(name: str, draw: random.Random) -> Json:
    plain = pod(name, cpu=draw.choice(("1", "3")), priority=draw.choice((0, 5, 20000)))
    workload = draw.choice("abcd")
    plain["metadata"]["labels"] = {
        "appgroup.diktyo.x-k8s.io": "x", "appgroup.diktyo.x-k8s.io.workload": workload,
        **({"scheduling.x-k8s.io/pod-group": "x"} if draw.random() < 0.5 else {}),
    }  # fmt: skip
    if draw.random() < 0.5:
        plain["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "x"}
    plain["spec"]["priorityClassName"] = draw.choice(("", "x"))
    return plain


@pytest.mark.parametrize("seed", range(max(5, int(60 * SHARE))))
@pytest.mark.parametrize("name", PROFILES)
async def test_no_plugin_fails(name: str, seed: int, caplog):
    caplog.set_level(logging.WARNING)
    mutator = Mutator(seed)
    async with staged(PROFILES[name], draw=random.Random(seed)) as stage:
        world = World(stage, mutator)
        for number in range(3):
            labels = {ZONE: f"z{number % 2}", REGION: f"z{number % 2}"}
            plain = node(f"n{number}", cpu="4", pods="20")
            plain["metadata"]["labels"] = labels if number < 2 else {}
            stage.see(plain)
        for number in range(4):
            running = member(f"running{number}", mutator.draw)
            running["spec"]["nodeName"] = f"n{number % 3}"
            stage.see(running)
        for turn in range(4):
            for kind in mutator.draw.sample(list(EXAMPLES), 5):
                world.write(kind)
            stage.see(member(f"p{turn}a", mutator.draw), member(f"p{turn}b", mutator.draw))
            await stage.settle()
        stranger = pod("stranger", cpu="1m", priority=30000)
        stranger["metadata"]["namespace"] = "elsewhere"
        stage.see(node("spare", cpu="50", pods="50"), stranger)
        await stage.settle()
        if name != "queues":  # whose default queue may have no room
            assert "elsewhere/stranger" in stage.api.bound
    failed = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [(each.getMessage(), str(getattr(each, "fields", ""))[:2000]) for each in failed] == []
