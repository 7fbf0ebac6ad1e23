"""Queues, quotas and HyperNodes that nobody should write: each says what to do, and nothing hangs."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from make import planner
from scheduler_staging import node, pod, staged
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.controllers.groups import QueueAdmission
from stowplan.framework.handle import Handle
from stowplan.plugins.community.volcano_queue import VolcanoQueueArgs

HUGE = "9" * 400
QUEUES = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}, {"name": "VolcanoQueue"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "VolcanoQueue"}]},
    },
    "pluginConfig": [{"name": "VolcanoQueue", "args": {"policy": "capacity"}}],
}
QUOTAS = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "CapacityScheduling"}]},
        "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
    }
}
HYPER = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    }
}
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
VOLCANO, X_K8S = "scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"


def item(kind, name, api_version, namespace="", status=None, **spec):
    meta = {"name": name, "uid": f"uid-{kind}-{name}", "resourceVersion": "1"}
    meta |= {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": meta,
        "spec": spec,
        "status": status or {},
    }


def queue(name, **spec):
    return item("Queue", name, VOLCANO, **spec)


def quota(name="q", **spec):
    return item("ElasticQuota", name, X_K8S, "default", **spec)


def in_queue(name, queue_name):
    plain = pod(name)
    plain["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": queue_name}
    return plain


def hostile_stage(profile):
    return staged(config={"profiles": [profile]}, draw=random.Random(1))


def text_of(stage, name):
    found = stage.api.conditions(f"default/{name}")
    return found[-1]["message"] if found else ""


@pytest.mark.parametrize(
    ("queues", "text"),
    [
        pytest.param(
            [queue("q", parent="q")],
            'queue "q" is below itself (q -> q); change spec.parent of one of them',
            id="its own parent",
        ),
        pytest.param(
            [queue("q", parent="r"), queue("r", parent="s"), queue("s", parent="r")],
            'queue "q" is below itself (q -> r -> s -> r); change spec.parent of one of them',
            id="a cycle above",
        ),
        pytest.param(
            [queue("q", parent="gone")],
            'queue "q" has the parent "gone", which does not exist; create that Queue, or change spec.parent',
            id="a parent that does not exist",
        ),
        pytest.param(
            [queue("q", parent="q1"), *(queue(f"q{each}", parent=f"q{each + 1}") for each in range(1, 60))],
            "levels below the root; change spec.parent",
            id="a deep tree",
        ),
        pytest.param([queue("other")], 'queue "q" does not exist; create the Queue', id="unknown"),
        pytest.param(
            [queue("q", capability={"cpu": "-5"})], "cpu: used 0, requested 1, limit 0", id="negative"
        ),
    ],
)
async def test_queues_that_cannot_work(queues, text):
    async with hostile_stage(QUEUES) as stage:
        stage.see(node("n1"), *queues, in_queue("p", "q"), pod("fine"))
        await stage.settle()
        assert text in text_of(stage, "p")
        assert stage.api.bound == {"default/fine": "n1"}


async def test_a_queue_says_what_is_wrong_with_it():
    async with hostile_stage(QUEUES) as stage:
        bad = queue(
            "q",
            parent="q",
            weight=-3,
            deserved={"cpu": "-1"},
            capability={"cpu": 2},
            guarantee={"resource": {"cpu": 4}},
        )
        stage.see(node("n1"), bad, pod("p"))
        await stage.settle()
        (note,) = stage.notes("InvalidQueue")
        assert "is below itself" in note
        assert "spec.deserved.cpu is -1, which counts as 0" in note
        assert "spec.guarantee.resource.cpu is more than spec.capability.cpu" in note
        assert "spec.weight is -3, which counts as 1" in note


@pytest.mark.parametrize("policy", ["proportion", "capacity"])
async def test_absurd_amounts_of_queues(policy):
    profile = {**QUEUES, "pluginConfig": [{"name": "VolcanoQueue", "args": {"policy": policy}}]}
    async with hostile_stage(profile) as stage:
        everything = {"cpu": HUGE, "memory": "1e300", "example.com/x": HUGE}
        stage.see(node("n1"), queue("q", capability=everything, deserved=everything))
        stage.see(queue("r", guarantee={"resource": everything}), in_queue("p", "q"), in_queue("s", "r"))
        await stage.settle()
        assert "default/s" in stage.api.bound
        # The other queue's guarantee leaves nothing for this one.
        assert 'queue "q" has no room' in text_of(stage, "p")


class RecordingApi:
    def __init__(self):
        self.admitted = []

    async def update_status(self, item):
        self.admitted.append(item.name)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"minResources": {"cpu": HUGE}}, id="huge"),
        pytest.param({"minResources": {"cpu": "-5"}}, id="negative"),
        pytest.param({"minResources": {"": "1", "a b/c": "1"}}, id="no such resources"),
        pytest.param({"minResources": {"cpu": "1"}, "minMember": -(2**31)}, id="a negative minimum"),
        pytest.param({"queue": "nope"}, id="an unknown queue"),
        pytest.param({"queue": "loop"}, id="a queue in a loop"),
        pytest.param({"queue": "\ud83d\ude00" * 1000}, id="no name"),
        pytest.param({"priorityClassName": "gone"}, id="an unknown class"),
    ],
)
async def test_a_group_that_cannot_be_admitted_holds_up_no_other(spec):
    cluster, api, notes = Cluster(), RecordingApi(), []
    for plain in (
        node("n1"),
        queue("default"),
        queue("loop", parent="loop"),
        item("PodGroup", "bad", VOLCANO, "default", **spec),
        item("PodGroup", "good", VOLCANO, "default", minMember=1, minResources={"cpu": "1"}),
    ):
        cluster.apply(object_of(plain))
    handle = Handle(cluster, api=api, record_event=lambda *event: notes.append(event))
    admission = QueueAdmission(VolcanoQueueArgs(), handle)
    for _ in range(5):
        await admission.admit_all()
    assert "good" in api.admitted
    assert api.admitted.count("good") == 1
    assert len(notes) <= 1  # said once


async def test_quotas_say_what_is_wrong_with_them():
    async with hostile_stage(QUOTAS) as stage:
        stage.see(node("n1"), quota(min={"cpu": 8}, max={"cpu": 2, "memory": "-1Gi"}), quota("r"))
        stage.see(*(pod(f"p{number}") for number in range(3)))
        await stage.settle()
        notes = stage.notes("InvalidElasticQuota")
        assert any("spec.min.cpu is more than spec.max.cpu, which counts for both" in note for note in notes)
        assert any("spec.max.memory is -1Gi, which counts as 0" in note for note in notes)
        assert "ElasticQuota q counts in this namespace; delete one of them" in notes
        assert len(stage.api.bound) == 2


async def test_absurd_amounts_of_quotas():
    async with hostile_stage(QUOTAS) as stage:
        stage.see(node("n1"), quota(min={"cpu": HUGE, "memory": "1e300"}, max={"cpu": HUGE}), pod("p"))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_an_invalid_quota_is_reported_once():
    async with hostile_stage(QUOTAS) as stage:
        bad = quota(min={"cpu": 8}, max={"cpu": 2})
        stage.see(node("n1"), bad)
        for number in range(20):
            stage.see(pod(f"p{number}", cpu="10m"))
            stage.change(bad, bad)
            await stage.settle()
        assert len(stage.notes("InvalidElasticQuota")) == 1


def hyper_node(name, tier, *selectors, kind="HyperNode"):
    members = [{"type": kind, "selector": each} for each in selectors]
    return item("HyperNode", name, "topology.volcano.sh/v1alpha1", tier=tier, members=members)


def exact(name):
    return {"exactMatch": {"name": name}}


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([hyper_node("a", 1, exact("a"))], id="in itself"),
        pytest.param([hyper_node("a", 1, exact("b")), hyper_node("b", 2, exact("a"))], id="a cycle"),
        pytest.param([hyper_node("a", 1, {"regexMatch": {"pattern": "(a+)+$" * 50}})], id="a slow pattern"),
        pytest.param([hyper_node("a", 1, {"regexMatch": {"pattern": "("}}, kind="Node")], id="no pattern"),
        pytest.param([hyper_node("a", 1, {}, kind="Node")], id="no selector"),
        pytest.param(
            [hyper_node("a", 1, {"labelMatch": {"matchLabels": {"a b": "c d"}}}, kind="Node")], id="no label"
        ),
        pytest.param([hyper_node("a", -(2**40), exact("gone"), kind="Node")], id="a negative tier"),
        pytest.param(
            [hyper_node(f"h{each}", each, exact(f"h{each + 1}")) for each in range(3000)], id="a deep tree"
        ),
    ],
)
async def test_hyper_nodes_without_nodes(items):
    async with hostile_stage(HYPER) as stage:
        group = item(
            "PodGroup",
            "g",
            VOLCANO,
            "default",
            minMember=1,
            networkTopology={"mode": "hard", "highestTierAllowed": 1},
        )
        member = pod("p")
        member["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "g"}
        began = time.process_time()
        stage.see(node("n1"), *items, group, member, pod("fine"))
        await stage.settle()
        assert "no HyperNode up to tier 1 has nodes" in text_of(stage, "p")
        assert stage.api.bound == {"default/fine": "n1"}
        assert time.process_time() - began < 10


def steps_of(work: Callable[[], object]) -> int:
    """How many steps of the interpreter it takes, which no load of the machine changes."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_many_queues_and_quotas_cost_a_decision_little():
    def steps_with(count: int) -> int:
        quotas = [
            {**quota(min={"cpu": 4}, max={"cpu": 8}), "metadata": {"name": "q", "namespace": f"n{number}"}}
            for number in range(count)
        ]
        found = planner([node("n1"), *quotas], {**V1, "profiles": [QUOTAS]})
        plain = pod("p")
        plain["metadata"]["namespace"] = "n7"
        pending = object_of(plain)
        plugin = found.profiles["default-scheduler"].plugins["CapacityScheduling"]
        decision = found.decide(pending)
        return steps_of(lambda: plugin.pre_filter(decision.state, pending, found.cluster.nodes))

    assert 100 < steps_with(500) < 1.1 * steps_with(8)
