"""Nodes: amounts, taints, images."""

from __future__ import annotations

import pytest

from make import make_node
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject, Taint


@pytest.mark.parametrize(
    ("allocatable", "found"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param(
            {"cpu": "7910m", "memory": "32986188Ki"}, {"cpu": 7910, "memory": 32986188 * 1024}, id="usual"
        ),
        pytest.param({"cpu": "0.0001"}, {"cpu": 1}, id="rounded up"),
        pytest.param({"pods": "110"}, {"pods": 110}, id="pods"),
        pytest.param({"example.com/gpu": "1500m"}, {"example.com/gpu": 2}, id="devices are whole"),
        pytest.param({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": 4 * 2**20}, id="huge pages"),
        pytest.param({"storage": "1Gi", "gpu": "1"}, {}, id="names that count nowhere"),
        pytest.param({"cpu": 4, "memory": 1e9}, {"cpu": 4000, "memory": 10**9}, id="numbers"),
    ],
)
def test_allocatable(allocatable, found):
    assert make_node(allocatable=allocatable).allocatable == found


@pytest.mark.parametrize(
    ("effect", "is_hard"), [("NoSchedule", True), ("NoExecute", True), ("PreferNoSchedule", False)]
)
def test_taints(effect, is_hard):
    (taint,) = make_node(taints=[f"gpu=a:{effect}"]).taints
    assert taint == Taint("gpu", "a", effect)
    assert taint.is_hard is is_hard


def test_what_a_node_has():
    node = make_node("n", labels={"a": "b"}, unschedulable=True, images={"web:v1": 5}, features=["F"])
    assert (node.name, node.key, node.labels["a"], node.unschedulable) == ("n", "n", "b", True)
    assert [(image.names, image.size_bytes) for image in node.images] == [(("web:v1",), 5)]
    assert node.declared_features == ("F",)


def test_nodes_share_equal_images():
    text = b'{"status": {"images": [{"names": ["web:v1"], "sizeBytes": 5}]}}'
    one, other = decode(NodeObject, text), decode(NodeObject, text)
    assert one.images == other.images
    assert one.images[0] is other.images[0]
