"""`stowplan shadow` with pods that are not decided alone: members of groups, and pods of extenders."""

from __future__ import annotations

import re
import threading
import time
from contextlib import asynccontextmanager

import pytest

from other_extender import Raw, other_extender
from shadow_world import ONLY_FIT, PACKING, PODS, node, pod, shadowing
from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.groups import COSCHEDULING, GroupKey
from stowplan.framework.resolve import watched_kinds
from stowplan.replay.shadow import AGREEING

LABEL = "scheduling.x-k8s.io/pod-group"
GROUPS = {
    "schedulerName": "default-scheduler",
    "plugins": {
        "multiPoint": {
            "disabled": [{"name": "*"}],
            "enabled": [
                {"name": "Coscheduling"},
                {"name": "NodeResourcesFit"},
                {"name": "NodeName"},
                {"name": "DefaultBinder"},
            ],
        },
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    },
    "pluginConfig": [PACKING],
}


def group(least):
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"minMember": least},
    }


def member(name, cpu="2"):
    made = pod(name, cpu)
    made["metadata"]["labels"] = {LABEL: "train"}
    return made


@asynccontextmanager
async def with_group(tmp_path, least, *nodes, **points):
    profile = GROUPS | {"plugins": GROUPS["plugins"] | points}
    async with shadowing(tmp_path, f"--plugin-dir={tmp_path}", profile=profile) as world:
        plugins = [
            each for profile in world.service.scheduler.profiles.values() for each in profile.plugins.values()
        ]
        await world.cluster.apply(*(crd_of(kind) for kind in watched_kinds(plugins) if needs_crd(kind)))
        await world.create(*nodes)
        await world.known(nodes[-1]["metadata"]["name"])
        await world.cluster.apply(group(least))
        yield world


async def test_a_group_that_does_not_fit_as_one_has_no_node(tmp_path):
    """Each of its members fits alone."""
    async with with_group(tmp_path, 3, node("a", "4")) as world:
        await world.create(*(member(f"m{number}") for number in range(3)))
        await world.decided("m2")
        for number in range(3):
            await world.reject(f"m{number}")
            found = await world.verdict(f"m{number}")
            assert (found.result, found.live, found.chosen) == ("same", "", "")


RESERVING = """
from stowplan.framework.plugin import ReservingPlugin

class Reserving(ReservingPlugin):
    def reserve(self, state, pod, node_name):
        raise RuntimeError("out of order")
"""


async def test_a_group_that_cannot_be_decided_stops_no_other_pod(tmp_path, caplog):
    (tmp_path / "reserving.py").write_text(RESERVING)
    enabled = {"reserve": {"enabled": [{"name": "Reserving"}]}}
    async with with_group(tmp_path, 2, node("a", "8"), **enabled) as world:
        await world.create(*(member(f"m{number}") for number in range(2)))
        await world.until(lambda: caplog.text.count("Cannot compare pod") == 2)
        for name in ("m0", "m1"):
            await world.bind(name, "a")
            found = await world.verdict(name)
            assert (found.result, "out of order" in found.reason) == ("error", True)
        assert (await world.place(pod("alone"), "a")).result == "same"


async def test_members_of_a_group_are_decided_with_each_other(tmp_path):
    """Two of them fill the small node, which is the better one; which of four equal members is no matter."""
    async with with_group(tmp_path, 4, node("big", "6"), node("small", "4")) as world:
        names = [f"m{number}" for number in range(4)]
        await world.create(*map(member, names))
        await world.decided("m3")
        chosen = [world.service.decisions.recent.of(f"default/{name}")[0].chosen for name in names]
        assert sorted(chosen) == ["big", "big", "small", "small"]
        for name, where in zip(names, ["big", "small", "big", "small"], strict=True):
            await world.bind(name, where)
        results = [(await world.verdict(name)).result for name in names]
        assert set(results) <= {"same", "tie"}, world.verdicts


async def test_a_group_that_the_live_scheduler_places_otherwise_is_policy(tmp_path):
    async with with_group(tmp_path, 2, node("big", "32"), node("small", "4")) as world:
        await world.create(member("m0"), member("m1"))
        await world.decided("m1")
        await world.bind("m0", "big")
        await world.bind("m1", "big")
        for name in ("m0", "m1"):
            found = await world.verdict(name)
            assert (found.result, found.chosen, found.cause) == ("policy", "small", "NodeResourcesFit")


async def test_a_group_that_is_complete_only_later(tmp_path):
    """Both reject its first members, which does not count any more when the last one is there."""
    async with with_group(tmp_path, 3, node("a", "8")) as world:
        groups = world.service.scheduler.cluster.groups
        await world.until(lambda: groups.find(GroupKey(COSCHEDULING, "default", "train")) is not None)
        await world.create(member("m0"), member("m1"))
        for name in ("m0", "m1"):
            await world.reject(name)
            found = await world.verdict(name)
            assert (found.result, found.live, found.chosen) == ("same", "", "")
        await world.create(member("m2"))
        await world.decided("m2")
        for name in ("m0", "m1", "m2"):
            await world.bind(name, "a")
        found = [await world.verdict(name, number) for name, number in (("m0", 2), ("m1", 2), ("m2", 1))]
        assert [(each.result, each.chosen) for each in found] == [("same", "a")] * 3


def extenders(other, **verbs):
    return [{"urlPrefix": other.url, "nodeCacheCapable": True, "httpTimeout": "5s", **verbs}]


async def test_extenders_are_asked_and_never_told_to_bind(tmp_path):
    """Asked once for each pod: their answers count again when the cluster has changed."""
    rejecting = {"NodeNames": ["a", "b"], "FailedNodes": {"best": "not for you"}}
    says = {"filter": lambda body: rejecting, "prioritize": lambda body: [{"Host": "b", "Score": 10}]}
    with other_extender(**says) as other:
        given = extenders(
            other, filterVerb="filter", prioritizeVerb="prioritize", bindVerb="bind", weight=100
        )
        profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
        async with shadowing(tmp_path, profile=profile, extenders=given) as world:
            await world.create(node("a"), node("b"), node("best", "64"))
            await world.known("best")
            assert (await world.place(pod("web"), "b")).result == "same"
            found = await world.place(pod("next"), "best")
            assert (found.result, found.chosen) == ("policy", "b")
            assert "not for you" in found.reason
            await world.create(pod("last"))
            await world.decided("last")
            await world.resize("best", "32")
            await world.bind("last", "b")
            assert (await world.verdict("last")).result == "same"
        assert [verb for verb, _ in other.asked] == ["filter", "prioritize"] * 3


async def test_a_pod_that_is_bound_while_an_extender_answers_is_judged_with_the_answer(tmp_path):
    may_answer = threading.Event()

    def answer(body):
        may_answer.wait(30)
        return {"NodeNames": body["NodeNames"]}

    with other_extender(filter=answer) as other:
        profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
        managed = [{"name": "example.com/gpu"}]
        given = extenders(other, filterVerb="filter", httpTimeout="60s", managedResources=managed)
        async with shadowing(tmp_path, profile=profile, extenders=given) as world:
            for name in "ab":
                made = node(name, "2")
                made["status"]["capacity"]["example.com/gpu"] = "4"
                await world.create(made)
            await world.known("b")
            await world.create(pod("first"), pod("second"))
            await world.decided("second")
            asking = pod("asking")
            asking["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
            await world.create(asking)
            await world.until(lambda: other.asked)
            try:
                for name, where in ("first", "a"), ("second", "b"), ("asking", "a"):
                    await world.bind(name, where)
                last = (await world.cluster.api.get_json(f"{PODS}/asking"))["metadata"]["resourceVersion"]
                (pods,) = (
                    each
                    for each in world.service.scheduler.follower.reflectors
                    if each.resource.name == "pods"
                )
                await world.until(lambda: int(pods.version) >= int(last))
            finally:
                may_answer.set()
            found = [await world.verdict(name) for name in ("first", "second", "asking")]
            assert all(each.result in AGREEING for each in found), found


async def test_an_extender_that_fails_is_an_error(tmp_path):
    with other_extender() as other:
        profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
        given = extenders(other, filterVerb="filter")
        async with shadowing(tmp_path, profile=profile, extenders=given) as world:
            await world.create(node("a"))
            await world.known("a")
            found = await world.place(pod("web"), "a")
            assert found.result == "error"
            assert "404" in found.reason


def hang(body):
    time.sleep(4)
    return {}


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        pytest.param(hang, "no answer within", id="hangs"),
        pytest.param(lambda body: Raw(200, b"garbage"), "", id="garbage"),
        pytest.param(lambda body: Raw(200, b""), "", id="empty"),
        pytest.param(lambda body: [], "", id="a list"),
        pytest.param(lambda body: {"NodeNames": ["ghost"]}, "ghost", id="unknown node"),
        pytest.param(
            lambda body: {"NodeNames": ["a"], "FailedNodes": {"a": "no", "ghost": 5}}, "", id="both"
        ),
    ],
)
async def test_an_extender_that_misbehaves_is_an_error_and_the_next_pods_are_judged(tmp_path, says, reason):
    good = {"NodeNames": ["a"]}
    with other_extender(filter=lambda body: good if is_well else says(body)) as other:
        is_well = False
        profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
        given = extenders(other, filterVerb="filter", httpTimeout="2s")
        async with shadowing(tmp_path, profile=profile, extenders=given) as world:
            await world.create(node("a"))
            await world.known("a")
            found = await world.place(pod("web"), "a")
            assert found.result == "error"
            assert re.search(reason, found.reason)
            is_well = True
            assert (await world.place(pod("next"), "a")).result == "same"
