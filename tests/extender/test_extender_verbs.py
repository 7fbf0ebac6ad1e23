"""What the plugins of a profile answer to kube-scheduler, verb by verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from extender_staging import alone, asking, binding, node, pod, serving

from stowplan import CycleState, Node, NodeTable, Plugin, Pod, Reject, Scores, Status, scale_to_max
from stowplan.api.extender import ExtenderBindingArgs
from stowplan.client.errors import Conflict
from stowplan.extender.verbs import ExtenderBinder, ProfileVerbs


class EvenOnly(Plugin):
    """Takes nodes whose name ends in an even number, one node at a time."""

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        return None if int(node.name[1:]) % 2 == 0 else Status.unschedulable("odd", "and so not even")


class OddIsHopeless(Plugin):
    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        odd = np.array([int(name[1:]) % 2 == 1 for name in nodes.names], np.bool_)
        yield Reject(odd, "is odd", unresolvable=True)


class OnlyN2(Plugin):
    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> frozenset[str]:
        return frozenset({"n2"})


class RefusesAll(Plugin):
    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status:
        return Status.unresolvable("no such pod here")


class ByNumber(Plugin):
    """The number in a node's name, scaled to the highest of those asked about."""

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        return int(node.name[1:])

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores)


class Half(Plugin):
    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        return 50


NODES = [node(f"n{number}") for number in range(1, 5)]


async def filtered(plugin, *, names=("n1", "n2")):
    async with serving(*NODES, plugins={"X": plugin}, profiles=[alone("X")]) as stage:
        return (await stage.ask("/p/filter", asking(pod(), *names))).json


@pytest.mark.parametrize(
    ("plugin", "failed", "hopeless"),
    [
        pytest.param(EvenOnly, {"n1": "odd, and so not even"}, {}, id="one node at a time"),
        pytest.param(OddIsHopeless, {}, {"n1": "is odd"}, id="all nodes at once, unresolvable"),
        pytest.param(OnlyN2, {}, {"n1": "node(s) didn't satisfy plugin(s) [X]"}, id="a narrowed search"),
    ],
)
async def test_filter_says_why_a_node_is_dropped(plugin, failed, hopeless):
    answer = await filtered(plugin)
    assert answer["NodeNames"] == ["n2"]
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == (failed, hopeless)


async def test_a_pod_refused_as_a_whole_has_no_node_left():
    answer = await filtered(RefusesAll)
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(("n1", "n2"), "no such pod here")


@pytest.mark.parametrize("plugin", [EvenOnly, OddIsHopeless])
async def test_nodes_that_are_not_known_are_dropped(plugin):
    answer = await filtered(plugin, names=("n2", "n7", "n4"))
    assert answer["NodeNames"] == ["n2", "n4"]
    assert answer["FailedNodes"] == {"n7": "the extender does not know this node"}


async def test_all_that_runs_on_a_node_counts():
    async with serving(node("n1"), node("n2"), pod("b", on="n1", cpu="3500m")) as stage:
        answer = (await stage.ask("/p/filter", asking(pod(), "n1", "n2"))).json
        assert answer["NodeNames"] == ["n2"]
        stage.see(pod("c", on="n2", cpu="3500m"))
        answer = (await stage.ask("/p/filter", asking(pod(), "n1", "n2"))).json
    assert answer["FailedNodes"] == dict.fromkeys(("n1", "n2"), "Insufficient cpu")


@pytest.mark.parametrize(
    ("max_score", "names", "scores"),
    [
        pytest.param(10, ("n1", "n2"), [5, 10], id="0 to 10"),
        pytest.param(10, ("n1", "n2", "n4"), [3, 5, 10], id="normalised over the nodes asked about"),
        pytest.param(100, ("n1", "n3"), [33, 100], id="finer"),
        pytest.param(10, ("n4", "n9", "n2"), [10, 5, 0], id="an unknown node gets nothing"),
        pytest.param(10, ("n4", "n3", "n2", "n1"), [10, 8, 5, 3], id="all nodes, in another order"),
    ],
)
@pytest.mark.parametrize("after_filter", [False, True])
async def test_prioritize(max_score, names, scores, after_filter):
    known = [name for name in names if name != "n9"] + [name for name in names if name == "n9"]
    async with serving(*NODES, plugins={"X": ByNumber}, profiles=[alone("X")], max_score=max_score) as stage:
        if after_filter:
            await stage.ask("/p/filter", asking(pod(), *names))
        answer = (await stage.ask("/p/prioritize", asking(pod(), *names))).json
    assert answer == [{"Host": name, "Score": score} for name, score in zip(known, scores, strict=True)]


async def test_scores_are_weighted():
    profile = alone("X", "Y")
    profile["plugins"]["multiPoint"]["enabled"][-2]["weight"] = 3
    plugins = {"X": ByNumber, "Y": Half}
    async with serving(*NODES, plugins=plugins, profiles=[profile], max_score=100) as stage:
        answer = (await stage.ask("/p/prioritize", asking(pod(), "n2", "n4"))).json
    assert [each["Score"] for each in answer] == [50, 88]  # (3·50 + 50) / 4 and (3·100 + 50) / 4, rounded


async def test_prioritize_after_filter_sees_what_filter_left():
    async with serving(*NODES, plugins={"X": EvenOnly, "Y": ByNumber}, profiles=[alone("X", "Y")]) as stage:
        left = (await stage.ask("/p/filter", asking(pod(), "n4", "n3", "n2"))).json["NodeNames"]
        answer = (await stage.ask("/p/prioritize", asking(pod(), *left))).json
    assert answer == [{"Host": "n4", "Score": 10}, {"Host": "n2", "Score": 5}]


async def test_several_profiles_have_their_own_paths():
    profiles = [alone("X"), {**alone("Y"), "schedulerName": "q"}]
    plugins = {"X": EvenOnly, "Y": OnlyN2}
    async with serving(*NODES, plugins=plugins, profiles=profiles) as stage:
        first = (await stage.ask("/p/filter", asking(pod(), "n2", "n4"))).json
        second = (await stage.ask("/q/filter", asking(pod(), "n2", "n4"))).json
    assert (first["NodeNames"], second["NodeNames"]) == (["n2", "n4"], ["n2"])


async def test_paths_can_be_set():
    paths = {verb: f"/mine/{{profile}}/{verb}-it" for verb in ("filter", "prioritize", "preempt", "bind")}
    async with serving(*NODES, paths=paths) as stage:
        assert (await stage.ask("/mine/p/filter-it", asking(pod(), "n1"))).json["NodeNames"] == ["n1"]
        assert (await stage.ask("/p/filter", asking(pod(), "n1"))).status == 404


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"pod": pod(), "nodenames": ["n1"]}, id="all lower case"),
        pytest.param({"POD": pod(), "NODENAMES": ["n1"], "NODES": None}, id="all upper case"),
        pytest.param({"pod": pod(), "nodeNames": ["n1"], "later": 1}, id="camel case, with an unknown field"),
        pytest.param({"Pod": pod(), "Nodes": {"Items": [node("n1")]}}, id="whole nodes, items capitalised"),
    ],
)
async def test_field_names_may_have_any_case(args):
    async with serving(*NODES) as stage:
        answer = (await stage.ask("/p/filter", args)).json
    assert answer["Error"] == ""
    assert answer["NodeNames"] == ["n1"] or answer["Nodes"]["items"] == [node("n1")]


def victims(*uids: str, violations: int = 0):
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}


async def test_preempt_keeps_the_nodes_that_fit_once_the_victims_are_gone():
    running = [pod("v1", on="n1", cpu="3"), pod("v2", on="n2", cpu="2"), pod("stays", on="n2", cpu="2")]
    asked = {
        "n1": victims("uid-v1", violations=1),
        "n2": victims("uid-v2"),
        "n8": victims("uid-of-somewhere-else"),
    }
    async with serving(*NODES, *running) as stage:
        args = {"Pod": pod("urgent", cpu="3"), "NodeNameToMetaVictims": asked, "NodeNameToVictims": None}
        answer = (await stage.ask("/p/preempt", args)).json
    assert answer == {"NodeNameToMetaVictims": {"n1": asked["n1"]}}


async def test_preempt_drops_nodes_that_a_plugin_refuses_whoever_goes():
    async with serving(*NODES, plugins={"X": EvenOnly}, profiles=[alone("X")]) as stage:
        asked = {"n1": victims("u1"), "n2": victims("u2")}
        answer = (await stage.ask("/p/preempt", {"Pod": pod(), "NodeNameToMetaVictims": asked})).json
    assert answer["NodeNameToMetaVictims"] == {"n2": asked["n2"]}


class Steps(Plugin):
    """Writes down what happens to a pod, and refuses where it is told to."""

    done: list[str] = []
    refuse = ""

    def note(self, step: str) -> Status | None:
        self.done.append(step)
        return Status.unschedulable(f"{step} says no") if self.refuse == step else None

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return self.note("reserve")

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self.note("unreserve")

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return self.note("permit")

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return self.note("pre_bind")

    async def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self.note("post_bind")


async def bound(refuse="", *, about=None, objects=NODES, fails=None, node_name="n1"):
    kind: Any = type("Steps", (Steps,), {"done": [], "refuse": refuse})
    async with serving(*objects, plugins={"X": kind}, profiles=[alone("X", "NodeResourcesFit")]) as stage:
        stage.api.refuse = fails
        await stage.ask("/p/filter", asking(about or pod(), "n1"))
        answer = (await stage.ask("/p/bind", binding(about or pod(), node_name))).json
        await asyncio.sleep(0.01)
        assumed = stage.extender.scheduler.cluster.assumed_count
    return answer["Error"], kind.done, stage.api.bound, assumed


async def test_bind_runs_the_points_after_the_choice():
    error, done, bindings, assumed = await bound()
    assert (error, bindings, assumed) == ("", {"default/a": "n1"}, 1)
    assert done == ["reserve", "permit", "pre_bind", "post_bind"]


@pytest.mark.parametrize(
    ("step", "done"),
    [
        ("reserve", ["reserve", "unreserve"]),
        ("permit", ["reserve", "permit", "unreserve"]),
        ("pre_bind", ["reserve", "permit", "pre_bind", "unreserve"]),
    ],
)
async def test_a_point_that_refuses_undoes_the_binding(step, done):
    error, seen, bindings, assumed = await bound(step)
    assert f"{step} says no" in error
    assert error.startswith("Stowplan extender /p/bind: ")
    assert (seen, bindings, assumed) == (done, {}, 0)


async def test_what_the_api_server_says_of_a_binding_is_told():
    fails = Conflict(409, "Conflict", "pod a is already assigned to node n3")
    error, seen, _, assumed = await bound(fails=fails)
    assert "already assigned to node n3" in error or "nothing at" in error
    assert seen[-1] == "unreserve"
    assert assumed == 0


async def test_a_node_without_room_is_not_bound_to():
    error, seen, bindings, _ = await bound(about=pod(cpu="8"))
    assert error == "Stowplan extender /p/bind: node n1 rejects the pod: Insufficient cpu"
    assert (seen, bindings) == ([], {})


async def test_an_unknown_node_is_not_bound_to():
    error, *_ = await bound(node_name="n9")
    assert "the extender does not know this node" in error


async def test_a_pod_that_was_not_asked_about_is_read_from_the_api_server():
    async with serving(*NODES) as stage:
        stage.api.pods["/api/v1/namespaces/default/pods/a"] = pod()
        assert (await stage.ask("/p/bind", binding(pod(), "n1"))).json == {"Error": ""}
        assert stage.api.bound == {"default/a": "n1"}
        stage.api.pods["/api/v1/namespaces/default/pods/b"] = pod("b")
        other = binding(pod("b"), "n1") | {"PodUID": "of-the-pod-before"}
        assert "it is another pod" in (await stage.ask("/p/bind", other)).json["Error"]


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_bound_pod_that_is_never_seen_does_not_count_for_ever(is_seen):
    async with serving(*NODES) as stage:
        scheduler = stage.extender.scheduler
        verbs = ProfileVerbs(scheduler.profiles["p"], scheduler.cluster)
        binder = ExtenderBinder(scheduler.shared, scheduler.binder, verbs, confirmed_seconds=0.02)
        stage.api.pods["/api/v1/namespaces/default/pods/a"] = pod()
        args = ExtenderBindingArgs(pod_name="a", pod_namespace="default", pod_uid="uid-a", node="n1")
        assert await binder.bind(args) == ""
        if is_seen:
            stage.see(pod(on="n1"))
        await asyncio.sleep(0.05)
        assert (scheduler.cluster.pod("uid-a") is not None) is is_seen


async def test_plugins_that_no_verb_comes_to_are_named(caplog):
    async with serving(*NODES, plugins={"X": Steps}, profiles=[alone("X")], verbs=("filter", "prioritize")):
        pass
    (record,) = [each for each in caplog.records if "Plugins are not used" in each.getMessage()]
    assert set(record.fields["plugins"]) == {"PrioritySort", "DefaultBinder", "X"}


async def test_health_and_metrics():
    async with serving(*NODES, is_synced=False) as stage:
        assert (await stage.ask("/readyz", method="GET")).status == 500
        stage.extender.scheduler.follower.is_synced = True
        for page in ("/healthz", "/livez", "/readyz"):
            assert await stage.ask(page, method="GET") == (200, b"ok\n")
        await stage.ask("/p/filter", asking(pod(), "n1"))
        page = (await stage.ask("/metrics", method="GET")).body.decode()
    assert 'stowplan_extender_requests_total{path="/p/filter",result="success"} 1' in page
    assert 'stowplan_extender_duration_seconds_count{path="/p/filter"} 1' in page
