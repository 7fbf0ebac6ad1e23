"""The order of decisions in a replay of pods that were pending when the recording began."""

from __future__ import annotations

from random import Random

import pytest
from small_trace import add, change, node, pod, trace_of

from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, replay

REGISTRY = Registry.installed()
PODS = 40
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "late",
        "namespace": "default",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
    },
    "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "v"},
}
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "v"},
    "spec": {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "claimRef": {"namespace": "default", "name": "late"},
    },
}


def waiting_for_a_claim(pods, *more):
    """Pods of different sizes that one event wakes at once."""
    nodes = [add(0, node(f"node-{number}", "16", "64Gi")) for number in range(8)]
    return trace_of(*nodes, add(0, VOLUME), *(add(0, each) for each in pods), add(5, CLAIM), *more)


def jumbled(items, draw, by):
    """The items, each up to so many places later."""
    places = {id(each): place + draw.uniform(0, by) for place, each in enumerate(items)}
    return sorted(items, key=lambda each: places[id(each)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("start", "bindings"),
    [
        pytest.param(0, 30, id="bindings overtake each other"),
        pytest.param(0, 1000, id="bindings are in no order"),
        pytest.param(1000, 4, id="the scheduler started with another order"),
    ],
)
def test_pods_that_one_event_wakes_are_decided_as_recorded(start, bindings, seed):
    """The live scheduler decides them in the order of its queue; their bindings end in another one."""
    draw = Random(seed)
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "late"}}]
    created = [
        pod(f"{draw.randrange(16**6):06x}", f"{draw.choice([100, 200, 300, 500])}m", volumes=volumes)
        for _ in range(PODS)
    ]
    decided = jumbled(created, draw, start)
    options = ReplayOptions(seed=seed)
    nodes = {
        each.name: each.node
        for each in replay(waiting_for_a_claim(decided), registry=REGISTRY, options=options).pods
    }
    assert all(nodes.values())
    bound = [
        change(5.01 + place / 1000, "bind", each, node=nodes[each["metadata"]["name"]], by="live")
        for place, each in enumerate(jumbled(decided, draw, bindings))
    ]
    trace = waiting_for_a_claim(created, *bound)
    found = replay(trace, registry=REGISTRY, options=ReplayOptions(prefers_recorded=True))
    assert {each.name: each.node for each in found.pods} == nodes
