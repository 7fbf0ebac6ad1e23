"""The page's lists and details: pods, profiles, objects, themes; and what axe-core says of all views."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import axe_core_python
import pytest
from browser import Tab
from test_page import picture, shown

from make import make_node, make_pod
from page_world import demo_objects
from stowplan.api.kinds import object_of

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}
ROWS = "document.querySelectorAll('[role=grid] .space .row').length"


async def faults(tab: Tab) -> list[str]:
    """What axe-core finds wrong, with the element."""
    await tab.send("Page.setBypassCSP", enabled=True)  # axe is injected as text
    await tab.run(f"{AXE}; 0")
    script = (
        "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(found.violations))"
    )
    found = json.loads(await tab.run(script))
    return [f"{each['id']}: {each['help']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


async def test_a_pod_is_found_by_any_part_of_its_name(tab: Tab) -> None:
    objects = [make_node("a"), *(make_pod(f"web-{number}", namespace="shop") for number in range(3))]
    async with shown(objects, tab):
        await tab.press("/")
        await tab.type("eb-2")
        await tab.press("Enter")
        await tab.until("location.hash === '#/pod/shop%2Fweb-2'")
        await tab.run("document.getElementById('wanted').value = ''; document.activeElement.blur()")
        await tab.press("/")
        await tab.type("web")
        await tab.press("Enter")
        await tab.until("location.hash === '#/pods?search=web'")
        await tab.until(f"{ROWS} === 3")


async def test_pods_are_listed_and_filtered(tab: Tab) -> None:
    objects = [
        make_node("a"),
        *(make_pod(f"web-{number}", namespace="shop") for number in range(3)),
        make_pod("large", namespace="ml", requests={"cpu": "500"}),
        make_pod("alien", namespace="ml", node="a", schedulerName="other"),
    ]
    async with shown(objects, tab, "#/pods"):
        await tab.until(f"{ROWS} === 5")
        await tab.shows("5 pods.", "ml/large", "unschedulable")
        await picture(tab, "pods")
        for name, value, rows in (("namespace", "ml", 2), ("state", "unschedulable", 1)):
            await tab.run(
                f"(() => {{const it = document.getElementById('{name}'); it.value = '{value}';"
                "it.dispatchEvent(new Event('change'));})()"
            )
            await tab.until(f"{ROWS} === {rows}")
        assert await tab.run("location.hash") == "#/pods?namespace=ml&state=unschedulable"
        await tab.run("location.hash = '#/pods?scheduler=other'")
        await tab.until(f"{ROWS} === 1")
        await tab.shows("ml/alien", "1 pod.")


async def test_profiles_show_plugins_with_weights_and_arguments(tab: Tab) -> None:
    async with shown(demo_objects(), tab, "#/profiles"):
        await tab.shows("default-scheduler", "NodeResourcesFit", "preFilter, filter", "Attempts: ")
        weights = "[...document.querySelectorAll('.facts tr')].map(row => row.innerText).join('\\n')"
        text = await tab.run(weights)
        assert "PodTopologySpread" in text
        await tab.run("document.getElementById('default-scheduler/NodeResourcesFit').open = true")
        await tab.shows("LeastAllocated")
        await picture(tab, "profiles")


async def test_a_node_shows_its_conditions_and_yaml(tab: Tab) -> None:
    bad = {
        "type": "DiskPressure",
        "status": "True",
        "reason": "KubeletHasDiskPressure",
        "message": "kubelet has disk pressure",
        "lastTransitionTime": "2026-11-01T08:00:00Z",
    }
    good = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    metadata = {"name": "a", "labels": {"topology.kubernetes.io/zone": "z1"}}
    status = {"allocatable": {"cpu": "4", "pods": "10"}, "conditions": [good, bad]}
    node = object_of({"kind": "Node", "metadata": metadata, "status": status})
    assert node is not None
    async with shown([node], tab, "#/node/a"):
        await tab.shows("Zone z1", "DiskPressure is True: kubelet has disk pressure", "KubeletReady")
        await tab.run("[...document.querySelectorAll('details')].at(-2).open = true")
        await tab.until("document.querySelector('.yaml').textContent.includes('allocatable:')")
        await picture(tab, "node")


async def test_a_pod_shows_its_events_and_yaml(tab: Tab) -> None:
    async with shown([make_node("a"), make_pod("p")], tab, "#/pod/default%2Fp"):
        await tab.until("document.querySelectorAll('details').length >= 2")
        await tab.run("for (const each of document.querySelectorAll('details')) each.open = true")
        await tab.shows("Successfully assigned default/p to a")
        await tab.until("document.querySelector('.yaml').textContent.includes('name: p')")


async def test_every_tied_node_is_named(tab: Tab) -> None:
    nodes = [make_node(f"n{number:02}") for number in range(20)]
    async with shown([*nodes, make_pod("p")], tab, "#/pod/default%2Fp"):
        await tab.shows("tied with 19 nodes")
        assert await tab.run("document.querySelectorAll('.ties a').length") == 19


async def test_a_rejection_by_pre_filter_names_its_plugin(tab: Tab) -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}
    async with shown([make_node("a"), make_pod("p", volumes=[claim])], tab, "#/pod/default%2Fp"):
        await tab.shows("rejected it before any node was looked at (PreFilter): ")
        assert await tab.run("document.querySelector('main p > b').textContent") in (
            "VolumeBinding",
            "VolumeRestrictions",
        )


async def test_a_preemptor_shows_its_victims_at_once(tab: Tab) -> None:
    objects = [
        make_node("a", allocatable={"cpu": "2", "memory": "8Gi", "pods": "10"}),
        make_pod("low", requests={"cpu": "2"}, node="a", priority=0),
        make_pod("high", requests={"cpu": "2"}, priority=1000),
    ]
    async with shown(objects, tab, "#/pod/default%2Fhigh/1"):
        await tab.shows("evicts 1 pod of lower priority: default/low.")


async def test_a_link_to_a_question_asks_it(tab: Tab) -> None:
    async with shown([make_node("a"), make_node("b"), make_pod("p")], tab, "#/what-if/drain/a"):
        await tab.shows("If: a drained")


async def test_the_theme_can_be_chosen_and_is_kept(tab: Tab) -> None:
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    async with shown(demo_objects(), tab) as (_, link):
        light = await tab.run(paper)
        await tab.run(
            "(() => {const it = document.getElementById('theme'); it.value = 'dark';"
            "it.dispatchEvent(new Event('change'));})()"
        )
        assert await tab.run(paper) != light
        await tab.go("about:blank")
        await tab.go(link)
        await tab.until("document.documentElement?.dataset.theme === 'dark'")


@pytest.mark.parametrize("size", SIZES)
async def test_axe_core_finds_nothing(tab: Tab, size: str) -> None:
    await tab.resize(*SIZES[size])
    views = ("", "#/pods", "#/queue", "#/groups", "#/decisions", "#/profiles", "#/what-if")
    single = ("#/node/worker-a1", "#/pod/shop%2Fcheckout", "#/pod/shop%2Fwarehouse")
    async with shown(demo_objects(), tab) as (world, link):
        for hash_ in (*views, *single):
            await tab.go("about:blank")
            await tab.go(link + hash_)
            await tab.until("document.querySelectorAll('main h1, main canvas').length")
            await asyncio.sleep(0.3)
            assert await faults(tab) == [], hash_
            await picture(tab, f"{size}-{hash_.strip('#/').replace('/', '-') or 'cluster'}")
        if os.environ.get("PAGE_PICTURES"):
            await tab.dark()
            await picture(tab, f"{size}-dark")
        assert world.decisions.recent


async def test_a_decision_can_be_read_on_a_phone(tab: Tab) -> None:
    await tab.resize(*SIZES["phone"])
    async with shown(demo_objects(), tab, "#/pod/shop%2Fweb-4"):
        await tab.until("document.querySelectorAll('.cards li').length")
        assert await tab.run("getComputedStyle(document.querySelector('.cards')).display") != "none"
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await tab.shows("chosen", "points", "NodeResourcesFit")
