"""What each plugin of scheduler-plugins costs in a decision, on a cluster that has what it scores by.

    python benchmarks/community_plugins.py                    # all of them, 5,000 nodes
    python benchmarks/community_plugins.py --plugin SySched --nodes 1000

Measures as `stowplan bench plugin` does, whose cluster has no custom resources and no metrics. All pods
differ in size, so that no score is taken from one that was computed for a pod before.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import click

from stowplan.api.kinds import object_of
from stowplan.api.meta import decode
from stowplan.bench.plugin_cost import WARM_UP, cost_among
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds

Json = dict[str, Any]
ZONES, REGIONS, NUMA_NODES, QUOTAS, GI = 20, 4, 8, 500, 2**30
GPU, GPU_MILLI = "alibabacloud.com/gpu-count", "alibabacloud.com/gpu-milli"
REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
APP_GROUP = "appgroup.diktyo.x-k8s.io"
SHOWN = ("pre_filter", "filter_nodes", "pre_score", "score_nodes", "normalize_score")


class Setup(NamedTuple):
    """What a plugin needs: its arguments, objects besides nodes and pods, and changes of pods."""

    plugin: str
    args: Json = {}
    objects: Callable[[int], Iterator[Json]] = lambda nodes: iter(())
    dress: Callable[[Json, int], None] = lambda pod, number: None
    """Changes the pod of that number, pending or not."""
    says: str = ""


# Clusters


def node(number: int) -> Json:
    amounts = {"cpu": "128", "memory": "512Gi", "pods": "110", GPU: "8"}
    labels = {
        "kubernetes.io/hostname": f"node-{number}",
        ZONE: f"z{number % ZONES}",
        REGION: f"r{number % REGIONS}",
        "rank": str(number % 97),
    }
    meta = {"name": f"node-{number}", "labels": labels}
    return {"kind": "Node", "metadata": meta, "status": {"capacity": amounts, "allocatable": amounts}}


def pod(name: str, number: int) -> Json:
    """A Guaranteed pod, of a size of its own."""
    amounts = {"cpu": str(1 + number % 3), "memory": f"{1000 + number}Mi"}
    container = {"name": "main", "image": "web", "resources": {"requests": amounts, "limits": amounts}}
    meta = {"name": name, "namespace": "default", "uid": name}
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def cluster_of(setup: Setup, nodes: int) -> Cluster:
    """Nodes with two pods each."""
    kinds = {kind.definition.kind: kind for kind in watched_kinds([Registry.installed().find(setup.plugin)])}
    found: list[Any] = [object_of(node(number)) for number in range(nodes)]
    for number in range(2 * nodes):
        made = pod(f"running-{number}", number)
        setup.dress(made, number)
        made["spec"]["nodeName"] = f"node-{number % nodes}"
        made["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        found.append(object_of(made))
    return Cluster.of([*found, *(decode(kinds[each["kind"]], each) for each in setup.objects(nodes))])


# Custom resources


def numa_topologies(nodes: int) -> Iterator[Json]:
    draw = random.Random(1)
    for number in range(nodes):
        zones = []
        for place in range(NUMA_NODES):
            amounts = {"cpu": (16, draw.randint(4, 16)), "memory": (64 * GI, draw.randint(8, 64) * GI)}
            resources = [
                {"name": name, "capacity": str(size), "allocatable": str(size), "available": str(left)}
                for name, (size, left) in amounts.items()
            ]
            costs = [
                {"name": f"node-{other}", "value": 10 + 5 * abs(other - place)} for other in range(NUMA_NODES)
            ]
            zones.append({"name": f"node-{place}", "type": "Node", "resources": resources, "costs": costs})
        attributes = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
        meta = {"name": f"node-{number}"}
        yield {"kind": "NodeResourceTopology", "metadata": meta, "zones": zones, "attributes": attributes}


def workload(name: str) -> Json:
    return {"kind": "Deployment", "name": name, "selector": name, "apiVersion": "apps/v1"}


def network(nodes: int) -> Iterator[Json]:
    """An application of three workloads, of which one talks to the others; regions and zones at a cost."""
    needs = [{"workload": workload(name), "maxNetworkCost": 25} for name in ("w1", "w2")]
    workloads = [{"workload": workload("w0"), "dependencies": needs}]
    workloads += [{"workload": workload(name)} for name in ("w1", "w2")]
    meta = {"name": "app", "namespace": "default"}
    spec = {"numMembers": 3, "topologySortingAlgorithm": "KahnSort", "workloads": workloads}
    yield {"kind": "AppGroup", "metadata": meta, "spec": spec}

    def costs(key: str, letter: str, count: int) -> Json:
        names = [f"{letter}{number}" for number in range(count)]
        origins = [
            {
                "origin": name,
                "costList": [
                    {"destination": other, "networkCost": 1 + abs(place - number)}
                    for number, other in enumerate(names)
                    if other != name
                ],
            }
            for place, name in enumerate(names)
        ]
        return {"topologyKey": key, "originList": origins}

    lists = [costs(REGION, "r", REGIONS), costs(ZONE, "z", ZONES)]
    meta = {"name": "costs", "namespace": "default"}
    spec = {"weights": [{"name": "UserDefined", "topologyList": lists}]}
    yield {"kind": "NetworkTopology", "metadata": meta, "spec": spec}


def join_application(made: Json, number: int) -> None:
    """Pending pods are of w0; every fifth one that runs is of w1 or w2."""
    name = made["metadata"]["name"]
    if name.startswith("pending") or number % 5 == 0:
        member = "w0" if name.startswith("pending") else f"w{1 + number % 2}"
        made["metadata"]["labels"] = {APP_GROUP: "app", f"{APP_GROUP}.workload": member}


def profiles(nodes: int) -> Iterator[Json]:
    draw, calls = random.Random(1), [f"call{number}" for number in range(300)]
    for number in range(20):
        meta = {"name": f"p{number}", "namespace": "default"}
        rules = [{"action": "SCMP_ACT_ALLOW", "names": draw.sample(calls, 80)}]
        yield {"kind": "SeccompProfile", "metadata": meta, "spec": {"syscalls": rules}}


def confine(made: Json, number: int) -> None:
    profile = {"type": "Localhost", "localhostProfile": f"operator/default/p{number % 20}.json"}
    made["spec"]["securityContext"] = {"seccompProfile": profile}


def quotas(nodes: int) -> Iterator[Json]:
    for number in range(QUOTAS):
        spec = {"min": {"cpu": "100", "memory": "400Gi"}, "max": {"cpu": "2000", "memory": "8Ti"}}
        meta = {"name": "quota", "namespace": f"ns-{number}"}
        yield {"kind": "ElasticQuota", "metadata": meta, "spec": spec}


def spread_over_namespaces(made: Json, number: int) -> None:
    made["metadata"]["namespace"] = f"ns-{number % QUOTAS}"


def share_gpus(made: Json, number: int) -> None:
    made["metadata"]["annotations"] = {GPU_MILLI: str(100 + number % 9 * 100)}


def vary_cpus(made: Json, number: int) -> None:
    """For plugins that score by CPU alone."""
    for amounts in made["spec"]["containers"][0]["resources"].values():
        amounts["cpu"] = f"{1000 + number}m"


# Metrics


def load_metrics(nodes: int) -> str:
    draw, now = random.Random(1), int(time.time())
    found = {}
    for number in range(nodes):
        found[f"node-{number}"] = {
            "metrics": [
                {
                    "type": kind,
                    "operator": operator,
                    "rollup": "15m",
                    "value": round(draw.uniform(0, most), 2),
                }
                for kind in ("CPU", "Memory")
                for operator, most in (("AVG", 70), ("STD", 20))
            ]
        }
    window = {"duration": "15m", "start": now - 900, "end": now}
    return json.dumps({"timestamp": now, "window": window, "data": {"NodeMetricsMap": found}})


def serve_metrics(body: str) -> ThreadingHTTPServer:
    class LoadWatcher(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), LoadWatcher)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def read_metrics(name: str) -> Callable[[Planner], None]:
    """Let the plugin read its metrics once, if it reads any."""

    async def read(plugin: Any) -> None:
        task = asyncio.create_task(plugin.run())
        async with asyncio.timeout(60):
            while not plugin.source.reading:
                await asyncio.sleep(0.01)
        task.cancel()

    def prepare(planner: Planner) -> None:
        (profile,) = planner.profiles.values()
        plugin: Any = profile.plugins[name]
        if hasattr(plugin, "source"):
            asyncio.run(read(plugin))

    return prepare


def setups(nodes: int, watcher: str) -> list[Setup]:
    numa = "NodeResourceTopologyMatch"
    strategies = ("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")
    by_label = {"metadataKey": "rank", "metadataSource": "Label"}
    by_label |= {"metadataType": "Number", "scoringStrategy": "Highest"}
    load = {"watcherAddress": watcher}
    models = {f"node-{number}": {"k0": 100, "k1": 50, "k2": 0.01} for number in range(nodes)}
    topology = {"weightsName": "UserDefined", "networkTopologyName": "costs"}
    return [
        Setup("NodeResourcesAllocatable"),
        Setup("NodeMetadata", by_label),
        Setup("PodState"),
        *(
            Setup(numa, {"scoringStrategy": {"type": each}}, numa_topologies, says=each)
            for each in strategies
        ),
        Setup("TargetLoadPacking", load, dress=vary_cpus),
        Setup("LoadVariationRiskBalancing", load),
        Setup("LowRiskOverCommitment", load),
        Setup("Peaks", {"WatcherAddress": watcher, "NodePowerModel": models}, dress=vary_cpus),
        Setup("NetworkOverhead", topology, network, join_application),
        Setup("SySched", {}, profiles, confine),
        Setup("FragmentationGradientDescent", {}, dress=share_gpus),
        Setup("CapacityScheduling", {}, quotas, spread_over_namespaces),
    ]


@click.command()
@click.option("--nodes", default=5000, show_default=True, help="Number of nodes.")
@click.option("--count", default=100, show_default=True, help="Number of decisions to measure.")
@click.option("--plugin", "names", multiple=True, help="Measure only this plugin. Repeatable.")
def main(nodes: int, count: int, names: tuple[str, ...]) -> None:
    """Print the CPU time that each plugin adds to a decision, and the time of its methods, in µs (median).

    A percentage says how many decisions call a method, if it is not called in all of them.
    """
    server = serve_metrics(load_metrics(nodes))
    click.echo(f"{'plugin':48}{'added':>8}  methods")
    for setup in setups(nodes, f"http://127.0.0.1:{server.server_port}"):
        if names and setup.plugin not in names:
            continue
        pods = [pod(f"pending-{number}", number) for number in range(2 * (count + WARM_UP))]
        for number, each in enumerate(pods):
            setup.dress(each, number)
        plugin = Registry.installed().find(setup.plugin)
        made: list[Any] = [object_of(each) for each in pods]
        found = cost_among(
            cluster_of(setup, nodes), made, plugin, setup.args, prepare=read_metrics(setup.plugin)
        )
        methods = [
            f"{each.method} {each.p50:,.0f}" + (f" ({each.calls:.0%})" if each.calls < 0.95 else "")
            for each in found.methods
            if each.method in SHOWN
        ]
        title = f"{setup.plugin} {setup.says}".strip()
        click.echo(f"{title:48}{found.added:>8,.0f}  {', '.join(methods)}")
    server.shutdown()


if __name__ == "__main__":
    main()
