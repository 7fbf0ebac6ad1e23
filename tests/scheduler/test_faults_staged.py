"""Faults that come at a moment which a real control plane does not let a test choose."""

from __future__ import annotations

import asyncio

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound, TooMany, Unreachable
from virtual_time import in_virtual_time

CUT = Unreachable("the connection broke")


PAUSE = 9.0
"""Long enough for a few tries; no time passes, though."""


def on(plain: dict, node_name: str) -> dict:
    return {**plain, "spec": {**plain["spec"], "nodeName": node_name}}


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(CUT, id="no answer"),
        pytest.param(ApiError(500, "InternalError", "no"), id="500"),
        pytest.param(Conflict(409, "Conflict", 'pod p is already assigned to node "n1"'), id="tried twice"),
    ],
)
@in_virtual_time
async def test_a_bind_whose_answer_is_lost_counts(error):
    async with staged() as stage:
        p = pod("p")
        stage.api.hold.clear()
        stage.see(node("n1"), p)
        await asyncio.sleep(PAUSE)
        stage.store(p, on(p, "n1"))
        stage.api.refuse["bind"] = error
        stage.api.hold.set()
        await asyncio.sleep(PAUSE)
        assert stage.notes("Scheduled") == ["Successfully assigned default/p to n1"]
        assert stage.api.patches == []
        assert stage.scheduler.cluster.assumed_count == 1


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(CUT, id="no answer"),
        pytest.param(Forbidden(403, "Forbidden", "no roles yet"), id="a server that has just started"),
    ],
)
@in_virtual_time
async def test_room_stays_taken_until_it_is_known_whether_the_bind_came_through(error):
    async with staged() as stage:
        p = pod("p", cpu="4")
        stage.api.refuse |= {"bind": CUT, "get": error}
        stage.see(node("n1"), p, pod("q", cpu="4"))
        await asyncio.sleep(PAUSE)
        assert stage.scheduler.cluster.assumed_count == 1
        assert "Insufficient cpu" in stage.api.conditions("default/q")[0]["message"]
        stage.change(p, on(p, "n1"))
        await asyncio.sleep(PAUSE)
        assert stage.scheduler.cluster.assumed_count == 0
        assert stage.api.conditions("default/p") == []


@pytest.mark.parametrize(
    ("error", "now_on"),
    [
        pytest.param(Conflict(409, "Conflict", "already assigned"), "n2", id="bound by someone else"),
        pytest.param(NotFound(404, "NotFound", 'pods "p" not found'), None, id="deleted"),
    ],
)
@in_virtual_time
async def test_a_refusal_that_outruns_the_watch_is_no_failure_of_the_pod(error, now_on):
    async with staged() as stage:
        p = pod("p")
        stage.api.hold.clear()
        stage.see(node("n1"), p)
        await asyncio.sleep(PAUSE)
        stage.store(p, on(p, now_on) if now_on else None)
        stage.api.refuse["bind"] = error
        stage.api.hold.set()
        await asyncio.sleep(PAUSE)
        assert stage.api.patches == []
        assert stage.notes("FailedScheduling") == []
        assert stage.scheduler.cluster.assumed_count == 0
        assert not any(stage.scheduler.queue.counts().values())


@pytest.mark.parametrize("now_on", [pytest.param("n2", id="bound elsewhere"), pytest.param("", id="deleted")])
@in_virtual_time
async def test_a_pod_that_waits_gets_the_room_of_one_that_will_not_come(now_on):
    async with staged() as stage:
        p = pod("p", cpu="4")
        stage.api.hold.clear()
        stage.see(node("n1"), p, pod("q", cpu="4"))
        await asyncio.sleep(PAUSE)
        assert stage.scheduler.queue.counts()["unschedulable"] == 1
        stage.change(p, on(p, now_on) if now_on else None)
        await asyncio.sleep(PAUSE)
        assert {each.name: each.node_name for each in stage.scheduler.cluster.pods()}["q"] == "n1"


class Slow(Plugin):
    go_on = asyncio.Event()

    async def pre_bind(self, state, pod, node_name):
        await self.go_on.wait()


@in_virtual_time
async def test_a_pod_is_not_bound_to_a_node_that_is_gone():
    Slow.go_on = asyncio.Event()
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Slow"}]}}}]}
    async with staged(config=config, plugins={"Slow": Slow}) as stage:
        stage.see(node("n1"), pod("p"))
        await asyncio.sleep(PAUSE)
        stage.change(node("n1"), None)
        Slow.go_on.set()
        await asyncio.sleep(PAUSE)
        assert stage.api.bound == {}
        (condition,) = stage.api.conditions("default/p")
        assert condition["message"] == 'node "n1" was deleted before the pod could be bound to it'


@in_virtual_time
async def test_who_no_longer_leads_says_nothing_of_pods():
    async with staged() as stage:
        stage.api.hold.clear()
        stage.see(node("n1"), pod("p"))
        await asyncio.sleep(PAUSE)
        stage.is_leading = False
        stage.api.refuse["bind"] = CUT
        stage.api.hold.set()
        stage.see(pod("q"))
        await asyncio.sleep(PAUSE)
        assert stage.api.patches == []
        assert stage.notes("FailedScheduling") == []


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(CUT, id="no answer"),
        pytest.param(TooMany(429, "TooManyRequests", "busy"), id="429"),
        pytest.param(Forbidden(403, "Forbidden", "no roles yet"), id="a server that has just started"),
    ],
)
@in_virtual_time
async def test_a_reason_that_could_not_be_written_is_written_later(error):
    async with staged() as stage:
        stage.api.refuse["patch"] = error
        stage.see(node("n1", cpu="1"), pod("p", cpu="2"))
        await asyncio.sleep(PAUSE)
        assert stage.api.patches == []
        stage.api.refuse.clear()
        await asyncio.sleep(PAUSE)
        await asyncio.sleep(PAUSE)
        assert [each["reason"] for each in stage.api.conditions("default/p")] == ["Unschedulable"]
