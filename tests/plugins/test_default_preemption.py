"""DefaultPreemption: who has to leave so that a more important pod fits, and when nobody does."""

from __future__ import annotations

import pytest
from alone import manifest, planner, plugin_of

from make import make_node, make_pod
from stowplan.framework import SKIP_HINT, Action, ClusterEvent, Resource, Status

ROOM = {"cpu": "4", "memory": "8Gi", "pods": "9"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
PREEMPTED = {"conditions": [DISRUPTED]}
LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def node(name="n", **fields):
    return make_node(name, allocatable=ROOM, **fields)


def running(name, on="n", priority=0, cpu="4", start="2026-01-01T00:00:00Z", **fields):
    status = fields.pop("status", {})
    return make_pod(
        name,
        node=on,
        priority=priority,
        requests={"cpu": cpu},
        status={"startTime": start, **status},
        **fields,
    )


def urgent(cpu="4", priority=10, **fields):
    return make_pod("urgent", priority=priority, requests={"cpu": cpu}, **fields)


def plan(*objects, args=None, also=("NodeUnschedulable", "NodeResourcesFit")):
    return planner("DefaultPreemption", *objects, args=args, also=also)


def outcome(decision):
    assert decision.error is None
    return decision.nominated, sorted(victim.name for victim in decision.victims)


def said(decision):
    return decision.post_filter.message


# Whether


def test_less_important_pods_leave():
    decision = plan(node(), running("low", priority=9)).decide(urgent())
    assert outcome(decision) == ("n", ["low"])
    assert decision.message == "0/1 nodes are available: 1 Insufficient cpu."


@pytest.mark.parametrize(
    ("pod", "objects", "text"),
    [
        pytest.param(
            urgent(preemptionPolicy="Never"),
            [node(), running("low")],
            "preemption: not eligible due to preemptionPolicy=Never.",
            id="a pod that does not preempt",
        ),
        pytest.param(
            urgent(),
            [node(), running("equal", priority=10)],
            "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            id="pods as important as itself",
        ),
        pytest.param(
            urgent("5"),
            [node(), running("low")],
            "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
            id="a node that is too small even when empty",
        ),
        pytest.param(
            urgent(),
            [node(), running("high", priority=99, cpu="2"), running("low", cpu="2")],
            "preemption: 0/1 nodes are available: 1 Insufficient cpu.",
            id="not enough of them",
        ),
        pytest.param(
            urgent(),
            [node("a"), running("equal", "a", priority=10), node("b", unschedulable=True)],
            "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
            "1 Preemption is not helpful for scheduling.",
            id="several reasons",
        ),
    ],
)
def test_nobody_leaves(pod, objects, text):
    decision = plan(*objects).decide(pod)
    assert outcome(decision) == (None, [])
    assert said(decision) == text


def nominated(**fields):
    return urgent(status={"nominatedNodeName": "n"}, **fields)


@pytest.mark.parametrize(
    ("objects", "waits"),
    [
        pytest.param([running("old", metadata=LEAVING, status=PREEMPTED)], True, id="its victim is leaving"),
        pytest.param([running("old", status=PREEMPTED)], False, id="its victim has not begun to"),
        pytest.param([running("old", metadata=LEAVING)], False, id="somebody leaves on its own"),
        pytest.param(
            [running("old", metadata=LEAVING, status={"conditions": [DISRUPTED | {"status": "False"}]})],
            False,
            id="a disruption that is off",
        ),
        pytest.param(
            [running("old", metadata=LEAVING, status={"conditions": [DISRUPTED | {"reason": "Eviction"}]})],
            False,
            id="another kind of disruption",
        ),
        pytest.param(
            [running("old", priority=10, metadata=LEAVING, status=PREEMPTED)], False, id="one as important"
        ),
    ],
)
def test_a_pod_that_was_promised_a_node_waits_for_its_victims(objects, waits):
    decision = plan(node(), *objects, running("low", cpu="1")).decide(nominated())
    text = "preemption: not eligible due to a terminating pod on the nominated node."
    assert (decision.post_filter is not None and said(decision) == text) == waits


def test_it_does_not_wait_where_it_cannot_go_any_more():
    objects = [node(unschedulable=True), running("old", metadata=LEAVING, status=PREEMPTED)]
    decision = plan(*objects, node("m"), running("low", "m")).decide(nominated())
    assert outcome(decision) == ("m", ["low"])


# Who, on a node


@pytest.mark.parametrize(
    ("pods", "cpu", "victims"),
    [
        pytest.param(
            [running("a", priority=1, cpu="2"), running("b", priority=2, cpu="2")],
            "2",
            ["a"],
            id="the least important",
        ),
        pytest.param(
            [running("a", priority=1, cpu="1"), running("b", priority=2, cpu="3")],
            "2",
            ["b"],
            id="as few as it takes, even if more important",
        ),
        pytest.param(
            [
                running("old", cpu="2", start="2026-01-01T00:00:00Z"),
                running("young", cpu="2", start="2026-01-02T00:00:00Z"),
            ],
            "2",
            ["young"],
            id="the youngest of equals",
        ),
        pytest.param(
            [running("a", cpu="2", start=None), running("b", cpu="2", start=None)],
            "2",
            ["a"],
            id="of those that have not started the first on the node",
        ),
        pytest.param([running("a", cpu="1"), running("b", cpu="3")], "4", ["a", "b"], id="all of them"),
        pytest.param(
            [running("a", cpu="2", metadata=LEAVING), running("b", priority=5, cpu="2")],
            "2",
            [],
            id="one that is leaving anyway is no victim",
        ),
    ],
)
def test_victims_on_a_node(pods, cpu, victims):
    assert outcome(plan(node(), *pods).decide(urgent(cpu))) == ("n", victims)


def budget(allowed, labels=None, **status):
    selector = {} if labels is None else {"matchLabels": labels}
    return manifest(
        "PodDisruptionBudget",
        "budget",
        spec={"selector": selector},
        status={"disruptionsAllowed": allowed, **status},
    )


WEB = {"app": "web"}


@pytest.mark.parametrize(
    ("found", "victims"),
    [
        pytest.param(budget(0, WEB), ["other"], id="one that is needed stays, though less important"),
        pytest.param(budget(1, WEB), ["web"], id="the budget has room"),
        pytest.param(budget(0, {"app": "db"}), ["web"], id="a budget for others"),
        pytest.param(budget(0), ["web"], id="a budget for all counts for none"),
        pytest.param(budget(0, WEB, disruptedPods={"web": None}), ["web"], id="already counted as disrupted"),
    ],
)
def test_budgets_on_a_node(found, victims):
    pods = [running("web", priority=1, cpu="2", labels=WEB), running("other", priority=2, cpu="2")]
    assert outcome(plan(node(), *pods, found).decide(urgent("2"))) == ("n", victims)


def test_a_budget_is_used_up_by_the_more_important_pods_first():
    pods = [
        running(name, priority=number, cpu="2", labels=WEB) for number, name in enumerate(("low", "high"))
    ]
    other = running("other", "m", cpu="4")
    decision = plan(node(), *pods, node("m"), other, budget(1, WEB)).decide(urgent("4"))
    assert outcome(decision) == ("m", ["other"])


# Which node


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            [running("a", "a", priority=1, labels=WEB), running("b", "b", priority=9), budget(0, WEB)],
            ("b", ["b"]),
            id="no budget violated, though more important",
        ),
        pytest.param(
            [
                running("a", "a", priority=5),
                running("b1", "b", priority=4, cpu="2"),
                running("b2", "b", cpu="2"),
            ],
            ("b", ["b1", "b2"]),
            id="the most important victim is less important",
        ),
        pytest.param(
            [
                running("a1", "a", priority=5, cpu="2"),
                running("a2", "a", priority=4, cpu="2"),
                running("b1", "b", priority=5, cpu="2"),
                running("b2", "b", priority=3, cpu="2"),
            ],
            ("b", ["b1", "b2"]),
            id="less important in sum",
        ),
        pytest.param(
            [running("a1", "a", cpu="2"), running("a2", "a", cpu="2"), running("b", "b")],
            ("b", ["b"]),
            id="fewer",
        ),
        pytest.param(
            [
                running("a1", "a", priority=-(2**31), cpu="2"),
                running("a2", "a", priority=-(2**31), cpu="2"),
                running("b1", "b", priority=-(2**31), cpu="2"),
                running("b2", "b", priority=-(2**31), cpu="1"),
                running("b3", "b", priority=-(2**31), cpu="1"),
            ],
            ("a", ["a1", "a2"]),
            id="fewer where the sum is alike",
        ),
        pytest.param(
            [
                running("a", "a", start="2026-01-01T00:00:00Z"),
                running("b", "b", start="2026-01-02T00:00:00Z"),
            ],
            ("b", ["b"]),
            id="younger",
        ),
        pytest.param([running("b", "b"), running("a", "a")], ("a", ["a"]), id="by name in the end"),
    ],
)
def test_the_node_where_it_hurts_least(objects, expected):
    assert outcome(plan(node("b"), node("a"), *objects).decide(urgent())) == expected


def test_pods_promised_a_node_keep_their_room():
    made = plan(node(), running("low", cpu="2"), running("lower", priority=-1, cpu="2"))
    promised = make_pod("promised", priority=20, requests={"cpu": "3"})
    made.profiles["default-scheduler"].handle.nominations.put(promised, "n")
    decision = made.decide(urgent("2"))
    assert outcome(decision) == (None, [])
    assert said(decision) == "preemption: 0/1 nodes are available: 1 Insufficient cpu."
    assert outcome(made.decide(urgent("1"))) == ("n", ["low", "lower"])


def avoiding(labels):
    away = [{"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": away}}


@pytest.mark.parametrize("also", [("NodeResourcesFit",), ("NodeResourcesFit", "InterPodAffinity")])
def test_nodes_together_and_one_by_one_come_to_the_same(also):
    """Affinity looks beyond a single node, so that nodes have to be tried one by one."""
    pods = [
        running(f"{name}{number}", name, priority=number, cpu="1", labels=WEB if number % 2 else {})
        for name in ("a", "b")
        for number in range(4)
    ]
    decision = plan(node("b"), node("a"), *pods, budget(1, WEB), also=also).decide(
        urgent("3", affinity=avoiding({"app": "none"}))
    )
    # The budget lets one of the two leave: a3, which is asked first. So a1 comes back before the others.
    assert outcome(decision) == ("a", ["a0", "a2", "a3"])


def test_anti_affinity_is_resolved_by_eviction():
    pods = [running("web", cpu="1", labels=WEB), running("other", cpu="1")]
    made = plan(node(), *pods, also=("InterPodAffinity",))
    assert outcome(made.decide(urgent("1", affinity=avoiding(WEB)))) == ("n", ["web"])


# Waiting for it


@pytest.mark.parametrize(
    ("victim", "waits"),
    [
        pytest.param(running("last"), True, id="the last victim is there"),
        pytest.param(running("last", metadata=LEAVING), False, id="it is leaving"),
        pytest.param(None, False, id="it is gone"),
    ],
)
def test_a_pod_waits_while_its_victims_are_evicted(victim, waits):
    plugin = plugin_of("DefaultPreemption", node(), *([victim] if victim else []))
    assert plugin.pre_enqueue(urgent()) is None
    plugin.handle.nominations.evicting["uid-urgent"] = "uid-last"
    text = "waiting for the preemption for this pod to be finished"
    assert plugin.pre_enqueue(urgent()) == (Status.unresolvable(text) if waits else None)


def test_pods_that_leave_are_for_others_to_judge():
    gone = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
    plugin = plugin_of("DefaultPreemption")
    assert plugin.events_to_register() == (ClusterEvent(Resource.POD, Action.DELETE),)
    assert plugin.queueing_hint(urgent(), gone, running("low"), None) is SKIP_HINT
