"""Pods that have ended do not pile up."""

from __future__ import annotations

import asyncio

from stowplan.apiserver import ApiServer
from stowplan.client.api import MERGE_PATCH, ApiClient
from stowplan.controllers.clock import Clock
from stowplan.controllers.garbage import PodCollector
from stowplan.controllers.stores import Stores
from stowplan.embedded.pool import InProcess

PODS = "/api/v1/namespaces/default/pods"


async def test_of_many_pods_that_have_ended_the_last_are_kept():
    async with ApiClient(InProcess(ApiServer()), qps=0) as api:
        stores = Stores(api, Clock())
        collector = PodCollector(stores, most_ended=2)
        work = [asyncio.create_task(each.run()) for each in (stores, collector)]
        for number in range(5):
            await end_a_pod(api, f"p{number}")
        names = []
        for _ in range(200):
            names = [item["metadata"]["name"] for item in (await api.get_json(PODS))["items"]]
            if len(names) == 2:
                break
            await asyncio.sleep(0.02)
        assert names == ["p3", "p4"]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def end_a_pod(api, name):
    spec = {"containers": [{"name": "c", "image": "web"}], "restartPolicy": "Never"}
    await api.request("POST", PODS, {"metadata": {"name": name}, "spec": spec})
    ended = {"status": {"phase": "Succeeded"}}
    await api.request("PATCH", f"{PODS}/{name}/status", ended, content_type=MERGE_PATCH)
    await asyncio.sleep(0.02)
