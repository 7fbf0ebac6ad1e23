"""NodeCRDResourceFit: by node what a custom resource of its name allows and prefers."""

from __future__ import annotations

import math

import pytest
from alone import UNSCHEDULABLE, refusals, scores
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod
from stowplan import Action, ClusterEvent, Hint, Resource
from stowplan.api.meta import decode
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.registry import Registry
from stowplan.plugins.community.node_crd_resource_fit import ClusterScopedResource, NodeCRDResourceFit

REGISTRY = Registry.installed(classes={"NodeCRDResourceFit": NodeCRDResourceFit})
MEMORY, DISK = "company.net/memory", "company.net/disk"
NOT_FOUND = (UNSCHEDULABLE, "CRD for node not found")
NOT_INSTALLED = (
    UNSCHEDULABLE,
    "CRD clusterscopedresources.scheduling.sigs.k8s.io is not installed, or cannot be read",
)
CHANGE = ClusterEvent(ClusterScopedResource.definition.event_resource, Action.UPDATE)


def offers(name, enabled=(), **spec):
    plain = {"resourcesFilter": dict.fromkeys(enabled, True), **spec}
    return decode(ClusterScopedResource, {"metadata": {"name": name}, "spec": plain})


def scoring(name, **scores):
    wanted = {"memory": MEMORY, "disk": DISK}
    return offers(
        name, (MEMORY, DISK), resourcesScore={wanted[each]: score for each, score in scores.items()}
    )


def planner(*objects, points=("filter", "score")):
    """Nodes a and b, these objects, and the plugin alone at these points."""
    plugins = {
        point: {
            "enabled": [{"name": "NodeCRDResourceFit"}] if point in points else [],
            "disabled": [{"name": "*"}],
        }
        for point in ("preFilter", "filter", "postFilter", "preScore", "score")
    }
    version = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = load({**version, "profiles": [{"plugins": plugins}]}, REGISTRY).config
    nodes = (make_node("a"), make_node("b"))
    return Planner(Cluster.of([*nodes, *objects]), config, registry=REGISTRY)


def wanting(*resources, **spec):
    return make_pod(requests=dict.fromkeys(resources, "1"), **spec)


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        pytest.param([], {"a": NOT_FOUND, "b": NOT_FOUND}, id="nothing known"),
        pytest.param([offers("a", [MEMORY])], {"b": NOT_FOUND}, id="known of one node"),
        pytest.param(
            [offers("a", [MEMORY]), offers("b", [DISK])],
            {"b": (UNSCHEDULABLE, f"Node does not enable resource {MEMORY}")},
            id="another resource",
        ),
        pytest.param(
            [offers("a", [MEMORY]), offers("b", resourcesFilter={MEMORY: False})],
            {"b": (UNSCHEDULABLE, f"Node does not enable resource {MEMORY}")},
            id="switched off",
        ),
        pytest.param(
            [offers("a", [MEMORY]), decode(ClusterScopedResource, {"metadata": {"name": "b"}, "spec": None})],
            {"b": (UNSCHEDULABLE, f"Node does not enable resource {MEMORY}")},
            id="nothing in it",
        ),
    ],
)
def test_filter(known, refused):
    assert refusals(planner(*known).decide(wanting(MEMORY))) == refused


def test_every_resource_that_lacks_is_named():
    decision = planner(offers("a"), offers("b", [DISK, MEMORY])).decide(wanting(MEMORY, DISK))
    lacks = [f"Node does not enable resource {each}" for each in (DISK, MEMORY)]
    assert refusals(decision) == {"a": (UNSCHEDULABLE, *lacks)}


def test_a_pod_without_requests_passes_where_something_is_known():
    assert refusals(planner(offers("a")).decide(wanting())) == {"b": NOT_FOUND}


def test_init_containers_are_not_looked_at():
    first = {"name": "first", "resources": {"requests": {DISK: "1"}}}
    pod = wanting(MEMORY, initContainers=[first])
    assert refusals(planner(offers("a", [MEMORY]), offers("b", [MEMORY])).decide(pod)) == {}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(
            [scoring("a", memory=55, disk=55), scoring("b", memory=10, disk=20)], [55, 15], id="mean"
        ),
        pytest.param(
            [scoring("a", memory=1, disk=2), scoring("b", memory=0, disk=1)], [2, 1], id="rounded up"
        ),
        pytest.param(
            [scoring("a", memory=2**63 - 1, disk=2**63 - 1), scoring("b", memory=-5, disk=40)],
            [100, 20],
            id="beyond the bounds",
        ),
        pytest.param([scoring("a", memory=50), scoring("b")], [25, 0], id="not said of a resource"),
        pytest.param([scoring("a", memory=50, disk=50)], [50, 0], id="not known of a node"),
    ],
)
def test_score(known, expected):
    found = scores(planner(*known, points=["score"]).decide(wanting(MEMORY, DISK)))
    assert list(found.values()) == expected


def test_no_requests_score_nothing():
    known = [scoring("a", memory=50), scoring("b", memory=60)]
    assert scores(planner(*known).decide(wanting())) == {"a": 0, "b": 0}


def test_nodes_that_score_for_want_of_data_are_counted():
    found = planner(scoring("a", memory=50), points=["score"])
    found.decide(wanting(MEMORY))
    plugin = found.profiles["default-scheduler"].plugins["NodeCRDResourceFit"]
    assert plugin.handle.counter("stowplan_node_crd_resource_fit_unknown_nodes_total", "")[()] == 1


def test_without_the_crd_the_filter_refuses_and_the_score_is_neutral():
    for points, refused, scored in (
        (["filter"], {"a": NOT_INSTALLED, "b": NOT_INSTALLED}, {}),
        (["score"], {}, {"a": 0, "b": 0}),
    ):
        found = planner(points=points)
        found.cluster.watched(ClusterScopedResource).is_served = False
        decision = found.decide(wanting(MEMORY))
        assert refusals(decision) == refused
        assert scores(decision) == scored


def test_what_changes_counts_for_the_next_pod():
    found = planner(offers("a", [MEMORY]))
    assert refusals(found.decide(wanting(MEMORY))) == {"b": NOT_FOUND}
    found.cluster.apply(offers("b", [MEMORY]))
    assert refusals(found.decide(wanting(MEMORY))) == {}
    found.cluster.remove(offers("a"))
    assert refusals(found.decide(wanting(MEMORY))) == {"a": NOT_FOUND}
    found.cluster.add_node(make_node("c"))
    assert refusals(found.decide(wanting(MEMORY))) == {"a": NOT_FOUND, "c": NOT_FOUND}


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, offers("a", [MEMORY]), Hint.QUEUE, id="came and enables it"),
        pytest.param(None, offers("a", [DISK]), Hint.SKIP, id="came with something else"),
        pytest.param(offers("a"), offers("a", [MEMORY]), Hint.QUEUE, id="enables it now"),
        pytest.param(offers("a", [MEMORY]), offers("a", [MEMORY, DISK]), Hint.SKIP, id="enabled it before"),
        pytest.param(offers("a", [MEMORY]), None, Hint.SKIP, id="went"),
    ],
)
def test_hint_of_a_change(old, new, hint):
    plugin = planner().profiles["default-scheduler"].plugins["NodeCRDResourceFit"]
    assert plugin.queueing_hint(wanting(MEMORY), CHANGE, old, new) is hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("new", Hint.QUEUE, id="one that is known to enable it"),
        pytest.param("other", Hint.SKIP, id="one that nothing is known of"),
    ],
)
def test_hint_of_a_new_node(name, hint):
    plugin = planner(offers("new", [MEMORY])).profiles["default-scheduler"].plugins["NodeCRDResourceFit"]
    event = ClusterEvent(Resource.NODE, Action.ADD)
    assert plugin.queueing_hint(wanting(MEMORY), event, None, make_node(name)) is hint


RESOURCES = st.sampled_from([MEMORY, DISK, "cpu"])
KNOWN = st.builds(
    lambda filters, scored: {"resourcesFilter": filters, "resourcesScore": scored},
    st.dictionaries(RESOURCES, st.booleans()),
    st.dictionaries(RESOURCES, st.integers(-200, 300)),
)


CHANGES = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | KNOWN), max_size=5)


@given(CHANGES, st.sets(RESOURCES))
def test_after_every_change_the_columns_say_what_one_node_at_a_time_would(changes, wanted):
    filtering, scoring = planner(points=["filter"]), planner(points=["score"])
    pod, known = wanting(*sorted(wanted)), {}
    for name, spec in changes:
        known |= {name: spec}
        item = decode(ClusterScopedResource, {"metadata": {"name": name}, "spec": spec})
        for each in (filtering, scoring):
            each.cluster.remove(item) if spec is None else each.cluster.apply(item)
        refused = {name for name in ("a", "b") if not slow_filter(known.get(name), wanted)}
        assert refusals(filtering.decide(pod)).keys() == refused
        expected = {name: slow_score(known.get(name), wanted) for name in ("a", "b")}
        assert scores(scoring.decide(pod)) == expected


def slow_filter(spec, wanted):
    return spec is not None and all(spec["resourcesFilter"].get(each) for each in wanted)


def slow_score(spec, wanted):
    if spec is None or not wanted:
        return 0
    total = sum(max(0, min(100, spec["resourcesScore"].get(each, 0))) for each in wanted)
    return math.ceil(total / len(wanted))
