"""Each plugin alone against its twin, on random clusters that dwell on what it reads."""

from __future__ import annotations

import pytest
from comparing import assert_agree
from drawing import nodes, pods
from drawing.clusters import Scene, scenes
from drawing.profiles import alone, only
from drawing.words import seldom
from hypothesis import given
from hypothesis import strategies as st
from twins.requests import asked, taken, taken_nonzero

from example_share import examples
from stowplan.api.pod import Pod

PLUGINS = [
    pytest.param("NodeUnschedulable", {"tolerations"}, {"taints"}, id="NodeUnschedulable"),
    pytest.param("TaintToleration", {"tolerations"}, {"taints"}, id="TaintToleration"),
    pytest.param("NodeAffinity", {"nodes"}, set(), id="NodeAffinity"),
    pytest.param("NodePorts", {"ports"}, set(), id="NodePorts"),
    pytest.param("NodeResourcesFit", {"resources"}, {"resources"}, id="NodeResourcesFit"),
    pytest.param("NodeResourcesFit", {"resources"}, {"roomy"}, id="NodeResourcesFit in roomy nodes"),
    pytest.param("NodeResourcesBalancedAllocation", {"resources"}, {"resources"}, id="BalancedAllocation"),
    pytest.param("NodeResourcesBalancedAllocation", {"resources"}, {"roomy"}, id="the same in roomy nodes"),
    pytest.param("ImageLocality", {"images"}, {"images"}, id="ImageLocality"),
    pytest.param("NodeDeclaredFeatures", {"features"}, {"features"}, id="NodeDeclaredFeatures"),
    pytest.param("PodTopologySpread", {"spread", "nodes", "tolerations"}, {"taints"}, id="PodTopologySpread"),
    pytest.param("PodTopologySpread", {"owners"}, set(), id="PodTopologySpread by default"),
    pytest.param("InterPodAffinity", {"near"}, set(), id="InterPodAffinity"),
]
"""With what pods and nodes are drawn with, beside their labels."""
ZONE = "topology.kubernetes.io/zone"
DEVICE_CLASSES = [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    for name, spec in (("gpu", {"extendedResourceName": "example.com/gpu"}), ("nic", {}))
]


@pytest.mark.parametrize(("plugin", "pod_parts", "node_parts"), PLUGINS)
@given(data=st.data())
@examples(100)
def test_agrees_with_its_twin(plugin, pod_parts, node_parts, data):
    scene = data.draw(scenes(frozenset(pod_parts), frozenset(node_parts), mistakes=True), label="scene")
    assert_agree(scene, data.draw(only(plugin), label="profile"))


@given(scene=scenes(frozenset(), frozenset()), name=st.sampled_from(("n00", "n01", "n05", "unknown")))
@examples(30)
def test_node_name(scene, name):
    pending = [pod | {"spec": pod["spec"] | {"nodeName": name}} for pod in scene.pending]
    assert_agree(scene._replace(pending=pending), alone("NodeName"))


@given(
    scene=scenes(frozenset({"resources"}), frozenset({"resources"})),
    resource=st.sampled_from(("example.com/gpu", "deviceclass.resource.kubernetes.io/nic", "other.org/nic")),
    amount=seldom("1", st.just("0"), 4),
)
@examples(50)
def test_resources_that_device_classes_stand_behind(scene, resource, amount):
    """NodeResourcesFit leaves them to DynamicResources where the node does not count them itself."""
    containers = [{"name": "c0", "image": "web", "resources": {"requests": {resource: amount}}}]
    pending = [pod | {"spec": pod["spec"] | {"containers": containers}} for pod in scene.pending]
    assert_agree(
        scene._replace(objects=[*scene.objects, *DEVICE_CLASSES], pending=pending),
        alone("NodeResourcesFit"),
    )


@given(kind=pods.pod_kinds(frozenset({"resources"})), data=st.data())
@examples(150)
def test_requests(kind, data):
    """What a pod asks for, what it takes once it is placed, and what it counts as when nodes are scored."""
    for status in ({}, data.draw(pods.resizes(kind))):
        plain = pods.pod("a", kind, status=status)
        pod = Pod.decode(plain)
        assigned = pod.assigned or pod.shape.assigned
        assert dict(pod.requests) == asked(plain)
        assert dict(assigned.requests) == taken(plain)
        assert {"cpu": assigned.nonzero_cpu, "memory": assigned.nonzero_memory} == taken_nonzero(plain)


def test_no_label_and_an_empty_one_are_the_same_domain():
    """Where the profile spreads pods by its own defaults."""

    def node(name, labels):
        status = {"allocatable": {}}
        return nodes.node(name, {"labels": labels, "hostname": "own", "spec": {}, "status": status})

    def pod(name, node_name=""):
        meta = {"namespace": "default", "labels": {"app": "web"}}
        spec = {"containers": [{"name": "c0", "image": "web"}]}
        return pods.pod(name, {"metadata": meta, "spec": spec, "status": {}}, node=node_name)

    service = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}}}
    objects = [
        node("empty", {ZONE: ""}),
        node("none", {}),
        node("other", {ZONE: "x"}),
        service | {"apiVersion": "v1", "kind": "Service"},
        *(pod(f"p{number}", "none") for number in range(9)),
    ]
    assert_agree(Scene(objects, [pod("new")]), alone("PodTopologySpread"))
