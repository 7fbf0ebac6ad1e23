"""What the API server would have filled in."""

from __future__ import annotations

import copy

import pytest

from stowplan.api.defaults import default_storage_class, with_defaults, with_namespace
from stowplan.api.meta import decode
from stowplan.api.storage import StorageClass
from stowplan.api.workloads import PriorityClass
from stowplan.errors import InputError

CLASSES = {
    "high": PriorityClass(value=1000, preemption_policy="Never"),
    "usual": PriorityClass(value=10, global_default=True),
    "also-usual": PriorityClass(value=20, global_default=True),
}


def filled(kind, *, classes=(), storage_class=None, **parts):
    data = {"kind": kind, **parts}
    before = copy.deepcopy(data)
    found = with_defaults(data, {name: CLASSES[name] for name in classes}, storage_class)
    assert data == before, "the manifest itself stays as it is"
    return found


@pytest.mark.parametrize(
    ("spec", "classes", "priority", "policy"),
    [
        pytest.param({}, (), None, None, id="no class at all"),
        pytest.param({}, ("also-usual", "usual"), 10, None, id="the lowest of the defaults"),
        pytest.param({"priorityClassName": "high"}, ("high", "usual"), 1000, "Never", id="a class by name"),
        pytest.param(
            {"priorityClassName": "high", "priority": 5, "preemptionPolicy": "PreemptLowerPriority"},
            ("high",),
            5,
            "PreemptLowerPriority",
            id="what a dump says stays",
        ),
        pytest.param(
            {"priorityClassName": "gone", "priority": 5}, (), 5, None, id="a class the dump leaves out"
        ),
        pytest.param(
            {"priorityClassName": "system-cluster-critical"}, (), 2_000_000_000, None, id="the cluster's own"
        ),
        pytest.param(
            {"priorityClassName": "system-node-critical"}, (), 2_000_001_000, None, id="the node's own"
        ),
    ],
)
def test_priority(spec, classes, priority, policy):
    found = filled("Pod", spec=spec | {"hostNetwork": False}, classes=classes)["spec"]
    assert (found.get("priority"), found.get("preemptionPolicy")) == (priority, policy)


def test_an_unknown_priority_class_is_refused():
    with pytest.raises(InputError, match=r"spec\.priorityClassName: PriorityClass 'high'"):
        filled("Pod", spec={"priorityClassName": "high"})


@pytest.mark.parametrize("group", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        pytest.param({"limits": {"cpu": "2"}}, {"cpu": "2"}, id="a limit alone"),
        pytest.param({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, {"cpu": "1"}, id="a request stays"),
        pytest.param({"limits": {"cpu": "2"}, "requests": None}, {"cpu": "2"}, id="null is absent"),
    ],
)
def test_limits_stand_in_for_requests(group, resources, requests):
    found = filled("Pod", spec={group: [{"name": "c", "resources": resources}]})
    assert found["spec"][group][0]["resources"]["requests"] == requests


def test_limits_of_the_whole_pod_stand_in_for_what_no_container_asks():
    spec = {
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
        "containers": [{"resources": {"requests": {"memory": "1Mi"}}}],
    }
    assert filled("Pod", spec=spec)["spec"]["resources"]["requests"] == {"cpu": "2"}


@pytest.mark.parametrize(
    ("host_network", "port", "host_port"),
    [
        pytest.param(True, {"containerPort": 80}, 80, id="on the host's network"),
        pytest.param(True, {"containerPort": 80, "hostPort": 8080}, 8080, id="a port of its own"),
        pytest.param(False, {"containerPort": 80}, None, id="on a network of its own"),
    ],
)
def test_host_ports(host_network, port, host_port):
    found = filled("Pod", spec={"hostNetwork": host_network, "containers": [{"ports": [port]}]})
    assert found["spec"]["containers"][0]["ports"][0].get("hostPort") == host_port


def test_label_keys_become_part_of_affinity_selectors():
    required, preferred = (
        f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred")
    )
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "matchLabelKeys": ["version", "absent"],
        "mismatchLabelKeys": ["tenant"],
    }
    affinity = {
        "podAffinity": {required: [term]},
        "podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": term}]},
    }
    labels = {"version": "2", "tenant": "t"}
    found = filled("Pod", metadata={"labels": labels}, spec={"affinity": affinity})["spec"]["affinity"]
    selector = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "version", "operator": "In", "values": ["2"]},
            {"key": "tenant", "operator": "NotIn", "values": ["t"]},
        ],
    }
    assert found["podAffinity"][required][0]["labelSelector"] == selector
    assert found["podAntiAffinity"][preferred][0]["podAffinityTerm"]["labelSelector"] == selector


@pytest.mark.parametrize(
    ("status", "allocatable"),
    [
        pytest.param({"capacity": {"cpu": "4"}}, {"cpu": "4"}, id="capacity alone"),
        pytest.param({"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}, {"cpu": "3"}, id="both"),
        pytest.param({"capacity": {"cpu": "4"}, "allocatable": {}}, {}, id="nothing to give"),
    ],
)
def test_allocatable(status, allocatable):
    assert filled("Node", status=status)["status"]["allocatable"] == allocatable


def test_namespaces_are_labelled_with_their_name():
    found = filled("Namespace", metadata={"name": "shop", "labels": {"team": "x"}})
    assert found["metadata"]["labels"] == {"team": "x", "kubernetes.io/metadata.name": "shop"}


@pytest.mark.parametrize(
    ("data", "namespace"),
    [
        pytest.param({"kind": "Pod", "metadata": {"name": "p"}}, "default", id="none"),
        pytest.param({"kind": "Pod", "metadata": {"name": "p", "namespace": "own"}}, "own", id="its own"),
        pytest.param({"kind": "Node", "metadata": {"name": "n"}}, None, id="a kind without"),
    ],
)
def test_namespace(data, namespace):
    assert with_namespace(data, "default")["metadata"].get("namespace") == namespace


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        pytest.param({"spec": {}}, "fast", id="no class"),
        pytest.param({"spec": {"storageClassName": ""}}, "", id="the empty class"),
        pytest.param({"spec": {"storageClassName": "own"}}, "own", id="a class"),
        pytest.param(
            {"spec": {}, "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}},
            None,
            id="a class by annotation",
        ),
    ],
)
def test_storage_class(claim, name):
    found = filled("PersistentVolumeClaim", storage_class="fast", **claim)
    assert found["spec"].get("storageClassName") == name


def test_the_newest_default_storage_class_counts():
    def storage_class(name, created, default="true"):
        annotations = {"storageclass.kubernetes.io/is-default-class": default}
        meta = {"name": name, "creationTimestamp": created, "annotations": annotations}
        return decode(StorageClass, {"metadata": meta})

    old, new, twin = (
        storage_class("old", "2025-01-01T00:00:00Z"),
        *(storage_class(name, "2026-01-01T00:00:00Z") for name in ("new", "twin")),
    )
    other = storage_class("other", "2026-06-01T00:00:00Z", "false")
    assert default_storage_class([old, twin, other, new]) == "new"
    assert default_storage_class([other]) is None
