"""The groups view of the page in a real browser."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

from make import make_node, make_pod
from page_world import page_world
from stowplan.api.groups import CoschedulingPodGroup
from stowplan.api.meta import decode
from stowplan.web import answer_by_name, serve_locally

LABEL = "scheduling.x-k8s.io/pod-group"
PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    }
}
GPUS = {"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "7"}
ODD = '<img src=x onerror="document.title=1">'


def group(name, least):
    return decode(
        CoschedulingPodGroup,
        {"metadata": {"name": name, "namespace": "ml"}, "spec": {"minMember": least}},
    )


def members(name, count):
    return [
        make_pod(f"{name}-{number}", namespace="ml", labels={LABEL: name}, requests={"nvidia.com/gpu": "1"})
        for number in range(count)
    ]


OBJECTS = [
    *(make_node(f"gpu-{number}", allocatable=GPUS) for number in range(2)),
    group("serve", 2),
    *members("serve", 2),
    group("train", 16),
    *members("train", 16),
    group("tune", 4),
    *members("tune", 1),
    *members("lost", 2),
]


@asynccontextmanager
async def shown(objects, tab, hash_, config=None):
    async with (
        page_world(objects, {"profiles": [PROFILE]} if config is None else config) as world,
        serve_locally(answer_by_name(world.pages)) as link,
    ):
        await world.settle(1000)
        world.decisions.flush()
        await tab.go(link + hash_)
        await tab.until("document.querySelector('#numbers')?.textContent")
        yield
        await tab.go("about:blank")


async def picture(tab, name):
    if folder := os.environ.get("PAGE_PICTURES"):
        await tab.picture(Path(folder) / f"{name}.png")


async def test_lists_groups_and_says_why_they_wait(tab):
    async with shown(OBJECTS, tab, "#/groups"):
        await tab.shows("Pod groups", "ml/train", "0 of 16", "2 of 2", "pods fit, at least 16 were needed")
        await tab.shows("1 of at least 4 pods exist", "no PodGroup ml/lost exists")
        await picture(tab, "groups")
        await tab.run("document.querySelector('#search').focus()")
        await tab.type("train")
        await tab.until("!document.body.innerText.includes('ml/serve')")
        assert (await tab.run("location.hash")) == "#/groups?search=train"


async def test_opens_a_group_by_keys_and_shows_its_pods_and_what_would_help(tab):
    async with shown(OBJECTS, tab, ""):
        await tab.run("document.querySelector('main').focus()")
        await tab.press("g")
        await tab.shows("Pod groups")
        await tab.follow("ml/train")
        await tab.shows("group ml/train", "12 of 16 pending pods fit, at least 16 are needed")
        await tab.shows("lack 4 nvidia.com/gpu", "ml/train-0", "does not fit")
        await tab.shows("What would let it start?", "minMember 12 instead of 16", "1 more node like gpu-0")
        await picture(tab, "group")
        assert "null" not in await tab.text()
        assert await tab.run("document.querySelector('nav a[aria-current]').textContent") == "Groups"


async def test_fits_a_phone(tab):
    async with shown(OBJECTS, tab, "#/groups"):
        await tab.resize(390, 844)
        await tab.shows("ml/train", "waits")
        await picture(tab, "groups-phone")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await tab.run("location.hash = '#/group/ml%2Ftrain'")
        await tab.shows("What would let it start?", "minMember 12 instead of 16")
        await picture(tab, "group-phone")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")


async def test_an_unknown_group_and_odd_names_are_text(tab):
    async with shown(OBJECTS, tab, "#/groups"):
        await tab.shows("ml/train")
        await tab.run(f"location.hash = '#/group/' + encodeURIComponent({ODD!r})")
        await tab.shows("not found", ODD)
        assert await tab.run("document.title") != "1"
        # The answer is an error, which the browser reports as well.
        tab.problems[:] = [each for each in tab.problems if "404" not in each]


async def test_a_scheduler_without_groups_says_how_to_read_them(tab):
    async with shown(OBJECTS[:2], tab, "#/groups", config={}):
        await tab.shows(
            "There are no pod groups.", "This scheduler does not read pod groups. Start it with --groups"
        )
