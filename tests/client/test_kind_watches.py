"""Watches of the kinds that plugins ask for, which the API server need not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from api_server import ScriptedServer, event, page, refusal, until, watch
from api_server import end as end_of_watch

from stowplan import CustomResource, Definition, Wire
from stowplan.client.api import ApiClient
from stowplan.cluster import Cluster
from stowplan.scheduler.follower import KindWatches

NOT_FOUND = refusal(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = refusal(403, "Forbidden", 'racks.example.com is forbidden: User "s" cannot list resource "racks"')


class RackSpec(Wire, frozen=True):
    row: int = 0


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)
    spec: RackSpec = RackSpec()


class Shelf(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "shelves", "Shelf")


def rack(name: str, version: int, row: int = 0) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"row": row}}


class Watching:
    def __init__(self, api: ApiClient) -> None:
        self.cluster, self.told, self.served = Cluster(), [], 0
        self.watches = KindWatches(
            api, self.cluster, on_event=self._hear, on_served=self._count, missing=(0.01, 0.02)
        )

    def _hear(self, kind: str, old: Any, new: Any) -> None:
        self.told.append(f"{kind} {(new or old).name}")
        if new is None:
            self.cluster.remove(old)
        else:
            self.cluster.apply(new)

    def _count(self) -> None:
        self.served += 1

    @property
    def racks(self) -> dict[str, int]:
        return {each.name: each.spec.row for each in self.cluster.watched(Rack)}

    @property
    def is_served(self) -> bool:
        return self.cluster.watched(Rack).is_served


@asynccontextmanager
async def watching(api: ApiClient, *kinds: type[CustomResource]) -> AsyncIterator[Watching]:
    found = Watching(api)
    found.watches.watch(kinds)
    task = asyncio.create_task(found.watches.run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_objects_are_there_as_structs_and_follow_changes(server: ScriptedServer, api: ApiClient):
    server.lists = [page(rack("a", 5, row=1), version=10)]
    server.watches = [watch(event("MODIFIED", rack("a", 11, row=2)), event("ADDED", rack("b", 12)))]
    async with watching(api, Rack) as found:
        assert not found.is_served
        await asyncio.wait_for(found.watches.sync(), 5)
        assert found.is_served
        await until(lambda: found.racks == {"a": 2, "b": 0})
    assert server.listed[0].path == "/apis/example.com/v1/racks"


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        pytest.param(
            NOT_FOUND,
            "install its CustomResourceDefinition: stowplan crd test_kind_watches:Rack | kubectl apply -f -",
            id="not installed",
        ),
        pytest.param(
            FORBIDDEN,
            "give this account the verbs get, list and watch of racks in the API group 'example.com'",
            id="forbidden",
        ),
    ],
)
async def test_a_missing_kind_is_named_once_and_used_once_it_is_there(server, api, caplog, answer, advice):
    server.lists = [answer, answer, answer, page(rack("a", 5), version=10)]
    async with watching(api, Rack) as found:
        await asyncio.wait_for(found.watches.sync(), 5)
        assert (found.is_served, found.racks) == (False, {})
        await until(lambda: found.is_served)
        assert (list(found.racks), found.served) == (["a"], 1)
    (said,) = [record.fields for record in caplog.records if record.message.startswith("Kind is not served")]
    assert (said["kind"], said["resource"]) == ("Rack", "racks.example.com/v1")
    assert said["advice"] == advice


@pytest.mark.parametrize(
    "answer", [pytest.param(NOT_FOUND, id="deleted"), pytest.param(FORBIDDEN, id="forbidden")]
)
async def test_the_objects_of_a_kind_that_goes_away_go_too(server, api, answer):
    server.lists = [page(rack("a", 5), rack("b", 6), version=10), page(rack("c", 20), version=21)]
    server.watches = [watch(then=end_of_watch), answer, answer]
    async with watching(api, Rack) as found:
        await until(lambda: list(found.racks) == ["c"])
        assert sorted(found.told[2:4]) == ["deleted a", "deleted b"]
        assert (found.is_served, found.served) == (True, 2)


async def test_a_kind_that_is_missing_for_a_moment_keeps_its_objects(server, api):
    server.lists = [page(rack("a", 5), version=10)]
    server.watches = [NOT_FOUND, watch(event("ADDED", rack("b", 11)))]
    async with watching(api, Rack) as found:
        await until(lambda: list(found.racks) == ["a", "b"])
        assert found.told == ["added a", "added b"]
        assert found.is_served


async def test_without_the_kind_there_is_none_of_it(server, api):
    server.lists = [page(rack("a", 5), version=10), *[NOT_FOUND] * 100]
    server.watches = [NOT_FOUND, NOT_FOUND]
    async with watching(api, Rack) as found:
        await until(lambda: found.told == ["added a", "deleted a"])
        assert (found.is_served, found.racks) == (False, {})


async def test_a_kind_that_fails_on_the_server_keeps_nobody_waiting(server, api):
    server.lists = [refusal(500, "InternalError", "conversion webhook failed")] * 20
    async with watching(api, Rack) as found:
        await asyncio.wait_for(found.watches.sync(), 5)
        assert not found.is_served


async def test_watches_start_and_end_while_running(server, api):
    server.lists = [page(rack("a", 5), version=10), page(version=11), page(rack("b", 12), version=13)]
    async with watching(api, Rack) as found:
        await until(lambda: len(server.watched) == 1)
        found.watches.watch([Shelf])
        await until(lambda: len(server.watched) == 2)
        assert server.watched[1].path == "/apis/example.com/v1/shelves"
        assert list(found.racks) == ["a"], "decisions under way still see what was known"
        found.watches.watch([Shelf, Rack])
        assert (found.is_served, found.racks) == (False, {})
        await until(lambda: list(found.racks) == ["b"])
        found.watches.watch([])
        found.watches.watch([])
        assert found.racks == {}
    assert [asked.path.rpartition("/")[2] for asked in server.listed] == ["racks", "shelves", "racks"]
