"""What a person does to nodes: cordon, uncordon, drain. Killing is for SimulatedKubelets."""

from __future__ import annotations

import asyncio

import msgspec

from stowplan.api.meta import Json
from stowplan.client.api import MERGE_PATCH, ApiClient
from stowplan.client.errors import NotFound, TooMany

RETRY_SECONDS = 1.0


async def cordon(api: ApiClient, node: str, *, unschedulable: bool = True) -> None:
    patch = {"spec": {"unschedulable": unschedulable or None}}
    await api.request("PATCH", f"/api/v1/nodes/{node}", patch, content_type=MERGE_PATCH)


async def uncordon(api: ApiClient, node: str) -> None:
    await cordon(api, node, unschedulable=False)


async def drain(api: ApiClient, node: str) -> None:
    """Cordons the node and evicts its pods, those of DaemonSets excepted; waits for budgets to allow it."""
    await cordon(api, node)
    answer = await api.request("GET", "/api/v1/pods", query={"fieldSelector": f"spec.nodeName={node}"})
    pods = [pod for pod in msgspec.json.decode(answer.data)["items"] if not _is_daemon(pod)]
    async with asyncio.TaskGroup() as group:
        for pod in pods:
            group.create_task(_evict(api, pod["metadata"]))


async def _evict(api: ApiClient, meta: Json) -> None:
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    names = {"name": meta["name"], "namespace": meta["namespace"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": names}
    try:
        while True:
            try:
                await api.request("POST", f"{path}/eviction", body)
                break
            except TooMany:
                await asyncio.sleep(RETRY_SECONDS)
        while (await api.get_json(path))["metadata"]["uid"] == meta["uid"]:
            await asyncio.sleep(RETRY_SECONDS / 5)
    except NotFound:
        return


def _is_daemon(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(each["kind"] == "DaemonSet" and each.get("controller") for each in owners)
