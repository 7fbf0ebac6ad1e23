"""The view of a node's row that plugins of others get."""

from __future__ import annotations

from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cluster.sealed import sealed_row

NODE = {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}
POD = b"""{"metadata": {"name": "web", "namespace": "default", "uid": "1"}, "spec": {"nodeName": "a",
    "containers": [{"name": "main", "image": "web", "resources": {"requests": {"cpu": "1"}}}]}}"""


def test_a_view_is_made_once_for_each_change():
    cluster = Cluster.of([decode(NodeObject, NODE)])
    before = sealed_row(cluster.nodes.row(0))
    assert sealed_row(cluster.nodes.row(0)) is before is sealed_row(before)
    cluster.add_pod(Pod.decode(POD))
    assert (before.requested["cpu"], sealed_row(cluster.nodes.row(0)).requested["cpu"]) == (0, 1000)


def test_a_row_on_which_changes_are_tried_out_shows_each_of_them():
    row = Cluster.of([decode(NodeObject, NODE)]).nodes.plain_row(0)
    assert sealed_row(row).requested["cpu"] == 0
    row.requested["cpu"] += 1500
    assert sealed_row(row).requested["cpu"] == 1500
