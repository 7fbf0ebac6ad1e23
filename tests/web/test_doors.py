"""What the page asks, over HTTP: the cluster, the queue, decisions as they come, what-if."""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
import pytest

from make import make_node, make_pod
from page_world import page_world
from stowplan.web import answer_by_name, make_pages, serve_locally
from stowplan.web.views import FULL, NONE

ZONE = "topology.kubernetes.io/zone"
NODES = (
    make_node("a", labels={ZONE: "east"}, allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}),
    make_node(
        "b",
        labels={ZONE: "west"},
        allocatable={"cpu": "8", "memory": "8Gi", "pods": "5", "gpu.example/x": "2"},
    ),
    make_node("c", unschedulable=True, taints=["gone:NoExecute"]),
)
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True, "uid": "u"}]}


class Asking:
    def __init__(self, session, link, world):
        self.session, self.link, self.world = session, link, world

    async def get(self, door, status=200, **query):
        async with self.session.get(f"{self.link}api/{door}", params=query) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def what_if(self, status=200, **asked):
        async with self.session.post(f"{self.link}api/what-if", json=asked) as response:
            assert response.status == status, await response.text()
            return await response.json()


@asynccontextmanager
async def asking(*objects, config=None):
    async with (
        page_world(objects, config) as world,
        serve_locally(answer_by_name(world.pages)) as link,
        aiohttp.ClientSession() as session,
    ):
        await world.settle()
        yield Asking(session, link, world)


def filled(answer):
    return list(base64.b64decode(answer["fill"]))


async def test_the_cluster_by_zone():
    async with asking(*NODES) as page:
        found = await page.get("cluster")
        assert found["nodes"] == ["a", "b", "c"]
        assert [found["zones"][each] if each >= 0 else "" for each in found["zoneOf"]] == ["east", "west", ""]
        assert (found["cordoned"], found["tainted"]) == ([2], [2])
        assert found["resources"] == ["cpu", "memory", "pods", "gpu.example/x"]


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        pytest.param("cpu", [FULL // 2, 0, 0], id="a resource"),
        pytest.param("pods", [FULL // 10, 0, 0], id="pods are counted"),
        pytest.param("gpu.example/x", [NONE, 0, NONE], id="a resource that few have"),
        pytest.param("fullest", [FULL * 3 // 4, 0, 0], id="the fullest of what all have"),
        pytest.param("<b>", [NONE] * 3, id="a resource that nobody has"),
    ],
)
async def test_how_full_nodes_are(resource, expected):
    async with asking(*NODES, make_pod("p", node="a", requests={"cpu": "2", "memory": "6Gi"})) as page:
        assert filled(await page.get("live", resource=resource)) == expected


async def test_decisions_come_once_and_in_order():
    async with asking(*NODES, make_pod("one"), make_pod("two")) as page:
        first = await page.get("live")
        assert [each["pod"] for each in first["decisions"]] == ["default/two", "default/one"]
        assert (first["number"], first["outcomes"], first["missed"]) == (2, {"scheduled": 2}, 0)
        assert 0 < first["median"] <= first["slowest"]
        waiting = asyncio.create_task(
            page.get("live", run=first["run"], after=first["number"], state=first["state"])
        )
        await asyncio.sleep(0.05)
        assert not waiting.done()  # nothing new, so the answer waits
        page.world.see([make_pod("three")])
        second = await waiting
        assert [each["pod"] for each in second["decisions"]] == ["default/three"]
        assert second["number"] == 3


async def test_more_decisions_than_a_page_can_show_are_counted():
    async with asking(make_node("a", allocatable={"cpu": "99", "pods": "999"}), make_pod("first")) as page:
        before = await page.get("live")
        page.world.see(make_pod(f"p{number}") for number in range(300))
        await page.world.settle(3000)
        found = await page.get("live", run=before["run"], after=before["number"])
        assert (found["number"], len(found["decisions"]), found["missed"]) == (301, 200, 100)
        assert found["outcomes"] == {"scheduled": 300}


async def test_a_page_of_an_earlier_run_is_told_all_anew():
    async with asking(*NODES, make_pod("one")) as page:
        found = await page.get("live", run="another", after=1000)
        assert [each["pod"] for each in found["decisions"]] == ["default/one"]


async def test_a_change_of_nodes_is_another_layout():
    async with asking(*NODES) as page:
        seen = [(await page.get("live"))["layout"]]
        for node in (
            make_node("d"),
            make_node("a", labels={ZONE: "west"}),
            make_node("a", unschedulable=True),
        ):
            page.world.scheduler.cluster.add_node(node)
            seen.append((await page.get("live"))["layout"])
        assert len(set(seen)) == 4


async def test_the_queue_and_what_pods_wait_for():
    gated = make_pod("gated", schedulingGates=[{"name": "later"}])
    async with asking(*NODES, make_pod("big", requests={"cpu": "64"}), gated) as page:
        found = await page.get("queue")
        rows = {row["pod"]: row for row in found["pods"]}
        assert found["counts"]["unschedulable"] == found["counts"]["gated"] == 1
        assert rows["default/big"]["plugins"] == ["NodeResourcesFit", "NodeUnschedulable"]
        assert rows["default/big"]["message"].startswith("0/3 nodes are available: ")
        assert rows["default/gated"]["plugins"] == ["SchedulingGates"]
        assert [row["pod"] for row in (await page.get("queue", search="gat"))["pods"]] == ["default/gated"]


async def test_a_pod_that_waits_and_one_that_runs():
    async with asking(*NODES, make_pod("p", labels={"app": "<b>"}, requests={"cpu": "500m"})) as page:
        found = await page.get("pod", pod="default/p")
        assert (found["node"], found["requests"], found["labels"]) == ("b", {"cpu": "500m"}, {"app": "<b>"})
        page.world.see([make_pod("big", requests={"cpu": "64"})])
        await page.world.settle()
        found = await page.get("pod", pod="default/big")
        assert (found["node"], found["queued"]["place"], found["queued"]["attempts"]) == (
            "",
            "unschedulable",
            1,
        )
        assert await page.get("pod", pod="default/nobody") is None


async def test_a_node_with_its_pods():
    async with asking(*NODES, make_pod("p", node="a", requests={"cpu": "1", "memory": "2Gi"})) as page:
        found = await page.get("node", name="a")
        amounts = {each["resource"]: (each["requested"], each["allocatable"]) for each in found["amounts"]}
        assert amounts == {"cpu": ("1", "4"), "memory": ("2Gi", "8Gi"), "pods": ("1", "10")}
        assert [(pod["pod"], pod["cpu"], pod["memory"]) for pod in found["pods"]] == [
            ("default/p", "1", "2Gi")
        ]
        missing = await page.get("node", status=404, name="x")
        assert missing["message"] == "node x not found (known: a, b, c)"


WEB = make_pod("web", node="a", requests={"cpu": "3"}, metadata=OWNED)
ONE_POD = """
apiVersion: v1
kind: Pod
metadata: {name: new}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 6}}}]}
"""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"drain": ["a"]}, {"default/web": "b"}, id="a node drained"),
        pytest.param({"lose": ["b"]}, {}, id="an empty node lost"),
        pytest.param(
            {"more": [{"name": "default/web", "count": 2}]},
            {"default/web-1": "b", "default/web-2": "b"},
            id="more pods",
        ),
        pytest.param(
            {"moreNodes": [{"name": "a"}], "drain": ["a", "b"]},
            {"default/web": "a-new-1"},
            id="another node",
        ),
        pytest.param({"manifests": ONE_POD}, {"default/new": "b"}, id="a manifest"),
        pytest.param({"afresh": True}, {"default/web": "b"}, id="all placed afresh"),
    ],
)
async def test_what_if(asked, expected):
    async with asking(*NODES, WEB) as page:
        found = await page.what_if(**asked)
        assert {pod["pod"]: pod["node"] for pod in found["pods"]} == expected
        assert page.world.scheduler.cluster.pod("uid-web").node_name == "a"  # nothing has happened


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param({"drain": ["x"]}, "node x not found (known: a, b, c)", id="a node that is not there"),
        pytest.param({"shutdown": True}, "unknown field `shutdown`", id="something else"),
        pytest.param({"manifests": "kind: ["}, "the manifests: ", id="no YAML"),
        pytest.param(
            {"more": [{"name": "default/web", "count": 20_000}]}, "not more than 10000 can be", id="too many"
        ),
        pytest.param({"more": [{"name": "p", "count": 0}]}, "the count must be", id="none at all"),
        pytest.param({"config": "kind: x"}, "apiVersion must be", id="no configuration"),
    ],
)
async def test_what_if_refused(asked, said):
    async with asking(*NODES, WEB) as page:
        assert said in (await page.what_if(status=400, **asked))["message"]


async def test_a_configuration_of_the_form_imports_nothing():
    version = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    plugins = "profiles: [{plugins: {score: {enabled: [{name: 'antigravity:Plugin'}]}}}]"
    async with asking(*NODES, WEB) as page:
        found = await page.what_if(status=400, config=version + plugins)
        assert "'antigravity:Plugin': plugins given as module:Class are not loaded here" in found["message"]
        strategy = "{scoringStrategy: {type: MostAllocated}}"
        most = f"profiles: [{{pluginConfig: [{{name: NodeResourcesFit, args: {strategy}}}]}}]"
        found = await page.what_if(config=version + most, afresh=True)
        assert found["changes"] == ["the configuration of the form", "every pod placed afresh"]
        assert [pod["node"] for pod in found["pods"]] == ["a"]  # the fuller one


async def test_what_if_is_asked_by_post_in_json():
    async with asking(*NODES) as page:
        await page.get("what-if", status=405)
        async with page.session.post(f"{page.link}api/what-if", data={"drain": "a"}) as response:
            assert response.status == 405


async def test_the_smallest_changes_for_a_pod_that_waits():
    async with asking(*NODES, make_pod("big", requests={"cpu": "9"})) as page:
        found = await page.get("changes", pod="default/big")
        assert found["node"] is None
        assert [each["node"] for each in found["changes"] if "cpu" in each["text"]] == ["b"]


async def test_a_pod_stays_where_others_are_as_good():
    alike = [make_node(name) for name in "abc"]
    async with asking(*alike, make_pod("p", node="b")) as page:
        assert (await page.get("changes", pod="default/p"))["node"] == "b"


async def test_before_the_scheduler_is_there():
    async with page_world() as world:
        source = world.source._replace(scheduler=lambda: None)
        async with (
            serve_locally(answer_by_name(make_pages(source))) as link,
            aiohttp.ClientSession() as session,
        ):
            page = Asking(session, link, world)
            live = await page.get("live")
            assert (live["isSynced"], live["fill"], live["decisions"]) == (False, "", [])
            assert (await page.get("cluster", status=503))["message"].startswith("the scheduler is starting")


async def test_a_question_that_is_too_long():
    async with asking(*NODES) as page:
        body = io.BytesIO(b'{"manifests": "' + b"#" * 2**21)
        headers = {"Content-Type": "application/json"}
        async with page.session.post(f"{page.link}api/what-if", data=body, headers=headers) as response:
            assert response.status == 413
            assert await response.json() == {"message": HTTPStatus(413).phrase}
