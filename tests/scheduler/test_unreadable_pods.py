"""Pods that cannot be read: one on a node is never ignored, one that waits says why."""

from __future__ import annotations

import json

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Status
from stowplan.client.api import PODS
from stowplan.client.watch import read_object

UNREADABLE = "node(s) had a pod that cannot be read"


def read(plain):
    item, _ = read_object(PODS, json.dumps(plain).encode())
    assert item is not None
    return item


def with_fault(plain, **spec):
    return {**plain, "spec": {**plain["spec"], **spec}}


def partly(name, **others):
    """A pod with a container that can be read and one that cannot."""
    plain = pod(name, **others)
    broken = {"name": "d", "resources": {"requests": {"cpu": "2", "memory": "plenty"}}}
    return with_fault(plain, containers=[*plain["spec"]["containers"], broken])


def illegible(name, **others):
    return with_fault(pod(name, **others), containers="none of your business")


def used(stage):
    return stage.scheduler.cluster.nodes.requested["cpu"].tolist()


async def test_what_can_be_read_of_a_bound_pod_counts():
    async with staged() as stage:
        stage.see(node("n1"))
        stage.scheduler.handlers.on_event("added", None, read(partly("bad", on="n1")))
        stage.see(pod("next", cpu="1.5"))
        await stage.settle()
        assert used(stage) == [3000]
        assert stage.api.bound == {}
        (note,) = stage.notes("UnreadablePod")
        assert note.startswith(
            "Pod default/bad: spec.containers[1].resources.requests.memory: 'plenty' is not"
        )
        assert note.endswith("; what can be read of it counts")


async def test_a_node_with_a_pod_that_cannot_be_read_at_all_is_closed_until_it_goes():
    async with staged() as stage:
        stage.see(node("n1"))
        bad = read(illegible("bad", on="n1"))
        stage.scheduler.handlers.on_event("added", None, bad)
        tolerant = pod("tolerant", cpu="0", tolerations=[{"operator": "Exists"}])
        stage.see(pod("next"), tolerant)
        await stage.settle()
        assert stage.api.bound == {}
        for name in ("next", "tolerant"):
            (told,) = stage.api.conditions(f"default/{name}")
            assert told["message"].startswith(f"0/1 nodes are available: 1 {UNREADABLE}.")
        regarding = {(event["regarding"]["kind"], event["reason"]) for event in stage.api.events}
        assert {("Pod", "UnreadablePod"), ("Node", "UnreadablePod")} <= regarding
        assert "because pod default/bad cannot be read: Pod default/bad: spec.containers" in str(
            stage.notes("UnreadablePod")
        )
        stage.change(node("n1"), node("n1", cpu="8"))  # a heartbeat does not open it
        await stage.settle()
        assert stage.api.bound == {}
        stage.scheduler.handlers.on_event("deleted", bad, None)
        assert stage.scheduler.queue.counts()["unschedulable"] == 0  # they back off, and are tried again
        assert stage.scheduler.cluster.nodes.allocatable["cpu"].tolist() == [8000]


async def test_a_closed_node_opens_when_the_pod_can_be_read_again():
    async with staged() as stage:
        stage.see(node("n1"))
        bad, good = read(illegible("p", on="n1")), read(pod("p", on="n1"))
        stage.scheduler.handlers.on_event("added", None, bad)
        stage.scheduler.handlers.on_event("modified", bad, good)
        stage.see(pod("next", cpu="2"))
        await stage.settle()
        assert stage.api.bound == {"default/next": "n1"}
        assert stage.scheduler.handlers.unreadable == {}


async def test_a_node_that_comes_after_its_pod_is_closed_too():
    async with staged() as stage:
        stage.scheduler.handlers.on_event("added", None, read(illegible("bad", on="n1")))
        stage.see(node("n1"), node("n2"), pod("next"))
        await stage.settle()
        assert stage.api.bound == {"default/next": "n2"}
        stage.change(node("n1"), None)
        stage.see(node("n1"), pod("other", nodeSelector={"none": "such"}), pod("more"))
        await stage.settle()
        assert stage.api.bound == {"default/next": "n2", "default/more": "n2"}


@pytest.mark.parametrize("make", [partly, illegible])
async def test_a_waiting_pod_that_cannot_be_read_says_why_and_is_tried_once_it_can_be(make):
    async with staged() as stage:
        bad = read(make("p"))
        stage.see(node("n1"))
        stage.scheduler.handlers.on_event("added", None, bad)
        await stage.settle()
        assert stage.api.bound == {}
        (told,) = stage.api.conditions("default/p")
        assert (told["type"], told["status"], told["reason"]) == ("PodScheduled", "False", "SchedulerError")
        assert told["message"].startswith("the pod cannot be read: Pod default/p: spec.containers")
        assert stage.notes("FailedScheduling") == [told["message"]]
        stage.scheduler.handlers.on_event("modified", bad, read(make("p")))  # by our own write
        await stage.settle()
        assert len(stage.api.patches) == 1
        stage.scheduler.handlers.on_event("modified", bad, read(pod("p")))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_a_queued_pod_that_cannot_be_read_any_more_is_not_tried():
    async with staged() as stage:
        good = read(pod("p"))
        stage.scheduler.handlers.on_event("added", None, good)
        await stage.settle()
        stage.scheduler.handlers.on_event("modified", good, read(partly("p")))
        stage.see(node("n1"))
        await stage.settle()
        assert stage.api.bound == {}
        assert not any(stage.scheduler.queue.counts().values())


async def test_pods_of_other_schedulers_are_left_to_them():
    async with staged() as stage:
        stage.scheduler.handlers.on_event("added", None, read(partly("p", schedulerName="other")))
        await stage.settle()
        assert stage.api.patches == []
        assert stage.api.events == []


async def test_a_new_leader_tells_of_what_it_saw_before():
    async with staged() as stage:
        stage.is_leading = False
        stage.see(node("n1"))
        stage.scheduler.handlers.on_event("added", None, read(partly("p")))
        await stage.settle()
        assert stage.api.patches == []
        stage.is_leading = True
        stage.scheduler.start()
        await stage.settle()
        assert len(stage.api.conditions("default/p")) == 1


@pytest.mark.parametrize("text", ["half \ud800", "x" * 5_000_000], ids=["surrogate", "long"])
async def test_a_message_that_cannot_be_written_as_it_is_is_written_as_far_as_it_can_be(text):
    class Refusing(Plugin):
        def pre_filter(self, state, pod, nodes):
            return Status.unschedulable(text)

    profile = {"plugins": {"multiPoint": {"enabled": [{"name": "Refusing"}]}}}
    async with staged({"profiles": [profile]}, {"Refusing": Refusing}) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        (told,) = stage.api.conditions("default/p")
        assert text[:5] in told["message"]
        assert len(json.dumps(told)) < 300_000
        told["message"].encode()
        (note,) = stage.notes("FailedScheduling")
        assert len(note.encode()) <= 1024
