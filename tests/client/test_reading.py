"""A cluster read once, in pages, from a server that may lack kinds, be slow or hold what cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from aiohttp import web
from api_server import ScriptedServer, node, page, refusal

from stowplan import CustomResource, Definition
from stowplan.client.api import RESOURCES, ApiClient
from stowplan.client.errors import ApiError, Forbidden, Gone
from stowplan.client.watch import PRIORITY_CLASSES, pages, read_cluster, read_workload

NOTHING = page(version=1)
MISSING = refusal(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = refusal(403, "Forbidden", "not for you")
EXPIRED = refusal(410, "Expired", "The provided continue parameter is too old")


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)


class OtherRack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.org", "v1", "racks", "Rack", namespaced=False)


def pod(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, **fields}


@pytest.fixture
def answering(server: ScriptedServer):
    """Answers lists by the plural that ends their path, the steps of each in order; others are empty."""

    def script(**steps):
        async def step(request: web.Request) -> web.StreamResponse:
            left = steps.get(request.path.rpartition("/")[2])
            return await (left.pop(0) if left else NOTHING)(request)

        server.lists = [step] * 100

    return script


async def test_reads_every_kind_that_a_scheduler_watches_and_writes_nothing(server, api, answering):
    answering(nodes=[page(node("n1", 1), version=5)], pods=[page(pod("p"), version=5)])
    heard = []
    found = await read_cluster(api, on_object=heard.append)
    assert [each.key for each in found.objects] == ["n1", "default/p"]
    assert {each.key for each in heard} == {"n1", "default/p"}
    assert not found.is_torn
    assert {asked.path for asked in server.asked} == {
        resource.path for resource in (*RESOURCES, PRIORITY_CLASSES)
    }
    assert {(asked.method, asked.query["limit"]) for asked in server.asked} == {("GET", "500")}
    (asked,) = [asked for asked in server.asked if asked.path.endswith("/pods")]
    assert asked.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_the_next_page_is_requested_before_one_is_decoded(server, api, answering):
    answering(nodes=[page(node("n1", 1), version=5, more="next"), page(node("n2", 2), version=5)])
    nodes = RESOURCES[1]
    async for _ in pages(api, nodes, 1):
        async with asyncio.timeout(5):
            while len(server.asked) < 2:
                await asyncio.sleep(0.01)
    assert [asked.query.get("continue") for asked in server.asked] == [None, "next"]


async def test_follows_pages(server, api, answering):
    answering(nodes=[page(node("n1", 1), version=5, more="there"), page(node("n2", 2), version=5)])
    found = await read_cluster(api)
    assert [each.key for each in found.objects] == ["n1", "n2"]
    assert [asked.query.get("continue") for asked in server.asked if asked.path.endswith("/nodes")] == [
        None,
        "there",
    ]


async def test_starts_over_when_a_page_is_too_old(api, answering):
    first = page(node("n1", 1), version=5, more="there")
    answering(nodes=[first, EXPIRED, first, page(node("n2", 2), version=6)])
    heard = []
    found = await read_cluster(api, on_object=heard.append)
    assert [each.key for each in found.objects] == ["n1", "n2"]
    assert found.is_torn
    assert [each.key for each in heard] == ["n1", "n1", "n2"]


async def test_gives_up_when_pages_are_always_too_old(api, answering):
    answering(nodes=[EXPIRED] * 3)
    with pytest.raises(Gone, match="too old"):
        await read_cluster(api)


@pytest.mark.parametrize("answer", [MISSING, FORBIDDEN], ids=["not served", "not allowed"])
async def test_does_without_a_kind_that_is_not_there(api, answering, answer):
    answering(nodes=[page(node("n1", 1), version=5)], resourceslices=[answer], racks=[answer])
    found = await read_cluster(api, [Rack])
    assert [each.key for each in found.objects] == ["n1"]
    assert set(found.missing) == {"resourceslices", "racks"}
    assert found.unserved == [Rack]


async def test_reads_the_kinds_of_plugins(api, answering):
    answering(racks=[page({"metadata": {"name": "r1"}}, version=1)])
    found = await read_cluster(api, [Rack])
    assert [(type(each), each.key) for each in found.objects] == [(Rack, "r1")]
    assert found.unserved == []


async def test_kinds_of_two_groups_may_have_the_same_plural(server, api):
    async def step(request: web.Request) -> web.StreamResponse:
        return await (MISSING if "example.com" in request.path else NOTHING)(request)

    server.lists = [step] * 100
    found = await read_cluster(api, [Rack, OtherRack])
    assert found.unserved == [Rack]


@pytest.mark.parametrize("plural", ["nodes", "pods"])
async def test_is_an_error_without_nodes_or_pods(api, answering, plural):
    answering(**{plural: [FORBIDDEN]})
    with pytest.raises(Forbidden, match="not for you"):
        await read_cluster(api)


async def test_tells_of_what_cannot_be_read_and_goes_on(api, answering):
    wrong = pod("bad", spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]})
    answering(pods=[page(wrong, pod("good"), version=1)])
    found = await read_cluster(api)
    assert [each.key for each in found.objects] == ["default/good"]
    (fault,) = found.faults
    assert str(fault).startswith("Pod default/bad: spec.containers[0].resources.requests.cpu: 'lots' is not")


async def test_a_server_that_is_none_is_an_error(server, api: ApiClient):
    async def page_of_html(request):
        return web.Response(text="<html>", content_type="text/html")

    server.lists = [page_of_html] * 100
    with pytest.raises(ApiError, match="unexpected response from the API server"):
        await read_cluster(api)


async def test_reads_a_workload_by_its_kind(server, api):
    server.answers = [page(version=1), MISSING]
    assert await read_workload(api, "Deployment", "shop", "web") is not None
    assert await read_workload(api, "Job", "shop", "no/such") is None
    assert [asked.path for asked in server.asked] == [
        "/apis/apps/v1/namespaces/shop/deployments/web",
        "/apis/batch/v1/namespaces/shop/jobs/no/such",
    ]
