"""What holds for every collection, whichever code was first to ask for it."""

from __future__ import annotations

import asyncio

import pytest

from stowplan.apiserver import ApiServer, Request

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "stars.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "stars", "kind": "Star"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


@pytest.mark.parametrize(("name", "found"), [("stars.example.com", 1), ("moons.example.com", 0)])
async def test_definitions_can_be_selected_by_name(name, found):
    server, path = ApiServer(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await server.handle(Request.of("POST", path, DEFINITION))
    answer = await server.handle(Request.of("GET", f"{path}?fieldSelector=metadata.name%3D{name}"))
    assert len(answer.json()["items"]) == found


async def test_a_reader_that_goes_away_as_something_happens_is_gone():
    """Python 3.11's wait_for takes such a cancellation for a change, and the watch would go on for ever."""
    server, path = ApiServer(), "/api/v1/namespaces"
    stream = await server.handle(Request.of("GET", f"{path}?watch=true"))

    async def read():
        async for _ in stream.chunks:
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    await server.handle(Request.of("POST", path, {"metadata": {"name": "new"}}))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(reading, 1)
