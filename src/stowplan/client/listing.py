"""The cluster as it is at this moment: all that a scheduler looks at, listed once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from stowplan.client.api import ApiClient
from stowplan.client.errors import NotFound
from stowplan.client.resources import RESOURCES, Watched, WatchedResource
from stowplan.cluster import Cluster

PAGE = 500


class _Meta(msgspec.Struct):
    next_page: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


async def list_cluster(api: ApiClient, resources: Iterable[WatchedResource] = RESOURCES) -> Cluster:
    """Kinds that the API server does not have count as empty."""
    found = await asyncio.gather(*(_all(api, resource) for resource in resources))
    return Cluster.of(item for items in found for item in items)


async def _all(api: ApiClient, resource: WatchedResource) -> list[Watched]:
    query, found = {"limit": str(PAGE)}, []
    if resource.field_selector:
        query["fieldSelector"] = resource.field_selector
    while True:
        try:
            answer = await api.request("GET", resource.path, query=query)
        except NotFound:
            return []
        page = msgspec.json.decode(answer.data, type=_Page)
        found += [resource.decode(raw) for raw in page.items or ()]
        if not page.metadata.next_page:
            return found
        query["continue"] = page.metadata.next_page
