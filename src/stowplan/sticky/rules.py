"""The rules of sticky pods: whether a pod must, should or need not return, and how nodes score."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec
import numpy as np

from stowplan.api.node import NodeObject
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.framework import MAX_SCORE, Mask, NodeTable, Pod, Scores
from stowplan.sticky.memory import Memory, seconds_of
from stowplan.sticky.resources import NODE, Stay, Stickiness

ZONE = "topology.kubernetes.io/zone"
ZONE_POINTS = 10


class Tie(Enum):
    FREE = "no place is stored"
    DRAWN = "the old place is preferred"
    TIED = "only the old place is allowed"
    STRANDED = "only the old place is allowed, and it no longer exists"


class Standing(msgspec.Struct, frozen=True):
    """A pod's relation to its old place, kept for one scheduling cycle."""

    memory: Memory
    tie: Tie
    domain: str = ""
    """Value of the scope's label; empty if the scope is the node."""
    grace_ends: float | None = None
    """When the grace period ends and the pod is no longer tied."""
    must_yield: bool = False
    """Whether the old node is left to pods that ran there more recently."""

    @property
    def node(self) -> str:
        return self.memory.place.last_node

    @property
    def place_name(self) -> str:
        return f"{self.memory.policy.scope} {self.domain}" if self.domain else f"node {self.node}"


def find_standing(memory: Memory, pod: Pod, nodes: LiveNodeTable, now: float) -> Standing:
    """Does not consider rivals for the place, nor pods of the same slot that still run."""
    policy, place = memory.policy, memory.place
    if is_forgotten(memory, now) or not (place.last_node or place.history):
        return Standing(memory, Tie.FREE)
    node = same_node(nodes, place.last_node, place.last_node_uid, policy)
    domain = "" if policy.scope == NODE else place.domain or domain_of(policy, node)
    ends = _grace_end(policy, pod, now)
    if policy.mode == "Preferred" or not place.last_node or (ends is not None and ends <= now):
        return Standing(memory, Tie.DRAWN, domain)
    if in_domain(policy, domain, nodes).any() if domain else node is not None:
        return Standing(memory, Tie.TIED, domain, ends)
    return Standing(memory, Tie.STRANDED if policy.on_node_deleted == "Wait" else Tie.DRAWN, domain, ends)


def is_forgotten(memory: Memory, now: float) -> bool:
    limit, finished = memory.policy.forget_after_seconds, seconds_of(memory.place.finished_at)
    return limit is not None and finished is not None and now - finished > limit


def same_node(nodes: LiveNodeTable, name: str, uid: str, policy: Stickiness) -> NodeObject | None:
    """The node of that name, unless it was deleted and created again since."""
    row = nodes.row_of(name)
    if row is None:
        return None
    node = nodes.objects[row]
    is_same = policy.trust_node_name or not uid or node.metadata.uid == uid
    return node if is_same else None


def in_domain(policy: Stickiness, domain: str, nodes: NodeTable) -> Mask:
    return _match_label(policy.scope, domain, nodes)


def domain_of(policy: Stickiness, node: NodeObject | None) -> str:
    return "" if policy.scope == NODE or node is None else node.labels.get(policy.scope, "")


def is_available(node: NodeObject) -> bool:
    """Whether the node is ready and not cordoned."""
    ready = next((each.status for each in node.status.conditions if each.type == "Ready"), "True")
    return ready == "True" and not node.unschedulable


def fits_with(pod: Pod, others: Iterable[Pod], row: int, nodes: LiveNodeTable) -> bool:
    """Whether the node has room for the pod and all the others together."""
    wanted: dict[str, int] = {"pods": 0}
    for each in (pod, *others):
        wanted["pods"] += 1
        for resource, amount in each.requests.items():
            wanted[resource] = wanted.get(resource, 0) + amount
    free = {name: int(nodes.allocatable[name][row] - nodes.requested[name][row]) for name in wanted}
    free["pods"] = int(nodes.allocatable["pods"][row] - nodes.pod_count[row])
    return all(amount <= free[name] for name, amount in wanted.items())


def score_rows(found: Standing, nodes: NodeTable, now: float) -> Scores:
    """Full score for the last place, half for each one before it, a little for its zone; decays with time."""
    policy, place = found.memory.policy, found.memory.place
    column = np.zeros(len(nodes), np.int64)
    node = same_node(nodes.live, place.last_node, place.last_node_uid, policy)
    if node is not None and (zone := node.labels.get(ZONE)):
        column[_match_label(ZONE, zone, nodes)] = ZONE_POINTS * policy.weight // MAX_SCORE
    if found.domain:
        here = in_domain(policy, found.domain, nodes)
        column[here] = np.maximum(column[here], _score_place(policy, place.finished_at, now, 0))
    for name, score in _score_by_node(found, nodes.live, now).items():
        here = nodes.rows == nodes.live.row_of(name)
        column[here] = np.maximum(column[here], score)
    return column


def _score_by_node(found: Standing, nodes: LiveNodeTable, now: float) -> dict[str, int]:
    """The scores of earlier nodes that still exist; the latest stay on a node counts."""
    policy, place = found.memory.policy, found.memory.place
    last = Stay(node=place.last_node, node_uid=place.last_node_uid, finished_at=place.finished_at)
    stays: dict[str, Stay] = {}
    for stay in (last, *place.history):
        if stay.node:
            stays.setdefault(stay.node, stay)
    return {
        stay.node: _score_place(policy, stay.finished_at, now, number)
        for number, stay in enumerate(stays.values())
        if same_node(nodes, stay.node, stay.node_uid, policy) is not None
        and not (found.must_yield and stay.node == place.last_node)
    }


def _score_place(policy: Stickiness, finished_at: str, now: float, place: int) -> int:
    """The score of the `place`-th node; a pod whose end is unknown counts as just ended."""
    age = max(now - (seconds_of(finished_at) or now), 0)
    decay = 0.5 ** (age / policy.half_life_seconds) if policy.half_life_seconds else 1.0
    return round(policy.weight * decay * 0.5**place)


def _grace_end(policy: Stickiness, pod: Pod, now: float) -> float | None:
    """When the pod stops waiting, or None if it never does."""
    if policy.mode != "RequiredThenPreferred":
        return None
    created = seconds_of(pod.creation_timestamp)
    return (now if created is None else created) + policy.grace_seconds


def _match_label(key: str, value: str, nodes: NodeTable) -> Mask:
    labels = nodes.label(key)
    mask: Mask = labels.ids == labels.index.get(value, -2)
    return mask
