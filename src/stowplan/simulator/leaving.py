"""Which pods leave a node, and whether anyone makes them again."""

from __future__ import annotations

import numpy as np

from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cycle.budgets import Budgets

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that the node's kubelet runs from a file."""


def belongs_to_node(pod: Pod) -> bool:
    """Whether the pod stays with its node, come what may, and goes with it: a daemon's, or a static pod."""
    owner = pod.controller
    return MIRROR in pod.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def is_made_again(pod: Pod) -> bool:
    return pod.controller is not None and not pod.is_terminating


def going_for(pod: Pod, cluster: Cluster) -> list[Pod]:
    """The pods that are being deleted on the node that was promised to this one, and matter less."""
    row = cluster.nodes.row_of(pod.nominated_node_name)
    there = () if row is None else cluster.nodes.pods_on(row)
    return [each for each in there if each.is_terminating and each.priority < pod.priority]


def is_protected(pod: Pod, cluster: Cluster) -> bool:
    """Whether a disruption budget allows no eviction of the pod at this time."""
    table = cluster.nodes.pods
    slots = np.array([table.slot_of(pod)], np.intp)
    return bool(Budgets(cluster.pdbs).violated_by(table, slots)[0])
