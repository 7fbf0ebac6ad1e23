"""TopologicalSort: pods of an AppGroup in the order of its workloads, all others as by PrioritySort."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from make import make_pod, planner
from scheduler_staging import node, pod, staged
from stowplan.api.meta import UnreadableObject, decode
from stowplan.api.pod import Pod
from stowplan.embedded.cluster import embedded_cluster
from stowplan.errors import ConfigError, InputError
from stowplan.journal import Decisions
from stowplan.plugins.app_groups import GROUP_LABEL, WORKLOAD_LABEL, AppGroup


class Queued(NamedTuple):
    pod: Pod
    timestamp: float = 0.0
    attempts: int = 0


def config(**args):
    sort = {"enabled": [{"name": "TopologicalSort"}], "disabled": [{"name": "*"}]}
    profile = {
        "plugins": {"queueSort": sort},
        "pluginConfig": [{"name": "TopologicalSort", "args": args}] if args else [],
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return kind | {"profiles": [profile]}


def sorter(*groups, **args):
    plugin: Any = planner(groups, config(**args)).profiles["default-scheduler"].plugins["TopologicalSort"]
    plugin.events = []
    plugin.handle.record_event = lambda *event: plugin.events.append(event)
    return plugin


def workload(selector, *dependencies):
    return {
        "workload": {"kind": "Deployment", "name": selector, "selector": selector},
        "dependencies": [{"workload": {"selector": each}} for each in dependencies],
    }


def app_group(name="shop", *workloads, order=None, namespace="default"):
    """`order` is what the controller has written: an index by selector."""
    listed = [{"workload": {"selector": key}, "index": index} for key, index in (order or {}).items()]
    plain = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"numMembers": 3, "topologySortingAlgorithm": "KahnSort", "workloads": list(workloads)},
        "status": {"topologyOrder": listed},
    }
    return decode(AppGroup, plain)


def waiting(name, at, workload="", group="shop", priority=0, namespace="default"):
    labels = ({GROUP_LABEL: group} if group else {}) | ({WORKLOAD_LABEL: workload} if workload else {})
    return Queued(make_pod(name, labels=labels, priority=priority, namespace=namespace), at)


def in_order(plugin, *pods):
    keys = {each.pod.name: plugin.queue_sort(each) for each in pods}
    return sorted(keys, key=keys.__getitem__)


SHOP = app_group(order={"front": 1, "cart": 2, "redis": 3})


def test_the_pods_of_an_app_group_go_by_its_order():
    pods = (waiting("r", 1, "redis"), waiting("c", 2, "cart"), waiting("f", 3, "front"))
    assert in_order(sorter(SHOP), *pods) == ["f", "c", "r"]


def test_equal_workloads_go_by_time():
    pods = (waiting("late", 9, "cart"), waiting("early", 8, "cart"))
    assert in_order(sorter(SHOP), *pods) == ["early", "late"]


def test_a_workload_that_the_order_lacks_goes_first():
    pods = (waiting("f", 1, "front"), waiting("unknown", 2, "new"), waiting("none", 3))
    assert in_order(sorter(SHOP), *pods) == ["unknown", "none", "f"]


def test_others_go_by_priority_and_time():
    pods = (
        waiting("other", 1, "redis", group="other"),
        waiting("plain", 2, group=""),
        waiting("urgent", 3, group="", priority=5),
        waiting("missing", 4, "front", group="gone"),
    )
    assert in_order(sorter(SHOP), *pods) == ["urgent", "other", "plain", "missing"]


def test_priority_counts_within_an_app_group_too():
    pods = (waiting("f", 1, "front"), waiting("r", 2, "redis", priority=1))
    assert in_order(sorter(SHOP), *pods) == ["r", "f"]


def test_an_app_group_stands_where_its_first_pod_stands():
    pods = (
        waiting("before", 1, group=""),
        waiting("r", 2, "redis"),
        waiting("between", 3, group=""),
        waiting("f", 4, "front"),
    )
    assert in_order(sorter(SHOP), *pods) == ["before", "f", "r", "between"]


def test_the_place_in_the_queue_is_given_up_with_the_last_pod():
    plugin = sorter(SHOP)
    first, second = waiting("r", 1, "redis"), waiting("f", 2, "front")
    assert in_order(plugin, first, second) == ["f", "r"]
    plugin.pod_updated(first.pod, first.pod.on("node"))
    plugin.pod_deleted(second.pod)
    assert in_order(plugin, waiting("plain", 8, group=""), waiting("c", 9, "cart")) == ["plain", "c"]


def test_a_pod_that_leaves_its_app_group_does_not_hold_the_place():
    plugin = sorter(SHOP)
    plugin.queue_sort(waiting("a", 1, "redis"))
    plugin.queue_sort(waiting("a", 1, group=""))
    assert in_order(plugin, waiting("plain", 8, group=""), waiting("c", 9, "cart")) == ["plain", "c"]


def test_the_namespace_of_the_pod_comes_first():
    other = app_group(order={"front": 9, "cart": 8}, namespace="b")
    plugin = sorter(SHOP, other, namespaces=["default", "b"])
    for namespace, expected in (("b", ["c", "f"]), ("default", ["f", "c"]), ("elsewhere", ["f", "c"])):
        pods = (waiting("f", 1, "front", namespace=namespace), waiting("c", 2, "cart", namespace=namespace))
        assert in_order(plugin, *pods) == expected
        for each in pods:
            plugin.pod_deleted(each.pod)


def test_groups_of_the_same_name_are_kept_apart():
    other = app_group(order={"front": 1, "cart": 2}, namespace="b")
    pods = (
        waiting("c", 1, "cart"),
        waiting("c-b", 2, "cart", namespace="b"),
        waiting("f-b", 3, "front", namespace="b"),
        waiting("f", 4, "front"),
    )
    plugin = sorter(SHOP, other, namespaces=["default", "b"])
    assert in_order(plugin, *pods) == ["f", "c", "f-b", "c-b"]


def test_without_an_order_dependents_go_first():
    group = app_group("shop", workload("redis"), workload("cart", "redis"), workload("front", "cart", "ads"))
    plugin = sorter(group)
    pods = (waiting("r", 1, "redis"), waiting("c", 2, "cart"), waiting("f", 3, "front"))
    assert in_order(plugin, *pods) == ["f", "c", "r"]
    assert not plugin.events


@pytest.mark.parametrize(
    "workloads",
    [
        pytest.param([workload("cart", "redis"), workload("redis", "cart")], id="two on each other"),
        pytest.param(
            [workload("cart", "redis"), workload("redis", "x"), workload("x", "cart")], id="a longer cycle"
        ),
    ],
)
def test_a_cycle_is_reported_and_goes_last(workloads):
    plugin = sorter(app_group("shop", *workloads, workload("front", "cart")))
    pods = (waiting("r", 1, "redis"), waiting("c", 2, "cart"), waiting("f", 3, "front"))
    assert in_order(plugin, *pods) == ["f", "c", "r"]
    ((_, kind, reason, text),) = plugin.events
    assert (kind, reason) == ("Warning", "CyclicAppGroup")
    assert "cart, redis" in text
    assert "depend on each other in a cycle" in text


def test_a_workload_that_depends_on_itself_is_no_cycle():
    plugin = sorter(app_group("shop", workload("redis", "redis"), workload("front", "redis")))
    assert in_order(plugin, waiting("r", 1, "redis"), waiting("f", 2, "front")) == ["f", "r"]
    assert not plugin.events


def test_thousands_of_workloads_are_sorted_in_no_time():
    names = [f"w{number}" for number in range(10_000)]
    chain = [workload(*pair) for pair in pairwise(names)]
    plugin = sorter(app_group("shop", *chain, workload(names[-1])))
    assert in_order(plugin, waiting("last", 1, names[-1]), waiting("first", 2, names[0])) == ["first", "last"]


def test_a_group_that_changes_is_read_again():
    plugin = sorter(SHOP)
    pods = (waiting("c", 1, "cart"), waiting("f", 2, "front"))
    assert in_order(plugin, *pods) == ["f", "c"]
    plugin.handle.watched(AppGroup).put(app_group(order={"front": 2, "cart": 1}))
    assert in_order(plugin, *pods) == ["c", "f"]
    plugin.handle.watched(AppGroup).remove("default/shop")
    assert in_order(plugin, *reversed(pods)) == ["c", "f"]


@pytest.mark.parametrize("namespaces", [[""], ["a/b"]])
def test_impossible_namespaces_are_rejected(namespaces):
    with pytest.raises(ConfigError, match=r"namespaces\[0\]"):
        sorter(namespaces=namespaces)


PODS = st.lists(
    st.tuples(
        st.sampled_from(["front", "cart", "redis", "new"]),
        st.sampled_from(["", "shop", "other", "gone"]),
        st.integers(0, 2),
        st.integers(0, 5),
    ),
    max_size=7,
)
OTHER = app_group("other", order={"front": 3, "cart": 2, "redis": 1})


@given(PODS)
def test_as_a_slow_obvious_version_would(made):
    pods = [
        waiting(f"p{number}", at, workload, group, priority)
        for number, (workload, group, priority, at) in enumerate(made)
    ]
    plugin = sorter(SHOP, OTHER)
    keys = {each.pod.name: plugin.queue_sort(each) for each in pods}
    for one, other in permutations(pods, 2):
        assert (keys[one.pod.name] < keys[other.pod.name]) == is_first(one, other, pods)


def is_first(one, other, pods):
    """Two pods of one AppGroup and priority go by the index; others as if the group's first were compared."""
    groups = {"shop": SHOP, "other": OTHER}
    name, others_name = (each.pod.labels.get(GROUP_LABEL) for each in (one, other))
    if one.pod.priority != other.pod.priority:
        return one.pod.priority > other.pod.priority
    if name == others_name and name in groups:
        index = {each.workload.selector: each.index for each in groups[name].status.topology_order}
        mine, theirs = (index.get(each.pod.labels.get(WORKLOAD_LABEL), -1) for each in (one, other))
        return (mine, one.timestamp) < (theirs, other.timestamp)

    def stands(queued):
        group = queued.pod.labels.get(GROUP_LABEL)
        if group not in groups:
            return (queued.timestamp, "")
        first = next(each for each in pods if each.pod.labels.get(GROUP_LABEL) == group)
        return (first.timestamp, f"default/{group}")

    return stands(one) < stands(other)


def queued_pod(workload, **extra):
    plain = pod(workload, **extra)
    plain["metadata"]["labels"] = {GROUP_LABEL: "shop", WORKLOAD_LABEL: workload}
    return plain


def front_first():
    return app_group("shop", workload("redis"), workload("cart", "redis"), workload("front", "cart"))


def redis_first():
    return app_group("shop", order={"redis": 1, "cart": 2, "front": 3})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([(None, front_first())], ["front", "cart", "redis"], id="it arrives"),
        pytest.param(
            [(None, redis_first()), (redis_first(), front_first())],
            ["front", "cart", "redis"],
            id="it changes",
        ),
        pytest.param(
            [(None, front_first()), (front_first(), None)], ["cart", "redis", "front"], id="it goes"
        ),
    ],
)
async def test_pods_in_the_queue_are_sorted_again_when_their_app_group_changes(changes, expected):
    async with staged(config={"profiles": config()["profiles"]}) as stage:
        stage.see(
            node("n1", cpu="9"), pod("first"), *(queued_pod(each) for each in ("cart", "redis", "front"))
        )
        stage.see(pod("last"), pod("urgent", priority=1))
        for old, new in changes:
            stage.scheduler.handlers.on_event("modified", old, new)
        await stage.settle()
        expected = ["urgent", "first", *expected, "last"]
        assert list(stage.api.bound) == [f"default/{name}" for name in expected]


async def test_what_does_not_change_the_order_costs_nothing_for_each_pod_in_the_queue():
    """Controllers write to the status of an AppGroup for every pod that starts."""
    async with staged(config={"profiles": config()["profiles"]}) as stage:
        plugin: Any = stage.scheduler.profiles["default-scheduler"].plugins["TopologicalSort"]
        stage.scheduler.handlers.on_event("added", None, SHOP)
        stage.see(queued_pod("cart"), pod("other"))
        counted = replace(SHOP, status=replace(SHOP.status, running_workloads=3))
        assert plugin.pods_to_sort_again(SHOP, counted) == ()
        assert [each.name for each in plugin.pods_to_sort_again(SHOP, None)] == ["cart"]
        assert plugin.pods_to_sort_again(None, OTHER) == ()


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        pytest.param(
            None,
            "TopologicalSort sorts it as a pod without AppGroup: AppGroup shop does not exist in namespace "
            "default.",
            id="it does not exist",
        ),
        pytest.param(
            app_group("shop", workload("cart", "redis"), workload("redis", "cart")),
            "TopologicalSort: in AppGroup default/shop, workloads cart, redis depend on each other in a "
            "cycle, so that they are sorted as listed; write status.topologyOrder for another order.",
            id="a cycle",
        ),
        pytest.param(front_first(), None, id="nothing is wrong"),
    ],
)
async def test_decisions_say_what_is_wrong_with_the_app_group(group, sentence):
    decisions = Decisions()
    async with staged(config={"profiles": config()["profiles"]}, decisions=decisions) as stage:
        stage.scheduler.cluster.watched(AppGroup).is_served = True
        if group is not None:
            stage.scheduler.handlers.on_event("added", None, group)
        stage.see(node("n1"), queued_pod("cart"), pod("other"))
        await stage.settle()
        (record,), (other,) = (decisions.recent.of(f"default/{name}") for name in ("cart", "other"))
        assert record.notes == (() if sentence is None else (sentence,))
        assert other.notes == ()


async def test_decisions_say_that_the_app_group_cannot_be_read():
    decisions = Decisions()
    async with staged(config={"profiles": config()["profiles"]}, decisions=decisions) as stage:
        store = stage.scheduler.cluster.watched(AppGroup)
        fault = InputError("expected array", what="AppGroup default/shop", field="spec.workloads")
        store.is_served = True
        store.unreadable = {"default/shop": UnreadableObject("default", "shop", "1", "1", fault)}
        stage.see(node("n1"), queued_pod("cart"))
        await stage.settle()
        (record,) = decisions.recent.of("default/cart")
        assert record.notes[1] == (
            "TopologicalSort sorts it as a pod without AppGroup: AppGroup shop cannot be read: "
            "AppGroup default/shop: spec.workloads: expected array."
        )


async def test_a_cycle_that_a_standby_has_seen_is_reported_once_it_leads():
    async with staged(config={"profiles": config()["profiles"]}) as stage:
        stage.is_leading = False
        cyclic = app_group("shop", workload("cart", "redis"), workload("redis", "cart"))
        stage.scheduler.handlers.on_event("added", None, cyclic)
        stage.see(queued_pod("cart"))
        await stage.settle()
        assert stage.notes("CyclicAppGroup") == []
        stage.is_leading = True
        stage.scheduler.start()
        await stage.settle()
        (text,) = stage.notes("CyclicAppGroup")
        assert text.startswith("workloads cart, redis depend on each other in a cycle")


async def test_on_a_cluster_with_groups_and_without_their_definition():
    pod = {"containers": [{"name": "main", "image": "web"}]}
    labels = {GROUP_LABEL: "shop", WORKLOAD_LABEL: "front"}
    async with embedded_cluster(1, config=config()) as cluster:
        labelled = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a", "labels": labels},
            "spec": pod,
        }
        await cluster.create(labelled)
        await cluster.bound("a")
