"""Nodes for the page: how they are laid out, how full they are, and one of them in full."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.amounts import amount_text
from stowplan.api.names import suggest_names
from stowplan.api.node import Taint
from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.explain.reasons import taint_text
from stowplan.journal.wire import WireStruct
from stowplan.scheduler.scheduler import Scheduler
from stowplan.web.source import Refused

ZONE = "topology.kubernetes.io/zone"
FULLEST = "fullest"
"""Not a resource: of those that every node has, the one that is taken most."""
EVERYWHERE = ("cpu", "memory", "pods")
FULL, NONE = 250, 255
"""How full a node is, in a byte: 0 to FULL, or NONE where it has nothing of the kind."""
PODS_LISTED = 500


class ClusterAnswer(WireStruct):
    layout: str
    nodes: list[str]
    zones: list[str]
    zone_of: list[int]
    """A place in `zones`; -1 for a node without one."""
    cordoned: list[int]
    tainted: list[int]
    resources: list[str]


class ShownAmount(WireStruct):
    resource: str
    allocatable: str
    requested: str
    filled: float
    """Of 1."""


class ShownPod(WireStruct):
    pod: str
    priority: int
    cpu: str
    cpu_thousandths: int
    memory: str
    memory_bytes: int


class NodeAnswer(WireStruct):
    name: str
    labels: dict[str, str]
    taints: list[str]
    is_cordoned: bool
    amounts: list[ShownAmount]
    pod_count: int
    pods: list[ShownPod]
    """Not more than a few hundred."""


def layout_of(nodes: LiveNodeTable) -> str:
    """Another text as soon as a node comes, goes, changes its zone, or is cordoned or tainted."""
    columns = (nodes.label(ZONE).ids, nodes.unschedulable, _is_tainted(nodes))
    check = 0
    for column in columns:
        check = zlib.crc32(column[: len(nodes)].tobytes(), check)
    return f"{nodes.layout}-{len(nodes)}-{check}"


def cluster_answer(nodes: LiveNodeTable) -> ClusterAnswer:
    zone = nodes.label(ZONE)
    return ClusterAnswer(
        layout=layout_of(nodes),
        nodes=list(nodes.names),
        zones=list(zone.values),
        zone_of=zone.ids[: len(nodes)].tolist(),
        cordoned=np.flatnonzero(nodes.unschedulable).tolist(),
        tainted=np.flatnonzero(_is_tainted(nodes)).tolist(),
        resources=[*EVERYWHERE, *(name for name in _resources(nodes) if name not in EVERYWHERE)],
    )


def fill_of(nodes: LiveNodeTable, resource: str) -> str:
    """How full each node is, a byte each, in base64."""
    asked = EVERYWHERE if resource == FULLEST else (resource,)
    columns = [_filled(nodes, each) for each in asked]
    filled = np.max(columns, axis=0)
    return base64.b64encode(np.where(filled < 0, NONE, filled * FULL).astype(np.uint8).tobytes()).decode()


def node_answer(scheduler: Scheduler, name: str) -> NodeAnswer:
    nodes = scheduler.cluster.nodes
    row = nodes.row_of(name)
    if row is None:
        raise Refused(f"node {name} not found{suggest_names(name, nodes.names)}")
    node, pods = nodes.objects[row], nodes.pods_on(row)
    return NodeAnswer(
        name=name,
        labels=node.labels,
        taints=[taint_text(*taint) for taint in node.taints],
        is_cordoned=node.unschedulable,
        amounts=[_amount(nodes, resource, row) for resource in _resources(nodes, row)],
        pod_count=len(pods),
        pods=[_shown(pod) for pod in pods[:PODS_LISTED]],
    )


def _amount(nodes: LiveNodeTable, resource: str, row: int) -> ShownAmount:
    has, taken = int(nodes.allocatable[resource][row]), int(_taken(nodes, resource)[row])
    return ShownAmount(
        resource=resource,
        allocatable=amount_text(resource, has),
        requested=amount_text(resource, taken),
        filled=taken / has if has else 0.0,
    )


def _shown(pod: Pod) -> ShownPod:
    cpu, memory = (pod.requests.get(name, 0) for name in ("cpu", "memory"))
    return ShownPod(
        pod=pod.key,
        priority=pod.priority,
        cpu=amount_text("cpu", cpu),
        cpu_thousandths=cpu,
        memory=amount_text("memory", memory),
        memory_bytes=memory,
    )


def _resources(nodes: LiveNodeTable, row: int | None = None) -> list[str]:
    """Those that the node has, or any."""
    rows: Any = slice(None) if row is None else row
    return [name for name in nodes.allocatable if np.any(nodes.allocatable[name][rows] > 0)]


def _filled(nodes: LiveNodeTable, resource: str) -> NDArray[np.float64]:
    """Of 1; -1 where a node has nothing of it."""
    has = nodes.allocatable[resource]
    part = np.clip(_taken(nodes, resource) / np.maximum(has, 1), 0, 1)
    return np.where(has > 0, part, -1.0)


def _taken(nodes: LiveNodeTable, resource: str) -> NDArray[np.int64]:
    return nodes.pod_count if resource == "pods" else nodes.requested[resource]


def _is_tainted(nodes: LiveNodeTable) -> NDArray[np.bool_]:
    def is_hard(taints: tuple[Taint, ...]) -> bool:
        return any(taint.is_hard for taint in taints)

    found: NDArray[np.bool_] = nodes.by_taints(is_hard)
    return found
