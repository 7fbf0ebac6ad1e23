"""The Decision: what it keeps, says and counts, and that it stays what it was."""

from __future__ import annotations

import numpy as np
import pytest
from staging import nodes, plan

from make import make_node, make_pod
from stowplan.framework import Nomination, Plugin, Reads, Reject, Status


def refusing(name, *refused, kept=False):
    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.array([node.name in refused for node in nodes]), f"says {name}", unresolvable=True)

    keeping = {"sign_pod": lambda self, pod: None, "reads": Reads.NODE} if kept else {}
    return type(name, (Plugin,), {"filter_nodes": filter_nodes, **keeping})


@pytest.mark.parametrize("kept", [False, True])
def test_only_those_that_refuse_a_node_first_stand_in_the_way(kept):
    first, second = (
        refusing(name, *"abc"[: 3 - place], kept=kept) for place, name in enumerate(("First", "Second"))
    )
    decision = plan(nodes("a", "b", "c"), first, second).decide(make_pod())
    assert decision.rejectors == {"First"}
    assert decision.histogram() == {"says First": 3}


def test_all_that_refuse_some_node_first_stand_in_the_way():
    plugins = [refusing("First", "a"), refusing("Second", "a", "b"), refusing("Third", "a", "b", "c")]
    decision = plan(nodes("a", "b", "c"), *plugins).decide(make_pod())
    assert decision.rejectors == {"First", "Second", "Third"}
    assert decision.histogram() == {"says First": 1, "says Second": 1, "says Third": 1}


def test_what_is_known_of_a_node():
    decision = plan(nodes("a", "b"), refusing("First", "a")).decide(make_pod())
    assert decision.status_of("a") == Status.unresolvable("says First").by("First")
    assert decision.status_of("b") is None


class Scoring(Plugin):
    def score(self, state, pod, node):
        return {"b": 10, "c": 30, "d": 30}[node.name]


def test_a_decision_in_plain_data():
    decision = plan(nodes("d", "c", "b", "a"), refusing("First", "a"), Scoring).decide(make_pod("web"))
    assert decision.as_golden() == {
        "pod": "default/web",
        "rejected": {
            "a": {"code": "UnschedulableAndUnresolvable", "plugin": "First", "reasons": ["says First"]}
        },
        "feasible": ["b", "c", "d"],
        "scores": {"Scoring": {"b": 10, "c": 30, "d": 30}},
        "totals": {"b": 10, "c": 30, "d": 30},
        "best": ["c", "d"],
        "chosen": "c",
    }


def test_a_refusal_in_plain_data():
    decision = plan(nodes("a"), refusing("First", "a")).decide(make_pod("web"))
    assert decision.as_golden() == {
        "pod": "default/web",
        "rejected": {
            "a": {"code": "UnschedulableAndUnresolvable", "plugin": "First", "reasons": ["says First"]}
        },
        "message": "0/1 nodes are available: 1 says First.",
    }


def test_a_decision_stays_what_it_was_while_the_cluster_goes_on():
    planner = plan([*nodes("a", "b", "c", "d"), make_pod("low", node="b", priority=-1)], default=True)
    decision = planner.decide(make_pod("web", requests={"cpu": "1"}))
    refusal = planner.decide(make_pod("big", requests={"cpu": "9"}))
    before = decision.as_golden(), refusal.as_golden()
    planner.carry_out(decision)
    planner.cluster.remove_node("a")
    planner.cluster.add_node(make_node("e", allocatable={"pods": "0"}))
    planner.cluster.add_node(make_node("b", labels={"x": "y"}, unschedulable=True))
    planner.decide(make_pod("other", requests={"cpu": "1"}))
    assert (decision.as_golden(), refusal.as_golden()) == before


# post_filter


def after(name, answer):
    return type(name, (Plugin,), {"post_filter": lambda self, state, pod, decision: answer})


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        pytest.param([], "", id="nobody to ask"),
        pytest.param([Status.unschedulable("sorry")], " sorry", id="one"),
        pytest.param(
            [Status.unschedulable("sorry", "really"), Status.unschedulable("too")],
            " sorry, really, too",
            id="two",
        ),
        pytest.param(
            [Status.unresolvable("never"), Status.unschedulable("too")], " never", id="never ends it"
        ),
        pytest.param([Status.error("broken"), Status.unschedulable("too")], " broken", id="an error ends it"),
        pytest.param([Status(), Status.unschedulable("too")], "", id="success ends it"),
        pytest.param(
            [Status.unschedulable("sorry"), Nomination("a")], "", id="a nomination leaves nothing to say"
        ),
    ],
)
def test_what_is_said_when_nothing_fits(answers, text):
    plugins = [after(f"After{number}", answer) for number, answer in enumerate(answers)]
    decision = plan(nodes("a"), refusing("First", "a"), *plugins).decide(make_pod())
    assert decision.message == f"0/1 nodes are available: 1 says First.{text}"


def test_a_nomination_names_node_and_victims():
    victim = make_pod("victim", node="a")
    nominating = after("Nominating", Nomination("a", (victim,)))
    planner = plan(
        [*nodes("a"), victim], refusing("First", "a"), nominating, after("Late", Status.error("asked"))
    )
    decision = planner.decide(make_pod("web"))
    assert (decision.chosen, decision.nominated, decision.victims) == (None, "a", (victim,))
    assert decision.as_golden()["victims"] == ["default/victim"]
    planner.carry_out(decision)
    assert [pod.name for pod in planner.cluster.pods()] == ["web"]


def test_nobody_is_asked_where_a_node_fits():
    assert plan(nodes("a"), after("Unasked", Status.error("asked"))).decide(make_pod()).post_filter is None
