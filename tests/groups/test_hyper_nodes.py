"""Groups in one domain of the network: HyperNodes, and several levels of node labels."""

from __future__ import annotations

import random

import pytest
from groups_staging import TOPOLOGY, last_text, members, pod_group
from test_coscheduling import SORTED, co_stage, task, volcano_group
from test_group_topology import used

from scheduler_staging import node, staged
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry


def hyper_node(name, tier, *, nodes=(), inside=(), selectors=(), **spec):
    chosen = [{"type": "Node", "selector": {"exactMatch": {"name": each}}} for each in nodes]
    chosen += [{"type": "HyperNode", "selector": {"exactMatch": {"name": each}}} for each in inside]
    chosen += [{"type": "Node", "selector": each} for each in selectors]
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"tier": tier, "members": chosen, **spec},
    }


def network():
    """Two leaf switches of two nodes each, below one spine; and a node that is in none."""
    return [
        *(node(name, cpu="2") for name in ("a0", "a1", "b0", "b1", "z")),
        hyper_node("s-a", 1, nodes=("a0", "a1"), tierName="leaf"),
        hyper_node("s-b", 1, nodes=("b0", "b1"), tierName="leaf"),
        hyper_node("spine", 2, inside=("s-a", "s-b"), tierName="spine"),
    ]


def tasks(count, **options):
    return [task(f"p{number}", **options) for number in range(count)]


def group(least, mode="hard", tier=1, **topology):
    wanted = {"mode": mode, **topology} | ({} if tier is None else {"highestTierAllowed": tier})
    return volcano_group(minMember=least, networkTopology=wanted)


async def test_scenario_90_hard_waits_where_no_domain_of_the_tier_fits():
    async with co_stage() as stage:
        stage.see(*network(), group(5), *tasks(5))
        await stage.settle()
        assert stage.api.bound == {}
        assert "placements are available" in last_text(stage, "p0") or "Insufficient cpu" in last_text(
            stage, "p0"
        )


async def test_scenario_90_soft_goes_on_to_the_next_tier():
    async with co_stage() as stage:
        stage.see(*network(), group(5, "soft"), *tasks(5))
        await stage.settle()
        assert used(stage) == {"a", "b"}
        assert len(stage.api.bound) == 5


@pytest.mark.parametrize("mode", ["hard", "soft"])
async def test_the_narrowest_domain_that_fits_is_used(mode):
    async with co_stage() as stage:
        stage.see(*network(), group(4, mode, tier=2), *tasks(4))
        await stage.settle()
        assert len(used(stage)) == 1
        assert len(stage.api.bound) == 4


async def test_a_tier_can_be_named():
    async with co_stage() as stage:
        stage.see(*network(), group(5, tier=None, highestTierName="spine"), *tasks(5))
        await stage.settle()
        assert used(stage) == {"a", "b"}
    async with co_stage() as stage:
        stage.see(*network(), group(2, tier=None, highestTierName="row"), *tasks(2))
        await stage.settle()
        text = 'no HyperNode has the tier name "row"; set highestTierName to one of: leaf, spine'
        assert last_text(stage, "p0") == text


async def test_the_fuller_domain_is_preferred():
    async with co_stage() as stage:
        stage.see(*network(), task("old", group="other", on="b0"), group(2), *tasks(2))
        await stage.settle()
        assert used(stage) == {"b"}


async def test_members_stay_with_those_that_run():
    async with co_stage() as stage:
        stage.see(*network(), group(2), task("old", on="b1"), *tasks(2))
        await stage.settle()
        assert used(stage) == {"b"}
    async with co_stage() as stage:
        stage.see(*network(), group(2), task("old", on="z"), *tasks(2))
        await stage.settle()
        assert last_text(stage, "p0").startswith("no HyperNode up to tier 1 has all nodes of the members")


async def test_a_group_waits_until_there_are_hyper_nodes():
    now = [1000.0]
    async with co_stage(now=lambda: now[0]) as stage:
        stage.see(*network()[:5], group(2), *tasks(2))
        await stage.settle()
        assert "needs HyperNodes, and there are none" in last_text(stage, "p0")
        now[0] += 20
        stage.see(*network()[5:])
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_nodes_are_chosen_by_pattern_and_by_label():
    labelled = [node(name, cpu="2") for name in ("x0", "x1", "y0")]
    for plain in labelled:
        plain["metadata"]["labels"] = {"row": plain["metadata"]["name"][0]}
    for selector in ({"regexMatch": {"pattern": "^x"}}, {"labelMatch": {"matchLabels": {"row": "x"}}}):
        async with co_stage() as stage:
            stage.see(*labelled, hyper_node("s", 1, selectors=(selector,)), group(4), *tasks(4))
            await stage.settle()
            assert used(stage) == {"x"}


async def test_groups_with_a_network_topology_do_not_preempt():
    async with co_stage() as stage:
        stage.see(node("a0", cpu="1"), hyper_node("s", 1, nodes=("a0",)))
        stage.see(task("low", group="other", on="a0"), group(1), task("p0", priority=10))
        await stage.settle()
        assert stage.api.deleted == []


# Levels of node labels

LEVELS = {"pluginConfig": [{"name": "TopologyPlacementGenerator", "args": {"levels": ["zone", "rack"]}}]}


def in_zone(name, zone, rack, cpu="2"):
    plain = node(name, cpu=cpu)
    plain["metadata"]["labels"] = {"zone": zone, "rack": rack}
    return plain


def level_stage():
    return staged(config={"profiles": [LEVELS]}, gates=TOPOLOGY, draw=random.Random(1))


ZONE = {"topology": [{"key": "zone"}]}


async def test_a_narrower_level_is_preferred():
    """Racks of the same name in two zones are two racks."""
    nodes = [in_zone("a0", "a", "r1"), in_zone("a1", "a", "r2"), in_zone("b0", "b", "r1", "3")]
    async with level_stage() as stage:
        stage.see(*nodes, pod_group(least=3, schedulingConstraints=ZONE), *members(3))
        await stage.settle()
        assert set(stage.api.bound.values()) == {"b0"}


async def test_the_required_level_is_enough():
    nodes = [in_zone("a0", "a", "r1"), in_zone("a1", "a", "r2"), in_zone("b0", "b", "r1", "3")]
    async with level_stage() as stage:
        stage.see(*nodes, pod_group(least=4, schedulingConstraints=ZONE), *members(4))
        await stage.settle()
        assert set(stage.api.bound.values()) == {"a0", "a1"}


def test_levels_are_checked():
    v1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    args = {"levels": ["zone", "a b", "zone"]}
    profile = {**SORTED, "pluginConfig": [{"name": "TopologyPlacementGenerator", "args": args}]}
    with pytest.raises(ConfigError, match=r"levels\[1\]: Invalid value: \"a b\"") as error:
        load({**v1, "profiles": [{"schedulerName": "s", **profile}]}, Registry.installed())
    assert "must not be listed twice" in str(error.value)
