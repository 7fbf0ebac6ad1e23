"""An observer is told of every call into a plugin, in order, whatever becomes of the call."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from make import make_node, make_pod
from stowplan import Plugin
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import schedule
from stowplan.cycle.preempt import preempt
from stowplan.framework.handle import Handle
from stowplan.framework.observer import Observer
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


class Mine(Plugin):
    where = ""

    def pre_filter(self, state, pod, nodes):
        return self._maybe("pre_filter")

    def filter(self, state, pod, node):
        return self._maybe("filter")

    def post_filter(self, state, pod, decision):
        return self._maybe("post_filter")

    def pre_score(self, state, pod, nodes):
        return self._maybe("pre_score")

    def score(self, state, pod, node):
        return self._maybe("score") or 0

    def normalize_score(self, state, pod, scores):
        self._maybe("normalize_score")
        return scores

    def _maybe(self, method: str) -> Any:
        if method == type(self).where:
            raise ValueError("broken")
        return None


class Following(Observer):
    def __init__(self, *points: str) -> None:
        self.points, self.open, self.seen = points, [], []

    def start(self, point):
        return self if point in self.points else None

    def enter(self, point, plugin):
        self.open.append((point, plugin.name))
        if plugin.name == "Mine":
            self.seen.append(point)

    def leave(self, point, plugin):
        assert self.open.pop() == (point, plugin.name)


ALL = ("PreFilter", "Filter", "PostFilter", "PreScore", "Score")
DECIDED = ["PreFilter", "Filter", "PreScore", "Score", "ScoreExtensionNormalize"]


def decide(observer: Observer, where: str = "", cpu: str = "1") -> None:
    registry = Registry.installed(classes={"Mine": type("Mine", (Mine,), {"where": where})})
    points = {"multiPoint": {"enabled": [{"name": "Mine"}]}}
    (resolved,) = resolve_profiles(load({**V1, "profiles": [{"plugins": points}]}, registry).config, registry)
    cluster = Cluster.of([make_node("n1"), make_node("n2")])
    handle = Handle(cluster)
    profile = Profile(resolved, handle, observer=observer)
    handle.preempt = partial(preempt, profile)
    schedule(profile, make_pod("p", requests={"cpu": cpu}), cluster.nodes)


@pytest.mark.parametrize(
    ("where", "cpu", "seen"),
    [
        pytest.param("", "1", DECIDED, id="all is well"),
        pytest.param("", "1000", [*DECIDED[:2], "PostFilter"], id="no node fits"),
        pytest.param("pre_filter", "1", DECIDED[:1], id="pre_filter raises"),
        pytest.param("filter", "1", DECIDED[:2], id="filter raises"),
        pytest.param("post_filter", "1000", [*DECIDED[:2], "PostFilter"], id="post_filter raises"),
        pytest.param("pre_score", "1", DECIDED[:3], id="pre_score raises"),
        pytest.param("score", "1", DECIDED[:4], id="score raises"),
        pytest.param("normalize_score", "1", DECIDED, id="normalize_score raises"),
    ],
)
def test_every_call_is_entered_and_left(where, cpu, seen):
    observer = Following(*ALL)
    decide(observer, where, cpu)
    assert observer.seen == seen
    assert observer.open == []


def test_points_that_nobody_observes_are_left_out():
    observer = Following("Filter")
    decide(observer)
    assert observer.seen == ["Filter"]
