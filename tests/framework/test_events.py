"""Cluster events: which registrations hear of which."""

from __future__ import annotations

import pytest

from stowplan.framework import Action, ClusterEvent, Resource

POD, ASSIGNED, UNSCHEDULABLE = Resource.POD, Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD
NODE, EVERY = Resource.NODE, Resource.WILDCARD
ADD, DELETE, UPDATE, ALL = Action.ADD, Action.DELETE, Action.UPDATE, Action.ALL
LABEL, TAINT, ALLOCATABLE = (
    Action.UPDATE_NODE_LABEL,
    Action.UPDATE_NODE_TAINT,
    Action.UPDATE_NODE_ALLOCATABLE,
)


@pytest.mark.parametrize(
    ("registered", "event", "hears"),
    [
        pytest.param((NODE, ADD), (NODE, ADD), True, id="the same"),
        pytest.param((NODE, ADD), (NODE, DELETE), False, id="another action"),
        pytest.param((NODE, ADD), (POD, ADD), False, id="another resource"),
        pytest.param((NODE, ADD | LABEL), (NODE, LABEL), True, id="one of several actions"),
        pytest.param(
            (NODE, ADD | LABEL), (NODE, ALLOCATABLE), False, id="a smaller action that is not among them"
        ),
        pytest.param((NODE, ADD | LABEL), (NODE, TAINT), False, id="a greater one"),
        pytest.param((NODE, UPDATE), (NODE, TAINT), True, id="any update"),
        pytest.param((NODE, TAINT), (NODE, UPDATE), False, id="a plain update is more than was asked for"),
        pytest.param((NODE, UPDATE), (NODE, UPDATE), True, id="a plain update"),
        pytest.param((NODE, ADD | UPDATE), (NODE, UPDATE), True, id="a plain update among others"),
        pytest.param((NODE, ALL), (NODE, DELETE), True, id="all actions"),
        pytest.param((POD, ADD), (ASSIGNED, ADD), True, id="pods on nodes are pods"),
        pytest.param((POD, UPDATE), (UNSCHEDULABLE, UPDATE), True, id="pods that wait are pods"),
        pytest.param((ASSIGNED, ADD), (POD, ADD), False, id="but not all pods are on nodes"),
        pytest.param((EVERY, ALL), (NODE, UPDATE), True, id="everything"),
        pytest.param((EVERY, ADD), (NODE, ADD), True, id="every resource"),
        pytest.param((EVERY, ADD), (NODE, DELETE), False, id="every resource, not every action"),
    ],
)
def test_who_hears(registered, event, hears):
    assert ClusterEvent(*registered).covers(ClusterEvent(*event)) is hears


def test_actions_are_numbered_as_in_kube_scheduler():
    """The numbers decide who hears of what: an event must not be greater than its registration."""
    assert (UPDATE, ALL) == (8188, 8191)
    single = [action for action in Action if action not in (UPDATE, ALL)]
    assert [action.value for action in single] == [1 << bit for bit in range(13)]
