"""What is kept of a group's decision, and how `stowplan explain` shows it."""

from __future__ import annotations

import random

from groups_staging import GANG, TOPOLOGY, members, pod_group

from scheduler_staging import node, pod, staged
from stowplan.explain.recorded import explain_record
from stowplan.explain.text import render
from stowplan.journal import Decisions


async def explained(*objects, gates=GANG, name="g0"):
    decisions = Decisions()
    async with staged(gates=gates, draw=random.Random(1), decisions=decisions) as stage:
        stage.see(*objects)
        await stage.settle()
        decisions.flush()
        return render(explain_record(decisions.recent.of(f"default/{name}")[-1]))


async def test_a_group_that_fits():
    text = await explained(node("n1"), pod_group(least=3), *members(3))
    assert "Decided with pod group default/g: 3 of 3 pods fit, at least 3 were needed." in text


async def test_a_group_that_does_not_fit():
    text = await explained(node("n1"), pod_group(least=5), *members(5))
    assert "4 of 5 pods fit, at least 5 were needed." in text
    assert "pod group is unschedulable, waiting for minCount pods" in text


async def test_a_group_that_preempts():
    text = await explained(
        node("n1", cpu="2"), pod("low", on="n1", cpu="2"), pod_group(least=2), *members(2, priority=10)
    )
    assert "2 of 2 pods fit once 1 pod is evicted, at least 2 were needed." in text


async def test_domains():
    racks = [node("a0", cpu="2"), node("b0", cpu="4")]
    for plain in racks:
        plain["metadata"]["labels"] = {"rack": plain["metadata"]["name"][0]}
    constraints = {"topology": [{"key": "rack"}]}
    group = pod_group(least=3, schedulingConstraints=constraints)
    text = await explained(*racks, group, *members(3), gates=TOPOLOGY)
    assert "All of them go into domain b." in text.replace("\n", " ")
    group = pod_group(least=6, schedulingConstraints=constraints)
    text = await explained(*racks, group, *members(6), gates=TOPOLOGY)
    assert "No domain has the free resources for them." in text.replace("\n", " ")
