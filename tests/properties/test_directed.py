"""Scenes made on purpose, for rules that random ones seldom bring out."""

from __future__ import annotations

from typing import Any

import pytest
from comparing import assert_agree, comparable
from drawing import nodes, pods
from drawing.clusters import STARTS, Scene
from drawing.profiles import alone
from drawing.words import HOSTNAME, ZONE
from histories import History
from twins.cycle import Profile

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}


def node(name: str, *, cpu: str = "4", **labels: str) -> Any:
    return nodes.node(name, node_kind(cpu, **labels))


def node_kind(cpu: str = "4", **labels: str) -> Any:
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}
    found = {ZONE if key == "zone" else key: value for key, value in labels.items()}
    return {"labels": found, "hostname": "own", "spec": {}, "status": status}


def pod_kind(cpu: str = "1", app: str = "web", **spec: Any) -> Any:
    container = {"name": "c0", "image": "web", "resources": {"requests": {"cpu": cpu}}}
    meta = {"namespace": "default", "labels": {"app": app}}
    return {"metadata": meta, "spec": {"containers": [container], **spec}, "status": {}}


def pod(name: str, node_name: str = "", *, start: str | None = None, **kind: Any) -> Any:
    status = {"startTime": start} if start else {}
    return pods.pod(name, pod_kind(**kind), node=node_name, status=status)


def service(app: str) -> Any:
    meta = {"name": "web", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": {"app": app}}}


def budget(allowed: int) -> Any:
    meta = {"name": "b", "namespace": "default"}
    spec, status = {"selector": WEB}, {"disruptionsAllowed": allowed}
    return {"kind": "PodDisruptionBudget", "metadata": meta, "spec": spec, "status": status}


def zone_term(weight: int, app: str) -> Any:
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}}
    return {"weight": weight, "podAffinityTerm": term}


@pytest.mark.parametrize("policy", ["Honor", "Ignore"])
def test_nodes_the_pod_cannot_go_to_count_or_not(policy):
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": WEB,
        "nodeAffinityPolicy": policy,
    }
    objects = [node("a", zone="x", disk="ssd"), node("b", zone="y"), pod("p", "a")]
    new = pod("new", nodeSelector={"disk": "ssd"}, topologySpreadConstraints=[constraint])
    assert_agree(Scene(objects, [new]), alone("PodTopologySpread"))


@pytest.mark.parametrize("share", [29, 57, 58])
def test_pod_affinity_is_divided_before_it_is_scaled(share):
    objects = [node("a", zone="x"), node("b", zone="y"), node("c", zone="z")]
    objects += [pod("some", "a", app="some"), pod("all", "b", app="all")]
    affinity = {"podAffinity": {PREFERRED: [zone_term(share, "some"), zone_term(100, "all")]}}
    assert_agree(Scene(objects, [pod("new", affinity=affinity)]), alone("InterPodAffinity"))


@pytest.mark.parametrize("partner", [True, False])
def test_the_first_of_its_kind_may_go_anywhere_and_the_next_may_not(partner):
    affinity = {"podAffinity": {REQUIRED: [{"topologyKey": ZONE, "labelSelector": WEB}]}}
    objects = [node("a", zone="x"), node("b", zone="y"), *([pod("p", "a")] if partner else [])]
    assert_agree(Scene(objects, [pod("new", affinity=affinity)]), alone("InterPodAffinity"))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_names_in_one_term_must_all_hold(names):
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in names]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields}]}}}
    assert_agree(Scene([node("a"), node("b")], [pod("new", affinity=affinity)]), alone("NodeAffinity"))


@pytest.mark.parametrize("starts", [(None, None, None), STARTS[:3], STARTS[2::-1], (None, STARTS[0], None)])
def test_which_of_several_alike_is_evicted(starts):
    objects = [node("a", cpu="3")]
    objects += [pod(f"p{number}", "a", start=start) for number, start in enumerate(starts)]
    assert_agree(Scene(objects, [pod("new", priority=10)]), Profile())


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_budget_is_spent_to_the_last(allowed):
    objects = [budget(allowed)]
    for name, app in (("a", "web"), ("b", "db")):
        objects += [node(name, cpu="2"), *(pod(f"{name}{number}", name, app=app) for number in range(2))]
    assert_agree(Scene(objects, [pod("new", cpu="2", priority=10)]), Profile())


def assert_like_new(objects: list[Any], new: Any, *steps: Any) -> None:
    """After the steps, with a decision before, between and after them."""
    history = History(Scene(objects, [new]), {}, [])
    for step in steps:
        history.take(("decide", 0))
        history.take(step)
    warm, cold = (planner.decide(history.pending[0]) for planner in (history.planner, history.from_scratch()))
    assert comparable(warm.as_golden()) == comparable(cold.as_golden())


def test_a_node_that_changes_after_a_pod_came_to_it():
    steps = [("assume", "q0", "a", pod_kind()), ("node", "a", node_kind("3")), ("node", "a", node_kind("1"))]
    assert_like_new([node("a"), node("b"), node("c")], pod("new"), *steps)


def test_labels_that_take_the_place_of_others():
    constraint = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule"}
    new = pod("new", topologySpreadConstraints=[constraint | {"labelSelector": WEB}])
    steps = [("assume", "q0", "a", pod_kind(app="db")), ("forget", "q0"), ("assume", "q1", "a", pod_kind())]
    assert_like_new([node("a"), node("b")], new, *steps)


def test_a_service_that_selects_other_pods_now():
    objects = [node("a"), node("b"), pod("p", "a"), service("db")]
    assert_like_new(objects, pod("new"), ("other", service("web"), True), ("other", service("db"), True))
    assert_like_new(objects, pod("new"), ("other", service("web"), True))
