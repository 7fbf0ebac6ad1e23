"""Where the devices that a pod's claims ask for can be allocated, and which ones those would be.

An answer is kept for all nodes of a case: see `cases.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from time import thread_time
from typing import NamedTuple

import msgspec
import numpy as np

from stowplan.api.pod import Pod
from stowplan.api.resource import Allocation, DeviceClass, DeviceClassIndex, ResourceClaim
from stowplan.api.selectors import NodeTerm
from stowplan.framework import Handle, NodeTable
from stowplan.framework.plugin import Mask
from stowplan.plugins.devices.allocator import TimedOutError, search
from stowplan.plugins.devices.cases import FITS, UNKNOWN, Answers, NodeCases, Numbers, allocations_on
from stowplan.plugins.devices.claims import (
    Demand,
    RequestMapping,
    demand_of,
    device_resources,
    requests_for,
    with_requests,
)
from stowplan.plugins.devices.ledger import ClaimLedger
from stowplan.plugins.devices.pools import (
    MAX_SEARCH_SECONDS,
    AllocationError,
    BrokenClaimError,
    DeviceBudget,
)
from stowplan.plugins.devices.writer import ClaimError

BEST_ALTERNATIVE = 8
"""Score of the first alternative of a request, which is also the maximum number of alternatives."""
_encode = msgspec.msgpack.Encoder().encode


@dataclass
class Wanted:
    """What must be allocated for a pod on nodes that lack the same extended resources."""

    demands: list[Demand]
    special: ResourceClaim | None = None
    mappings: list[RequestMapping] = field(default_factory=list)

    @cached_property
    def signature(self) -> tuple[bytes, ...]:
        """Equal for demands that are served alike, if the classes are the same."""
        devices = (demand.claim.spec.devices for demand in self.demands)
        return tuple(_encode((each.requests, each.constraints)) for each in devices)

    @cached_property
    def has_alternatives(self) -> bool:
        return any(
            request.first_available
            for demand in self.demands
            for request in demand.claim.spec.devices.requests
        )


class NodeAllocation(NamedTuple):
    """What is allocated if the pod goes to one node."""

    wanted: Wanted
    allocations: list[Allocation]


@dataclass
class PodClaims:
    """A pod's claims during one scheduling cycle."""

    pod: Pod | None
    claims: list[ResourceClaim]
    """The claims that the pod names, in order."""
    special: ResourceClaim | None
    """The one for its extended resources."""
    demands: list[Demand]
    selectors: dict[str, tuple[NodeTerm, ...]]
    """Where allocated claims can be used, by key."""
    wanted: dict[tuple[str, ...], Wanted] = field(default_factory=dict)
    """By the extended resources that nodes do not have themselves."""
    shared: dict[str, Allocation] = field(default_factory=dict)
    """Allocations of claims that another member of the pod's group makes, by uid."""
    by_node: dict[str, NodeAllocation] = field(default_factory=dict)
    """Only for nodes that were reserved, or asked for."""
    unavailable: dict[str, ResourceClaim] = field(default_factory=dict)
    """Claims that kept the pod off some node."""
    budget: DeviceBudget = field(default_factory=DeviceBudget)
    timed_out: str = ""
    """Why the search was stopped: it took too long, and no other pod is scheduled meanwhile."""

    @property
    def is_empty(self) -> bool:
        return not self.claims and self.special is None

    @property
    def resources(self) -> Iterable[str]:
        """The extended resources that devices may serve."""
        return device_resources(self.pod) if self.pod is not None else ()


NO_CLAIMS = PodClaims(None, [], None, [], {})
"""Shared by all pods without claims."""


class DeviceSolver:
    """Searches devices on nodes. A search may take `timeout` seconds; 0 is no limit."""

    def __init__(self, handle: Handle, ledger: ClaimLedger, timeout: float) -> None:
        self._handle, self._ledger, self._timeout = handle, ledger, timeout
        self.cases = NodeCases.of(handle)

    def class_of(self, name: str, request: str) -> DeviceClass:
        found = self._handle.cluster.device_classes.get(name)
        if found is None:
            raise ClaimError(f"request {request}: device class {name} does not exist")
        return found

    def find_lacking(self, found: PodClaims, nodes: NodeTable) -> Mask | None:
        """The nodes that do not list an extended resource which no class offers either; None for none."""
        if found.special is None:
            return None
        class_for = DeviceClassIndex.of(self._handle.cluster.device_classes).class_for
        lacking = np.zeros(len(nodes), np.bool_)
        for resource in found.resources:
            if class_for(resource) is None:
                for row in np.flatnonzero(nodes.allocatable[resource] == 0).tolist():
                    lacking[row] |= resource not in nodes.objects[row].allocatable
        return lacking if lacking.any() else None

    def wanted_on(self, found: PodClaims, nodes: NodeTable) -> Iterator[tuple[Wanted, Mask | None]]:
        """What must be allocated: claims, and the extended resources that a node does not have itself.

        Each with the nodes where that is so; None for all.
        """
        if found.special is None:
            yield self._make_wanted(found, ()), None
            return
        class_for = DeviceClassIndex.of(self._handle.cluster.device_classes).class_for
        resources = [name for name in found.resources if class_for(name) is not None]
        groups = np.zeros(len(nodes), np.intp)
        for resource in resources:
            missing = nodes.allocatable[resource] == 0
            groups = np.unique(groups * 2 + missing, return_inverse=True)[1]
        for group, row in zip(*np.unique(groups, return_index=True), strict=True):
            names = tuple(name for name in resources if nodes.allocatable[name][row] == 0)
            yield self._make_wanted(found, names), groups == group

    def _make_wanted(self, found: PodClaims, missing: tuple[str, ...]) -> Wanted:
        wanted = found.wanted.get(missing)
        if wanted is None:
            wanted = found.wanted[missing] = Wanted(found.demands)
            if missing and found.special is not None and found.pod is not None:
                class_for = DeviceClassIndex.of(self._handle.cluster.device_classes).class_for
                requests, wanted.mappings = requests_for(found.pod, missing, class_for)
                wanted.special = with_requests(found.special, requests)
                wanted.demands = [*found.demands, demand_of(wanted.special, self.class_of)]
        return wanted

    def find_devices(
        self, found: PodClaims, wanted: Wanted, nodes: NodeTable, asked: Mask, errors: dict[int, str]
    ) -> tuple[Numbers, Answers]:
        """The case of each row, and what is known of them: all is known of rows that are asked about.

        Rows for which that fails are added to `errors`.
        """
        column = self.cases.column(nodes.live)
        if column is None:  # each is a case of its own, and forgotten
            numbers, answers = np.arange(len(nodes), dtype=np.int32), Answers(len(nodes))
        else:
            numbers = column if nodes is nodes.live else column[nodes.rows]
            answers = self.cases.answers(wanted.signature)
        rows = np.flatnonzero(asked & (answers.codes[numbers] == UNKNOWN))
        if len(rows):
            cases, firsts, members = np.unique(numbers[rows], return_index=True, return_inverse=True)
            for place in np.argsort(firsts).tolist():
                try:
                    self._solve(found, wanted, nodes, int(rows[firsts[place]]), int(cases[place]), answers)
                except AllocationError as error:
                    alike = rows[members == place].tolist()
                    errors |= self._errors_on(found, wanted, nodes, alike, error)
        return numbers, answers

    def _solve(
        self, found: PodClaims, wanted: Wanted, nodes: NodeTable, row: int, case: int, answers: Answers
    ) -> None:
        """Search devices for all demands on a node, and keep the answer for its case."""
        if found.timed_out:
            raise TimedOutError(found.timed_out)
        node, budget, timeout = nodes.node(row), found.budget, self._timeout
        offer = self.cases.offer(nodes.live, int(nodes.rows[row]))
        end = self._handle.now() + timeout if timeout else float("inf")
        budget.searches_end = budget.searches_end or thread_time() + MAX_SEARCH_SECONDS
        try:
            devices = search(
                wanted.demands,
                node,
                offer,
                self._ledger.usage,
                self.cases.tables(answers, offer),
                is_late=lambda: self._handle.now() > end or thread_time() > budget.searches_end,
                budget=budget,
            )
        except TimedOutError as error:
            found.timed_out = str(error)
            raise
        points = 0
        if not isinstance(devices, str):
            allocations_on(node, offer, wanted.demands, devices)  # which may fail, for some selectors
            for demand, held in zip(wanted.demands, devices, strict=True):
                points += preference(demand.claim, {each.ask.name for each in held})
        answers.put(case, devices, points)

    def _errors_on(
        self, found: PodClaims, wanted: Wanted, nodes: NodeTable, rows: list[int], error: AllocationError
    ) -> dict[int, str]:
        """The errors of nodes that are alike, given that of the first of them."""
        if isinstance(error, BrokenClaimError):
            return dict.fromkeys(rows, str(error))
        errors = {rows[0]: str(error)}
        for row in rows[1:]:  # the text has names of the node, or of its pools
            try:
                self._solve(found, wanted, nodes, row, 0, Answers())
            except AllocationError as other:
                errors[row] = str(other)
        return errors

    def allocation_on(self, found: PodClaims, node_name: str) -> NodeAllocation | None:
        """What would be allocated now if the pod went to this node; None if it cannot go there."""
        live = self._handle.cluster.nodes
        row = live.row_of(node_name)
        if row is None:
            return None
        node = live.take([row])
        ((wanted, _),) = self.wanted_on(found, node)
        if not wanted.demands:
            return NodeAllocation(wanted, [])
        column = self.cases.column(live)
        case, answers = 0, Answers()
        if column is not None:
            case, answers = int(column[row]), self.cases.answers(wanted.signature)
        try:
            if answers.codes[case] == UNKNOWN or (answers.codes[case] == FITS and case not in answers.found):
                self._solve(found, wanted, node, 0, case, answers)
        except AllocationError:
            return None
        if answers.codes[case] != FITS:
            return None
        offer = self.cases.offer(live, row)
        return NodeAllocation(
            wanted, allocations_on(live.node(row), offer, wanted.demands, answers.found[case])
        )


def preference(claim: ResourceClaim, chosen: set[str]) -> int:
    """Points for the alternatives that were chosen: the earlier in its list, the more."""
    return sum(
        BEST_ALTERNATIVE - place
        for request in claim.spec.devices.requests
        for place, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in chosen
    )
