"""Twins put in order: the filters a node has to pass, and the scores of those that do."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from twins.near_pods import InterPodAffinity
from twins.of_nodes import (
    ImageLocality,
    NodeAffinity,
    NodeDeclaredFeatures,
    NodeName,
    NodeUnschedulable,
    TaintToleration,
)
from twins.of_usage import NodePorts, NodeResourcesBalancedAllocation, NodeResourcesFit
from twins.spreading import PodTopologySpread
from twins.world import SKIP, Refusal, Twin, World, name_of

Json = dict[str, Any]
TWINS: dict[str, type[Twin]] = {
    each.__name__: each
    for each in (
        NodeUnschedulable,
        NodeName,
        TaintToleration,
        NodeAffinity,
        NodePorts,
        NodeResourcesFit,
        PodTopologySpread,
        InterPodAffinity,
        NodeResourcesBalancedAllocation,
        ImageLocality,
        NodeDeclaredFeatures,
    )
}
"""In the order of the default profile."""
WEIGHTS = {"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2}


class Profile(NamedTuple):
    """Plugins in order, their weights and arguments; `claims` where DynamicResources has its say, too."""

    plugins: tuple[str, ...] = tuple(TWINS)
    weights: dict[str, int] = WEIGHTS
    args: dict[str, Json] = {}
    claims: bool = True
    preempts: bool = True


def priority_of(pod: Json) -> int:
    return pod["spec"].get("priority") or 0


class Cycle:
    """One pod before a world; `nominated` are pods promised a node, each with its name."""

    def __init__(
        self, world: World, pod: Json, profile: Profile, nominated: Iterable[tuple[Json, str]] = ()
    ) -> None:
        self.world, self.pod, self.profile, self.nominated = world, pod, profile, list(nominated)
        self.twins = {name: TWINS[name](world, pod, profile.args.get(name, {})) for name in profile.plugins}
        self.skipped: set[str] = set()
        self.names: set[str] | None = None

    def pre_filter(self) -> tuple[str, Refusal] | None:
        for name, twin in self.twins.items():
            if not twin.filters:
                continue
            answer = twin.pre_filter()
            if answer == SKIP:
                self.skipped.add(name)
            elif isinstance(answer, Refusal):
                return name, answer
            elif answer is not None:
                self.names = answer
        return None

    def refusal(self, node: Json) -> tuple[str, Refusal] | None:
        """First with the pods nominated to the node on it, then without them."""
        ahead = [
            other
            for other, where in self.nominated
            if where == name_of(node)
            and priority_of(other) >= priority_of(self.pod)
            and other["metadata"]["name"] != self.pod["metadata"]["name"]
        ]
        trial = copy.deepcopy(self) if ahead else self
        for other in ahead:
            trial.put(other, node)
        return (trial.first_refusal(node) if ahead else None) or self.first_refusal(node)

    def first_refusal(self, node: Json) -> tuple[str, Refusal] | None:
        for name, twin in self.twins.items():
            if twin.filters and name not in self.skipped:
                found = twin.filter(node)
                if found is not None:
                    return name, found
        return None

    def put(self, other: Json, node: Json) -> None:
        self.world.pods_on(node).append(other)
        for name, twin in self.twins.items():
            if name not in self.skipped:
                twin.added(other, node)

    def take(self, other: Json, node: Json) -> None:
        self.world.pods_on(node).remove(other)
        for name, twin in self.twins.items():
            if name not in self.skipped:
                twin.removed(other, node)

    def scores(self, feasible: list[Json]) -> dict[str, dict[str, int]]:
        scorers = {name: twin for name, twin in self.twins.items() if twin.scores}
        running = [name for name, twin in scorers.items() if twin.pre_score(feasible) != SKIP]
        found = {}
        for name in running:
            raw = {name_of(node): scorers[name].score(node) for node in feasible}
            weight = self.profile.weights.get(name, 1)
            found[name] = {node: weight * score for node, score in scorers[name].normalize(raw).items()}
        return found
