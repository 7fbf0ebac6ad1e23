"""Rejections in words: what a group of nodes lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stowplan.api.amounts import amount_text
from stowplan.api.pod import Pod
from stowplan.framework.answers import describe, where_text
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import ExplainingPlugin, Plugin
from stowplan.framework.status import Code, Status

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable

NOMINATED = "has enough room only without the pods nominated to it"


class Shortage(NamedTuple):
    """How much of a resource a node lacks for the pod, in the units of the node table."""

    resource: str
    asked: int
    free: int
    allocatable: int

    @property
    def lacking(self) -> int:
        return self.asked - self.free


class Closest(NamedTuple):
    """The node that lacks the least; without shortages if its room is taken by nominated pods."""

    node: str
    shortages: tuple[Shortage, ...]


def closest(
    pod: Pod, status: Status, nodes: NodeTable, rows: Sequence[int], plugins: Mapping[str, Plugin]
) -> Closest | None:
    """The closest of the nodes with insufficient resources; None for other reasons."""
    plugin = plugins.get(status.plugin)
    if not isinstance(plugin, ExplainingPlugin):
        return None
    try:
        resources = [str(each) for each in plugin.insufficient_resources(status.reasons)]
    except Exception:  # a plugin that cannot say it is asked for a sentence, which shows what is wrong
        return None
    if not resources:
        return None
    missing = np.zeros(len(rows))
    for resource in resources:
        asked = 1 if resource == "pods" else pod.requests.get(resource, 0)
        free = nodes.allocatable[resource][rows] - _used_amounts(nodes, resource)[rows]
        missing += np.maximum(asked - free, 0) / max(asked, 1)
    row = rows[int(np.lexsort((nodes.live.name_ranks[rows], missing))[0])]
    found = (each for each in shortages(pod, resources, nodes, row) if each.lacking > 0)
    return Closest(nodes.names[row], tuple(found))


def shortages(pod: Pod, resources: Sequence[str], nodes: NodeTable, row: int) -> Iterator[Shortage]:
    """What the pod requests of each resource, and what the node has left."""
    for resource in resources:
        allocatable = int(nodes.allocatable[resource][row])
        asked = 1 if resource == "pods" else pod.requests.get(resource, 0)
        yield Shortage(resource, asked, allocatable - int(_used_amounts(nodes, resource)[row]), allocatable)


def detail(
    pod: Pod, status: Status, nodes: NodeTable, rows: Sequence[int], plugins: Mapping[str, Plugin]
) -> str:
    """What the nodes lack, in a sentence; empty if the reasons say it all."""
    found = closest(pod, status, nodes, rows, plugins)
    if found is not None:
        lacks = "; ".join(_shortage_text(each, nodes) for each in found.shortages) or NOMINATED
        return f"{found.node} comes closest: it {lacks}" if len(rows) > 1 else f"it {lacks}"
    plugin = plugins.get(status.plugin)
    if not isinstance(plugin, ExplainingPlugin):
        return ""
    try:
        return str(plugin.explain_reasons(pod, status.reasons, [nodes.objects[row] for row in rows]))
    except Exception as error:
        return f"{status.plugin} cannot say what they lack: {describe(error)}{where_text(error)}"


def preemption_text(decision: Decision) -> str:
    """Why evicting pods does not help a pod that fits nowhere; empty if the decision failed."""
    if decision.error is not None:
        return ""
    pod, status = decision.pod, decision.post_filter
    if status is not None and status.code is not Code.UNSCHEDULABLE:
        return f"Preemption was not attempted: {status.plugin} returned {status.message!r}."
    found = None if status is None else status.preemption
    if found is None:
        return "No plugin of this profile preempts pods." if decision.node_count else ""
    if found.not_eligible:
        return f"Preemption was not attempted: {found.not_eligible}"
    candidates = int((decision.codes() == Code.UNSCHEDULABLE).sum())
    if not candidates:
        return "Preemption cannot help: no node was rejected for a reason that evicting pods would resolve."
    lower = "may be evicted" if found.protected else f"has a priority below {pod.priority}"
    parts = (
        (found.not_helpful, "for reasons that evicting pods would not resolve"),
        (found.no_victims, f"where no pod {lower}"),
        (candidates - found.no_victims, "even without all pods of lower priority"),
    )
    listed = "; ".join(f"on {_nodes(count)} {why}" for count, why in parts if count)
    return f"Preemption cannot help. The pod does not fit {listed}. {found.protected}".rstrip()


def _used_amounts(nodes: NodeTable, resource: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return nodes.pod_count if resource == "pods" else nodes.requested[resource]


def _shortage_text(shortage: Shortage, nodes: NodeTable) -> str:
    resource, asked, free, allocatable = shortage
    if resource == "pods":
        return f"already runs {allocatable - free} of at most {allocatable} pods"
    wanted, left, whole, lacking = (
        amount_text(resource, each) for each in (asked, free, allocatable, shortage.lacking)
    )
    found = f"lacks {lacking} of {resource} ({wanted} requested, {left} of {whole} free)"
    if asked > int(nodes.live.allocatable[resource].max(initial=0)):
        return f"{found}, and no node is large enough"
    return found


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
