"""Twin of InterPodAffinity."""

from __future__ import annotations

import math
from typing import Any

from twins.of_nodes import PREFERRED, REQUIRED
from twins.selectors import MistakeError, check_selector, labels_of, namespace_of, selects
from twins.world import SKIP, Refusal, Twin, unresolvable, unschedulable

Json = dict[str, Any]
Pairs = dict[tuple[str, str], int]
GROUPS = {
    "requiredAffinityTerms": ("podAffinity", REQUIRED),
    "requiredAntiAffinityTerms": ("podAntiAffinity", REQUIRED),
    "preferredAffinityTerms": ("podAffinity", PREFERRED),
    "preferredAntiAffinityTerms": ("podAntiAffinity", PREFERRED),
}


def raw_group(pod: Json, group: str) -> list[tuple[int, Json]]:
    side, when = GROUPS[group]
    terms = ((pod["spec"].get("affinity") or {}).get(side) or {}).get(when) or []
    if when == REQUIRED:
        return [(0, term) for term in terms]
    return [(each["weight"], each["podAffinityTerm"]) for each in terms]


def is_in_order(pod: Json, group: str) -> bool:
    try:
        for _, term in raw_group(pod, group):
            check_selector(term.get("labelSelector"))
            check_selector(term.get("namespaceSelector"))
    except MistakeError:
        return False
    return True


def terms_of(pod: Json, group: str) -> list[tuple[int, Json]]:
    """Weight and term; a group with a mistake in it counts as empty."""
    return raw_group(pod, group) if is_in_order(pod, group) else []


class InterPodAffinity(Twin):
    # Who a term is about

    def mine_matches(self, term: Json, other: Json) -> bool:
        """A term of the pod to place, and a pod on a node."""
        names = set(term.get("namespaces", []))
        if not names and term.get("namespaceSelector") is None:
            names = {namespace_of(self.pod)}
        for namespace in self.world.all("Namespace"):
            if selects(term.get("namespaceSelector"), labels_of(namespace)):
                names.add(namespace["metadata"]["name"])
        # The selector stays, and is held against no labels at all.
        inside = namespace_of(other) in names or selects(term.get("namespaceSelector"), {})
        return inside and selects(term.get("labelSelector"), labels_of(other))

    def theirs_matches(self, owner: Json, term: Json) -> bool:
        """A term of a pod on a node, and the pod to place."""
        names = set(term.get("namespaces", []))
        if not names and term.get("namespaceSelector") is None:
            names = {namespace_of(owner)}
        namespace = self.world.find("Namespace", namespace_of(self.pod))
        labels = labels_of(namespace) if namespace is not None else {}
        inside = namespace_of(self.pod) in names or selects(term.get("namespaceSelector"), labels)
        return inside and selects(term.get("labelSelector"), labels_of(self.pod))

    # Filtering

    def pre_filter(self) -> Refusal | str | None:
        wrong = [group for group in GROUPS if not is_in_order(self.pod, group)]
        if wrong:
            return unresolvable("parsing pod: " + ", ".join(wrong))
        self.affinity = [term for _, term in terms_of(self.pod, "requiredAffinityTerms")]
        self.anti = [term for _, term in terms_of(self.pod, "requiredAntiAffinityTerms")]
        self.count_again()
        return None if self.refusing or self.affinity or self.anti else SKIP

    def count_again(self) -> None:
        self.partners: Pairs = {}
        self.unwanted: Pairs = {}
        self.refusing: Pairs = {}
        for other, node in self.world.placed():
            labels = labels_of(node)
            for _, term in terms_of(other, "requiredAntiAffinityTerms"):
                if self.theirs_matches(other, term):
                    self.note(self.refusing, term, labels)
            if self.affinity and all(self.mine_matches(term, other) for term in self.affinity):
                for term in self.affinity:
                    self.note(self.partners, term, labels)
            for term in self.anti:
                if self.mine_matches(term, other):
                    self.note(self.unwanted, term, labels)

    @staticmethod
    def note(pairs: Pairs, term: Json, labels: dict[str, str], amount: int = 1) -> None:
        key = term["topologyKey"]
        if key in labels:
            pairs[key, labels[key]] = pairs.get((key, labels[key]), 0) + amount

    def added(self, other: Json, node: Json) -> None:
        self.count_again()

    def removed(self, other: Json, node: Json) -> None:
        self.count_again()

    def filter(self, node: Json) -> Refusal | None:
        labels = labels_of(node)
        if not self.has_partners(labels):
            return unresolvable("node(s) didn't match pod affinity rules")
        for term in self.anti:
            key = term["topologyKey"]
            if key in labels and self.unwanted.get((key, labels[key]), 0) > 0:
                return unschedulable("node(s) didn't match pod anti-affinity rules")
        if any(pair in self.refusing for pair in labels.items()):
            return unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")
        return None

    def has_partners(self, labels: dict[str, str]) -> bool:
        if any(term["topologyKey"] not in labels for term in self.affinity):
            return False
        if all((term["topologyKey"], labels[term["topologyKey"]]) in self.partners for term in self.affinity):
            return True
        return not self.partners and all(self.mine_matches(term, self.pod) for term in self.affinity)

    # Scoring

    def pre_score(self, nodes: list[Json]) -> str | None:
        near, far = (
            terms_of(self.pod, "preferredAffinityTerms"),
            terms_of(self.pod, "preferredAntiAffinityTerms"),
        )
        if self.args.get("ignorePreferredTermsOfExistingPods") and not near and not far:
            return SKIP
        hard = self.args.get("hardPodAffinityWeight", 1)
        self.points: Pairs = {}
        for other, node in self.world.placed():
            labels = labels_of(node)
            for sign, terms in ((1, near), (-1, far)):
                for weight, term in terms:
                    if self.mine_matches(term, other):
                        self.note(self.points, term, labels, sign * weight)
            if hard > 0:
                for _, term in terms_of(other, "requiredAffinityTerms"):
                    if self.theirs_matches(other, term):
                        self.note(self.points, term, labels, hard)
            for sign, group in ((1, "preferredAffinityTerms"), (-1, "preferredAntiAffinityTerms")):
                for weight, term in terms_of(other, group):
                    if self.theirs_matches(other, term):
                        self.note(self.points, term, labels, sign * weight)
        return None if self.points else SKIP

    def score(self, node: Json) -> int:
        return sum(self.points.get(pair, 0) for pair in labels_of(node).items())

    def normalize(self, scores: dict[str, int]) -> dict[str, int]:
        low, high = min(scores.values()), max(scores.values())
        if low == high:
            return dict.fromkeys(scores, 0)
        return {
            name: math.trunc(100.0 * (float(score - low) / float(high - low)))
            for name, score in scores.items()
        }
