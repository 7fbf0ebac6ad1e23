"""What a running scheduler keeps of its decisions, and what /debug/decisions says of them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest
from aiohttp.test_utils import make_mocked_request

from scheduler_staging import node, pod, staged
from stowplan.api.kinds import object_of
from stowplan.client.api import PODS
from stowplan.client.errors import ApiError
from stowplan.framework.plugin import Plugin
from stowplan.framework.status import Status
from stowplan.journal import Decisions, Outcome
from stowplan.scheduler.decision_pages import PATH, decision_pages


@asynccontextmanager
async def kept(*objects, budget=2**20, leader=None, **options):
    """A scheduler that keeps its decisions, once it has seen these objects; and how to ask it."""
    decisions = Decisions(budget)
    async with staged(decisions=decisions, **options) as stage:
        page = decision_pages(decisions, lambda: stage.scheduler, lambda: leader)[PATH]

        def ask(**query):
            answer = page(make_mocked_request("GET", f"{PATH}?{urlencode(query)}"))
            return answer.status, json.loads(answer.body)

        stage.see(*objects)
        await stage.settle()
        yield stage, decisions, ask


async def test_a_bound_pod():
    async with kept(node("a"), node("b", cpu="8"), pod("p")) as (stage, decisions, ask):
        (record,) = decisions.recent.of("default/p")
        assert record.node == stage.api.bound["default/p"]
        assert (record.attempt.outcome, record.attempt.number) == (Outcome.SCHEDULED, 1)
        assert record.attempt.profile == "default-scheduler"
        decision = record.decision()
        assert set(decision.as_golden()["totals"]) == {"a", "b"}
        status, answer = ask(pod="default/p")
        assert status == 200
        assert answer["decision"]["node"] == record.node
        assert answer["decision"]["nodes"] == ["a", "b"]
        assert [each["outcome"] for each in answer["attempts"]] == ["scheduled"]


async def test_a_pod_that_fits_nowhere_says_what_would_wake_it():
    async with kept(node("a"), pod("p", cpu="50")) as (_, _, ask):
        _, answer = ask(pod="p")  # the namespace is default
        found = answer["decision"]
        assert (found["outcome"], found["node"]) == ("unschedulable", None)
        assert found["message"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert found["filters"][0]["plugin"] == "NodeResourcesFit"
        assert found["filters"][0]["column"] == [1]
        assert found["filters"][0]["statuses"][0]["reasons"] == ["Insufficient cpu"]
        assert answer["waiting"]["place"] == "unschedulable"
        assert answer["waiting"]["plugins"] == ["NodeResourcesFit"]
        assert answer["waiting"]["wakes"] == found["wakes"]
        assert found["wakes"]["NodeResourcesFit"].startswith("a node is added or changes its allocatable")


async def test_attempts_add_up_and_each_can_be_asked_for():
    async with kept(node("a"), pod("p", cpu="50")) as (stage, _, ask):
        stage.see(node("b"))
        stage.scheduler.queue.activate([stage.scheduler.handlers.pending["uid-p"]])
        await stage.settle()
        _, answer = ask(pod="default/p")
        assert [each["attempt"] for each in answer["attempts"]] == [2, 1]
        assert answer["decision"]["nodes"] == ["a", "b"]
        first = answer["attempts"][1]["number"]
        assert ask(pod="default/p", number=first)[1]["decision"]["nodes"] == ["a"]
        status, refused = ask(pod="default/p", number=999)
        assert (status, refused["message"]) == (
            404,
            "decision 999 for pod default/p not found; the newest is 2",
        )


async def test_a_pod_that_is_held_back_has_no_decision_yet():
    gated = pod("p", schedulingGates=[{"name": "example.com/wait"}])
    async with kept(node("a"), gated) as (_, _, ask):
        status, answer = ask(pod="default/p")
        assert status == 200
        assert answer["decision"] is None
        assert (answer["waiting"]["place"], answer["waiting"]["plugins"]) == ("gated", ["SchedulingGates"])
        assert answer["waiting"]["message"] == "waiting for scheduling gates: [example.com/wait]"
        assert "loses its scheduling gates" in answer["waiting"]["wakes"]["SchedulingGates"]


async def test_a_pod_that_waits_for_a_permit():
    class Later(Plugin):
        def permit(self, state, pod, node_name):
            return Status.wait(60)

    profiles = [{"plugins": {"multiPoint": {"enabled": [{"name": "Later"}]}}}]
    options = {"config": {"profiles": profiles}, "plugins": {"Later": Later}}
    async with kept(node("a"), pod("p"), **options) as (stage, _, ask):
        _, answer = ask(pod="default/p")
        assert answer["waiting"] == {
            "place": "permit",
            "plugins": ["Later"],
            "message": "",
            "wakes": {},
            "attempts": 0,
            "until": None,
            "scheduler": "default-scheduler",
        }
        stage.scheduler.waiting.find("uid-p").reject("Later", "no more")
        await stage.settle()
        _, answer = ask(pod="default/p")
        assert (answer["decision"]["chosen"], answer["decision"]["node"]) == ("a", None)
        assert answer["decision"]["outcome"] == "unschedulable"


async def test_a_binding_that_failed():
    async with kept(node("a")) as (stage, decisions, ask):
        stage.api.refuse["bind"] = ApiError(500, "InternalError", "etcd is away")
        stage.see(pod("p"))
        await stage.settle()
        (record, *_) = decisions.recent.of("default/p")
        assert (record.attempt.outcome, record.node, record.chosen) == (Outcome.ERROR, None, "a")
        assert "etcd is away" in record.attempt.message
        assert ask(pod="default/p")[1]["waiting"]["place"] == "backoff"


async def test_attempts_that_are_no_longer_kept_are_counted():
    async with kept(node("a"), pod("p", cpu="50"), budget=0) as (stage, _, ask):
        _, answer = ask(pod="default/p")
        assert answer["decision"] is None
        assert (answer["waiting"]["attempts"], answer["waiting"]["plugins"]) == (1, ["NodeResourcesFit"])
        waiting = stage.scheduler.handlers.pending["uid-p"]
        stage.scheduler.queue.activate([waiting])
        assert stage.scheduler.queue.pop_nowait() is not None
        _, answer = ask(pod="default/p")
        assert (answer["waiting"]["place"], answer["waiting"]["attempts"]) == ("trying", 1)


@pytest.mark.parametrize(
    ("leader", "message"),
    [
        pytest.param("n7_12", "this replica is on standby; ask the leader, n7_12", id="another leads"),
        pytest.param(
            "", "this replica is on standby and no leader is known yet; try again", id="nobody leads"
        ),
    ],
)
@pytest.mark.parametrize("name", ["waits", "placed", "unknown"])
async def test_a_standby_knows_of_no_decision(name, leader, message):
    async with kept(node("a"), leader=leader) as (stage, _, ask):
        stage.scheduler.queue.close()
        stage.see(pod("placed", on="a"), pod("waits"))
        status, answer = ask(pod=f"default/{name}")
        assert (status, answer["message"]) == (404, message)


async def test_a_pod_of_another_scheduler_that_has_no_node():
    theirs = pod("theirs", schedulerName="other")
    async with kept(node("a")) as (stage, _, ask):
        (watched,) = [each for each in stage.scheduler.reflectors if each.resource is PODS]
        watched.objects["default/theirs"] = object_of(theirs)
        stage.see(theirs)
        status, answer = ask(pod="default/theirs")
        assert (status, answer["message"]) == (
            404,
            "pod default/theirs uses scheduler 'other', which is not a profile of this one "
            "(default-scheduler); it has no node yet",
        )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param(
            "default/nobody",
            "pod default/nobody not found: it has no node and is not pending for this scheduler",
            id="unknown",
        ),
        pytest.param(
            "shop/p",
            "pod shop/p not found: it has no node and is not pending for this scheduler; "
            "did you mean default/p?",
            id="another namespace's",
        ),
        pytest.param(
            "default/theirs",
            "pod default/theirs uses scheduler 'other', which is not a profile of this one "
            "(default-scheduler); it is on a",
            id="another scheduler's",
        ),
        pytest.param(
            "default/old",
            "pod default/old is on a, but its decision is no longer in memory or was made before this "
            "scheduler started",
            id="no longer kept",
        ),
        pytest.param(
            "<script>alert('x')</script>/\n\"'%ß",
            "pod <script>alert('x')</script>/\n\"'%ß not found: it has no node and is not pending for "
            "this scheduler",
            id="odd characters",
        ),
    ],
)
async def test_pods_of_which_nothing_is_known(asked, message):
    others = pod("theirs", on="a", schedulerName="other"), pod("old", on="a")
    async with kept(node("a"), *others, pod("p")) as (_, _, ask):
        status, answer = ask(pod=asked)
        assert (status, answer["kind"], answer["message"]) == (404, "Status", message)


async def test_the_list_has_the_newest_first():
    async with kept(node("a"), *(pod(f"p{number}") for number in range(3))) as (_, decisions, ask):
        _, answer = ask()
        assert (answer["kept"], answer["budget"]) == (3, decisions.budget)
        assert 0 < answer["bytes"] < answer["budget"]
        assert [each["number"] for each in answer["decisions"]] == [3, 2, 1]
        assert [each["number"] for each in ask(after=1, limit=1)[1]["decisions"]] == [3]
        assert ask(limit=0)[1]["decisions"] == []
        assert ask(limit="many")[0] == 400


async def test_a_pod_that_is_gone_when_its_attempt_ends_is_not_kept():
    async with kept(node("a")) as (stage, decisions, _):
        stage.api.hold.clear()
        stage.see(pod("p"))
        await stage.settle()
        stage.change(pod("p"), None)
        stage.api.refuse["bind"] = ApiError(404, "NotFound", "gone")
        stage.api.hold.set()
        await stage.settle()
        assert len(decisions.recent) == 0
