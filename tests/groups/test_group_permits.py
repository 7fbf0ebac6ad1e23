"""What happens to a group between its decision and its bindings: permit plugins, extenders, leaders."""

from __future__ import annotations

import random

import pytest
from groups_staging import GANG, UNSCHEDULABLE, group_condition, holds_nothing, last_text, members, pod_group

from scheduler_staging import node, staged
from stowplan import Plugin, Status


class HoldsOne(Plugin):
    """Holds the member `g1` until the test lets it go."""

    def permit(self, state, pod, node_name):
        return Status.wait(60) if pod.name == "g1" else None


class RejectsOne(Plugin):
    def reserve(self, state, pod, node_name):
        return Status.unschedulable("no quota left") if pod.name == "g1" else None


def with_plugin(kind, point):
    profile = {"plugins": {point: {"enabled": [{"name": kind.__name__}]}}}
    return {"config": {"profiles": [profile]}, "plugins": {kind.__name__: kind}}


def stage_with(kind, point):
    return staged(gates=GANG, draw=random.Random(1), **with_plugin(kind, point))


async def test_no_member_is_bound_before_all_are_permitted():
    async with stage_with(HoldsOne, "permit") as stage:
        stage.see(node("n1"), pod_group(least=3), *members(3))
        await stage.settle()
        assert stage.api.bound == {}
        (waiting,) = stage.scheduler.waiting
        waiting.allow("HoldsOne")
        await stage.settle()
        assert len(stage.api.bound) == 3


@pytest.mark.parametrize(("least", "bound"), [(3, 0), (2, 2)], ids=["too few are left", "enough are left"])
async def test_a_member_is_rejected_while_it_waits(least, bound):
    async with stage_with(HoldsOne, "permit") as stage:
        stage.see(node("n1"), pod_group(least=least), *members(3))
        await stage.settle()
        (waiting,) = stage.scheduler.waiting
        waiting.reject("HoldsOne", "not now")
        await stage.settle()
        assert len(stage.api.bound) == bound
        assert "not now" in last_text(stage, "g1")
        if not bound:
            assert last_text(stage, "g0").startswith(f"{UNSCHEDULABLE}, pod default/g1 was rejected: ")
            assert holds_nothing(stage)


@pytest.mark.parametrize(("least", "bound"), [(3, 0), (2, 2)], ids=["all are needed", "two are needed"])
async def test_a_plugin_rejects_a_member_when_it_is_reserved(least, bound):
    async with stage_with(RejectsOne, "reserve") as stage:
        stage.see(node("n1"), pod_group(least=least), *members(3))
        await stage.settle()
        assert len(stage.api.bound) == bound
        assert last_text(stage, "g1") == "0/1 nodes are available: 1 no quota left."
        assert group_condition(stage)[0] == ("True" if bound else "False")
        if not bound:
            assert holds_nothing(stage)


async def test_who_does_not_lead_any_more_binds_nobody():
    async with staged(gates=GANG) as stage:
        stage.is_leading = False
        stage.see(node("n1"), pod_group(least=3), *members(3))
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        assert stage.api.group_patches == []


async def test_groups_are_not_decided_without_their_extenders():
    extender = {"urlPrefix": "http://127.0.0.1:9/", "filterVerb": "filter"}
    async with staged(gates=GANG, config={"extenders": [extender]}) as stage:
        stage.see(node("n1"), pod_group(least=2), *members(2))
        await stage.settle()
        assert stage.api.bound == {}
        assert last_text(stage, "g0").startswith("pod group default/g: extenders are not asked about groups")
    managing = extender | {"managedResources": [{"name": "example.com/gpu"}]}
    async with staged(gates=GANG, config={"extenders": [managing]}) as stage:
        stage.see(node("n1"), pod_group(least=2), *members(2))
        await stage.settle()
        assert len(stage.api.bound) == 2
