"""Pod affinity terms, built: which pods a term is about, and along which topology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stowplan.api.pod import Pod, PodAffinity, PodAffinityTerm
from stowplan.api.selectors import NOTHING, Selector, selector_of
from stowplan.errors import SelectorError


class AffinityTerm(NamedTuple):
    namespaces: frozenset[str]
    selector: Selector
    topology_key: str
    namespace_selector: Selector = NOTHING

    def matches(self, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
        return self.covers(pod.namespace, namespace_labels) and self.selector.matches(pod.labels)

    def covers(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        return namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)


class WeightedTerm(NamedTuple):
    weight: int
    term: AffinityTerm


class PodTerms(NamedTuple):
    """The four groups of a pod's terms; one with a term that cannot be built is empty and leaves an error."""

    required: tuple[AffinityTerm, ...] = ()
    required_anti: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedTerm, ...] = ()
    preferred_anti: tuple[WeightedTerm, ...] = ()
    errors: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.required_anti or self.preferred or self.preferred_anti)


NO_TERMS = PodTerms()


def terms_of(pod: Pod) -> PodTerms:
    """The terms of a pod, computed once for all pods of its shape and namespace."""
    affinity = pod.spec.affinity
    if affinity is None or (affinity.pod_affinity is None and affinity.pod_anti_affinity is None):
        return NO_TERMS
    key = ("affinity terms", pod.namespace)
    found: PodTerms | None = pod.shape.memo.get(key)
    if found is None:
        found = pod.shape.memo[key] = _build(pod.namespace, affinity.pod_affinity, affinity.pod_anti_affinity)
    return found


def _build(namespace: str, affinity: PodAffinity | None, anti: PodAffinity | None) -> PodTerms:
    affinity, anti = affinity or PodAffinity(), anti or PodAffinity()
    errors: list[str] = []

    def group(label: str, terms: Iterable[PodAffinityTerm]) -> tuple[AffinityTerm, ...]:
        try:
            return tuple(term_of(namespace, term) for term in terms)
        except SelectorError as error:
            errors.append(f"{label}: {error}")
            return ()

    def weighted(label: str, side: PodAffinity) -> tuple[WeightedTerm, ...]:
        preferred = side.preferred_during_scheduling_ignored_during_execution
        built = group(label, (entry.pod_affinity_term for entry in preferred))
        return tuple(WeightedTerm(entry.weight, term) for entry, term in zip(preferred, built, strict=False))

    return PodTerms(
        group("requiredAffinityTerms", affinity.required_during_scheduling_ignored_during_execution),
        group("requiredAntiAffinityTerms", anti.required_during_scheduling_ignored_during_execution),
        weighted("preferredAffinityTerms", affinity),
        weighted("preferredAntiAffinityTerms", anti),
        tuple(errors),
    )


def term_of(namespace: str, term: PodAffinityTerm) -> AffinityTerm:
    own = not term.namespaces and term.namespace_selector is None
    return AffinityTerm(
        frozenset((namespace,) if own else term.namespaces),
        selector_of(term.label_selector),
        term.topology_key,
        selector_of(term.namespace_selector),
    )
