"""The scheduler with extenders of others: each verb, each failure, and what is kept still meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from other_extender import OtherExtender, other_extender
from other_extender import Raw as RawAnswer
from scheduler_staging import Stage, node, pod, staged
from stowplan import log
from stowplan.client.errors import ApiError
from stowplan.errors import ConfigError
from stowplan.explain.report import explain_decision
from stowplan.explain.text import render
from stowplan.framework.decision import Decision
from stowplan.journal import Decisions
from stowplan.queue.waiting import Place


def calling(other: OtherExtender, **fields: Any) -> dict[str, Any]:
    return {"urlPrefix": other.url, "nodeCacheCapable": True, "httpTimeout": "2s", **fields}


def patience(answer: Any) -> str:
    """No longer than it takes for one that does not come; long enough, on a busy machine, for others."""
    return "100ms" if answer == "slow" else "5s"


@asynccontextmanager
async def extended(
    *extenders: dict[str, Any], draw: random.Random | None = None, **config: Any
) -> AsyncIterator[Stage]:
    async with staged({"extenders": list(extenders), **config}, draw=draw, decisions=Decisions()) as stage:
        try:
            yield stage
        finally:
            await stage.scheduler.aclose()


def see(stage: Stage, *objects: dict[str, Any], change: str = "ADDED") -> None:
    """The watch brings objects as the API server writes them."""
    for plain in objects:
        stage.store(plain, None if change == "DELETED" else plain)
        reflector = next(each for each in stage.scheduler.reflectors if each.resource.kind == plain["kind"])
        reflector.on_line(json.dumps({"type": change, "object": plain}).encode())


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


async def failure_of(stage: Stage, name: str = "p") -> str:
    await until(lambda: stage.notes("FailedScheduling") and stage.api.conditions(f"default/{name}"))
    return stage.notes("FailedScheduling")[0]


def condition(stage: Stage, name: str = "p") -> dict[str, Any]:
    return stage.api.conditions(f"default/{name}")[-1]


def keeping(*names: str, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: {"NodeNames": [name for name in body["NodeNames"] if name in names], **more}


# Filter


async def test_a_filter_decides_where_a_pod_may_go():
    with other_extender(filter=keeping("n2")) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), node("n3"), pod("p"))
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n2"}


async def test_the_pod_is_sent_as_the_api_server_wrote_it():
    mine = pod("p", priority=3)
    mine["apiVersion"] = "v1"
    mine["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    mine["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    with other_extender(filter=keeping("n1")) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), mine)
            await until(lambda: stage.api.bound)
        sent = other.bodies("filter")[0]["Pod"]
    assert sent["spec"] == mine["spec"]
    assert sorted(sent) == ["metadata", "spec"]
    assert "managedFields" not in sent["metadata"]


async def test_whole_nodes_are_sent_as_the_api_server_wrote_them_and_usage_still_counts():
    big, small = node("n1", metadata={"name": "n1", "managedFields": [{}]}), node("n2")
    big["status"]["nodeInfo"] = {"kernelVersion": "6"}
    with other_extender(filter=lambda body: {"Nodes": body["Nodes"]}) as other:
        async with extended(calling(other, filterVerb="filter", nodeCacheCapable=False)) as stage:
            see(stage, big, small, pod("there", cpu="3", on="n1"), pod("p"))
            await until(lambda: stage.api.bound)
            # kube-scheduler would take both nodes for empty ones here, and draw
            assert stage.api.bound == {"default/p": "n2"}
        body = other.bodies("filter")[0]
    assert body["NodeNames"] is None
    assert body["Nodes"]["metadata"] == {}
    sent = {item["metadata"]["name"]: item for item in body["Nodes"]["items"]}
    assert sent["n1"] == {key: value for key, value in big.items() if key != "kind"}


async def test_filters_are_asked_in_order_about_ever_fewer_nodes_and_ignorable_ones_last():
    with (
        other_extender(filter=keeping("n1", "n2")) as first,
        other_extender(filter=keeping("n2", "n3")) as second,
        other_extender(filter=keeping("n2")) as ignorable,
    ):
        async with extended(
            calling(ignorable, filterVerb="filter", ignorable=True),
            calling(first, filterVerb="filter"),
            calling(second, filterVerb="filter"),
        ) as stage:
            see(stage, node("n1"), node("n2"), node("n3"), pod("p"))
            await until(lambda: stage.api.bound)
        assert [sorted(each.bodies("filter")[0]["NodeNames"]) for each in (first, second, ignorable)] == [
            ["n1", "n2", "n3"],
            ["n1", "n2"],
            ["n2"],
        ]


async def test_plugins_filter_first_and_nobody_is_asked_about_nothing():
    with other_extender(filter=keeping("n1", "n2"), prioritize=lambda body: []) as other:
        config = calling(other, filterVerb="filter", prioritizeVerb="prioritize", weight=1)
        async with extended(config) as stage:
            see(stage, node("n1"), node("n2", cpu="1"), pod("p", cpu="2"))
            await until(lambda: stage.api.bound)
            see(stage, pod("q", cpu="9"))
            assert "Insufficient cpu" in await failure_of(stage, "q")
        assert [body["NodeNames"] for body in other.bodies("filter")] == [["n1"]]
        assert not other.bodies("prioritize")  # a lone node is taken as it is


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(
            {"NodeNames": [], "FailedNodes": {"n1": "too old", "n2": "too new"}},
            "0/2 nodes are available: 1 too new, 1 too old. no new claims to deallocate, preemption: "
            "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
            id="reasons",
        ),
        pytest.param(
            {
                "NodeNames": [],
                "FailedNodes": {"n1": "too old", "n2": "too new"},
                "FailedAndUnresolvableNodes": {"n1": "never"},
            },
            "0/2 nodes are available: 1 never, 1 too new. no new claims to deallocate, preemption: 0/2 nodes "
            "are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for "
            "scheduling.",
            id="for good wins",
        ),
        pytest.param(
            {},
            "0/2 nodes are available: no new claims to deallocate, preemption: 0/2 nodes are available: "
            "2 Preemption is not helpful for scheduling.",
            id="no reasons",
        ),
    ],
)
async def test_refusals_are_told_as_kube_scheduler_tells_them(answer, message):
    with other_extender(filter=lambda body: answer) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            assert await failure_of(stage) == message
            assert condition(stage)["reason"] == "Unschedulable"


async def test_a_pod_that_an_extender_refused_waits_for_any_event():
    with other_extender(filter=lambda body: {}) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), pod("p"))
            await failure_of(stage)
            (waiting,) = stage.scheduler.queue
            assert (waiting.rejectors, waiting.place) == ({"Extender"}, Place.UNSCHEDULABLE)
            other.says["filter"] = keeping("n2")
            see(stage, node("n2"))
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n2"}


FAILURES = [
    pytest.param(RawAnswer(500, b""), "failed filter with extender at URL {url}/filter, code 500", id="500"),
    pytest.param(
        RawAnswer(200, b"garbage"),
        'cannot decode the response of the extender at URL "{url}/filter": is not JSON',
        id="garbage",
    ),
    pytest.param(
        {"NodeNames": ["ghost"]},
        'extender "{url}" claims a filtered node "ghost" which is not found in the input node list',
        id="an unknown node",
    ),
    pytest.param({"Error": "out of order"}, 'extender "{url}": out of order', id="an error of its own"),
    pytest.param("slow", 'Post "{url}/filter": no answer within 0.1s', id="after the time-out, or never"),
]


@pytest.mark.parametrize(("answer", "fault"), FAILURES)
async def test_a_failing_filter_fails_the_attempt_and_the_pod_says_why(answer, fault):
    over = threading.Event()
    with other_extender(filter=lambda body: over.wait(5) and {} if answer == "slow" else answer) as other:
        async with extended(calling(other, filterVerb="filter", httpTimeout=patience(answer))) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            assert (await failure_of(stage)).startswith(fault.format(url=other.url))
            assert condition(stage)["reason"] == "SchedulerError"
            assert [each.place for each in stage.scheduler.queue] == [Place.BACKOFF]
        over.set()


@pytest.mark.parametrize(("answer", "fault"), FAILURES)
async def test_a_failing_filter_that_is_ignorable_is_passed_over(answer, fault):
    over = threading.Event()
    with other_extender(filter=lambda body: over.wait(5) and {} if answer == "slow" else answer) as other:
        config = calling(other, filterVerb="filter", ignorable=True, httpTimeout=patience(answer))
        async with extended(config) as stage:
            see(stage, node("n1"), pod("p"))
            await until(lambda: stage.api.bound)
        over.set()


async def test_a_promised_node_is_asked_about_first_and_alone():
    promised = pod("p")
    promised["status"] = {"nominatedNodeName": "n2"}
    with other_extender(filter=lambda body: {"NodeNames": body["NodeNames"]}) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), promised)
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n2"}
        assert [body["NodeNames"] for body in other.bodies("filter")] == [["n2"]]


async def test_a_failure_at_the_promised_node_leaves_the_others():
    promised = pod("p")
    promised["status"] = {"nominatedNodeName": "n2"}
    with other_extender(
        filter=lambda body: RawAnswer(500, b"") if len(body["NodeNames"]) == 1 else {"NodeNames": ["n1"]}
    ) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), promised)
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n1"}


# Prioritize


async def test_scores_count_with_their_weights_beside_those_of_plugins():
    with (
        other_extender(
            score=lambda body: [{"Host": "n1", "Score": 10}, {"Host": "ghost", "Score": 9}]
        ) as one,
        other_extender(score=lambda body: [{"Host": "n2", "Score": 4}]) as two,
    ):
        async with extended(
            calling(one, prioritizeVerb="score", weight=1), calling(two, prioritizeVerb="score", weight=3)
        ) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n2"}  # 4 × 3 is more than 10 × 1


async def test_scores_are_asked_for_side_by_side():
    both = threading.Barrier(2)
    with other_extender(score=lambda body: both.wait(5) * 0 or []) as one:
        async with extended(*[calling(one, prioritizeVerb="score", weight=1, httpTimeout="4s")] * 2) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            await until(lambda: stage.api.bound)
        assert len(one.bodies("score")) == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(RawAnswer(500, b""), id="500"),
        pytest.param(RawAnswer(200, b"garbage"), id="garbage"),
        pytest.param([{"Host": "n1", "Score": 2**70}], id="no score"),
        pytest.param("slow", id="after the time-out, or never"),
    ],
)
async def test_a_failing_prioritize_gives_no_points(answer):
    over = threading.Event()
    with (
        other_extender(score=lambda body: over.wait(5) and [] if answer == "slow" else answer) as bad,
        other_extender(score=lambda body: [{"Host": "n2", "Score": 1}]) as good,
    ):
        async with extended(
            calling(bad, prioritizeVerb="score", weight=9, httpTimeout=patience(answer)),
            calling(good, prioritizeVerb="score", weight=1),
        ) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n2"}
        over.set()


async def test_without_score_plugins_extenders_alone_decide():
    profile = {"plugins": {"score": {"disabled": [{"name": "*"}]}, "preScore": {"disabled": [{"name": "*"}]}}}
    with other_extender(score=lambda body: [{"Host": "n1", "Score": 1}]) as other:
        async with extended(calling(other, prioritizeVerb="score", weight=1), profiles=[profile]) as stage:
            see(stage, node("n1", cpu="2"), node("n2", cpu="64"), pod("p"))
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/p": "n1"}


async def test_an_extender_that_agrees_to_all_changes_nothing():
    agreeable = {
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "prioritizeVerb": "score",
        "weight": 7,
    }
    outcomes = []
    with other_extender(
        filter=lambda body: {"NodeNames": body["NodeNames"]},
        preempt=lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]},
        score=lambda body: [{"Host": name, "Score": 5} for name in body["NodeNames"]],
    ) as other:
        for configs in ([], [calling(other, **agreeable)]):
            async with extended(*configs, draw=random.Random(7)) as stage:
                see(stage, *(node(f"n{number}", cpu=str(1 + number % 3)) for number in range(9)))
                see(stage, pod("wide", cpu="3", on="n2"), node("far", spec={"unschedulable": True}))
                for number in range(20):
                    see(stage, pod(f"p{number}", cpu=f"{300 + 97 * number}m", priority=number % 4))
                see(stage, pod("named", nodeSelector={"no": "such"}), pod("last", cpu="2", priority=9))
                await until(
                    lambda stage=stage: (
                        stage.notes("FailedScheduling") and not stage.scheduler.queue.counts()["active"]
                    )
                )
                await until(lambda stage=stage: not len(stage.scheduler.queue.in_flight))
                await stage.settle()
                outcomes.append(
                    (stage.api.bound, sorted(stage.notes("FailedScheduling")), sorted(stage.api.deleted))
                )
    assert len(outcomes[0][0]) > 5
    assert outcomes[0][2]
    assert outcomes[1] == outcomes[0]


# Managed resources


async def test_only_pods_that_name_a_managed_resource_are_an_extenders_business():
    gpus = {"containers": [{"name": "c", "resources": {"limits": {"e.com/gpu": "1"}}}]}
    managed = [{"name": "e.com/gpu", "ignoredByScheduler": True}]
    with other_extender(filter=keeping("n1")) as other:
        async with extended(calling(other, filterVerb="filter", managedResources=managed)) as stage:
            see(stage, node("n1"), node("n2", cpu="64"), pod("plain"), pod("with-gpu", **gpus))
            await until(lambda: len(stage.api.bound) == 2)
        assert stage.api.bound["default/with-gpu"] == "n1"  # no node has any: the scheduler does not count it
        assert [body["Pod"]["metadata"]["name"] for body in other.bodies("filter")] == ["with-gpu"]


async def test_what_extenders_manage_replaces_what_the_profile_ignores():
    profile = {"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignoredResources": ["e.com/mine"]}}]}
    managed = [{"name": "e.com/gpu", "ignoredByScheduler": True}, {"name": "e.com/counted"}]
    with other_extender(filter=keeping("n1")) as other:
        config = calling(other, filterVerb="filter", managedResources=managed)
        async with extended(config, profiles=[profile]) as stage:
            (found,) = stage.scheduler.profiles.values()
            assert found.plugins["NodeResourcesFit"].args.as_json()["ignoredResources"] == ["e.com/gpu"]


async def test_nothing_to_ignore_in_is_an_error_at_the_start():
    profile = {"plugins": {"multiPoint": {"disabled": [{"name": "NodeResourcesFit"}]}}}
    managed = [{"name": "e.com/gpu", "ignoredByScheduler": True}]
    with other_extender() as other, pytest.raises(ConfigError, match="can't find NodeResourcesFitArgs"):
        async with extended(calling(other, managedResources=managed), profiles=[profile]):
            pass


HOSTILE = [
    pytest.param(b"[" * 100_000, id="deep"),
    pytest.param(b'{"x":' * 300_000 + b"1" + b"}" * 300_000, id="deep, whole"),
    pytest.param(b" " * (33 << 20), id="too large"),
    pytest.param(b'{"Error":"\xff"}', id="not UTF-8"),
    pytest.param(b'{"NodeNames":NaN}', id="NaN"),
]


@pytest.mark.parametrize("data", HOSTILE)
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_hostile_answers_of_an_ignorable_extender_are_skipped(verb, data):
    with other_extender(**{verb: lambda body: RawAnswer(200, data)}) as other:
        config = calling(other, ignorable=True, weight=1, httpTimeout="20s", **{f"{verb}Verb": verb})
        async with extended(config) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            await until(lambda: stage.api.bound)


@pytest.mark.parametrize("data", HOSTILE)
async def test_hostile_answers_of_another_extender_fail_the_pod_and_no_other(data):
    def answer(body: dict[str, Any]) -> Any:
        return RawAnswer(200, data) if body["Pod"]["metadata"]["name"] == "p" else {"NodeNames": ["n1"]}

    with other_extender(filter=answer) as other:
        async with extended(calling(other, filterVerb="filter", httpTimeout="20s")) as stage:
            see(stage, node("n1"), node("n2"), pod("p"), pod("q"))
            assert other.url in await failure_of(stage)
            await until(lambda: stage.api.bound)
            assert stage.api.bound == {"default/q": "n1"}


# Preempt


def full(stage: Stage) -> None:
    see(stage, node("n1", cpu="1"), node("n2", cpu="1"), pod("a", on="n1"), pod("b", on="n2", priority=1))


def agree(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        given = body["NodeNameToMetaVictims"]
        return {"NodeNameToMetaVictims": {name: given[name] for name in names}}

    return answer


async def test_an_extender_may_veto_victims():
    with other_extender(preempt=agree("n2")) as other:
        async with extended(calling(other, preemptVerb="preempt")) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
            assert stage.api.deleted == ["default/b"]  # without it, a is less important
        assert other.bodies("preempt")[0]["NodeNameToMetaVictims"] == {
            "n1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0},
            "n2": {"Pods": [{"UID": "uid-b"}], "NumPDBViolations": 0},
        }


async def test_whole_victims_for_an_extender_that_does_not_know_them():
    def veto(body: dict[str, Any]) -> dict[str, Any]:
        uids = {name: each["Pods"][0]["metadata"]["uid"] for name, each in body["NodeNameToVictims"].items()}
        return {"NodeNameToMetaVictims": {"n2": {"Pods": [{"UID": uids["n2"]}]}}}

    with other_extender(preempt=veto) as other:
        async with extended(calling(other, preemptVerb="preempt", nodeCacheCapable=False)) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
            assert stage.api.deleted == ["default/b"]


async def test_the_next_extender_sees_what_the_one_before_left():
    with other_extender(preempt=agree("n1")) as first, other_extender(preempt=agree("n1")) as second:
        async with extended(*(calling(each, preemptVerb="preempt") for each in (first, second))) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
        assert list(second.bodies("preempt")[0]["NodeNameToMetaVictims"]) == ["n1"]


async def test_a_victim_named_twice_is_evicted_once():
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        return {"NodeNameToMetaVictims": {"n2": {"Pods": [{"UID": "uid-b"}] * 50}}}

    with other_extender(preempt=answer) as other:
        async with extended(calling(other, preemptVerb="preempt")) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
            await stage.settle()
            assert stage.api.deleted == ["default/b"]


async def test_budgets_beyond_int64_are_an_error_of_the_extender():
    violations = {"n1": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 2**63}}
    with other_extender(preempt=lambda body: {"NodeNameToMetaVictims": violations}) as other:
        async with extended(calling(other, preemptVerb="preempt")) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            assert "cannot decode the response" in await failure_of(stage)


async def test_budgets_are_counted_as_the_extender_counts_them():
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        found = body["NodeNameToMetaVictims"]
        found["n1"]["NumPDBViolations"] = 3
        return {"NodeNameToMetaVictims": found}

    with other_extender(preempt=answer) as other:
        async with extended(calling(other, preemptVerb="preempt")) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
            assert stage.api.deleted == ["default/b"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(
            {"NodeNameToMetaVictims": {}},
            "no new claims to deallocate, preemption: no candidate node for preemption",
            id="all nodes dropped",
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-b"}]}}},
            "preemption: extender: {url} claims to preempt pod (UID: uid-b) on node: n1, but the pod is not "
            "found on that node",
            id="a pod of another node",
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"ghost": {"Pods": [{"UID": "uid-b"}]}}},
            'preemption: extender: {url} claims to preempt on node "ghost", which is unknown',
            id="an unknown node",
        ),
        pytest.param(
            {"NodeNameToMetaVictims": {"n1": {"Pods": []}}},
            'preemption: extender: {url}: expected at least one victim pod on node "n1"',
            id="no victims",
        ),
        pytest.param(
            RawAnswer(500, b""),
            "preemption: failed preempt with extender at URL {url}/preempt, code 500",
            id="500",
        ),
        pytest.param(
            RawAnswer(200, b"garbage"),
            'preemption: cannot decode the response of the extender at URL "{url}/preempt": is not JSON',
            id="garbage",
        ),
        pytest.param(
            "slow",
            'preemption: Post "{url}/preempt": no answer within 0.1s',
            id="after the time-out, or never",
        ),
    ],
)
async def test_no_agreement_no_eviction(answer, said):
    over = threading.Event()
    with other_extender(preempt=lambda body: over.wait(5) and {} if answer == "slow" else answer) as other:
        async with extended(calling(other, preemptVerb="preempt", httpTimeout=patience(answer))) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            message = await failure_of(stage)
            expected = f"0/2 nodes are available: 2 Insufficient cpu. {said.format(url=other.url)}"
            assert message.startswith(expected)
            assert not stage.api.deleted
            assert not any("nominatedNodeName" in status for _, status in stage.api.patches)
        over.set()


@pytest.mark.parametrize(
    ("answer", "evicted"),
    [
        pytest.param(RawAnswer(500, b""), ["default/a"], id="an error"),
        pytest.param(
            {"NodeNameToMetaVictims": {"n1": {"Pods": []}, "n2": {"Pods": [{"UID": "uid-b"}]}}},
            ["default/b"],
            id="a node without victims is dropped",
        ),
    ],
)
async def test_an_ignorable_extender_does_not_keep_others_from_preempting(answer, evicted):
    with other_extender(preempt=lambda body: answer) as other:
        async with extended(calling(other, preemptVerb="preempt", ignorable=True)) as stage:
            full(stage)
            see(stage, pod("p", priority=9))
            await until(lambda: stage.api.deleted)
            assert stage.api.deleted == evicted


# Bind


async def test_an_extender_binds_in_the_place_of_the_plugins():
    with other_extender(bind=lambda body: {}) as other:
        async with extended(calling(other, bindVerb="bind")) as stage:
            see(stage, node("n1"), pod("p"))
            await until(lambda: stage.notes("Scheduled"))
            assert not stage.api.bound
        assert other.bodies("bind") == [
            {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n1"}
        ]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        pytest.param({"Error": "not today"}, 'extender "{url}": not today', id="an error of its own"),
        pytest.param(RawAnswer(500, b""), "failed bind with extender at URL {url}/bind, code 500", id="500"),
        pytest.param(
            RawAnswer(200, b"garbage"),
            'cannot decode the response of the extender at URL "{url}/bind": is not JSON',
            id="garbage",
        ),
        pytest.param("slow", 'Post "{url}/bind": no answer within 0.1s', id="after the time-out, or never"),
    ],
)
async def test_a_bind_that_fails_gives_the_room_back(answer, fault):
    over = threading.Event()
    with other_extender(bind=lambda body: over.wait(5) and {} if answer == "slow" else answer) as other:
        async with extended(calling(other, bindVerb="bind", httpTimeout=patience(answer))) as stage:
            see(stage, node("n1"), pod("p"))
            assert (await failure_of(stage)).startswith(fault.format(url=other.url))
            assert condition(stage)["reason"] == "SchedulerError"
            assert stage.scheduler.cluster.nodes.pod_count.tolist() == [0]
            assert not stage.api.bound
        over.set()


async def test_plugins_bind_where_an_ignorable_extender_fails():
    with other_extender(bind=lambda body: RawAnswer(500, b"")) as other:
        async with extended(calling(other, bindVerb="bind", ignorable=True)) as stage:
            see(stage, node("n1"), pod("p"))
            await until(lambda: stage.api.bound)


async def test_a_bind_whose_answer_was_lost_counts_if_it_was_done():
    with other_extender(bind=lambda body: RawAnswer(200, b"garbage")) as other:
        async with extended(calling(other, bindVerb="bind")) as stage:
            see(stage, node("n1"), pod("p"))
            stage.store(pod("p"), pod("p", on="n1"))
            await until(lambda: stage.notes("Scheduled"))
            assert not stage.notes("FailedScheduling")


async def test_extenders_bind_only_what_they_manage():
    with other_extender(bind=lambda body: {}) as other:
        async with extended(
            calling(other, bindVerb="bind", managedResources=[{"name": "e.com/gpu"}])
        ) as stage:
            see(stage, node("n1"), pod("p"))
            await until(lambda: stage.api.bound)
        assert not other.asked


# Nothing changes under a decision


class Held:
    """Answers when it is told to."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        self._answer, self.asked, self.may_go = answer, threading.Event(), threading.Event()

    def __call__(self, body: dict[str, Any]) -> Any:
        self.asked.set()
        self.may_go.wait(5)
        return self._answer(body)


async def test_what_happens_meanwhile_is_taken_in_after_the_decision():
    held = Held(lambda body: {"NodeNames": body["NodeNames"]})
    with other_extender(filter=held) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            nodes = stage.scheduler.cluster.nodes
            see(stage, node("n1"), node("n2", cpu="64"), node("n3", cpu="64"), pod("p", cpu="2"))
            await until(held.asked.is_set)
            before = nodes.names.copy(), nodes.requested["cpu"].tolist(), nodes.allocatable["cpu"].tolist()
            see(stage, node("n1"), change="DELETED")
            see(stage, node("n0", cpu="999"), pod("other", cpu="60", on="n2"))
            smaller = node("n3", cpu="1", metadata={"name": "n3", "resourceVersion": "2"})
            see(stage, smaller, change="MODIFIED")
            await stage.settle()
            assert (nodes.names, nodes.requested["cpu"].tolist(), nodes.allocatable["cpu"].tolist()) == before
            held.may_go.set()
            await until(lambda: stage.api.bound)
            # n0 is larger by far, but was not there; n2 and n3 were equally good
            assert stage.api.bound["default/p"] in ("n2", "n3")
            assert sorted(nodes.names) == ["n0", "n2", "n3"]
            assert nodes.requested["cpu"][nodes.row_of("n2")] >= 60_000
            assert nodes.allocatable["cpu"][nodes.row_of("n3")] == 1_000


async def test_a_binding_that_fails_meanwhile_gives_its_room_back_after_the_decision():
    held = Held(keeping("n1", "n2"))
    with other_extender(filter=held) as other:
        async with extended(
            calling(other, filterVerb="filter", managedResources=[{"name": "e.com/gpu"}])
        ) as stage:
            gpu = {"containers": [{"name": "c", "resources": {"requests": {"e.com/gpu": "0"}}}]}
            stage.api.refuse["bind"] = ApiError(403, "Forbidden", "no")
            stage.api.hold.clear()
            see(stage, node("n1"), node("n2"), pod("first"), pod("p", **gpu))
            await until(held.asked.is_set)
            stage.api.hold.set()
            await stage.settle()
            assert sum(stage.scheduler.cluster.nodes.pod_count) == 1
            assert not stage.notes("FailedScheduling")
            held.may_go.set()
            await until(lambda: len(stage.notes("FailedScheduling")) == 2)
            assert sum(stage.scheduler.cluster.nodes.pod_count) == 0


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        pytest.param(pod("p"), pod("p"), "DELETED", id="the pod is deleted"),
        pytest.param(pod("p"), pod("p", on="n2"), "MODIFIED", id="someone else binds it"),
    ],
)
async def test_a_pod_that_is_gone_meanwhile_is_not_placed(old, new, change):
    held = Held(keeping("n1"))
    with other_extender(filter=held) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), node("n2"), old)
            await until(held.asked.is_set)
            new["metadata"]["resourceVersion"] = "2"
            see(stage, new, change=change)
            held.may_go.set()
            await until(lambda: not len(stage.scheduler.queue.in_flight))
            assert not stage.api.bound
            assert not stage.api.patches
            assert not stage.notes("FailedScheduling")


async def test_a_node_that_is_gone_meanwhile_is_not_bound_to():
    held = Held(keeping("n1"))
    with other_extender(filter=held) as other:
        async with extended(calling(other, filterVerb="filter")) as stage:
            see(stage, node("n1"), pod("p"))
            await until(held.asked.is_set)
            see(stage, node("n1"), change="DELETED")
            held.may_go.set()
            assert (await failure_of(stage)).startswith('node "n1" was deleted before')


async def test_other_work_goes_on_while_an_extender_thinks():
    held = Held(keeping("n1"))
    with other_extender(filter=held) as other:
        async with extended(
            calling(other, filterVerb="filter", managedResources=[{"name": "e.com/gpu"}])
        ) as stage:
            gpu = {"containers": [{"name": "c", "resources": {"requests": {"e.com/gpu": "0"}}}]}
            stage.api.hold.clear()
            see(stage, node("n1"), pod("first"), pod("p", **gpu))
            await until(held.asked.is_set)
            stage.api.hold.set()
            await until(lambda: stage.api.bound == {"default/first": "n1"})  # the binding of another pod
            held.may_go.set()
            await until(lambda: len(stage.api.bound) == 2)


# What is seen of it


async def decided(stage: Stage, name: str) -> Decision:
    see(stage, pod(name))
    recorder = stage.scheduler.shared.recorder
    await until(lambda: recorder.decisions.recent.of(f"default/{name}"))
    return recorder.decisions.recent.of(f"default/{name}")[0].decision()


async def test_the_decision_has_what_extenders_refused_and_scored(caplog):
    says = {
        "filter": keeping("n1", "n2", FailedNodes={"n3": "too old"}),
        "score": lambda body: [{"Host": "n1", "Score": 3}],
    }
    with other_extender(**says) as other:
        config = calling(other, filterVerb="filter", prioritizeVerb="score", weight=2)
        async with extended(config) as stage:
            see(stage, node("n1"), node("n2"), node("n3"))
            log.set_verbosity(5)
            try:
                decision = await decided(stage, "p")
            finally:
                log.set_verbosity(0)
            name = f"Extender {other.url}"
            golden = decision.as_golden()
            assert golden["rejected"] == {
                "n3": {"code": "Unschedulable", "reasons": ["too old"], "plugin": name}
            }
            assert golden["scores"][name] == {"n1": 60, "n2": 0}
            assert golden["totals"]["n1"] - golden["totals"]["n2"] == 60
            text = render(explain_decision(decision, stage.scheduler.cluster.nodes, "default-scheduler"))
            assert "too old" in text
            assert "It beats n2 by 60" in text
    logged = [(each.getMessage(), each.fields) for each in caplog.records]
    assert any(
        message == "Plugin rejected node for pod"
        and (fields["plugin"], fields["node"], fields["status"]) == (name, "n3", "too old")
        for message, fields in logged
    )
    scored = [fields for message, fields in logged if message == "Plugin scored node for pod"]
    assert [(each["plugin"], each["node"], each["score"]) for each in scored] == [
        (name, "n1", 60),
        (name, "n2", 0),
    ]


async def test_the_time_of_extenders_counts_for_no_extension_point():
    with other_extender(filter=keeping("n1", "n2"), score=lambda body: []) as other:
        config = calling(other, filterVerb="filter", prioritizeVerb="score", weight=1)
        async with extended(config) as stage:
            see(stage, node("n1"), node("n2"), pod("p"))
            await until(lambda: stage.api.bound)
            page = stage.scheduler.metrics.render().decode()
    counted = 'scheduler_framework_extension_point_duration_seconds_count{{extension_point="{}"'
    for point in ("PreFilter", "Filter", "PreScore", "Score"):
        assert counted.format(point) in page
    assert counted.format("") not in page
    assert 'scheduler_goroutines{operation="prioritizing_extender"} 0' in page
    assert other.url not in page
