"""The page in a real browser: what it shows, by mouse and by keyboard, in light and dark, wide and narrow.

Pictures of it go to the folder that PAGE_PICTURES names, to be looked at.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from browser import Tab

from make import make_node, make_pod
from page_world import World, demo_objects, page_world
from stowplan.web import answer_by_name, serve_locally

ODD = '<img src=x onerror="document.title=1">'
FRAMES = """new Promise(done => {
  const gaps = []; let last = performance.now(); const end = last + 2000;
  (function frame() {
    const now = performance.now(); gaps.push(now - last); last = now;
    if (now < end) requestAnimationFrame(frame);
    else done(gaps.sort((a, b) => a - b)[Math.floor(gaps.length * 0.95)]);
  })();
})"""
"""The pause between two frames that only one in twenty exceeds, in milliseconds."""


@asynccontextmanager
async def shown(objects, tab: Tab, hash_: str = ""):
    """A scheduler that has decided all it can, and its page in the tab."""
    async with page_world(objects) as world, serve_locally(answer_by_name(world.pages)) as link:
        await decided(world)
        await tab.go(link + hash_)
        await tab.until("document.querySelector('#numbers')?.textContent")
        yield world, link
        await tab.go("about:blank")  # so that it asks no more


async def decided(world: World) -> None:
    while any(queued.place == "active" for queued in world.scheduler.queue):
        await asyncio.sleep(0.02)
    await world.settle()


async def picture(tab: Tab, name: str) -> None:
    if folder := os.environ.get("PAGE_PICTURES"):
        await asyncio.sleep(0.3)
        await tab.picture(Path(folder) / f"{name}.png")


def many_nodes(number: int):
    for each in range(number):
        yield make_node(
            f"node-{each:04}",
            labels={"topology.kubernetes.io/zone": f"zone-{each % 3}"},
            taints=["gpu:NoSchedule"] if each % 50 == 0 else [],
            allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"},
        )


async def test_the_demo_cluster(tab):
    async with shown(demo_objects(), tab):
        await tab.shows("zone-a", "4 nodes, ", "zone-c", "10 nodes", "1 waiting")
        await picture(tab, "cluster")
        await tab.run("document.querySelector('canvas').focus()")
        await tab.press("ArrowRight")
        await tab.until("document.querySelector('.tip').textContent.startsWith('gpu-a · ')")
        await tab.press("Enter")
        await tab.shows("node gpu-a", "nvidia.com/gpu", "Taints:")
        await picture(tab, "node")


async def test_a_tie_names_all_nodes(tab):
    nodes = [make_node(f"node-{number}") for number in range(6)]
    async with shown([*nodes, make_pod("p")], tab, "#/pod/default%2Fp"):
        await tab.shows("History", "6 of 6 nodes fit. Chosen at random; tied with node-")
        assert await tab.run("document.querySelectorAll('.fit a').length") == 5


async def test_a_decision_is_opened_and_read(tab):
    async with shown(demo_objects(), tab, "#/decisions"):
        await tab.shows("shop/web-4", "decisions since the scheduler started")
        await picture(tab, "decisions")
        await tab.follow("shop/web-4")
        await tab.shows(
            "Placed on worker-c2",
            "2 of 10 nodes fit.",
            "Second was worker-c1",
            "attempt 1 placed on worker-c2",
        )
        await tab.shows("4 PodTopologySpread: node(s) didn't match pod topology spread constraints")
        first = "document.querySelector('.picture .space .row').textContent"
        assert (await tab.run(first)).startswith("worker-c2chosen")
        await tab.run("document.querySelector('.picture').scrollIntoView()")
        await picture(tab, "decision")
        await tab.click(".picture .space .row:nth-child(2)")
        await tab.shows("worker-c1 fits", "ImageLocality × 1")


async def test_a_pending_pod_is_understood(tab):
    async with shown(demo_objects(), tab, "#/queue"):
        await tab.shows("shop/warehouse", "unschedulable", "0/10 nodes are available:")
        await picture(tab, "queue")
        await tab.follow("shop/warehouse")
        await tab.shows("No node was found", "What it waits for", "requeues it after: a node is added")
        await tab.click(".waits button")
        await tab.until("document.querySelectorAll('.waits li').length")
        await picture(tab, "pending")


async def test_a_pending_pod_is_seen_to_be_placed(tab):
    big = make_pod("big", requests={"cpu": "64"})
    async with shown([*many_nodes(3), big], tab, "#/pod/default%2Fbig") as (world, _):
        await tab.shows("No node was found, attempt 1.", "Insufficient cpu")
        world.see([make_node("large", allocatable={"cpu": "99", "memory": "9Gi", "pods": "9"})])
        await tab.shows("Placed on large", "attempt 2.", "attempt 1 unschedulable: 0/3 nodes are available")


async def test_a_what_if_is_asked(tab):
    async with shown(
        demo_objects(), tab, "#/what-if?lose=worker-c2&moreNodes=worker-a1&moreNodesCount=2"
    ) as (world, _):
        before = {pod.uid: pod.node_name for pod in world.scheduler.cluster.pods()}
        assert await tab.run("document.querySelector('#moreNodesCount').value") == "2"
        await tab.click("form.what-if button")
        await tab.shows("If: 2 more nodes like worker-a1; worker-c2 lost", "gone")
        await picture(tab, "what-if")
        assert {pod.uid: pod.node_name for pod in world.scheduler.cluster.pods()} == before


async def test_a_what_if_that_cannot_be(tab):
    async with shown(demo_objects(), tab, "#/what-if?drain=nowhere"):
        await tab.click("form.what-if button")
        await tab.shows("node nowhere not found")
        tab.problems.clear()  # that the answer was a refusal


async def test_by_keyboard_alone(tab):
    async with shown(demo_objects(), tab):
        await tab.press("q")
        await tab.shows("Find pods", "shop/warehouse")
        await tab.tab_to("[role=grid]")
        await tab.press("ArrowDown")
        await tab.press("Enter")
        await tab.shows("pod shop/warehouse", "What it waits for")
        await tab.tab_to(".waits button")
        await tab.press("Enter")
        await tab.until("document.querySelectorAll('.waits li').length")
        await tab.tab_to(".picture input")
        await tab.type("affinity")
        await tab.until("document.querySelectorAll('.picture .space .row').length == 7")
        await tab.tab_to(".picture [role=grid]")
        await tab.press("End")
        await tab.until("document.querySelector('.detail').textContent.includes('NodeAffinity')")
        await tab.press("/")
        await tab.type("worker-a2")
        await tab.press("Enter")
        await tab.shows("node worker-a2")
        await tab.run("document.activeElement.blur()")
        await tab.press("w")
        await tab.tab_to("#drain")
        await tab.type("worker-a2")
        await tab.press("Enter")
        await tab.shows("If: worker-a2 drained")
        await tab.press("Tab", 3)
        await tab.run("document.activeElement.blur()")
        await tab.press("d")
        await tab.tab_to("[role=grid]")
        await tab.press("ArrowDown", 2)
        await tab.press("Enter")
        await tab.until("location.hash.startsWith('#/pod/shop%2F')")


async def test_5000_nodes_and_1000_decisions_a_second(tab):
    async with shown(many_nodes(5000), tab) as (world, link):
        await tab.go("about:blank")
        began = time.monotonic()
        await tab.go(link)
        await tab.shows("zone-2", "of cpu requested")
        assert time.monotonic() - began < 1
        sent, is_over = 0, False

        async def feed() -> None:
            nonlocal sent
            start = time.monotonic()
            while not is_over:
                due = int((time.monotonic() - start) * 1000) - sent
                world.see(make_pod(f"p{sent + each}", requests={"cpu": "200m"}) for each in range(due))
                sent += due
                await asyncio.sleep(0.02)

        feeding = asyncio.create_task(feed())
        assert await tab.run(FRAMES) < 50
        await picture(tab, "cluster-5000")
        await tab.run("location.hash = '#/decisions'")
        await tab.shows("default/p")
        assert await tab.run(FRAMES) < 50
        await picture(tab, "decisions-1000")
        is_over = True
        await feeding
        await decided(world)
        await tab.until(f"document.body.innerText.includes('{sent:,} decisions since')")

        await tab.run("location.hash = '#/pod/default%2Fp7'")
        await tab.shows("4,900 of 5,000 nodes fit.")
        assert await tab.run("document.querySelectorAll('.picture .space .row').length") < 60
        await tab.run(
            "[...document.querySelectorAll('.picture button')]"
            ".find(b => b.title.includes('TaintToleration rejected')).click()"
        )
        await tab.until(
            "document.querySelector('.picture .space .row').textContent.startsWith('node-0000rejected')"
        )
        await tab.run("document.querySelector('.picture .scroller').scrollTop = 1e9")
        await tab.until(
            "document.querySelector('.picture .space .row:last-child').textContent.includes('node-4999')"
        )
        await tab.run("document.querySelector('.picture').scrollIntoView()")
        await picture(tab, "decision-5000")
        await tab.run("document.querySelector('.picture input').focus()")
        await tab.type("untolerated")
        await tab.shows("100 nodes")


async def test_names_that_are_html_are_names(tab):
    node = make_node(f"node {ODD}", labels={"a": ODD, "topology.kubernetes.io/zone": ODD})
    gated = make_pod(f"gated {ODD}", schedulingGates=[{"name": "x"}])
    pods = [make_pod(f"pod {ODD}", labels={"x": ODD}), gated]
    async with shown([node, *pods], tab, "#/decisions"):
        await tab.follow("default/pod")
        await tab.shows(f"pod default/pod {ODD}", f"Placed on node {ODD}")
        await tab.follow("node <img")
        await tab.shows(f"node node {ODD}", "Labels")
        await tab.press("q")
        await tab.shows(f"default/gated {ODD}")
        await tab.press("c")
        await tab.shows(ODD)
        await tab.run("location.hash = '#/' + encodeURIComponent('<b>')")
        await tab.shows("Page %3Cb%3E not found.")
        assert await tab.run("document.querySelectorAll('main img, main b[style]').length") == 0
        assert await tab.run("document.title") != "1"


async def test_a_pod_that_nobody_knows(tab):
    async with shown(demo_objects(), tab, "#/pod/shop%2Fweb-5"):
        await tab.shows("pod shop/web-5 not found", "no longer known to the scheduler")
        tab.problems.clear()  # that the answer was a refusal


@pytest.mark.parametrize(
    "hash_",
    [
        pytest.param("#/", id="cluster"),
        pytest.param("#/queue", id="queue"),
        pytest.param("#/decisions", id="decisions"),
        pytest.param("#/pod/shop%2Fweb-4", id="decision"),
        pytest.param("#/what-if?drain=worker-a1", id="what-if"),
    ],
)
async def test_on_a_narrow_dark_screen(tab, hash_):
    await tab.resize(360, 740)
    await tab.dark()
    async with shown(demo_objects(), tab, hash_):
        await asyncio.sleep(0.2)
        assert await tab.run("document.documentElement.scrollWidth") <= 360
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        assert await tab.run(paper) == "rgb(18, 24, 27)"
        await picture(
            tab, f"narrow-dark-{hash_.strip('#/').partition('?')[0].replace('/', '-') or 'cluster'}"
        )


async def test_a_browser_that_leaves_and_comes_back(tab):
    """What was decided meanwhile is told; a scheduler that is away for a moment is asked again."""
    async with page_world(demo_objects()) as world:
        await decided(world)
        async with serve_locally(answer_by_name(world.pages), token="t") as link:
            port = int(link.split(":")[2].partition("/")[0])
            await tab.go(link + "#/decisions")
            await tab.shows("shop/web-4")
        await tab.shows("No answer from the scheduler")
        world.see([make_pod("meanwhile", requests={"cpu": "100m"})])
        await decided(world)
        async with serve_locally(answer_by_name(world.pages), port, token="t"):
            await tab.shows("default/meanwhile")
            await tab.until("document.querySelector('#status').textContent == ''")
            tab.problems.clear()  # that nobody answered


async def test_nothing_but_questions_is_sent(tab):
    async with shown(demo_objects(), tab, "#/pod/shop%2Fwarehouse"):
        await tab.shows("What it waits for")
        for key in "cqdw":
            await tab.press(key)
        await tab.click("form.what-if button")
        await tab.shows("As it is now")
        assert {(method, door) for method, door in tab.sent if method != "GET"} == {("POST", "api/what-if")}
