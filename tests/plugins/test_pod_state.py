"""PodState: nodes that pods leave first, those that pods are nominated to last."""

from __future__ import annotations

from alone import planner as alone
from alone import scores
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod

LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def world(*counts):
    """n0, n1 and so on, each with so many pods that run, that terminate, and that are nominated to it."""
    nodes = [make_node(f"n{number}") for number in range(len(counts))]
    pods, nominated = [], []
    for number, (running, leaving, coming) in enumerate(counts):
        name = f"n{number}"
        pods += [make_pod(f"{name}-run-{each}", node=name) for each in range(running)]
        pods += [make_pod(f"{name}-end-{each}", node=name, metadata=LEAVING) for each in range(leaving)]
        nominated += [(make_pod(f"{name}-new-{each}"), name) for each in range(coming)]
    planner = alone("PodState", *nodes, *pods)
    for pod, name in nominated:
        planner.nominations.put(pod, name)
    return planner


def given_to(planner):
    return list(scores(planner.decide(make_pod())).values())


def test_scores():
    assert given_to(world((3, 2, 0), (0, 1, 0), (0, 0, 0))) == [100, 50, 0]
    assert given_to(world((0, 1, 1), (0, 0, 2), (0, 0, 0))) == [100, 0, 100]
    assert given_to(world((0, 0, 3), (5, 0, 2), (1, 0, 0))) == [0, 33, 100]


def test_equal_nodes_score_nothing():
    assert given_to(world((3, 0, 0), (0, 0, 0))) == [0, 0]
    assert given_to(world((3, 4, 0), (0, 4, 0))) == [0, 0]


def test_what_changes_counts_for_the_next_pod():
    planner = world((1, 0, 0), (1, 0, 0))
    assert given_to(planner) == [0, 0]
    planner.cluster.update_pod(make_pod("n1-run-0", node="n1", metadata=LEAVING))
    assert given_to(planner) == [0, 100]
    planner.cluster.remove_pod(make_pod("n1-run-0", node="n1", metadata=LEAVING))
    assert given_to(planner) == [0, 0]
    new = make_pod("new")
    planner.nominations.put(new, "n0")
    assert given_to(planner) == [0, 100]
    planner.nominations.remove(new)
    assert given_to(planner) == [0, 0]


def test_a_node_that_is_not_there_any_more():
    planner = world((0, 0, 0), (0, 1, 0), (0, 0, 0))
    planner.nominations.put(make_pod("new"), "gone")
    assert given_to(planner) == [0, 100, 0]
    planner.cluster.remove_node("n0")
    assert given_to(planner) == [0, 100]  # the last node took the row of the one that was removed


def test_only_nodes_that_fit_are_compared():
    nodes = [make_node("full", taints=["only:NoSchedule"]), make_node("a"), make_node("b")]
    pods = [make_pod(f"p{number}", node="full", metadata=LEAVING) for number in range(5)]
    last = make_pod("last", node="b", metadata=LEAVING)
    planner = alone("PodState", *nodes, *pods, last, also=["TaintToleration"])
    assert scores(planner.decide(make_pod())) == {"a": 0, "b": 100}


COUNTS = st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(COUNTS, min_size=2, max_size=6))
def test_as_a_slow_obvious_version_would(counts):
    raw = [leaving - coming for _, leaving, coming in counts]
    span = max(raw) - min(raw)
    expected = [(each - min(raw)) * 100 // span if span else 0 for each in raw]
    assert given_to(world(*counts)) == expected
