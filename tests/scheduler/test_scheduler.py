"""The running scheduler, from a change it sees to the writes it makes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Status
from stowplan.client.errors import Conflict, NotFound


async def test_a_pending_pod_gets_bound_and_says_so():
    async with staged() as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}
        assert stage.notes("Scheduled") == ["Successfully assigned default/p to n1"]
        assert stage.api.patches == []


async def test_pods_of_others_are_left_alone_but_take_room():
    async with staged() as stage:
        others = (pod("other", schedulerName="other"), pod("theirs", on="n1"))
        stage.see(node("n1", cpu="1"), *others, pod("mine"))
        await stage.settle()
        assert stage.api.bound == {}
        assert stage.api.conditions("default/mine")[0]["message"].startswith(
            "0/1 nodes are available: 1 Insufficient cpu."
        )
        assert stage.api.conditions("default/other") == []


async def test_pods_are_not_decided_long_before_they_can_be_bound():
    async with staged() as stage:
        stage.api.is_idle.clear()
        count = 500
        stage.see(node("n1", cpu="1000", pods="1000"), *(pod(f"p{number}") for number in range(count)))
        await stage.settle()
        decided = len(stage.api.bound)
        assert 0 < decided < count  # those of one turn
        await stage.settle()
        assert len(stage.api.bound) == decided
        stage.api.is_idle.set()
        async with asyncio.timeout(30):
            while len(stage.api.bound) < count:
                await stage.settle()


class SlowToDecide(Plugin):
    """Takes its time over each pod, and several steps before each is bound."""

    decided = 0
    decided_before_first_bind = 0

    def pre_filter(self, state, pod, nodes):
        time.sleep(0.01)
        SlowToDecide.decided += 1

    async def pre_bind(self, state, pod, node_name):
        for _ in range(12):  # four requests take about as many turns of the event loop, with work in each
            sum(range(5000))
            await asyncio.sleep(0)
        SlowToDecide.decided_before_first_bind = self.decided_before_first_bind or self.decided


async def test_slow_decisions_do_not_hold_up_the_bindings_before_them():
    async with staged(**with_plugin(SlowToDecide)) as stage:
        stage.see(node("n1", cpu="100", pods="100"), *(pod(f"p{number}") for number in range(20)))
        await stage.settle()
        assert len(stage.api.bound) == 20
    assert SlowToDecide.decided_before_first_bind <= 4


async def test_a_pod_that_fits_nowhere_waits_until_room_comes():
    async with staged() as stage:
        big = pod("big", on="n1", cpu="4")
        stage.see(node("n1"), big, pod("p"))
        await stage.settle()
        (condition,) = stage.api.conditions("default/p")
        assert (condition["reason"], condition["status"]) == ("Unschedulable", "False")
        assert stage.notes("FailedScheduling") == [condition["message"]]
        stage.change(big, None)
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_the_next_pod_is_decided_while_one_is_being_bound():
    async with staged() as stage:
        stage.api.hold.clear()
        stage.see(node("n1", cpu="2"), pod("a"), pod("b"), pod("c"))
        await stage.settle()
        assert stage.api.bound == {}
        assert "Insufficient cpu" in stage.api.conditions("default/c")[0]["message"]
        stage.api.hold.set()
        await stage.settle()
        assert set(stage.api.bound) == {"default/a", "default/b"}


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Conflict(409, "Conflict", "pod is being changed"), id="conflict"),
        pytest.param(NotFound(404, "NotFound", 'nodes "n1" not found'), id="the node is gone"),
    ],
)
async def test_a_refused_binding_is_undone_and_said(error):
    async with staged() as stage:
        stage.api.refuse["bind"] = error
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (condition,) = stage.api.conditions("default/p")
        assert condition["reason"] == "SchedulerError"
        assert condition["message"] == f'running Bind plugin "DefaultBinder": {error}'
        assert stage.scheduler.cluster.assumed_count == 0
        assert stage.scheduler.queue.counts()["backoff"] == 1


async def test_a_pod_deleted_while_it_is_bound_is_forgotten():
    async with staged() as stage:
        stage.api.hold.clear()
        waiting = pod("p")
        stage.see(node("n1"), waiting)
        await stage.settle()
        stage.change(waiting, None)
        stage.api.refuse["bind"] = NotFound(404, "NotFound", 'pods "p" not found')
        stage.api.hold.set()
        await stage.settle()
        assert stage.scheduler.cluster.assumed_count == 0
        assert stage.api.patches == []
        assert not any(stage.scheduler.queue.counts().values())


async def test_a_pod_that_someone_else_binds_meanwhile_is_not_marked_as_failed():
    async with staged() as stage:
        stage.api.hold.clear()
        waiting = pod("p")
        stage.see(node("n1"), node("n2"), waiting)
        await stage.settle()
        stage.change(waiting, {**waiting, "spec": {**waiting["spec"], "nodeName": "n2"}})
        stage.api.refuse["bind"] = Conflict(409, "Conflict", "already bound")
        stage.api.hold.set()
        await stage.settle()
        assert stage.api.patches == []
        assert stage.notes("FailedScheduling") == []
        assert [each.node_name for each in stage.scheduler.cluster.pods()] == ["n2"]


async def test_nothing_is_bound_without_the_lease():
    async with staged() as stage:
        stage.is_leading = False
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.api.bound == {}
        assert stage.scheduler.cluster.assumed_count == 0


async def test_a_pod_of_higher_priority_has_others_evicted():
    async with staged() as stage:
        low = pod("low", on="n1", cpu="4")
        stage.see(node("n1"), low, pod("high", cpu="2", priority=10))
        await stage.settle()
        assert stage.api.deleted == ["default/low"]
        assert stage.api.conditions("default/low")[0]["reason"] == "PreemptionByScheduler"
        assert ("default/high", "n1") in [
            (name, status.get("nominatedNodeName")) for name, status in stage.api.patches
        ]
        assert stage.notes("Preempted") == ["Preempted by pod uid-high on node n1"]
        stage.change(low, None)
        await stage.settle()
        assert stage.api.bound == {"default/high": "n1"}


async def test_a_refused_eviction_backs_off_instead_of_spinning():
    async with staged() as stage:
        stage.api.refuse["delete"] = Conflict(403, "Forbidden", "admission says no")
        stage.see(node("n1"), pod("low", on="n1", cpu="4"), pod("high", cpu="2", priority=10))
        await stage.settle()
        assert len(stage.notes("FailedScheduling")) == 1
        assert stage.scheduler.queue.counts()["backoff"] == 1


class Holding(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60.0)


class Refusing(Plugin):
    def permit(self, state, pod, node_name):
        return Status.unschedulable("not today")


class Raising(Plugin):
    def reserve(self, state, pod, node_name):
        raise RuntimeError("broken")

    def unreserve(self, state, pod, node_name):
        pass


def with_plugin(plugin: type) -> dict:
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": plugin.__name__}]}}}]}
    return {"config": config, "plugins": {plugin.__name__: plugin}}


async def test_a_pod_waits_for_a_permit():
    async with staged(**with_plugin(Holding)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.api.bound == {}
        (waiting,) = stage.scheduler.waiting
        waiting.allow("Holding")
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_a_pod_that_waits_shows_its_node():
    async with staged(**with_plugin(Holding)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.api.patches == [("default/p", {"nominatedNodeName": "n1"})]
        (waiting,) = stage.scheduler.waiting
        waiting.allow("Holding")
        await stage.settle()
        assert len(stage.api.patches) == 1


async def test_a_pod_that_waits_shows_no_node_without_the_feature():
    options = with_plugin(Holding)
    async with staged(**options, disabled_gates=("NominatedNodeNameForExpectation",)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (waiting,) = stage.scheduler.waiting
        waiting.allow("Holding")
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}
        assert stage.api.patches == []


class Preparing(Plugin):
    """Does something before some pods are bound, and says so beforehand."""

    calls: list[str]

    def pre_bind_pre_flight(self, state, pod, node_name):
        if pod.name == "odd":
            return Status.unschedulable("not an answer to this question")
        return None if pod.name == "busy" else Status.skip()

    async def pre_bind(self, state, pod, node_name):
        self.calls.append(pod.name)


class Unannounced(Plugin):
    calls: list[str]

    async def pre_bind(self, state, pod, node_name):
        self.calls.append(pod.name)


@pytest.mark.parametrize(
    ("kind", "name", "nominated", "called"),
    [
        pytest.param(Preparing, "busy", True, True, id="with work to do"),
        pytest.param(Preparing, "p", False, False, id="without"),
        pytest.param(Unannounced, "p", False, True, id="of a plugin that does not say"),
    ],
)
async def test_only_pods_with_work_before_their_bind_show_their_node(kind, name, nominated, called):
    kind.calls = []
    async with staged(**with_plugin(kind)) as stage:
        stage.see(node("n1"), pod(name))
        await stage.settle()
        assert stage.api.bound == {f"default/{name}": "n1"}
        patch = (f"default/{name}", {"nominatedNodeName": "n1"})
        assert stage.api.patches == ([patch] if nominated else [])
        assert kind.calls == ([name] if called else [])


def volume_objects(**claim: Any) -> list[dict[str, Any]]:
    def named(kind: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
        return {"kind": kind, "metadata": meta | fields.pop("metadata", {}), **fields}

    return [
        named("StorageClass", "slow", provisioner="p", volumeBindingMode="WaitForFirstConsumer"),
        named("PersistentVolume", "v", spec={"capacity": {"storage": "1Gi"}, "storageClassName": "slow"}),
        named("PersistentVolumeClaim", "c", "default", **claim),
    ]


@pytest.mark.parametrize(
    ("claim", "nominated"),
    [
        pytest.param(
            {
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"storageClassName": "slow", "volumeName": "v"},
                "status": {"phase": "Bound"},
            },
            False,
            id="a bound claim",
        ),
        pytest.param({"spec": {"storageClassName": "slow"}}, True, id="a claim that waits for a node"),
    ],
)
async def test_only_pods_with_unbound_claims_show_their_node(claim, nominated):
    async with staged() as stage:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        stage.see(node("n1"), *volume_objects(**claim), pod("p", volumes=volumes))
        await stage.settle()
        assert ("default/p" in stage.api.bound) is not nominated
        shown = [status.get("nominatedNodeName") for _, status in stage.api.patches]
        assert shown[:1] == (["n1"] if nominated else [])  # writing to the volume fails here


async def test_a_wrong_answer_before_the_bind_fails_the_attempt():
    Preparing.calls = []
    async with staged(**with_plugin(Preparing)) as stage:
        stage.see(node("n1"), pod("odd"))
        await stage.settle()
        assert stage.api.bound == {}
        assert Preparing.calls == []
        (condition,) = stage.api.conditions("default/odd")
        assert condition["message"].startswith('running PreBindPreFlight "Preparing": ')
        assert stage.scheduler.cluster.assumed_count == 0


async def test_a_pod_deleted_while_it_waits_is_forgotten():
    async with staged(**with_plugin(Holding)) as stage:
        waiting = pod("p")
        stage.see(node("n1"), waiting)
        await stage.settle()
        stage.change(waiting, None)
        await stage.settle()
        assert stage.scheduler.cluster.assumed_count == 0
        assert list(stage.scheduler.waiting) == []


@pytest.mark.parametrize(
    ("plugin", "reason", "message"),
    [
        pytest.param(Refusing, "Unschedulable", "0/1 nodes are available: 1 not today.", id="permit refuses"),
        pytest.param(
            Raising,
            "SchedulerError",
            'running Reserve plugin "Raising": RuntimeError: broken (pod default/p, node n1, at ',
            id="reserve raises",
        ),
    ],
)
async def test_a_plugin_that_stops_a_pod_after_the_choice(plugin, reason, message):
    async with staged(**with_plugin(plugin)) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (condition,) = stage.api.conditions("default/p")
        assert condition["reason"] == reason
        assert condition["message"].startswith(message)
        assert stage.scheduler.cluster.assumed_count == 0


async def test_stopping_finishes_the_bindings_under_way():
    async with staged() as stage:
        stage.api.hold.clear()
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        stopping = asyncio.create_task(stage.scheduler.stop(5))
        await asyncio.sleep(0)
        stage.api.hold.set()
        await stopping
        assert stage.api.bound == {"default/p": "n1"}


class Broken(random.Random):
    def random(self):
        raise ArithmeticError("no number today")


async def test_what_nobody_foresaw_for_one_pod_does_not_stop_the_others():
    async with staged(draw=Broken()) as stage:
        stage.see(node("n1"), node("n2", cpu="1"), pod("unlucky"))
        await stage.settle()
        (condition,) = stage.api.conditions("default/unlucky")
        assert condition["message"] == "deciding: ArithmeticError: no number today"
        stage.see(pod("lone", cpu="2"))
        await stage.settle()
        assert stage.api.bound == {"default/lone": "n1"}
