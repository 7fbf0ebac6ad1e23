"""NetworkOverhead: pods of an AppGroup near those they depend on, by the costs of a NetworkTopology."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from alone import UNSCHEDULABLE, refusals, scores
from alone import planner as alone
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from make import make_node, make_pod
from stowplan import Action, ClusterEvent, Hint, Resource
from stowplan.api.meta import decode
from stowplan.embedded.cluster import embedded_cluster
from stowplan.errors import ConfigError, InputError
from stowplan.kubelet.templates import NodeTemplate
from stowplan.plugins.app_groups import GROUP_LABEL, WORKLOAD_LABEL, AppGroup
from stowplan.plugins.community.network_overhead import MAX_DEPENDENCIES, REGION, ZONE, NetworkTopology

NAME = "NetworkOverhead"
REASON = "node(s) do not meet the network requirements of most workload dependencies"
MISSING = "stowplan_network_overhead_missing_objects_total"


def app_group(*needs, name="shop", namespace="default", workload="front"):
    """Each need is a selector and a maxNetworkCost, and maybe a namespace."""
    listed = [
        {
            "workload": {"kind": "Deployment", "name": need[0], "selector": need[0]}
            | ({"namespace": need[2]} if need[2:] else {}),
            "maxNetworkCost": need[1],
            "minBandwidth": "100Mi",
        }
        for need in needs
    ]
    workloads = [
        {"workload": {"kind": "Deployment", "name": "x", "selector": workload}, "dependencies": listed}
    ]
    spec = {"numMembers": 2, "topologySortingAlgorithm": "KahnSort", "workloads": workloads}
    return decode(AppGroup, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def network(zones=None, regions=None, name="nt-default", weights="UserDefined", namespace="default"):
    """Costs by origin and destination."""

    def origins(costs):
        found = {}
        for (origin, destination), cost in (costs or {}).items():
            found.setdefault(origin, []).append({"destination": destination, "networkCost": cost})
        return [{"origin": origin, "costList": listed} for origin, listed in found.items()]

    lists = [{"topologyKey": ZONE, "originList": origins(zones)}]
    lists += [{"topologyKey": REGION, "originList": origins(regions)}]
    spec = {"configmapName": "netperf", "weights": [{"name": weights, "topologyList": lists}]}
    return decode(NetworkTopology, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def node(name, region="", zone=""):
    labels = ({REGION: region} if region else {}) | ({ZONE: zone} if zone else {})
    return make_node(name, labels=labels)


def pod(name="front", workload="front", group="shop", **more):
    return make_pod(name, labels={GROUP_LABEL: group, WORKLOAD_LABEL: workload}, **more)


def peer(name, on, workload="cart", **more):
    return pod(name, workload, node=on, **more)


NODES = (node("a", "r1", "z1"), node("a2", "r1", "z1"), node("b", "r1", "z2"), node("c", "r2", "z3"))
COSTS = network({("z2", "z1"): 5, ("z1", "z2"): 6}, {("r2", "r1"): 20, ("r1", "r2"): 30})


def explained(planner, wanted):
    return list(planner.decide(wanted).notes)


def test_costs_by_distance():
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 100)), peer("p", "a"))
    # Costs: 0 on the same node, 1 in the same zone, 5 from zone z2 to z1, 20 from region r2 to r1.
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}


OLD = {"topologyList": "costList", "originList": "originCosts", "costList": "costs"}


def renamed(plain):
    """With the names that the example of scheduler-plugins still uses."""
    if isinstance(plain, list | tuple):
        return [renamed(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    return {OLD.get(name, name): renamed(value) for name, value in plain.items()}


def old_network(more=None):
    spec = renamed(msgspec.to_builtins(COSTS)["spec"])
    spec["configMapName"] = spec.pop("configmapName")
    spec["weights"][0] |= more or {}
    return {"metadata": {"name": "nt-default", "namespace": "default"}, "spec": spec}


def test_costs_with_the_field_names_of_older_versions():
    old = decode(NetworkTopology, old_network())
    planner = alone(NAME, *NODES, old, app_group(("cart", 100)), peer("p", "a"))
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}
    assert explained(planner, pod()) == []


def test_costs_under_the_new_names_count_where_both_are_given():
    new = msgspec.to_builtins(network({("z2", "z1"): 50}))["spec"]["weights"][0]
    both = decode(NetworkTopology, old_network({"topologyList": new["topologyList"]}))
    planner = alone(NAME, *NODES, both, app_group(("cart", 100)), peer("p", "a"))
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 99, "b": 50, "c": 0}


def test_costs_add_up_over_pods_and_dependencies():
    peers = (peer("p", "a"), peer("q", "a"), peer("r", "c", "redis"))
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 100), ("redis", 100)), *peers)
    # a: 0 + 30, a2: 2 + 30, b: 10 + 30, c: 40 + 0
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 80, "b": 0, "c": 0}


def test_unknown_costs_count_as_100():
    planner = alone(NAME, *NODES, network({("z2", "z1"): 50}), app_group(("cart", 100)), peer("p", "a"))
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 99, "b": 50, "c": 0}


def test_nodes_without_labels_are_far_from_each_other():
    planner = alone(
        NAME, node("x"), node("y"), COSTS, app_group(("cart", 100)), peer("p", "x"), peer("q", "y")
    )
    assert scores(planner.decide(pod())) == {"x": 100, "y": 100}
    planner = alone(NAME, node("x"), node("y"), COSTS, app_group(("cart", 100)), peer("p", "x"))
    assert refusals(planner.decide(pod())) == {"y": (UNSCHEDULABLE, f"{REASON}: satisfied: 0, violated: 1")}


@pytest.mark.parametrize(
    ("limit", "rejected"),
    [
        pytest.param(0, {"b", "c"}, id="none allowed"),
        pytest.param(5, {"c"}, id="just enough for a zone"),
        pytest.param(19, {"c"}, id="not quite enough for a region"),
        pytest.param(20, set(), id="enough for all"),
    ],
)
def test_filter(limit, rejected):
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", limit)), peer("p", "a"))
    assert refusals(planner.decide(pod())) == dict.fromkeys(
        rejected, (UNSCHEDULABLE, f"{REASON}: satisfied: 0, violated: 1")
    )


def test_the_majority_of_pods_decides():
    needs, peers = app_group(("cart", 4), ("redis", 4)), [peer("p", "a"), peer("q", "b", "redis")]
    planner = alone(NAME, *NODES, COSTS, needs, *peers)
    assert refusals(planner.decide(pod())) == {"c": (UNSCHEDULABLE, f"{REASON}: satisfied: 0, violated: 2")}
    planner = alone(NAME, *NODES, COSTS, needs, *peers, peer("r", "a"))
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}


def test_a_cost_that_is_not_listed_rejects_nobody():
    planner = alone(NAME, *NODES, network(), app_group(("cart", 0)), peer("p", "a"))
    assert refusals(planner.decide(pod())) == {}


@pytest.mark.parametrize(
    ("wanted", "objects", "text"),
    [
        pytest.param(make_pod(), (), None, id="no AppGroup named"),
        pytest.param(pod(), (), "AppGroup shop does not exist in namespace default", id="no AppGroup"),
        pytest.param(
            pod(workload="back"),
            (app_group(("cart", 1)),),
            "lists no dependencies of workload back",
            id="none",
        ),
        pytest.param(
            make_pod(labels={GROUP_LABEL: "shop"}),
            (app_group(("cart", 1)),),
            "the pod has no label appgroup.diktyo.x-k8s.io.workload",
            id="no workload named",
        ),
        pytest.param(
            pod(),
            (app_group(("redis", 1), ("cart", 1, "elsewhere")),),
            "no pod of its dependencies (redis, cart) has a node yet",
            id="no pods",
        ),
    ],
)
def test_without_dependencies_all_nodes_are_equal(wanted, objects, text):
    planner = alone(NAME, *NODES, COSTS, *objects, peer("p", "a"))
    assert scores(planner.decide(wanted)) == {"a": 0, "a2": 0, "b": 0, "c": 0}
    notes = explained(planner, wanted)
    assert [text in note for note in notes] == ([True] if text else [])


def counted(planner, kind):
    (profile,) = planner.profiles.values()
    return profile.plugins[NAME].handle.counter(MISSING, "", "kind")[kind,]


def test_without_a_network_topology_only_zones_count():
    planner = alone(NAME, *NODES, app_group(("cart", 0)), peer("p", "a"))
    (note,) = explained(planner, pod())
    assert counted(planner, "NetworkTopology") == 1
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 99, "b": 0, "c": 0}
    assert "NetworkTopology nt-default does not exist in default" in note


def test_missing_app_groups_are_counted():
    planner = alone(NAME, *NODES)
    planner.decide(pod())
    planner.decide(make_pod())
    assert counted(planner, "AppGroup") == 1


def test_weights_of_another_name_do_not_count():
    planner = alone(
        NAME, *NODES, COSTS, app_group(("cart", 0)), peer("p", "a"), args={"weightsName": "Other"}
    )
    assert refusals(planner.decide(pod())) == {}
    (note,) = explained(planner, pod())
    assert "NetworkTopology nt-default has no costs in weights Other" in note


def test_names_and_namespaces_of_the_arguments():
    args = {"namespaces": ["x", "y"], "networkTopologyName": "mine", "weightsName": "Netperf"}
    mine = network({("z2", "z1"): 9}, name="mine", weights="Netperf", namespace="y")
    group = app_group(("cart", 8), namespace="x")
    planner = alone(NAME, *NODES, mine, COSTS, group, peer("p", "a"), args=args)
    assert set(refusals(planner.decide(pod(namespace="z")))) == {"b"}


def test_a_dependency_with_a_namespace_means_pods_of_that_namespace():
    peers = (peer("p", "a", namespace="other"), peer("q", "c", namespace="mine"))
    near_c = {"a": 0, "a2": 0, "b": 0, "c": 100}
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 99, "mine")), *peers)
    assert scores(planner.decide(pod())) == near_c
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 99)), *peers)
    assert scores(planner.decide(pod())) != near_c


def test_pods_of_other_groups_and_workloads_do_not_count():
    others = (pod("x", "cart", "other", node="c"), peer("y", "c", "redis"), peer("p", "a"))
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 99)), *others)
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_do_not_count(phase):
    ended = peer("done", "c", status={"phase": phase})
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 99)), peer("p", "a"), ended)
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}


def test_pods_whose_node_is_gone_do_not_count():
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 99)), peer("p", "a"), peer("lost", "gone"))
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}


def test_two_profiles_with_different_arguments_are_both_right():
    first = alone(NAME, *NODES, COSTS, app_group(("cart", 0)), peer("p", "a"), args={"weightsName": "None"})
    second = alone(NAME, *NODES, COSTS, app_group(("cart", 0)), peer("p", "a"))
    for _ in range(2):
        assert set(refusals(first.decide(pod()))) == set()
        assert set(refusals(second.decide(pod()))) == {"b", "c"}


def test_objects_that_change_count_at_once():
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 0)), peer("p", "a"))
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}
    planner.cluster.watched(NetworkTopology).put(network({("z2", "z1"): 0}))
    assert set(refusals(planner.decide(pod()))) == set()
    planner.cluster.watched(NetworkTopology).put(network({("z2", "z1"): 7}))
    assert set(refusals(planner.decide(pod()))) == {"b"}
    planner.cluster.watched(AppGroup).put(app_group(("cart", 7)))
    assert set(refusals(planner.decide(pod()))) == set()
    planner.cluster.watched(AppGroup).remove("default/shop")
    assert scores(planner.decide(pod())) == {"a": 0, "a2": 0, "b": 0, "c": 0}


def test_nodes_that_change_count_at_once():
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 0)), peer("p", "a"))
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}
    planner.cluster.nodes.add_node(node("c", "r1", "z1"))
    planner.cluster.nodes.add_node(node("d", "r9", "z9"))
    planner.cluster.nodes.add_node(node("e", "r1", "z2"))
    assert set(refusals(planner.decide(pod()))) == {"b", "e"}
    planner.cluster.nodes.remove_node("a2")
    assert set(refusals(planner.decide(pod()))) == {"b", "e"}


def test_scores_are_right_after_zones_were_forgotten():
    planner = alone(NAME, *NODES, COSTS, app_group(("cart", 100)), peer("p", "a"))
    for number in range(1500):
        planner.cluster.nodes.add_node(node("b", "r1", f"zone-{number}"))
        assert scores(planner.decide(pod())) == {"a": 100, "a2": 99, "b": 0, "c": 80}
    planner.cluster.nodes.add_node(node("b", "r1", "z2"))
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 95, "b": 75, "c": 0}


# What is wrong


@pytest.mark.parametrize(("limit", "rejected"), [(-1, {"b", "c"}), (2**40, set())])
def test_an_impossible_limit_counts_as_the_nearest_possible_one(limit, rejected):
    planner, events = watching(peer("p", "a"), COSTS)
    planner.cluster.watched(AppGroup).put(app_group(("cart", limit)))
    assert set(refusals(planner.decide(pod()))) == rejected
    ((reason, text),) = events
    assert reason == "InvalidAppGroup"
    assert text == (
        "maxNetworkCost must be from 0 to 10000; the nearest of these counts instead for the dependencies of "
        f"front on cart: {limit}"
    )


def test_only_so_many_dependencies_of_a_workload_count():
    needs = [(f"d{number}", 0) for number in range(MAX_DEPENDENCIES)]
    peers = (peer("p", "a", "d0"), *(peer(f"q{number}", "c", "beyond") for number in range(3)))
    planner, events = watching(*peers, COSTS, app_group(*needs))
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}
    planner.cluster.watched(AppGroup).put(app_group(*needs, *[("beyond", 0)] * 20_000))
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}
    assert events == [
        ("InvalidAppGroup", f"only the first {MAX_DEPENDENCIES} dependencies count of front"),
    ]


@pytest.mark.parametrize(
    ("key", "cost", "said"),
    [
        pytest.param(ZONE, 2**31, None, id="a high cost"),
        pytest.param(
            ZONE,
            2**62,
            f"networkCost above {2**31} counts as {2**31}: z2 to z1: {2**62}",
            id="a cost too high",
        ),
        pytest.param(
            "zone", 5, f"topologyKey must be {REGION} or {ZONE}; ignored: zone", id="a key that is not used"
        ),
    ],
)
def test_what_is_ignored_of_a_network_topology_is_reported(key, cost, said):
    planner, events = watching(peer("p", "a"), app_group(("cart", 0)))
    made = network({("z2", "z1"): cost}, {})
    weights = made.spec.weights[0]
    renamed = [replace(each, topology_key=key) for each in weights.topology_list if each.topology_key == ZONE]
    spec = replace(made.spec, weights=(replace(weights, topology_list=tuple(renamed)),))
    planner.cluster.watched(NetworkTopology).put(replace(made, spec=spec))
    assert events == ([] if said is None else [("InvalidNetworkTopology", said)])
    assert planner.decide(pod()).chosen is not None


def test_a_negative_cost_counts_as_missing():
    planner, events = watching(peer("p", "a"), app_group(("cart", 0)))
    planner.cluster.watched(NetworkTopology).put(network({("z2", "z1"): -5}, {("r2", "r1"): 1}))
    assert set(refusals(planner.decide(pod()))) == {"c"}
    assert scores(planner.decide(pod())) == {"a": 100, "a2": 99, "b": 0}
    ((reason, text),) = events
    assert reason == "InvalidNetworkTopology"
    assert text == "networkCost must not be negative; these count as missing: z2 to z1: -5"


def watching(*objects):
    """A planner whose events are collected, and these."""
    planner, events = alone(NAME, *NODES, *objects), []
    (profile,) = planner.profiles.values()
    profile.plugins[NAME].handle.record_event = lambda item, kind, *told: events.append(told)
    return planner, events


def test_huge_costs_do_not_overflow():
    costs = network({("z2", "z1"): 2**62, ("z1", "z2"): 2**62}, {("r2", "r1"): 2**63 - 1})
    peers = [peer(f"p{number}", "a") for number in range(50)]
    planner = alone(NAME, *NODES, costs, app_group(*[("cart", 9)] * 40), *peers)
    assert (
        scores(alone(NAME, *NODES, costs, app_group(("cart", 9)), peer("p", "a")).decide(pod()))["a"] == 100
    )
    assert set(refusals(planner.decide(pod()))) == {"b", "c"}


@pytest.mark.parametrize("cost", [float("nan"), "near", None, 1.5])
def test_what_is_no_number_is_rejected_when_read(cost):
    plain = {"destination": "z1", "networkCost": cost}
    origins = [{"origin": "z2", "costList": [plain]}]
    weights = [{"name": "UserDefined", "topologyList": [{"topologyKey": ZONE, "originList": origins}]}]
    with pytest.raises(InputError):
        decode(NetworkTopology, {"metadata": {"name": "nt-default"}, "spec": {"weights": weights}})


def test_a_cycle_of_dependencies_is_no_problem():
    both = app_group(("front", 0))
    planner = alone(NAME, *NODES, COSTS, both, peer("p", "a", "front"))
    assert scores(planner.decide(pod()))["a"] == 100


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"namespaces": ["a/b"]}, r"namespaces\[0\]"),
        ({"weightsName": ""}, "weightsName"),
        ({"networkTopologyName": ""}, "networkTopologyName"),
        ({"weights": "x"}, "weights"),
    ],
)
def test_impossible_arguments_are_rejected(args, field):
    with pytest.raises(ConfigError, match=field):
        alone(NAME, args=args)


def test_many_different_counts_are_not_listed():
    nodes = [node(f"n{number}", "r", f"z{number}") for number in range(30)]
    zones = {(f"z{one}", f"z{other}"): 1 for one in range(30) for other in range(30)}
    peers = [peer(f"p{on}-{number}", f"n{on}") for on in range(30) for number in range(on)]
    planner = alone(NAME, *nodes, network(zones), app_group(("cart", 0)), *peers)
    assert set(refusals(planner.decide(pod())).values()) == {(UNSCHEDULABLE, REASON)}


def test_rejections_are_explained_by_node():
    needs = app_group(("cart", 3), ("redis", 50), ("ads", 0))
    peers = (peer("p", "a"), peer("q", "a", "redis"), peer("r", "x", "ads"))
    planner = alone(NAME, *NODES, node("x"), COSTS, needs, *peers)
    (profile,) = planner.profiles.values()
    plugin: Any = profile.plugins[NAME]
    ads = "ads runs on x, which has no zone and region"
    far = "is too far from what the pod depends on: cart runs on a, at a network cost of"
    assert list(plugin.explain_rejections(pod(), ["b", "c", "a2", "gone"])) == [
        f"b {far} 5 from zone z2 to z1, where 3 is allowed; {ads}.",
        f"c {far} 20 from region r2 to r1, where 3 is allowed; {ads}.",
        f"a2 is too far from what the pod depends on: {ads}.",
    ]
    assert list(plugin.explain_rejections(make_pod(), ["b"])) == []


# When to attempt a rejected pod again


@pytest.mark.parametrize(
    ("event", "new", "hint"),
    [
        (ClusterEvent(Resource.ASSIGNED_POD, Action.ADD), peer("p", "a"), Hint.QUEUE),
        (ClusterEvent(Resource.ASSIGNED_POD, Action.ADD), make_pod(node="a"), Hint.SKIP),
        (ClusterEvent(Resource.NODE, Action.ADD), node("x"), Hint.QUEUE),
        (ClusterEvent(AppGroup.definition.event_resource, Action.ADD), app_group(), Hint.QUEUE),
        (ClusterEvent(AppGroup.definition.event_resource, Action.ADD), app_group(name="x"), Hint.SKIP),
        (ClusterEvent(NetworkTopology.definition.event_resource, Action.ADD), COSTS, Hint.QUEUE),
    ],
)
def test_queueing_hints(event, new, hint):
    (profile,) = alone(NAME).profiles.values()
    plugin = profile.plugins[NAME]
    assert any(registered.covers(event) for registered in plugin.events_to_register())
    assert plugin.queueing_hint(pod(), event, None, new) is hint
    assert plugin.queueing_hint(pod(), event, new, None) is hint


# The same, slowly

ZONES, REGIONS = ["", "z1", "z2", "z3"], ["", "r1", "r2"]
COST, ZONE_NAMES = st.integers(0, 20), st.sampled_from(ZONES)
WORLDS = st.fixed_dictionaries(
    {
        "nodes": st.lists(
            st.tuples(st.sampled_from(REGIONS), st.sampled_from(ZONES)), min_size=1, max_size=6
        ),
        "zones": st.dictionaries(st.tuples(st.sampled_from(ZONES[1:]), st.sampled_from(ZONES[1:])), COST),
        "regions": st.dictionaries(
            st.tuples(st.sampled_from(REGIONS[1:]), st.sampled_from(REGIONS[1:])), COST
        ),
        "needs": st.lists(st.tuples(st.sampled_from(["cart", "redis"]), COST), max_size=3),
        "peers": st.lists(
            st.tuples(st.sampled_from(["cart", "redis", "ads"]), st.integers(0, 5)), max_size=8
        ),
    }
)


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.tuples(st.sampled_from(["cart", "redis"]), st.integers(0, 5))),
        st.tuples(st.just("go"), st.integers(0, 7)),
        st.tuples(st.just("label"), st.tuples(st.integers(0, 6), st.sampled_from(["r1", "r2"]), ZONE_NAMES)),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("zones"), WORLDS.map(lambda world: world["zones"])),
    ),
    max_size=5,
)


@given(WORLDS, CHANGES)
@settings(deadline=None)
def test_as_a_slow_obvious_version_would(world, changes):
    places = {f"n{number}": place for number, place in enumerate(world["nodes"])}
    nodes = [node(name, *place) for name, place in places.items()]
    peers = {
        f"p{number}": (selector, f"n{on % len(nodes)}")
        for number, (selector, on) in enumerate(world["peers"])
    }
    placed = [peer(name, on, selector) for name, (selector, on) in peers.items()]
    costs = network(world["zones"], world["regions"])
    planner = alone(NAME, *nodes, costs, app_group(*world["needs"]), *placed)
    compare(planner.decide(pod()), places, peers, world)
    for number, (what, detail) in enumerate(changes):  # what was counted before must be right after each
        if what == "come" and places:
            selector, on = detail[0], sorted(places)[detail[1] % len(places)]
            peers[f"later{number}"] = (selector, on)
            planner.cluster.add_pod(peer(f"later{number}", on, selector))
        elif what == "go" and peers:
            name = sorted(peers)[detail % len(peers)]
            selector, on = peers.pop(name)
            planner.cluster.remove(peer(name, on, selector))
        elif what == "label":
            name = f"n{detail[0]}"
            places[name] = detail[1:]
            planner.cluster.apply(node(name, *detail[1:]))
        elif what == "remove" and len(places) > 1:
            name = sorted(places)[detail % len(places)]
            if name not in {on for _, on in peers.values()}:
                planner.cluster.remove(node(name, *places.pop(name)))
        elif what == "zones":
            world = world | {"zones": detail}
            planner.cluster.apply(network(detail, world["regions"]))
        compare(planner.decide(pod()), places, peers, world)


def compare(decision, places, peers, world):
    found = {name: slow_overhead(name, places, peers.values(), world) for name in places}
    counts = {name: (met, unmet) for name, (met, unmet, _) in found.items() if unmet > met}
    assert refusals(decision) == {
        name: (UNSCHEDULABLE, f"{REASON}: satisfied: {met}, violated: {unmet}")
        for name, (met, unmet) in counts.items()
    }
    left = {name: cost for name, (_, _, cost) in found.items() if name not in counts}
    if len(left) > 1:  # a single node needs no score
        assert scores(decision) == slow_scores(left)


def slow_overhead(name, places, peers, world):
    met = unmet = cost = 0
    (region, zone) = places[name]
    for selector, on in peers:
        for needed, limit in world["needs"]:
            if needed != selector:
                continue
            there_region, there_zone = places[on]
            if on == name:
                met += 1
            elif not there_region and not there_zone:
                unmet, cost = unmet + 1, cost + 100
            elif region == there_region and zone == there_zone:
                met, cost = met + 1, cost + 1
            else:
                same = region == there_region
                between = world["zones"] if same else world["regions"]
                listed = between.get((zone, there_zone) if same else (region, there_region))
                cost += 100 if listed is None else listed
                if listed is not None:
                    met, unmet = met + (listed <= limit), unmet + (listed > limit)
    return met, unmet, cost


def slow_scores(costs):
    low, high = min(costs.values()), max(costs.values())
    if high == 0:
        return dict.fromkeys(costs, 0)
    return {name: 100 - int(100.0 * (cost - low) / max(high - low, 1)) for name, cost in costs.items()}


# In a running scheduler


@pytest.mark.parametrize("old", [False, True], ids=["today's field names", "old field names"])
async def test_objects_are_watched(old):
    plugins = {"multiPoint": {"enabled": [{"name": NAME}]}}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = kind | {"profiles": [{"plugins": plugins}]}
    nodes = NodeTemplate(count=4, region="r1", zones=("z1", "z2"), labels={"x": "y"})
    async with embedded_cluster(nodes, config=config) as cluster:
        await cluster.create(plain_pod("cart", "cart", {ZONE: "z1"}))
        on = await cluster.bound("cart")
        costs = plain(COSTS) | (old_network() if old else {})
        await cluster.apply(costs, plain(app_group(("cart", 0))))
        await cluster.settle()
        await cluster.create(plain_pod("front", "front", {ZONE: "z2"}))
        assert f"2 {REASON}: satisfied: 0, violated: 1" in await cluster.rejected("front")
        await cluster.create(plain_pod("near", "front"))
        assert await cluster.bound("near") == on
        await cluster.apply(plain(app_group(("cart", 5))))
        await cluster.bound("front")


def plain(item):
    where = item.definition
    kind = {"apiVersion": where.api_version, "kind": where.kind}
    return kind | msgspec.json.decode(msgspec.json.encode(item, enc_hook=str))


def plain_pod(name, workload, selector=None):
    labels = {GROUP_LABEL: "shop", WORKLOAD_LABEL: workload}
    spec = {"containers": [{"name": "main", "image": "web"}], "nodeSelector": selector or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
