"""A cluster of plain objects, and what all twins have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]
UNSCHEDULABLE, UNRESOLVABLE = "Unschedulable", "UnschedulableAndUnresolvable"
SKIP = "Skip"


class World:
    """Nodes in the order of their arrival, pods by node in the order of theirs, all else by kind."""

    def __init__(self, objects: Iterable[Json]) -> None:
        self.nodes: list[Json] = []
        self.pods: dict[str, list[Json]] = {}
        self.others: dict[str, list[Json]] = {}
        for item in objects:
            if item["kind"] == "Node":
                self.nodes.append(item)
            elif item["kind"] == "Pod":
                self.pods.setdefault(item["spec"]["nodeName"], []).append(item)
            else:
                self.others.setdefault(item["kind"], []).append(item)

    def copy(self) -> World:
        copy = World(())
        copy.nodes, copy.others = self.nodes, self.others
        copy.pods = {name: list(pods) for name, pods in self.pods.items()}
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        return self.copy()  # the objects in it never change

    def pods_on(self, node: Json) -> list[Json]:
        return self.pods.setdefault(node["metadata"]["name"], [])

    def placed(self) -> Iterator[tuple[Json, Json]]:
        """Every pod on a known node, with that node."""
        return ((pod, node) for node in self.nodes for pod in self.pods_on(node))

    def all(self, kind: str) -> list[Json]:
        return self.others.get(kind, [])

    def find(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        for item in self.all(kind):
            meta = item["metadata"]
            if meta["name"] == name and (namespace is None or meta.get("namespace", "default") == namespace):
                return item
        return None


class Refusal(NamedTuple):
    code: str
    reasons: frozenset[str]


def unschedulable(*reasons: str) -> Refusal:
    return Refusal(UNSCHEDULABLE, frozenset(reasons))


def unresolvable(*reasons: str) -> Refusal:
    return Refusal(UNRESOLVABLE, frozenset(reasons))


class CycleError(Exception):
    """The attempt ends in an internal error."""


class Twin:
    """A plugin at work on one pod. What a twin leaves out says yes and counts nothing."""

    filters = scores = True

    def __init__(self, world: World, pod: Json, args: Json) -> None:
        self.world, self.pod, self.args = world, pod, args

    def pre_filter(self) -> Refusal | set[str] | str | None:
        return None

    def filter(self, node: Json) -> Refusal | None:
        return None

    def added(self, other: Json, node: Json) -> None:
        """`other` came to the node; the world has it already."""

    def removed(self, other: Json, node: Json) -> None:
        """`other` left the node; the world no longer has it."""

    def pre_score(self, nodes: list[Json]) -> str | None:
        return None

    def score(self, node: Json) -> int:
        return 0

    def normalize(self, scores: dict[str, int]) -> dict[str, int]:
        return scores


def name_of(node: Json) -> str:
    return node["metadata"]["name"]


def in_proportion(scores: dict[str, int], *, reverse: bool) -> dict[str, int]:
    """The highest becomes 100, or 0 if reversed."""
    top = max(0, *scores.values())
    if top == 0:
        return dict.fromkeys(scores, 100) if reverse else scores
    scaled = {name: 100 * score // top for name, score in scores.items()}
    return {name: 100 - score for name, score in scaled.items()} if reverse else scaled
