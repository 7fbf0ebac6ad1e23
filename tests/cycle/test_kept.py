"""Answers that are kept: the same as if they were worked out anew for every pod, whatever happens."""

from __future__ import annotations

import random

import numpy as np
import pytest
from staging import nodes, plan, planner_of, profile

from make import make_node, make_pod
from stowplan.framework import Plugin, Reads, Reject


class ByNode(Plugin):
    """Depends on the pod's limit and the node's size."""

    def filter_nodes(self, state, pod, nodes):
        sizes, limit = sizes_of(nodes), int(pod.labels.get("limit", 0))
        yield Reject(sizes < limit, f"smaller than {limit}", unresolvable=sizes == 0)
        yield Reject(nodes.unschedulable, "cordoned")

    def score_nodes(self, state, pod, nodes):
        return sizes_of(nodes) * int(pod.labels.get("limit", 0)) % 101


class ByUsage(Plugin):
    """Depends on how many pods are on the node, too."""

    def filter_nodes(self, state, pod, nodes):
        yield Reject(nodes.pod_count > sizes_of(nodes), "crowded")

    def score_nodes(self, state, pod, nodes):
        return np.minimum(nodes.pod_count * 7 + int(pod.labels.get("limit", 0)), 100)

    def normalize_score(self, state, pod, scores):
        return scores - scores.min()


def sizes_of(nodes):
    return np.array([int(node.labels["size"]) for node in nodes], np.int64)


def keeping(plugin, reads):
    """The same plugin, with its answers kept."""
    kept = {"sign_pod": lambda self, pod: pod.labels.get("limit"), "reads": reads}
    return type(plugin.__name__, (plugin,), kept)


def history(seed):
    """What happens to a cluster: nodes and pods come, change and go."""
    draw = random.Random(seed)
    alive, placed = [f"n{each}" for each in range(8)], []
    for name in alive:
        yield "apply", sized(name, draw)
    for number in range(120):
        what = draw.choice(
            ["node", "change", "change", "leave", "pod", "pod", "pod", "end", "decide", "decide"]
        )
        if what == "node":
            alive.append(f"x{number}")
            yield "apply", sized(alive[-1], draw)
        elif what == "change":
            yield "apply", sized(draw.choice(alive), draw)
        elif what == "leave" and len(alive) > 3:
            yield "remove", make_node(alive.pop(draw.randrange(len(alive))))
        elif what == "pod":
            placed.append(make_pod(f"p{number}", node=draw.choice(alive)))
            yield "apply", placed[-1]
        elif what == "end" and placed:
            yield "remove", placed.pop(draw.randrange(len(placed)))
        yield "decide", make_pod(f"d{number}", labels={"limit": str(draw.randrange(4))})


def sized(name, draw):
    return make_node(name, labels={"size": str(draw.randrange(6))}, unschedulable=draw.random() < 0.2)


@pytest.mark.parametrize("seed", range(6))
def test_kept_answers_are_those_that_would_be_given_anew(seed):
    fresh = plan([], ByNode, ByUsage)
    kept = plan([], keeping(ByNode, Reads.NODE), keeping(ByUsage, Reads.USAGE))
    for action, item in history(seed):
        if action == "decide":
            assert kept.decide(item).as_golden() == fresh.decide(item).as_golden()
        else:
            for planner in (fresh, kept):
                getattr(planner.cluster, action)(item)


def counting(calls, reads):
    class Counting(Plugin):
        def sign_pod(self, pod):
            return pod.labels.get("limit")

        def score_nodes(self, state, pod, nodes):
            calls.append(len(nodes))
            return np.zeros(len(nodes), np.int64)

    Counting.reads = reads
    return Counting


@pytest.mark.parametrize(
    ("reads", "after_a_pod"),
    [
        pytest.param(Reads.NODE, [], id="the node alone"),
        pytest.param(Reads.USAGE, [1], id="the node and its pods"),
        pytest.param(Reads.ANYTHING, [20], id="anything: nothing is kept"),
    ],
)
def test_only_nodes_that_changed_are_asked_about_again(reads, after_a_pod):
    calls = []
    planner = plan(nodes(*(f"n{number:02}" for number in range(20))), counting(calls, reads))
    planner.decide(make_pod("first"))
    calls.clear()
    planner.cluster.apply(make_pod("placed", node="n03"))
    planner.decide(make_pod("second"))
    assert calls == after_a_pod
    calls.clear()
    planner.cluster.apply(make_pod("placed", node="n03", labels={"topology.kubernetes.io/zone": "a"}))
    planner.decide(make_pod("third"))
    assert calls == ([20] if reads is Reads.ANYTHING else [])
    calls.clear()
    planner.decide(make_pod("another", labels={"limit": "9"}))
    assert calls == [20]


def test_profiles_do_not_share_what_they_keep():
    """Two profiles with one plugin, set differently, and after them another planner on the same cluster."""
    fit = "NodeResourcesFit"

    def strategy(name, kind):
        args = {"scoringStrategy": {"type": kind}}
        return profile(fit, schedulerName=name, pluginConfig=[{"name": fit, "args": args}])

    profiles = [strategy("least", "LeastAllocated"), strategy("most", "MostAllocated")]
    objects = [
        make_node("small", allocatable={"cpu": "2", "memory": "4Gi", "pods": "9"}),
        make_node("large", allocatable={"cpu": "8", "memory": "16Gi", "pods": "9"}),
    ]
    planner = planner_of(objects, profiles, fit)
    pods = {
        name: make_pod(name, schedulerName=name, requests={"cpu": "1", "memory": "2Gi"})
        for name in ("least", "most")
    }
    for _ in range(2):
        assert {name: planner.decide(pod).chosen for name, pod in pods.items()} == {
            "least": "large",
            "most": "small",
        }
