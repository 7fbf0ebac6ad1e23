"""Reads a live cluster, to copy it into this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from stowplan.api.custom import CustomResource
from stowplan.api.meta import Json, Object, decode
from stowplan.client.api import RESOURCES, ApiClient, WatchedResource, custom
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError, Forbidden, NotFound
from stowplan.client.watch import ESSENTIAL, PRIORITY_CLASSES, WORKLOADS, pages
from stowplan.errors import StowplanError

READS_A_SECOND = 500
LEFT_OUT = (*WORKLOADS, "VolumeAttachment")
"""The pods of workloads come as they are; a controller would only make them a second time."""


class Looked(msgspec.Struct):
    objects: list[Json]
    missing: dict[str, ApiError]
    """Collections that the server does not have, or does not let us read."""


async def look_at(connection: Connection, kinds: Sequence[type[CustomResource]] = ()) -> Looked:
    """All that concerns scheduling, as the server wrote it; `kinds` are those that plugins watch besides."""
    definitions = [_definition(kind) for kind in kinds]
    known = (*RESOURCES, PRIORITY_CLASSES, *definitions, *map(custom, kinds))
    wanted = [each for each in known if each.kind not in LEFT_OUT]
    looked = Looked([], {})
    async with ApiClient(
        connection, qps=READS_A_SECOND, burst=READS_A_SECOND, user_agent="stowplan/up"
    ) as api:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(_read(api, each, looked.missing)) for each in wanted]
        except* StowplanError as failures:
            raise failures.exceptions[0] from None
    for task in asked:
        looked.objects += task.result()
    return looked


def _definition(kind: type[CustomResource]) -> WatchedResource:
    name = f"{kind.definition.plural}.{kind.definition.group}"
    return WatchedResource(
        kind="CustomResourceDefinition",
        path="/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        decode=partial(decode, Object),
        namespaced=False,
        field_selector=f"metadata.name={name}",
    )


async def _read(api: ApiClient, resource: WatchedResource, missing: dict[str, ApiError]) -> list[Json]:
    group_version = resource.path.rpartition("/")[0].removeprefix("/apis/").removeprefix("/api/")
    kind = {"apiVersion": group_version, "kind": resource.kind}
    try:
        return [
            {**kind, **msgspec.json.decode(raw)}
            async for page in pages(api, resource)
            for raw in page.items or ()
        ]
    except (NotFound, Forbidden) as error:
        if resource.kind in ESSENTIAL:
            raise
        missing[resource.name] = error
        return []
