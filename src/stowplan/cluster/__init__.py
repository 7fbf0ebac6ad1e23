"""The cluster as columns: nodes, the pods on them, and counts that follow every change in place."""

from stowplan.cluster.cluster import Cluster, ClusterView, ObjectStore
from stowplan.cluster.node_table import Node, NodeTable
from stowplan.cluster.pod_table import PodTable, Tally

__all__ = ["Cluster", "ClusterView", "Node", "NodeTable", "ObjectStore", "PodTable", "Tally"]
