"""Random clusters for each plugin of scheduler-plugins: a row of PLUGINS says how to make them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from scheduler_plugins_answers import WATCHER

Json = dict[str, Any]
GI = 2**30
CASES = 24
"""Clusters for each plugin, if its row does not say more."""


class Made(NamedTuple):
    """A cluster, and a pod to decide there."""

    objects: list[Json]
    pending: Json = {}
    args: Json = {}
    metrics: Json = {}
    """By node: what the load-watcher says."""
    first: list[Json] = []
    """Pods that the same scheduler decides before, or all of them if no single one is asked about."""


Draw = random.Random
Make = Callable[[Draw, str], Made]


class Row(NamedTuple):
    make: Make
    points: tuple[str, ...] = ("score",)
    """The extension points at which only this plugin runs."""
    cases_per_start: int = CASES
    """Fewer where the arguments of one profile change those of the others."""
    cases: int = CASES
    asks: str = "decision"
    """Or "order": in which order pods leave the queue; "groups": how many pods of each group start."""


# Objects


def node(name: str, draw: Draw, **amounts: str) -> Json:
    found = {"cpu": f"{draw.randint(2, 64)}", "memory": f"{draw.randint(4, 256)}Gi", "pods": "110", **amounts}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": found, "allocatable": found},
    }


def nodes(draw: Draw, case: str, least: int = 3, most: int = 8) -> list[Json]:
    return [node(f"{case}-n{number}", draw) for number in range(draw.randint(least, most))]


def container(requests: Json | None = None, limits: Json | None = None, name: str = "main") -> Json:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return {"name": name, "image": "web", "resources": {key: each for key, each in resources.items() if each}}


def pod(
    name: str, *containers: Json, namespace: str = "default", status: Json | None = None, **spec: Any
) -> Json:
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [
                {**each, "name": f"c{number}"} for number, each in enumerate(containers or (container(),))
            ],
            "automountServiceAccountToken": False,
            **spec,
        },
    }
    return made | ({"status": status} if status else {})


def amounts(draw: Draw, cpu: int = 1500, memory: int = 3000) -> Json:
    """Of CPU and memory, of one of them, or of none."""
    found = {"cpu": f"{draw.randint(50, cpu)}m", "memory": f"{draw.randint(20, memory)}Mi"}
    return {name: amount for name, amount in found.items() if draw.random() < 0.8}


def any_container(draw: Draw, cpu: int = 1500) -> Json:
    requests = amounts(draw, cpu)
    limits = {}
    if draw.random() < 0.5:
        if "cpu" in requests:
            limits["cpu"] = f"{int(requests['cpu'][:-1]) + draw.randint(0, 2000)}m"
        if "memory" in requests and draw.random() < 0.7:
            limits["memory"] = f"{int(requests['memory'][:-2]) + draw.randint(0, 4000)}Mi"
    return container(requests, limits)


def any_pod(draw: Draw, name: str, **spec: Any) -> Json:
    found = pod(name, *(any_container(draw) for _ in range(draw.randint(1, 3))), **spec)
    if draw.random() < 0.3:
        found["spec"]["initContainers"] = [{**any_container(draw, 3000), "name": "init"}]
    return found


def running_pods(draw: Draw, case: str, found: list[Json], most: int = 3) -> list[Json]:
    """Pods that run on the nodes."""
    return [
        any_pod(draw, f"{case}-r{place}-{number}", nodeName=each["metadata"]["name"])
        for place, each in enumerate(found)
        for number in range(draw.randint(0, most))
    ]


# Plugins


def node_resources_allocatable(draw: Draw, case: str) -> Made:
    found = nodes(draw, case, 2)
    if draw.random() < 0.2:  # nodes of one size
        found = [{**each, "status": found[0]["status"]} for each in found]
    args: Json = {"mode": draw.choice(("Least", "Most"))} if draw.random() < 0.8 else {}
    if draw.random() < 0.7:
        names = draw.sample(
            ("cpu", "memory", "pods", "ephemeral-storage", "example.com/gpu"), draw.randint(1, 4)
        )
        args["resources"] = [{"name": name, "weight": draw.choice((1, 3, 1000, 2**20))} for name in names]
        for each in found:
            more = {
                "ephemeral-storage": f"{draw.randint(10, 500)}Gi",
                "example.com/gpu": str(draw.randint(0, 8)),
            }
            each["status"] = {key: amount | more for key, amount in each["status"].items()}
    return Made([*found, *running_pods(draw, case, found, 1)], any_pod(draw, case), args)


# Metrics of nodes


def metric(kind: str, operator: str, value: float) -> Json:
    return {"name": "test", "type": kind, "operator": operator, "rollup": "15m", "value": value}


def load_of(draw: Draw, most: float) -> list[Json]:
    """Averages and deviations of CPU and memory, some of them missing, in any order."""
    found = []
    for kind in ("CPU", "Memory"):
        value = round(draw.uniform(0, most), draw.choice((0, 2)))
        operator = draw.choice(("AVG", "AVG", "Latest"))
        found.append(metric(kind, operator, value))
        if draw.random() < 0.2:
            found.append(metric(kind, "Latest", round(draw.uniform(0, most), 1)))
        if operator == "AVG":
            found.append(metric(kind, "STD", round(draw.choice((0, draw.uniform(0, 25))), 2)))
    if draw.random() < 0.1:
        found = [each for each in found if each["type"] == "CPU"]
    draw.shuffle(found)
    return found


def loaded(draw: Draw, case: str, args: Json, most: float = 110, pods: int = 3) -> Made:
    """Nodes of which a load-watcher has metrics; in some clusters one is missing."""
    found = [node(f"{case}-n{number}", draw) for number in range(draw.randint(3, 8))]
    for each in found:
        # What is allocatable is less than the capacity, and which of them counts is up to the plugin.
        amounts = each["status"]["capacity"]
        less = {**amounts, "cpu": f"{int(amounts['cpu']) * 1000 - draw.randint(0, 500)}m"}
        each["status"] = {"capacity": amounts, "allocatable": less}
    names = [each["metadata"]["name"] for each in found]
    known = names if draw.random() < 0.7 else draw.sample(names, len(names) - 1)
    metrics = {name: load_of(draw, most) for name in known}
    args = args if "WatcherAddress" in args else {"watcherAddress": WATCHER, **args}
    return Made([*found, *running_pods(draw, case, found, pods)], any_pod(draw, case), args, metrics)


def target_load_packing(draw: Draw, case: str) -> Made:
    # The arguments of the last profile count for all, so those of one start are the same.
    number = int(case.rpartition("-")[2]) // PLUGINS["TargetLoadPacking"].cases_per_start
    args: list[Json] = [
        {},
        {"targetUtilization": 60, "defaultRequestsMultiplier": "2"},
        {"targetUtilization": 25, "defaultRequests": {"cpu": "300m"}, "defaultRequestsMultiplier": "1.1"},
        {"targetUtilization": 90},
    ]
    return loaded(draw, case, args[number])


def load_variation_risk_balancing(draw: Draw, case: str) -> Made:
    args = {
        "safeVarianceMargin": draw.choice((0, 0.5, 1, 2.5)),
        "safeVarianceSensitivity": draw.choice((0, 0.5, 1, 2, 3)),
    }
    return loaded(draw, case, {key: value for key, value in args.items() if draw.random() < 0.7})


def low_risk_over_commitment(draw: Draw, case: str) -> Made:
    args: Json = {}
    if draw.random() < 0.7:
        args["smoothingWindowSize"] = draw.choice((1, 5, 20))
    if draw.random() < 0.7:
        args["riskLimitWeights"] = {"cpu": round(draw.random(), 2), "memory": round(draw.random(), 2)}
    made = loaded(draw, case, args, most=100, pods=6)
    for each in made.objects:
        if each["kind"] == "Node":  # small ones, so that limits exceed what they have
            amounts = {"cpu": str(draw.randint(4, 16)), "memory": f"{draw.randint(8, 32)}Gi", "pods": "110"}
            each["status"] = {"capacity": amounts, "allocatable": amounts}
    return made


def peaks(draw: Draw, case: str) -> Made:
    made = loaded(draw, case, {"WatcherAddress": WATCHER}, most=70)
    models = {}
    for each in made.objects:
        if each["kind"] == "Node":
            amounts = {"cpu": str(draw.randint(16, 64)), "memory": "64Gi", "pods": "110"}
            each["status"] = {"capacity": amounts, "allocatable": amounts}
            rising = draw.random() < 0.5
            models[each["metadata"]["name"]] = {
                "k0": draw.randint(50, 500),
                "k1": draw.randint(10, 100) if rising else -draw.randint(10, 100),
                "k2": round(draw.uniform(0.005, 0.02), 4) if rising else -round(draw.uniform(0.01, 0.08), 4),
            }
    return made._replace(args={**made.args, "NodePowerModel": models})


# What is on nodes


def pod_state(draw: Draw, case: str) -> Made:
    """Nodes that are full of pods, some of which are leaving, and pods that have preempted others."""
    found = [node(f"{case}-n{number}", draw, cpu="4", memory="16Gi") for number in range(draw.randint(3, 7))]
    full = []
    for place, each in enumerate(found):
        for number in range(count := draw.randint(1, 4)):
            requests = {"cpu": f"{3800 // count}m"}
            one = pod(f"{case}-r{place}-{number}", container(requests), nodeName=each["metadata"]["name"])
            if draw.random() < 0.3:
                one["metadata"]["deletionTimestamp"] = "soon"
            full.append(one)
    first = [
        pod(
            f"{case}-p{number}", container({"cpu": f"{draw.randint(500, 2500)}m"}), priorityClassName="middle"
        )
        for number in range(draw.randint(0, 3))
    ]
    pending = pod(case, container({"cpu": "50m"}), priorityClassName="high")
    return Made([*found, *full], pending, first=first)


# NUMA nodes

GPU, PAGES = "example.com/gpu", "hugepages-2Mi"


def numa_pod(draw: Draw, name: str, is_small: bool) -> Json:
    """Guaranteed, Burstable, or with nothing but a device."""
    quality = draw.choice(("Guaranteed", "Guaranteed", "Guaranteed", "Burstable", "BestEffort"))
    found = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        cpu = draw.choice(("500m", "1", "1500m", "2") if is_small else ("1", "2", "3", "4", "7"))
        requests = {"cpu": cpu, "memory": f"{draw.choice((256, 1000, 2000 if is_small else 12000))}Mi"}
        if draw.random() < 0.3:
            requests[PAGES] = f"{draw.randint(1, 300) * 2}Mi"
        if quality == "BestEffort":
            requests = {}
        if draw.random() < (0.1 if is_small else 0.4) or not requests:
            requests[GPU] = str(draw.randint(1, 2))
        limits = requests
        if quality == "Burstable":
            limits = {key: amount for key, amount in requests.items() if key in (GPU, PAGES)}
        found.append(container(requests, limits))
    made = pod(name, *found)
    if draw.random() < 0.3:
        amounts = {"cpu": str(draw.randint(1, 6)), "memory": "1Gi"}
        made["spec"]["initContainers"] = [{**container(amounts, amounts), "name": "init"}]
    return made


def zones(draw: Draw, count: int, least: int) -> list[Json]:
    found = []
    skipped = {name for name in (GPU, PAGES) if draw.random() < 0.2}
    for number in range(count):
        amounts = {
            "cpu": (8, draw.randint(least, 8)),
            "memory": (16 * GI, draw.randint(least, 16) * GI),
            PAGES: (512 * 2**20, draw.randint(0, 256) * 2**21),
            GPU: (2, draw.randint(0, 2)),
        }
        resources = [
            {"name": name, "capacity": str(size), "allocatable": str(size), "available": str(left)}
            for name, (size, left) in amounts.items()
            if name not in skipped
        ]
        costs = [
            {"name": f"node-{other}", "value": 10 if other == number else draw.choice((11, 20, 21, 32))}
            for other in range(count)
        ]
        found.append({"name": f"node-{number}", "type": "Node", "resources": resources, "costs": costs})
    return found


def node_resource_topology_match(draw: Draw, case: str) -> Made:
    found, topologies = [], []
    is_strict = draw.random() < 0.4  # only nodes that align, so that none may fit
    is_roomy = draw.random() < 0.6  # most fit, and are scored
    for number in range(draw.randint(2, 7)):
        name, count = f"{case}-n{number}", draw.choice((1, 2, 2, 4))
        amounts = {
            "cpu": str(8 * count),
            "memory": f"{16 * count}Gi",
            PAGES: f"{512 * count}Mi",
            GPU: str(2 * count),
        }
        found.append(node(name, draw, **amounts))
        if draw.random() < 0.1 and not is_strict:
            continue  # nothing is known of its NUMA nodes
        topology: Json = {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": name},
            "zones": zones(draw, count, 2 if is_roomy else 0),
        }
        scope, policy = draw.choice(("Pod", "Container")), "SingleNUMANode"
        if draw.random() < 0.25 and not is_strict:
            policy = draw.choice(("BestEffort", "Restricted"))
        if draw.random() < 0.5:
            topology["topologyPolicies"] = [f"{policy}{scope}Level"]
        else:
            names = {
                "SingleNUMANode": "single-numa-node",
                "BestEffort": "best-effort",
                "Restricted": "restricted",
            }
            topology["attributes"] = [
                {"name": "topologyManagerScope", "value": scope.lower()},
                {"name": "topologyManagerPolicy", "value": names[policy]},
            ]
            if draw.random() < 0.3:
                topology["attributes"].append({"name": "topologyManagerMaxNUMANodes", "value": "4"})
        topologies.append(topology)
    kinds = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")
    strategy: Json = {"type": kinds[int(case.rpartition("-")[2]) % 4]}
    if draw.random() < 0.5:
        names = draw.sample(("cpu", "memory", GPU, PAGES), draw.randint(1, 4))
        strategy["resources"] = [{"name": name, "weight": draw.choice((1, 2, 5))} for name in names]
    return Made([*found, *topologies], numa_pod(draw, case, is_roomy), {"scoringStrategy": strategy})


# Whom pods may evict

TOLERATION = "preemption-toleration.scheduling.x-k8s.io/"


def priority_class(name: str, value: int, **annotations: str) -> Json:
    meta = {
        "name": name,
        "annotations": {TOLERATION + key.replace("_", "-"): each for key, each in annotations.items()},
    }
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": value}


def since(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


def running_since(seconds: float) -> Json:
    """The status of a pod that was bound, and started, so long ago."""
    when = since(seconds)
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": when}
    return {"phase": "Running", "startTime": when, "conditions": [condition]}


def preemption_toleration(draw: Draw, case: str) -> Made:
    """Nodes full of pods, with classes of which some protect their pods, and some for a time."""
    classes = [priority_class(f"{case}-plain", draw.choice((0, 300)))]
    for number in range(3):
        notes = {"minimum_preemptable_priority": str(draw.choice((600, 1000, 5000)))}
        if draw.random() < 0.8:
            notes["toleration_seconds"] = draw.choice(
                ("-1", "0", "600", "3600", "soon" if number == 2 else "60")
            )
        classes.append(priority_class(f"{case}-c{number}", draw.randint(1, 9) * 50, **notes))
    classes.append(priority_class(f"{case}-preemptor", draw.choice((200, 500, 800, 2000, 10000))))
    found = [node(f"{case}-n{number}", draw, cpu="4", memory="32Gi") for number in range(draw.randint(1, 6))]
    pods, age = [], 0
    for place, each in enumerate(found):
        for number in range(count := draw.randint(1, 4)):
            age += 97  # all of them differ, and none is near the end of what its class tolerates
            pods.append(
                pod(
                    f"{case}-r{place}-{number}",
                    container({"cpu": f"{3600 // count}m"}),
                    nodeName=each["metadata"]["name"],
                    priorityClassName=draw.choice(classes[:-1])["metadata"]["name"],
                    status=running_since(age + draw.choice((30, 1200, 5400))),
                )
            )
    pending = pod(
        case, container({"cpu": f"{draw.randint(800, 3500)}m"}), priorityClassName=f"{case}-preemptor"
    )
    return Made([*classes, *found, *pods], pending)


def capacity_scheduling(draw: Draw, case: str) -> Made:
    """Quotas of some namespaces, pods of all of them that run, and one that waits.

    In half of the clusters the nodes are full of pods of the other quotas, which may have to give way.
    """
    quotas, names, takes_back = [], ("default", "blue", "green", "red"), draw.random() < 0.5
    for name in draw.sample(names[1:], draw.randint(2 if takes_back else 1, 3)):
        least = {"cpu": draw.randint(2, 7), "memory": draw.choice((2, 8, 16))}
        most = {key: amount + draw.randint(0, 8) for key, amount in least.items()}
        spec: Json = {"min": {"cpu": str(least["cpu"]), "memory": f"{least['memory']}Gi"}}
        if draw.random() < 0.8:
            spec["max"] = {"cpu": str(most["cpu"]), "memory": f"{most['memory']}Gi"}
        meta = {"name": f"{case}-{name}", "namespace": name}
        kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "ElasticQuota"}
        quotas.append(kind | {"metadata": meta, "spec": spec})
    found = [node(f"{case}-n{number}", draw, cpu="6", memory="16Gi") for number in range(draw.randint(1, 3))]
    owners = (*names, quotas[-1]["metadata"]["namespace"])
    if takes_back:
        owners = tuple(each["metadata"]["namespace"] for each in quotas[1:])
    pods, age = [], 0
    for place, each in enumerate(found):
        for number in range(count := draw.randint(1, 4)):
            age += 101
            requests = {
                "cpu": f"{draw.randint(800, 5600) // count}m",
                "memory": f"{draw.randint(500, 4000) // count}Mi",
            }
            pods.append(
                pod(
                    f"{case}-r{place}-{number}",
                    container(requests),
                    namespace=draw.choice(owners),
                    nodeName=each["metadata"]["name"],
                    priorityClassName=draw.choice(("low", "middle")),
                    status=running_since(age),
                )
            )
    requests = {"cpu": f"{draw.randint(500, 4000)}m", "memory": f"{draw.randint(100, 3000)}Mi"}
    first = quotas[0]["metadata"]["namespace"]
    pending = pod(
        case,
        container(requests),
        namespace=first if takes_back else draw.choice((*names, first)),
        priorityClassName=draw.choice(("low", "middle", "high")),
    )
    return Made([*quotas, *found, *pods], pending)


# The queue


def qos_sort(draw: Draw, case: str) -> Made:
    """Pods of all qualities and priorities."""
    found = []
    for number in range(draw.randint(5, 10)):
        requests = {"cpu": f"{draw.randint(1, 9)}m", "memory": f"{draw.randint(1, 9)}Mi"}
        limits = draw.choice(({}, requests, {"cpu": "20m"}, {"memory": "20Mi"}))
        made = container(*draw.choice(((requests, limits), ({}, {}), ({"cpu": "1m"}, {}), ({}, requests))))
        also = [container(requests, requests)] if draw.random() < 0.2 else []
        classes = {"priorityClassName": draw.choice(("low", "middle"))} if draw.random() < 0.5 else {}
        name = f"{draw.randint(0, 999):03}-{case}-{number}"
        found.append(pod(name, made, *also, namespace=draw.choice(("default", "blue", "green")), **classes))
    return Made([], first=found)


# Groups

GROUP = "scheduling.x-k8s.io/pod-group"


def coscheduling(draw: Draw, case: str) -> Made:
    """Groups of pods of one CPU each: one group, or several for which there is room."""
    count = draw.choice((1, 1, 2, 3))
    room, cpus = 0, [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    groups, pods = [], []
    for name in (f"{case}-{letter}" for letter in "abc"[:count]):
        least = draw.randint(1, 5)
        there = max(1, least + draw.choice((-1, 0, 0, 0, 1, 2)))
        room += there
        spec: Json = {"minMember": least}
        if draw.random() < 0.3:
            spec["minResources"] = {"cpu": str(draw.randint(1, least + 3))}
        kind = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
        if draw.random() < 0.9:
            groups.append(kind | {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        for number in range(there):
            gates = {"schedulingGates": [{"name": "example.com/later"}]} if draw.random() < 0.1 else {}
            made = pod(f"{name}-{number}", container({"cpu": "1"}), **gates)
            made["metadata"]["labels"] = {GROUP: name}
            pods.append(made)
    if count > 1:
        cpus.append(room + 4)
    found = [node(f"{case}-n{number}", draw, cpu=str(cpu)) for number, cpu in enumerate(cpus)]
    draw.shuffle(pods)
    return Made([*found, *groups], first=pods)


# Workloads that talk to each other

APP_GROUP, WORKLOAD = "appgroup.diktyo.x-k8s.io", "appgroup.diktyo.x-k8s.io.workload"
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"


def app_group(name: str, workloads: list[Json], order: list[str] | None = None) -> Json:
    found: Json = {
        "apiVersion": "appgroup.diktyo.x-k8s.io/v1alpha1",
        "kind": "AppGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "numMembers": len(workloads),
            "topologySortingAlgorithm": "KahnSort",
            "workloads": workloads,
        },
    }
    if order is not None:  # by place; the list itself is sorted by name, as the controller writes it
        places = {selector: place for place, selector in enumerate(order, 1)}
        found["status"] = {
            "topologyOrder": [
                {"workload": workload(selector), "index": places[selector]} for selector in sorted(order)
            ]
        }
    return found


def workload(selector: str) -> Json:
    return {
        "kind": "Deployment",
        "name": selector,
        "selector": selector,
        "apiVersion": "apps/v1",
        "namespace": "default",
    }


def member(found: Json, group: str, selector: str) -> Json:
    found["metadata"]["labels"] = {APP_GROUP: group, WORKLOAD: selector}
    return found


def topological_sort(draw: Draw, case: str) -> Made:
    """Pods of an AppGroup, one for each workload, or pods without one. Each case has its own priority."""
    classes = [priority_class(f"{case}-class", 1000 + int(case.rpartition("-")[2]))]
    names = [f"w{number}" for number in draw.sample(range(20), draw.randint(3, 8))]
    pods = [pod(f"{case}-{number}", priorityClassName=f"{case}-class") for number in range(len(names))]
    if draw.random() < 0.2:
        return Made(classes, first=pods)
    listed = draw.sample(names, len(names) - draw.choice((0, 0, 1)))
    group = app_group(f"{case}-group", [{"workload": workload(each)} for each in names], listed)
    members = [member(each, f"{case}-group", name) for each, name in zip(pods, names, strict=True)]
    draw.shuffle(members)
    return Made([*classes, group], first=members)


def costs(draw: Draw, key: str, names: list[str]) -> Json:
    origins = []
    for origin in names:
        others = [name for name in names if name != origin and draw.random() < 0.9]
        listed = [{"destination": name, "networkCost": draw.randint(1, 30)} for name in others]
        origins.append({"origin": origin, "costList": listed})
    return {"topologyKey": key, "originList": origins}


def network_overhead(draw: Draw, case: str) -> Made:
    """Nodes in zones and regions, and pods there on which the pending one depends."""
    regions = [f"r{number}" for number in range(draw.randint(1, 3))]
    zones = {f"z{number}": draw.choice(regions) for number in range(draw.randint(1, 5))}
    found = []
    for number in range(draw.randint(3, 8)):
        made = node(f"{case}-n{number}", draw)
        zone = draw.choice(list(zones))
        if draw.random() < 0.85:
            made["metadata"]["labels"] |= {ZONE: zone, REGION: zones[zone]}
        elif draw.random() < 0.5:
            made["metadata"]["labels"] |= {ZONE: zone}
        found.append(made)
    group, names = f"{case}-group", [f"w{number}" for number in range(draw.randint(2, 5))]
    most = draw.choice((2, 5, 40))
    needs = [
        {"workload": workload(name), "maxNetworkCost": draw.randint(0, most), "minBandwidth": "1Mi"}
        for name in names[1:]
        if draw.random() < 0.8
    ]
    workloads = [{"workload": workload(names[0]), "dependencies": needs}]
    workloads += [{"workload": workload(name)} for name in names[1:]]
    weights = draw.choice(("UserDefined", "NetperfCosts"))
    lists = [costs(draw, REGION, sorted(regions)), costs(draw, ZONE, sorted(zones))]
    topology = {
        "apiVersion": "networktopology.diktyo.x-k8s.io/v1alpha1",
        "kind": "NetworkTopology",
        "metadata": {"name": f"{case}-costs", "namespace": "default"},
        "spec": {"configmapName": "costs", "weights": [{"name": weights, "topologyList": lists}]},
    }
    pods = [
        member(
            pod(f"{case}-r{number}", nodeName=draw.choice(found)["metadata"]["name"]),
            group,
            draw.choice(names),
        )
        for number in range(draw.randint(0, 8))
    ]
    if (
        draw.random() < 0.4
    ):  # all of them where there is no place for another, so that none may be near enough
        found[0]["spec"] = {"unschedulable": True}
        if draw.random() < 0.5:
            found[0]["metadata"]["labels"] = {}
        for each in pods:
            each["spec"]["nodeName"] = found[0]["metadata"]["name"]
    args = {"weightsName": weights, "networkTopologyName": f"{case}-costs"}
    pending = member(pod(case), group, draw.choice((names[0], names[0], names[0], names[-1])))
    return Made([*found, app_group(group, workloads), topology, *pods], pending, args)


# System calls


def seccomp_profile(name: str, *syscalls: Json) -> Json:
    return {
        "apiVersion": "security-profiles-operator.x-k8s.io/v1beta1",
        "kind": "SeccompProfile",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": list(syscalls)},
    }


def confined(draw: Draw, found: Json, profiles: list[Json]) -> Json:
    """The pod with a profile for all containers, for one of them, for both, or without any."""

    def one() -> Json:
        name = draw.choice(profiles)["metadata"]["name"]
        return {"seccompProfile": {"type": "Localhost", "localhostProfile": f"operator/default/{name}.json"}}

    if draw.random() < 0.6:
        found["spec"]["securityContext"] = one()
    if draw.random() < 0.4:
        found["spec"]["containers"][0]["securityContext"] = one()
    return found


def sysched(draw: Draw, case: str) -> Made:
    calls = [f"call{number}" for number in range(30)]
    profiles = [
        seccomp_profile(
            f"{case}-p{number}",
            {"action": "SCMP_ACT_ALLOW", "names": draw.sample(calls, draw.randint(1, 12))},
            {"action": draw.choice(("SCMP_ACT_LOG", "SCMP_ACT_KILL")), "names": draw.sample(calls, 4)},
        )
        for number in range(draw.randint(1, 5))
    ]
    args = {"defaultProfileName": f"{case}-all"}
    default = [seccomp_profile(f"{case}-all", {"action": "SCMP_ACT_ALLOW", "names": calls})]
    found = nodes(draw, case, 2)
    # A pod counts there once it changes after it has got an address.
    statuses = [
        {"phase": "Pending", "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}]},
        {"phase": "Running"},
    ]
    pods = [
        {
            **confined(draw, pod(f"{case}-r{place}-{number}", nodeName=each["metadata"]["name"]), profiles),
            "status": statuses,
        }
        for place, each in enumerate(found)
        for number in range(draw.randint(0, 3))
    ]
    has_default = draw.random() < 0.8
    return Made(
        [*found, *profiles, *(default if has_default else ()), *pods],
        confined(draw, pod(case), profiles),
        args,
    )


PLUGINS: dict[str, Row] = {
    "NodeResourcesAllocatable": Row(node_resources_allocatable),
    "TargetLoadPacking": Row(target_load_packing, cases_per_start=6),
    "LoadVariationRiskBalancing": Row(load_variation_risk_balancing),
    "LowRiskOverCommitment": Row(low_risk_over_commitment),
    "Peaks": Row(peaks),
    "PodState": Row(pod_state),
    "PreemptionToleration": Row(preemption_toleration, points=("postFilter",), cases_per_start=40, cases=40),
    "CapacityScheduling": Row(capacity_scheduling, points=("postFilter",), cases_per_start=60, cases=60),
    "TopologicalSort": Row(topological_sort, points=("queueSort",), asks="order"),
    "NetworkOverhead": Row(network_overhead, cases_per_start=40, cases=40),
    "SySched": Row(sysched),
    "QOSSort": Row(qos_sort, points=("queueSort",), asks="order"),
    "Coscheduling": Row(coscheduling, points=("queueSort",), asks="groups"),
    "NodeResourceTopologyMatch": Row(node_resource_topology_match, cases_per_start=60, cases=60),
}


def profile_of(plugin: str, row: Row, name: str, args: Json) -> Json:
    enabled = [{"name": plugin}]
    alone = {point: {"disabled": [{"name": "*"}], "enabled": enabled} for point in row.points}
    settings = {"pluginConfig": [{"name": plugin, "args": args}]} if args else {}
    return {"schedulerName": name, "plugins": {"multiPoint": {"enabled": enabled}, **alone}, **settings}


def make_cases(plugin: str, seed: int = 1) -> list[tuple[Json, Made]]:
    """Profiles, each with a cluster."""
    row, found = PLUGINS[plugin], []
    for number in range(row.cases):
        name = f"{plugin.lower()}-{number}"
        made = row.make(random.Random(f"{plugin} {number} {seed}"), name)
        for each in filter(None, (*made.first, made.pending)):
            each["spec"]["schedulerName"] = name
        found.append((profile_of(plugin, row, name, made.args), made))
    return found
