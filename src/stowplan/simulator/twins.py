"""A node like one that exists, with all that comes with such a node."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stowplan.api.meta import Object, ObjectMeta
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.simulator.leaving import belongs_to_node

HOSTNAME = "kubernetes.io/hostname"
OF_CONDITIONS = "node.kubernetes.io/"
"""Taints under it tell of the state that one node is in, not of what kind it is."""


def twin_of(cluster: Cluster, row: int, name: str) -> Iterator[Pod | Object]:
    """The node under a new name, schedulable and healthy, its drivers, devices and the pods of daemons."""
    node = cluster.nodes.objects[row]
    yield _renamed(node, name)
    if (drivers := cluster.csi_nodes.get(node.name)) is not None:
        yield msgspec.structs.replace(drivers, metadata=_meta(drivers, name))
    for devices in tuple(cluster.resource_slices):
        spec = devices.spec
        if spec.node_name == node.name:
            pool = msgspec.structs.replace(spec.pool, name=f"{spec.pool.name}-{name}")
            spec = msgspec.structs.replace(spec, node_name=name, pool=pool)
            meta = _meta(devices, f"{devices.name}-{name}")
            yield msgspec.structs.replace(devices, metadata=meta, spec=spec)
    for pod in cluster.nodes.pods_on(row):
        if belongs_to_node(pod) and not pod.is_terminating:
            own = f"{pod.name}-{name}"
            yield msgspec.structs.replace(pod, name=own, uid=f"{pod.namespace}/{own}", node_name=name)


def _renamed(node: NodeObject, name: str) -> NodeObject:
    labels = node.labels | ({HOSTNAME: name} if HOSTNAME in node.labels else {})
    taints = tuple(taint for taint in node.spec.taints if not taint.key.startswith(OF_CONDITIONS))
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(_meta(node, name), labels=labels),
        spec=msgspec.structs.replace(node.spec, unschedulable=False, taints=taints),
    )


def _meta(item: Object, name: str) -> ObjectMeta:
    return msgspec.structs.replace(item.metadata, name=name, uid="")
