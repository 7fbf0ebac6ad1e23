"""NodeUnschedulable: cordoned nodes."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, ask, plugin_of, refusals, tolerating

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource

TAINT = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)
TOLERATION = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
EXACT = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
REFUSED = {"cordoned": (UNRESOLVABLE, "node(s) were unschedulable")}
OPEN, CORDONED = make_node("open"), make_node("cordoned", unschedulable=True)


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        pytest.param([], REFUSED, id="no toleration"),
        pytest.param([EXACT], {}, id="the taint that stands for it"),
        pytest.param([{"operator": "Exists"}], {}, id="everything"),
        pytest.param([EXACT | {"effect": "NoExecute"}], REFUSED, id="another effect"),
        pytest.param([EXACT | {"operator": "Equal", "value": "x"}], REFUSED, id="another value"),
    ],
)
def test_cordoned_nodes_are_refused(tolerations, expected):
    assert refusals(ask("NodeUnschedulable", tolerating(*tolerations), OPEN, CORDONED)) == expected


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        pytest.param(None, OPEN, QUEUE, id="a new node"),
        pytest.param(None, CORDONED, SKIP_HINT, id="a new node, cordoned"),
        pytest.param(CORDONED, OPEN, QUEUE, id="uncordoned"),
        pytest.param(OPEN, CORDONED, SKIP_HINT, id="cordoned"),
        pytest.param(OPEN, OPEN, SKIP_HINT, id="another taint of an open node"),
    ],
)
def test_nodes_that_open_are_news(old, new, hint):
    assert plugin_of("NodeUnschedulable").queueing_hint(make_pod(), TAINT, old, new) is hint


@pytest.mark.parametrize(
    ("name", "tolerations", "hint"),
    [
        pytest.param("pod", [EXACT], QUEUE, id="the pod tolerates it now"),
        pytest.param(
            "pod", [{"key": "gpu", "operator": "Exists"}], SKIP_HINT, id="it tolerates another taint"
        ),
        pytest.param("other", [EXACT], SKIP_HINT, id="another pod tolerates it"),
    ],
)
def test_own_tolerations_are_news(name, tolerations, hint):
    changed = tolerating(*tolerations, name=name)
    plugin = plugin_of("NodeUnschedulable")
    assert plugin.queueing_hint(make_pod("pod"), TOLERATION, make_pod(name), changed) is hint
