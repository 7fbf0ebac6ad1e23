"""Declared kinds over the wire: server-side apply, watches by label, events about them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from api_server import ScriptedServer, answer, page, protobuf_status, until

from stowplan.api.custom import CustomResource, Definition
from stowplan.api.meta import ObjectMeta, Wire
from stowplan.client.api import ApiClient, custom
from stowplan.client.connection import Connection
from stowplan.client.events import EventRecorder
from stowplan.client.watch import Reflector


class Size(Wire, frozen=True):
    width: int = 1
    height: int = 1


class Box(CustomResource, frozen=True):
    definition = Definition("example.com", "v1", "boxes", "Box", label_selector="shape=square")
    status: Size = Size()


class Shelf(CustomResource, frozen=True):
    definition = Definition("example.com", "v1", "shelves", "Shelf", namespaced=False)


BOX = Box(metadata=ObjectMeta(name="b", namespace="a", uid="u"), status=Size(width=3))


@pytest.mark.parametrize(
    ("subresource", "path"),
    [
        pytest.param("", "/apis/example.com/v1/namespaces/a/boxes/b", id="the object"),
        pytest.param("status", "/apis/example.com/v1/namespaces/a/boxes/b/status", id="its status"),
    ],
)
async def test_apply_sends_what_is_not_at_its_default(
    server: ScriptedServer, api: ApiClient, subresource, path
):
    server.answers = [answer({"metadata": {"name": "b", "namespace": "a", "resourceVersion": "8"}})]
    applied = await api.apply(BOX, field_manager="me", subresource=subresource)
    assert applied.metadata.resource_version == "8"
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.query) == ("PATCH", path, {"fieldManager": "me", "force": "true"})
    assert asked.headers["Content-Type"] == "application/apply-patch+yaml"
    assert asked.body == {
        "apiVersion": "example.com/v1",
        "kind": "Box",
        "metadata": {"name": "b", "namespace": "a", "uid": "u"},
        "status": {"width": 3},
    }


async def test_only_labelled_objects_are_watched(server: ScriptedServer, api: ApiClient):
    server.lists = [page(version=5)]
    running = asyncio.create_task(Reflector(api, custom(Box), on_event=lambda *told: None).run())
    await until(lambda: len(server.asked) == 2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert {asked.query["labelSelector"] for asked in server.asked} == {"shape=square"}


@pytest.mark.parametrize(
    ("item", "namespace", "kind"),
    [
        pytest.param(BOX, "a", "Box", id="in a namespace"),
        pytest.param(Shelf(metadata=ObjectMeta(name="s", uid="v")), "default", "Shelf", id="of the cluster"),
    ],
)
async def test_events_regard_any_object(server: ScriptedServer, api: ApiClient, item, namespace, kind):
    server.answers = [answer({}, 201)]
    recorder = EventRecorder(api, "me", "me-1", lambda: 1_800_000_000.0)
    running = asyncio.create_task(recorder.run())
    recorder.record(item, "Normal", "Opened", "Opening", "it is open")
    assert await recorder.drain(5)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    (asked,) = server.asked
    assert asked.path == f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    regarding = asked.body["regarding"]
    assert (regarding["kind"], regarding["apiVersion"], regarding["name"], regarding["uid"]) == (
        kind,
        "example.com/v1",
        item.name,
        item.metadata.uid,
    )


async def test_events_are_the_same_in_protobuf(server: ScriptedServer):
    server.answers = [protobuf_status(201) for _ in range(3)]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        for note in ("it is open", "it is open", "ü" * 300):
            recorder = EventRecorder(api, "me", "me-1", lambda: 1_800_000_000.123456)
            recorder.record(BOX, "Normal", "Opened", "Opening", note)
            if note == "ü" * 300:  # again, before the first is sent
                recorder.record(BOX, "Normal", "Opened", "Opening", note)
            running = asyncio.create_task(recorder.run())
            assert await recorder.drain(5)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    first, second, third = (asked.body for asked in server.asked)
    kinds = [asked.headers["Content-Type"].rpartition(".")[2] for asked in server.asked]
    assert kinds == ["application/json", "protobuf", "protobuf"]
    assert first.items() <= second.items()
    assert third["note"] == "ü" * 300
    assert third["series"] == {"count": 2, "lastObservedTime": first["eventTime"]}
