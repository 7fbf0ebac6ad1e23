"""Sums of what placed pods request, by keys of a plugin's choice."""

from __future__ import annotations

import gc
import random
import sys
import weakref

import pytest

from make import make_node, make_pod
from stowplan.cluster import Cluster
from stowplan.cluster.sealed import SealedCluster


def placed(name, namespace="default", node="n1", **requests):
    return make_pod(name, namespace=namespace, node=node, requests=requests or {"cpu": "1"})


def by_namespace(pod):
    return (pod.namespace,)


def test_pods_count_while_they_have_a_node():
    cluster = Cluster.of([make_node("n1"), placed("a", cpu="500m", memory="1Gi")])
    totals = cluster.totals(by_namespace)
    assert totals.of("default") == {"cpu": 500, "memory": 2**30, "pods": 1}
    pending = make_pod("b", requests={"cpu": "2"})
    cluster.assume_pod(pending, "n1")
    assert totals.of("default")["cpu"] == 2500
    cluster.forget_pod(pending)
    aside = cluster.set_aside([placed("a")])
    assert totals.of("default") == {}
    cluster.bring_back(aside)
    assert totals.of("default")["pods"] == 1


def test_a_pod_whose_key_changes_moves():
    cluster = Cluster.of([make_node("n1"), placed("a")])
    totals = cluster.totals(lambda pod: (pod.labels.get("team", "nobody"),))
    assert totals.of("nobody")["pods"] == 1
    cluster.update_pod(make_pod("a", node="n1", requests={"cpu": "1"}, labels={"team": "red"}))
    assert (totals.of("nobody"), totals.of("red")["cpu"]) == ({}, 1000)


def test_keys_that_fail_break_nothing_but_their_owner():
    cluster = Cluster.of([make_node("n1"), placed("a")])
    is_broken = True

    def keys(pod):
        if is_broken:
            raise ValueError("broken")
        return ("all",)

    totals = SealedCluster(cluster).totals(keys)
    cluster.assume_pod(make_pod("b"), "n1")
    with pytest.raises(ValueError, match="broken"):
        totals.of("all")
    is_broken = False
    assert totals.of("all")["pods"] == 2


def test_totals_that_nobody_asks_for_cost_no_memory(monkeypatch):
    monkeypatch.setattr("stowplan.cluster.cluster.MAX_CHANGES", 10)
    cluster = Cluster.of([make_node("n1")])
    totals = cluster.totals(by_namespace)
    assert totals.of("default") == {}
    others = [make_pod("free")]
    gone = [cluster.assume_pod(make_pod(f"p{number}"), "n1") for number in range(40)]
    for pod in gone:
        cluster.forget_pod(pod)
    unshared = next(map(sys.getrefcount, others))
    assert sum(count > unshared for count in map(sys.getrefcount, gone)) <= 10
    cluster.assume_pod(make_pod("last"), "n1")
    assert totals.of("default")["pods"] == 1
    reference = weakref.ref(totals)
    del totals
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("seed", range(5))
def test_sums_equal_those_counted_anew(seed):
    draw = random.Random(seed)
    cluster = Cluster.of([make_node("n1")])
    totals = cluster.totals(by_namespace)
    pods = [
        make_pod(f"p{number}", namespace=draw.choice("ab"), requests={"cpu": f"{draw.randint(1, 900)}m"})
        for number in range(20)
    ]
    for _ in range(200):
        pod = draw.choice(pods)
        if cluster.pod(pod.uid) is None:
            cluster.assume_pod(pod, "n1")
        else:
            cluster.forget_pod(pod)
        if draw.random() < 0.3:
            fresh = cluster.totals(by_namespace)
            assert [totals.of(name) for name in "ab"] == [fresh.of(name) for name in "ab"]
