"""TaintToleration: which taints keep a pod away, and which only count against a node."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, ask, plugin_of, refusals, scores, tolerating

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource

ADDED = ClusterEvent(Resource.NODE, Action.ADD)
TAINT = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)
TOLERATION = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
REFUSED = {"n": (UNRESOLVABLE, "node(s) had untolerated taint(s)")}


def toleration(key="", value="", effect="", operator=""):
    return {"key": key, "value": value, "effect": effect, "operator": operator}


@pytest.mark.parametrize(
    ("taints", "tolerations", "fits"),
    [
        pytest.param([], [], True, id="no taints"),
        pytest.param(["gpu=a:NoSchedule"], [], False, id="a taint not tolerated"),
        pytest.param(["gpu=a:NoExecute"], [], False, id="one that evicts"),
        pytest.param(["gpu=a:PreferNoSchedule"], [], True, id="a soft one"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("gpu", "a")], True, id="equal by default"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("gpu", "a", operator="Equal")], True, id="equal"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("gpu", "b")], False, id="another value"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("gpu", operator="Exists")], True, id="any value"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("cpu", operator="Exists")], False, id="another key"),
        pytest.param(["gpu=a:NoSchedule"], [toleration("gpu", "a", "NoExecute")], False, id="another effect"),
        pytest.param(
            ["gpu=a:NoSchedule", "gpu=a:NoExecute"],
            [toleration("gpu", "a", "NoSchedule")],
            False,
            id="one of two effects",
        ),
        pytest.param(
            ["gpu=a:NoSchedule", "gpu=a:NoExecute"], [toleration("gpu", "a")], True, id="every effect"
        ),
        pytest.param(["gpu=a:NoSchedule"], [toleration(operator="Exists")], True, id="everything"),
        pytest.param(["gpu:NoSchedule"], [toleration()], True, id="any key of equal value"),
        pytest.param(["gpu=a:NoSchedule"], [toleration()], False, id="any key of another value"),
        pytest.param(["gpu=5:NoSchedule"], [toleration("gpu", "9", operator="Lt")], False, id="less than"),
        pytest.param(["gpu=5:NoSchedule"], [toleration("gpu", "1", operator="Gt")], False, id="greater than"),
    ],
)
def test_hard_taints_keep_pods_away(taints, tolerations, fits):
    decision = ask("TaintToleration", tolerating(*tolerations), make_node("n", taints=taints))
    assert refusals(decision) == ({} if fits else REFUSED)


def soft(count):
    return [f"soft{number}=x:PreferNoSchedule" for number in range(count)]


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], [100, 67, 34, 0], id="the more soft taints the less"),
        pytest.param([toleration(operator="Exists")], [100, 100, 100, 100], id="all tolerated"),
        pytest.param([toleration("soft0", operator="Exists")], [100, 100, 50, 0], id="one tolerated"),
        pytest.param(
            [toleration("soft0", "x", "PreferNoSchedule")], [100, 100, 50, 0], id="one by its effect"
        ),
        pytest.param(
            [toleration(effect="NoSchedule", operator="Exists")], [100, 67, 34, 0], id="hard ones tolerated"
        ),
    ],
)
def test_soft_taints_count_against_a_node(tolerations, expected):
    nodes = [make_node(f"n{count}", taints=soft(count)) for count in range(4)]
    found = scores(ask("TaintToleration", tolerating(*tolerations), *nodes))
    assert list(found.values()) == expected


def test_a_taint_listed_twice_counts_twice():
    nodes = make_node("once", taints=soft(1)), make_node("twice", taints=soft(1) * 2)
    assert scores(ask("TaintToleration", make_pod(), *nodes)) == {"once": 50, "twice": 0}


def test_nobody_tainted_gives_everybody_full_marks():
    assert scores(ask("TaintToleration", make_pod(), make_node("a"), make_node("b"))) == {"a": 100, "b": 100}


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, [], QUEUE, id="a new node"),
        pytest.param(None, ["gpu=a:NoSchedule"], SKIP_HINT, id="a new node, tainted"),
        pytest.param(None, ["ok=a:NoSchedule"], QUEUE, id="a new node with a tolerated taint"),
        pytest.param(["gpu=a:NoSchedule"], [], QUEUE, id="the taint is gone"),
        pytest.param(["gpu=a:NoSchedule"], ["ok=a:NoSchedule"], QUEUE, id="a tolerated one in its place"),
        pytest.param(["gpu=a:NoSchedule"], ["gpu=b:NoSchedule"], SKIP_HINT, id="another in its place"),
        pytest.param(["ok=a:NoSchedule"], [], SKIP_HINT, id="a tolerated taint is gone"),
        pytest.param([], ["gpu=a:NoSchedule"], SKIP_HINT, id="a taint came"),
    ],
)
def test_nodes_that_become_tolerable_are_news(old, new, hint):
    pod = make_pod(tolerations=["ok"])
    event = ADDED if old is None else TAINT
    before = None if old is None else make_node("n", taints=old)
    assert plugin_of("TaintToleration").queueing_hint(pod, event, before, make_node("n", taints=new)) is hint


@pytest.mark.parametrize(("name", "hint"), [("pod", QUEUE), ("other", SKIP_HINT)])
def test_own_tolerations_are_news(name, hint):
    plugin = plugin_of("TaintToleration")
    assert plugin.queueing_hint(make_pod("pod"), TOLERATION, make_pod(name), make_pod(name)) is hint
