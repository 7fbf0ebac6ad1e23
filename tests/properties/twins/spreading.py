"""Twin of PodTopologySpread."""

from __future__ import annotations

import math
from typing import Any

from twins.of_usage import half_up
from twins.selectors import (
    MistakeError,
    check_selector,
    has_untolerated,
    is_empty,
    is_wanted_node,
    labels_of,
    namespace_of,
    selects,
)
from twins.world import SKIP, CycleError, Refusal, Twin, name_of, unresolvable, unschedulable

Json = dict[str, Any]
HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
HOSTNAME = "kubernetes.io/hostname"
SYSTEM = [
    {"maxSkew": 3, "topologyKey": HOSTNAME, "whenUnsatisfiable": SOFT},
    {"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": SOFT},
]


class Constraint:
    def __init__(self, raw: Json, selector: Json | None) -> None:
        self.key, self.max_skew = raw["topologyKey"], raw["maxSkew"]
        self.min_domains = raw.get("minDomains") or 1
        self.honors_affinity = raw.get("nodeAffinityPolicy", "Honor") == "Honor"
        self.honors_taints = raw.get("nodeTaintsPolicy", "Ignore") == "Honor"
        self.selector = selector
        self.counts: dict[str, int] = {}

    def lets_in(self, pod: Json, node: Json) -> bool:
        """Whether the node counts for this constraint."""
        return (not self.honors_affinity or is_wanted_node(pod, node)) and (
            not self.honors_taints or not has_untolerated(pod, node)
        )


class PodTopologySpread(Twin):
    def __init__(self, world: Any, pod: Json, args: Json) -> None:
        super().__init__(world, pod, args)
        self.is_system = args.get("defaultingType", "System") == "System"

    # Which constraints

    def constraints(self, action: str) -> list[Constraint]:
        own = self.pod["spec"].get("topologySpreadConstraints", [])
        if own:
            return [
                Constraint(raw, self.own_selector(raw)) for raw in own if raw["whenUnsatisfiable"] == action
            ]
        defaults = SYSTEM if self.is_system else self.args.get("defaultConstraints", [])
        selector = self.default_selector()
        if is_empty(selector):
            return []
        return [Constraint(raw, selector) for raw in defaults if raw["whenUnsatisfiable"] == action]

    def own_selector(self, raw: Json) -> Json | None:
        selector = raw.get("labelSelector")
        try:
            check_selector(selector)
        except MistakeError:
            raise CycleError("a selector of a topology spread constraint") from None
        if selector is None:
            return None
        labels = labels_of(self.pod)
        same = [equal(key, labels[key]) for key in raw.get("matchLabelKeys", []) if key in labels]
        return selector | {"matchExpressions": [*selector.get("matchExpressions", []), *same]}

    def default_selector(self) -> Json:
        """What the services and the owner of the pod select it by, all of it at once."""
        world, namespace, labels = self.world, namespace_of(self.pod), labels_of(self.pod)
        merged: dict[str, str] = {}
        for service in world.all("Service"):
            wanted = service["spec"].get("selector")
            if namespace_of(service) != namespace or wanted is None:
                continue
            if all(labels.get(key) == value for key, value in wanted.items()):
                merged |= wanted
        expressions: list[Json] = []
        for owner in self.pod["metadata"].get("ownerReferences", []):
            if owner.get("controller"):
                kind = (owner["apiVersion"], owner["kind"])
                found = world.find(owner["kind"], owner["name"], namespace)
                if found is not None and kind == ("v1", "ReplicationController"):
                    merged |= found["spec"].get("selector") or {}
                elif found is not None and kind in (("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet")):
                    expressions = self.requirements(found["spec"].get("selector"))
                break
        return {"matchExpressions": [*(equal(key, value) for key, value in merged.items()), *expressions]}

    @staticmethod
    def requirements(selector: Json | None) -> list[Json]:
        try:
            check_selector(selector)
        except MistakeError:
            return []
        selector = selector or {}
        equalities = [equal(key, value) for key, value in selector.get("matchLabels", {}).items()]
        return [*equalities, *selector.get("matchExpressions", [])]

    # Filtering

    def pre_filter(self) -> str | None:
        self.hard = self.constraints(HARD)
        if not self.hard:
            return SKIP
        for node in self.world.nodes:
            labels = labels_of(node)
            if not self.has_all_keys(node, self.hard):
                continue
            for each in self.hard:
                if each.lets_in(self.pod, node):
                    value = labels[each.key]
                    each.counts[value] = each.counts.get(value, 0) + self.count(node, each)
        return None

    def filter(self, node: Json) -> Refusal | None:
        text = "node(s) didn't match pod topology spread constraints"
        labels = labels_of(node)
        for each in self.hard:
            if each.key not in labels:
                return unresolvable(f"{text} (missing required label)")
            enough = len(each.counts) >= each.min_domains
            floor = min(each.counts.values()) if enough else 0
            itself = 1 if selects(each.selector, labels_of(self.pod)) else 0
            if each.counts.get(labels[each.key], 0) + itself - floor > each.max_skew:
                return unschedulable(text)
        return None

    def added(self, other: Json, node: Json) -> None:
        self.follow(other, node, 1)

    def removed(self, other: Json, node: Json) -> None:
        self.follow(other, node, -1)

    def follow(self, other: Json, node: Json, change: int) -> None:
        if namespace_of(other) != namespace_of(self.pod) or not self.has_all_keys(node, self.hard):
            return
        for each in self.hard:
            # Here terminating pods count, and the empty selector does too.
            if selects(each.selector, labels_of(other)) and each.lets_in(self.pod, node):
                value = labels_of(node)[each.key]
                each.counts[value] = each.counts.get(value, 0) + change

    def count(self, node: Json, constraint: Constraint) -> int:
        if is_empty(constraint.selector):
            return 0
        return sum(
            namespace_of(other) == namespace_of(self.pod)
            and "deletionTimestamp" not in other["metadata"]
            and selects(constraint.selector, labels_of(other))
            for other in self.world.pods_on(node)
        )

    @staticmethod
    def has_all_keys(node: Json, constraints: list[Constraint]) -> bool:
        return all(each.key in labels_of(node) for each in constraints)

    # Scoring

    def pre_score(self, nodes: list[Json]) -> str | None:
        self.soft = self.constraints(SOFT)
        if not self.soft:
            return SKIP
        needs_all = bool(self.pod["spec"].get("topologySpreadConstraints")) or not self.is_system
        self.ignored = {
            name_of(node) for node in nodes if needs_all and not self.has_all_keys(node, self.soft)
        }
        for node in nodes:
            for each in self.soft:
                if name_of(node) not in self.ignored and each.key != HOSTNAME:
                    each.counts[labels_of(node).get(each.key, "")] = 0
        self.weights = [
            math.log((len(nodes) - len(self.ignored) if each.key == HOSTNAME else len(each.counts)) + 2)
            for each in self.soft
        ]
        for node in self.world.nodes:
            if needs_all and not self.has_all_keys(node, self.soft):
                continue
            for each in self.soft:
                value = labels_of(node).get(each.key, "")
                if value in each.counts and each.lets_in(self.pod, node):
                    each.counts[value] += self.count(node, each)
        return None

    def score(self, node: Json) -> int:
        if name_of(node) in self.ignored:
            return 0
        total = 0.0
        for each, weight in zip(self.soft, self.weights, strict=True):
            if each.key in labels_of(node):
                on_host = each.key == HOSTNAME
                count = self.count(node, each) if on_host else each.counts[labels_of(node)[each.key]]
                total += count * weight + (each.max_skew - 1)
        return half_up(total)

    def normalize(self, scores: dict[str, int]) -> dict[str, int]:
        counted = [score for name, score in scores.items() if name not in self.ignored]
        low, high = min(counted, default=0), max(counted, default=0)
        return {
            name: 0 if name in self.ignored else 100 if high == 0 else 100 * (high + low - score) // high
            for name, score in scores.items()
        }


def equal(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}
