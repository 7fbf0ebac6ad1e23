"""Counts of pods by node and by domain, which follow pods and labels."""

from __future__ import annotations

import pytest

from make import make_node, make_pod
from stowplan.api.selectors import EVERYTHING, selector_of_map
from stowplan.cluster import Cluster
from stowplan.cluster.pod_table import PodQuery

WEB = selector_of_map({"app": "web"})
GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.fixture
def cluster():
    return Cluster.of(
        [
            make_node("a", labels={"zone": "x"}),
            make_node("b", labels={"zone": "x"}),
            make_node("c", labels={"zone": "y"}),
            make_node("d"),
            make_pod("1", node="a", labels={"app": "web"}),
            make_pod("2", node="b", labels={"app": "web"}, metadata=GONE),
            make_pod("3", node="c", labels={"app": "db"}),
            make_pod("4", node="d", labels={"app": "web"}),
            make_pod("5", node="a", labels={"app": "web"}, namespace="other"),
        ]
    )


def by_zone(cluster, tally):
    counts = tally.by_domain("zone")
    return dict(zip(cluster.nodes.label("zone").values, counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("query", "rows", "zones"),
    [
        pytest.param(PodQuery(None, WEB), [2, 1, 0, 1], {"x": 3, "y": 0}, id="of all namespaces"),
        pytest.param(PodQuery(frozenset({"default"}), WEB), [1, 1, 0, 1], {"x": 2, "y": 0}, id="of one"),
        pytest.param(
            PodQuery(frozenset({"default"}), WEB, True), [1, 0, 0, 1], {"x": 1, "y": 0}, id="that stay"
        ),
        pytest.param(PodQuery(None, EVERYTHING), [2, 1, 1, 1], {"x": 3, "y": 1}, id="whoever they are"),
    ],
)
def test_who_is_counted(cluster, query, rows, zones):
    tally = cluster.nodes.tallies.of_pods(query)
    assert tally.by_row.tolist() == rows
    assert by_zone(cluster, tally) == zones


def test_counts_follow(cluster):
    tally = cluster.nodes.tallies.of_pods(PodQuery(None, WEB))
    assert by_zone(cluster, tally) == {"x": 3, "y": 0}
    cluster.assume_pod(make_pod("6", labels={"app": "web"}), "c")
    assert by_zone(cluster, tally) == {"x": 3, "y": 1}
    cluster.remove_pod(make_pod("1"))
    assert by_zone(cluster, tally) == {"x": 2, "y": 1}
    cluster.apply(make_pod("3", node="c", labels={"app": "web"}))
    assert by_zone(cluster, tally) == {"x": 2, "y": 2}
    cluster.add_node(make_node("b", labels={"zone": "y"}))
    assert by_zone(cluster, tally) == {"x": 1, "y": 3}
    cluster.remove_node("c")
    assert by_zone(cluster, tally) == {"x": 1, "y": 1}
    cluster.add_node(make_node("c", labels={"zone": "new"}))
    assert by_zone(cluster, tally) == {"x": 1, "y": 1, "new": 2}
    assert tally.by_row.tolist() == [1, 1, 1, 2]


def test_counts_follow_labels_that_come_with_the_binding(cluster):
    """As API servers add those of the node's zone."""
    tally = cluster.nodes.tallies.of_pods(PodQuery(None, WEB))
    stays = cluster.nodes.tallies.of_pods(PodQuery(None, WEB, live_only=True))
    cluster.assume_pod(make_pod("6"), "c")
    cluster.add_pod(make_pod("6", node="c", labels={"app": "web"}))
    assert tally.by_row.tolist() == [2, 1, 1, 1]
    cluster.update_pod(make_pod("6", node="c", labels={"app": "web"}, metadata=GONE))
    assert (tally.by_row.tolist(), stays.by_row.tolist()) == ([2, 1, 1, 1], [2, 0, 0, 1])
    cluster.update_pod(make_pod("6", node="c"))
    assert tally.by_row.tolist() == [2, 1, 0, 1]
