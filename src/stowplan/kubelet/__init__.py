"""Simulated nodes: heartbeats, pods that start, run, finish and fail, and deletions that finish."""

from stowplan.kubelet.behaviour import Behaviour
from stowplan.kubelet.kubelets import SimulatedKubelets
from stowplan.kubelet.templates import NodeTemplate, read_templates

__all__ = ["Behaviour", "NodeTemplate", "SimulatedKubelets", "read_templates"]
