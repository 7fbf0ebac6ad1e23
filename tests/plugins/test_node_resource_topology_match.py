"""NodeResourceTopologyMatch: pods go where one NUMA node has room for them."""

from __future__ import annotations

import asyncio
from functools import reduce
from itertools import combinations
from operator import add
from typing import Any

import pytest
from alone import UNSCHEDULABLE, plugin_of, refusals, scores
from alone import planner as alone
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod
from make import planner as make_planner
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.errors import ConfigError
from stowplan.plugins.node_resource_topologies import NodeResourceTopology
from stowplan.plugins.pod_fingerprint import fingerprint

NAME, GPU = "NodeResourceTopologyMatch", "example.com/gpu"
SINGLE = ({"name": "topologyManagerPolicy", "value": "single-numa-node"},)
BY_POD = (*SINGLE, {"name": "topologyManagerScope", "value": "pod"})
ROOM = {
    "cpu": "64",
    "memory": "512Gi",
    "pods": "99",
    "ephemeral-storage": "1Ti",
    GPU: "8",
    "example.com/nic": "4",
}


def zone(number, costs=None, name=None, **resources):
    return {
        "name": name or f"node-{number}",
        "type": "Node",
        "costs": [{"name": f"node-{other}", "value": value} for other, value in (costs or {}).items()],
        "resources": [
            {
                "name": {"gpu": GPU}.get(key, key),
                "capacity": "9999Gi",
                "allocatable": "9999Gi",
                "available": str(amount),
            }
            for key, amount in resources.items()
        ],
    }


def topology(*zones, name="n", attributes=SINGLE, policies=()):
    plain = {"zones": list(zones), "attributes": list(attributes), "topologyPolicies": list(policies)}
    return decode(NodeResourceTopology, {"metadata": {"name": name}} | plain)


def node(name="n"):
    return make_node(name, allocatable=ROOM)


def pod(*containers, init=(), name="pod", guaranteed=True, **spec):
    """Each container is given by its requests; Guaranteed ones have limits too."""

    def made(kind, requests):
        full = {{"gpu": GPU}.get(key, key): str(amount) for key, amount in requests.items()}
        more = {"restartPolicy": requests["sidecar"]} if "sidecar" in requests else {}
        full.pop("sidecar", None)
        resources = {"requests": full, "limits": full if guaranteed else {}}
        return {"name": kind, "resources": resources} | more

    parts = [made(f"c{number}", each) for number, each in enumerate(containers)]
    first = [made(f"i{number}", each) for number, each in enumerate(init)]
    return make_pod(name, **{"containers": parts, "initContainers": first} | spec)


def need(cpu, memory="1Gi", **others):
    return {"cpu": cpu, "memory": memory, **others}


def rejected(wanted, *objects, **args):
    return refusals(alone(NAME, node(), *objects, args=args).decide(wanted))


def cannot(what):
    return {"n": (UNSCHEDULABLE, f"cannot align {what}")}


TWO = (zone(0, cpu=4, memory="8Gi"), zone(1, cpu=8, memory="8Gi"))


@pytest.mark.parametrize(
    ("wanted", "attributes", "expected"),
    [
        pytest.param(pod(need(8)), SINGLE, {}, id="fits one"),
        pytest.param(pod(need(9)), SINGLE, cannot("container"), id="fits none"),
        pytest.param(pod(need(8, "9Gi")), SINGLE, cannot("container"), id="one resource does not"),
        pytest.param(pod(need(8), need(4)), SINGLE, {}, id="containers one after another"),
        pytest.param(pod(need(4), need(8)), SINGLE, {}, id="the lowest that fits is taken"),
        pytest.param(pod(need(4), need(4), need(4)), SINGLE, {}, id="two on one"),
        pytest.param(pod(need(6), need(4), need(4)), SINGLE, cannot("container"), id="no room for the last"),
        pytest.param(pod(need(8), need(4)), BY_POD, cannot("pod"), id="the pod as a whole"),
        pytest.param(pod(need(6), need(2)), BY_POD, {}, id="the pod as a whole fits"),
        pytest.param(pod(need(1), init=[need(9)]), SINGLE, cannot("init container"), id="init container"),
        pytest.param(pod(need(8), init=[need(8), need(8)]), SINGLE, {}, id="init containers keep nothing"),
        pytest.param(
            pod(need(8), init=[need(8, sidecar="Always")]), SINGLE, cannot("container"), id="sidecars do"
        ),
        pytest.param(pod(need(20)), (), {}, id="another policy"),
        pytest.param(
            pod(need(20), guaranteed=False), SINGLE, {}, id="CPUs of a Burstable pod may be anywhere"
        ),
        pytest.param(pod({}, guaranteed=False), SINGLE, {}, id="BestEffort"),
        pytest.param(pod(need(1, **{"ephemeral-storage": "1Gi"})), SINGLE, {}, id="storage has no NUMA node"),
        pytest.param(pod(need(1, **{"example.com/nic": 1})), SINGLE, {}, id="a device that none lists"),
        pytest.param(
            pod(need(1, **{"example.com/none": 1})), SINGLE, cannot("container"), id="nor does the node"
        ),
        pytest.param(
            pod(need(1, **{"hugepages-2Mi": "2Mi"})), SINGLE, cannot("container"), id="no huge pages"
        ),
    ],
)
def test_filter(wanted, attributes, expected):
    assert rejected(wanted, topology(*TWO, attributes=attributes)) == expected


def test_devices_count_for_a_best_effort_pod():
    item = topology(zone(0, cpu=8, memory="8Gi", gpu=1), zone(1, cpu=8, memory="8Gi", gpu=1))
    assert rejected(pod({"gpu": 1}, guaranteed=False), item) == {}
    assert rejected(pod({"gpu": 2}, guaranteed=False), item) == cannot("container")


@pytest.mark.parametrize("guaranteed", [True, False])
def test_devices_count_for_every_pod(guaranteed):
    item = topology(zone(0, cpu=8, memory="8Gi", gpu=0), zone(1, cpu=1, memory="8Gi", gpu=2))
    assert rejected(pod(need(1, gpu=2), guaranteed=guaranteed), item) == {}
    assert rejected(pod(need(1, gpu=3), guaranteed=guaranteed), item) == cannot("container")
    burstable = {} if not guaranteed else cannot("container")
    assert rejected(pod(need(2, gpu=1), guaranteed=guaranteed), item) == burstable


def test_a_node_without_an_object_passes():
    assert rejected(pod(need(60)), topology(*TWO, name="other")) == {}


@pytest.mark.parametrize(
    ("policies", "attributes", "expected"),
    [
        (["SingleNUMANodePodLevel"], (), cannot("pod")),
        (["SingleNUMANodeContainerLevel"], (), {}),
        (["BestEffortPodLevel"], (), {}),
        (["Nonsense"], (), {}),
        (["RestrictedContainerLevel"], BY_POD, cannot("pod")),
        (["SingleNUMANodePodLevel"], ({"name": "topologyManagerScope", "value": "container"},), {}),
    ],
)
def test_what_the_kubelet_is_set_to(policies, attributes, expected):
    item = topology(*TWO, attributes=attributes, policies=policies)
    assert rejected(pod(need(8), need(4)), item) == expected


def test_an_object_that_comes_or_changes_later_counts():
    planner = alone(NAME, node())
    assert refusals(planner.decide(pod(need(9)))) == {}
    planner.cluster.apply(topology(*TWO))
    assert refusals(planner.decide(pod(need(9)))) == cannot("container")
    planner.cluster.apply(topology(*TWO, zone(2, cpu=9, memory="8Gi")))
    assert refusals(planner.decide(pod(need(9)))) == {}
    planner.cluster.remove(topology())
    assert refusals(planner.decide(pod(need(60)))) == {}


@pytest.mark.parametrize(
    ("zones", "text"),
    [
        ([zone(0, name="numa-node-0", cpu=9, memory="9Gi")], "zone 'numa-node-0' is ignored: name it node-0"),
        ([zone(0, name="Node-1", cpu=9, memory="9Gi")], "zone 'Node-1' is ignored"),
        ([zone(0, name="node_3", cpu=9, memory="9Gi")], "zone 'node_3' is ignored"),
        ([zone(0, name="node-1٣", cpu=9, memory="9Gi")], "zone 'node-1٣' is ignored"),
        ([zone(65, cpu=9, memory="9Gi")], "zone 'node-65' is ignored"),
        ([zone(0, cpu=-9, memory="9Gi")], "zone node-0 has more cpu available than allocatable"),
        ([*TWO, zone(1, cpu=9, memory="9Gi")], "zone 'node-1' is ignored"),
    ],
)
def test_impossible_zones_are_reported_once_and_hold_nothing(zones, text):
    planner, events = alone(NAME, node(), topology(*zones)), []
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    plugin.handle.record_event = lambda item, kind, reason, note: events.append(note)
    for _ in range(2):
        assert refusals(planner.decide(pod(need(9)))) == cannot("container")
    (note,) = events
    assert note.startswith(text)


def test_zones_that_are_no_numa_nodes_do_not_count():
    """Exporters may list sockets or caches, too."""
    planner, events = (
        alone(NAME, node(), topology(*TWO, zone(2, cpu=9, memory="9Gi") | {"type": "Cache"})),
        [],
    )
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    plugin.handle.record_event = lambda *event: events.append(event)
    assert refusals(planner.decide(pod(need(9)))) == cannot("container")
    assert refusals(planner.decide(pod(need(8)))) == {}
    assert not events


def test_devices_of_a_zone_that_the_node_does_not_have_are_not_given():
    """The zone lists two of a device, while the node itself offers none."""
    item = topology(zone(0, cpu=8, memory="8Gi", **{"example.com/gone": 2}))
    assert rejected(pod(need(1, **{"example.com/gone": 1})), item) == cannot("container")


HUGE, FIELDS = "hugepages-2Mi", ("capacity", "allocatable", "available")
SIZE = {"cpu": "8", "memory": "32Gi", HUGE: "2Gi", GPU: "4"}
OFFERED = SIZE | {"cpu": "7", "memory": "30Gi", "pods": "99"}


def sized(capacity=SIZE, allocatable=OFFERED):
    status = {"capacity": capacity, "allocatable": allocatable}
    return decode(NodeObject, {"metadata": {"name": "n"}, "status": status})


def zones_of(**changes):
    """Two NUMA nodes that have half of `SIZE` each; `changes` are fields of the second one's resources."""
    halves = {"cpu": "4", "memory": "16Gi", HUGE: "1Gi", GPU: "2"}
    found = []
    for number in range(2):
        resources = [{"name": name} | dict.fromkeys(FIELDS, half) for name, half in halves.items()]
        if number:
            for each in resources:
                each |= changes.get({HUGE: "huge", GPU: "gpu"}.get(each["name"], each["name"]), {})
        found.append({"name": f"node-{number}", "type": "Node", "resources": resources})
    return found


def with_events(*objects):
    planner, events = alone(NAME, *objects), []
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    plugin.handle.record_event = lambda item, kind, reason, note: events.append((item.name, reason, note))
    return planner, events


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({}, "", id="agree: memory that the node reserves may be allocatable in zones"),
        pytest.param(
            {"cpu": {"allocatable": "4500m"}},
            "its zones have 8.5 CPUs allocatable, but the node has a capacity of 8",
            id="cpu",
        ),
        pytest.param(
            {"memory": {"allocatable": "17Gi"}},
            "its zones have 33Gi memory allocatable, but the node has a capacity of 32Gi",
            id="memory",
        ),
        pytest.param(
            {"memory": {"capacity": "17Gi"}},
            "its zones have a capacity of 33Gi memory, but the node has 32Gi",
            id="capacity of memory",
        ),
        pytest.param(
            {"huge": {"capacity": "2Gi", "allocatable": "2Gi"}},
            f"its zones have 3Gi {HUGE} allocatable, but the node has a capacity of 2Gi",
            id="huge pages",
        ),
        pytest.param(
            {"gpu": {"allocatable": "3"}},
            f"its zones have 5 {GPU} allocatable, but the node has 4",
            id="devices",
        ),
        pytest.param(
            {"gpu": {"capacity": "3"}},
            f"its zones have a capacity of 5 {GPU}, but the node has 4",
            id="capacity of devices",
        ),
        pytest.param(
            {"cpu": {"capacity": "1e400"}, "memory": {"allocatable": "1e400"}},
            "its zones have a capacity of 9.22337e+15 CPUs, but the node has 8; "
            "its zones have 9223372036854775807 memory allocatable, but the node has a capacity of 32Gi",
            id="impossible amounts",
        ),
        pytest.param(
            {"cpu": {"capacity": "5"}, "gpu": {"capacity": "9"}},
            "its zones have a capacity of 9 CPUs, but the node has 8; "
            f"its zones have a capacity of 11 {GPU}, but the node has 4",
            id="several",
        ),
    ],
)
def test_zones_with_more_than_the_node_are_told_and_count_as_they_are(changes, text):
    """As in scheduler-plugins, they reject and score as if they were right."""
    planner, events = with_events(
        sized(), make_node("other", allocatable=ROOM), topology(*zones_of(**changes))
    )
    for _ in range(2):
        decision = planner.decide(pod(need(4, "16Gi", gpu=2)))
        assert refusals(decision) == {}
        assert decision.notes == ((f"NodeResourceTopology n: {text}.",) if text else ())
    assert events == ([("n", "InvalidNodeResourceTopology", text)] if text else [])
    (lacks, *faults) = explained(planner, pod(need(5)), "n")
    assert lacks.startswith("n cannot align container c0: numa node 0 has 4 of 5 CPUs")
    assert faults == ([f"NodeResourceTopology n: {text}."] if text else [])


def test_devices_that_the_node_counts_as_broken_are_told():
    """They stay in its capacity and leave what is allocatable."""
    planner, events = with_events(sized(allocatable=OFFERED | {GPU: "3"}), topology(*zones_of()))
    planner.decide(pod(need(1)))
    assert [note for _, _, note in events] == [f"its zones have 4 {GPU} allocatable, but the node has 3"]


def test_a_node_that_shrinks_later_is_compared_again():
    planner, events = with_events(sized(), topology(*zones_of()))
    planner.decide(pod(need(1)))
    assert not events
    planner.cluster.apply(sized(capacity=SIZE | {"cpu": "6"}))
    planner.decide(pod(need(1)))
    assert [note for _, _, note in events] == [
        "its zones have 8 CPUs allocatable, but the node has a capacity of 6"
    ]
    planner.cluster.apply(sized())
    assert planner.decide(pod(need(1))).notes == ()


def test_only_the_first_faulty_objects_are_named():
    names = [f"n{number}" for number in range(5)]
    items = [topology(*TWO, zone(9, name="numa-9", cpu=1), name=name) for name in names]
    planner = alone(NAME, *map(node, names), *items)
    planner.decide(pod(need(1)))
    fault = "zone 'numa-9' is ignored: name it node-0, node-1 and so on, each once"
    named = [f"NodeResourceTopology {name}: {fault}." for name in names[:3]]
    assert planner.decide(pod(need(1))).notes == (*named, "2 more NodeResourceTopology objects have faults.")
    for name in names[1:]:
        planner.cluster.remove(topology(name=name))
    assert planner.decide(pod(need(1))).notes == (named[0],)
    assert planner.decide(pod({}, guaranteed=False)).notes == ()


# Scores


def scored(wanted, *zones, strategy="LeastAllocated", attributes=SINGLE, **fields):
    args = {"scoringStrategy": {"type": strategy, **fields}}
    planner = alone(NAME, node(), node("unknown"), topology(*zones, attributes=attributes), args=args)
    found = scores(planner.decide(wanted))
    assert found.pop("unknown") == (0 if wanted.spec.containers[0].resources.limits else 100)
    return found.popitem()[1]


def test_clusters_of_more_nodes_than_are_computed_at_once():
    """All nodes but the last have the same NUMA nodes, of which the last has fewer CPUs."""
    names = [f"n{number}" for number in range(300)]
    zones = [zone(number, cpu=4, memory="8Gi") for number in range(64)]
    items = [topology(*zones, name=name) for name in names[:-1]]
    items.append(topology(*zones[1:], zone(0, cpu=2, memory="8Gi"), name=names[-1]))
    args = {"scoringStrategy": {"type": "BalancedAllocation"}}
    decision = alone(NAME, *map(node, names), *items, args=args).decide(pod(need(2, "2Gi")))
    assert scores(decision) == dict.fromkeys(names[:-1], 96) | {names[-1]: 71}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("LeastAllocated", 62), ("MostAllocated", 37), ("BalancedAllocation", 96)],
)
def test_strategies(strategy, expected):
    # 2 of 4 CPUs and 2 of 8 GiB.
    assert scored(pod(need(2, "2Gi")), zone(0, cpu=4, memory="8Gi"), strategy=strategy) == expected


def test_the_lowest_numa_node_above_zero_counts():
    zones = (zone(0, cpu=1, memory="1Mi"), zone(1, cpu=4, memory="8Gi"), zone(2, cpu=40, memory="80Gi"))
    assert scored(pod(need(2, "2Gi")), *zones) == 62
    assert scored(pod(need(2, "2Gi")), zones[0], attributes=BY_POD[1:]) == 0


def test_weights():
    resources = [{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}]
    assert scored(pod(need(2, "2Gi")), zone(0, cpu=4, memory="8Gi"), resources=resources) == 56
    equal = [{"name": "cpu", "weight": 0}, {"name": "memory"}]
    assert scored(pod(need(2, "2Gi")), zone(0, cpu=4, memory="8Gi"), resources=equal) == 62


def test_cpus_are_counted_whole():
    assert scored(pod(need("1500m", "2Gi")), zone(0, cpu=4, memory="8Gi")) == 62


def test_containers_give_their_mean():
    wanted = pod(need(2, "2Gi"), need(1, "2Gi"))
    assert scored(wanted, zone(0, cpu=4, memory="8Gi")) == (62 + 75) // 2
    assert scored(wanted, zone(0, cpu=4, memory="8Gi"), attributes=BY_POD) == (25 + 50) // 2


def test_pods_that_are_not_guaranteed_have_no_preference():
    assert scored(pod(need(2), guaranteed=False), *TWO) == 100


NEAR = {0: 10, 1: 20, 2: 40}


@pytest.mark.parametrize(
    ("cpu", "attributes", "expected"),
    [
        pytest.param(4, (), 94, id="one"),
        pytest.param(8, (), 82, id="two that are near"),
        pytest.param(12, (), 70, id="three"),
        pytest.param(13, (), 0, id="more than there is"),
        pytest.param(8, ({"name": "topologyManagerMaxNUMANodes", "value": "4"},), 62, id="of four"),
        pytest.param(8, ({"name": "topologyManagerMaxNUMANodes", "value": "-3"},), 82, id="no number"),
        pytest.param(8, ({"name": "topologyManagerMaxNUMANodes", "value": "1"},), 82, id="too few"),
        pytest.param(8, ({"name": "topologyManagerMaxNUMANodes", "value": "5000"},), 100, id="too many"),
    ],
)
def test_least_numa_nodes(cpu, attributes, expected):
    zones = [
        zone(0, {0: 10, 1: 20, 2: 40}, cpu=4, memory="8Gi"),
        zone(1, {0: 20, 1: 10, 2: 40}, cpu=4, memory="8Gi"),
        zone(2, {0: 40, 1: 40, 2: 10}, cpu=4, memory="8Gi"),
    ]
    assert scored(pod(need(cpu)), *zones, strategy="LeastNUMANodes", attributes=attributes) == expected


@pytest.mark.parametrize(("far", "expected"), [(False, 10), (True, 4)])
def test_least_numa_nodes_that_are_all_needed(far, expected):
    """Of nine, the eight that have CPUs; the ninth is nearer to the others than they are to each other."""
    costs = dict.fromkeys(range(9), 10)
    zones = [
        zone(number, costs | ({8: 5} if far else {}), cpu=4 if number < 8 else 0, memory="8Gi")
        for number in range(9)
    ]
    wanted = pod(need(32), name="large")
    assert scored(wanted, *zones, strategy="LeastNUMANodes", attributes=()) == expected


def test_least_numa_nodes_that_are_far_apart():
    zones = [
        zone(0, {0: 10, 1: 20, 2: 40}, cpu=4, memory="8Gi"),
        zone(1, {0: 20, 1: 10, 2: 40}, cpu=0, memory="8Gi"),
        zone(2, {0: 40, 1: 40, 2: 10}, cpu=4, memory="8Gi"),
    ]
    assert scored(pod(need(8)), *zones, strategy="LeastNUMANodes", attributes=()) == 76
    assert scored(pod(need(3), need(3)), *zones, strategy="LeastNUMANodes", attributes=()) == 94


def test_numa_nodes_that_are_far_from_themselves():
    zones = [zone(0, {0: 20}, cpu=8, memory="8Gi"), zone(1, {1: 10}, cpu=4, memory="8Gi")]
    for containers, expected in (([8], 88), ([4], 94), ([4, 4], 88), ([4, 4, 4], 88), ([4, 9], 0)):
        wanted = pod(*map(need, containers))
        assert scored(wanted, *zones, strategy="LeastNUMANodes", attributes=()) == expected


def test_many_numa_nodes_do_not_take_forever():
    zones = [zone(number, cpu=1, memory="1Gi") for number in range(64)]
    assert scored(pod(need(10)), *zones, strategy="LeastNUMANodes", attributes=()) >= 0


def test_a_node_with_many_numa_nodes_changes_nothing_for_others():
    two = topology(*(zone(number, cpu=4, memory="8Gi") for number in range(2)), attributes=())
    wide = [zone(number, cpu=4, memory="8Gi") for number in range(65)]
    args = {"scoringStrategy": {"type": "LeastNUMANodes"}}
    for others in ((), (node("wide"), topology(*wide, name="wide", attributes=()))):
        planner = alone(NAME, node(), node("other"), two, *others, args=args)
        assert scores(planner.decide(pod(need(6))))["n"] == 82


# Pods that were just placed


def test_nodes_with_reserved_pods_can_be_left_out():
    planner = alone(NAME, node(), topology(*TWO), args={"discardReservedNodes": True})
    plugin, wanted = planner.profiles["default-scheduler"].plugins[NAME], pod(need(1))
    stale = {"n": (UNSCHEDULABLE, "invalid node topology data")}
    assert refusals(planner.decide(wanted)) == {}
    first, second = pod(need(1), name="first"), pod(need(1), name="second")
    plugin.reserve(None, first, "n")
    plugin.reserve(None, second, "n")
    assert refusals(planner.decide(wanted)) == stale
    assert refusals(planner.decide(pod({}, guaranteed=False))) == {}
    asyncio.run(plugin.post_bind(None, first, "n"))
    assert refusals(planner.decide(wanted)) == stale
    plugin.unreserve(None, second, "n")
    plugin.unreserve(None, second, "n")
    assert refusals(planner.decide(wanted)) == {}


def test_placed_pods_are_subtracted_until_the_object_must_have_them():
    planner = alone(NAME, node(), topology(*TWO), args={"cacheResyncPeriodSeconds": 5})
    plugin, placed, now = (
        planner.profiles["default-scheduler"].plugins[NAME],
        pod(need(5), name="placed"),
        [0.0],
    )
    plugin.handle.now = lambda: now[0]
    assert refusals(planner.decide(pod(need(8)))) == {}
    plugin.reserve(None, placed, "n")
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    assert refusals(planner.decide(pod(need(3)))) == {}
    planner.cluster.apply(topology(*TWO))  # not bound yet
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    asyncio.run(plugin.post_bind(None, placed, "n"))
    now[0] = 4.0
    planner.cluster.apply(topology(*TWO))  # it may be older than the pod
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    now[0] = 5.0
    planner.cluster.apply(topology(*TWO))
    assert refusals(planner.decide(pod(need(8)))) == {}
    plugin.reserve(None, placed, "n")
    plugin.unreserve(None, placed, "n")
    assert refusals(planner.decide(pod(need(8)))) == {}


def two_profiles(*objects, **args):
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", NAME)]
    profiles = [
        {
            "schedulerName": name,
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": NAME, "args": args | more}],
        }
        for name, more in (("one", {}), ("other", {"scoringStrategy": {"type": "LeastNUMANodes"}}))
    ]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return make_planner(objects, kind | {"profiles": profiles})


def test_pods_that_another_profile_has_just_placed_are_subtracted():
    planner = two_profiles(node(), topology(*TWO), cacheResyncPeriodSeconds=5)
    one, now = planner.profiles["one"].plugins[NAME], [0.0]
    for profile in planner.profiles.values():
        profile.handle.now = lambda: now[0]
    placed, wanted = pod(need(5), name="placed"), pod(need(4), schedulerName="other")
    assert refusals(planner.decide(wanted)) == {}
    one.reserve(None, placed, "n")
    assert refusals(planner.decide(wanted)) == cannot("container")
    asyncio.run(one.post_bind(None, placed, "n"))
    now[0] = 5.0
    assert refusals(planner.decide(wanted)) == cannot("container")
    planner.cluster.apply(topology(*TWO))
    assert refusals(planner.decide(wanted)) == {}
    one.reserve(None, placed, "n")
    one.unreserve(None, placed, "n")
    assert refusals(planner.decide(wanted)) == {}


def test_nodes_with_pods_that_another_profile_has_reserved_can_be_left_out():
    planner = two_profiles(node(), topology(*TWO), discardReservedNodes=True)
    one, wanted = planner.profiles["one"].plugins[NAME], pod(need(1), schedulerName="other")
    one.reserve(None, pod(need(1), name="first"), "n")
    assert refusals(planner.decide(wanted)) == {"n": (UNSCHEDULABLE, "invalid node topology data")}
    asyncio.run(one.post_bind(None, pod(need(1), name="first"), "n"))
    assert refusals(planner.decide(wanted)) == {}


# Fingerprints


PODS = (
    "analytics/controller-69dkj kube-public/subscriber-tq6v7 kube-public/transformer-hfbng "
    "kube-public/validator-c6pn5 kube-system/proxy-wszrd middleware/processor-jkrl4 network/gateway-vsll5 "
    "network/importer-kzdfr network/importer-q5vt9 staging/prometheus-bwgbn"
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [  # recorded from the library that exporters use
        ("production/jaeger-dpgjk production/nginx-rt684 production/envoy-g9m22", "pfp0v001607b76a0e9d3aeb4"),
        (PODS, "pfp0v001567144e4a561bb5a"),
        ("", "pfp0v001ef46db3751d8e999"),
    ],
)
def test_fingerprints_are_those_of_exporters(names, expected):
    pods = [make_pod(each.split("/")[1], namespace=each.split("/")[0]) for each in names.split()]
    assert fingerprint(pods) == fingerprint(pods[::-1]) == expected


def written_for(*pods, zones=TWO, attributes=SINGLE, method="", **kept):
    """An object that has these pods."""
    more = [{"name": "nodeTopologyPodsFingerprint", "value": fingerprint(pods)}]
    more += [{"name": "nodeTopologyPodsFingerprintMethod", "value": method}] if method else []
    return topology(*zones, attributes=(*attributes, *more), **kept)


LESS = (zone(0, cpu=4, memory="8Gi"), zone(1, cpu=3, memory="8Gi"))
STALE = {"n": (UNSCHEDULABLE, "invalid node topology data")}


def caching(*objects, **cache):
    return alone(NAME, node(), *objects, args={"cacheResyncPeriodSeconds": 5, "cache": cache})


def place(planner, placed):
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    planner.followers.tell(planner.cluster.assume_pod(placed, "n"))
    plugin.reserve(None, placed, "n")


def test_placed_pods_are_subtracted_until_the_object_has_them():
    planner, placed = caching(written_for()), pod(need(5), name="placed")
    assert refusals(planner.decide(pod(need(8)))) == {}
    place(planner, placed)
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    planner.cluster.apply(written_for(zones=(zone(0, cpu=64, memory="8Gi"),)))  # without the pod
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    assert refusals(planner.decide(pod(need(3)))) == {}
    planner.cluster.apply(written_for(placed, zones=LESS))
    assert refusals(planner.decide(pod(need(4)))) == {}
    assert refusals(planner.decide(pod(need(5)))) == cannot("container")


def test_an_object_that_came_early_is_used_once_the_pods_are_as_it_says():
    planner = caching(written_for())
    first, second = pod(need(5), name="first"), pod(need(3), name="second")
    place(planner, first)
    place(planner, second)
    planner.cluster.apply(written_for(first, zones=LESS))
    assert refusals(planner.decide(pod(need(1)))) == cannot("container")
    planner.cluster.remove_pod(second)
    planner.followers.tell(second.on("n"), is_gone=True)
    assert refusals(planner.decide(pod(need(4)))) == {}


def test_another_configuration_of_the_kubelet_counts_at_once():
    for scope, expected in (("All", {}), ("OnlyResources", cannot("container"))):
        planner = caching(written_for(), resyncScope=scope)
        place(planner, pod(need(5), name="placed"))
        planner.cluster.apply(written_for(attributes=BY_POD))
        assert refusals(planner.decide(pod(need(4)))) == expected


@pytest.mark.parametrize(
    ("detect", "guaranteed", "expected"),
    [
        ("All", False, STALE),
        ("OnlyExclusiveResources", False, {}),
        ("OnlyExclusiveResources", True, STALE),
        ("None", True, {}),
    ],
)
def test_pods_of_other_schedulers(detect, guaranteed, expected):
    planner = caching(written_for(), foreignPodsDetect=detect)
    other = pod(need(2), name="other", guaranteed=guaranteed, schedulerName="x").on("n")
    planner.cluster.add_pod(other)
    planner.followers.tell(other)
    assert refusals(planner.decide(pod(need(3)))) == expected
    planner.cluster.apply(written_for(other, zones=LESS))
    assert refusals(planner.decide(pod(need(3)))) == {}


@pytest.mark.parametrize(("detect", "expected"), [("All", STALE), ("None", {})])
def test_pods_of_other_schedulers_that_are_known_before_the_object(detect, expected):
    planner = caching(foreignPodsDetect=detect)
    other = pod(need(2), name="other", schedulerName="x").on("n")
    planner.cluster.add_pod(other)
    planner.followers.tell(other)
    planner.cluster.apply(written_for())
    assert refusals(planner.decide(pod(need(3)))) == expected
    planner.cluster.apply(written_for(other, zones=LESS))
    assert refusals(planner.decide(pod(need(3)))) == {}
    planner.cluster.remove(topology())
    planner.cluster.apply(written_for(other, zones=LESS))  # which has it at once
    assert refusals(planner.decide(pod(need(3)))) == {}


def test_pods_of_other_schedulers_without_fingerprints_are_subtracted():
    planner = caching(topology(*TWO))
    other = pod(need(5), name="other", schedulerName="x").on("n")
    planner.cluster.add_pod(other)
    planner.followers.tell(other)
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    assert refusals(planner.decide(pod(need(3)))) == {}


@pytest.mark.parametrize(
    ("method", "attribute", "accepted"),
    [
        ("Autodetect", "with-exclusive-resources", True),
        ("Autodetect", "all", False),
        ("OnlyExclusiveResources", "", True),
        ("All", "with-exclusive-resources", False),
    ],
)
def test_which_pods_a_fingerprint_is_of(method, attribute, accepted):
    planner, placed = caching(written_for(), resyncMethod=method), pod(need(5), name="placed")
    place(planner, placed)
    place(planner, pod(need(1), name="shared", guaranteed=False))
    planner.cluster.apply(written_for(placed, zones=LESS, method=attribute))
    assert refusals(planner.decide(pod(need(4)))) == ({} if accepted else cannot("container"))


@pytest.mark.parametrize("value", ["", "pfp0v999123", "nonsense", "pfp0v001"])
def test_fingerprints_that_are_wrong(value):
    """Without one that can be compared, time decides; one that never matches keeps pods subtracted."""
    planner = caching(written_for())
    place(planner, pod(need(5), name="placed"))
    more = ({"name": "nodeTopologyPodsFingerprint", "value": value},)
    planner.cluster.apply(topology(*TWO, attributes=(*SINGLE, *more)))
    assert refusals(planner.decide(pod(need(4)))) == cannot("container")
    assert refusals(planner.decide(pod(need(3)))) == {}


# In words


def explained(planner, wanted, *names):
    plugin: Any = planner.profiles["default-scheduler"].plugins[NAME]
    return list(plugin.explain_rejections(wanted, names))


@pytest.mark.parametrize(
    ("wanted", "attributes", "expected"),
    [
        (
            pod(need(9)),
            SINGLE,
            ["n cannot align container c0: numa node 0 has 4 of 9 CPUs; numa node 1 has 8 of 9 CPUs."],
        ),
        (
            pod(need(5), need(5)),
            SINGLE,
            ["n cannot align container c1: numa node 0 has 4 of 5 CPUs; numa node 1 has 3 of 5 CPUs."],
        ),
        (
            pod(need(5), need(5), name="web"),
            BY_POD,
            ["n cannot align pod web: numa node 0 has 4 of 10 CPUs; numa node 1 has 8 of 10 CPUs."],
        ),
        (
            pod(need(1), init=[need(5, "9Gi")]),
            SINGLE,
            [
                "n cannot align init container i0: numa node 0 has 4 of 5 CPUs and 8Gi of 9Gi memory; "
                "numa node 1 has 8Gi of 9Gi memory."
            ],
        ),
        (
            pod(need(1, **{"example.com/none": 1})),
            SINGLE,
            ["n cannot align container c0: the node has no example.com/none."],
        ),
        (pod(need(1)), SINGLE, []),
    ],
)
def test_rejections_in_words(wanted, attributes, expected):
    planner = alone(NAME, node(), topology(*TWO, attributes=attributes))
    assert explained(planner, wanted, "n", "gone") == expected
    assert bool(refusals(planner.decide(wanted))) == bool(expected)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"scoringStrategy": {"type": "Best"}}, 'scoringStrategy.type: Unsupported value: "Best"'),
        (
            {"scoringStrategy": {"resources": [{"name": "cpu", "weight": -1}]}},
            r"resources\[0\].weight: Invalid",
        ),
        ({"cacheResyncPeriodSeconds": -1}, "cacheResyncPeriodSeconds: Invalid value: -1"),
        ({"preemptionMode": "Maybe"}, 'preemptionMode: Unsupported value: "Maybe"'),
        ({"cache": {"resyncMethod": "Never"}}, 'cache.resyncMethod: Unsupported value: "Never"'),
    ],
)
def test_bad_arguments(args, text):
    with pytest.raises(ConfigError, match=text):
        plugin_of(NAME, args=args)


# One node at a time

AMOUNTS = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(0, 5), "memory": st.integers(0, 5), GPU: st.integers(0, 3)}
)
WANTED = st.fixed_dictionaries(
    {"cpu": st.integers(1, 4), "memory": st.integers(1, 4)}, optional={GPU: st.integers(0, 2)}
)
PARTS = st.lists(WANTED, min_size=1, max_size=3)
ZONES = st.lists(AMOUNTS, max_size=3)


COSTS = st.one_of(st.just((10,) * 9), st.tuples(*[st.sampled_from((10, 12, 20))] * 9))
NODES = st.tuples(ZONES, st.booleans(), st.booleans(), COSTS)
"""The zones, whether pods are aligned as a whole, whether they are aligned at all, and the distances."""


def topology_of(name, zones, by_pod, aligns, costs):
    """`costs` has three numbers for each of three zones."""
    made = [
        zone(place, dict(enumerate(costs[3 * place : 3 * place + 3])), **each)
        for place, each in enumerate(zones)
    ]
    scope = {"name": "topologyManagerScope", "value": "pod" if by_pod else "container"}
    return topology(*made, name=name, attributes=(*(SINGLE if aligns else ()), scope))


@given(
    st.lists(NODES, min_size=1, max_size=3),
    PARTS,
    st.booleans(),
    st.sampled_from(("LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes")),
    st.lists(st.tuples(st.integers(0, 2), st.none() | NODES), max_size=2),
)
def test_as_a_slow_obvious_version_would(clusters, parts, guaranteed, strategy, changes):
    nodes = [node(f"n{number}") for number in range(len(clusters) + 1)]
    known = dict(enumerate(clusters))
    items = [topology_of(f"n{number}", *each) for number, each in known.items()]
    wanted = pod(*parts, guaranteed=guaranteed)
    args = {"scoringStrategy": {"type": strategy}}
    planner = alone(NAME, *nodes, *items, args=args)
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    for changed, instead in [(None, None), *changes]:
        if changed is not None:  # what was computed before must not be used for this node
            if changed in known:
                planner.cluster.remove(topology_of(f"n{changed}", *known.pop(changed)))
            if instead is not None and changed < len(nodes):
                known[changed] = instead
                planner.cluster.apply(topology_of(f"n{changed}", *instead))
        found = refusals(planner.decide(wanted)).keys()
        points = plugin.score_nodes(None, wanted, planner.cluster.nodes).tolist()
        misfits, slow = set(), []
        for row, each in enumerate(nodes):
            if row not in known:
                slow.append(0 if guaranteed else 100)
                continue
            zones, by_pod, aligns, costs = known[row]
            groups = [total(parts)] if by_pod else parts
            if aligns and not fits(zones, groups, guaranteed):
                misfits.add(each.metadata.name)
            score = 0
            if aligns or strategy == "LeastNUMANodes":
                score = slow_score(zones, groups, strategy, costs)
            slow.append(score if guaranteed else 100)
        assert found == misfits
        assert points == slow
        names = [each.metadata.name for each in nodes]
        assert {name for name in names if explained(planner, wanted, name)} == found


def total(parts):
    return {
        name: sum(each.get(name, 0) for each in parts) for name in {key for each in parts for key in each}
    }


def fits(zones, parts, guaranteed):
    left = [dict(each) for each in zones]
    for part in parts:
        allowed = set(range(64))
        for name, amount in part.items():
            if not amount:
                continue
            if name == GPU and not any(GPU in each for each in left):
                continue
            free = name != GPU and not guaranteed
            allowed &= {at for at, each in enumerate(left) if name in each and (free or each[name] >= amount)}
        if not allowed:
            return False
        chosen = min(allowed)
        for name, amount in part.items():
            if chosen < len(left) and name in left[chosen]:
                left[chosen][name] = max(0, left[chosen][name] - amount)
    return True


def slow_score(zones, parts, strategy, costs):
    parts = [{name: amount for name, amount in part.items() if amount} for part in parts]
    if strategy == "LeastNUMANodes":
        return slow_numa(zones, parts, costs)
    points = []
    for part in parts:
        by_zone = []
        for each in zones:
            if strategy == "BalancedAllocation":
                by_zone.append(slow_balance(each, part))
                continue
            found = 0
            for name, amount in part.items():
                room = each.get(name, 0)
                if room and amount <= room:
                    found += (room - amount if strategy == "LeastAllocated" else amount) * 100 // room
            by_zone.append(found // len(part))
        points.append(min((each for each in by_zone if each), default=0))
    return sum(points) // len(points)


def slow_balance(zone, part):
    shares = [part[name] / zone[name] if zone.get(name) else 1.0 for name in sorted(part)]
    if max(shares) > 1:
        return 0
    mean = total_of(shares) / len(shares)
    return int((1 - total_of([(each - mean) ** 2 for each in shares]) / (len(shares) - 1)) * 100)


def total_of(numbers):
    return reduce(add, numbers)  # sum() would round less, from Python 3.12 on


def slow_numa(zones, parts, costs):
    left, most, is_nearest = [dict(each) for each in zones], 0, True

    def distance(way):
        return sum(costs[3 * one + other] for one in way for other in way)

    for part in parts:
        if not any(name in each for each in left for name in part):
            continue
        able = [at for at, each in enumerate(left) if all(name in each for name in part)]
        ways = [way for count in range(1, 4) for way in combinations(able, count)]
        good = [way for way in ways if all(sum(left[at][name] for at in way) >= part[name] for name in part)]
        if not good:
            return 0
        size = len(good[0])
        chosen = min((way for way in good if len(way) == size), key=distance)
        is_nearest &= distance(chosen) == min(map(distance, combinations(range(len(left)), size)))
        most = max(most, size)
        for name, amount in part.items():
            for at in chosen:
                given = min(amount, left[at][name])
                left[at][name] -= given
                amount -= given
    return 100 - 12 * most + (6 if is_nearest else 0) if most else 100
