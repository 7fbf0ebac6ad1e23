"""Which pods leave a node, which are created again, which are alike, and nodes like existing ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from stowplan.api.meta import Object, ObjectMeta
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cycle.victims import Budgets
from stowplan.framework.plugin import is_trusted
from stowplan.framework.profile import Profile

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that the node's kubelet runs from a file."""


def belongs_to_node(pod: Pod) -> bool:
    """Whether the pod stays with its node, come what may, and goes with it: a daemon's, or a static pod."""
    owner = pod.controller
    return MIRROR in pod.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def is_made_again(pod: Pod) -> bool:
    return pod.controller is not None and not pod.is_terminating


def leaving_for(pod: Pod, cluster: Cluster) -> list[Pod]:
    """The pods that are being deleted on the node that was promised to this one, and matter less."""
    row = cluster.nodes.row_of(pod.nominated_node_name)
    there = () if row is None else cluster.nodes.pods_on(row)
    return [each for each in there if each.is_terminating and each.priority < pod.priority]


def is_protected(pod: Pod, cluster: Cluster) -> bool:
    """Whether a disruption budget allows no eviction of the pod at this time."""
    table = cluster.nodes.pods
    slots = np.array([table.slot_of(pod)], np.intp)
    return bool(Budgets(cluster.pdbs).find_violations(table, slots)[0])


def equivalence_key(pod: Pod, profile: Profile) -> tuple[Any, ...] | None:
    """Equal for pods that differ in no more than their names; None where a name may matter.

    It does to claims that are made for the pod, and it may to plugins that we do not know.
    """
    spec = pod.spec
    is_known = all(is_trusted(type(plugin)) for plugin in profile.plugins.values())
    if spec.volumes or spec.resource_claims or pod.nominated_node_name or not is_known:
        return None
    return (pod.shape, pod.label_set, pod.controller, id(pod.annotations))


HOSTNAME = "kubernetes.io/hostname"
OF_CONDITIONS = "node.kubernetes.io/"
"""Taints under it tell of the state that one node is in, not of what kind it is."""


def copy_node(cluster: Cluster, row: int, name: str) -> Iterator[Pod | Object]:
    """The node under a new name, schedulable and healthy, its drivers, devices and the pods of daemons."""
    node = cluster.nodes.objects[row]
    yield _rename(node, name)
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


def _rename(node: NodeObject, name: str) -> NodeObject:
    labels = node.labels | ({HOSTNAME: name} if HOSTNAME in node.labels else {})
    taints = tuple(taint for taint in node.spec.taints if not taint.key.startswith(OF_CONDITIONS))
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(_meta(node, name), labels=labels),
        spec=msgspec.structs.replace(node.spec, unschedulable=False, taints=taints),
    )


def _meta(item: Object, name: str) -> ObjectMeta:
    return msgspec.structs.replace(item.metadata, name=name, uid="")
