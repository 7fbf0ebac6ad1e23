"""Pods: what is kept of them, and what pods that are alike share."""

from __future__ import annotations

import gc
import weakref

import pytest

from make import make_pod
from stowplan.api.pod import HostPort, Pod
from stowplan.errors import InputError


def spec(**fields):
    return {"containers": [{"name": "c", "image": "web", "resources": {"requests": {"cpu": "1"}}}]} | fields


def test_a_pod_without_a_namespace_or_uid():
    pod = Pod.decode({"metadata": {"name": "a"}})
    assert (pod.namespace, pod.key, pod.uid) == ("default", "default/a", "default/a")
    assert (pod.priority, pod.scheduler_name, pod.node_name) == (0, "default-scheduler", "")
    assert not pod.labels
    assert not pod.is_terminating


def test_what_is_kept():
    pod = Pod.decode(
        b"""{"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": {"app": "web"}, "generation": 3,
            "deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7",
            "annotations": {"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [{"kind": "Job", "name": "x"},
                {"kind": "ReplicaSet", "name": "r", "controller": true}]},
        "spec": {"nodeName": "n", "priority": 5, "schedulerName": "mine", "unknown": [1, {"deep": 2}]},
        "status": {"phase": "Running", "nominatedNodeName": "m", "startTime": "1970-01-01T00:01:00Z",
            "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "d"}, {"name": "e"}],
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}}"""
    )
    assert (pod.key, pod.uid, pod.node_name, pod.priority, pod.scheduler_name) == ("b/a", "u", "n", 5, "mine")
    assert (pod.generation, pod.resource_version, pod.phase, pod.start_time) == (3, "7", "Running", 60.0)
    assert pod.controller is not None
    assert pod.controller.name == "r"
    assert dict(pod.annotations) == {"note": "kept"}
    assert pod.is_terminating
    assert pod.nominated_node_name == "m"
    assert dict(pod.resource_claim_statuses) == {"c": "d", "e": None}
    assert [condition.type for condition in pod.conditions] == ["DisruptionTarget"]


def test_pods_of_equal_spec_and_labels_share_them():
    one = make_pod("a", labels={"app": "web", "tier": "x"}, node="n1", requests={"cpu": "1"})
    other = make_pod("b", labels={"tier": "x", "app": "web"}, node="n2", requests={"cpu": "1"})
    assert one.shape is other.shape
    assert one.label_set is other.label_set
    assert (one.node_name, other.node_name) == ("n1", "n2")
    assert one.spec.node_name == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"priority": 1}, {"priority": 2}, id="priority"),
        pytest.param({"nodeSelector": {}}, {}, id="an empty node selector is not none"),
        pytest.param({"overhead": {"cpu": "1"}}, {"overhead": {"cpu": "2"}}, id="a quantity"),
        pytest.param({"tolerations": ["a"]}, {"tolerations": ["b"]}, id="a toleration"),
        pytest.param({"hostUsers": False}, {}, id="a flag that may be absent"),
    ],
)
def test_pods_that_differ_do_not(one, other):
    assert make_pod("a", **one).shape is not make_pod("b", **other).shape


def test_pods_of_other_namespaces_do_not_share_labels():
    one, other = make_pod("a", labels={"app": "web"}), make_pod("a", namespace="other", labels={"app": "web"})
    assert one.label_set is not other.label_set
    assert one.shape is other.shape


def test_volumes_that_do_not_matter_make_no_difference():
    def pod(name):
        token = {"name": f"kube-api-access-{name}", "projected": {"sources": []}}
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        return make_pod(name, volumes=[token, claim])

    assert pod("a").shape is pod("b").shape
    assert [volume.name for volume in pod("a").spec.volumes] == ["data"]


def test_shapes_and_labels_go_with_the_last_pod_that_has_them():
    pod = make_pod("a", labels={"only": "here"}, requests={"cpu": "123456789m"})
    shape, labels = weakref.ref(pod.shape), weakref.ref(pod.label_set)
    del pod
    gc.collect()
    assert (shape(), labels()) == (None, None)


def test_on_a_node_everything_else_stays_the_same():
    pod = make_pod(
        "a", labels={"app": "web"}, status={"containerStatuses": [{"name": "main", "resources": {}}]}
    )
    placed = pod.on("n")
    assert placed.node_name == "n"
    assert pod.node_name == ""
    assert (placed.uid, placed.shape, placed.label_set, placed.assigned) == (
        pod.uid,
        pod.shape,
        pod.label_set,
        pod.assigned,
    )


@pytest.mark.parametrize(("phase", "finished"), [("Succeeded", True), ("Failed", True), ("Running", False)])
def test_finished(phase, finished):
    assert make_pod(status={"phase": phase}).is_finished is finished


def ports(*containers, init=()):
    return make_pod(containers=list(containers), initContainers=list(init)).shape.ports


def with_ports(*found, **fields):
    return {"name": "c", "ports": list(found)} | fields


@pytest.mark.parametrize(
    ("port", "found"),
    [
        pytest.param({"containerPort": 80}, (), id="of the pod alone"),
        pytest.param({"hostPort": 80}, (HostPort("0.0.0.0", "TCP", 80),), id="any address, TCP"),
        pytest.param(
            {"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"},
            (HostPort("10.0.0.1", "UDP", 80),),
            id="an address and a protocol",
        ),
        pytest.param({"hostPort": 80, "hostIP": "::"}, (HostPort("::", "TCP", 80),), id="as it is written"),
    ],
)
def test_host_ports(port, found):
    assert ports(with_ports(port)) == found


def test_of_init_containers_only_sidecars_hold_ports():
    init = [with_ports({"hostPort": 1}), with_ports({"hostPort": 2}, restartPolicy="Always")]
    assert [port.port for port in ports(with_ports({"hostPort": 3}), init=init)] == [2, 3]


@pytest.mark.parametrize(
    ("plain", "field"),
    [
        pytest.param(
            {
                "spec": spec(
                    containers=[{"name": "c", "resources": {"requests": {"memory": "1Gi", "cpu": "1.5.3"}}}]
                )
            },
            "spec.containers[0].resources.requests.cpu",
            id="a quantity",
        ),
        pytest.param({"spec": spec(overhead={"cpu": []})}, "spec.overhead.cpu", id="no quantity at all"),
        pytest.param(
            {
                "spec": spec(
                    affinity={
                        "podAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "topologyKey": "zone",
                                    "labelSelector": {
                                        "matchExpressions": [{"key": "a", "operator": "Maybe"}]
                                    },
                                }
                            ]
                        }
                    }
                )
            },
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
            ".labelSelector.matchExpressions[0].operator",
            id="an operator",
        ),
        pytest.param({"spec": spec(priority="high")}, "spec.priority", id="text for a number"),
        pytest.param({"spec": spec(containers={})}, "spec.containers", id="a map for a list"),
        pytest.param({"metadata": {"labels": {"app": "web", "no": 1}}}, "metadata.labels.no", id="a label"),
        pytest.param({"status": {"startTime": "yesterday"}}, "status.startTime", id="a time"),
    ],
)
def test_errors_name_the_field(plain, field):
    with pytest.raises(InputError) as caught:
        Pod.decode({"metadata": {"name": "a"}} | plain)
    assert caught.value.field == field


def test_a_null_counts_as_absent():
    nulls = {
        "metadata": {"name": "a", "labels": None, "annotations": None, "ownerReferences": None},
        "spec": spec(
            nodeName=None, priority=None, tolerations=None, affinity=None, nodeSelector=None, overhead=None
        ),
        "status": None,
    }
    assert Pod.decode(nulls).shape is Pod.decode({"metadata": {"name": "b"}, "spec": spec()}).shape
    assert Pod.decode(nulls).node_name == ""
