"""Who may have a ResourceClaim's devices: the controller must not undo what a scheduler is about to write."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from stowplan.apiserver import ApiServer
from stowplan.client.api import ApiClient
from stowplan.client.errors import NotFound
from stowplan.controllers.clock import Clock
from stowplan.controllers.pod_claims import HELD, ClaimHolders
from stowplan.controllers.stores import Stores
from stowplan.embedded.pool import InProcess

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
HOLDER = {"resource": "pods", "name": "gone", "uid": "1"}
RESULT = {"request": "gpu", "driver": "d", "pool": "p", "device": "g0"}


@asynccontextmanager
async def holders():
    async with ApiClient(InProcess(ApiServer()), qps=0) as api:
        stores = Stores(api, Clock())
        controller = ClaimHolders(stores)
        work = [asyncio.create_task(each.run()) for each in (stores, controller)]
        yield api
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def create_claim(api, name, **status):
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    meta = {"name": name, "finalizers": [HELD]}
    claim = {"metadata": meta, "spec": {"devices": {"requests": [request]}}}
    await api.request("POST", CLAIMS, claim)
    if status:
        made = await api.get_json(f"{CLAIMS}/{name}")
        await api.request("PUT", f"{CLAIMS}/{name}/status", made | {"status": status})


async def finalizers(api, name):
    return (await api.get_json(f"{CLAIMS}/{name}"))["metadata"].get("finalizers", [])


async def until_released(api, name):
    for _ in range(200):
        if not await finalizers(api, name):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{name} is still protected")


async def test_leaves_a_claim_alone_whose_allocation_is_about_to_be_written():
    async with holders() as api:
        await create_claim(api, "new")  # a scheduler writes the finalizer first, then the status
        status = {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [HOLDER]}
        await create_claim(api, "old", **status)
        await until_released(api, "old")  # its pod does not exist, so both were looked at by now
        assert await finalizers(api, "new") == [HELD]


async def test_releases_a_deleted_claim_that_nobody_has():
    async with holders() as api:
        await create_claim(api, "new")
        await api.request("DELETE", f"{CLAIMS}/new")
        with pytest.raises(NotFound):
            await until_released(api, "new")
