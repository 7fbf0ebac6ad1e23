"""SchedulingGates: pods that are held back until their gates are gone."""

from __future__ import annotations

import pytest
from alone import plugin_of

from make import make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource, Status

GATES_GONE = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)


def gated(*names):
    return make_pod(schedulingGates=[{"name": name} for name in names])


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(gated(), None, id="no gates"),
        pytest.param(gated("a"), Status.unresolvable("waiting for scheduling gates: [a]"), id="one gate"),
        pytest.param(
            gated("b", "a"), Status.unresolvable("waiting for scheduling gates: [b a]"), id="two, as listed"
        ),
    ],
)
def test_gates_hold_a_pod_back(pod, expected):
    assert plugin_of("SchedulingGates").pre_enqueue(pod) == expected


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        pytest.param(make_pod("pod"), QUEUE, id="the pod's own gates"),
        pytest.param(make_pod("other"), SKIP_HINT, id="another pod's"),
    ],
)
def test_the_last_gate_gone_is_news_to_the_pod_itself(changed, hint):
    plugin = plugin_of("SchedulingGates")
    assert plugin.queueing_hint(make_pod("pod"), GATES_GONE, gated("a"), changed) is hint
