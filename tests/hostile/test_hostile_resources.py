"""Pods that ask for thousands of resources that nobody has: they cost little, and only themselves."""

from __future__ import annotations

import time

import pytest

from make import make_node, make_pod, planner

NAMES = {f"example.com/r{number}": "1" for number in range(5000)}
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "20"}


def timed(action):
    began = time.process_time()
    found = action()
    return found, time.process_time() - began


def test_a_pending_pod_is_refused_soon():
    asked = planner([make_node(f"n{number}") for number in range(500)])
    decision, seconds = timed(lambda: asked.decide(make_pod(requests=NAMES)))
    message, more = timed(lambda: decision.message)
    assert message.count("500 Insufficient example.com/") == len(NAMES)
    assert seconds + more < 5


def test_a_pod_on_a_node_takes_no_room_in_the_tables():
    asked = planner([make_node(f"n{number}") for number in range(500)])
    evil = make_pod("evil", node="n1", requests=NAMES)
    _, seconds = timed(lambda: asked.cluster.add_pod(evil))
    assert seconds < 1
    assert len(list(asked.cluster.nodes.requested)) < 10


@pytest.mark.parametrize("node_first", [True, False])
def test_what_a_pod_takes_of_a_resource_counts_once_a_node_offers_it(node_first):
    plain, better = (
        make_node("n1", allocatable=ROOM),
        make_node("n1", allocatable=ROOM | {"example.com/gpu": "2"}),
    )
    asked = planner([better if node_first else plain])
    asked.cluster.add_pod(make_pod("first", node="n1", requests={"example.com/gpu": "1"}))
    asked.cluster.apply(better)
    one, two = (make_pod(f"p{count}", requests={"example.com/gpu": str(count)}) for count in (1, 2))
    assert asked.decide(one).chosen == "n1"
    assert asked.decide(two).message.startswith("0/1 nodes are available: 1 Insufficient example.com/gpu.")
    asked.cluster.remove_pod(make_pod("first", node="n1"))
    assert asked.decide(two).chosen == "n1"


@pytest.mark.parametrize("plugins", [None, "InterPodAffinity"])
def test_evicting_who_has_a_resource_that_no_node_offers_makes_no_room_for_it(plugins):
    """Counted as taken away without having been counted before, it would look like room."""
    gpu = {"example.com/gpu": "1"}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"no": "one"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {"affinity": affinity} if plugins else {}
    objects = [make_node("n1", allocatable=ROOM), make_pod("low", node="n1", requests=gpu | {"cpu": "4"})]
    high = make_pod("high", priority=9, requests=gpu | {"cpu": "1"}, **spec)
    assert planner(objects).decide(high).nominated is None
