"""What could be different about one node, so that the pod goes there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stowplan.api.meta import NodeSelectorRequirement
from stowplan.api.node import NodeObject
from stowplan.api.pod import Affinity, NodeAffinity, Pod
from stowplan.explain.changes import Change
from stowplan.explain.trial import Trial

replace = msgspec.structs.replace
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NODES_TRIED = 5


def labels(trial: Trial) -> Iterator[Change]:
    """A label that the pod asks for, or would rather see, on a node that lacks it, or one less."""
    for key, value in dict.fromkeys(_wanted(trial.pod)):
        for node in _candidates(trial):
            changed = _relabelled(node, key, value)
            if changed is not None and (flip := trial.with_node(changed)) is not None:
                text = f"label {key}={value} on node" if value is not None else f"no label {key} on node"
                yield Change(
                    kind="node label",
                    text=f"{text} {node.name}",
                    flip=flip,
                    was=node.labels.get(key),
                    now=value,
                    node=changed,
                )
                break


def cordons(trial: Trial) -> Iterator[Change]:
    cordoned = sorted((node for node in trial.cluster.nodes.objects if node.unschedulable), key=_name)
    for node in cordoned[:NODES_TRIED]:
        taints = tuple(taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE)
        changed = replace(node, spec=replace(node.spec, unschedulable=False, taints=taints))
        if (flip := trial.with_node(changed)) is not None:
            text = f"node {node.name} no longer cordoned"
            yield Change(kind="cordon", text=text, flip=flip, now=node.name, node=changed)


def _wanted(pod: Pod) -> Iterator[tuple[str, str | None]]:
    """Labels, with None for one that must not be there, by which a node would suit the pod better."""
    yield from (pod.spec.node_selector or {}).items()
    affinity = (pod.spec.affinity or Affinity()).node_affinity or NodeAffinity()
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = [*required.node_selector_terms] if required else []
    terms += [each.preference for each in affinity.preferred_during_scheduling_ignored_during_execution or ()]
    for term in terms:
        for requirement in term.match_expressions:
            yield requirement.key, _suiting(requirement)


def _suiting(requirement: NodeSelectorRequirement) -> str | None:
    match requirement.operator:
        case "In":
            return requirement.values[0] if requirement.values else None
        case "Exists":
            return "true"
        case "Gt" | "Lt" if requirement.values and requirement.values[0].lstrip("-").isdecimal():
            return str(int(requirement.values[0]) + (1 if requirement.operator == "Gt" else -1))
    return None


def _candidates(trial: Trial) -> Iterator[NodeObject]:
    """Nodes that NodeAffinity alone refuses, by name, and the best of those behind the winner."""
    decision, nodes = trial.decision, trial.cluster.nodes
    refusals = np.zeros(len(decision.looked_at), np.int64)
    alone = np.zeros(len(decision.looked_at), np.bool_)
    for verdicts in decision.filters:
        refusals += verdicts.fails
        alone |= verdicts.fails if verdicts.plugin == "NodeAffinity" else False
    rows = decision.looked_at[alone & (refusals == 1)]
    yield from sorted((nodes.objects[row] for row in rows.tolist()), key=_name)[:NODES_TRIED]
    totals = decision.totals
    if totals is not None:
        order = decision.feasible[np.argsort(-totals, kind="stable")].tolist()
        behind = [row for row in order[: NODES_TRIED + 1] if decision.names[row] != trial.winner]
        yield from (nodes.objects[row] for row in behind)


def _relabelled(node: NodeObject, key: str, value: str | None) -> NodeObject | None:
    """None where the node is so already."""
    if node.labels.get(key) == value:
        return None
    left = {name: each for name, each in node.labels.items() if name != key}
    meta = replace(node.metadata, labels=left if value is None else {**left, key: value})
    return replace(node, metadata=meta)


def _name(node: NodeObject) -> str:
    return node.name
