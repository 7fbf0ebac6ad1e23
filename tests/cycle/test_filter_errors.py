"""Errors of filters are those of single nodes: whom they concern, and what becomes of the pod."""

from __future__ import annotations

import numpy as np
import pytest
from staging import nodes, plan, planner_of, profile, refusals

from make import make_node, make_pod
from stowplan.errors import PluginError
from stowplan.framework import FilterError, Plugin, Reads, Reject, Status

BROKEN = 'running "{}" filter plugin: broken'


class Closed(Plugin):
    """Refuses nodes whose label says so."""

    def filter(self, state, pod, node):
        return Status.unschedulable("closed") if "closed" in node.labels else None


class SaysError(Plugin):
    """Fails on nodes whose label says so, and counts whom it was asked about."""

    asked: list[str]

    def __init__(self, args, handle):
        super().__init__(args, handle)
        type(self).asked = []

    def filter(self, state, pod, node):
        self.asked.append(node.name)
        return Status.error("broken") if "broken" in node.labels else None


class RaisesByRow(Plugin):
    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.array(["odd" in node.labels for node in nodes]), "odd")
        errors = {row: "broken" for row, node in enumerate(nodes) if "broken" in node.labels}
        if errors:
            raise FilterError(errors)


class KeptByRow(RaisesByRow):
    reads = Reads.NODE

    def sign_pod(self, pod):
        return None


FAILING = [SaysError, RaisesByRow, KeptByRow]


def cluster(**labels: str):
    return [
        make_node(name, labels=dict.fromkeys(which.split(), "") if which else {})
        for name, which in labels.items()
    ]


@pytest.mark.parametrize("plugin", FAILING)
def test_an_error_on_a_node_that_passes_ends_the_attempt(plugin):
    decision = plan(cluster(a="", b="broken"), Closed, plugin).decide(make_pod())
    assert decision.error == BROKEN.format(plugin.__name__)
    assert (decision.chosen, decision.rejected()) == (None, {})


@pytest.mark.parametrize("plugin", FAILING)
def test_no_error_on_a_node_that_was_rejected_before(plugin):
    decision = plan(cluster(a="", b="broken closed"), Closed, plugin).decide(make_pod())
    assert (decision.error, decision.chosen) == (None, "a")
    assert refusals(decision) == {"b": Status.unschedulable("closed")}


@pytest.mark.parametrize("plugin", [RaisesByRow, KeptByRow])
def test_other_nodes_are_rejected_as_without_the_error(plugin):
    decision = plan(cluster(a="odd", b="broken closed"), Closed, plugin).decide(make_pod())
    assert refusals(decision) == {
        "a": Status.unschedulable("odd"),
        "b": Status.unschedulable("closed"),
    }


def test_a_filter_that_raises_for_all_nodes_is_no_error_where_all_were_rejected():
    class Raises(Plugin):
        reads = Reads.NODE

        def sign_pod(self, pod):
            return None

        def filter_nodes(self, state, pod, nodes):
            raise ValueError("boom")

    decision = plan(cluster(a="closed"), Closed, Raises).decide(make_pod())
    assert (decision.error, refusals(decision)) == (None, {"a": Status.unschedulable("closed")})
    assert plan(cluster(a=""), Closed, Raises).decide(make_pod()).error.startswith('running "Raises"')


def test_nobody_is_asked_after_the_first_error():
    decision = plan(cluster(a="", b="broken", c="broken"), SaysError).decide(make_pod())
    assert decision.error is not None
    assert SaysError.asked == ["a", "b"]


def test_a_node_without_room_for_those_nominated_to_it_is_rejected_before_it_fails():
    """It is looked at first with the pods nominated to it."""

    class Crowded(Plugin):
        def filter(self, state, pod, node):
            if node.name == "b" and node.pods:
                return Status.unschedulable("crowded")
            return Status.error("broken") if node.name == "b" else None

    planner = plan(nodes("a", "b"), Crowded)
    planner.nominations.put(make_pod("other"), "b")
    decision = planner.decide(make_pod())
    assert (decision.error, decision.chosen) == (None, "a")
    assert refusals(decision) == {"b": Status.unschedulable("crowded")}


def test_an_error_on_the_node_that_the_pod_is_nominated_to_decides_nothing():
    class OnlyA(Plugin):
        def pre_filter(self, state, pod, nodes):
            return frozenset({"a"})

    pod = make_pod(status={"nominatedNodeName": "b"})
    assert plan(cluster(a="", b="broken"), OnlyA, SaysError).decide(pod).chosen == "a"
    assert plan(cluster(a="", b="broken"), SaysError).decide(pod).error == BROKEN.format("SaysError")


def test_an_error_that_a_sample_does_not_come_to_is_none():
    objects = [make_node(f"n{number:03}") for number in range(120)]
    broken = make_node("n999", labels={"broken": ""})
    sample = [profile(SaysError, percentageOfNodesToScore=10)]
    planner = planner_of([*objects, broken], sample, SaysError)
    first, second = planner.decide(make_pod("first")), planner.decide(make_pod("second"))
    assert (first.error, len(first.feasible)) == (None, 100)
    assert second.error == BROKEN.format("SaysError")


# While preempting


def low(name: str, node_name: str, priority: int = 0):
    return make_pod(name, node=node_name, priority=priority, requests={"cpu": "3"})


HIGH = make_pod("high", priority=9, requests={"cpu": "3"})


@pytest.mark.parametrize("plugin", FAILING)
def test_one_node_s_error_does_not_end_preemption_on_others(plugin):
    objects = [*cluster(a="broken", b=""), low("l1", "a"), low("l2", "b")]
    decision = plan(objects, "NodeResourcesFit", plugin, "DefaultPreemption").decide(HIGH)
    assert (decision.nominated, [victim.name for victim in decision.victims]) == ("b", ["l2"])


@pytest.mark.parametrize("plugin", FAILING)
def test_errors_of_preemption_are_told_as_such(plugin):
    objects = [*cluster(a="broken", b="broken"), low("l1", "a"), low("l2", "b")]
    planner = plan(objects, "NodeResourcesFit", plugin, "DefaultPreemption")
    for _ in range(2):
        assert planner.decide(HIGH).message == (
            f"0/2 nodes are available: 2 Insufficient cpu. preemption: {BROKEN.format(plugin.__name__)}"
        )


def test_different_errors_are_all_told():
    class ByName(Plugin):
        def filter(self, state, pod, node):
            return Status.error(f"broken {node.name}")

    objects = [*nodes("a", "b"), low("l1", "a"), low("l2", "b")]
    decision = plan(objects, "NodeResourcesFit", ByName, "DefaultPreemption").decide(HIGH)
    assert decision.message.endswith(
        'preemption: [running "ByName" filter plugin: broken a, running "ByName" filter plugin: broken b]'
    )


def test_an_error_while_victims_are_spared_means_that_the_pod_does_not_fit():
    class Allergic(Plugin):
        def filter(self, state, pod, node):
            return Status.error("broken") if any(each.name == "cause" for each in node.pods) else None

    cause = make_pod("cause", node="a", priority=1)  # needs no room, so it could stay
    planner = plan([*nodes("a"), low("l1", "a"), cause], "NodeResourcesFit", Allergic, "DefaultPreemption")
    decision = planner.decide(HIGH)
    assert (decision.nominated, sorted(each.name for each in decision.victims)) == ("a", ["cause", "l1"])


def test_an_error_that_would_only_happen_again_ends_preemption_at_once():
    asked = []

    class Overdue(Plugin):
        def filter(self, state, pod, node):
            asked.append(node.name)
            raise PluginError("took longer than its budget")

    objects = [*nodes("a", "b"), low("l1", "a"), low("l2", "b")]
    decision = plan(objects, "NodeResourcesFit", Overdue, "DefaultPreemption").decide(HIGH)
    assert asked == ["a"]
    assert 'preemption: running "Overdue" filter plugin: PluginError: took longer' in decision.message
