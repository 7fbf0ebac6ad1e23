"""List and watch against a scripted server: every change told once, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from api_server import (
    ScriptedServer,
    answer,
    bookmark,
    cut,
    end,
    event,
    hang,
    node,
    page,
    refusal,
    status_of,
    until,
    watch,
)

from stowplan.client.api import PODS, RESOURCES, ApiClient
from stowplan.client.connection import Connection
from stowplan.client.watch import Reflector
from stowplan.errors import InputError

NODES = next(resource for resource in RESOURCES if resource.kind == "Node")
N1, N2 = node("n1", 5), node("n2", 6)
EXPIRED = event("ERROR", status_of(410, "Expired", "too old resource version: 10 (20)"))


class Told:
    """What a reflector told, as `+name@version`, `~name@old>new` or `-name@version`."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def __call__(self, kind, old, new):
        def version(item):
            return getattr(item, "resource_version", None) or item.metadata.resource_version

        if kind == "added":
            assert old is None
            self.changes.append(f"+{new.name}@{version(new)}")
        elif kind == "modified":
            self.changes.append(f"~{new.name}@{version(old)}>{version(new)}")
        else:
            assert new is None
            self.changes.append(f"-{old.name}@{version(old)}")


@asynccontextmanager
async def reflecting(api: ApiClient, resource=NODES, **settings) -> AsyncIterator[tuple[Reflector, Told]]:
    told = Told()
    reflector = Reflector(api, resource, **{"on_event": told, "first_backoff": 0.001} | settings)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, told
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_is_there_then_what_changes(server: ScriptedServer, api: ApiClient):
    server.lists = [page(N1, N2, version=10)]
    server.watches = [
        watch(
            event("ADDED", node("n3", 11)),
            event("MODIFIED", node("n1", 12)),
            event("DELETED", node("n2", 13)),
        )
    ]
    async with reflecting(api) as (reflector, told):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        await until(lambda: len(told.changes) == 5)
        assert told.changes == ["+n1@5", "+n2@6", "+n3@11", "~n1@5>12", "-n2@13"]
        assert sorted(reflector.objects) == ["n1", "n3"]
    (asked,) = server.watched
    assert asked.query["resourceVersion"] == "10"
    assert asked.query["allowWatchBookmarks"] == "true"
    assert 25 <= int(asked.query["timeoutSeconds"]) <= 30


async def test_pages_are_put_together(server: ScriptedServer, api: ApiClient):
    server.lists = [page(N1, version=10, more="x"), page(N2, version=10, more="y"), page(version=10)]
    async with reflecting(api, page_size=1) as (reflector, told):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert told.changes == ["+n1@5", "+n2@6"]
    assert [(asked.query["limit"], asked.query.get("continue")) for asked in server.listed] == [
        ("1", None), ("1", "x"), ("1", "y"),
    ]  # fmt: skip


async def test_an_expired_page_starts_the_list_over(server: ScriptedServer, api: ApiClient):
    server.lists = [
        page(N1, N2, version=10, more="x"),
        refusal(410, "Expired", "The provided continue parameter is too old"),
        page(N1, version=20),
    ]
    async with reflecting(api) as (reflector, told):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert told.changes == ["+n1@5", "+n2@6", "-n2@6"]
    assert "continue" not in server.listed[2].query


async def test_pods_that_have_finished_are_not_asked_for(server: ScriptedServer, api: ApiClient):
    pod = {"metadata": {"name": "p", "namespace": "a", "uid": "1", "resourceVersion": "3"}}
    server.lists = [page(pod, version=10)]
    async with reflecting(api, PODS) as (reflector, told):
        await until(lambda: len(server.watched) == 1)
        assert told.changes == ["+p@3"]
        assert list(reflector.objects) == ["a/p"]
    assert {asked.query["fieldSelector"] for asked in server.asked} == {
        "status.phase!=Succeeded,status.phase!=Failed"
    }


CHANGE = event("MODIFIED", node("n1", 12))


@pytest.mark.parametrize(
    ("first", "resumed_at"),
    [
        pytest.param(watch(CHANGE, then=end), "12", id="the server ends the watch"),
        pytest.param(watch(CHANGE, then=cut), "12", id="the connection is cut"),
        pytest.param(watch(CHANGE, b'{"type":"MODIFIED","obj', then=cut), "12", id="cut within a line"),
        pytest.param(watch(CHANGE, b'{"type":"MODIFIED","obj', then=end), "12", id="ended within a line"),
        pytest.param(watch(CHANGE, then=hang), "12", id="the connection falls silent"),
        pytest.param(watch(CHANGE, bookmark(40), then=cut), "40", id="a bookmark has moved on"),
        pytest.param(watch(CHANGE, b"<html>\n", then=hang), "12", id="nonsense comes"),
        pytest.param(
            watch(CHANGE, event("ERROR", status_of(500, "InternalError", "etcd is tired"))),
            "12",
            id="the server reports another error",
        ),
        pytest.param(refusal(500, "InternalError", "no"), "10", id="the watch is refused"),
    ],
)
async def test_resumes_where_it_was(server: ScriptedServer, api: ApiClient, first, resumed_at):
    server.lists = [page(N1, version=10)]
    rest = [CHANGE] if resumed_at == "10" else []
    server.watches = [first, watch(*rest, event("DELETED", node("n1", 50)))]
    async with reflecting(api, silence=0.1) as (_, told):
        await until(lambda: len(told.changes) == 3)
        assert told.changes == ["+n1@5", "~n1@5>12", "-n1@50"]
    assert server.watched[1].query["resourceVersion"] == resumed_at
    assert len(server.listed) == 1


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(watch(EXPIRED), id="within the watch"),
        pytest.param(refusal(410, "Expired", "too old resource version"), id="as the watch's answer"),
        pytest.param(
            refusal(504, "Timeout", "10 > 3", cause="ResourceVersionTooLarge"),
            id="the server has gone back",
        ),
    ],
)
async def test_a_version_that_is_gone_means_a_new_list(server: ScriptedServer, api: ApiClient, gone):
    same, changed, made_again = node("same", 5), node("changed", 15), node("again", 16, uid="other")
    server.lists = [
        page(node("lost", 4), same, node("changed", 6), node("again", 7), version=10),
        page(same, changed, made_again, node("new", 17), version=20),
    ]
    server.watches = [gone]
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(server.watched) == 2)
        assert told.changes[4:] == ["~changed@6>15", "-again@7", "+again@16", "+new@17", "-lost@4"]
        assert sorted(reflector.objects) == ["again", "changed", "new", "same"]
    assert server.watched[1].query["resourceVersion"] == "20"


async def test_what_is_known_already_is_not_told_twice(server: ScriptedServer, api: ApiClient):
    server.lists = [page(N1, version=10)]
    server.watches = [
        watch(
            event("ADDED", N1),
            event("MODIFIED", N1),
            event("DELETED", node("stranger", 11)),
            event("MODIFIED", node("n2", 12)),
        )
    ]
    async with reflecting(api) as (_, told):
        await until(lambda: len(told.changes) == 2)
        assert told.changes == ["+n1@5", "+n2@12"]


async def test_an_object_that_cannot_be_read_is_skipped(server: ScriptedServer, api: ApiClient, caplog):
    def broken(name, version):
        return node(name, version) | {"spec": {"taints": "none"}}

    server.lists = [page(broken("bad", 4), N1, N2, version=10)]
    server.watches = [
        watch(event("MODIFIED", broken("n1", 11)), event("DELETED", broken("n2", 12)), then=cut),
        watch(event("ADDED", node("n3", 13)), EXPIRED),
    ]
    server.lists.append(page(broken("n1", 11), node("n3", 13), version=20))
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(server.watched) == 3)
        assert told.changes == ["+n1@5", "+n2@6", "-n1@5", "-n2@6", "+n3@13"]
        assert sorted(reflector.objects) == ["n3"]
        assert sorted(reflector.unreadable) == ["n1"]
    assert server.watched[1].query["resourceVersion"] == "12"
    first = caplog.records[0]
    assert first.getMessage() == "Object cannot be read"
    assert (first.fields["resource"], first.fields["object"]) == ("nodes", "bad")
    assert str(first.fields["err"]).startswith("Node bad: spec.taints: ")


async def test_a_line_that_was_made_to_break_a_decoder_concerns_one_object(
    server: ScriptedServer, api: ApiClient
):
    deep = "[" * 5000 + "]" * 5000

    def spoilt(step):
        async def spoil(request):
            response = await step(request)
            response.text = response.text.replace('"DEEP"', deep)
            return response

        return spoil

    bad = node("bad", 4) | {"status": {"unknown": "DEEP"}}
    worse = node("worse", 5) | {"status": {"allocatable": {"cpu": "DEEP"}}}
    server.lists = [spoilt(page(N1, bad, worse, N2, version=10))]
    lines = [
        event(
            "ADDED", node("bad-2", 11) | {"metadata": {"name": "bad-2", "resourceVersion": "11"}, "x": "DEEP"}
        ),
        event("ADDED", {"metadata": "DEEP"}),
        event("ADDED", {"metadata": {"name": ["no name"]}}),
        event("MODIFIED", node("n1", 12)),
    ]
    texts = (json.dumps(line, separators=(",", ":")).replace('"DEEP"', deep) for line in lines)
    server.watches = [watch(*(f"{text}\n".encode() for text in texts))]
    counts = []
    async with reflecting(api, on_unreadable=lambda resource, count: counts.append((resource, count))) as (
        reflector,
        told,
    ):
        await until(lambda: "~n1@5>12" in told.changes)
        assert told.changes == ["+n1@5", "+bad@4", "+n2@6", "+bad-2@11", "~n1@5>12"]
        assert "worse" in reflector.unreadable
    assert counts[0] == ("nodes", 1)
    assert len(server.watched) == 1


def misread(name, version, **fields):
    item = node(name, version)
    return item | {"spec": {"taints": f"none at {version}"} | fields}


async def test_an_object_that_stays_unreadable_is_reported_once(
    server: ScriptedServer, api: ApiClient, caplog
):
    server.lists = [page(misread("n1", 5), version=10)]
    changes = [misread("n1", version) for version in range(11, 21)]
    changes.append(misread("n1", 21, taints=[], unschedulable="no"))
    changes.append(node("n1", 22))
    changes.append(misread("n1", 23))
    server.watches = [watch(*(event("MODIFIED", each) for each in changes), EXPIRED)]
    server.lists.append(page(misread("n1", 23), N2, version=30))
    reported = []
    async with reflecting(api, on_fault=reported.append) as (_, told):
        await until(lambda: "+n2@6" in told.changes)
    assert [(each.resource_version, each.fault.field) for each in reported] == [
        ("5", "spec.taints"),
        ("21", "spec.unschedulable"),
        ("23", "spec.taints"),
    ]
    logged = [each.fields["err"] for each in caplog.records if each.getMessage() == "Object cannot be read"]
    assert logged == [each.fault for each in reported]


async def test_hundreds_of_unreadable_objects_are_not_reported_one_by_one(
    server: ScriptedServer, api: ApiClient
):
    server.lists = [page(*(misread(f"bad{number}", 5) for number in range(300)), N2, version=10)]
    reported = []
    async with reflecting(api, on_fault=reported.append) as (reflector, told):
        await until(lambda: "+n2@6" in told.changes)
        assert len(reflector.unreadable) == 300
    assert len(reported) == 100


async def test_a_handler_that_fails_does_not_stop_the_watch(server: ScriptedServer, api: ApiClient, caplog):
    told = Told()

    def fail_once(kind, old, new):
        told(kind, old, new)
        if told.changes == ["+n1@5"]:
            raise InputError("no such thing")

    server.lists = [page(N1, version=10)]
    server.watches = [watch(event("MODIFIED", node("n1", 11)))]
    async with reflecting(api, on_event=fail_once):
        await until(lambda: len(told.changes) == 2)
    assert told.changes == ["+n1@5", "~n1@5>11"]
    (record,) = caplog.records
    assert record.getMessage() == "Event handler failed; continuing with the next event"
    assert "fail_once" in record.fields["stacktrace"]


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(server: ScriptedServer, api: ApiClient):
    server.lists = [page(version=10)]
    server.watches = [refusal(429, "TooManyRequests", "later", {"Retry-After": "1"})]
    async with reflecting(api):
        await until(lambda: len(server.watched) == 1)
        await asyncio.sleep(0.5)
        assert len(server.watched) == 1
        await until(lambda: len(server.watched) == 2)


async def test_lines_longer_than_any_buffer(server: ScriptedServer, api: ApiClient):
    long = node("n1", 11, labels={"long": "x" * 3_000_000})
    server.lists = [page(version=10)]
    server.watches = [watch(event("ADDED", long), event("ADDED", node("n2", 12)))]
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(told.changes) == 2)
        assert len(reflector.objects["n1"].metadata.labels["long"]) == 3_000_000


async def test_lines_that_come_in_pieces(server: ScriptedServer, api: ApiClient):
    text = b"".join(json.dumps(event("ADDED", node(f"n{at}", 11 + at))).encode() + b"\n" for at in range(3))
    server.lists = [page(version=10)]
    server.watches = [watch(*(text[at : at + 7] for at in range(0, len(text), 7)))]
    async with reflecting(api) as (_, told):
        await until(lambda: len(told.changes) == 3)
        assert told.changes == ["+n0@11", "+n1@12", "+n2@13"]


async def test_failures_are_tried_again_later_and_later(server: ScriptedServer, api: ApiClient):
    server.lists = [refusal(500)] * 5 + [page(N1, version=10)]
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with reflecting(api, first_backoff=0.02) as (reflector, _):
        await asyncio.wait_for(reflector.synced.wait(), 5)
    # At once, then at least 0.02, 0.04, 0.08 and 0.16 s.
    assert 0.3 <= loop.time() - start < 5


async def test_a_server_that_is_down_is_asked_again_soon(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with ApiClient(Connection(url)) as api, reflecting(api, first_backoff=0.01):
        await asyncio.sleep(1)
    # Each wait twice as long as the one before would leave no more than 8.
    assert len(caplog.records) >= 10


async def test_a_server_that_ends_every_watch_at_once_is_not_pestered(server: ScriptedServer, api: ApiClient):
    server.lists = [page(version=10)]
    server.watches = [watch(then=end)] * 1000
    async with reflecting(api, first_backoff=0.02):
        await asyncio.sleep(0.3)
    assert 2 <= len(server.watched) <= 6


async def test_a_slow_refusal_is_no_watch_that_worked(server: ScriptedServer, api: ApiClient, caplog):
    async def slow(request):
        await asyncio.sleep(0.2)
        return await refusal(403, "Forbidden", "no")(request)

    server.lists = [page(version=10)]
    server.watches = [slow] * 3
    async with reflecting(api, short_watch=0.1):
        await until(lambda: len(server.watched) == 4)
    assert [record.getMessage() for record in caplog.records] == ["Watch failed; retrying"] * 2


async def test_missing_rights_say_what_to_do(server: ScriptedServer, api: ApiClient, caplog):
    text = 'nodes is forbidden: User "joe" cannot list resource "nodes" in API group "" at the cluster scope'
    server.lists = [refusal(403, "Forbidden", text), page(version=10)]
    async with reflecting(api) as (reflector, _):
        await asyncio.wait_for(reflector.synced.wait(), 5)
    (record,) = caplog.records
    assert record.getMessage() == "Watch failed; retrying"
    assert record.fields == {
        "resource": "nodes",
        "err": f"{text}: give this account the right, most simply by binding it to the ClusterRoles "
        "system:kube-scheduler and system:volume-scheduler",
    }


async def test_a_resource_the_server_does_not_have_is_not_waited_for(server: ScriptedServer, api: ApiClient):
    server.lists = [refusal(404, "NotFound", "the server could not find the requested resource")] * 100
    async with reflecting(api) as (reflector, told):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert not told.changes


async def test_an_empty_list_may_be_null(server: ScriptedServer, api: ApiClient):
    server.lists = [answer({"metadata": {"resourceVersion": "10"}, "items": None})]
    async with reflecting(api) as (reflector, _):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert not reflector.objects


# Catching up: before it leads, a replica proves that what it knows is current


async def caught_up(reflector: Reflector) -> None:
    await asyncio.wait_for(reflector.catch_up(), 5)


async def test_a_stalled_watch_of_a_small_collection_is_listed_again(server: ScriptedServer, api: ApiClient):
    server.lists = [page(N1, version=10), page(N1, N2, version=20)]
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(server.watched) == 1)
        await caught_up(reflector)
        assert told.changes == ["+n1@5", "+n2@6"]
        await until(lambda: len(server.watched) == 2)
    assert server.watched[1].query["resourceVersion"] == "20"


async def test_a_stalled_watch_of_a_large_collection_goes_on_to_a_checkpoint(
    server: ScriptedServer, api: ApiClient
):
    server.lists = [page(N1, version=10, more="x"), page(N2, version=10), page(N1, version=20, more="x")]
    server.watches = [watch(), watch(event("ADDED", node("n3", 15)), bookmark(19), bookmark(21))]
    async with reflecting(api, page_size=1) as (reflector, told):
        await until(lambda: len(server.watched) == 1)
        await caught_up(reflector)
        assert told.changes == ["+n1@5", "+n2@6", "+n3@15"]
    assert server.watched[1].query["resourceVersion"] == "10"
    assert server.watched[1].query["timeoutSeconds"] == "3"
    assert server.listed[2].query == {"limit": "1"}


async def test_nothing_is_asked_again_if_the_checkpoint_is_reached_already(
    server: ScriptedServer, api: ApiClient
):
    server.lists = [page(N1, version=10, more="x"), page(N2, version=10), page(N1, version=12, more="x")]
    server.watches = [watch(bookmark(12))]
    async with reflecting(api, page_size=1) as (reflector, _):
        await until(lambda: reflector.version == "12")
        await caught_up(reflector)
    assert len(server.listed) == 3


@pytest.mark.parametrize(
    ("checkpoint", "watched"),
    [
        pytest.param(
            page(N1, version=20, more="x"), watch(bookmark(19), then=end), id="a server that is behind"
        ),
        pytest.param(page(N1, version=20, more="x"), watch(then=end), id="no bookmarks"),
        pytest.param(
            answer({"metadata": {"resourceVersion": "f00"}, "items": []}),
            watch(),
            id="versions of another kind",
        ),
    ],
)
async def test_where_a_checkpoint_shows_nothing_the_collection_is_listed(
    server: ScriptedServer, api: ApiClient, checkpoint, watched
):
    server.lists = [
        page(N1, version=10, more="x"),
        page(N2, version=10),
        checkpoint,
        page(N1, version=20, more="x"),
        page(node("n3", 15), version=20),
    ]
    server.watches = [watch(), watched]
    async with reflecting(api, page_size=1) as (reflector, told):
        await until(lambda: len(server.watched) == 1)
        await caught_up(reflector)
        assert told.changes == ["+n1@5", "+n2@6", "+n3@15", "-n2@6"]


async def test_a_list_that_was_begun_before_is_no_proof(server: ScriptedServer, api: ApiClient):
    going = asyncio.Event()

    async def slow(request):
        await going.wait()
        return await page(N1, version=10)(request)

    server.lists = [slow, page(N1, N2, version=20)]
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(server.listed) == 1)
        waiting = asyncio.create_task(reflector.catch_up())
        await asyncio.sleep(0.05)
        going.set()
        await asyncio.wait_for(waiting, 5)
        assert told.changes == ["+n1@5", "+n2@6"]


async def test_a_kind_that_may_no_longer_be_read_is_not_taken_for_current(
    server: ScriptedServer, api: ApiClient
):
    is_allowed = asyncio.Event()

    async def allowed(request):
        await is_allowed.wait()
        return await page(version=20)(request)

    server.lists = [page(N1, version=10), *[refusal(403, "Forbidden", "no")] * 3, allowed]
    async with reflecting(api) as (reflector, told):
        await until(lambda: len(server.watched) == 1)
        waiting = asyncio.create_task(reflector.catch_up())
        await until(lambda: len(server.listed) == 5)
        assert not waiting.done()
        is_allowed.set()
        await asyncio.wait_for(waiting, 5)
        assert told.changes == ["+n1@5", "-n1@5"]


async def test_a_kind_that_the_server_does_not_have_is_not_waited_for(server: ScriptedServer, api: ApiClient):
    server.lists = [refusal(404, "NotFound", "no such resource")] * 3
    async with reflecting(api, first_backoff=100) as (reflector, _):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        await asyncio.sleep(0.05)
        await caught_up(reflector)


async def test_a_watch_whose_answer_does_not_begin_is_opened_on_another_connection(
    server: ScriptedServer, api: ApiClient
):
    async def mute(request):
        await hang(request)
        return await refusal(500)(request)

    server.lists = [page(N1, version=10)]
    server.watches = [mute, watch(CHANGE)]
    before = api.stream

    async def stream(*args, **options):
        await before(*args, **options | {"open_seconds": 0.1})

    api.stream = stream
    async with reflecting(api) as (_, told):
        await until(lambda: len(told.changes) == 2)
    assert len(server.watched) == 2


async def test_a_watch_that_drips_on_after_its_end_is_opened_again(
    server: ScriptedServer, api: ApiClient, monkeypatch
):
    async def drip(request):
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.02)
            if request.transport is not None:
                request.transport.write(b"1\r\n \r\n")

    server.lists = [page(N1, version=10)]
    server.watches = [watch(then=drip), watch(CHANGE)]
    monkeypatch.setattr("stowplan.client.watch.OVERDUE_SECONDS", -25.8)
    monkeypatch.setattr("stowplan.client.watch.WATCH_SECONDS", (26, 26))
    async with reflecting(api) as (_, told):
        await until(lambda: len(told.changes) == 2)


class Stubborn(ApiClient):
    """A client whose requests take no notice of being cancelled."""

    asked: asyncio.Event

    async def request(self, *words, **more):
        self.asked.set()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
        return await super().request(*words, **more)


async def test_a_reflector_ends_even_if_its_request_does_not(server: ScriptedServer):
    server.lists = [page(N1, version=10)]
    api = Stubborn(Connection(server.url), qps=0)
    async with api:
        api.asked = asyncio.Event()
        reflector = Reflector(api, NODES, on_event=Told())
        task = asyncio.create_task(reflector.run())
        await api.asked.wait()
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
        assert task.cancelled()
        await asyncio.sleep(1)
        assert not reflector.objects
