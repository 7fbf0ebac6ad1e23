"""The cluster: pods and nodes that come in any order, assumptions, and objects by kind."""

from __future__ import annotations

import pytest

from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.errors import StowplanError


def pods_on(cluster, name):
    row = cluster.nodes.row_of(name)
    return [pod.name for pod in cluster.nodes.pods_on(row)]


def used_cpu(cluster):
    return dict(zip(cluster.nodes.names, cluster.nodes.requested["cpu"].tolist(), strict=True))


def test_a_cluster_of_objects():
    bound, pending = make_pod("a", node="n1", requests={"cpu": "1"}), make_pod("b")
    finished = make_pod("c", node="n1", status={"phase": "Succeeded"})
    cluster = Cluster.of([make_node("n1"), bound, pending, finished])
    assert pods_on(cluster, "n1") == ["a"]
    assert list(cluster.pods()) == [bound]
    assert cluster.pod("uid-a") is bound
    assert cluster.pod("uid-b") is None


def test_a_pod_may_come_before_its_node():
    cluster = Cluster.of([make_pod("a", node="n2", requests={"cpu": "1"}), make_node("n1")])
    assert used_cpu(cluster) == {"n1": 0}
    assert cluster.pod("uid-a") is not None
    cluster.add_node(make_node("n2"))
    assert used_cpu(cluster) == {"n1": 0, "n2": 1000}
    assert pods_on(cluster, "n2") == ["a"]


def test_pods_of_a_removed_node_wait_for_its_return():
    cluster = Cluster.of([make_node("n1"), *(make_pod(name, node="n1") for name in "abc")])
    cluster.remove_node("n1")
    assert len(cluster.nodes) == 0
    cluster.remove_pod(make_pod("b"))
    cluster.add_pod(make_pod("d", node="n1"))
    cluster.add_node(make_node("n1"))
    assert pods_on(cluster, "n1") == ["a", "c", "d"]


def test_removing_what_is_not_there_does_nothing():
    cluster = Cluster.of([make_node("n1")])
    cluster.remove_node("gone")
    cluster.remove_pod(make_pod("gone"))
    cluster.remove(object_of({"kind": "Service", "metadata": {"name": "gone", "namespace": "default"}}))
    cluster.forget_pod(make_pod("gone"))
    assert len(cluster.nodes) == 1


def test_a_node_that_is_replaced_keeps_its_pods_and_its_row():
    cluster = Cluster.of([make_node("n1"), make_node("n2"), make_pod("a", node="n1", requests={"cpu": "1"})])
    cluster.add_node(make_node("n1", allocatable={"cpu": "8"}))
    assert cluster.nodes.row_of("n1") == 0
    assert cluster.nodes.allocatable["cpu"].tolist() == [8000, 4000]
    assert cluster.nodes.allocatable["memory"].tolist() == [0, 8 * 2**30]
    assert used_cpu(cluster) == {"n1": 1000, "n2": 0}


class TestAssuming:
    def test_an_assumed_pod_counts_at_once(self):
        cluster, pod = Cluster.of([make_node("n1")]), make_pod("a", requests={"cpu": "1"})
        placed = cluster.assume_pod(pod, "n1")
        assert placed.node_name == "n1"
        assert pod.node_name == ""
        assert cluster.is_assumed(pod)
        assert used_cpu(cluster) == {"n1": 1000}

    def test_seeing_it_confirms_it(self):
        cluster, pod = Cluster.of([make_node("n1")]), make_pod("a", requests={"cpu": "1"})
        cluster.assume_pod(pod, "n1")
        cluster.add_pod(make_pod("a", node="n1", requests={"cpu": "1"}))
        assert not cluster.is_assumed(pod)
        assert used_cpu(cluster) == {"n1": 1000}
        with pytest.raises(
            StowplanError, match=r"pod uid-a\(default/a\) wasn't assumed so cannot be forgotten"
        ):
            cluster.forget_pod(pod)

    def test_what_was_seen_takes_the_place_of_what_was_assumed(self):
        cluster = Cluster.of([make_node("n1"), make_pod("b", node="n1")])
        cluster.assume_pod(make_pod("a"), "n1")
        seen = make_pod("a", node="n1", status={"conditions": [{"type": "PodScheduled", "status": "True"}]})
        cluster.add_pod(seen)
        assert cluster.pod("uid-a") is seen
        assert cluster.nodes.pods_on(0)[-1] is seen
        assert cluster.nodes.pods.pods[cluster.nodes.pods.slot_of(seen)] is seen
        cluster.remove_pod(seen)
        assert pods_on(cluster, "n1") == ["b"]

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"requests": {"cpu": "3"}}, id="other-requests"),
            pytest.param({"labels": {"app": "web"}}, id="other-labels"),
            pytest.param({"status": {"startTime": "2026-01-01T00:00:00Z"}}, id="started"),
        ],
    )
    def test_what_was_changed_meanwhile_counts(self, changes):
        cluster = Cluster.of([make_node("n1")])
        cluster.assume_pod(make_pod("a", requests={"cpu": "1"}), "n1")
        seen = make_pod("a", node="n1", **({"requests": {"cpu": "1"}} | changes))
        cluster.add_pod(seen)
        fresh = Cluster.of([make_node("n1"), seen])
        assert used_cpu(cluster) == used_cpu(fresh)
        for column in ("labels", "priority", "live"):
            assert getattr(cluster.nodes.pods, column).tolist() == getattr(fresh.nodes.pods, column).tolist()
        assert cluster.nodes.pods.start.tolist() == fresh.nodes.pods.start.tolist()

    def test_confirming_keeps_kube_schedulers_order_of_pods(self):
        cluster = Cluster.of([make_node("n1")])
        for name in "abc":
            cluster.assume_pod(make_pod(name), "n1")
        cluster.add_pod(make_pod("a", node="n1"))
        assert pods_on(cluster, "n1") == ["c", "b", "a"]
        slots = [cluster.nodes.pods.slot_of(pod) for pod in cluster.nodes.pods_on(0)]
        assert cluster.nodes.pods.place[slots].tolist() == [0, 1, 2]

    def test_seeing_it_elsewhere_moves_it(self):
        cluster = Cluster.of([make_node("n1"), make_node("n2")])
        cluster.assume_pod(make_pod("a", requests={"cpu": "1"}), "n1")
        cluster.add_pod(make_pod("a", node="n2", requests={"cpu": "2"}))
        assert used_cpu(cluster) == {"n1": 0, "n2": 2000}

    def test_forgetting_takes_it_back(self):
        cluster, pod = Cluster.of([make_node("n1")]), make_pod("a", requests={"cpu": "1"})
        cluster.forget_pod(cluster.assume_pod(pod, "n1"))
        assert used_cpu(cluster) == {"n1": 0}
        assert cluster.pod("uid-a") is None
        cluster.assume_pod(pod, "n1")

    def test_removing_an_assumed_pod_ends_the_assumption(self):
        cluster, pod = Cluster.of([make_node("n1")]), make_pod("a", requests={"cpu": "1"})
        cluster.remove_pod(cluster.assume_pod(pod, "n1"))
        assert not cluster.is_assumed(pod)
        assert used_cpu(cluster) == {"n1": 0}

    def test_a_known_pod_cannot_be_assumed(self):
        cluster = Cluster.of([make_node("n1"), make_pod("a", node="n1")])
        with pytest.raises(
            StowplanError, match=r"pod uid-a\(default/a\) is in the cache, so can't be assumed"
        ):
            cluster.assume_pod(make_pod("a"), "n1")

    def test_nor_added_again(self):
        cluster = Cluster.of([make_node("n1"), make_pod("a", node="n1")])
        with pytest.raises(StowplanError, match=r"pod uid-a\(default/a\) was already in added state"):
            cluster.add_pod(make_pod("a", node="n1"))

    def test_on_a_node_that_is_gone(self):
        cluster, pod = Cluster.of([make_node("n1")]), make_pod("a")
        placed = cluster.assume_pod(pod, "gone")
        cluster.forget_pod(placed)
        cluster.add_node(make_node("gone"))
        assert pods_on(cluster, "gone") == []


class TestApplying:
    def test_a_known_pod_is_replaced(self):
        cluster = Cluster.of([make_node("n1"), make_pod("a", node="n1", requests={"cpu": "1"})])
        cluster.apply(make_pod("a", node="n1", requests={"cpu": "3"}))
        assert used_cpu(cluster) == {"n1": 3000}

    def test_a_pod_that_finished_leaves(self):
        cluster = Cluster.of([make_node("n1"), make_pod("a", node="n1", requests={"cpu": "1"})])
        cluster.apply(make_pod("a", node="n1", status={"phase": "Failed"}))
        assert used_cpu(cluster) == {"n1": 0}

    def test_update_pod(self):
        cluster = Cluster.of([make_node("n1"), make_pod("a", node="n1", requests={"cpu": "1"})])
        cluster.update_pod(make_pod("a", node="n1", requests={"cpu": "2"}))
        assert used_cpu(cluster) == {"n1": 2000}

    def test_other_objects_go_to_their_stores(self):
        first, second = (service("s1", {"a": "b"}), service("s2", {}))
        cluster = Cluster.of([first, second])
        assert [each.name for each in cluster.services] == ["s1", "s2"]
        version = cluster.services.version
        cluster.apply(service("s1", {"c": "d"}))
        assert cluster.services.version > version
        assert [each.spec.selector for each in cluster.services] == [{"c": "d"}, {}]
        cluster.remove(second)
        assert (len(cluster.services), cluster.services.get("default/s2")) == (1, None)


def service(name, selector):
    meta = {"name": name, "namespace": "default"}
    return object_of({"kind": "Service", "metadata": meta, "spec": {"selector": selector}})
