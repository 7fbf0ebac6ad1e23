"""pre_filter: plugins that refuse a pod as a whole, narrow the search, or have nothing to say."""

from __future__ import annotations

import pytest
from staging import feasible, nodes, plan, refusals

from make import make_pod
from stowplan.framework import Plugin, Status


def saying(name, answer, **methods):
    """A plugin whose pre_filter gives that answer."""
    return type(name, (Plugin,), {"pre_filter": lambda self, state, pod, nodes: answer, **methods})


def refuse(self, state, pod, node):
    return Status.unschedulable("refused")


class Watcher(Plugin):
    """Remembers that it was asked."""

    asked = False

    def pre_filter(self, state, pod, nodes):
        type(self).asked = True


@pytest.fixture
def watcher():
    return type("Watcher", (Watcher,), {})


SOFT, HARD = Status.unschedulable("not now", "nor here"), Status.unresolvable("never")


@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [pytest.param(SOFT, True, id="others are still asked"), pytest.param(HARD, False, id="at once")],
)
def test_a_pod_is_refused(answer, goes_on, watcher):
    decision = plan(nodes("a", "b"), saying("Refuser", answer), watcher).decide(make_pod())
    assert decision.pre_filter == answer.by("Refuser")
    assert watcher.asked is goes_on
    assert decision.message == f"0/2 nodes are available: {answer.message}."
    assert decision.rejected() == {}
    assert decision.rejectors == {"Refuser"}


def test_the_last_refusal_counts():
    refusers = [saying("First", SOFT), saying("Second", Status.unschedulable("nor today"))]
    assert plan(nodes("a"), *refusers).decide(make_pod()).message == "0/1 nodes are available: nor today."


def test_a_refusal_that_nothing_can_change_counts_more_than_an_earlier_one():
    decision = plan(nodes("a"), saying("First", SOFT), saying("Second", HARD)).decide(make_pod())
    assert (decision.pre_filter, decision.rejectors) == (HARD.by("Second"), {"Second"})


def narrowing(name, *names):
    return saying(name, frozenset(names))


@pytest.mark.parametrize(
    ("plugins", "found"),
    [
        pytest.param([narrowing("One", "a", "c")], ["a", "c"], id="to some"),
        pytest.param([narrowing("One", "a", "elsewhere")], ["a"], id="also to one that is not there"),
        pytest.param([narrowing("One", "a", "b"), narrowing("Two", "b", "c")], ["b"], id="twice"),
        pytest.param([saying("One", None), narrowing("Two", "c")], ["c"], id="or not at all"),
    ],
)
def test_the_search_is_narrowed(plugins, found):
    assert feasible(plan(nodes("a", "b", "c"), *plugins).decide(make_pod())) == found


def test_nodes_outside_a_narrowed_search_are_counted_as_refused():
    plugins = [
        saying("Two", frozenset("ab"), filter=refuse),
        narrowing("One", "a", "c"),
    ]
    decision = plan(nodes("a", "b", "c"), *plugins).decide(make_pod())
    assert refusals(decision) == {"a": Status.unschedulable("refused")}
    outside = "2 node(s) didn't satisfy plugin(s) [One Two]"
    assert decision.message == f"0/3 nodes are available: 1 refused, {outside}."
    assert decision.rejectors == {"One", "Two"}


def test_names_that_nobody_has_leave_no_node():
    decision = plan(nodes("a", "b"), narrowing("One", "elsewhere")).decide(make_pod())
    assert decision.message == "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [One]."
    assert decision.rejectors == {"One"}


@pytest.mark.parametrize(
    ("plugins", "text"),
    [
        pytest.param([narrowing("One")], "node(s) didn't satisfy plugin One", id="one plugin, no names"),
        pytest.param(
            [narrowing("Two", "a"), narrowing("One", "b")],
            "node(s) didn't satisfy plugin(s) [One Two] simultaneously",
            id="two that have no name in common",
        ),
    ],
)
def test_no_name_left_refuses_the_pod(plugins, text, watcher):
    decision = plan(nodes("a", "b"), *plugins, watcher).decide(make_pod())
    assert decision.pre_filter == Status.unresolvable(text)
    assert decision.message == f"0/2 nodes are available: {text}."
    assert not watcher.asked
    assert decision.rejectors == {kind.__name__ for kind in plugins}


def test_a_plugin_that_skips_is_left_out():
    def fail(self, *given):
        raise AssertionError("asked although it skipped")

    skipping = saying("Skipping", Status.skip(), filter=fail, add_pod=fail, remove_pod=fail)
    planner = plan(nodes("a"), skipping)
    planner.profiles["default-scheduler"].handle.nominations.put(make_pod("other", priority=9), "a")
    assert planner.decide(make_pod()).chosen == "a"


def test_a_plugin_that_does_not_skip_is_asked():
    assert plan(nodes("a"), saying("Asked", None, filter=refuse)).decide(make_pod()).chosen is None


def test_a_refusal_before_dynamic_resources_was_asked_ends_in_not_found():
    """As in kube-scheduler: that plugin's post_filter misses what its pre_filter did not write."""
    planner = plan(nodes("a"), default=True)
    claimless = make_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}])
    text = '0/1 nodes are available: persistentvolumeclaim "missing" not found. not found'
    assert planner.decide(claimless).message == text


def test_a_refusal_after_dynamic_resources_was_asked_does_not():
    planner = plan(nodes("a"), saying("Late", HARD), default=True)
    after = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 "
    assert planner.decide(make_pod()).message == (
        f"0/1 nodes are available: never. {after}Preemption is not helpful for scheduling."
    )
