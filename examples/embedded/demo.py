"""A cluster in this process, pods of all sorts on it, where each landed and why.

Ties are drawn with the seed that is its argument. The same cluster to play with, from this folder:

    stowplan up --nodes nodes.yaml --config scheduler.yaml -f workloads.yaml
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from stowplan.embedded import EmbeddedCluster, embedded_cluster
from stowplan.kubelet import read_templates

HERE = Path(__file__).parent
EXAMPLES = HERE.parent
CRD = EXAMPLES / "node-crd-resource-fit"


def objects_in(*files: Path) -> list[dict[str, Any]]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


async def main(seed: int) -> None:
    began = time.perf_counter()
    async with embedded_cluster(
        read_templates(str(HERE / "nodes.yaml")),
        config=HERE / "scheduler.yaml",
        manifests=objects_in(CRD / "crd.yaml", CRD / "resources.yaml"),
        seed=seed,
    ) as cluster:
        nodes = await cluster.list("Node")
        seconds = time.perf_counter() - began
        print(f"A cluster of {len(nodes)} nodes in this process, ready in {seconds:.1f} s.")
        label = EXAMPLES / "score-by-label"
        await cluster.apply(*objects_in(HERE / "workloads.yaml", label / "testpod.yaml", CRD / "pod.yaml"))
        await cluster.rejected("warehouse")
        await cluster.until(lambda: all_run(cluster), "all other pods run")
        await show_table(cluster)
        web = min(each["metadata"]["name"] for each in await cluster.list("Pod") if is_web(each))
        for pod in (web, "trainer", "testpod", "nginx", "warehouse"):
            print(f"\n{'─' * 100}\n\n{cluster.explain(pod)}")


async def all_run(cluster: EmbeddedCluster) -> bool:
    phases = [each["status"]["phase"] for each in await cluster.list("Pod")]
    return phases.count("Running") == 7


def is_web(pod: dict[str, Any]) -> bool:
    return pod["metadata"].get("labels", {}).get("app") == "web"


async def show_table(cluster: EmbeddedCluster) -> None:
    print(f"\n{'POD':24}{'SCHEDULER':22}{'NODE':10}PHASE")
    for pod in await cluster.list("Pod"):
        spec = pod["spec"]
        name, node = pod["metadata"]["name"], spec.get("nodeName", "-")
        print(f"{name:24}{spec['schedulerName']:22}{node:10}{pod['status']['phase']}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
