"""NodeName: pods that name their node."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, ask, plugin_of, refusals

from make import make_node, make_pod
from stowplan.framework import QUEUE, Action, ClusterEvent, Resource

REFUSED = (UNRESOLVABLE, "node(s) didn't match the requested node name")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("", {}, id="no node named"),
        pytest.param("b", {"a": REFUSED}, id="one of the nodes"),
        pytest.param("elsewhere", {"a": REFUSED, "b": REFUSED}, id="an unknown node"),
    ],
)
def test_only_the_named_node_will_do(wanted, expected):
    assert refusals(ask("NodeName", make_pod(node=wanted), make_node("a"), make_node("b"))) == expected


def test_every_new_node_is_news():
    added = ClusterEvent(Resource.NODE, Action.ADD)
    assert plugin_of("NodeName").queueing_hint(make_pod(), added, None, make_node("n")) is QUEUE
