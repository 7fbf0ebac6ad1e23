"""Watches: order, resuming, what is forgotten, and many watchers at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from api_staging import Staged

from stowplan.apiserver import ApiServer, Request, Store, Stream

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


async def write(api: Staged, name: str, value: str = "a") -> str:
    """Create or change a config map; the version it got."""
    body = {"metadata": {"name": name}, "data": {"v": value}}
    status, answer = await api("POST", CONFIG_MAPS, body)
    if status == 409:
        status, answer = await api("PUT", f"{CONFIG_MAPS}/{name}", body)
    assert status in (200, 201)
    version: str = answer["metadata"]["resourceVersion"]
    return version


def events(found: Any) -> list[tuple[str, str]]:
    found = found if isinstance(found, list) else [found]
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in found]


async def test_a_watch_goes_on_where_it_was(api: Staged) -> None:
    first = await write(api, "a")
    await write(api, "b")
    await api("DELETE", f"{CONFIG_MAPS}/a")
    _, found = await api("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion={first}")
    assert events(found) == [("ADDED", "b"), ("DELETED", "a")]


async def test_a_forgotten_version_is_gone(api: Staged) -> None:
    first = await write(api, "a")
    await write(api, "b")
    api.server.store.compact()
    _, found = await api("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion={first}")
    assert (found["type"], found["object"]["code"], found["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_page_of_a_forgotten_version_is_gone(api: Staged) -> None:
    for name in "abc":
        await write(api, name)
    _, page = await api("GET", f"{CONFIG_MAPS}?limit=1")
    token = page["metadata"]["continue"]
    await write(api, "ab")
    _, page = await api("GET", f"{CONFIG_MAPS}?limit=5&continue={token}")
    assert [item["metadata"]["name"] for item in page["items"]] == ["b", "c"]  # as it was at the first page
    api.server.store.compact()
    status, refused = await api("GET", f"{CONFIG_MAPS}?limit=5&continue={token}")
    assert (status, refused["reason"]) == (410, "Expired")
    _, page = await api("GET", f"{CONFIG_MAPS}?continue={refused['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in page["items"]] == ["ab", "b", "c"]


async def test_objects_enter_and_leave_a_selection(api: Staged) -> None:
    version = await write(api, "a")
    for color in ("red", "red", "blue"):
        patch = {"metadata": {"labels": {"color": color}}, "data": {"n": version}}
        _, answer = await api("PATCH", f"{CONFIG_MAPS}/a", patch, content_type="application/merge-patch+json")
        patch["data"]["n"] = answer["metadata"]["resourceVersion"]
    last = {"metadata": {"labels": {"color": "red"}}}
    await api("PATCH", f"{CONFIG_MAPS}/a", last, content_type="application/merge-patch+json")
    _, found = await api("GET", f"{CONFIG_MAPS}?watch=1&labelSelector=color%3Dred&resourceVersion={version}")
    assert [kind for kind, _ in events(found)] == ["ADDED", "DELETED", "ADDED"]


@pytest.mark.parametrize("watchers", [100])
async def test_no_watcher_loses_an_event(api: Staged, watchers: int) -> None:
    async def follow(stream: Stream) -> list[str]:
        seen: list[str] = []
        async for chunk in stream.chunks:
            seen += [json.loads(line)["object"]["metadata"]["resourceVersion"] for line in chunk.splitlines()]
            if len(seen) == 50:
                return seen
        return seen

    version = await write(api, "first")
    target = f"{CONFIG_MAPS}?watch=1&resourceVersion={version}"
    streams = [await api.server.handle(Request.of("GET", target)) for _ in range(watchers)]
    following = [asyncio.ensure_future(follow(stream)) for stream in streams if isinstance(stream, Stream)]
    versions = [await write(api, f"m{number % 7}", str(number)) for number in range(50)]
    assert await asyncio.gather(*following) == [versions] * watchers


async def test_lists_cannot_be_continued_for_ever() -> None:
    now = 0.0
    api = Staged(ApiServer(Store(clock=lambda: now)))
    for name in "abc":
        await api("POST", CONFIG_MAPS, {"metadata": {"name": name}})
    _, page = await api("GET", f"{CONFIG_MAPS}?limit=1")
    token, version = page["metadata"]["continue"], page["metadata"]["resourceVersion"]
    await api("POST", "/api/v1/namespaces", {"metadata": {"name": "later"}})
    now = 319.0
    assert (await api("GET", f"{CONFIG_MAPS}?limit=1&continue={token}"))[0] == 200
    now = 601.0
    status, refused = await api("GET", f"{CONFIG_MAPS}?limit=1&continue={token}")
    assert (status, refused["reason"]) == (410, "Expired")
    exact = f"{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact"
    assert (await api("GET", exact))[0] == 410
    _, rest = await api("GET", f"{CONFIG_MAPS}?continue={refused['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["b", "c"]
    _, page = await api("GET", f"{CONFIG_MAPS}?limit=1")
    assert (await api("GET", f"{CONFIG_MAPS}?limit=1&continue={page['metadata']['continue']}"))[0] == 200
