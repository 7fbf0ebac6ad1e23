"""Each metric family, driven off zero by a running scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler_staging import Stage, node, pod, staged
from stowplan import Plugin, Status
from stowplan.api.kinds import object_of
from stowplan.client.errors import Conflict, Forbidden
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.scheduler.scheduler import Scheduler, Settings

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PROFILE = {"profile": "default-scheduler"}
WAITED = {"driver": "gpu.example.com", "status": "success", **PROFILE}


class Holding(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60.0)

    async def post_bind(self, state, pod, node_name):
        state.write(self)


class Undecided(Plugin):
    def filter(self, state, pod, node):
        raise RuntimeError("broken")


def value(stage: Stage, family: str, **labels: str) -> float:
    """What a counter or gauge says, or how often a histogram was told; of all series with such labels."""
    page = stage.scheduler.metrics.render().decode()
    return sum(
        sample.value
        for found in text_string_to_metric_families(page)
        for sample in found.samples
        if sample.name in (f"scheduler_{family}", f"scheduler_{family}_count")
        and labels.items() <= sample.labels.items()
    )


async def bound(stage: Stage) -> None:
    stage.see(node("n1"), node("n2"), pod("p"))
    await stage.settle()


async def bound_on_the_only_node(stage: Stage) -> None:
    stage.see(node("n1"), pod("p"))
    await stage.settle()


async def refused(stage: Stage) -> None:
    stage.see(node("n1", cpu="1"), node("n2", cpu="1"), pod("p", cpu="2"))
    await stage.settle()


async def refused_and_told_of_more_room(stage: Stage) -> None:
    await refused(stage)
    stage.change(node("n1", cpu="1"), node("n1", cpu="4"))
    await stage.settle()


async def in_vain(stage: Stage) -> None:
    stage.api.refuse["bind"] = Forbidden(403, "Forbidden", "no")
    await bound(stage)


async def under_way(stage: Stage) -> None:
    stage.api.hold.clear()
    await bound(stage)


async def preempting(stage: Stage) -> None:
    stage.see(node("n1"), pod("low", on="n1", cpu="4"), pod("high", cpu="2", priority=10))
    await stage.settle()


async def preempting_in_vain(stage: Stage) -> None:
    stage.api.refuse["delete"] = Conflict(403, "Forbidden", "admission says no")
    await preempting(stage)


async def gated(stage: Stage) -> None:
    stage.see(pod("p", schedulingGates=[{"name": "example.com/wait"}]))
    await stage.settle()


async def allowed(stage: Stage) -> None:
    await bound(stage)
    (waiting,) = stage.scheduler.waiting
    waiting.allow("Holding")
    await stage.settle()


async def flushed(stage: Stage) -> None:
    """Room comes unseen by any hint, and the flush of pods that waited too long finds it."""
    await refused(stage)
    (queued,) = stage.scheduler.queue
    queued.timestamp -= 1_000_000
    stage.scheduler.cluster.apply(object_of(node("n1", cpu="4")))
    stage.scheduler.queue.flush_unschedulable()
    await stage.settle()


async def without_its_volume(stage: Stage) -> None:
    """The volume that a claim was to have cannot be written."""

    async def refuse(item: object) -> None:
        raise Conflict(409, "Conflict", "the volume has changed")

    stage.api.update = refuse  # type: ignore[attr-defined]
    late = {"kind": "StorageClass", "metadata": {"name": "late"}, "provisioner": "example.com/disk"}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    stage.see(
        {**late, "volumeBindingMode": "WaitForFirstConsumer"},
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {**claim, "resources": {"requests": {"storage": "1Gi"}}},
        },
        node("n1"),
        pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
    )
    await stage.settle()


async def with_a_device(stage: Stage) -> None:
    """The device of an allocated claim has met its condition."""
    name = {"driver": "gpu.example.com", "pool": "n1", "device": "d0"}
    allocated = {
        "request": "one",
        **name,
        "bindingConditions": ["Attached"],
        "bindingFailureConditions": ["Lost"],
    }
    attached = {**name, "conditions": [{"type": "Attached", "status": "True"}]}
    stage.see(
        {
            "kind": "ResourceClaim",
            "metadata": {"name": "gpu", "namespace": "default", "uid": "uid-gpu"},
            "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {
                "allocation": {"devices": {"results": [allocated]}},
                "devices": [attached],
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
            },
        },
        node("n1"),
        pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]),
    )
    await stage.settle()


async def counted(stage: Stage) -> None:
    """Some numbers are looked up every second."""
    await refused(stage)
    stage.scheduler.tick()


def point(name: str, status: str = "Success") -> dict[str, str]:
    return {"extension_point": name, "status": status}


def asked(name: str, plugin: str) -> dict[str, str]:
    return {"extension_point": name, "plugin": plugin}


ROWS = [
    (bound, "schedule_attempts_total", {"result": "scheduled", **PROFILE}, 1),
    (refused, "schedule_attempts_total", {"result": "unschedulable", **PROFILE}, 1),
    (in_vain, "schedule_attempts_total", {"result": "error", **PROFILE}, 1),
    (bound, "scheduling_attempt_duration_seconds", {"result": "scheduled"}, 1),
    (bound, "scheduling_algorithm_duration_seconds", {}, 1),
    (bound, "pod_scheduling_attempts", {}, 1),
    (bound, "pod_scheduling_sli_duration_seconds", {"attempts": "1"}, 1),
    (flushed, "pod_scheduled_after_flush_total", {}, 1),
    (under_way, "goroutines", {"operation": "binding"}, 1),
    (under_way, "inflight_events", {"event": "PodPopped"}, 0),
    (bound, "framework_extension_point_duration_seconds", point("PreFilter"), 1),
    (bound, "framework_extension_point_duration_seconds", point("Filter"), 1),
    (bound, "framework_extension_point_duration_seconds", point("PreScore"), 1),
    (bound, "framework_extension_point_duration_seconds", point("Score"), 1),
    (bound, "framework_extension_point_duration_seconds", point("Reserve"), 1),
    (bound, "framework_extension_point_duration_seconds", point("Permit"), 1),
    (bound, "framework_extension_point_duration_seconds", point("PreBind"), 1),
    (bound, "framework_extension_point_duration_seconds", point("PreBindPreFlight") | {"status": "Skip"}, 1),
    (bound, "plugin_execution_duration_seconds", {"extension_point": "Bind", "plugin": "DefaultBinder"}, 1),
    (
        bound,
        "plugin_execution_duration_seconds",
        {"extension_point": "Reserve", "plugin": "VolumeBinding"},
        1,
    ),
    (bound, "framework_extension_point_duration_seconds", point("Bind"), 1),
    (bound, "framework_extension_point_duration_seconds", point("PostBind"), 1),
    (gated, "framework_extension_point_duration_seconds", point("PreEnqueue"), 1),
    (in_vain, "framework_extension_point_duration_seconds", point("Bind", "Error"), 1),
    (in_vain, "framework_extension_point_duration_seconds", point("Unreserve"), 1),
    (refused, "framework_extension_point_duration_seconds", point("PostFilter", "Unschedulable"), 1),
    (preempting, "framework_extension_point_duration_seconds", point("PostFilter"), 1),
    (bound_on_the_only_node, "framework_extension_point_duration_seconds", point("Score"), 0),
    (bound, "plugin_execution_duration_seconds", asked("Filter", "NodeResourcesFit"), 1),
    (refused, "plugin_execution_duration_seconds", asked("Filter", "NodeResourcesFit"), 1),
    (bound, "plugin_execution_duration_seconds", asked("Filter", "VolumeBinding"), 0),
    (bound, "framework_extension_point_duration_seconds", point("Sign"), 1),
    (bound, "plugin_execution_duration_seconds", asked("ScoreExtensionNormalize", "NodeAffinity"), 0),
    (bound, "plugin_execution_duration_seconds", asked("ScoreExtensionNormalize", "TaintToleration"), 1),
    (bound, "plugin_execution_duration_seconds", asked("ScoreExtensionNormalize", "ImageLocality"), 0),
    (with_a_device, "dra_bindingconditions_allocations_total", WAITED, 1),
    (with_a_device, "dra_bindingconditions_wait_duration_seconds", WAITED, 1),
    (bound, "dra_bindingconditions_allocations_total", PROFILE, 0),
    (without_its_volume, "volume_scheduling_stage_error_total", {"operation": "bind"}, 1),
    (without_its_volume, "framework_extension_point_duration_seconds", point("PreBind", "Error"), 1),
    # Numbers as kube-scheduler counts them: filters and scores once a node, what was skipped not at all.
    (bound, "plugin_evaluation_total", asked("PreFilter", "NodeResourcesFit"), 1),
    (bound, "plugin_evaluation_total", asked("PreFilter", "NodePorts"), 0),
    (bound, "plugin_evaluation_total", asked("Filter", "TaintToleration"), 2),
    (refused, "plugin_evaluation_total", asked("Filter", "NodeResourcesFit"), 2),
    (bound, "plugin_evaluation_total", asked("PreScore", "TaintToleration"), 1),
    (bound, "plugin_evaluation_total", asked("Score", "ImageLocality"), 2),
    (bound, "batch_attempts_total", {"result": "no_hint", **PROFILE}, 1),
    (bound, "batch_cache_flushed_total", {"reason": "pod_not_batchable", **PROFILE}, 1),
    (bound_on_the_only_node, "batch_cache_flushed_total", {"reason": "empty_list"}, 1),
    (bound, "get_node_hint_duration_seconds", {"hinted": "no_hint"}, 1),
    (bound, "store_schedule_results_duration_seconds", PROFILE, 1),
    (bound, "event_handling_duration_seconds", {"event": "NodeAdd"}, 2),
    (bound, "event_handling_duration_seconds", {"event": "UnschedulablePodAdd"}, 1),
    (preempting, "event_handling_duration_seconds", {"event": "AssignedPodAdd"}, 1),
    (refused_and_told_of_more_room, "event_handling_duration_seconds", {"event": "NodeUpdate"}, 1),
    (
        refused_and_told_of_more_room,
        "queueing_hint_execution_duration_seconds",
        {"event": "NodeUpdateNodeAllocatable", "hint": "Queue", "plugin": "NodeResourcesFit"},
        1,
    ),
    (bound, "queue_incoming_pods_total", {"event": "UnschedulablePodAdd", "queue": "active"}, 1),
    (refused, "queue_incoming_pods_total", {"event": "ScheduleAttemptFailure", "queue": "unschedulable"}, 1),
    (refused, "unschedulable_pods", {"plugin": "NodeResourcesFit", **PROFILE}, 1),
    (counted, "pending_pods", {"queue": "unschedulable"}, 1),
    (counted, "cache_size", {"type": "nodes"}, 2),
    (refused, "preemption_attempts_total", {}, 1),
    (preempting, "preemption_attempts_total", {}, 1),
    (preempting, "preemption_victims", {}, 1),
    (preempting, "preemption_goroutines_execution_total", {"result": "success"}, 1),
    (preempting, "preemption_goroutines_duration_seconds", {"result": "success"}, 1),
    # A fault of kube-scheduler's that is not copied: it counts refused evictions as a success.
    (preempting_in_vain, "preemption_goroutines_execution_total", {"result": "error"}, 1),
]


@pytest.mark.parametrize(
    ("scenario", "family", "labels", "number"),
    [
        pytest.param(*row, id=f"{row[1]} {' '.join(row[2].values())} {row[0].__name__}".replace("  ", " "))
        for row in ROWS
    ],
)
async def test_a_run_is_counted(
    scenario: Callable[[Stage], Awaitable[None]], family: str, labels: dict[str, str], number: float
):
    async with staged() as stage:
        assert value(stage, family, **labels) == 0
        await scenario(stage)
        assert value(stage, family, **labels) == number


def with_plugin(plugin: type) -> dict:
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": plugin.__name__}]}}}]}
    return {"config": config, "plugins": {plugin.__name__: plugin}}


async def test_a_permit_is_waited_for():
    async with staged(**with_plugin(Holding)) as stage:
        await allowed(stage)
        assert value(stage, "permit_wait_duration_seconds", result="Success") == 1
        permit = {"extension_point": "Permit", "status": "Wait"}
        assert value(stage, "framework_extension_point_duration_seconds", **permit) == 1


async def test_a_filter_that_raises_is_an_error_of_its_point():
    async with staged(**with_plugin(Undecided)) as stage:
        await bound(stage)
        failed = {"extension_point": "Filter", "status": "Error"}
        assert value(stage, "framework_extension_point_duration_seconds", **failed) == 1


async def test_one_decision_in_ten_is_measured_plugin_by_plugin():
    async with staged() as stage:
        stage.see(node("n1", cpu="40", pods="40"), node("n2", cpu="40", pods="40"))
        stage.see(*(pod(f"p{number}") for number in range(20)))
        await stage.settle()
        labels = {"extension_point": "Filter", "plugin": "TaintToleration"}
        assert value(stage, "plugin_execution_duration_seconds", **labels) == 2
        assert value(stage, "plugin_evaluation_total", **labels) == 40


async def test_equal_pods_that_fit_nowhere_are_decided_once_and_each_counted():
    async with staged() as stage:
        stage.see(node("n1"), pod("p0", cpu="9"))
        await stage.settle()
        decided = value(stage, "plugin_evaluation_total", **asked("Filter", "NodeResourcesFit"))
        stage.see(*(pod(f"p{number}", cpu="9") for number in range(1, 5)))
        await stage.settle()
        assert value(stage, "plugin_evaluation_total", **asked("Filter", "NodeResourcesFit")) == decided
        assert value(stage, "schedule_attempts_total", result="unschedulable") == 5
        assert value(stage, "preemption_attempts_total") == 5
        assert len(stage.notes("FailedScheduling")) == 5
        stage.see(node("n2", cpu="20"))  # from now on, nothing of that holds
        await stage.settle()
        assert set(stage.api.bound.values()) == {"n2"}


async def test_counts_outlive_the_configuration_they_were_made_under():
    async with staged() as stage:
        await bound(stage)
        config = load(V1, Registry.installed()).config
        Scheduler(config, stage.api, stage.api, Settings(metrics=stage.scheduler.metrics))
        assert value(stage, "plugin_evaluation_total", **asked("Filter", "TaintToleration")) == 2
