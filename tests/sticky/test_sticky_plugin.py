"""Sticky: where pods come back to, when they may go elsewhere, and what is remembered."""

from __future__ import annotations

import asyncio

import pytest

from make import REGISTRY, make_pod
from sticky_world import World, node_with_uid
from stowplan.api.workloads import Namespace, StatefulSet
from stowplan.client.errors import Unreachable
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework import Action, ClusterEvent, Hint, Resource
from stowplan.framework.hints import object_changes
from stowplan.sticky.memory import record_name
from stowplan.sticky.resources import BatchJob, StickyRecord, kinds_in

ZONE = "topology.kubernetes.io/zone"
KEY, MODE, GRACE, SCOPE, ENABLED = (
    f"sticky.example.com/{name}" for name in ("key", "mode", "grace-seconds", "scope", "enabled")
)
SMALL = {"cpu": "1", "memory": "1Gi", "pods": "10"}
CPU = {"template": {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}}


def three_nodes(**fields):
    return [node_with_uid(name, **fields) for name in ("n1", "n2", "n3")]


def scores(decision):
    column = next(each for each in decision.scores if each.plugin == "Sticky")
    names = [decision.names[row] for row in decision.feasible.tolist()]
    return dict(zip(names, column.scores.tolist(), strict=True))


async def world_with_history(*nodes, spec=None, args=None, on="n2", **stickiness):
    """A job whose only pod was on one node and is pending again."""
    world = World(*nodes, args=args)
    world.add_job(spec=spec, **stickiness)
    await world.reconcile()
    for node in nodes:
        if node.name != on:
            world.cluster.remove_node(node.name)
    assert (await world.schedule("job-0")).chosen == on
    for node in nodes:
        world.change_node(node)
    await world.reconcile()
    world.delete_pod("job-0")
    await world.reconcile()
    return world


async def test_the_first_placement_is_free():
    world = World(*three_nodes())
    world.add_job(mode="Required")
    await world.reconcile()
    decision = world.decide("job-0")
    assert len(decision.looked_at) == 3
    assert "Sticky" not in [column.plugin for column in decision.scores]


@pytest.mark.parametrize("mode", ["Preferred", "Required", "RequiredThenPreferred"])
async def test_the_second_pod_goes_back(mode):
    world = await world_with_history(*three_nodes(), mode=mode, graceSeconds=60)
    assert (await world.schedule("job-0")).chosen == "n2"


async def test_required_looks_at_one_node_alone():
    world = await world_with_history(*three_nodes(), mode="Required")
    assert world.decide("job-0").looked_at.tolist() == [world.cluster.nodes.row_of("n2")]


async def test_preferred_moves_when_the_node_is_full():
    world = await world_with_history(*three_nodes(allocatable=SMALL), spec=CPU)
    world.cluster.apply(make_pod("other", node="n2", requests={"cpu": "1"}))
    assert (await world.schedule("job-0")).chosen == "n1"


async def test_required_waits_when_the_node_is_full_and_may_preempt():
    world = await world_with_history(*three_nodes(allocatable=SMALL), spec=CPU, mode="Required")
    world.cluster.apply(make_pod("other", node="n2", requests={"cpu": "1"}, priority=5))
    decision = world.decide("job-0")
    assert decision.chosen is None
    assert decision.message.startswith(
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [Sticky]."
    )
    assert decision.status_of("n2").code.wire_name == "Unschedulable"  # so victims are looked for there
    world.cluster.remove_pod(make_pod("other"))
    world.cluster.apply(make_pod("victim", node="n2", requests={"cpu": "1"}, priority=-1))
    decision = world.decide("job-0")
    assert (decision.nominated, [pod.name for pod in decision.victims]) == ("n2", ["victim"])


@pytest.mark.parametrize(
    ("on_node_deleted", "chosen", "message"),
    [
        pytest.param("Forget", "n1", "", id="forget"),
        pytest.param(
            "Wait",
            None,
            "0/2 nodes are available: node n2, where the pod ran before, no longer exists.",
            id="wait",
        ),
    ],
)
async def test_a_node_that_is_gone(on_node_deleted, chosen, message):
    world = await world_with_history(*three_nodes(), mode="Required", onNodeDeleted=on_node_deleted)
    world.delete_node("n2")
    decision = world.decide("job-0")
    assert (decision.chosen, decision.message.partition(" no new claims")[0]) == (chosen, message)


async def test_grace_expires_and_the_pod_is_tried_again_then():
    world = await world_with_history(
        *three_nodes(allocatable=SMALL), spec=CPU, mode="RequiredThenPreferred", graceSeconds=60
    )
    world.cluster.apply(make_pod("other", node="n2", requests={"cpu": "1"}))
    world.now += 59
    assert world.decide("job-0").chosen is None
    world.now += 1
    running = asyncio.create_task(world.plugin.run())
    await asyncio.sleep(1.1)
    running.cancel()
    assert world.activated == ["job-0"]
    assert (await world.schedule("job-0")).chosen == "n1"


@pytest.mark.parametrize(
    ("job", "args", "ties"),
    [
        pytest.param({}, {}, False, id="another node by the same name"),
        pytest.param({"trustNodeName": True}, {}, True, id="the job trusts names"),
        pytest.param({}, {"trustNodeName": True}, True, id="the profile trusts names"),
    ],
)
async def test_a_node_that_came_back_with_a_new_uid(job, args, ties):
    world = await world_with_history(*three_nodes(), args=args, mode="Required", **job)
    world.delete_node("n2")
    world.change_node(node_with_uid("n2", uid="another"))
    decision = world.decide("job-0")
    assert (decision.narrowed_by == ("Sticky",)) is ties
    assert (decision.chosen == "n2") is ties


async def two_slots_on_one_node(cpu_each):
    """Slot 1 was bound to the node ten seconds after slot 0; both are pending again."""
    spec = {
        "template": {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu_each}}}]}}
    }
    roomy, small = node_with_uid("n1"), node_with_uid("n1", allocatable=SMALL)
    world = World(roomy)
    world.add_job(spec={**spec, "replicas": 2}, mode="Required")
    await world.reconcile()
    await world.schedule("job-0")
    world.now += 10
    await world.schedule("job-1")
    await world.reconcile()
    for name in ("job-0", "job-1"):
        world.delete_pod(name)
    await world.reconcile()
    world.change_node(small)
    world.change_node(node_with_uid("n2"))
    for name in ("job-0", "job-1"):
        assert world.plugin.pre_enqueue(world.pod(name)) is None
    return world


async def test_of_two_slots_for_whom_a_node_is_too_small_the_newer_one_gets_it():
    world = await two_slots_on_one_node("1")
    decision = await world.schedule("job-0")
    assert (decision.narrowed_by, decision.chosen, scores(decision)["n1"]) == ((), "n2", 0)
    decision = await world.schedule("job-1")
    assert (decision.narrowed_by, decision.chosen) == (("Sticky",), "n1")


async def test_two_slots_that_both_fit_both_go_back():
    world = await two_slots_on_one_node("500m")
    for name in ("job-0", "job-1"):
        assert (await world.schedule(name)).narrowed_by == ("Sticky",)
        assert world.where(name) == "n1"


@pytest.mark.parametrize(
    ("is_terminating", "narrowed"), [(False, ()), (True, ("Sticky",))], ids=["surge", "on its way out"]
)
async def test_a_pod_whose_forerunner_still_runs_is_not_tied(is_terminating, narrowed):
    world = World(*three_nodes())
    annotations = {KEY: "cache", MODE: "Required"}
    world.add_pod("old", annotations=annotations)
    await world.schedule("old")
    if is_terminating:
        world.pods["old"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        world.show_pod(world.pods["old"])
    world.add_pod("new", annotations=annotations)
    decision = await world.schedule("new")
    assert decision.narrowed_by == narrowed
    (record,) = world.records_kept
    assert record.spec.pod_uid == world.pod("new").uid


# Scores


async def test_scores_of_the_last_node_those_before_it_and_its_zone():
    nodes = [node_with_uid(f"n{n}", labels={ZONE: "a" if n < 4 else "b"}) for n in (1, 2, 3, 4, 5)]
    world = World(*nodes)
    world.add_job(
        status={
            "slots": [
                {
                    "index": 0,
                    "lastNode": "n1",
                    "history": [{"node": "n1"}, {"node": "n4"}, {"node": "n1"}, {"node": "n2"}],
                }
            ]
        }
    )
    await world.reconcile()
    assert scores(world.decide("job-0")) == {"n1": 100, "n4": 50, "n2": 25, "n3": 10, "n5": 0}


async def test_scores_fade_from_the_end_of_the_last_pod_on():
    world = await world_with_history(*three_nodes(), halfLifeSeconds=100, weight=80)
    assert scores(world.decide("job-0"))["n2"] == 80
    world.now += 200
    assert scores(world.decide("job-0"))["n2"] == 20


async def test_what_is_long_past_is_forgotten():
    world = await world_with_history(*three_nodes(), mode="Required", forgetAfterSeconds=60)
    world.now += 61
    assert world.decide("job-0").narrowed_by == ()


async def test_a_history_node_that_was_replaced_scores_nothing():
    world = await world_with_history(*three_nodes())
    world.delete_node("n2")
    world.change_node(node_with_uid("n2", uid="another"))
    assert scores(world.decide("job-0")) == {"n1": 0, "n2": 0, "n3": 0}


# Wider scopes


def racks():
    return [node_with_uid(f"n{n}", labels={"rack": "r1" if n < 3 else "r2"}) for n in (1, 2, 3, 4)]


async def test_sticky_to_a_rack_refuses_other_racks_for_good():
    world = await world_with_history(*racks(), mode="Required", scope="rack")
    decision = world.decide("job-0")
    assert {name: status.message for name, status in decision.rejected().items()} == dict.fromkeys(
        ("n3", "n4"), "node(s) outside rack r1, where the pod ran before"
    )
    assert {status.code.wire_name for status in decision.rejected().values()} == {
        "UnschedulableAndUnresolvable"
    }
    assert scores(decision) == {"n1": 100, "n2": 100}


async def test_a_rack_outlives_its_node():
    world = await world_with_history(*racks(), mode="Required", scope="rack", onNodeDeleted="Wait")
    world.delete_node("n2")
    assert world.decide("job-0").chosen == "n1"
    world.delete_node("n1")
    assert "rack r1, where the pod ran before, no longer exists" in world.decide("job-0").message


async def test_preferred_rack_scores_all_of_it():
    world = await world_with_history(*racks(), scope="rack")
    assert scores(world.decide("job-0")) == {"n1": 100, "n2": 100, "n3": 0, "n4": 0}


# Waiting


@pytest.mark.parametrize(
    ("node", "stickiness", "is_held"),
    [
        pytest.param({"unschedulable": True}, {"onNodeDeleted": "Wait"}, True, id="cordoned"),
        pytest.param({"ready": "False"}, {"onNodeDeleted": "Wait"}, True, id="not ready"),
        pytest.param({"ready": "Unknown"}, {"onNodeDeleted": "Wait"}, True, id="silent"),
        pytest.param({}, {"onNodeDeleted": "Wait"}, False, id="as it should be"),
        pytest.param({"unschedulable": True}, {}, False, id="forget: the cycle says why"),
        pytest.param(
            {"unschedulable": True}, {"onNodeDeleted": "Wait", "mode": "Preferred"}, False, id="preferred"
        ),
    ],
)
async def test_a_pod_whose_only_node_takes_none_is_held_back(node, stickiness, is_held):
    world = await world_with_history(*three_nodes(), **{"mode": "Required", **stickiness})
    world.change_node(node_with_uid("n2", **node))
    status = world.plugin.pre_enqueue(world.pod("job-0"))
    assert (status is not None) is is_held
    text = "waiting for node n2, where the pod ran before: it is unavailable"
    assert (("job-0", "StickyNodeUnavailable", text) in world.events) is is_held


HINTS = {
    "its node came": (None, node_with_uid("n2"), Hint.QUEUE),
    "another node came": (None, node_with_uid("n9"), Hint.SKIP),
    "its node was uncordoned": (node_with_uid("n2", unschedulable=True), node_with_uid("n2"), Hint.QUEUE),
    "another was uncordoned": (node_with_uid("n1", unschedulable=True), node_with_uid("n1"), Hint.SKIP),
    "its node is ready": (node_with_uid("n2", ready="False"), node_with_uid("n2"), Hint.QUEUE),
    "its node grew": (node_with_uid("n2", allocatable=SMALL), node_with_uid("n2"), Hint.QUEUE),
    "its node is gone": (node_with_uid("n2"), None, Hint.QUEUE),
    "a pod left its node": (make_pod("x", node="n2"), None, Hint.QUEUE),
    "a pod left another node": (make_pod("x", node="n1"), None, Hint.SKIP),
}


@pytest.mark.parametrize(("old", "new", "hint"), HINTS.values(), ids=HINTS.keys())
async def test_hints_are_about_the_recorded_node_alone(old, new, hint):
    world = await world_with_history(*three_nodes(), mode="Required")
    wanted = world.plugin.events_to_register()
    told = [each for each in object_changes(old, new) if any(event.covers(each.event) for event in wanted)]
    assert told
    for event, before, after in told:
        assert world.plugin.queueing_hint(world.pod("job-0"), event, before, after) is hint


async def test_hints_of_the_job_are_about_its_wishes_and_its_slot():
    world = await world_with_history(*three_nodes(), mode="Required")
    event, pod, job = (
        ClusterEvent("stickyjobs.v1.example.com", Action.UPDATE),
        world.pod("job-0"),
        world.job(),
    )
    assert world.plugin.queueing_hint(pod, event, job, job) is Hint.SKIP
    world.add_job("other")
    assert world.plugin.queueing_hint(pod, event, None, world.job("other")) is Hint.SKIP
    world.add_job(mode="Preferred")
    assert world.plugin.queueing_hint(pod, event, job, world.job()) is Hint.QUEUE


async def test_news_of_the_pod_itself_is_always_worth_a_try():
    world = await world_with_history(*three_nodes(), mode="Required")
    event = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE)
    assert world.plugin.queueing_hint(world.pod("job-0"), event, None, world.pod("job-0")) is Hint.QUEUE


# Memory


async def test_the_place_is_known_before_any_watch_shows_it():
    world = World(*three_nodes())
    world.add_pod(
        "a", annotations={KEY: "cache", MODE: "Required"}, nodeSelector={"kubernetes.io/hostname": "n3"}
    )
    world.refuse["apply"] = Unreachable("down")
    with pytest.raises(Unreachable):
        await world.schedule("a")
    world.cluster.remove_pod(world.pod("a"))
    world.delete_pod("a")
    world.add_pod("b", annotations={KEY: "cache", MODE: "Required"})
    assert world.decide("b").chosen == "n3"


async def test_a_reservation_taken_back_is_forgotten():
    world = World(*three_nodes())
    world.add_pod("a", annotations={KEY: "cache", MODE: "Required"})
    decision = world.decide("a")
    world.plugin.reserve(decision.state, world.pod("a"), "n3")
    assert world.decide("a").narrowed_by == ("Sticky",)
    world.plugin.unreserve(decision.state, world.pod("a"), "n3")
    assert world.decide("a").narrowed_by == ()


async def test_placements_are_counted():
    world = await world_with_history(*three_nodes())
    await world.schedule("job-0")
    counter = world.handle.counter(
        "stowplan_sticky_placements_total",
        "Number of sticky pods bound, by whether they returned to their old place.",
        "result",
    )
    assert (counter["first",], counter["returned",]) == (1, 1)


async def test_a_manifest_with_nothing_but_a_last_node_is_slot_0():
    world = World(*three_nodes())
    world.add_job(status={"lastNode": "n3"})
    await world.reconcile()
    assert world.decide("job-0").chosen == "n3"


# By annotation


def sticky_pod(world, name, key="cache", **annotations):
    world.add_pod(name, annotations={KEY: key, **annotations})


async def test_pods_stick_by_annotation():
    world = World(*three_nodes())
    world.add_pod("a", annotations={KEY: "cache"}, nodeSelector={"kubernetes.io/hostname": "n3"})
    await world.schedule("a")
    record = world.record(record_name("cache"))
    assert (record.spec.key, record.spec.last_node, record.spec.last_node_uid) == ("cache", "n3", "uid-of-n3")
    world.delete_pod("a")
    sticky_pod(world, "b")
    assert (await world.schedule("b")).chosen == "n3"


async def test_the_namespace_is_part_of_the_key():
    world = World(*three_nodes())
    world.add_pod("a", annotations={KEY: "cache"}, nodeSelector={"kubernetes.io/hostname": "n3"})
    await world.schedule("a")
    world.add_pod("here", annotations={KEY: "cache"})
    assert world.decide("here").chosen == "n3"
    world.add_pod("there", annotations={KEY: "cache"})
    world.pods["there"]["metadata"]["namespace"] = "elsewhere"
    assert world.decide("there").chosen == "n1"


@pytest.mark.parametrize(
    ("annotations", "narrowed", "told"),
    [
        pytest.param({MODE: "Required"}, True, False, id="required"),
        pytest.param({MODE: "required"}, False, True, id="no such mode"),
        pytest.param({MODE: "RequiredThenPreferred", GRACE: "30"}, True, False, id="grace"),
        pytest.param({MODE: "RequiredThenPreferred", GRACE: "-1s"}, False, True, id="no grace to understand"),
        pytest.param({MODE: "RequiredThenPreferred", GRACE: "9" * 5000}, False, True, id="a huge grace"),
        pytest.param({MODE: "Required", SCOPE: "no-such-label"}, True, False, id="a scope no node has"),
    ],
)
async def test_what_annotations_say_never_fails(annotations, narrowed, told):
    world = World(*three_nodes())
    sticky_pod(world, "a", **annotations)
    await world.schedule("a")
    world.delete_pod("a")
    sticky_pod(world, "b", **annotations)
    assert (world.decide("b").narrowed_by == ("Sticky",)) is narrowed
    assert ("StickyAnnotationInvalid" in world.reasons("b")) is told


OWNERS = {
    "StatefulSet": ({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s"}, {}),
    "Job": (
        {"apiVersion": "batch/v1", "kind": "Job", "name": "db", "uid": "s"},
        {"batch.kubernetes.io/job-completion-index": "1"},
    ),
}


def holder_of(kind, **metadata):
    struct = {"StatefulSet": StatefulSet, "Job": BatchJob}[kind]
    return struct(metadata=Namespace().metadata.__class__(name="db", namespace="default", **metadata))


@pytest.mark.parametrize("kind", OWNERS)
@pytest.mark.parametrize(
    ("owner_says", "namespace_says", "sticks"),
    [
        pytest.param({"annotations": {ENABLED: "true"}}, {}, True, id="the owner's annotation"),
        pytest.param({"labels": {ENABLED: "true"}}, {}, True, id="the owner's label"),
        pytest.param({}, {"labels": {ENABLED: "true"}}, True, id="the namespace"),
        pytest.param({"annotations": {ENABLED: "yes"}}, {}, False, id="nobody"),
    ],
)
async def test_numbered_pods_stick_where_it_is_enabled(kind, owner_says, namespace_says, sticks):
    world, (owner, labels) = World(*three_nodes()), OWNERS[kind]
    meta = Namespace().metadata.__class__
    world.cluster.apply(holder_of(kind, **owner_says))
    world.cluster.apply(Namespace(metadata=meta(name="default", **namespace_says)))
    world.add_pod("db-1", owner=owner, labels=labels)
    await world.schedule("db-1")
    assert [record.spec.key for record in world.records_kept] == ([f"{kind}/db/1"] if sticks else [])
    if sticks:
        (reference,) = world.records_kept[0].metadata.owner_references
        assert (reference.uid, reference.controller) == ("s", None)


async def test_required_waits_for_the_records_to_be_served():
    world = World(*three_nodes())
    world.cluster.watched(StickyRecord).is_served = False
    sticky_pod(world, "a", **{MODE: "Required"})
    assert "stickyrecords.example.com is not installed" in world.decide("a").message
    sticky_pod(world, "b")
    assert (await world.schedule("b")).chosen is not None
    assert world.records_kept == []


@pytest.mark.parametrize(
    ("store", "job", "record"),
    [("StickyJob", True, False), ("StickyRecord", False, True), ("both", True, True)],
)
async def test_which_memory_is_used_is_an_argument(store, job, record):
    world = await world_with_history(*three_nodes(), mode="Required", args={"recordStore": store})
    assert (world.decide("job-0").narrowed_by == ("Sticky",)) is job
    sticky_pod(world, "a")
    await world.schedule("a")
    assert bool(world.records_kept) is record


# Arguments


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"weight": 0}, "weight: Invalid value: 0: must be between 1 and 100"),
        ({"maxNodesInHistory": 11}, "maxNodesInHistory: Invalid value: 11: must be between 1 and 10"),
        ({"forgetAfterSeconds": -1}, "forgetAfterSeconds: Invalid value: -1: must not be negative"),
        ({"halfLifeSeconds": 0}, "halfLifeSeconds: Invalid value: 0: must be at least 1"),
        ({"mode": "Hard"}, "mode"),
        ({"wight": 1}, "Sticky takes group, version, mode"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_named(args, fault):
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": "Sticky", "args": args}]}],
    }
    with pytest.raises(ConfigError, match=fault):
        load(config, REGISTRY)


def test_two_profiles_may_use_other_groups():
    one, other = World(), World(args={"group": "acme.io", "version": "v2"})
    assert [kind.definition.api_version for kind in one.plugin.watches[:2]] == ["example.com/v1"] * 2
    assert other.plugin.watches[:2] == tuple(kinds_in("acme.io", "v2"))
    assert [kind.definition.api_version for kind in other.plugin.watches[:2]] == ["acme.io/v2"] * 2


@pytest.mark.parametrize(
    ("one", "other"), [("a/b", "a-b"), ("A", "a"), ("", "-"), ("x" * 300, "x" * 301)], ids=str
)
def test_other_keys_have_other_names(one, other):
    assert record_name(one) != record_name(other)
    assert max(len(record_name(one)), len(record_name(other))) <= 253
