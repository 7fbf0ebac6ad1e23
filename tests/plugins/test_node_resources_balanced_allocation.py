"""NodeResourcesBalancedAllocation: whether a pod brings a node's resources into balance."""

from __future__ import annotations

import pytest
from alone import plugin_of

from make import make_node, make_pod, planner
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.framework import Status
from stowplan.scheduler.options import parse

GPU = "example.com/gpu"
THREE = {"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": GPU}]}


def score(requests, taken, args=None, allocatable=None):
    node = make_node("n", allocatable=allocatable or {"cpu": "4", "memory": "8Gi", "pods": "9", GPU: "4"})
    plugin = plugin_of(
        "NodeResourcesBalancedAllocation", node, make_pod("used", node="n", requests=taken), args=args
    )
    (found,) = plugin.score_nodes(None, make_pod(requests=requests), plugin.handle.cluster.nodes).tolist()
    return found


@pytest.mark.parametrize(
    ("requests", "taken", "args", "expected"),
    [
        pytest.param(
            {"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "4Gi"}, None, 78, id="from 87 to 93"
        ),
        pytest.param({"cpu": "1", "memory": "1Gi"}, {}, None, 71, id="an empty node: from 100 to 93"),
        pytest.param({"cpu": "2"}, {"cpu": "2", "memory": "4Gi"}, None, 62, id="from 100 to 75"),
        pytest.param(
            {"cpu": "1", "memory": "1Gi", GPU: "1"},
            {"cpu": "1", "memory": "4Gi", GPU: "1"},
            THREE,
            78,
            id="three resources: from 88 to 94",
        ),
        pytest.param(
            {"cpu": "1", "memory": "1Gi"},
            {"cpu": "1", "memory": "4Gi", GPU: "4"},
            THREE,
            78,
            id="one that is not asked for is left out",
        ),
        pytest.param({"cpu": "1", "memory": "2Gi"}, {}, None, 75, id="in balance before and after"),
        pytest.param(
            {"cpu": "2", "memory": "4Gi"}, {"cpu": "8", "memory": "8Gi"}, None, 75, id="full is full"
        ),
    ],
)
def test_balance(requests, taken, args, expected):
    assert score(requests, taken, args) == expected


@pytest.mark.parametrize(("server", "expected"), [(34, [93, 75]), (35, [93, 75]), (36, [71, 62])])
def test_before_1_36_the_balance_with_the_pod_counts(server, expected):
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    nodes = [make_node(name, allocatable=allocatable) for name in ("empty", "half")]
    used = make_pod("used", node="half", requests={"cpu": "2", "memory": "4Gi"})
    asked = Planner(Cluster.of([*nodes, used]), parse([], server_minor=server).options.config)

    def score_on(node, **requests):
        scores = asked.decide(make_pod(requests=requests)).as_golden()["scores"]
        return scores["NodeResourcesBalancedAllocation"][node]

    assert [score_on("empty", cpu="1", memory="1Gi"), score_on("half", cpu="2")] == expected


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [
        pytest.param({"cpu": "4", "memory": "8Gi", "pods": "9"}, 78, id="one of three: the other two"),
        pytest.param({"cpu": "4", "pods": "9"}, 75, id="two of three: nothing to balance"),
        pytest.param({"pods": "9"}, 75, id="all"),
    ],
)
def test_resources_the_node_lacks_are_left_out(allocatable, expected):
    requests, taken = {"cpu": "1", "memory": "1Gi", GPU: "1"}, {"cpu": "1", "memory": "4Gi"}
    assert score(requests, taken, THREE, allocatable) == expected


def test_a_node_that_lacks_a_resource_beside_one_that_has_it():
    room = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    nodes = [make_node("lacks", allocatable=room), make_node("has", allocatable=room | {GPU: "1"})]
    plugin = plugin_of("NodeResourcesBalancedAllocation", *nodes, args=THREE)
    pod = make_pod(requests={"cpu": "1", "memory": "1Gi", GPU: "1"})
    # Without the pod both are even; with it the shares are 1/4 and 1/8, and on the second node also 1.
    assert plugin.score_nodes(None, pod, plugin.handle.cluster.nodes).tolist() == [71, 55]


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        pytest.param(make_pod(), Status.skip(), id="nothing asked: no default is filled in"),
        pytest.param(make_pod(requests={"cpu": "0", "memory": "0"}), Status.skip(), id="zeros"),
        pytest.param(make_pod(requests={GPU: "1"}), Status.skip(), id="only what does not count"),
        pytest.param(make_pod(requests={"memory": "1"}), None, id="a byte"),
        pytest.param(
            make_pod(resources={"requests": {"cpu": "1"}}), None, id="asked for by the pod as a whole"
        ),
    ],
)
def test_pods_that_ask_for_nothing_are_not_scored(pod, status):
    plugin = plugin_of("NodeResourcesBalancedAllocation", make_node("n"))
    assert plugin.pre_score(None, pod, plugin.handle.cluster.nodes) == status


def test_a_resource_that_devices_stand_behind_is_left_out():
    """kube-scheduler panics at it."""
    device_class = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"extendedResourceName": GPU}}
    slices = [
        {
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": name,
                "pool": {"name": name, "resourceSliceCount": 1},
                "devices": [{"name": "d0"}, {"name": "d1"}],
            },
        }
        for name in ("n1", "n2")
    ]
    room = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    objects = [make_node("n1", allocatable=room), make_node("n2", allocatable=room), device_class, *slices]
    name = "NodeResourcesBalancedAllocation"
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": name, "args": THREE}]}],
    }
    requests = {"cpu": "1", "memory": "1Gi"}
    found = planner(objects, config).decide(make_pod(requests=requests | {GPU: "1"})).as_golden()
    without = planner(objects).decide(make_pod(requests=requests)).as_golden()
    assert found["scores"][name] == without["scores"][name]
