"""NodeResourcesFit: rejects nodes without enough free resources and scores nodes by their utilization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from stowplan.api import requests
from stowplan.api.groups import Group
from stowplan.api.pod import Shape
from stowplan.api.resource import DeviceClass
from stowplan.cluster.columns import EXACT_BELOW, Number, larger, percent, smaller, whole
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    NodeTable,
    Pod,
    Reads,
    Reject,
    Resource,
    Scores,
    Status,
)
from stowplan.framework.plugin import ExplainingPlugin, Placement
from stowplan.plugins.args import (
    LEAST_ALLOCATED,
    NodeResourcesFitArgs,
    ShapePoint,
)
from stowplan.plugins.devices.claims import device_class_for
from stowplan.plugins.devices.ledger import DeviceCounts

Ints = NDArray[np.int64]
INSUFFICIENT = "Insufficient "
TOO_MANY_PODS = "Too many pods"


class Demand(NamedTuple):
    """A pod's requests in the form that filtering and scoring need."""

    checked: tuple[tuple[str, int], ...]
    """Resource and amount."""
    scored: tuple[tuple[str, int, int], ...]
    """Resource, amount and weight."""


class NodeResourcesFit(ExplainingPlugin):
    args: NodeResourcesFitArgs
    reads = Reads.USAGE
    hints_by_spec = True
    takes_rows = True
    fits_resources = True

    def __init__(self, args: NodeResourcesFitArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.ignores_resources = bool(args.ignored_resources or args.ignored_resource_groups)
        ratio = args.scoring_strategy.requested_to_capacity_ratio
        self.curve = None if ratio is None else curve_of(ratio.shape)
        self.devices = DeviceCounts(handle)
        scored = args.scoring_strategy.resources
        self.may_score_devices = any(requests.is_device_resource(resource.name) for resource in scored)

    def sign_pod(self, pod: Pod) -> Hashable:
        classes = self.handle.cluster.device_classes
        demand = self._demand(pod)
        if not len(classes):
            return demand
        if self.may_score_devices and any(self._class_for(resource) for resource, _, _ in demand.scored):
            return demand, classes.version, self.devices.follow()
        return demand, classes.version

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        # For one node the columns are plain numbers, and most of the time nothing is to be said of it.
        crowded: Any = nodes.pod_count >= nodes.allocatable["pods"]
        if crowded is not False:
            yield Reject(crowded, TOO_MANY_PODS)
        for resource, wanted in self._demand(pod).checked:
            capacity = nodes.allocatable[resource]
            full: Any = wanted > capacity - nodes.requested[resource]
            if full is False:
                continue
            if self._class_for(resource):  # nodes that do not count it leave it to DynamicResources
                full = full & (capacity > 0)
            # Evicting pods cannot help a node that is too small even when empty.
            hopeless = wanted > capacity if np.count_nonzero(full) else False
            yield Reject(full, INSUFFICIENT + resource, unresolvable=hopeless)

    def insufficient_resources(self, reasons: Sequence[str]) -> Iterator[str]:
        yield from (each.removeprefix(INSUFFICIENT) for each in reasons if each.startswith(INSUFFICIENT))
        if TOO_MANY_PODS in reasons:
            yield "pods"

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        points: Number = None
        weights: Number = 0
        exact = nodes.live.largest >= EXACT_BELOW
        for resource, amount, weight in self._demand(pod).scored:
            capacity = nodes.allocatable[resource]
            counted = nodes.nonzero_requested if resource in requests.DEFAULTS else nodes.requested
            used = counted[resource]
            is_lacked = resource not in nodes.live.everywhere
            if is_lacked and (device_class := self._class_for(resource)):
                offered, taken = self.devices.columns(device_class, nodes)
                used = used * (capacity > 0) + taken * (capacity == 0)
                capacity = capacity + offered * (capacity == 0)
            room = larger(capacity, 1) if is_lacked else capacity
            score = self._score(used + amount, room, exact)
            counts: Number = weight
            # parity: a resource the node lacks, or on a curve scores nothing for, does not lower its score
            if is_lacked:
                counts = counts * (capacity > 0)
            if self.curve is not None:
                counts = counts * (score > 0)
            weighted = score if counts is weight and weight == 1 else score * counts
            points = weighted if points is None else points + weighted
            weights = weights + counts
        if points is None:
            return nodes.pod_count * 0
        if self.curve is not None:
            return cast(Scores, whole(points / larger(weights, 1) + 0.5))
        return cast(Scores, points // larger(weights, 1))

    def placement_score(self, group: Group, placements: Sequence[Placement]) -> Scores:
        """How full each domain would be, whatever the strategy: groups are packed."""
        return np.array([self._fullness(each) for each in placements], np.int64)

    def _fullness(self, placement: Placement) -> int:
        points = weights = 0
        shapes = Counter(member.shape for member in placement.members)
        demands = [
            (self._demand(_pod_of(shape, placement.members)), count) for shape, count in shapes.items()
        ]
        for each in self.args.scoring_strategy.resources:
            wanted = sum(
                amount * count
                for demand, count in demands
                for resource, amount, _ in demand.scored
                if resource == each.name
            )
            capacity = int(placement.nodes.allocatable[each.name].sum())
            if not capacity or (requests.is_scalar(each.name) and not wanted):
                continue
            nodes = placement.nodes
            counted = nodes.nonzero_requested if each.name in requests.DEFAULTS else nodes.requested
            used = int(counted[each.name].sum()) + wanted
            points += min(used, capacity) * MAX_SCORE // capacity * each.weight
            weights += each.weight
        return points // weights if weights else 0

    def _score(self, used: Number, capacity: Number, exact: bool) -> Number:
        if self.args.scoring_strategy.type == LEAST_ALLOCATED:
            return percent(larger(capacity - used, 0), capacity, exact=exact)
        share = percent(smaller(used, capacity), capacity, exact=exact)
        return share if self.curve is None else self.curve[share]

    def _demand(self, pod: Pod) -> Demand:
        """Computed once for all pods of a shape."""
        found: Demand | None = pod.shape.memo.get(self.serial)
        if found is None:
            found = pod.shape.memo[self.serial] = self._demand_of(pod)
        return found

    def _demand_of(self, pod: Pod) -> Demand:
        checked = (
            (name, amount)
            for name, amount in pod.requests.items()
            if amount > 0 and not self._is_ignored(name)
        )
        # parity: the pod's own pod-level requests are not looked at here, though filtering honours them
        nanos = requests.of_spec(pod.spec, pod_level=False, fill=requests.DEFAULTS)
        scored = []
        for resource in self.args.scoring_strategy.resources:
            amount = requests.amount_of(resource.name, nanos.get(resource.name, 0))
            if amount or not requests.is_scalar(resource.name):
                scored.append((resource.name, amount, resource.weight))
        return Demand(tuple(checked), tuple(scored))

    def _is_ignored(self, resource: str) -> bool:
        return requests.is_extended(resource) and (
            resource in self.args.ignored_resources
            or resource.partition("/")[0] in self.args.ignored_resource_groups
        )

    def _class_for(self, resource: str) -> DeviceClass | None:
        return device_class_for(self.handle, resource)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_SCALE_DOWN),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),
            ClusterEvent(Resource.DEVICE_CLASS, Action.ADD | Action.UPDATE),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is Resource.DEVICE_CLASS:
            helps = self._class_helps(pod, old, new)
        elif event.resource is Resource.NODE:
            helps = self._node_helps(pod, old, new)
        elif new is None:
            helps = bool(old.node_name or old.nominated_node_name)
        else:
            helps = new.uid == pod.uid or (bool(new.node_name) and _shrank(pod, old, new))
        return Hint.QUEUE if helps else Hint.SKIP

    def _node_helps(self, pod: Pod, old: Any, new: Any) -> bool:
        now, wanted = new.allocatable, {name: amount for name, amount in pod.requests.items() if amount > 0}
        before = {} if old is None else old.allocatable
        delegated = {name for name in wanted if now.get(name, 0) <= 0 and self._class_for(name)}
        if now.get("pods", 0) < 1 or any(
            amount > now.get(name, 0) for name, amount in wanted.items() if name not in delegated
        ):
            return False
        grew = any(now.get(name, 0) > before.get(name, 0) for name in ("pods", *wanted))
        return old is None or grew or bool(delegated)

    def _class_helps(self, pod: Pod, old: Any, new: Any) -> bool:
        if old is not None and old.spec.extended_resource_name == new.spec.extended_resource_name:
            return False
        names = {name for name, amount in pod.requests.items() if amount}
        implicit = old is None and f"{requests.DEVICE_CLASS_PREFIX}{new.name}" in names
        return implicit or new.spec.extended_resource_name in names


def _pod_of(shape: Shape, pods: Sequence[Pod]) -> Pod:
    return next(pod for pod in pods if pod.shape is shape)


def _shrank(pod: Pod, old: Pod, new: Pod) -> bool:
    """Whether a resize of another pod released a resource that this one requests."""
    before, after = (each.assigned or each.shape.assigned for each in (old, new))
    return any(
        before.requests.get(name, 0) > after.requests.get(name, 0)
        for name, amount in pod.requests.items()
        if amount
    )


def curve_of(shape: tuple[ShapePoint, ...]) -> Ints:
    """The score for each whole percentage of use, along straight lines between the points."""
    points = [(point.utilization, point.score * 10) for point in shape]
    return np.array([_on_line(points, use) for use in range(101)], np.int64)


def _on_line(points: list[tuple[int, int]], use: int) -> int:
    left_use, left_score = points[0]
    for right_use, right_score in points:
        if use <= right_use:
            if right_use == left_use:
                return right_score
            rise = (right_score - left_score) * (use - left_use)
            # parity: divided toward zero, so a falling line is rounded up
            return left_score + int(rise / (right_use - left_use))
        left_use, left_score = right_use, right_score
    return left_score
