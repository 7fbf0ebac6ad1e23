"""NodeResourcesFit: who has room, and how full nodes are."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, UNSCHEDULABLE, ask, manifest, plugin_of, refusals, scores

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource

GPU, LICENSE = "example.com/gpu", "acme.org/license"
SMALL = {"cpu": "4", "memory": "16Gi", "pods": "3", "ephemeral-storage": "10Gi", GPU: "2"}
RESIZED = {"type": "PodResizePending", "status": "True"}


def containers(*requests, **fields):
    return [
        {"name": f"c{number}", "resources": {"requests": each}, **fields}
        for number, each in enumerate(requests)
    ]


def used(node="n", **requests):
    return make_pod("used", node=node, requests=requests)


# Filtering


@pytest.mark.parametrize(
    ("requests", "taken", "expected"),
    [
        pytest.param({"cpu": "4"}, {}, None, id="all there is"),
        pytest.param({"cpu": "3"}, {"cpu": "2"}, (UNSCHEDULABLE, "Insufficient cpu"), id="cpu"),
        pytest.param(
            {"cpu": "4001m"}, {}, (UNRESOLVABLE, "Insufficient cpu"), id="more cpu than there ever is"
        ),
        pytest.param(
            {"memory": "9Gi"}, {"memory": "8Gi"}, (UNSCHEDULABLE, "Insufficient memory"), id="memory"
        ),
        pytest.param(
            {"ephemeral-storage": "6Gi"},
            {"ephemeral-storage": "5Gi"},
            (UNSCHEDULABLE, "Insufficient ephemeral-storage"),
            id="ephemeral storage",
        ),
        pytest.param(
            {GPU: "2"}, {GPU: "1"}, (UNSCHEDULABLE, f"Insufficient {GPU}"), id="an extended resource"
        ),
        pytest.param({LICENSE: "1"}, {}, (UNRESOLVABLE, f"Insufficient {LICENSE}"), id="one the node lacks"),
        pytest.param(
            {"hugepages-2Mi": "2Mi"}, {}, (UNRESOLVABLE, "Insufficient hugepages-2Mi"), id="huge pages"
        ),
        pytest.param(
            {"cpu": "3", "memory": "9Gi"},
            {"cpu": "2", "memory": "8Gi"},
            (UNSCHEDULABLE, "Insufficient cpu", "Insufficient memory"),
            id="all that is missing is named",
        ),
        pytest.param(
            {"cpu": "3", "memory": "17Gi"},
            {"cpu": "2"},
            (UNRESOLVABLE, "Insufficient cpu", "Insufficient memory"),
            id="one that never fits is enough to be unresolvable",
        ),
        pytest.param(
            {"cpu": "0", "memory": "1"}, {"cpu": "9"}, None, id="nothing asked of what is overcommitted"
        ),
        pytest.param({"storage": "99Gi", "foo": "9"}, {}, None, id="names that nobody counts"),
    ],
)
def test_room(requests, taken, expected):
    decision = ask(
        "NodeResourcesFit",
        make_pod(requests=requests),
        make_node("n", allocatable=SMALL),
        make_pod("other", node="n", requests=taken),
    )
    assert refusals(decision) == ({} if expected is None else {"n": expected})


@pytest.mark.parametrize(
    ("pods", "requests", "expected"),
    [
        pytest.param("2", {}, None, id="one more fits"),
        pytest.param("1", {}, (UNSCHEDULABLE, "Too many pods"), id="one too many"),
        pytest.param("0", {}, (UNSCHEDULABLE, "Too many pods"), id="a node for no pods is still resolvable"),
        pytest.param(
            "1", {"cpu": "5"}, (UNRESOLVABLE, "Too many pods", "Insufficient cpu"), id="and no room either"
        ),
    ],
)
def test_number_of_pods(pods, requests, expected):
    node = make_node("n", allocatable={"cpu": "4", "memory": "8Gi", "pods": pods})
    decision = ask("NodeResourcesFit", make_pod(requests=requests), node, used())
    assert refusals(decision) == ({} if expected is None else {"n": expected})


@pytest.mark.parametrize(
    ("args", "resource", "fits"),
    [
        pytest.param({"ignoredResources": [LICENSE]}, LICENSE, True, id="by name"),
        pytest.param({"ignoredResources": [GPU]}, LICENSE, False, id="another name"),
        pytest.param({"ignoredResourceGroups": ["acme.org"]}, LICENSE, True, id="by group"),
        pytest.param({"ignoredResourceGroups": ["example.com"]}, LICENSE, False, id="another group"),
        pytest.param({"ignoredResources": ["hugepages-2Mi"]}, "hugepages-2Mi", False, id="never huge pages"),
    ],
)
def test_ignored_resources(args, resource, fits):
    pod = make_pod(requests={resource: "1"})
    decision = ask("NodeResourcesFit", pod, make_node("n", allocatable=SMALL), args=args)
    assert refusals(decision) == ({} if fits else {"n": (UNRESOLVABLE, f"Insufficient {resource}")})


def resized(asked, given, allocated, *conditions):
    status = {
        "name": "c0",
        "resources": {"requests": {"cpu": given}},
        "allocatedResources": {"cpu": allocated},
    }
    return make_pod(
        "resized",
        node="n",
        containers=containers({"cpu": asked}),
        status={"containerStatuses": [status], "conditions": list(conditions)},
    )


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        pytest.param(resized("1", "1", "1"), "3", id="as asked"),
        pytest.param(resized("1", "3", "2"), "1", id="what it has, where that is more"),
        pytest.param(resized("1", "1", "3"), "1", id="what was set aside, where that is more"),
        pytest.param(resized("3", "1", "1"), "1", id="what it asks for, where that is more"),
        pytest.param(
            resized("3", "1", "1", RESIZED | {"reason": "Deferred"}), "1", id="a resize that will come"
        ),
        pytest.param(
            resized("3", "1", "2", RESIZED | {"reason": "Infeasible"}), "2", id="a resize that will not"
        ),
    ],
)
def test_resized_pods_count_by_their_status(pod, free):
    node = make_node("n", allocatable=SMALL)
    assert ask("NodeResourcesFit", make_pod(requests={"cpu": free}), node, pod).chosen == "n"
    more = make_pod(requests={"cpu": f"{free}001m"})
    assert refusals(ask("NodeResourcesFit", more, node, pod)) == {"n": (UNSCHEDULABLE, "Insufficient cpu")}


def test_of_a_pending_pod_only_the_spec_counts():
    pod = make_pod(
        containers=containers({"cpu": "1"}),
        status={"containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "9"}}}]},
    )
    assert ask("NodeResourcesFit", pod, make_node("n", allocatable=SMALL)).chosen == "n"


@pytest.mark.parametrize(
    ("classes", "has", "expected"),
    [
        pytest.param(["gpu"], None, None, id="devices stand behind it"),
        pytest.param(["gpu"], "0", None, id="the node has none of its own"),
        pytest.param(["gpu"], "1", (UNRESOLVABLE, f"Insufficient {GPU}"), id="the node counts it itself"),
        pytest.param([], None, (UNRESOLVABLE, f"Insufficient {GPU}"), id="no devices"),
    ],
)
def test_what_devices_stand_behind_is_left_to_dynamic_resources(classes, has, expected):
    node = make_node("n", allocatable={"pods": "9"} | ({} if has is None else {GPU: has}))
    found = [manifest("DeviceClass", name, spec={"extendedResourceName": GPU}) for name in classes]
    decision = ask("NodeResourcesFit", make_pod(requests={GPU: "2"}), node, *found)
    assert refusals(decision) == ({} if expected is None else {"n": expected})


# Scoring


def strategy(kind, *points, resources=(("cpu", 1), ("memory", 1))):
    found = {"type": kind, "resources": [{"name": name, "weight": weight} for name, weight in resources]}
    if points:
        shape = [{"utilization": use, "score": score} for use, score in points]
        found["requestedToCapacityRatio"] = {"shape": shape}
    return {"scoringStrategy": found}


def score_of(pod, node, *others, args=None):
    """The score of `node`; another one is there so that it is scored at all."""
    spare = make_node("spare", allocatable={"cpu": "99", "memory": "99Gi", "pods": "99"})
    return scores(ask("NodeResourcesFit", pod, node, spare, *others, args=args))["n"]


LEAST, MOST = strategy("LeastAllocated"), strategy("MostAllocated")
RISING = strategy("RequestedToCapacityRatio", (0, 0), (100, 10))
ROOMY = make_node("n", allocatable={"cpu": "4", "memory": "16Gi", "pods": "9"})


@pytest.mark.parametrize(
    ("args", "requests", "taken", "expected"),
    [
        pytest.param(LEAST, ("500m", "1Gi"), ("1500m", "3Gi"), 62, id="least: 50 and 75"),
        pytest.param(None, ("500m", "1Gi"), ("1500m", "3Gi"), 62, id="which is the default"),
        pytest.param(MOST, ("500m", "1Gi"), ("1500m", "3Gi"), 37, id="most: 50 and 25"),
        pytest.param(RISING, ("500m", "1Gi"), ("1500m", "3Gi"), 38, id="ratio: 37.5 is rounded"),
        pytest.param(RISING, ("1", "4Gi"), ("1", "1Gi"), 41, id="ratio: 40.5 is rounded up"),
        pytest.param(RISING, ("0", "8Gi"), ("0", "0"), 50, id="ratio: nothing scored is left out"),
        pytest.param(LEAST, ("0", "8Gi"), ("0", "0"), 75, id="least: it is not"),
        pytest.param(MOST, ("0", "8Gi"), ("0", "0"), 25, id="most: neither"),
        pytest.param(
            strategy("LeastAllocated", resources=(("cpu", 3), ("memory", 1))),
            ("1234m", str(5 * 2**30 + 7)),
            ("0", "0"),
            68,
            id="weights: three times 69 and 68",
        ),
        pytest.param(MOST, ("1", "1Gi"), ("4", "16Gi"), 100, id="most: never more than full"),
        pytest.param(LEAST, ("1", "1Gi"), ("4", "16Gi"), 0, id="least: never less than empty"),
    ],
)
def test_how_full_nodes_are(args, requests, taken, expected):
    def both(amounts):
        return dict(zip(("cpu", "memory"), amounts, strict=True))

    # On a node without a limit on what fits, so that a full one is scored too.
    unlimited = make_pod("used", node="n", requests=both(taken))
    plugin = plugin_of("NodeResourcesFit", ROOMY, unlimited, args=args)
    nodes = plugin.handle.cluster.nodes
    assert plugin.score_nodes(None, make_pod(requests=both(requests)), nodes).tolist() == [expected]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param([(0, 0), (40, 10), (100, 0)], {1: 2, 39: 97, 41: 99, 57: 72, 99: 2}, id="up and down"),
        pytest.param([(0, 10), (30, 0)], {7: 77, 29: 4, 31: 0}, id="down, rounded up"),
        pytest.param([(20, 3), (80, 7)], {10: 30, 20: 30, 50: 50, 90: 70}, id="level before and after"),
    ],
)
def test_along_a_shape(shape, expected):
    args = strategy("RequestedToCapacityRatio", *shape, resources=[("cpu", 1)])
    node = make_node("n", allocatable={"cpu": "10", "memory": "1Gi", "pods": "9"})
    found = {use: score_of(make_pod(requests={"cpu": f"{use}00m"}), node, args=args) for use in expected}
    assert found == expected


def test_a_container_that_asks_for_nothing_counts_a_little():
    node = make_node("n", allocatable={"cpu": "2", "memory": "4Gi", "pods": "9"})
    assert score_of(make_pod(), node, used(cpu="300m", memory="600Mi")) == 80


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(requests={"cpu": "0", "memory": "0"}), 100, id="an explicit zero is one"),
        pytest.param(make_pod(), 97, id="a missing request is not"),
        pytest.param(make_pod(containers=containers({}, {})), 96, id="each container counts"),
        pytest.param(
            make_pod(resources={"requests": {"cpu": "2", "memory": "4Gi"}}),
            97,
            id="what the pod asks for as a whole is not looked at",
        ),
    ],
)
def test_what_a_pod_counts_as(pod, expected):
    assert score_of(pod, ROOMY) == expected


def test_once_placed_what_the_pod_asks_for_as_a_whole_counts():
    placed = make_pod("placed", node="n", resources={"requests": {"cpu": "2", "memory": "4Gi"}})
    assert score_of(make_pod(requests={"cpu": "0", "memory": "0"}), ROOMY, placed) == 62


@pytest.mark.parametrize(
    ("requests", "allocatable", "expected"),
    [
        pytest.param({"cpu": "1", GPU: "1"}, {GPU: "2"}, (75 + 50) // 2, id="asked for"),
        pytest.param({"cpu": "1"}, {GPU: "2"}, 75, id="not asked for, left out"),
        pytest.param({"cpu": "1", GPU: "1"}, {}, 75, id="the node has none, left out"),
    ],
)
def test_extended_resources_in_the_score(requests, allocatable, expected):
    args = strategy("LeastAllocated", resources=[("cpu", 1), (GPU, 1)])
    node = make_node("n", allocatable={"cpu": "4", "memory": "8Gi", "pods": "9"} | allocatable)
    plugin = plugin_of("NodeResourcesFit", node, args=args)
    found = plugin.score_nodes(None, make_pod(requests=requests), plugin.handle.cluster.nodes)
    assert found.tolist() == [expected]


def test_a_node_that_lacks_a_resource_beside_one_that_has_it():
    args = strategy("LeastAllocated", resources=[("cpu", 1), (GPU, 1)])
    room = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    nodes = [make_node("lacks", allocatable=room), make_node("has", allocatable=room | {GPU: "2"})]
    plugin = plugin_of("NodeResourcesFit", *nodes, args=args)
    pod = make_pod(requests={"cpu": "1", GPU: "1"})
    assert plugin.score_nodes(None, pod, plugin.handle.cluster.nodes).tolist() == [75, 62]


# Waking

POD_GONE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
SHRANK = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_SCALE_DOWN)
NODE_ADDED = ClusterEvent(Resource.NODE, Action.ADD)
GREW = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_ALLOCATABLE)
CLASS_ADDED = ClusterEvent(Resource.DEVICE_CLASS, Action.ADD)
CLASS_CHANGED = ClusterEvent(Resource.DEVICE_CLASS, Action.UPDATE)
WAITING = make_pod(requests={"cpu": "2"})


@pytest.mark.parametrize(
    ("gone", "hint"),
    [
        pytest.param(make_pod("q", node="n"), QUEUE, id="it was on a node"),
        pytest.param(make_pod("q", status={"nominatedNodeName": "n"}), QUEUE, id="it was promised one"),
        pytest.param(make_pod("q"), SKIP_HINT, id="it had none"),
    ],
)
def test_pods_that_leave_are_news(gone, hint):
    assert plugin_of("NodeResourcesFit").queueing_hint(WAITING, POD_GONE, gone, None) is hint


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param({"cpu": "2"}, {"cpu": "1"}, QUEUE, id="less of what is wanted"),
        pytest.param({"memory": "2Gi"}, {"memory": "1Gi"}, SKIP_HINT, id="less of something else"),
        pytest.param({"cpu": "1"}, {"cpu": "2"}, SKIP_HINT, id="more"),
        pytest.param({"cpu": "1"}, {}, QUEUE, id="none of it any more"),
    ],
)
def test_pods_that_shrink_are_news(old, new, hint):
    before, after = (make_pod("q", node="n", requests=each) for each in (old, new))
    assert plugin_of("NodeResourcesFit").queueing_hint(WAITING, SHRANK, before, after) is hint


def test_a_pod_that_shrinks_itself_may_fit_but_another_that_waits_does_not_help():
    plugin, smaller = plugin_of("NodeResourcesFit"), make_pod(requests={"cpu": "1"})
    assert plugin.queueing_hint(WAITING, SHRANK, WAITING, smaller) is QUEUE
    waits = [make_pod("q", requests={"cpu": amount}) for amount in "21"]
    assert plugin.queueing_hint(WAITING, SHRANK, *waits) is SKIP_HINT


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, {"cpu": "2", "pods": "1"}, QUEUE, id="a new node that is large enough"),
        pytest.param(None, {"cpu": "1", "pods": "1"}, SKIP_HINT, id="a new node that is not"),
        pytest.param(None, {"cpu": "2", "pods": "0"}, SKIP_HINT, id="a new node for no pods"),
        pytest.param({"cpu": "1", "pods": "1"}, {"cpu": "2", "pods": "1"}, QUEUE, id="it grew"),
        pytest.param({"cpu": "3", "pods": "1"}, {"cpu": "2", "pods": "1"}, SKIP_HINT, id="it shrank"),
        pytest.param({"cpu": "2", "pods": "1"}, {"cpu": "2", "pods": "2"}, QUEUE, id="room for more pods"),
        pytest.param(
            {"cpu": "2", "pods": "1", "memory": "1"},
            {"cpu": "2", "pods": "1", "memory": "2"},
            SKIP_HINT,
            id="more of what is not wanted",
        ),
        pytest.param(
            {"cpu": "1", "pods": "1"}, {"cpu": "1500m", "pods": "2"}, SKIP_HINT, id="not large enough"
        ),
    ],
)
def test_nodes_that_grow_are_news(old, new, hint):
    event = NODE_ADDED if old is None else GREW
    before = None if old is None else make_node("n", allocatable=old)
    after = make_node("n", allocatable=new)
    assert plugin_of("NodeResourcesFit").queueing_hint(WAITING, event, before, after) is hint


def device_class(name, resource=None):
    return manifest("DeviceClass", name, spec={"extendedResourceName": resource} if resource else {})


@pytest.mark.parametrize(
    ("wanted", "old", "new", "hint"),
    [
        pytest.param(GPU, None, device_class("a", GPU), QUEUE, id="a class for it"),
        pytest.param(GPU, None, device_class("a", LICENSE), SKIP_HINT, id="a class for something else"),
        pytest.param(GPU, None, device_class("a"), SKIP_HINT, id="a class for nothing"),
        pytest.param(GPU, device_class("a"), device_class("a", GPU), QUEUE, id="a class becomes one for it"),
        pytest.param(GPU, device_class("a", GPU), device_class("a", GPU), SKIP_HINT, id="it was one before"),
        pytest.param(
            "deviceclass.resource.kubernetes.io/a", None, device_class("a"), QUEUE, id="the class by its name"
        ),
        pytest.param(
            "deviceclass.resource.kubernetes.io/a",
            device_class("a"),
            device_class("a", GPU),
            SKIP_HINT,
            id="which was there before",
        ),
    ],
)
def test_device_classes_are_news(wanted, old, new, hint):
    event = CLASS_ADDED if old is None else CLASS_CHANGED
    plugin = plugin_of("NodeResourcesFit")
    assert plugin.queueing_hint(make_pod(requests={wanted: "1"}), event, old, new) is hint


def test_a_node_whose_devices_stand_behind_the_resource_is_news():
    plugin = plugin_of("NodeResourcesFit", device_class("a", GPU))
    old, new = (make_node("n", allocatable={"pods": "9", "cpu": cpu}) for cpu in "12")
    assert plugin.queueing_hint(make_pod(requests={GPU: "1"}), GREW, old, new) is QUEUE
