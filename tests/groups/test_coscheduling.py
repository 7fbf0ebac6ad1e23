"""Groups of scheduler-plugins and Volcano, through the Coscheduling plugin and without any gate."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from groups_staging import GANG, holds_nothing, last_text, member, pod_group

from make import planner
from scheduler_staging import node, pod, staged
from stowplan.api.groups import CoschedulingPodGroup
from stowplan.api.kinds import object_of
from stowplan.api.meta import UnreadableObject
from stowplan.api.pod import Pod
from stowplan.config import load
from stowplan.errors import ConfigError, InputError
from stowplan.explain.groups import outline
from stowplan.framework.registry import Registry
from stowplan.journal import Decisions

SORTED = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    }
}


def x_group(name="g", namespace="default", **spec):
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": spec,
    }


def volcano_group(name="g", **spec):
    return {**x_group(name, **spec), "apiVersion": "scheduling.volcano.sh/v1beta1"}


def labelled(name, group="g", namespace="default", **spec):
    plain = pod(name, **spec)
    plain["metadata"] |= {"labels": {"scheduling.x-k8s.io/pod-group": group}, "namespace": namespace}
    plain["metadata"]["uid"] = f"uid-{namespace}-{name}"
    return plain


def task(name, role="", group="g", **spec):
    plain = pod(name, **spec)
    plain["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": role}
    return plain


def labelled_pods(count, **options):
    return [labelled(f"p{number}", **options) for number in range(count)]


def co_stage(profile=SORTED, **options):
    return staged(config={"profiles": [profile]}, draw=random.Random(1), **options)


async def report_gated(stage, now):
    now[0] += 3
    stage.scheduler.report_gated()
    await stage.settle()


async def test_scenario_68_room_for_two_of_three():
    async with co_stage() as stage:
        stage.see(node("n1", cpu="2"), x_group(minMember=3), *labelled_pods(3))
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        texts = sorted(last_text(stage, f"p{number}") for number in range(3))
        assert texts[0].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert texts[1].startswith("pod group is unschedulable, 2 of 3 pods fit, 3 are needed; pod p")


async def test_two_groups_that_each_need_the_whole_cluster_do_not_block_each_other():
    async with co_stage() as stage:
        first = [labelled(f"a{number}", "a") for number in range(4)]
        second = [labelled(f"b{number}", "b") for number in range(4)]
        mixed = [each for pair in zip(first, second, strict=True) for each in pair]
        stage.see(node("n1"), x_group("a", minMember=4), x_group("b", minMember=4), *mixed)
        await stage.settle()
        assert {key[8] for key in stage.api.bound} in ({"a"}, {"b"})
        assert len(stage.api.bound) == 4


async def test_scenario_69_a_label_without_an_object():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), labelled("p0"))
        await stage.settle()
        await report_gated(stage, now)
        assert last_text(stage, "p0") == "PodGroup not found"
        stage.see(x_group(minMember=1))
        await stage.settle()
        assert stage.api.bound == {"default/p0": "n1"}


def unread(stage, text):
    """As if the API server had PodGroup g with a value that cannot be read."""
    store = stage.scheduler.cluster.watched(CoschedulingPodGroup)
    fault = InputError(text, what="PodGroup default/g", field="spec.minMember")
    store.unreadable = {"default/g": UnreadableObject("default", "g", "uid-g", "1", fault)}


async def test_a_label_of_an_object_that_cannot_be_read():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        unread(stage, "expected int")
        stage.see(node("n1"), labelled("p0"))
        await stage.settle()
        await report_gated(stage, now)
        said = "PodGroup not found, since it cannot be read: PodGroup default/g: spec.minMember: expected int"
        assert last_text(stage, "p0") == said
        key = stage.scheduler.cluster.groups.key_of(object_of(labelled("p0")))
        report = outline(stage.scheduler.cluster.groups, key, [object_of(labelled("p0"))], now[0])
        assert report.why == (
            "1 pod names it, but it cannot be read: PodGroup default/g: spec.minMember: expected int; "
            "correct it.",
        )


@pytest.mark.parametrize(
    ("group", "faults"),
    [
        pytest.param(
            x_group(minMember=-3, minResources={"cpu": "-1", "memory": "1Ki"}),
            "spec.minMember is -3, which counts as 1; set it to 1 or more; "
            "spec.minResources.cpu is -1, which counts as 0; set it to 0 or more",
            id="scheduler-plugins",
        ),
        pytest.param(
            x_group(minMember=0), "spec.minMember is 0, which counts as 1; set it to 1 or more", id="0"
        ),
        pytest.param(
            volcano_group(minMember=-1),
            "spec.minMember is -1, which counts as 0; set it to 0 or more",
            id="Volcano",
        ),
        pytest.param(volcano_group(minMember=0), "", id="0 is what Volcano means by no minimum"),
        pytest.param(x_group(minMember=1, minResources={"cpu": "0"}), "", id="nothing is wrong"),
    ],
)
async def test_impossible_values_of_a_group_are_named_and_let_its_pods_pass(group, faults):
    decisions = Decisions()
    async with co_stage(decisions=decisions) as stage:
        stage.see(node("n1"), group)
        stage.see(labelled("p0") if "x-k8s" in group["apiVersion"] else task("p0"))
        await stage.settle()
        assert stage.api.bound == {"default/p0": "n1"}
        assert stage.notes("InvalidPodGroup") == ([faults] if faults else [])
        (record,) = decisions.recent.of("default/p0")
        assert record.notes == ((f"PodGroup default/g: {faults}.",) if faults else ())


async def test_a_group_that_lacks_resources_names_its_impossible_values_too():
    decisions = Decisions()
    async with co_stage(decisions=decisions) as stage:
        stage.see(node("n1"), x_group(minMember=1, minResources={"cpu": "-1", "": "3"}), labelled("p0"))
        await stage.settle()
        assert last_text(stage, "p0") == "resource gap: '' 3"
        record, *_ = decisions.recent.of("default/p0")
        assert record.notes == (
            "PodGroup default/g: spec.minResources.cpu is -1, which counts as 0; set it to 0 or more.",
        )


@pytest.mark.parametrize(
    ("names", "end"),
    [
        pytest.param(
            [f"example.com/r{each:05}" for each in range(10_000)], "or more; and 9995 more.", id="many"
        ),
        pytest.param([f"example.com/{letter * 5000}" for letter in "abcd"], " ...", id="long ones"),
    ],
)
async def test_a_decision_names_some_of_many_impossible_values(names, end):
    decisions = Decisions()
    async with co_stage(decisions=decisions) as stage:
        group = x_group(minMember=1, minResources=dict.fromkeys(names, "-1"))
        stage.see(node("n1"), group, labelled("p0"))
        await stage.settle()
        ((note,),) = (each.notes for each in decisions.recent.of("default/p0"))
        assert note.startswith("PodGroup default/g: spec.minResources.example.com/")
        assert note.endswith(end)
        assert len(note) <= 1000


async def test_impossible_values_of_a_group_are_reported_once():
    async with co_stage() as stage:
        bad, counted, worse = (x_group(minMember=least) for least in (0, 0, -1))
        counted["status"] = {"running": 3}
        stage.see(bad)
        stage.change(bad, counted)
        stage.change(counted, worse)
        stage.change(worse, x_group(minMember=1))
        await stage.settle()
        assert [text[:20] for text in stage.notes("InvalidPodGroup")] == [
            "spec.minMember is 0,",
            "spec.minMember is -1",
        ]


async def test_too_few_siblings():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), x_group(minMember=3), *labelled_pods(2))
        await stage.settle()
        await report_gated(stage, now)
        assert last_text(stage, "p0") == (
            "pre-filter pod p0 cannot find enough sibling pods, current pods number: 2, minMember of group: 3"
        )


async def test_members_with_scheduling_gates_do_not_count():
    """One of three may wait for its gate; one of two may not."""
    now = [1000.0]
    gates = {"schedulingGates": [{"name": "example.com/wait"}]}
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), x_group("a", minMember=2), x_group("b", minMember=2))
        stage.see(labelled("a0", "a"), labelled("a1", "a"), labelled("a2", "a", **gates))
        stage.see(labelled("b0", "b"), labelled("b1", "b", **gates))
        await stage.settle()
        await report_gated(stage, now)
        assert set(stage.api.bound) == {"default/a0", "default/a1"}
        assert last_text(stage, "b0").endswith("current pods number: 1, minMember of group: 2")


class Queued(NamedTuple):
    pod: Pod
    timestamp: float
    attempts: int = 0


def in_order(*queued):
    """The names of pods in the order of the queue; PodGroup old is from second 1, young from second 1001."""
    groups = [x_group("old", minMember=2), x_group("young", minMember=2)]
    groups[0]["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
    groups[1]["metadata"]["creationTimestamp"] = "1970-01-01T00:16:41Z"
    v1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    found = planner(groups, v1 | {"profiles": [SORTED]})
    sort = found.profiles["default-scheduler"].plugins["Coscheduling"].queue_sort
    return [each.pod.name for each in sorted(queued, key=sort)]


def waiting(name, group, since, attempts=0, **spec):
    return Queued(object_of(labelled(name, group, **spec)), since, attempts)


def test_members_stand_together_by_the_age_of_their_group():
    old = [waiting(f"old{number}", "old", 1005 + 5 * number) for number in range(2)]
    young = [waiting(f"young{number}", "young", 1003 + 5 * number) for number in range(2)]
    plain = Queued(object_of(pod("plain")), 900)
    assert in_order(*young, plain, *old) == ["old0", "old1", "plain", "young0", "young1"]
    urgent = waiting("urgent", "young", 1009, priority=5)
    assert in_order(*old, urgent) == ["urgent", "old0", "old1"]


async def test_waiting_members_are_sorted_again_when_their_group_arrives():
    """With the plugin at queueSort alone, pods are attempted without their group."""
    sort = {"queueSort": SORTED["plugins"]["queueSort"]}
    now = [2000.0]
    async with co_stage({"plugins": sort}, now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod("plain"))
        now[0] += 5
        stage.see(labelled("member"))
        group = x_group(minMember=1)
        group["metadata"]["creationTimestamp"] = "1970-01-01T00:00:01Z"
        stage.see(group)
        await stage.settle()
        assert list(stage.api.bound) == ["default/member", "default/plain"]


def test_a_group_that_failed_goes_behind_those_that_came_before_that():
    """Otherwise the oldest group would hold up all others each time that it is attempted."""
    old = [waiting(f"old{number}", "old", 1005, attempts=1) for number in range(2)]
    assert in_order(*old, waiting("young", "young", 1004)) == ["young", "old0", "old1"]
    assert in_order(*old, waiting("other", "none", 1004)) == ["other", "old0", "old1"]
    assert in_order(*old, waiting("late", "none", 1006)) == ["old0", "old1", "late"]


async def test_scenario_70_resources_above_what_is_free():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1", cpu="4"), x_group(minMember=2, minResources={"cpu": "6"}), *labelled_pods(2))
        await stage.settle()
        assert stage.api.bound == {}
        assert last_text(stage, "p0") == "resource gap: cpu 2"
        now[0] += 5
        stage.see(node("n2", cpu="2"))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_members_that_run_reduce_what_a_group_needs():
    async with co_stage() as stage:
        stage.see(node("n1", cpu="4"), x_group(minMember=2, minResources={"cpu": "4"}))
        stage.see(labelled("old", on="n1", cpu="3"), labelled("p0"))
        await stage.settle()
        assert stage.api.bound == {"default/p0": "n1"}


async def test_scenario_71_enough_in_sum_but_not_on_one_node():
    async with co_stage() as stage:
        stage.see(node("n1", cpu="1"), node("n2", cpu="1"))
        stage.see(x_group(minMember=1, minResources={"cpu": "2"}), labelled("p0", cpu="2"))
        await stage.settle()
        assert last_text(stage, "p0").startswith("0/2 nodes are available: 2 Insufficient cpu.")


async def test_scenario_72_more_pods_than_the_minimum():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), x_group(minMember=3), *labelled_pods(5))
        await stage.settle()
        assert len(stage.api.bound) == 4
        (left,) = {f"default/p{number}" for number in range(5)} - stage.api.bound.keys()
        assert last_text(stage, left.partition("/")[2]).startswith(
            "0/1 nodes are available: 1 Insufficient cpu."
        )
        now[0] += 5
        stage.see(node("n2", cpu="1"))  # it waits alone, and starts alone
        await stage.settle()
        assert stage.api.bound[left] == "n2"


async def test_scenario_73_equal_names_in_two_namespaces():
    async with co_stage() as stage:
        stage.see(node("n1"), x_group(minMember=2), x_group(minMember=2, namespace="other"))
        stage.see(*labelled_pods(1), *labelled_pods(2, namespace="other"))
        await stage.settle()
        assert set(stage.api.bound) == {"other/p0", "other/p1"}


async def test_scenario_79_a_volcano_group_that_fits():
    async with co_stage() as stage:
        stage.see(node("n1"), volcano_group(minMember=3), *(task(f"p{number}") for number in range(3)))
        await stage.settle()
        assert len(stage.api.bound) == 3


async def test_scenario_80_a_volcano_group_without_one_of_its_tasks():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        group = volcano_group(minMember=3, minTaskMember={"ps": 1, "worker": 2})
        stage.see(node("n1"), group, *(task(f"p{number}", "worker") for number in range(3)))
        await stage.settle()
        await report_gated(stage, now)
        assert last_text(stage, "p0") == "Not enough valid pods of each task for gang-scheduling"
        stage.see(task("ps", "ps"))
        await stage.settle()
        assert len(stage.api.bound) == 4


async def test_tasks_count_when_members_are_placed_too():
    """Three workers fit, but not the parameter server that the group needs."""
    async with co_stage() as stage:
        group = volcano_group(minMember=3, minTaskMember={"ps": 1, "worker": 2})
        large = task("ps", "ps", cpu="8")
        stage.see(node("n1"), group, large, *(task(f"p{number}", "worker") for number in range(3)))
        await stage.settle()
        assert stage.api.bound == {}


async def test_subgroups_are_not_half_understood():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        group = volcano_group(minMember=1, subGroupPolicy=[{"name": "a", "minSubGroups": 2}])
        stage.see(node("n1"), group, task("p0"))
        await stage.settle()
        await report_gated(stage, now)
        assert stage.api.bound == {}
        assert "minSubGroups is not supported" in last_text(stage, "p0")


async def test_a_required_network_topology_is_not_ignored():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        topology = {"mode": "hard", "highestTierAllowed": 1}
        stage.see(node("n1"), volcano_group(minMember=1, networkTopology=topology), task("p0"))
        await stage.settle()
        await report_gated(stage, now)
        assert stage.api.bound == {}
        assert "spec.networkTopology needs HyperNodes" in last_text(stage, "p0")


def named_thrice(name):
    plain = member(name, "tree")
    plain["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "g"}
    plain["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "v"}
    return plain


async def test_scenario_92_a_pod_of_several_groups(caplog):
    async with co_stage(gates=GANG) as stage:
        stage.see(
            node("n1"), pod_group("tree", least=2), x_group(minMember=5), volcano_group("v", minMember=5)
        )
        stage.see(named_thrice("p0"), named_thrice("p1"))
        await stage.settle()
        assert stage.api.bound == {"default/p0": "n1", "default/p1": "n1"}
    (warning,) = [each for each in caplog.records if "several pod groups" in each.getMessage()]
    assert warning.fields["podGroup"] == "scheduling.k8s.io default/tree"
    assert warning.fields["ignored"] == ["scheduling.x-k8s.io default/g", "scheduling.volcano.sh default/v"]


async def test_scenario_92_the_label_counts_before_the_annotation():
    async with co_stage() as stage:
        both = labelled("p0")
        both["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "v"}
        stage.see(node("n1"), x_group(minMember=1), volcano_group("v", minMember=5), both)
        await stage.settle()
        assert stage.api.bound == {"default/p0": "n1"}


def test_its_arguments_are_checked():
    args = {"permitWaitingTimeSeconds": -1, "podGroupRejectPercentage": 101}
    profile = {**SORTED, "pluginConfig": [{"name": "Coscheduling", "args": args}]}
    v1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    with pytest.raises(ConfigError, match="permitWaitingTimeSeconds: Invalid value: -1") as error:
        load({**v1, "profiles": [{"schedulerName": "s", **profile}]}, Registry.installed())
    assert "podGroupRejectPercentage: Invalid value: 101" in str(error.value)
