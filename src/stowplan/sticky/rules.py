"""The rules of sticky pods: is a pod tied to its old place, merely drawn there, or free; what nodes score."""

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
    FREE = "nothing is remembered"
    DRAWN = "its old place scores"
    TIED = "no other place will do"
    STRANDED = "no other place will do, and it is gone"


class Standing(msgspec.Struct, frozen=True):
    """What holds for one pod now; plugins keep it for the cycle."""

    memory: Memory
    tie: Tie
    domain: str = ""
    """The value of the label that is the scope; empty where that is the node."""
    grace_ends: float | None = None
    """When a pod that is tied for a while will no longer be."""
    yields: bool = False
    """Whether its old node is left to others that have a better claim to it."""

    @property
    def node(self) -> str:
        return self.memory.place.last_node

    @property
    def place_name(self) -> str:
        """For messages."""
        return f"{self.memory.policy.scope} {self.domain}" if self.domain else f"node {self.node}"


def standing(memory: Memory, pod: Pod, nodes: LiveNodeTable, now: float) -> Standing:
    """Rivals for the same place and pods of the same slot that still run are not looked at here."""
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
    """The node of that name, unless it is another one by now."""
    row = nodes.row_of(name)
    if row is None:
        return None
    node = nodes.objects[row]
    is_same = policy.trust_node_name or not uid or node.metadata.uid == uid
    return node if is_same else None


def in_domain(policy: Stickiness, domain: str, nodes: NodeTable) -> Mask:
    return _labelled(policy.scope, domain, nodes)


def domain_of(policy: Stickiness, node: NodeObject | None) -> str:
    return "" if policy.scope == NODE or node is None else node.labels.get(policy.scope, "")


def is_available(node: NodeObject) -> bool:
    """Whether it takes pods at all: neither cordoned nor known not to be ready."""
    ready = next((each.status for each in node.status.conditions if each.type == "Ready"), "True")
    return ready == "True" and not node.unschedulable


def fits_with(pod: Pod, others: Iterable[Pod], row: int, nodes: LiveNodeTable) -> bool:
    """Whether the node has room for the pod and for all the others."""
    wanted: dict[str, int] = {"pods": 0}
    for each in (pod, *others):
        wanted["pods"] += 1
        for resource, amount in each.requests.items():
            wanted[resource] = wanted.get(resource, 0) + amount
    free = {name: int(nodes.allocatable[name][row] - nodes.requested[name][row]) for name in wanted}
    free["pods"] = int(nodes.allocatable["pods"][row] - nodes.pod_count[row])
    return all(amount <= free[name] for name, amount in wanted.items())


def points(found: Standing, nodes: NodeTable, now: float) -> Scores:
    """By row: the old place in full, older ones by half each, the same zone a little; all less with time."""
    policy, place = found.memory.policy, found.memory.place
    column = np.zeros(len(nodes), np.int64)
    node = same_node(nodes.live, place.last_node, place.last_node_uid, policy)
    if node is not None and (zone := node.labels.get(ZONE)):
        column[_labelled(ZONE, zone, nodes)] = ZONE_POINTS * policy.weight // MAX_SCORE
    if found.domain:
        here = in_domain(policy, found.domain, nodes)
        column[here] = np.maximum(column[here], _worth(policy, place.finished_at, now, 0))
    for name, worth in _by_name(found, nodes.live, now).items():
        here = nodes.rows == nodes.live.row_of(name)
        column[here] = np.maximum(column[here], worth)
    return column


def _by_name(found: Standing, nodes: LiveNodeTable, now: float) -> dict[str, int]:
    """What nodes are worth that are still there; of one that comes up twice the later stay counts."""
    policy, place = found.memory.policy, found.memory.place
    last = Stay(node=place.last_node, node_uid=place.last_node_uid, finished_at=place.finished_at)
    stays: dict[str, Stay] = {}
    for stay in (last, *place.history):
        if stay.node:
            stays.setdefault(stay.node, stay)
    return {
        stay.node: _worth(policy, stay.finished_at, now, number)
        for number, stay in enumerate(stays.values())
        if same_node(nodes, stay.node, stay.node_uid, policy) is not None
        and not (found.yields and stay.node == place.last_node)
    }


def _worth(policy: Stickiness, finished_at: str, now: float, place: int) -> int:
    """Of the `place`-th node; a pod that nobody has seen end was there until just now."""
    age = max(now - (seconds_of(finished_at) or now), 0)
    decay = 0.5 ** (age / policy.half_life_seconds) if policy.half_life_seconds else 1.0
    return round(policy.weight * decay * 0.5**place)


def _grace_end(policy: Stickiness, pod: Pod, now: float) -> float | None:
    """When a pod stops waiting; None for one that waits for ever."""
    if policy.mode != "RequiredThenPreferred":
        return None
    created = seconds_of(pod.creation_timestamp)
    return (now if created is None else created) + policy.grace_seconds


def _labelled(key: str, value: str, nodes: NodeTable) -> Mask:
    labels = nodes.label(key)
    mask: Mask = labels.ids == labels.index.get(value, -2)
    return mask
