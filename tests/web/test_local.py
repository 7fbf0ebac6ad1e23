"""The page on a port of this machine, for those who have the link; and its files."""

from __future__ import annotations

import re

import aiohttp
import pytest

from page_world import page_world
from stowplan.errors import InputError
from stowplan.web import answer_by_name, mount, serve_locally


@pytest.fixture
async def link():
    async with page_world() as world, serve_locally(answer_by_name(world.pages)) as found:
        yield found


async def answer(url, **options):
    async with aiohttp.ClientSession() as session, session.get(url, **options) as response:
        return response.status, response.headers, await response.text()


async def test_the_page_and_all_its_files(link):
    status, headers, text = await answer(link)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    named = set(re.findall(r'(?:href|src)="([\w.]+)"', text))
    assert {"main.js", "page.css", "icon.svg"} <= named
    kinds = {}
    for name in sorted(named):
        status, headers, body = await answer(link + name)
        assert status == 200, name
        kinds[name.rpartition(".")[2]] = headers["Content-Type"]
        imported = set(re.findall(r'from "\./([\w.]+)"', body))
        assert imported <= named, f"{name} imports what is not loaded early"
        assert "http://" not in body.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in body
    assert kinds["js"].startswith("text/javascript")


async def test_no_other_host_and_nothing_inline_is_allowed(link):
    _, headers, text = await answer(link)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "<script>" not in text
    assert "style=" not in text


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("", id="no token"),
        pytest.param("wrong/", id="another token"),
        pytest.param("wrong/api/live", id="a door with another token"),
        pytest.param("api/live", id="a door without one"),
    ],
)
async def test_only_the_link_lets_one_in(link, path):
    root = re.match(r"http://127\.0\.0\.1:\d+/", link)[0]
    status, _, text = await answer(root + path)
    assert (status, text) == (403, "the token of the link is missing or wrong\n")


async def test_what_is_not_there(link):
    assert (await answer(link + "nothing.js"))[0] == 404
    assert (await answer(link.rstrip("/"), allow_redirects=False))[1]["Location"].endswith("/")


async def test_a_port_that_is_taken(link):
    port = int(re.search(r":(\d+)/", link)[1])
    with pytest.raises(InputError, match="cannot listen"):
        async with serve_locally(answer_by_name({}), port):
            pass


async def test_under_a_path_of_another_server():
    async with page_world() as world:
        found = mount(world.pages)
        assert found["/page/"] is world.pages[""]
        assert found["/page/api/live"] is world.pages["api/live"]
        assert found["/page"](None).headers["Location"] == "/page/"
