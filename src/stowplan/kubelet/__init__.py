"""Simulated nodes: heartbeats, pods that start, and deletions that finish."""

from stowplan.kubelet.kubelets import SimulatedKubelets

__all__ = ["SimulatedKubelets"]
