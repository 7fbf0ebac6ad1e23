"""The single things that a pod's spec asks of nodes and of other pods, and the spec without each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from stowplan.api.meta import NodeSelector, NodeSelectorTerm
from stowplan.api.pod import Affinity, NodeAffinity, PodAffinity, PodSpec
from stowplan.explain.reasons import requirement_text, selector_text

replace = msgspec.structs.replace
T = TypeVar("T")
REQUIRED, PREFERRED = (
    "required_during_scheduling_ignored_during_execution",
    "preferred_during_scheduling_ignored_during_execution",
)


def without_terms(spec: PodSpec) -> Iterator[tuple[str, PodSpec]]:
    """Each term in words, with the spec that does without it."""
    selector = spec.node_selector or {}
    for key, value in selector.items():
        left = {name: each for name, each in selector.items() if name != key}
        yield f"the node selector {key}={value}", replace(spec, node_selector=left)
    for text, affinity in _affinities(spec.affinity or Affinity()):
        yield text, replace(spec, affinity=affinity)
    for constraint, others in _each(spec.topology_spread_constraints):
        text = f"the spread over {constraint.topology_key} ({constraint.when_unsatisfiable})"
        yield text, replace(spec, topology_spread_constraints=others)


def _affinities(affinity: Affinity) -> Iterator[tuple[str, Affinity]]:
    for text, of_nodes in _node_affinities(affinity.node_affinity or NodeAffinity()):
        yield text, replace(affinity, node_affinity=of_nodes)
    for field, name in (("pod_affinity", "affinity"), ("pod_anti_affinity", "anti-affinity")):
        for text, of_pods in _pod_affinities(getattr(affinity, field) or PodAffinity(), name):
            yield text, replace(affinity, **{field: of_pods})


def _node_affinities(affinity: NodeAffinity) -> Iterator[tuple[str, NodeAffinity]]:
    required = affinity.required_during_scheduling_ignored_during_execution or NodeSelector()
    for number, term in enumerate(required.node_selector_terms):
        for text, left in _expressions(term):
            terms = list(required.node_selector_terms)
            terms[number] = left
            kept = replace(required, node_selector_terms=tuple(terms)) if _asks(left) else None
            yield f"the required node affinity {text}", replace(affinity, **{REQUIRED: kept})
    for preferred, others in _each(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        text = " and ".join(text for text, _ in _expressions(preferred.preference))
        yield f"the preferred node affinity {text}", replace(affinity, **{PREFERRED: others})


def _expressions(term: NodeSelectorTerm) -> Iterator[tuple[str, NodeSelectorTerm]]:
    for field in ("match_expressions", "match_fields"):
        for each, others in _each(getattr(term, field)):
            yield requirement_text(each), replace(term, **{field: others})


def _asks(term: NodeSelectorTerm) -> bool:
    """A term that asks for nothing matches no node, so the whole requirement goes with its last part."""
    return bool(term.match_expressions or term.match_fields)


def _pod_affinities(affinity: PodAffinity, name: str) -> Iterator[tuple[str, PodAffinity]]:
    for term, others in _each(affinity.required_during_scheduling_ignored_during_execution):
        text = f"the required {name} to pods with {selector_text(term.label_selector)}"
        yield text, replace(affinity, **{REQUIRED: others})
    for entry, left in _each(affinity.preferred_during_scheduling_ignored_during_execution):
        text = f"the preferred {name} to pods with {selector_text(entry.pod_affinity_term.label_selector)}"
        yield text, replace(affinity, **{PREFERRED: left})


def _each(items: Sequence[T]) -> Iterator[tuple[T, tuple[Any, ...]]]:
    """Every item, with the others."""
    for place, item in enumerate(items):
        yield item, (*items[:place], *items[place + 1 :])
