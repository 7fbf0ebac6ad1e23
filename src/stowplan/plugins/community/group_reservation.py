"""GroupReservation: keeps the nodes that will be free soonest for a pod group that has waited long.

Small pods that keep taking whatever gets free can starve a large group, which holds nothing while it waits.
Enabled next to GangScheduling or Coscheduling, this plugin reserves nodes for one group at a time. Other pods
may still use these nodes (backfill) if they end before the group can start. When a pod ends is known from its
activeDeadlineSeconds, or from its annotation `stowplan/expected-seconds`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stowplan.api.groups import Group, GroupKey
from stowplan.api.meta import parse_time
from stowplan.api.node import first_untolerated
from stowplan.cluster.groups import Reservation
from stowplan.config.field_errors import child, invalid
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    NodeTable,
    Plugin,
    PluginArgs,
    Pod,
    Reject,
    Resource,
    Status,
)
from stowplan.plugins.node_matching import required_nodes

EXPECTED_SECONDS = "stowplan/expected-seconds"
REFRESH_SECONDS = 5.0
"""How often a group without a reservation is looked for."""
MAX_SECONDS = 366 * 86400.0
"""A pod that may run longer counts as one without end: nothing can be planned with it."""
MAX_REJECTED = 10_000
"""Pods that are attempted again as soon as a reservation ends; others wait for any other event."""


class GroupReservationArgs(PluginArgs):
    after_seconds: int = 600
    """How long the pods of a group must have been pending."""
    max_nodes: int = 1000
    """The most nodes to reserve; a group that needs more gets none."""

    def validate(self, path: str) -> Iterator[str]:
        for name, value in (("afterSeconds", self.after_seconds), ("maxNodes", self.max_nodes)):
            if value < 1:
                yield invalid(child(path, name), value, "must be greater than or equal to 1")


class GroupReservation(Plugin):
    args: GroupReservationArgs

    def __init__(self, args: GroupReservationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.groups = handle.cluster.groups
        self._looked_at = -math.inf
        self._seen: Reservation | None = None
        self._rejected: dict[str, Pod] = {}

    async def run(self) -> None:
        """Let others have the nodes again in time, also while no pod is attempted."""
        while True:
            await asyncio.sleep(1)
            self.refresh()

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),)

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        self.refresh()
        found = self.groups.reservation
        if found is None or pod.priority > found.priority or self.groups.key_of(pod) == found.key:
            return Status.skip()
        if self.handle.now() + running_seconds(pod) <= found.until:
            return Status.skip()  # it ends in time
        if len(self._rejected) < MAX_REJECTED:
            self._rejected[pod.uid] = pod
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        found = self.groups.reservation
        if found is not None:
            mask = np.zeros(len(nodes), np.bool_)
            mask[[row for name in found.nodes if (row := nodes.row_of(name)) is not None]] = True
            yield Reject(mask, found.reason, unresolvable=True)

    def refresh(self) -> None:
        """End a reservation that is over, and look for a group that needs one. All profiles share it."""
        now, known = self.handle.now(), self.groups.reservation
        since = now - self._looked_at
        if known is not None and (now >= known.until or (since >= 1 and not self._pending(known.key))):
            known = self.groups.reservation = None
            since = math.inf
        if known is None and since >= REFRESH_SECONDS:
            known = self.groups.reservation = self._reserve(now)
        if since >= 1:
            self._looked_at = now
        if known is not self._seen:
            self._seen = known
            rejected, self._rejected = self._rejected, {}
            self.handle.activate(rejected.values())

    def _reserve(self, now: float) -> Reservation | None:
        for key, group, pods in self._waiting(now):
            placed = self.groups.placed(key)
            needed = max(group.min_count - len(placed) - self.groups.succeeded(key), 1)
            nodes = self.handle.cluster.nodes
            found = soonest(nodes, _candidates(nodes, group, pods, placed), pods, needed, now)
            if found is not None and len(found[1]) <= self.args.max_nodes:
                until, names = found
                return Reservation(key, names, until, max(pod.priority for pod in pods))
        return None

    def _waiting(self, now: float) -> list[tuple[GroupKey, Group, list[Pod]]]:
        """The groups that have waited long, the one that has the highest priority and waits longest first."""
        found = []
        for key in self.groups.known_keys():
            group, pods = self.groups.find(key), self._pending(key)
            if group is None or group.policy == "basic" or not pods:
                continue
            since = min(parse_time(pod.creation_timestamp) if pod.creation_timestamp else now for pod in pods)
            is_whole = self.groups.known_count(key) >= group.min_count
            if is_whole and now - since >= self.args.after_seconds:
                found.append((-max(pod.priority for pod in pods), since, key, group, pods))
        return [(key, group, pods) for _, _, key, group, pods in sorted(found, key=lambda each: each[:3])]

    def _pending(self, key: GroupKey) -> list[Pod]:
        members = self.groups.members(key).values()
        return [pod for pod in members if not pod.node_name and self.handle.cluster.pod(pod.uid) is None]


def running_seconds(pod: Pod) -> float:
    """How long the pod runs at most, as far as it says so."""
    said, limit = pod.annotations.get(EXPECTED_SECONDS, ""), pod.spec.active_deadline_seconds
    expected = float(said) if said.isdecimal() else math.inf
    found = min(expected, math.inf if limit is None else float(limit))
    return found if found <= MAX_SECONDS else math.inf


def end_of(pod: Pod, now: float) -> float:
    """When a pod that has a node ends, as far as that is known."""
    if pod.deletion_timestamp:
        return parse_time(pod.deletion_timestamp)
    return (now if pod.start_time is None else pod.start_time) + running_seconds(pod)


def soonest(
    nodes: NodeTable, domains: Sequence[Sequence[int]], pods: Sequence[Pod], needed: int, now: float
) -> tuple[float, tuple[str, ...]] | None:
    """The domain that takes so many pods first: when, and on which nodes. None if that is not known of any.

    Every pod counts like the largest of them, and room is looked at by resources alone.
    """
    wanted = {"pods": 1}
    for pod in pods:
        for name, amount in pod.requests.items():
            wanted[name] = max(wanted.get(name, 0), amount)
    best: tuple[float, tuple[str, ...]] | None = None
    for rows in domains:
        steps = sorted(step for row in rows for step in _steps(nodes, row, wanted, now))
        room: dict[int, int] = {}
        for time, row, count in steps:
            room[row] = count
            if sum(room.values()) >= needed:
                if best is None or time < best[0]:
                    best = (time, _fewest(nodes, room, needed))
                break
    # One that fits now is attempted like any other, and needs no reservation.
    return None if best is None or best[0] <= now else best


def _steps(
    nodes: NodeTable, row: int, wanted: Mapping[str, int], now: float
) -> Iterator[tuple[float, int, int]]:
    """When the node takes how many of the pods: now, and after each of its pods that ends."""
    free = {
        name: int(nodes.allocatable[name][row])
        - int(nodes.pod_count[row] if name == "pods" else nodes.requested[name][row])
        for name in wanted
    }
    before = 0
    ends = sorted((end_of(pod, now), at) for at, pod in enumerate(nodes.pods_on(row)))
    on_node = nodes.pods_on(row)
    for time, at in ((now, None), *ends):
        if time == math.inf:
            return
        if at is not None:
            for name in free:
                free[name] += 1 if name == "pods" else on_node[at].requests.get(name, 0)
        count = min(max(free[name], 0) // amount for name, amount in wanted.items() if amount > 0)
        if count > before:
            before = count
            yield max(time, now), row, count


def _fewest(nodes: NodeTable, room: Mapping[int, int], needed: int) -> tuple[str, ...]:
    """The names of as few nodes as have so much room."""
    names = []
    for row in sorted(room, key=lambda row: (-room[row], nodes.names[row])):
        if needed <= 0:
            break
        names.append(nodes.names[row])
        needed -= room[row]
    return tuple(sorted(names))


def _candidates(
    nodes: NodeTable, group: Group, pods: Sequence[Pod], placed: Sequence[Pod]
) -> list[list[int]]:
    """The rows that the pods may use, by domain."""
    tolerations = pods[0].spec.tolerations
    fits = required_nodes(pods[0]).mask(nodes) & ~nodes.unschedulable
    fits &= nodes.by_taints(lambda taints: first_untolerated(taints, tolerations) is None)
    rows = np.flatnonzero(fits).tolist()
    if group.topology is None or not group.topology.keys:
        return [rows]
    column = nodes.label(group.topology.keys[-1])
    domains: dict[int, list[int]] = {}
    for row in rows:
        if (number := int(column.ids[row])) >= 0:
            domains.setdefault(number, []).append(row)
    known = (nodes.row_of(pod.node_name) for pod in placed)
    own = {int(column.ids[row]) for row in known if row is not None}
    return [each for number, each in domains.items() if not own or number in own]
