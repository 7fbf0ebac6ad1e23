"""The cluster as columns: nodes, the pods on them, and counts that follow every change in place."""

from stowplan.cluster.cluster import Cluster, ClusterView
from stowplan.cluster.node_table import Node, NodeTable
from stowplan.cluster.pod_table import PodTable
from stowplan.cluster.store import ObjectStore
from stowplan.cluster.tallies import Tally

__all__ = ["Cluster", "ClusterView", "Node", "NodeTable", "ObjectStore", "PodTable", "Tally"]
