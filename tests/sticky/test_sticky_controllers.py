"""The controllers of sticky pods: pods made and replaced, status from the API alone, records kept true."""

from __future__ import annotations

import msgspec
import pytest

from sticky_world import TEMPLATE, World, node_with_uid
from stowplan.api.kinds import object_of
from stowplan.api.meta import Condition, decode
from stowplan.client.errors import ApiError, Conflict, Unreachable
from stowplan.config.gates import EXTENDED_RESOURCE
from stowplan.sticky.controllers import label_value
from stowplan.sticky.memory import wire_time
from stowplan.sticky.resources import (
    JobPod,
    Stickiness,
    StickyJob,
    StickyJobSpec,
    StickyJobStatus,
)

KEY = "sticky.example.com/key"
SOUND, LACKING = ("False", "AsWanted"), ("True", "InsufficientResources")


def world_of(*names, **fields):
    return World(*(node_with_uid(name, **fields) for name in names or ("n1", "n2", "n3")))


def slot(world, index=0):
    return next(each for each in world.job().status.slots if each.index == index)


async def running(world, name="job-0"):
    await world.reconcile()
    await world.schedule(name)
    await world.reconcile()


# Pods


async def test_pods_are_made_from_the_template():
    world = world_of()
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}, "finalizers": ["example.com/keep"]},
        "spec": {"containers": [{"name": "main", "image": "web", "args": ["--x"]}], "hostname": "h"},
    }
    world.add_job(spec={"template": template, "replicas": 2})
    await world.reconcile()
    assert sorted(world.pods) == ["job-0", "job-1"]
    pod = world.pods["job-1"]
    assert pod["metadata"]["labels"] == {
        "app": "web",
        "sticky.example.com/job": "job",
        "sticky.example.com/index": "1",
    }
    assert (pod["metadata"]["annotations"], list(pod["metadata"]["finalizers"])) == (
        {"a": "b"},
        ["example.com/keep"],
    )
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "example.com/v1",
        "kind": "StickyJob",
        "name": "job",
        "uid": "uid-of-job",
        "controller": True,
    }
    assert pod["spec"] == {
        **template["spec"],
        "schedulerName": "sticky-scheduler",
        "restartPolicy": "Never",
    }


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        pytest.param({"schedulerName": "other"}, "schedulerName", "other", id="the template's scheduler"),
        pytest.param(
            {"restartPolicy": "OnFailure"}, "restartPolicy", "OnFailure", id="the template's policy"
        ),
    ],
)
async def test_what_the_template_says_stays(spec, field, value):
    world = world_of()
    world.add_job(spec={"template": {"spec": {**TEMPLATE["spec"], **spec}}})
    await world.reconcile()
    assert world.pods["job-0"]["spec"][field] == value


async def test_a_deleted_pod_is_replaced_and_comes_back():
    world = world_of()
    world.add_job()
    where = await world.come_and_go("job-0")
    await world.schedule("job-0")
    await world.reconcile()
    assert world.where("job-0") == where
    assert world.condition("Sticky") == ("True", "Returned")
    assert "Returned" in world.reasons()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_ends_because_it_is_deleted_has_not_done_its_work(phase):
    world = world_of()
    world.add_job(backoffLimit=0)
    await running(world)
    world.end_pod("job-0", phase, told_to=True)
    await world.reconcile()
    world.delete_pod("job-0")
    await running(world)
    assert world.pods["job-0"]["status"]["phase"] == "Running"
    assert slot(world).outcome == "Deleted"


async def test_a_failed_pod_is_replaced_after_a_backoff_that_grows():
    world = world_of()
    world.add_job()
    for wait in (10, 20, 40):
        await running(world)
        world.end_pod("job-0", "Failed")
        await world.reconcile()
        assert world.pods["job-0"]["status"]["phase"] == "Failed"
        world.now += wait - 1
        await world.reconcile()
        assert world.pods["job-0"]["status"]["phase"] == "Failed"
        world.now += 1
        await world.reconcile()
        assert world.pods["job-0"]["status"]["phase"] == "Pending"
    assert world.job().status.failed == 3


async def test_backoff_never_exceeds_five_minutes():
    world = world_of()
    world.add_job(
        spec={"backoffLimit": 100},
        status={
            "slots": [
                {"index": 0, "outcome": "Failed", "failures": 90, "endedAt": wire_time(world.now - 299)}
            ]
        },
    )
    await world.reconcile()
    assert world.pods == {}
    world.now += 1
    await world.reconcile()
    assert list(world.pods) == ["job-0"]


async def test_no_more_pods_beyond_the_backoff_limit():
    world = world_of()
    world.add_job(spec={"backoffLimit": 1})
    for _ in range(2):
        await running(world)
        world.end_pod("job-0", "Failed")
        await world.reconcile()
        world.now += 1000
    await world.reconcile()
    assert world.pods["job-0"]["status"]["phase"] == "Failed"
    assert world.condition("Degraded") == ("True", "BackoffLimitExceeded")


@pytest.mark.parametrize(
    ("policy", "phase"), [("Once", "Succeeded"), ("Always", "Pending")], ids=["once", "always"]
)
async def test_what_follows_success(policy, phase):
    world = world_of()
    world.add_job(spec={"runPolicy": policy})
    await running(world)
    world.end_pod("job-0", "Succeeded")
    await world.reconcile()
    assert (world.job().status.active, world.job().status.succeeded) == (0, 1)
    world.now += 1000
    await world.reconcile()
    assert world.pods["job-0"]["status"]["phase"] == phase


async def test_a_job_that_is_done_stays_so_without_its_pod():
    world = world_of()
    world.add_job()
    await running(world)
    world.end_pod("job-0", "Succeeded")
    await world.reconcile()
    world.delete_pod("job-0")
    await world.reconcile()
    assert world.pods == {}
    assert world.job().status.succeeded == 1


async def test_fewer_replicas_take_pods_away_and_remember_their_places():
    world = world_of()
    world.add_job(spec={"replicas": 2})
    await running(world, "job-0")
    await running(world, "job-1")
    world.store(
        msgspec.structs.replace(world.job(), spec=msgspec.structs.replace(world.job().spec, replicas=1))
    )
    await world.reconcile()
    assert list(world.pods) == ["job-0"]
    assert slot(world, 1).last_node


async def test_nothing_is_made_for_a_job_on_its_way_out():
    world = world_of()
    world.add_job()
    meta = msgspec.structs.replace(world.job().metadata, deletion_timestamp="2027-01-15T08:00:00Z")
    world.store(msgspec.structs.replace(world.job(), metadata=meta))
    await world.reconcile()
    assert world.pods == {}


async def test_a_pod_that_the_api_server_refuses_is_told_of():
    world = world_of()
    world.add_job()
    world.refuse["create"] = ApiError(422, "Invalid", "spec.containers[0].image: Required value")
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "FailedCreate")
    assert world.reasons() == ["FailedCreate"]  # once, however often it was tried
    world.refuse.clear()
    await world.reconcile()
    assert world.condition("Degraded") == ("False", "AsWanted")


async def test_a_pod_of_that_name_that_is_not_ours_is_left_alone():
    world = world_of()
    world.add_pod("job-0")
    world.add_job()
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "FailedCreate")
    assert (
        "ownerReferences" not in world.pods["job-0"]["metadata"]
        or not world.pods["job-0"]["metadata"]["ownerReferences"]
    )


async def test_a_pod_is_made_once_though_the_watch_is_late():
    world = world_of()
    world.add_job()
    await world.reconcile()
    world.delete_pod("job-0")
    world.is_watching = False
    await world.jobs.reconcile_all()
    await world.jobs.reconcile_all()
    assert world.reasons().count("SuccessfulCreate") == 2
    assert world.condition("Degraded") == ("False", "AsWanted")


async def test_trouble_with_one_job_does_not_stop_the_others():
    world = world_of()
    world.add_job("a")
    world.add_job("b")
    await world.reconcile()
    world.add_job("c")
    world.refuse["update_status"] = Unreachable("down")
    await world.reconcile()
    world.refuse.clear()
    await world.reconcile()
    assert "c-0" in world.pods


async def test_a_job_that_makes_no_sense_does_not_stop_the_others():
    world = world_of()
    world.add_job("a", spec={"template": {**TEMPLATE, "metadata": {"labels": "none"}}})
    world.add_job("b")
    await world.reconcile()
    assert list(world.pods) == ["b-0"]


# Status


async def test_status_tells_places_and_history():
    world = world_of("n1")
    world.add_job(historyLimit=2)
    await running(world)
    first = world.pod("job-0").uid
    world.now += 60
    world.delete_pod("job-0")
    await running(world)
    found = slot(world)
    assert (world.job().status.last_node, found.last_node, found.last_node_uid) == ("n1", "n1", "uid-of-n1")
    assert (found.pod_name, found.pod_uid) == ("job-0", world.pod("job-0").uid)
    old = found.history[1]
    assert (old.node, old.pod_uid, old.outcome) == ("n1", first, "Deleted")
    assert (old.bound_at, old.finished_at) == (wire_time(world.now - 60), wire_time(world.now))
    world.delete_pod("job-0")
    await running(world)
    assert len(slot(world).history) == 2
    assert world.job().status.observed_generation == 1


async def test_the_controller_restarted_between_bind_and_patch_loses_nothing():
    world = world_of()
    world.add_job(mode="Required")
    await world.reconcile()
    world.pods["job-0"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n3"}
    await world.schedule("job-0", crash_after_bind=True)
    assert world.job().status.last_node == ""
    world.restart_scheduler()
    world.restart_controllers()
    await world.reconcile()
    assert (world.job().status.last_node, slot(world).pod_uid) == ("n3", world.pod("job-0").uid)
    world.delete_pod("job-0")
    await world.reconcile()
    assert (await world.schedule("job-0")).chosen == "n3"


async def test_a_pod_deleted_before_the_controller_looked_was_there_all_the_same():
    world = world_of()
    world.add_job()
    await world.reconcile()
    await world.schedule("job-0")
    where = world.where("job-0")
    world.delete_pod("job-0")
    await running(world)
    assert [stay.node for stay in slot(world).history] == [where] * 2
    assert world.condition("Sticky") == ("True", "Returned")


async def test_a_pod_that_one_watch_does_not_show_yet_is_not_gone():
    world = world_of()
    world.add_job()
    await world.reconcile()
    await world.schedule("job-0")
    late = world.handle.watched(JobPod).get("default/job-0")
    world.cluster.remove(late)
    await world.jobs.reconcile_all()
    assert slot(world).outcome == ""
    world.cluster.apply(late)
    await world.reconcile()
    assert (slot(world).outcome, slot(world).ended_pod_uid) == ("", "")


async def test_the_time_of_a_bind_that_nobody_noted_is_the_pods():
    world = world_of()
    world.add_job()
    await world.reconcile()
    await world.schedule("job-0", crash_after_bind=True)
    at = wire_time(world.now - 30)
    world.pods["job-0"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    ]
    world.show_pod(world.pods["job-0"])
    await world.reconcile()
    assert slot(world).last_bind_time == at


async def test_a_failure_is_counted_once_whenever_the_controller_restarts():
    world = world_of()
    world.add_job()
    await running(world)
    world.end_pod("job-0", "Failed")
    for _ in range(3):
        world.restart_controllers()
        await world.reconcile()
    assert world.job().status.failed == 1


async def test_a_pod_is_not_replaced_before_its_end_is_written_down():
    world = world_of()
    world.add_job()
    await running(world)
    world.end_pod("job-0", "Failed")
    world.refuse["update_status"] = Conflict(409, "Conflict", "modified")
    world.now += 1000
    await world.reconcile()
    assert world.pods["job-0"]["status"]["phase"] == "Failed"


async def test_slots_of_one_node_do_not_overwrite_each_other():
    world = world_of("n1")
    world.add_job(spec={"replicas": 3})
    await world.reconcile()
    for index in range(3):
        await world.schedule(f"job-{index}")
    assert [each.last_node for each in world.job().status.slots] == ["n1"] * 3


async def test_conditions_of_others_and_times_of_unchanged_ones_stay():
    world = world_of()
    world.add_job()
    await world.reconcile()
    known = world.job().status.conditions
    other = Condition(type="Audited", status="True")
    status = msgspec.structs.replace(world.job().status, conditions=(*known, other))
    world.store(msgspec.structs.replace(world.job(), status=status))
    world.now += 100
    await running(world)
    assert other in world.job().status.conditions
    assert world.job().status.conditions[:2] == known


@pytest.mark.parametrize(
    ("on_node_deleted", "last_node", "degraded", "told"),
    [
        pytest.param("Forget", "", ("False", "AsWanted"), True, id="forget"),
        pytest.param("Wait", "n1", ("True", "NodeGone"), False, id="wait"),
    ],
)
async def test_a_node_that_is_deleted(on_node_deleted, last_node, degraded, told):
    world = world_of("n1")
    world.add_job(mode="Required", onNodeDeleted=on_node_deleted)
    await running(world)
    world.delete_node("n1")
    await world.reconcile()
    assert world.job().status.last_node == "n1"  # its pod is still bound to it
    world.delete_pod("job-0")
    await world.reconcile()
    assert (world.job().status.last_node, world.condition("Degraded")) == (last_node, degraded)
    assert ("NodeForgotten" in world.reasons()) is told


@pytest.mark.parametrize(
    "lacking", [{"cpu": "4", "pods": "0"}, {"cpu": "1500m", "pods": "110"}], ids=["pods", "cpu"]
)
async def test_degraded_says_why_a_pod_waits(lacking):
    world = world_of("n1")
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": "2"}}}
    world.add_job(spec={"template": {"spec": {"containers": [container]}}}, mode="Required")
    await world.come_and_go("job-0")
    world.change_node(node_with_uid("n1", unschedulable=True))
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "NodeUnschedulable")
    world.change_node(node_with_uid("n1"))
    world.pods["job-0"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 1 Insufficient cpu."}
    ]
    world.show_pod(world.pods["job-0"])
    await world.reconcile()
    assert world.condition("Degraded") == ("False", "AsWanted")  # the message is about another node
    world.change_node(node_with_uid("n1", allocatable=lacking))
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "InsufficientResources")


@pytest.mark.parametrize(
    ("resource", "class_of", "offered", "disabled", "degraded"),
    [
        pytest.param("example.com/gpu", "example.com/gpu", None, False, SOUND, id="a DeviceClass has it"),
        pytest.param(
            "deviceclass.resource.kubernetes.io/gpu", None, None, False, SOUND, id="by the name of the class"
        ),
        pytest.param(
            "example.com/gpu", "example.com/nic", None, False, LACKING, id="a class has another one"
        ),
        pytest.param(
            "example.com/gpu", "example.com/gpu", "1", False, LACKING, id="the node counts it itself"
        ),
        pytest.param("example.com/gpu", "example.com/gpu", None, True, LACKING, id="the feature is off"),
    ],
)
async def test_devices_of_a_class_are_not_lacking_on_nodes_that_do_not_count_them(
    resource, class_of, offered, disabled, degraded
):
    """DynamicResources allocates them; nothing of that is in what a node has allocatable."""
    world = world_of("n1")
    if disabled:
        world.handle.disabled_gates = frozenset((EXTENDED_RESOURCE,))
    spec = {"extendedResourceName": class_of} if class_of else {}
    world.cluster.apply(object_of({"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": spec}))
    container = {"name": "main", "image": "web", "resources": {"requests": {resource: "2"}}}
    world.add_job(spec={"template": {"spec": {"containers": [container]}}}, mode="Required")
    await world.reconcile()
    pod = world.pods["job-0"]
    pod["spec"]["nodeName"] = "n1"
    world.show_pod(pod)
    await world.reconcile()
    world.delete_pod("job-0")
    allocatable = {"cpu": "4", "pods": "110"} | ({resource: offered} if offered else {})
    world.change_node(node_with_uid("n1", allocatable=allocatable))
    await world.reconcile()
    world.pods["job-0"]["status"] = {
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: ..."}]
    }
    world.show_pod(world.pods["job-0"])
    await world.reconcile()
    assert world.condition("Degraded") == degraded


async def test_a_pod_that_cannot_be_read_does_not_stop_its_job():
    world = world_of("n1")
    world.add_job(spec={"replicas": 2}, mode="Required")
    await world.come_and_go("job-0")
    pod = world.pods["job-0"]
    seen = {**pod, "spec": {**pod["spec"], "overhead": "much"}}
    seen["status"] = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
    world.cluster.apply(decode(JobPod, seen))
    world.delete_pod("job-1")
    await world.reconcile()
    assert sorted(world.pods) == ["job-0", "job-1"]
    assert world.condition("Degraded") == ("False", "AsWanted")


async def test_degraded_says_that_grace_is_over():
    world = world_of("n1")
    world.add_job(mode="RequiredThenPreferred", graceSeconds=5)
    await world.come_and_go("job-0")
    world.change_node(node_with_uid("n2"))
    world.change_node(node_with_uid("n1", unschedulable=True))
    world.now += 6
    await running(world)
    assert world.condition("Sticky") == ("False", "Moved")
    assert world.condition("Degraded") == ("True", "GraceExpired")


async def test_back_in_the_same_rack_counts_as_returned():
    world = World(node_with_uid("n1", labels={"rack": "r1"}))
    world.add_job(scope="rack")
    await world.come_and_go("job-0")
    world.change_node(node_with_uid("n1", labels={"rack": "r1"}, unschedulable=True))
    world.change_node(node_with_uid("n2", labels={"rack": "r1"}))
    await running(world)
    assert (world.where("job-0"), world.condition("Sticky")) == ("n2", ("True", "Returned"))


# The tutorial's definition


class TutorialWorld(World):
    """Under the tutorial's definition: a status keeps its last node alone, and a template is empty.

    Once it `is_replaced`, answers are whole, but the watch goes on as it began.
    """

    is_replaced = False

    async def update_status(self, item):
        known = self.job(item.name)
        kept = item.status if self.is_replaced else StickyJobStatus(last_node=item.status.last_node)
        if kept == known.status:
            return known
        return await super().update_status(msgspec.structs.replace(item, status=kept))

    def store(self, item):
        fresh = super().store(item)
        if isinstance(fresh, StickyJob):
            self.cluster.apply(
                msgspec.structs.replace(
                    fresh, spec=StickyJobSpec(), status=StickyJobStatus(last_node=fresh.status.last_node)
                )
            )
        return fresh


async def test_a_job_without_its_template_is_told_of_once_and_gets_no_pods():
    world = TutorialWorld(node_with_uid("n1"))
    world.add_job(spec={"template": {}}, status={"lastNode": "n1"})
    for _ in range(3):
        await world.reconcile()
    assert world.pods == {}
    ((_, reason, text),) = world.events
    assert reason == "TemplateMissing"
    assert "stowplan crd Sticky | kubectl apply -f -" in text


async def test_a_template_that_only_the_watch_does_not_show_is_found():
    world = TutorialWorld(node_with_uid("n1"))
    world.add_job(spec={"template": {}})
    await world.reconcile()
    world.is_replaced = True
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "TemplateMissing")
    world.add_job()
    await world.reconcile()
    assert list(world.pods) == ["job-0"]
    assert world.condition("Degraded") == ("False", "AsWanted")


async def test_a_job_without_its_template_says_so_where_it_can():
    world = world_of()
    world.add_job(spec={"template": {}})
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "TemplateMissing")


# Records


async def sticky_pod(world, name="a", **fields):
    world.add_pod(name, annotations={KEY: "cache"})
    await world.schedule(name, **fields)


async def test_a_record_that_was_never_written_is_made_up_for():
    world = world_of()
    await sticky_pod(world, crash_after_bind=True)
    assert world.records_kept == []
    world.restart_scheduler()
    await world.records.reconcile_all()
    (record,) = world.records_kept
    assert (record.spec.last_node, record.spec.pod_uid) == (world.where("a"), world.pod("a").uid)
    before = world.version
    await world.records.reconcile_all()
    assert world.version == before  # nothing more to write


async def test_a_pod_that_is_only_assumed_is_not_recorded():
    world = world_of()
    world.add_pod("a", annotations={KEY: "cache"})
    world.cluster.assume_pod(world.pod("a"), "n1")
    await world.records.reconcile_all()
    assert world.records_kept == []


async def test_the_end_of_a_pod_is_noted_and_old_records_go():
    world = World(node_with_uid("n1"), args={"forgetAfterSeconds": 60})
    await sticky_pod(world)
    world.delete_pod("a")
    await world.records.reconcile_all()
    (record,) = world.records_kept
    assert (record.spec.finished_at, record.spec.history[0].outcome) == (wire_time(world.now), "Deleted")
    world.now += 60
    await world.records.reconcile_all()
    assert len(world.records_kept) == 1
    world.now += 1
    await world.records.reconcile_all()
    assert world.records_kept == []


async def test_many_pods_with_one_key_do_not_fight_over_its_record():
    world = world_of()
    for name in "abcde":
        await sticky_pod(world, name)
    before = world.version
    for _ in range(3):
        await world.records.reconcile_all()
    assert world.version == before


def test_long_names_become_labels_that_differ():
    assert label_value("short") == "short"
    one, other = label_value("x" * 100), label_value("x" * 101)
    assert len(one) == len(other) == 63
    assert one != other


def test_defaults_are_those_of_the_design():
    assert msgspec.structs.asdict(Stickiness()) == {
        "mode": "Preferred",
        "grace_seconds": 0,
        "scope": "Node",
        "history_limit": 3,
        "forget_after_seconds": None,
        "on_node_deleted": "Forget",
        "weight": 100,
        "half_life_seconds": None,
        "trust_node_name": False,
    }
