"""Each API's objects are read into one internal group, and pods name their group in each API's way."""

from __future__ import annotations

import pytest

from make import make_pod
from stowplan.api.groups import (
    COSCHEDULING,
    IN_TREE,
    VOLCANO,
    CoschedulingPodGroup,
    GroupClaim,
    GroupKey,
    PodGroupV1alpha2,
    PodGroupV1beta1,
    Topology,
    VolcanoPodGroup,
    WorkloadV1alpha1,
    named_groups,
    task_of,
)
from stowplan.api.meta import decode

META = {
    "name": "train",
    "namespace": "ml",
    "uid": "0b3c",
    "resourceVersion": "812",
    "creationTimestamp": "2026-11-15T22:00:00Z",
    "finalizers": ["scheduling.k8s.io/podgroup-protection"],
}


def read(kind, spec, status=None, **meta):
    item = decode(
        kind,
        {
            "apiVersion": kind.definition.api_version,
            "kind": kind.definition.kind,
            "metadata": META | meta,
            "spec": spec,
            "status": status or {},
        },
    )
    return list(item.groups())


def test_a_pod_group_of_1_36():
    (group,) = read(
        PodGroupV1alpha2,
        {
            "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}},
            "schedulingPolicy": {"gang": {"minCount": 4}},
            "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}]},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
            "disruptionMode": "PodGroup",
            "priorityClassName": "high",
            "priority": 1000,
        },
    )
    assert group.key == GroupKey(IN_TREE, "ml", "train")
    assert (group.api_version, group.uid, group.policy, group.min_count) == (
        "scheduling.k8s.io/v1alpha2",
        "0b3c",
        "gang",
        4,
    )
    assert group.topology == Topology(("topology.kubernetes.io/rack",))
    assert group.claims == (GroupClaim(name="gpu", resource_claim_template_name="gpus"),)
    assert (group.disruption, group.priority, group.was_scheduled) == ("all", 1000, False)


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [(None, None), ({}, Topology()), ({"topology": [{"key": "rack"}]}, Topology(("rack",)))],
)
def test_empty_constraints_are_not_the_same_as_none(constraints, expected):
    spec = {"schedulingPolicy": {"basic": {}}, "schedulingConstraints": constraints}
    (group,) = read(PodGroupV1alpha2, {**spec, "podGroupTemplateRef": None})
    assert (group.policy, group.min_count, group.topology) == ("basic", 1, expected)


def test_a_pod_group_of_1_37():
    (group,) = read(
        PodGroupV1beta1,
        {
            "workloadRef": {"workloadName": "w", "templateName": "t"},
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "disruptionMode": {"all": {}},
            "preemptionPolicy": "Never",
        },
        {"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled"}]},
    )
    assert (group.min_count, group.disruption, group.never_preempts) == (2, "all", True)
    assert group.was_scheduled
    (single,) = read(PodGroupV1beta1, {"disruptionMode": {"single": {}}})
    assert single.disruption == "one"


@pytest.mark.parametrize("kind", [PodGroupV1alpha2, PodGroupV1beta1])
def test_each_version_has_its_own_condition(kind):
    other = {"PodGroupScheduled", "PodGroupInitiallyScheduled"} - {kind.condition_type}
    for name, expected in ((kind.condition_type, True), (other.pop(), False)):
        (group,) = read(kind, {}, {"conditions": [{"type": name, "status": "True"}]})
        assert group.was_scheduled is expected


def test_a_workload_of_1_35_has_several_groups():
    groups = read(
        WorkloadV1alpha1,
        {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
            "podGroups": [
                {"name": "workers", "policy": {"gang": {"minCount": 3}}},
                {"name": "driver", "policy": {"basic": {}}},
            ],
        },
    )
    assert [(each.key.name, each.policy, each.min_count) for each in groups] == [
        ("train/workers/", "gang", 3),
        ("train/driver/", "basic", 1),
    ]


def test_a_pod_group_of_scheduler_plugins():
    (group,) = read(
        CoschedulingPodGroup,
        {"minMember": 3, "minResources": {"cpu": "3", "nvidia.com/gpu": 1}, "scheduleTimeoutSeconds": 30},
        {"phase": "Scheduling", "scheduleStartTime": None},
    )
    assert group.key == GroupKey(COSCHEDULING, "ml", "train")
    assert (group.min_count, group.schedule_timeout) == (3, 30)
    assert set(group.min_resources) == {"cpu", "nvidia.com/gpu"}


def test_a_pod_group_of_volcano():
    (group,) = read(
        VolcanoPodGroup,
        {
            "minMember": 3,
            "minTaskMember": {"ps": 1, "worker": 2},
            "queue": "research",
            "minResources": {"cpu": "6"},
            "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
        },
        {"phase": "Inqueue", "conditions": [{"type": "Scheduled", "status": "True", "transitionID": "x"}]},
    )
    assert group.key == GroupKey(VOLCANO, "ml", "train")
    assert (group.min_count, group.queue, dict(group.min_by_task)) == (3, "research", {"ps": 1, "worker": 2})
    assert group.topology == Topology(highest_tier=1)


def test_scenario_81_minimums_of_tasks_above_the_groups_are_ignored():
    (group,) = read(VolcanoPodGroup, {"minMember": 2, "minTaskMember": {"ps": 1, "worker": 2}})
    assert dict(group.min_by_task) == {}
    assert group.queue == "default"


def test_a_subgroup_policy_is_not_half_understood():
    (group,) = read(VolcanoPodGroup, {"subGroupPolicy": [{"name": "a", "minSubGroups": 2}]})
    assert group.limits_note == "spec.subGroupPolicy[a].minSubGroups is not supported; set it to 0"


def test_pods_name_their_group():
    pod = make_pod(schedulingGroup={"podGroupName": "train"}, namespace="ml")
    assert list(named_groups(pod)) == [GroupKey(IN_TREE, "ml", "train")]
    old = make_pod(workloadRef={"name": "train", "podGroup": "workers", "podGroupReplicaKey": "7"})
    assert list(named_groups(old)) == [GroupKey(IN_TREE, "default", "train/workers/7")]
    labelled = make_pod(labels={"scheduling.x-k8s.io/pod-group": "train"})
    assert list(named_groups(labelled)) == [GroupKey(COSCHEDULING, "default", "train")]
    annotations = {"scheduling.volcano.sh/group-name": "b", "volcano.sh/task-spec": "ps"}
    volcano = make_pod(metadata={"annotations": annotations})
    assert list(named_groups(volcano)) == [GroupKey(VOLCANO, "default", "b")]
    assert task_of(volcano) == "ps"
    both = make_pod(metadata={"annotations": {**annotations, "scheduling.k8s.io/group-name": "a"}})
    assert list(named_groups(both)) == [GroupKey(VOLCANO, "default", "a")]


def test_scenario_92_the_in_tree_group_counts_then_the_label_then_the_annotation():
    pod = make_pod(
        schedulingGroup={"podGroupName": "a"},
        labels={"scheduling.x-k8s.io/pod-group": "b"},
        metadata={"annotations": {"scheduling.k8s.io/group-name": "c"}},
    )
    assert [key.name for key in named_groups(pod)] == ["a", "b", "c"]


def test_pods_of_different_groups_share_a_shape():
    first, second = (make_pod(name, schedulingGroup={"podGroupName": name}) for name in ("a", "b"))
    assert first.shape is second.shape is make_pod("c").shape
