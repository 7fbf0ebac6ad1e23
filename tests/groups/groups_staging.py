"""A scheduler with pod groups on a stage: what it is told, and what became of the members."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from scheduler_staging import Stage, pod

GANG = ("GenericWorkload", "GangScheduling")
TOPOLOGY = (*GANG, "TopologyAwareWorkloadScheduling")
WHOLE = (*GANG, "WorkloadAwarePreemption")
Json = dict[str, Any]
WAIT = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)
UNSCHEDULABLE = "pod group is unschedulable"
TOO_FEW = "waiting for minCount pods from a gang to appear in scheduling queue"


def pod_group(
    name: str = "g", *, least: int | None = None, condition: bool | None = None, **spec: Any
) -> Json:
    """A PodGroup of 1.36; without a minimum it is a basic one."""
    policy: Json = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    conditions = []
    if condition is not None:
        conditions = [{"type": "PodGroupScheduled", "status": str(condition), "reason": "Scheduled"}]
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"schedulingPolicy": policy, **spec},
        "status": {"conditions": conditions},
    }


def member(name: str, group: str = "g", **spec: Any) -> Json:
    return pod(name, schedulingGroup={"podGroupName": group}, **spec)


def members(count: int, group: str = "g", **spec: Any) -> list[Json]:
    return [member(f"{group}{number}", group, **spec) for number in range(count)]


def last_text(stage: Stage, name: str) -> str:
    """The message of the pod's condition, as last written; empty if none was."""
    found = stage.api.conditions(f"default/{name}")
    return found[-1]["message"] if found else ""


def group_condition(stage: Stage, name: str = "g") -> tuple[str, str, str] | None:
    """Status, reason and message of the group's condition, as last written."""
    found = [
        body["status"]["conditions"][0]
        for path, body in stage.api.group_patches
        if path.endswith(f"/podgroups/{name}/status")
    ]
    return (found[-1]["status"], found[-1]["reason"], found[-1]["message"]) if found else None


def attempts(stage: Stage) -> dict[str, int]:
    """How many attempts for groups ended in which way."""
    families = text_string_to_metric_families(stage.scheduler.metrics.render().decode())
    return {
        sample.labels["result"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "scheduler_podgroup_schedule_attempts_total"
    }


def holds_nothing(stage: Stage) -> bool:
    cluster = stage.scheduler.cluster
    return not cluster.assumed_count and not list(stage.scheduler.waiting)
