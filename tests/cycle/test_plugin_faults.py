"""Plugins that raise or answer nonsense: one line names plugin, pod and node, and life goes on."""

from __future__ import annotations

import os

import numpy as np
import pytest
from staging import nodes, plan

from make import make_node, make_pod
from stowplan.framework import Plugin, Reads, Reject, Status

POD = "default/bad"


def boom(self, *given):
    """Raises for one pod, or the pod that one is about."""
    if any(getattr(each, "name", "") == "bad" for each in given):
        raise ValueError("boom")
    return


HERE = f"at {os.path.relpath(__file__)}:{boom.__code__.co_firstlineno + 3}"
WHERE = f"ValueError: boom (pod default/bad, {HERE})"
AT_A = f"ValueError: boom (pod default/bad, node a, {HERE})"


def place_of(function):
    """Where it is defined, as an error names it."""
    return f"{os.path.relpath(__file__)}:{function.__code__.co_firstlineno}"


def faulty(**methods):
    return type("Faulty", (Plugin,), methods)


def kept(**methods):
    return faulty(sign_pod=lambda self, pod: pod.name, reads=Reads.NODE, **methods)


def zeros(self, state, pod, nodes):
    return np.zeros(len(nodes), np.int64)


def quiet(self, state, pod, nodes):
    boom(self, pod)
    return ()


def zero_or_boom(self, *given):
    boom(self, *given)
    return 0


def zeros_or_boom(self, state, pod, nodes):
    boom(self, pod)
    return zeros(self, state, pod, nodes)


def promise(planner):
    planner.profiles["default-scheduler"].handle.nominations.put(make_pod("other", priority=9), "a")


@pytest.mark.parametrize(
    ("plugin", "error"),
    [
        pytest.param(faulty(pre_filter=boom), f'running PreFilter plugin "Faulty": {WHERE}', id="pre_filter"),
        pytest.param(
            faulty(pre_filter=lambda self, *given: None, add_pod=boom),
            f'running AddPod on PreFilter plugin "Faulty": {AT_A}',
            id="add_pod",
        ),
        pytest.param(faulty(filter=boom), f'running "Faulty" filter plugin: {AT_A}', id="filter"),
        pytest.param(
            faulty(filter_nodes=quiet), f'running "Faulty" filter plugin: {WHERE}', id="filter_nodes"
        ),
        pytest.param(
            kept(filter_nodes=quiet), f'running "Faulty" filter plugin: {WHERE}', id="kept filter_nodes"
        ),
        pytest.param(
            faulty(pre_score=boom, score=lambda self, *given: 0),
            f'running PreScore plugin "Faulty": {WHERE}',
            id="pre_score",
        ),
        pytest.param(
            faulty(score=zero_or_boom),
            f'running Score plugins: plugin "Faulty" failed with: {AT_A}',
            id="score",
        ),
        pytest.param(
            faulty(score_nodes=zeros_or_boom),
            f'running Score plugins: plugin "Faulty" failed with: {WHERE}',
            id="score_nodes",
        ),
        pytest.param(
            kept(score_nodes=zeros_or_boom),
            f'running Score plugins: plugin "Faulty" failed with: {WHERE}',
            id="kept score_nodes",
        ),
        pytest.param(
            faulty(
                score_nodes=zeros,
                normalize_score=lambda self, state, pod, scores: zeros_or_boom(self, state, pod, scores),
            ),
            f'running Normalize on Score plugins: plugin "Faulty" failed with: {WHERE}',
            id="normalize_score",
        ),
    ],
)
def test_a_plugin_that_raises_ends_the_attempt_with_one_line(plugin, error):
    planner = plan(nodes("a", "b"), plugin)
    promise(planner)
    decision = planner.decide(make_pod("bad"))
    assert decision.error == error
    assert (decision.chosen, decision.message) == (None, "")
    assert decision.as_golden() == {"pod": POD, "error": error}
    assert planner.decide(make_pod("good")).chosen == "a"


@pytest.mark.parametrize("point", ["filter_nodes", "score_nodes"])
def test_sign_pod_that_raises(point):
    methods = {"filter_nodes": lambda self, *given: (), "score_nodes": zeros}
    plugin = faulty(sign_pod=boom, reads=Reads.NODE, **{point: methods[point]})
    planner = plan(nodes("a", "b"), plugin)
    assert planner.decide(make_pod("bad")).error.endswith(WHERE)
    assert '"Faulty"' in planner.decide(make_pod("bad")).error
    assert planner.decide(make_pod("good")).chosen == "a"


def test_remove_pod_that_raises_ends_up_in_the_message():
    plugin = faulty(
        pre_filter=lambda self, *given: None,
        add_pod=lambda self, *given: None,
        remove_pod=boom,
        filter=lambda self, state, pod, node: Status.unschedulable("full") if node.pods else None,
    )
    objects = [make_node("a"), make_pod("low", node="a", priority=-1)]
    decision = plan(objects, plugin, "DefaultPreemption").decide(make_pod("bad"))
    assert decision.message == (
        f'0/1 nodes are available: 1 full. preemption: running RemovePod on PreFilter plugin "Faulty": {AT_A}'
    )


def test_post_filter_that_raises_ends_up_in_the_message():
    plugin = faulty(filter=lambda self, *given: Status.unschedulable("full"), post_filter=boom)
    decision = plan(nodes("a"), plugin).decide(make_pod("bad"))
    assert decision.error is None
    assert decision.message == (
        f'0/1 nodes are available: 1 full. running PostFilter plugin "Faulty": {WHERE}'
    )


# Statuses that a point has no use for


@pytest.mark.parametrize(
    ("methods", "error"),
    [
        pytest.param(
            {"pre_filter": Status.error("broken")},
            'running PreFilter plugin "Faulty": broken',
            id="pre_filter",
        ),
        pytest.param(
            {"pre_filter": Status.pending("later")},
            'running PreFilter plugin "Faulty": later',
            id="pre_filter that would rather wait",
        ),
        pytest.param(
            {"filter": Status.error("broken")}, 'running "Faulty" filter plugin: broken', id="filter"
        ),
        pytest.param(
            {"filter": Status.skip()},
            'running "Faulty" filter plugin: ValueError: filter answered Skip; expected Success, Error, '
            "Unschedulable, UnschedulableAndUnresolvable or Pending (pod default/pod, node a, at {place})",
            id="filter that skips",
        ),
        pytest.param(
            {"pre_score": Status.error("broken"), "score": 0},
            'running PreScore plugin "Faulty": broken',
            id="pre_score",
        ),
        pytest.param(
            {"pre_score": Status.unschedulable("no"), "score": 0},
            'running PreScore plugin "Faulty": no',
            id="pre_score that refuses",
        ),
    ],
)
def test_errors_that_plugins_report_themselves(methods, error):
    answers = {name: (lambda self, *given, answer=answer: answer) for name, answer in methods.items()}
    error = error.replace("{place}", place_of(next(iter(answers.values()))))
    assert plan(nodes("a", "b"), faulty(**answers)).decide(make_pod()).error == error


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param({"pre_filter": lambda self, *given: True}, id="pre_filter"),
        pytest.param({"filter": lambda self, *given: False}, id="filter"),
        pytest.param(
            {"pre_score": lambda self, *given: "fine", "score": lambda self, *given: 0}, id="pre_score"
        ),
        pytest.param({"filter_nodes": lambda self, *given: True}, id="filter_nodes"),
        pytest.param({"filter_nodes": lambda self, *given: [np.ones(2, np.bool_)]}, id="no reason"),
    ],
)
def test_answers_that_are_none(methods):
    decision = plan(nodes("a", "b"), faulty(**methods)).decide(make_pod("bad"))
    assert '"Faulty"' in decision.error
    assert POD in decision.error


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(None, "0/1 nodes are available: 1 full.", id="nothing found, nothing to say"),
        pytest.param(
            True, '0/1 nodes are available: 1 full. running PostFilter plugin "Faulty": ', id="no answer"
        ),
    ],
)
def test_answers_of_post_filter(answer, message):
    plugin = faulty(
        filter=lambda self, *given: Status.unschedulable("full"), post_filter=lambda self, *given: answer
    )
    decision = plan(nodes("a"), plugin).decide(make_pod("bad"))
    assert decision.message.startswith(message)
    assert (decision.message.strip() == message) is (answer is None)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(np.ones(3, np.bool_), id="too long"),
        pytest.param(np.ones(1, np.bool_), id="too short"),
        pytest.param(np.ones(2), id="numbers"),
        pytest.param(True, id="not a column"),
    ],
)
def test_masks_that_do_not_fit(mask):
    plugin = faulty(filter_nodes=lambda self, *given: [Reject(mask, "refused")])
    error = plan(nodes("a", "b"), plugin).decide(make_pod("bad")).error
    assert error.startswith('running "Faulty" filter plugin: ')
    assert POD in error


# Scores


@pytest.mark.parametrize("value", [-1, 101, 10**9])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "all at once"])
def test_scores_out_of_range(value, at_once):
    def score(self, state, pod, node):
        return value if node.name == "b" else 50

    def score_nodes(self, state, pod, nodes):
        return np.array([score(self, state, pod, node) for node in nodes])

    plugin = faulty(score_nodes=score_nodes) if at_once else faulty(score=score)
    assert plan(nodes("a", "b"), plugin).decide(make_pod("bad")).error == (
        'applying score defaultWeights on Score plugins: plugin "Faulty" returns an invalid score '
        f"{value}, it should in the range of [0, 100] after normalizing (pod default/bad, node b, "
        f"at {place_of(score_nodes if at_once else score)})"
    )


def test_scores_may_be_out_of_range_before_they_are_normalized():
    plugin = faulty(
        score_nodes=lambda self, state, pod, nodes: np.array([-500, 10**9]),
        normalize_score=lambda self, state, pod, scores: np.clip(scores, 0, 100),
    )
    assert plan(nodes("a", "b"), plugin).decide(make_pod()).totals.tolist() == [0, 100]


NOT_NUMBERS = "expected 2 whole numbers, one a node, got"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(np.zeros(3, np.int64), f"{NOT_NUMBERS} int64 of shape (3,)", id="too many"),
        pytest.param(np.zeros(1, np.int64), f"{NOT_NUMBERS} int64 of shape (1,)", id="too few"),
        pytest.param(np.zeros((2, 1), np.int64), f"{NOT_NUMBERS} int64 of shape (2, 1)", id="a table"),
        pytest.param(np.zeros(2), f"{NOT_NUMBERS} float64 of shape (2,)", id="fractions"),
        pytest.param(None, f"{NOT_NUMBERS} object of shape ()", id="nothing"),
        pytest.param(7, f"{NOT_NUMBERS} int64 of shape ()", id="one for all"),
    ],
)
@pytest.mark.parametrize("point", ["score_nodes", "normalize_score"])
def test_scores_of_the_wrong_form(point, answer, text):
    methods = {"score_nodes": zeros, point: lambda self, *given: answer}
    error = plan(nodes("a", "b"), faulty(**methods)).decide(make_pod("bad")).error
    doing = "running Score plugins" if point == "score_nodes" else "running Normalize on Score plugins"
    place = place_of(methods[point])
    assert error == f'{doing}: plugin "Faulty" failed with: ValueError: {text} (pod default/bad, at {place})'


@pytest.mark.parametrize("answer", [0.5, None, "7"])
def test_a_score_that_is_no_whole_number(answer):
    def score(self, *given):
        return answer

    error = plan(nodes("a", "b"), faulty(score=score)).decide(make_pod("bad")).error
    assert error.startswith('running Score plugins: plugin "Faulty" failed with: ')
    assert error.endswith(f"(pod default/bad, node a, at {place_of(score)})")


@pytest.mark.parametrize("of_rows", [True, False], ids=["kept", "not kept"])
def test_columns_given_to_plugins_cannot_be_changed(of_rows):
    def normalize(self, state, pod, scores):
        scores += 1
        return scores

    make = kept if of_rows else faulty
    planner = plan(nodes("a", "b"), make(score_nodes=zeros, normalize_score=normalize))
    for _ in range(2):
        assert "read-only" in planner.decide(make_pod()).error
