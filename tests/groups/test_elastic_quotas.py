"""ElasticQuotas: what namespaces may use, borrow from each other, and take back."""

from __future__ import annotations

import random

import pytest
from groups_staging import holds_nothing, last_text
from test_coscheduling import labelled, x_group

from make import planner
from scheduler_staging import node, pod, staged
from stowplan.api.kinds import object_of
from stowplan.journal import Decisions

PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}, {"name": "CapacityScheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
        "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
    }
}
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def quota(namespace="default", name="q", **spec):
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
        },
        "spec": spec,
    }


def cpus(least, most):
    return {"min": {"cpu": least}, "max": {"cpu": most}}


def within(namespace, name, **options):
    plain = pod(name, **options)
    plain["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return plain


def running(namespace, name, on="n1", **options):
    return {**within(namespace, name, on=on, **options), "status": {"phase": "Running"}}


def quota_stage(**options):
    return staged(config={"profiles": [PROFILE]}, draw=random.Random(1), **options)


def text_of(stage, key):
    found = stage.api.conditions(key)
    return found[-1]["message"] if found else ""


async def test_decisions_say_what_is_wrong_with_the_quota():
    decisions = Decisions()
    async with quota_stage(decisions=decisions) as stage:
        bad = quota(min={"cpu": "-1"}, max={"memory": "1Gi"})
        stage.see(node("n1"), bad, quota("other", **cpus(4, 4)), pod("p"), within("other", "q"))
        await stage.settle()
        (record,), (other,) = (decisions.recent.of(key) for key in ("default/p", "other/q"))
        assert record.notes == (
            "ElasticQuota default/q: spec.min.cpu is -1, which counts as 0; set it to 0 or more.",
        )
        assert other.notes == ()
        stage.change(bad, quota(min={"cpu": "1"}))
        stage.see(pod("later"))
        await stage.settle()
        assert decisions.recent.of("default/later")[0].notes == ()


@pytest.mark.parametrize(
    ("least", "most"),
    [
        pytest.param("-1", "1", id="minimums below 0"),
        pytest.param("1", "-1", id="maximums below 0"),
        pytest.param("2", "1", id="minimums above maximums"),
    ],
)
async def test_decisions_name_some_of_many_faults_of_a_quota(least, most):
    decisions, names = Decisions(), [f"example.com/r{each:05}" for each in range(10_000)]
    async with quota_stage(decisions=decisions) as stage:
        bad = quota(min=dict.fromkeys(names, least), max=dict.fromkeys(names, most))
        stage.see(node("n1"), bad, pod("p"))
        await stage.settle()
        record, *_ = decisions.recent.of("default/p")
        (note,) = record.notes
        assert "; and 9995 more" in note
        assert len(note) <= 1000


async def test_scenario_75_a_group_above_the_maximum_waits_as_a_whole():
    now = [1000.0]
    async with quota_stage(now=lambda: now[0]) as stage:
        small, large = quota(**cpus(4, 2)), quota(**cpus(4, 3))
        stage.see(node("n1"), quota("other", **cpus(4, 4)), small, x_group(minMember=3))
        stage.see(*(labelled(f"p{number}") for number in range(3)))
        await stage.settle()
        assert stage.api.bound == {}
        assert holds_nothing(stage)
        texts = [last_text(stage, f"p{number}") for number in range(3)]
        assert any(
            "Pod default/p2 is rejected in PreFilter because ElasticQuota default is more than Max; "
            "cpu: used 2, requested 1, max 2" in text
            for text in texts
        )
        now[0] += 20
        stage.change(small, large)
        await stage.settle()
        assert len(stage.api.bound) == 3


async def test_a_namespace_borrows_what_others_do_not_use():
    async with quota_stage() as stage:
        stage.see(node("n1", cpu="8"), quota("a", **cpus(2, 3)), quota("b", **cpus(2, 4)))
        stage.see(*(within("a", f"p{number}") for number in range(4)))
        await stage.settle()
        assert len(stage.api.bound) == 3
        assert "ElasticQuota a is more than Max" in text_of(stage, "a/p3")
        stage.see(within("b", "q0"))
        await stage.settle()
        assert "b/q0" in stage.api.bound
        stage.see(within("b", "q1"))
        await stage.settle()
        assert stage.api.deleted == ["a/p2"] or len(stage.api.deleted) == 1


async def test_borrowed_amounts_are_taken_back_for_a_whole_group():
    now = [1000.0]
    async with quota_stage(now=lambda: now[0]) as stage:
        lent = [running("a", f"p{number}") for number in range(4)]
        stage.see(node("n1"), quota("a", **cpus(2, 4)), quota("b", **cpus(2, 4)), *lent)
        stage.see(
            x_group("g", "b", minMember=2),
            *(labelled(f"g{each}", "g", namespace="b") for each in range(2)),
        )
        await stage.settle()
        assert len(stage.api.deleted) == 2
        assert {key[:2] for key in stage.api.deleted} == {"a/"}
        assert holds_nothing(stage)
        now[0] += 20
        for plain in lent:
            if f"a/{plain['metadata']['name']}" in stage.api.deleted:
                stage.change(plain, None)
        await stage.settle()
        assert set(stage.api.bound) == {"b/g0", "b/g1"}


async def test_nobody_is_evicted_for_a_group_that_does_not_fit_even_then():
    async with quota_stage() as stage:
        lent = [running("a", f"p{number}") for number in range(4)]
        stage.see(node("n1"), quota("a", **cpus(2, 4)), quota("b", **cpus(2, 4)), *lent)
        stage.see(
            x_group("g", "b", minMember=3),
            *(labelled(f"g{each}", "g", namespace="b") for each in range(3)),
        )
        await stage.settle()
        assert (stage.api.deleted, stage.api.bound) == ([], {})


@pytest.mark.parametrize(("least", "evicted"), [(3, 3), (2, 1)])
async def test_a_gang_that_would_be_broken_is_evicted_as_a_whole(least, evicted):
    async with quota_stage() as stage:
        stage.see(node("n1", cpu="3"), quota("a", **cpus(2, 3)), quota("b", **cpus(1, 3)))
        stage.see(x_group("g", "a", minMember=least))
        for number in range(3):
            member = labelled(f"g{number}", "g", namespace="a", on="n1")
            stage.see({**member, "status": {"phase": "Running"}})
        stage.see(within("b", "p"))
        await stage.settle()
        assert len(stage.api.deleted) == evicted


async def test_a_namespace_never_loses_what_it_is_guaranteed():
    """It borrows one CPU, two are needed: so none is taken."""
    async with quota_stage() as stage:
        stage.see(node("n1"), quota("a", **cpus(3, 4)), quota("b", **cpus(2, 4)))
        stage.see(*(running("a", f"a{each}") for each in range(4)))
        stage.see(within("b", "p", cpu="2"))
        await stage.settle()
        assert stage.api.deleted == []


async def test_what_a_namespace_borrows_itself_it_does_not_take_from_others():
    """Over its own minimum it evicts only pods of lower priority, and only its own."""
    async with quota_stage() as stage:
        stage.see(node("n1"), quota("a", **cpus(2, 4)), quota("b", **cpus(2, 4)))
        stage.see(*(running("a", f"a{each}") for each in range(2)))
        stage.see(*(running("b", f"b{each}") for each in range(2)))
        stage.see(within("b", "equal"))
        await stage.settle()
        assert stage.api.deleted == []
        assert "total ElasticQuota used is more than min; cpu: used 4, requested 1, sum of min 4" in text_of(
            stage, "b/equal"
        )
        stage.see(within("b", "high", priority=10))
        await stage.settle()
        assert [key[:2] for key in stage.api.deleted] == ["b/"]


async def test_a_pod_without_a_quota_leaves_namespaces_with_one_alone():
    async with quota_stage() as stage:
        stage.see(node("n1", cpu="2"), quota("a", **cpus(1, 4)))
        stage.see(running("a", "mine"), running("free", "low"))
        stage.see(within("other", "high", priority=10))
        await stage.settle()
        assert stage.api.deleted == ["free/low"]


async def test_a_pod_that_never_preempts():
    async with quota_stage() as stage:
        stage.see(node("n1", cpu="1"), running("free", "low"))
        stage.see(within("other", "high", priority=10, preemptionPolicy="Never"))
        await stage.settle()
        assert stage.api.deleted == []
        assert text_of(stage, "other/high").endswith("not eligible due to preemptionPolicy=Never.")


@pytest.mark.parametrize(
    ("quotas", "used", "nominated", "priority", "text"),
    [
        pytest.param(
            {"a": (2, 2)}, {"a": 1}, ("a", 1), 0, "cpu: used 1, requested 2, max 2", id="of its namespace"
        ),
        pytest.param({"a": (2, 2)}, {"a": 1}, ("a", 1), 5, "", id="of its namespace, but less important"),
        pytest.param(
            {"a": (2, 4), "b": (2, 4)},
            {"a": 2},
            ("b", 2),
            5,
            "total ElasticQuota used is more than min; cpu: used 2, requested 3, sum of min 4",
            id="of another one, within its minimum",
        ),
        pytest.param(
            {"a": (6, 9), "b": (2, 9)}, {"b": 3}, ("b", 5), 0, "", id="of another one, above its minimum"
        ),
    ],
)
def test_nominated_pods_count(quotas, used, nominated, priority, text):
    limits = [quota(name, **cpus(*sizes)) for name, sizes in quotas.items()]
    placed = [running(name, "old", cpu=str(amount)) for name, amount in used.items()]
    found = planner([node("n1", cpu="20"), *limits, *placed], {**V1, "profiles": [PROFILE]})
    namespace, amount = nominated
    found.nominations.put(object_of(within(namespace, "nominated", cpu=str(amount))), "n1")
    decision = found.decide(object_of(within("a", "p", priority=priority)))
    assert (decision.chosen is None) == bool(text)
    assert text in decision.message


PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.mark.parametrize(
    ("condition", "cordoned", "nominated"),
    [
        pytest.param(PREEMPTED, False, None, id="evicted: wait for it"),
        pytest.param(PREEMPTED | {"status": "False"}, False, "n2", id="a disruption that is off"),
        pytest.param(PREEMPTED | {"reason": "DeletionByTaintManager"}, False, "n2", id="somebody else's"),
        pytest.param(PREEMPTED, True, "n2", id="its node takes no pods any more"),
    ],
)
def test_a_pod_waits_for_the_victims_on_its_node(condition, cordoned, nominated):
    """n1 was to be cleared for it; on n2 there is one pod to evict, on n1 two."""
    leaving = running("free", "leaving", cpu="2")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    leaving["status"]["conditions"] = [condition]
    others = [running("free", "low"), running("free", "other", on="n2", cpu="3")]
    nodes = [node("n1", cpu="3", spec={"unschedulable": cordoned}), node("n2", cpu="3")]
    found = planner([*nodes, leaving, *others], {**V1, "profiles": [PROFILE]})
    high = within("other", "high", cpu="3", priority=10)
    decision = found.decide(object_of({**high, "status": {"nominatedNodeName": "n1"}}))
    assert decision.nominated == nominated
    text = "preemption: not eligible due to a terminating pod on the nominated node."
    assert (text in decision.message) == (nominated is None)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            {
                "initContainers": [
                    {
                        "name": "side",
                        "restartPolicy": "Always",
                        "resources": {"requests": {"cpu": "2"}},
                    }
                ]
            },
            id="sidecar",
        ),
        pytest.param({"resources": {"requests": {"cpu": "3"}}}, id="the pod as a whole"),
        pytest.param({"overhead": {"cpu": "2"}}, id="overhead"),
    ],
)
async def test_requests_count_as_they_do_on_nodes(more):
    async with quota_stage() as stage:
        stage.see(node("n1"), quota("a", **cpus(2, 2)), within("a", "p", **more))
        await stage.settle()
        assert stage.api.bound == {}
        assert "cpu: used 0, requested 3, max 2" in text_of(stage, "a/p")


async def test_resources_that_a_quota_does_not_name_are_not_limited():
    async with quota_stage() as stage:
        stage.see(node("n1"), quota("a", **cpus(2, 2)))
        plain = within("a", "p")
        plain["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Gi"
        stage.see(plain)
        await stage.settle()
        assert stage.api.bound == {"a/p": "n1"}


async def test_a_quota_counts_pods_that_ran_before_it():
    async with quota_stage() as stage:
        stage.see(node("n1"), running("a", "old"), running("a", "older"))
        stage.see(within("a", "first", cpu="100m"))
        await stage.settle()
        stage.see(quota("a", **cpus(2, 2)), within("a", "p"))
        await stage.settle()
        assert set(stage.api.bound) == {"a/first"}
        assert "cpu: used 2.1, requested 1, max 2" in text_of(stage, "a/p")


async def test_a_number_of_pods_can_be_limited():
    async with quota_stage() as stage:
        stage.see(node("n1"), quota("a", max={"pods": 2}))
        stage.see(*(within("a", f"p{number}", cpu="100m") for number in range(3)))
        await stage.settle()
        assert len(stage.api.bound) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_quota_is_ever_exceeded(seed):
    draw = random.Random(seed)
    spaces = {name: (draw.randint(0, 6), draw.randint(1, 8)) for name in "abc"}
    quotas = [quota(name, **cpus(*sizes)) for name, sizes in spaces.items()]
    nodes = [node(f"n{number}", cpu=str(draw.randint(2, 6)), pods="20") for number in range(4)]
    found = planner([*nodes, *quotas], {**V1, "profiles": [PROFILE]})
    most = sum(min(sizes) for sizes in spaces.values())
    for number in range(60):
        name = draw.choice("abcd")
        plain = within(name, f"p{number}", cpu=str(draw.randint(1, 2)), priority=draw.randint(0, 3))
        item = object_of(plain)
        found.carry_out(found.decide(item))
        used = {
            each: sum(other.requests["cpu"] for other in found.cluster.pods(each)) / 1000 for each in spaces
        }
        assert all(used[each] <= spaces[each][1] for each in spaces)
        assert sum(used.values()) <= most
        assert all(row.requested["cpu"] <= row.allocatable["cpu"] for row in found.cluster.nodes)
        if draw.random() < 0.2 and (pods := list(found.cluster.pods())):
            found.cluster.remove_pod(draw.choice(pods))


@pytest.mark.parametrize("seed", range(20))
def test_changes_leave_nothing_behind(seed):
    """Whatever came before, a pod is decided as on a cluster that has just these objects."""
    draw = random.Random(seed)
    nodes = [object_of(node(f"n{number}", cpu="9")) for number in range(2)]
    world, quotas, pods = planner(nodes, V1 | {"profiles": [PROFILE]}), {}, {}
    for number in range(60):
        namespace, where = draw.choice("abc"), draw.choice(["n0", "n1"])
        kind = draw.choice(["spec", "status", "delete", "pod", "remove", "nominate", "nominate", "forget"])
        if kind == "spec" or (kind == "status" and namespace not in quotas):
            quotas[namespace] = quota(namespace, **cpus(draw.randint(0, 3), draw.randint(2, 7)))
        elif kind == "status":
            quotas[namespace] = quotas[namespace] | {"status": {"used": {"cpu": str(number)}}}
        elif kind == "delete" and number % 4 == 0 and quotas.pop(namespace, None):
            world.cluster.remove(object_of(quota(namespace)))
        elif kind == "pod":
            pods[namespace, number] = object_of(running(namespace, f"p{number}", on=where))
            world.cluster.apply(pods[namespace, number])
        elif kind == "remove" and pods:
            world.cluster.remove_pod(pods.pop(draw.choice(sorted(pods))))
        if namespace in quotas:
            world.cluster.apply(object_of(quotas[namespace]))
        waiting = {each.uid: each for each in world.nominations}
        if kind == "nominate":  # another pod, or one that waits already, or one that has a node by now
            chosen = draw.choice([number, *range(max(number - 9, 0), number)])
            plain = within(namespace, f"p{chosen}", priority=draw.randint(0, 2))
            world.nominations.put(object_of(plain), where)
            if draw.random() < 0.3 and (namespace, chosen) not in pods:
                pods[namespace, chosen] = object_of(running(namespace, f"p{chosen}", on=where))
                world.cluster.apply(pods[namespace, chosen])
        elif kind == "forget" and waiting:
            world.nominations.remove(waiting[draw.choice(sorted(waiting))])
        wanted = object_of(within(namespace, "wanted", priority=draw.randint(0, 2)))
        if waiting and draw.random() < 0.3:  # one of those that wait
            wanted = waiting[draw.choice(sorted(waiting))]
        fresh = planner(
            [*nodes, *map(object_of, quotas.values()), *pods.values()], V1 | {"profiles": [PROFILE]}
        )
        for each in world.nominations:
            fresh.nominations.put(each, world.nominations.node_of(each))
        assert world.decide(wanted).message == fresh.decide(wanted).message
