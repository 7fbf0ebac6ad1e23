"""The embedded cluster: how many pods a second are created, scheduled and bound, and how fast it is ready.

    python benchmarks/embedded.py [--nodes 5000] [--pods 5000] [--whole]

API server and scheduler share this process and its one thread, without sockets. With --whole the simulated
nodes and the controllers run as well, so that every pod also starts.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time

from stowplan.apiserver import ApiServer
from stowplan.client.api import ApiClient
from stowplan.config import load
from stowplan.config.types import V1
from stowplan.controllers.clock import Clock
from stowplan.controllers.running import Controllers
from stowplan.embedded import InProcess, NodeTemplate
from stowplan.framework.registry import Registry
from stowplan.kubelet import SimulatedKubelets
from stowplan.scheduler.scheduler import Scheduler, Settings

PODS = "/api/v1/namespaces/default/pods"
ROUNDS = 3


async def main(nodes: int, pods: int, whole: bool) -> None:
    began = time.perf_counter()
    server = ApiServer()
    connection, clock, registry = InProcess(server), Clock(), Registry.installed()
    async with (
        ApiClient(connection, qps=0) as api,
        ApiClient(connection, qps=0) as events,
        ApiClient(connection, qps=0) as others,
    ):
        kubelets = SimulatedKubelets(others, clock=clock)
        await kubelets.add(NodeTemplate(count=nodes, cpu=64, zones=("a", "b", "c")).nodes(clock.now()))
        config = load({"apiVersion": V1, "kind": "KubeSchedulerConfiguration"}, registry).config
        scheduler = Scheduler(config, api, events, Settings(owns_process=True, registry=registry))
        scheduler.start()
        work = [scheduler.run()]
        if whole:
            work += [kubelets.run(), Controllers(others, clock).run()]
        tasks = [asyncio.create_task(each) for each in work]
        while not scheduler.is_synced:
            await asyncio.sleep(0.005)
        print(f"{nodes} nodes: ready in {time.perf_counter() - began:.2f} s")
        for number in range(1, ROUNDS + 1):
            await measure(others, scheduler, number, pods)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(api: ApiClient, scheduler: Scheduler, number: int, pods: int) -> None:
    began, used = time.perf_counter(), time.process_time()
    for index in range(pods):
        await api.request("POST", PODS, pod(f"web-{number}-{index}"))
    while scheduler.cluster.assumed_count or len(scheduler.cluster.nodes.pods) < number * pods:
        await asyncio.sleep(0.002)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{pods} pods bound in {seconds:.2f} s: {pods / seconds:,.0f}/s; {cpu / pods * 1e6:,.0f} µs of CPU a "
        f"pod, enough for {pods / cpu:,.0f}/s on a core of its own; {memory} MB at most"
    )


def pod(name: str) -> dict:
    requests = {"cpu": "100m", "memory": "100Mi"}
    container = {"name": "main", "image": "pause:3.10", "resources": {"requests": requests}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [container]},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.nodes, given.pods, given.whole))
