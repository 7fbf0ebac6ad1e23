"""Amounts of absurd size never look like room."""

from __future__ import annotations

import time

import pytest

from make import REGISTRY, make_node, make_pod
from stowplan.cluster import Cluster
from stowplan.cycle import Planner

HUGE = ["1e5000", "1e999999999", "9E", "8Ei", "9223372036854775807", "9" * 5000]


def decide(cluster, pod):
    return Planner(cluster, registry=REGISTRY).decide(pod)


@pytest.mark.parametrize("amount", HUGE)
@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage", "example.com/widgets"])
def test_bound_pods_with_huge_requests_fill_their_node(resource, amount):
    room = {
        "cpu": "4",
        "memory": "8Gi",
        "ephemeral-storage": "8Gi",
        "example.com/widgets": "8",
        "pods": "110",
    }
    hostile = [make_pod(f"p{number}", node="n1", requests={resource: amount}) for number in range(8)]
    cluster = Cluster.of([make_node("n1", allocatable=room), *hostile])
    wanted = make_pod("canary", requests={resource: "1"})
    assert decide(cluster, wanted).chosen is None
    for pod in hostile[1:]:
        cluster.remove_pod(pod)
    assert decide(cluster, wanted).chosen is None
    cluster.remove_pod(hostile[0])
    assert decide(cluster, wanted).chosen == "n1"


def test_thousands_of_them_do_not_add_up_to_room():
    hostile = [make_pod(f"p{number}", node="n1", requests={"cpu": "9E"}) for number in range(2100)]
    cluster = Cluster.of([make_node("n1", allocatable={"cpu": "4", "pods": "100000"}), *hostile])
    wanted = make_pod("canary", requests={"cpu": "1"})
    assert decide(cluster, wanted).chosen is None
    for pod in hostile:
        assert decide(cluster, wanted).chosen is None if pod is hostile[-1] else True
        cluster.remove_pod(pod)
    assert decide(cluster, wanted).chosen == "n1"
    assert cluster.nodes.requested["cpu"].tolist() == [0]


@pytest.mark.parametrize("amount", HUGE)
def test_a_pod_that_wants_too_much_fits_nowhere(amount):
    cluster = Cluster.of([make_node("n1")])
    began = time.process_time()
    decision = decide(cluster, make_pod(requests={"cpu": amount}))
    assert decision.chosen is None
    assert "Insufficient cpu" in decision.message
    assert time.process_time() - began < 5


@pytest.mark.parametrize("amount", ["1e-5000", "0." + "0" * 5000 + "1"])
def test_tiny_requests_count_as_the_smallest_amount(amount):
    cluster = Cluster.of(
        [make_node("n1"), make_pod("p", node="n1", requests={"cpu": amount, "memory": amount})]
    )
    used = cluster.nodes.requested
    assert (used["cpu"].tolist(), used["memory"].tolist()) == ([1], [1])
