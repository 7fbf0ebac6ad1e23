"""Simulated nodes for a cluster that has none: `python nodes.py KUBECONFIG NODES`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.controllers.clock import Clock
from stowplan.kubelet import SimulatedKubelets, read_templates


async def main(path: Path, nodes: str) -> None:
    async with ApiClient(kubeconfig.load(path), qps=0, user_agent="kubelet") as api:
        kubelets = SimulatedKubelets(api, clock=Clock())
        for template in read_templates(nodes):
            await kubelets.add(template.nodes(kubelets.clock.now()))
        await kubelets.run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
