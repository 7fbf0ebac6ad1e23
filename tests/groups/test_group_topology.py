"""Groups that must be in one domain: which one is chosen, and what is said if there is none."""

from __future__ import annotations

import random

import pytest
from groups_staging import TOPOLOGY, UNSCHEDULABLE, group_condition, last_text, member, members, pod_group

from scheduler_staging import node, pod, staged

RACK = {"topology": [{"key": "rack"}]}
NONE = "no feasible placements found"


def in_rack(name, rack, **options):
    found = node(name, **options)
    found["metadata"]["labels"] = {"kubernetes.io/hostname": name} | ({"rack": rack} if rack else {})
    return found


def racks():
    """Rack a has 4 CPUs, rack b 8."""
    return [in_rack(f"a{n}", "ra", cpu="2") for n in range(2)] + [in_rack(f"b{n}", "rb") for n in range(2)]


def topology_stage(gates=TOPOLOGY, **options):
    return staged(gates=gates, draw=random.Random(1), **options)


def used(stage):
    return {name[0] for name in stage.api.bound.values()}


async def test_scenario_46_the_rack_that_becomes_fullest():
    async with topology_stage() as stage:
        stage.see(*racks(), pod_group(least=4, schedulingConstraints=RACK), *members(4))
        await stage.settle()
        assert len(stage.api.bound) == 4
        assert used(stage) == {"a"}


async def test_scenario_47_no_rack_takes_all():
    async with topology_stage() as stage:
        stage.see(*racks(), pod_group(least=9, schedulingConstraints=RACK), *members(9))
        await stage.settle()
        assert stage.api.bound == {}
        text = f"0/2 placements are available, first placement status: {UNSCHEDULABLE}"
        assert group_condition(stage) == ("False", "Unschedulable", text)
        texts = [last_text(stage, f"g{number}") for number in range(9)]
        short = [each for each in texts if each.startswith("0/2 nodes are available: 2 Insufficient cpu.")]
        assert short
        refused = "preemption: not eligible due to placement-based pod group scheduling limitation"
        assert all(each.endswith(refused) for each in short)


@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param({"ignoredResources": ["example.com/licence"]}, id="by name"),
        pytest.param({"ignoredResourceGroups": ["example.com"]}, id="by prefix"),
    ],
)
async def test_a_resource_that_the_scheduler_ignores_rules_out_no_rack(ignored):
    config = {"profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": ignored}]}]}
    wanted = [{"name": "c", "resources": {"requests": {"cpu": "1", "example.com/licence": "2"}}}]
    nodes = racks()
    for each in nodes:
        each["status"]["allocatable"]["example.com/licence"] = "1"
    async with topology_stage(config=config) as stage:
        stage.see(*nodes, pod_group(least=2, schedulingConstraints=RACK), *members(2, containers=wanted))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_scenario_48_a_label_that_no_node_has():
    now = [1000.0]
    async with topology_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1"), pod_group(least=2, schedulingConstraints=RACK), *members(2))
        await stage.settle()
        assert group_condition(stage) == ("False", "Unschedulable", NONE)
        assert {last_text(stage, f"g{number}") for number in range(2)} == {NONE}
        now[0] += 5
        stage.see(in_rack("a1", "ra"))
        await stage.settle()
        assert set(stage.api.bound.values()) == {"a1"}


async def test_scenario_49_the_rack_of_members_that_run():
    async with topology_stage() as stage:
        stage.see(
            *racks(), pod_group(least=3, schedulingConstraints=RACK), member("old", on="b0"), *members(2)
        )
        await stage.settle()
        assert (len(stage.api.bound), used(stage)) == (2, {"b"})


async def test_scenario_50_members_run_in_two_racks():
    async with topology_stage() as stage:
        old = [member("x", on="b0"), member("y", on="a0")]
        stage.see(*racks(), pod_group(least=3, schedulingConstraints=RACK), *old, member("new"))
        await stage.settle()
        text = (
            "cannot determine domain for already scheduled pods: "
            "more than 1 domain found for pod group: rb, ra"
        )
        assert group_condition(stage) == ("False", "SchedulerError", text)
        assert last_text(stage, "new") == text


async def test_scenario_51_a_member_runs_on_a_node_without_the_label():
    async with topology_stage() as stage:
        stage.see(*racks(), in_rack("c0", ""), pod_group(least=2, schedulingConstraints=RACK))
        stage.see(member("old", on="c0"), member("new"))
        await stage.settle()
        text = "no topology domain found for pod default/old"
        assert last_text(stage, "new").endswith(text)


async def test_scenario_52_a_basic_group_goes_where_all_known_members_fit():
    async with topology_stage() as stage:
        stage.see(*racks(), pod_group(schedulingConstraints=RACK), *members(5))
        await stage.settle()
        assert (len(stage.api.bound), used(stage)) == (5, {"b"})


async def test_scenario_53_empty_constraints_mean_any_node_and_no_preemption():
    async with topology_stage() as stage:
        stage.see(*racks(), pod_group(least=9, schedulingConstraints={}), *members(9))
        await stage.settle()
        assert used(stage) == {"a", "b"}
    async with topology_stage() as stage:
        stage.see(node("n1", cpu="1"), pod("low", on="n1"))
        stage.see(pod_group(least=1, schedulingConstraints={}), member("g0", priority=10))
        await stage.settle()
        assert stage.api.deleted == []
        text = f"0/1 placements are available, first placement status: {UNSCHEDULABLE}"
        assert group_condition(stage) == ("False", "Unschedulable", text)


async def test_scenario_54_equal_racks_are_chosen_by_name():
    for seed in range(3):
        async with staged(gates=TOPOLOGY, draw=random.Random(seed)) as stage:
            stage.see(*(in_rack(f"{rack}0", rack) for rack in ("c", "b", "d")))
            stage.see(pod_group(least=2, schedulingConstraints=RACK), *members(2))
            await stage.settle()
            assert set(stage.api.bound.values()) == {"b0"}


async def test_scenario_55_the_rack_of_members_that_run_has_lost_its_nodes():
    async with topology_stage() as stage:
        stage.see(
            *racks(), pod_group(least=2, schedulingConstraints=RACK), member("old", on="c0"), member("new")
        )
        await stage.settle()
        assert last_text(stage, "new").endswith(
            'getting node for pod default/old: nodeinfo not found for node name "c0"'
        )


async def test_scenario_65_groups_with_a_key_do_not_preempt_as_a_whole():
    gates = (*TOPOLOGY, "WorkloadAwarePreemption")
    async with topology_stage(gates) as stage:
        stage.see(in_rack("a0", "ra", cpu="1"), pod("low", on="a0"))
        stage.see(pod_group(least=1, priority=1000, schedulingConstraints=RACK), member("g0"))
        await stage.settle()
        assert stage.api.deleted == []
        condition = group_condition(stage)
        assert condition is not None
        assert condition[2].endswith(
            "workload aware preemption is not supported for pod groups with scheduling constraints"
        )


async def test_members_beyond_the_minimum_decide_between_racks():
    """Rack b takes five, rack a four: both are enough, and b takes more."""
    async with topology_stage() as stage:
        stage.see(*racks(), pod_group(least=2, schedulingConstraints=RACK), *members(5))
        await stage.settle()
        assert (len(stage.api.bound), used(stage)) == (5, {"b"})


async def test_a_surplus_member_waits_for_its_groups_rack():
    """Rack b has room for it, but the others of its group went to rack a."""
    now = [1000.0]
    async with topology_stage(now=lambda: now[0]) as stage:
        apart = {
            "labelSelector": {"matchLabels": {"of": "g"}},
            "topologyKey": "kubernetes.io/hostname",
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        pods = members(2, affinity={"podAntiAffinity": required})
        for plain in pods:
            plain["metadata"]["labels"] = {"of": "g"}
        stage.see(in_rack("a0", "ra", cpu="1"), in_rack("b0", "rb", cpu="8"))
        stage.see(pod_group(least=1, schedulingConstraints=RACK), *pods)
        await stage.settle()
        assert list(stage.api.bound.values()) == ["a0"]
        (left,) = {"g0", "g1"} - {key.partition("/")[2] for key in stage.api.bound}
        assert last_text(stage, left).startswith("0/1 nodes are available: 1 ")
        now[0] += 60
        stage.see(in_rack("a1", "ra"))
        await stage.settle()
        assert stage.api.bound[f"default/{left}"] == "a1"
