"""pre_score, score, score_nodes and normalize_score: what nodes get, and who wins."""

from __future__ import annotations

import numpy as np
import pytest
from staging import nodes, plan, planner_of, profile, scores, totals

from make import make_node, make_pod
from stowplan.cycle import schedule
from stowplan.framework import Plugin, Reads, Status, scale_to_max
from stowplan.framework.plugin import ExplainingPlugin


def sized(*sizes):
    return [make_node(f"n{size}", labels={"size": str(size)}) for size in sizes]


class OneByOne(Plugin):
    def score(self, state, pod, node):
        return int(node.labels["size"])


class AllAtOnce(Plugin):
    def score_nodes(self, state, pod, nodes):
        return np.array([int(node.labels["size"]) for node in nodes])


class Scaled(OneByOne):
    def normalize_score(self, state, pod, scores):
        return scale_to_max(scores)


class ScaledAtOnce(AllAtOnce):
    def normalize_score(self, state, pod, scores):
        return scale_to_max(scores)


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        pytest.param(OneByOne, {"n1": 1, "n2": 2, "n4": 4}, id="one by one"),
        pytest.param(AllAtOnce, {"n1": 1, "n2": 2, "n4": 4}, id="all at once"),
        pytest.param(Scaled, {"n1": 25, "n2": 50, "n4": 100}, id="one by one, scaled"),
        pytest.param(ScaledAtOnce, {"n1": 25, "n2": 50, "n4": 100}, id="all at once, scaled"),
    ],
)
def test_one_by_one_and_all_at_once_come_to_the_same(plugin, expected):
    decision = plan(sized(1, 2, 4), plugin).decide(make_pod())
    assert scores(decision) == {plugin.__name__: expected}
    assert totals(decision) == expected
    assert decision.chosen == "n4"


def test_only_feasible_nodes_are_scored_and_scaled():
    class NotTheLargest(Plugin):
        def filter(self, state, pod, node):
            return Status.unschedulable("large") if node.name == "n8" else None

    decision = plan(sized(1, 2, 4, 8), NotTheLargest, Scaled).decide(make_pod())
    assert scores(decision) == {"Scaled": {"n1": 25, "n2": 50, "n4": 100}}


def constant(name, value, **methods):
    return type(name, (Plugin,), {"score": lambda self, state, pod, node: value, **methods})


def test_weights_multiply_and_add_up():
    plugins = OneByOne, constant("Even", 10), constant("Default", 1)
    weighted = profile(*plugins, weights={"OneByOne": 3, "Even": 2})
    decision = planner_of(sized(1, 2), [weighted], *plugins).decide(make_pod())
    assert totals(decision) == {"n1": 3 + 20 + 1, "n2": 6 + 20 + 1}
    assert [(column.plugin, column.weight) for column in decision.scores] == [
        ("OneByOne", 3),
        ("Even", 2),
        ("Default", 1),
    ]


def test_ties_go_to_the_first_by_name_unless_said_otherwise():
    planner = plan(nodes("c", "a", "b"), constant("Even", 5))
    assert planner.decide(make_pod()).chosen == "a"
    planner.tie_break = lambda nodes, feasible, is_best: len(feasible) - 1
    decision = planner.decide(make_pod())
    assert decision.chosen == "b"
    assert sorted(decision.names[row] for row in decision.best) == ["a", "b", "c"]


def fail(self, *given):
    raise AssertionError("asked although it need not be")


def test_a_lone_feasible_node_is_not_scored():
    planner = plan(nodes("a"), constant("Unasked", 1, score=fail, pre_score=fail))
    decision = planner.decide(make_pod())
    assert (decision.chosen, decision.totals, decision.scores) == ("a", None, [])


def test_a_plugin_that_skips_is_not_asked_to_score():
    skipping = constant("Skipping", 1, pre_score=lambda self, *given: Status.skip(), score=fail)
    decision = plan(nodes("a", "b"), skipping, constant("Even", 7)).decide(make_pod())
    assert scores(decision) == {"Even": {"a": 7, "b": 7}}


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        pytest.param([], 1, id="nobody scores"),
        pytest.param(
            [constant("Skipping", 9, pre_score=lambda self, *given: Status.skip())], 0, id="all skip"
        ),
    ],
)
def test_without_scores_all_nodes_are_alike(plugins, expected):
    decision = plan(nodes("b", "a"), *plugins).decide(make_pod())
    assert totals(decision) == {"b": expected, "a": expected}
    assert decision.chosen == "a"


def test_pre_score_sees_the_feasible_nodes_and_can_leave_a_note():
    class Note(list):
        pass

    class Noting(Plugin):
        def filter(self, state, pod, node):
            return Status.unschedulable("no") if node.name == "b" else None

        def pre_score(self, state, pod, nodes):
            state.write(Note(nodes.names))

        def score(self, state, pod, node):
            return 10 * state.read(Note).index(node.name)

    decision = plan(nodes("a", "b", "c"), Noting).decide(make_pod())
    assert scores(decision) == {"Noting": {"a": 0, "c": 10}}


class ByUsage(Plugin):
    """Hands out a column of the table itself."""

    def score_nodes(self, state, pod, nodes):
        return nodes.pod_count


def test_scores_stay_as_they_were_when_the_cluster_goes_on():
    planner = plan([*nodes("a", "b"), make_pod("first", node="a")], ByUsage)
    decision = planner.decide(make_pod("second"))
    planner.carry_out(decision)
    assert (scores(decision), totals(decision)) == ({"ByUsage": {"a": 1, "b": 0}}, {"a": 1, "b": 0})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(True, np.bool_, id="truth values"),
        pytest.param(100, np.uint8, id="small numbers"),
        pytest.param(100, np.int32, id="middling numbers"),
        pytest.param(0, np.uint64, id="large numbers"),
    ],
)
def test_any_whole_numbers_will_do(answer, kind):
    class Typed(Plugin):
        def score_nodes(self, state, pod, nodes):
            return np.full(len(nodes), answer, kind)

    decision = plan(nodes("a", "b"), Typed).decide(make_pod())
    assert totals(decision) == {"a": int(answer), "b": int(answer)}


@pytest.mark.parametrize("weight", [2, 1000], ids=["a small weight", "one whose totals need larger numbers"])
def test_what_is_kept_of_a_plugin_counts_by_the_weight_of_the_profile_that_asks(weight):
    class ByName(Plugin):
        reads = Reads.NODE

        def sign_pod(self, pod):
            return ""

        def score_nodes(self, state, pod, nodes):
            return np.array([100 if name == "a" else 50 for name in nodes.names])

    planner, pod = plan(nodes("a", "b"), ByName), make_pod()
    own = planner.profile_of(pod)
    for times, asked in ((1, own), (weight, own.with_weight("ByName", weight)), (1, own)):
        decision = schedule(asked, pod, planner.cluster.nodes)
        assert totals(decision) == {"a": 100 * times, "b": 50 * times}


@pytest.mark.parametrize(
    ("notes", "found", "error"),
    [
        pytest.param(("metrics are old",), ("metrics are old",), None, id="a sentence"),
        pytest.param((), (), None, id="nothing"),
        pytest.param((5,), (), "expected a str", id="a number"),
        pytest.param("text", (), "expected", id="text in place of a list"),
        pytest.param(None, (), "expected", id="None"),
    ],
)
def test_notes_about_scores_are_checked(notes, found, error):
    """Whatever is not text would only fail when the decision is recorded."""

    class Talking(ExplainingPlugin):
        def score(self, state, pod, node):
            return 1

        def explain_scores(self, pod):
            return notes

    decision = plan(nodes("a", "b"), Talking).decide(make_pod())
    assert decision.notes == found
    assert (error in decision.error) if error else decision.error is None
