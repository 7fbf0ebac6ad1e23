"""The page's paths are there to be read: any other verb is refused, whoever may use it."""

from __future__ import annotations

import aiohttp
import pytest

from make import make_node
from page_world import page_world
from stowplan.web import answer_by_name, serve_locally


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "name", ["", "main.js", "api/cluster", "api/live", "api/decisions", "api/explain", "api/changes"]
)
async def test_other_verbs_are_refused(method, name):
    async with (
        page_world([make_node("a")]) as world,
        serve_locally(answer_by_name(world.pages)) as link,
        aiohttp.ClientSession() as session,
    ):
        await world.settle()
        async with session.request(method, f"{link}{name}") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
            assert (await response.json())["message"] == f"{method} is not allowed here; use GET"
        async with session.head(f"{link}{name}") as response:
            assert response.status != 405


async def test_what_if_is_asked_with_post():
    async with (
        page_world([make_node("a")]) as world,
        serve_locally(answer_by_name(world.pages)) as link,
        aiohttp.ClientSession() as session,
    ):
        for method in ("GET", "PUT", "DELETE"):
            async with session.request(method, f"{link}api/what-if", json={}) as response:
                assert response.status == 405
