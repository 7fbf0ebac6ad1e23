"""Rejections in words: what a group of nodes lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stowplan.api.amounts import amount_text
from stowplan.api.meta import LabelSelector, LabelSelectorRequirement, NodeSelectorRequirement
from stowplan.api.node import first_untolerated
from stowplan.api.pod import Pod, PodAffinityTerm
from stowplan.framework.decision import Decision
from stowplan.framework.status import Code, Status

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable

INSUFFICIENT = "Insufficient "
TOO_MANY_PODS = "Too many pods"
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


def closest(pod: Pod, reasons: Sequence[str], nodes: NodeTable, rows: Sequence[int]) -> Closest | None:
    """The closest of the nodes with insufficient resources; None for other reasons."""
    resources = [each.removeprefix(INSUFFICIENT) for each in reasons if each.startswith(INSUFFICIENT)]
    if TOO_MANY_PODS in reasons:
        resources.append("pods")
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


def detail(pod: Pod, status: Status, nodes: NodeTable, rows: Sequence[int]) -> str:
    """What the nodes lack, in a sentence; empty if the reasons say it all."""
    found = closest(pod, status.reasons, nodes, rows)
    if found is not None:
        lacks = "; ".join(_shortage_text(each, nodes) for each in found.shortages) or NOMINATED
        return f"{found.node} comes closest: it {lacks}" if len(rows) > 1 else f"it {lacks}"
    match status.plugin:
        case "TaintToleration":
            return _taints_text(pod, nodes, rows)
        case "NodeAffinity":
            required = _node_terms(pod)
        case "NodePorts":
            required = [f"host port {each.port}/{each.protocol}" for each in pod.shape.ports]
        case "PodTopologySpread":
            required = _spread_terms(pod)
        case "InterPodAffinity":
            if any("existing pods" in reason for reason in status.reasons):
                return "pods that run there or nearby have anti-affinity to its labels"
            required = _pod_terms(pod, anti=any("anti-affinity" in reason for reason in status.reasons))
        case _:
            required = []
    return f"the pod requires {', and '.join(required)}" if required else ""


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


def taint_text(key: str, value: str, effect: str) -> str:
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"


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


def _taints_text(pod: Pod, nodes: NodeTable, rows: Sequence[int]) -> str:
    taints = (first_untolerated(nodes.objects[row].taints, pod.spec.tolerations) for row in rows)
    counts = Counter(taint_text(*taint) for taint in taints if taint is not None)
    listed = ", ".join(f"{taint} ({_nodes(count)})" for taint, count in counts.most_common(5))
    return f"the pod does not tolerate {listed}" if listed else ""


def _node_terms(pod: Pod) -> list[str]:
    found = []
    if pod.spec.node_selector:
        found.append(f"nodes with {_labels(pod.spec.node_selector)}")
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is not None:
        terms = (
            " and ".join(requirement_text(each) for each in (*term.match_expressions, *term.match_fields))
            for term in required.node_selector_terms
        )
        found.append(f"nodes with {' or '.join(terms)}")
    return found


def _spread_terms(pod: Pod) -> list[str]:
    return [
        f"pods with {selector_text(each.label_selector)} spread over {each.topology_key}, "
        f"at most {each.max_skew} apart"
        for each in pod.spec.topology_spread_constraints
        if each.when_unsatisfiable == "DoNotSchedule"
    ]


def _pod_terms(pod: Pod, *, anti: bool) -> list[str]:
    affinity = pod.spec.affinity
    side = affinity and (affinity.pod_anti_affinity if anti else affinity.pod_affinity)
    terms: Sequence[PodAffinityTerm] = (
        side.required_during_scheduling_ignored_during_execution if side else ()
    )
    which = "no pod" if anti else "a pod"
    return [f"{which} with {selector_text(each.label_selector)} in its {each.topology_key}" for each in terms]


def selector_text(selector: LabelSelector | None) -> str:
    if selector is None:
        return "no matching labels"
    parts = [_labels(selector.match_labels)] if selector.match_labels else []
    parts += [requirement_text(each) for each in selector.match_expressions]
    return " and ".join(parts) or "any labels"


def _labels(labels: Mapping[str, str]) -> str:
    return " and ".join(f"{key}={value}" for key, value in labels.items())


def requirement_text(each: LabelSelectorRequirement | NodeSelectorRequirement) -> str:
    if each.operator == "In" and len(each.values) == 1:
        return f"{each.key}={each.values[0]}"
    values = f" ({', '.join(each.values)})" if each.values else ""
    words = {
        "In": "in",
        "NotIn": "not in",
        "Exists": "present",
        "DoesNotExist": "absent",
        "Gt": ">",
        "Lt": "<",
    }
    return f"{each.key} {words[each.operator]}{values}"


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
