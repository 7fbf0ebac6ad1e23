"""`stowplan run` calling an extender of others, on a real control plane: each verb, each failure."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import pytest

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import PODS, add_nodes, condition, create, placed
from controlplane.waiting import eventually
from other_extender import OtherExtender, Raw, other_extender

NODES = ("n1", "n2", "n3")


def calling(other: OtherExtender, **fields: Any) -> dict[str, Any]:
    return {"urlPrefix": other.url, "nodeCacheCapable": True, **fields}


async def where(control_plane: ControlPlane, name: str = "p") -> str:
    found = await eventually(lambda: placed(control_plane), lambda each: each[name])
    return found[name]


async def test_filter_and_prioritize_by_name(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    with (
        other_extender(
            filter=lambda body: {"NodeNames": ["n1", "n3"], "FailedNodes": {"n2": "not today"}},
            prioritize=lambda body: [{"Host": "n3", "Score": 10}, {"Host": "n2", "Score": 10}],
        ) as other,
        control_plane.stowplan(
            "-v=5",
            extenders=[calling(other, filterVerb="filter", prioritizeVerb="prioritize", weight=5)],
        ) as scheduler,
    ):
        create(control_plane, pod("p"))
        assert await where(control_plane) == "n3"
        name = f"Extender {other.url}"
        assert f'plugin="{name}" node="n2" status="not today"' in scheduler.output
        assert f'plugin="{name}" node="n3" score=500' in scheduler.output
        assert sorted(other.bodies("filter")[0]["NodeNames"]) == list(NODES)
        assert sorted(other.bodies("prioritize")[0]["NodeNames"]) == ["n1", "n3"]


async def test_whole_objects_as_the_api_server_has_them(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    with (
        other_extender(filter=lambda body: {"Nodes": {"items": body["Nodes"]["items"][:1]}}) as other,
        control_plane.stowplan(extenders=[calling(other, filterVerb="filter", nodeCacheCapable=False)]),
    ):
        create(control_plane, pod("p"))
        chosen = await where(control_plane)
        body = other.bodies("filter")[0]
        assert chosen == body["Nodes"]["items"][0]["metadata"]["name"]
        served = control_plane.request("GET", f"/api/v1/nodes/{chosen}")
        assert body["Nodes"]["items"][0]["metadata"]["managedFields"] == served["metadata"]["managedFields"]
        mine = control_plane.request("GET", f"{PODS}/p")
        assert body["Pod"]["spec"] == {key: value for key, value in mine["spec"].items() if key != "nodeName"}
        assert not {"kind", "apiVersion"} & body["Pod"].keys()
        assert "managedFields" not in body["Pod"]["metadata"]


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        pytest.param(
            {"NodeNames": [], "FailedNodes": dict.fromkeys(NODES, "not today")},
            "Unschedulable",
            "0/3 nodes are available: 3 not today.",
            id="all refused",
        ),
        pytest.param(
            {"Error": "out of order"}, "SchedulerError", 'extender "{url}": out of order', id="error"
        ),
        pytest.param(
            Raw(500, b""),
            "SchedulerError",
            "failed filter with extender at URL {url}/filter, code 500",
            id="500",
        ),
        pytest.param(
            Raw(200, b"<html>"),
            "SchedulerError",
            'cannot decode the response of the extender at URL "{url}/filter": is not JSON',
            id="garbage",
        ),
        pytest.param(
            {"NodeNames": ["ghost"]},
            "SchedulerError",
            'extender "{url}" claims a filtered node "ghost" which is not found in the input node list',
            id="an unknown node",
        ),
        pytest.param("never", "SchedulerError", 'Post "{url}/filter": no answer within 0.5s', id="never"),
    ],
)
async def test_the_pod_says_which_extender_and_why_and_is_placed_once_it_recovers(
    control_plane, answer, reason, said
):
    add_nodes(control_plane, *map(node, NODES))
    over = threading.Event()
    with (
        other_extender(filter=lambda body: over.wait(20) and {} if answer == "never" else answer) as other,
        control_plane.stowplan(extenders=[calling(other, filterVerb="filter", httpTimeout="500ms")]),
    ):
        create(control_plane, pod("p"))
        found = await eventually(lambda: condition(control_plane, "p"), bool)
        assert found["reason"] == reason
        assert found["message"].startswith(said.format(url=other.url))
        events = await eventually(
            lambda: control_plane.kubectl("describe", "pod", "p"), lambda text: said[:5] in text
        )
        assert said.format(url=other.url)[:60] in events
        other.says["filter"] = lambda body: {"NodeNames": body["NodeNames"]}
        over.set()
        control_plane.kubectl("label", "node", "n1", "some=event")
        await where(control_plane)


async def test_preempt_vetoes_a_node(control_plane, kubelets):
    add_nodes(control_plane, node("n1"), node("n2"))
    for name, priority in (("low", 0), ("middle", 5), ("high", 9)):
        priority_class = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": priority}
        create(control_plane, {**priority_class, "metadata": {"name": name}})
    big = {"requests": {"cpu": "3"}}

    def veto(body: dict[str, Any]) -> dict[str, Any]:
        return {"NodeNameToMetaVictims": {"n2": body["NodeNameToMetaVictims"]["n2"]}}

    try:
        create(
            control_plane,
            pod("a", nodeName="n1", priorityClassName="low", **big),
            pod("b", nodeName="n2", priorityClassName="middle", **big),
        )
        with (
            other_extender(preempt=veto) as other,
            control_plane.stowplan(extenders=[calling(other, preemptVerb="preempt")]),
        ):
            create(control_plane, pod("p", priorityClassName="high", **big))
            assert await where(control_plane) == "n2"
            assert placed(control_plane)["a"] == "n1"
    finally:
        control_plane.kubectl("delete", "priorityclass", "low", "middle", "high")


async def test_an_extender_binds_what_it_manages(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))

    def bind(body: dict[str, Any]) -> dict[str, Any]:
        target = {"kind": "Node", "name": body["Node"]}
        meta = {"name": body["PodName"], "namespace": body["PodNamespace"], "uid": body["PodUID"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        control_plane.request("POST", f"{PODS}/{body['PodName']}/binding", binding)
        return {}

    managed = [{"name": "example.com/gpu", "ignoredByScheduler": True}]
    with (
        other_extender(bind=bind) as other,
        control_plane.stowplan(extenders=[calling(other, bindVerb="bind", managedResources=managed)]),
    ):
        with_gpu = pod("with-gpu")
        with_gpu["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
        create(control_plane, pod("plain"), with_gpu)
        await where(control_plane, "plain")
        await where(control_plane, "with-gpu")
        assert [body["PodName"] for body in other.bodies("bind")] == ["with-gpu"]


async def test_nothing_hangs_with_an_extender_that_never_answers(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    over = threading.Event()
    with other_extender(filter=lambda body: over.wait(60)) as other:
        managed = [{"name": "example.com/gpu", "ignoredByScheduler": True}]
        slow = calling(other, filterVerb="filter", managedResources=managed, httpTimeout="60s")
        with control_plane.stowplan(extenders=[slow]) as scheduler:
            with_gpu = pod("with-gpu")
            with_gpu["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
            create(control_plane, with_gpu)
            await eventually(lambda: other.asked, bool)
            for page in ("/livez", "/readyz"):
                assert ask(scheduler.server, page)[0] == 200
            began = time.monotonic()
            scheduler.stop()
            assert time.monotonic() - began < 25  # not the 60 s that the extender may take
        over.set()


async def test_extenders_are_read_again_on_sighup_and_impossible_ones_refused(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    with (
        other_extender(filter=lambda body: {"NodeNames": ["n1"]}) as first,
        other_extender(filter=lambda body: {"NodeNames": ["n2"]}) as second,
        control_plane.stowplan(extenders=[calling(first, filterVerb="filter")]) as scheduler,
    ):
        file = control_plane.folder / "stowplan.json"
        config = json.loads(file.read_text())
        file.write_text(
            json.dumps({**config, "extenders": [{"urlPrefix": "nowhere", "filterVerb": "filter"}]})
        )
        scheduler.send(signal.SIGHUP)
        await eventually(lambda: scheduler.output, lambda text: "'nowhere' is not a URL" in text)
        create(control_plane, pod("p"))
        assert await where(control_plane) == "n1"
        file.write_text(json.dumps({**config, "extenders": [calling(second, filterVerb="filter")]}))
        scheduler.send(signal.SIGHUP)
        await eventually(lambda: scheduler.output, lambda text: "Configuration reloaded" in text)
        create(control_plane, pod("q"))
        assert await where(control_plane, "q") == "n2"


# Beside kube-scheduler


def requests_of(other: OtherExtender) -> dict[str, Any]:
    """The first request of each verb, less what differs from one pod of that name to the next."""
    found: dict[str, Any] = {}
    for verb, body in other.asked:
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            body.get("Pod", {}).get("metadata", {}).pop(field, None)
        body.pop("PodUID", None)
        if body.get("NodeNames"):
            body["NodeNames"].sort()
        if body.get("Nodes"):
            body["Nodes"]["items"].sort(key=lambda item: item["metadata"]["name"])
        found.setdefault(verb, body)
    return found


def remove_pod(control_plane: ControlPlane) -> None:
    control_plane.kubectl("delete", "pod", "p", "--force", "--grace-period=0")


@pytest.mark.parametrize("capable", [pytest.param(True, id="names"), pytest.param(False, id="whole")])
async def test_asks_what_kube_scheduler_asks(control_plane, capable):
    add_nodes(control_plane, *map(node, NODES))
    seen = []
    for scheduler in (control_plane.kube_scheduler, control_plane.stowplan):
        with other_extender(
            filter=lambda body: {"NodeNames": body["NodeNames"], "Nodes": body["Nodes"]},
            prioritize=lambda body: [],
            bind=lambda body: {"Error": "not today"},
        ) as other:
            verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 1}
            with scheduler(extenders=[calling(other, **verbs, nodeCacheCapable=capable)]):
                create(control_plane, pod("p"))
                await eventually(lambda: other.bodies("bind"), bool)
            remove_pod(control_plane)
            seen.append(requests_of(other))
    theirs, ours = seen
    assert ours["bind"].pop("Node") in NODES
    assert theirs["bind"].pop("Node") in NODES
    assert ours == theirs


@pytest.mark.parametrize("capable", [pytest.param(True, id="names"), pytest.param(False, id="whole")])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"NodeNameToMetaVictims": {}}, id="none left"),
        pytest.param({"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}]}}}, id="no such pod"),
        pytest.param(Raw(500, b""), id="500"),
    ],
)
async def test_preempts_as_kube_scheduler_does(control_plane, capable, answer):
    add_nodes(control_plane, node("n1"), node("n2"))
    big = {"requests": {"cpu": "3"}}
    create(
        control_plane,
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 9,
        },
        pod("a", nodeName="n1", **big),
        pod("b", nodeName="n2", **big),
    )
    seen, said = [], []
    try:
        with other_extender(preempt=lambda body: answer) as other:
            for scheduler in (control_plane.kube_scheduler, control_plane.stowplan):
                with scheduler(extenders=[calling(other, preemptVerb="preempt", nodeCacheCapable=capable)]):
                    create(control_plane, pod("p", priorityClassName="high", **big))
                    said.append((await eventually(lambda: condition(control_plane, "p"), bool))["message"])
                remove_pod(control_plane)
                seen.append(requests_of(other)["preempt"])
                other.asked.clear()
    finally:
        control_plane.kubectl("delete", "priorityclass", "high")
    assert seen[1] == seen[0]
    assert said[1] == said[0].replace("&{x}", "x")  # it prints the uid with the braces of its Go type


@pytest.mark.parametrize(
    ("answer", "prefix"),
    [
        pytest.param({"NodeNames": ["n1"], "FailedNodes": {"n2": "no"}}, "", id="some"),
        pytest.param({"FailedNodes": {"n1": "no", "n2": "not"}}, "", id="reasons"),
        pytest.param(
            {"FailedNodes": {"n1": "no", "n2": "not"}, "FailedAndUnresolvableNodes": {"n1": "never"}},
            "",
            id="for good",
        ),
        pytest.param({}, "", id="no reasons"),
        pytest.param(Raw(500, b""), "", id="500"),
        pytest.param({"NodeNames": ["ghost"]}, "", id="an unknown node"),
        pytest.param(
            {"Error": "out of order"}, 'extender "{url}": ', id="an error, of whom we say whose it is"
        ),
    ],
)
async def test_says_what_kube_scheduler_says(control_plane, answer, prefix):
    add_nodes(control_plane, node("n1", unschedulable=answer == {}), node("n2"), node("n3"))
    said = []
    with other_extender(filter=lambda body: answer) as other:
        for scheduler in (control_plane.kube_scheduler, control_plane.stowplan):
            with scheduler(extenders=[calling(other, filterVerb="filter")]):
                create(control_plane, pod("p"))
                found = await eventually(lambda: condition(control_plane, "p"), bool)
                said.append((found.get("reason", ""), found.get("message", "")))
            remove_pod(control_plane)
        assert said[1] == (said[0][0], said[0][1] and prefix.format(url=other.url) + said[0][1])
