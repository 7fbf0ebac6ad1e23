"""What speaks against binding a pod to a node by hand."""

from __future__ import annotations

import pytest

from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.explain.explainer import find_objections

SMALL = make_node("small", allocatable={"cpu": "1", "memory": "1Gi", "pods": "10"})
LARGE = make_node("large")


def claiming(**spec):
    plain = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}
    return object_of(plain)


@pytest.mark.parametrize(
    ("pod", "node", "found"),
    [
        pytest.param(make_pod("p"), "small", [], id="it fits"),
        pytest.param(
            make_pod("p"), "smal", ['node smal not found; did you mean "small"?'], id="no such node"
        ),
        pytest.param(
            make_pod("p", requests={"cpu": "2"}),
            "small",
            ["NodeResourcesFit: Insufficient cpu"],
            id="full",
        ),
        pytest.param(make_pod("p", requests={"cpu": "2"}), "large", [], id="another node has room"),
        pytest.param(
            claiming(nodeSelector={"no": "such"}),
            "large",
            ["NodeAffinity: node(s) didn't match Pod's node affinity/selector"],
            id="no node is right",
        ),
        pytest.param(
            claiming(schedulerName="do-it-manually"), "large", [], id="whichever scheduler the pod names"
        ),
    ],
)
def test_objections(pod, node, found):
    told = find_objections(Cluster.of([SMALL, LARGE]), pod, node)
    assert len(told) == len(found)
    assert all(text.startswith(start) for text, start in zip(told, found, strict=True)), told


def test_a_pod_that_runs_there_takes_its_room():
    running = make_pod("running", node="small", requests={"cpu": "1"})
    (told,) = find_objections(Cluster.of([SMALL, running]), make_pod("p", requests={"cpu": "1"}), "small")
    assert told.startswith("NodeResourcesFit: Insufficient cpu")


def test_a_promise_of_another_node_does_not_matter():
    promised = object_of(
        {
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"nominatedNodeName": "large"},
        }
    )
    assert find_objections(Cluster.of([SMALL, LARGE]), promised, "small") == []


def test_a_claim_that_nobody_has_bound_is_named():
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"]},
    }
    storage = {
        "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": "example.com/disks",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    pod = claiming(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    cluster = Cluster.of([LARGE, object_of(claim), object_of(storage)])
    assert find_objections(cluster, pod, "large") == [
        "its PersistentVolumeClaim data is not bound; a scheduler binds it first"
    ]
