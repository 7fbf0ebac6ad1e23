"""NodeAffinity: nodeSelector and node affinity, required and preferred, of the pod and of the profile."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from stowplan.api import pod as api
from stowplan.api.node import NodeObject
from stowplan.api.pod import PreferredSchedulingTerm
from stowplan.api.selectors import NodeTerm, labels_text, node_term_of, node_terms_of, requirement_text
from stowplan.errors import SelectorError
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    NodeTable,
    Pod,
    Reads,
    Reject,
    Resource,
    Scores,
    Status,
    scale_to_max,
)
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.args import NodeAffinityArgs
from stowplan.plugins.node_matching import (
    node_affinity,
    node_affinity_key,
    required_nodes,
    required_selector,
    required_text,
)

WeightedTerm = tuple[int, NodeTerm]


class NodeAffinity(ExplainingPlugin):
    args: NodeAffinityArgs
    reads = Reads.NODE
    hints_by_spec = True
    limits_daemons = True
    reads_node_labels = True

    def __init__(self, args: NodeAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        added = args.added_affinity or api.NodeAffinity()
        required = added.required_during_scheduling_ignored_during_execution
        preferred = added.preferred_during_scheduling_ignored_during_execution
        self.added_terms = None if required is None else node_terms_of(required)
        self.added_preferred = tuple(_weighted_terms(preferred or ()))

    def sign_pod(self, pod: Pod) -> Hashable:
        return node_affinity_key(pod)

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | frozenset[str] | None:
        required = required_selector(pod.spec)
        if required is None:
            idle = self.added_terms is None and pod.spec.node_selector is None
            return Status.skip() if idle else None
        names: set[str] = set()
        for term in required.node_selector_terms:
            named = [
                set(field.values)
                for field in term.match_fields
                if field.key == "metadata.name" and field.operator == "In"
            ]
            if not named:
                return None
            names |= set.intersection(*named)
        if not required.node_selector_terms:
            return None
        return frozenset(names) if names else Status.unresolvable("pod affinity terms conflict")

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        rejected = np.zeros(len(nodes), np.bool_)
        if self.added_terms is not None:
            rejected = ~nodes.match_terms(self.added_terms)
            yield Reject(rejected, "node(s) didn't match scheduler-enforced node affinity", unresolvable=True)
        unmatched = ~required_nodes(pod).mask(nodes) & ~rejected
        yield Reject(unmatched, "node(s) didn't match Pod's node affinity/selector", unresolvable=True)

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        found = [f"nodes with {labels_text(pod.spec.node_selector)}"] if pod.spec.node_selector else []
        required = required_selector(pod.spec)
        if required is not None:
            terms = (
                " and ".join(requirement_text(each) for each in (*term.match_expressions, *term.match_fields))
                for term in required.node_selector_terms
            )
            found.append(f"nodes with {' or '.join(terms)}")
        return required_text(found)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if _preferred_of(pod) is None and not self.added_preferred:
            return Status.skip()
        try:
            preferred_terms(pod)
        except SelectorError as error:
            return Status.error(str(error))
        return None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        scores = np.zeros(len(nodes), np.int64)
        for weight, term in (*self.added_preferred, *preferred_terms(pod)):
            scores += weight * nodes.match_term(term)
        return scores

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if self.added_terms is not None and not any(
            term.matches(new.labels, new.name) for term in self.added_terms
        ):
            return Hint.SKIP
        required = required_nodes(pod)
        if not required.matches(new.labels, new.name):
            # parity: where a term cannot be built, no node is known not to match
            return Hint.QUEUE if required.fails_on(new.labels) else Hint.SKIP
        fitted = old is not None and required.matches(old.labels, old.name)
        return Hint.SKIP if fitted else Hint.QUEUE


def preferred_terms(pod: Pod) -> tuple[WeightedTerm, ...]:
    """The pod's preferred terms, built once for all pods of a shape. One that cannot be built is an error."""
    found: tuple[WeightedTerm, ...] | None = pod.shape.memo.get(preferred_terms)
    if found is None:
        found = pod.shape.memo[preferred_terms] = tuple(_weighted_terms(_preferred_of(pod) or ()))
    return found


def _preferred_of(pod: Pod) -> tuple[PreferredSchedulingTerm, ...] | None:
    affinity = node_affinity(pod.spec)
    return None if affinity is None else affinity.preferred_during_scheduling_ignored_during_execution


def _weighted_terms(terms: Iterable[PreferredSchedulingTerm]) -> Iterator[WeightedTerm]:
    for entry in terms:
        term = node_term_of(entry.preference)
        if entry.weight == 0 or not (entry.preference.match_expressions or entry.preference.match_fields):
            continue
        if term.error:
            raise SelectorError(term.error)
        yield entry.weight, term
