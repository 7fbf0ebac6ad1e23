"""filter and filter_nodes: who refuses a node first, and what becomes of the reasons."""

from __future__ import annotations

import numpy as np
import pytest
from staging import feasible, nodes, plan, refusals

from make import make_node, make_pod
from stowplan.framework import Code, Plugin, Reject, Status


def sized(*sizes):
    return [make_node(f"n{size:03}", labels={"size": str(size)}) for size in sizes]


class OneByOne(Plugin):
    """Refuses small nodes and odd ones; small ones for good."""

    def filter(self, state, pod, node):
        size = int(node.labels["size"])
        reasons = [reason for reason, holds in (("small", size < 3), ("odd", size % 2)) if holds]
        if not reasons:
            return None
        return (Status.unresolvable if size < 3 else Status.unschedulable)(*reasons)


class AllAtOnce(Plugin):
    """The same, over columns."""

    def filter_nodes(self, state, pod, nodes):
        sizes = np.array([int(node.labels["size"]) for node in nodes])
        yield Reject(sizes < 3, "small", unresolvable=True)
        yield Reject(sizes % 2 == 1, "odd", unresolvable=sizes < 3)


@pytest.mark.parametrize("plugin", [OneByOne, AllAtOnce])
def test_one_by_one_and_all_at_once_come_to_the_same(plugin):
    decision = plan(sized(1, 2, 3, 4), plugin).decide(make_pod())
    assert refusals(decision) == {
        "n001": Status.unresolvable("small", "odd"),
        "n002": Status.unresolvable("small"),
        "n003": Status.unschedulable("odd"),
    }
    assert feasible(decision) == ["n004"]
    assert decision.codes().tolist() == [3, 3, 2, 0]


@pytest.mark.parametrize("plugin", [OneByOne, AllAtOnce])
def test_a_node_with_two_reasons_counts_for_both(plugin):
    decision = plan(sized(1, 2, 3), plugin).decide(make_pod())
    assert decision.histogram() == {"small": 2, "odd": 2}
    assert decision.message == "0/3 nodes are available: 2 odd, 2 small."


def refusing(name, *refused):
    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.array([node.name in refused for node in nodes]), f"says {name}")

    return type(name, (Plugin,), {"filter_nodes": filter_nodes})


def test_the_first_to_refuse_a_node_is_the_one_named():
    first, second = refusing("First", "a", "b"), refusing("Second", "b", "c")
    decision = plan(nodes("a", "b", "c", "d"), first, second).decide(make_pod())
    assert {name: status.plugin for name, status in decision.rejected().items()} == {
        "a": "First",
        "b": "First",
        "c": "Second",
    }
    assert feasible(decision) == ["d"]


def test_nodes_already_refused_are_not_asked_about_one_by_one():
    class Recording(Plugin):
        def filter(self, state, pod, node):
            asked.append(node.name)

    asked = []
    plan(nodes("a", "b", "c"), refusing("First", "b"), Recording).decide(make_pod())
    assert asked == ["a", "c"]


def test_the_message_is_sorted_as_text():
    objects = nodes(*(f"n{number:02}" for number in range(12)))
    ten = refusing("Ten", *(f"n{number:02}" for number in range(10)))
    decision = plan(objects, ten, refusing("Ahead", "n10", "n11")).decide(make_pod())
    assert decision.message == "0/12 nodes are available: 10 says Ten, 2 says Ahead."


def test_pending_is_a_refusal():
    class Waiting(Plugin):
        def filter(self, state, pod, node):
            return Status.pending("not ready")

    decision = plan(nodes("a"), Waiting).decide(make_pod())
    assert decision.rejected()["a"].code is Code.PENDING
    assert decision.message == "0/1 nodes are available: 1 not ready."


class ByName(Plugin):
    """Has a reason of its own for each node."""

    def filter_nodes(self, state, pod, nodes):
        for row, name in enumerate(nodes.names):
            yield Reject(
                np.arange(len(nodes)) == row, f"{pod.name} is not for {name}", unresolvable=row % 2 == 1
            )


def test_any_number_of_reasons():
    names = [f"n{number:03}" for number in range(150)]
    planner = plan(nodes(*names), ByName)
    for pod in (make_pod("one"), make_pod("two"), make_pod("three")):
        decision = planner.decide(pod)
        assert refusals(decision) == {
            name: (Status.unresolvable if row % 2 else Status.unschedulable)(f"{pod.name} is not for {name}")
            for row, name in enumerate(names)
        }


def test_no_nodes_at_all():
    decision = plan([], OneByOne).decide(make_pod())
    assert (decision.chosen, decision.message) == (None, "no nodes available to schedule pods")
    assert decision.rejectors == frozenset()
