"""The nodes that a pod's nodeSelector, required affinity and tolerations allow; used by several plugins."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import msgspec
import numpy as np

from stowplan.api.meta import NodeSelector
from stowplan.api.node import first_untolerated
from stowplan.api.pod import NodeAffinity, Pod, PodSpec
from stowplan.api.selectors import NodeTerm, Requirement, node_terms_of, selector_of_map
from stowplan.framework import Mask, NodeTable

_encode = msgspec.msgpack.Encoder().encode


class RequiredNodes(msgspec.Struct, frozen=True):
    """nodeSelector and required node affinity, built. `terms` None: no affinity asked for."""

    selector: tuple[Requirement, ...]
    terms: tuple[NodeTerm, ...] | None

    def mask(self, nodes: NodeTable) -> Mask:
        mask = np.ones(len(nodes), np.bool_) if self.terms is None else nodes.match_terms(self.terms)
        for requirement in self.selector:
            mask &= nodes.matches(requirement)
        return mask

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        return self._selects(labels) and (
            self.terms is None or any(term.matches(labels, name) for term in self.terms)
        )

    def fails_on(self, labels: Mapping[str, str]) -> bool:
        """Whether a node that does not match might match if no term were invalid."""
        return self._selects(labels) and any(term.error for term in self.terms or ())

    def _selects(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.selector)


def required_nodes(pod: Pod) -> RequiredNodes:
    """Built once for all pods of a shape."""
    found: RequiredNodes | None = pod.shape.memo.get(RequiredNodes)
    if found is None:
        required = required_selector(pod.spec)
        found = pod.shape.memo[RequiredNodes] = RequiredNodes(
            selector_of_map(pod.spec.node_selector or {}).requirements,
            None if required is None else node_terms_of(required),
        )
    return found


def required_selector(spec: PodSpec) -> NodeSelector | None:
    affinity = node_affinity(spec)
    return None if affinity is None else affinity.required_during_scheduling_ignored_during_execution


def node_affinity(spec: PodSpec) -> NodeAffinity | None:
    return spec.affinity.node_affinity if spec.affinity is not None else None


def node_affinity_key(pod: Pod) -> Hashable:
    """The same for pods that ask the same of their node."""
    key = pod.shape.memo.get("node affinity")
    if key is None:
        key = _encode((pod.spec.node_selector, node_affinity(pod.spec)))
        pod.shape.memo["node affinity"] = key
    return key


def required_text(requirements: Iterable[str]) -> str:
    """What a pod requires of its node, as a sentence; empty without requirements."""
    listed = ", and ".join(requirements)
    return f"the pod requires {listed}" if listed else ""


def find_untolerated(nodes: NodeTable, pod: Pod) -> Mask:
    """Nodes with a taint that keeps the pod away."""
    tolerations = pod.spec.tolerations
    return nodes.by_taints(lambda taints: first_untolerated(taints, tolerations) is not None)
