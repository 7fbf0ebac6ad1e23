"""DynamicResources: keeps a pod where devices for its claims can be had, and allocates them for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import thread_time
from typing import Any

import msgspec
import numpy as np

from stowplan.api.meta import parse_time
from stowplan.api.pod import Pod
from stowplan.api.resource import (
    Allocation,
    DeviceAllocation,
    DeviceClass,
    DeviceClassIndex,
    ResourceClaim,
)
from stowplan.api.selectors import NodeTerm, node_terms_of
from stowplan.errors import StowplanError
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    Decision,
    Handle,
    Hint,
    Node,
    NodeTable,
    Plugin,
    Resource,
    Right,
    Scores,
    Status,
    scale_to_max,
)
from stowplan.plugins.args import DynamicResourcesArgs
from stowplan.plugins.devices.allocator import TimedOutError, allocate
from stowplan.plugins.devices.claims import (
    NOT_YET_NAMED,
    Demand,
    RequestMapping,
    demand_of,
    device_resources,
    requests_for,
    special_claim,
    with_requests,
)
from stowplan.plugins.devices.ledger import ClaimLedger
from stowplan.plugins.devices.pools import MAX_SEARCH_SECONDS, AllocationError, DeviceBudget, Inventory
from stowplan.plugins.devices.writer import (
    ClaimError,
    ClaimWriter,
    has_failed,
    is_ready,
    waited_for,
)

BEST_ALTERNATIVE = 8
"""Score of the first alternative of a request, which is also the maximum number of alternatives."""


@dataclass
class NodeAllocation:
    """What would be allocated if the pod went to one node."""

    demands: list[Demand]
    allocations: list[Allocation]
    special: ResourceClaim | None = None
    mappings: list[RequestMapping] = field(default_factory=list)


@dataclass
class PodClaims:
    """A pod's claims during one scheduling cycle."""

    claims: list[ResourceClaim] = field(default_factory=list)
    """Those the pod names, in order."""
    special: ResourceClaim | None = None
    """The one for its extended resources."""
    demands: list[Demand] = field(default_factory=list)
    selectors: dict[str, tuple[NodeTerm, ...]] = field(default_factory=dict)
    """Where allocated claims can be used, by key."""
    by_node: dict[str, NodeAllocation] = field(default_factory=dict)
    unavailable: dict[str, ResourceClaim] = field(default_factory=dict)
    """Claims that kept the pod off some node."""
    budget: DeviceBudget = field(default_factory=DeviceBudget)
    timed_out: str = ""
    """Why the search was stopped: it took too long, and no other pod is scheduled meanwhile."""

    @property
    def is_empty(self) -> bool:
        return not self.claims and self.special is None


class DynamicResources(Plugin):
    args: DynamicResourcesArgs
    rights = (
        Right("resourceclaims", ("create", "delete", "get", "patch", "update"), "resource.k8s.io"),
        Right("resourceclaims/status", ("patch", "update"), "resource.k8s.io"),
        # who may say where it is allocated
        Right("resourceclaims/binding", ("patch", "update"), "resource.k8s.io"),
    )

    def __init__(self, args: DynamicResourcesArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.ledger = ClaimLedger.of(handle)
        self.writer = ClaimWriter(handle, self.ledger)
        self._inventory: tuple[int, Inventory] = (-1, Inventory(()))
        self._writes: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    async def run(self) -> None:
        """Carries out the writes that post_filter and unreserve, which cannot wait, have asked for."""
        while True:
            write = await self._writes.get()
            await write()

    def pre_enqueue(self, pod: Pod) -> Status | None:
        try:
            self._claims_of(pod)
        except ClaimError as error:
            return Status.unresolvable(str(error))
        return None

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        found = PodClaims()
        state.write(found)
        if not pod.spec.resource_claims and not len(self.handle.cluster.device_classes):
            return self._nothing_to_do(state)
        classes = DeviceClassIndex.of(self.handle.cluster.device_classes)
        uses_special = bool(classes) and any(map(classes.class_for, device_resources(pod)))
        try:
            claims = self._claims_of(pod)
            special = special_claim(pod, self.ledger) if uses_special else None
            if not claims and special is None:
                return self._nothing_to_do(state)
            demands = list(self._demands_of(claims))
            selectors = dict(map(_usable_on, filter(_is_restricted, claims)))
        except ClaimError as error:
            return Status.unresolvable(str(error))
        except AllocationError as error:
            return Status.error(str(error))
        found.claims, found.special, found.demands, found.selectors = claims, special, demands, selectors
        return None

    def _nothing_to_do(self, state: CycleState) -> Status:
        state.skipped_scores.add(self.name)  # they would be zero for all nodes
        return Status.skip()

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        found = state.read(PodClaims)
        wanted = self._wanted_on(found, pod, node)
        if isinstance(wanted, Status):
            return wanted
        unavailable = {
            claim.key: claim for claim in found.claims if not self._is_available(found, claim, node)
        }
        if wanted.demands:
            if found.timed_out:
                return Status.error(found.timed_out)
            try:
                allocations = self._allocate(wanted.demands, node, found.budget)
            except AllocationError as error:
                found.timed_out = str(error) if isinstance(error, TimedOutError) else ""
                return Status.error(str(error))
            if isinstance(allocations, str):
                return Status.unresolvable(allocations)
            wanted.allocations = allocations
        if unavailable:
            found.unavailable |= unavailable
            return Status.unresolvable("resourceclaim not available on the node")
        found.by_node[node.name] = wanted
        return None

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Status:
        found = state.find(PodClaims)
        if found is None:
            return Status.error("not found")
        if found.is_empty:
            return Status.unschedulable("no new claims to deallocate")
        for claim in found.unavailable.values():
            if all(consumer.uid == pod.uid for consumer in claim.status.reserved_for):
                self._later(self.writer.deallocate, claim)
                return Status.unschedulable("deallocation of ResourceClaim completed")
        special = found.special
        if special is not None and special.name != NOT_YET_NAMED:
            self._later(self.writer.delete, special)
            return Status.unschedulable("deletion of ResourceClaim completed")
        return Status.unschedulable("still not schedulable")

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return np.zeros(len(nodes), np.int64)
        allocated = sum(_preference(claim, claim.allocation) for claim in found.claims)
        scores = np.zeros(len(nodes), np.int64)
        for row, name in enumerate(nodes.names):
            chosen = found.by_node.get(name)
            # parity: claims that are allocated already count only where another one is allocated with them
            if chosen is not None and chosen.demands:
                scores[row] = allocated + _preferences(chosen)
        return scores

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores)

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return None
        chosen = found.by_node.get(node_name)
        if chosen is None:
            return Status.error("claim allocation not found for node")
        for demand, allocation in zip(chosen.demands, chosen.allocations, strict=True):
            self.ledger.reserve(demand.claim, allocation)
        return None

    def reservation(self, state: CycleState, node_name: str) -> list[dict[str, Any]]:
        """What `reserve` would allocate on a node, for people to read."""
        found = state.find(PodClaims)
        chosen = None if found is None else found.by_node.get(node_name)
        if chosen is None:
            return []
        return [
            _readable("<extended>" if demand.claim is chosen.special else demand.claim.key, allocation)
            for demand, allocation in zip(chosen.demands, chosen.allocations, strict=True)
        ]

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return
        for demand in found.by_node[node_name].demands if node_name in found.by_node else ():
            self.ledger.release(demand.claim.metadata.uid)
        for claim in found.claims:
            if claim.allocation is not None and claim.is_reserved_for(pod.uid):
                self._later(self.writer.give_up, claim, pod)
        special = found.special
        if special is not None and special.name != NOT_YET_NAMED:
            self._later(self.writer.delete, special)

    def pre_bind_pre_flight(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        found = state.find(PodClaims)
        return Status.skip() if found is None or found.is_empty else None

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return None
        try:
            await self._bind_claims(found, pod, node_name)
            claims = [*found.claims, *([found.special] if found.special is not None else [])]
            await self._wait(claims, pod)
        except StowplanError as error:
            return Status.error(str(error))
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(
                Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ALLOCATABLE
            ),
            ClusterEvent(Resource.RESOURCE_CLAIM, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.POD, Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM),
            ClusterEvent(Resource.DEVICE_CLASS, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.RESOURCE_SLICE, Action.ADD | Action.UPDATE),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is Resource.RESOURCE_CLAIM:
            return QUEUE if self._claim_helps(pod, old, new) else SKIP_HINT
        if event.resource in (Resource.POD, Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD):
            return QUEUE if new.uid == pod.uid and self.pre_enqueue(new) is None else SKIP_HINT
        return QUEUE

    def _claim_helps(self, pod: Pod, old: ResourceClaim | None, new: ResourceClaim) -> bool:
        try:
            claims = self._claims_of(pod)
        except ClaimError:
            return False
        if old is not None and old.allocation is not None and new.allocation is None:
            return True  # devices were given back
        if all(claim.metadata.uid != new.metadata.uid for claim in claims):
            return False
        return old is None or old.status != new.status

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        """The claims a pod names; ClaimError if one is missing or not meant for it."""
        found = []
        for use in pod.spec.resource_claims:
            name = use.resource_claim_name
            if use.resource_claim_template_name is not None:
                if use.name not in pod.resource_claim_statuses:
                    raise ClaimError(f'pod "{pod.key}": ResourceClaim not created yet')
                name = pod.resource_claim_statuses[use.name]
                if name is None:
                    continue  # the template's controller decided that none is needed
            claim = self.ledger.get(f"{pod.namespace}/{name}")
            if claim is None:
                raise ClaimError(f'could not find ResourceClaim "{pod.namespace}/{name}"')
            if claim.metadata.deletion_timestamp is not None:
                raise ClaimError(f'resourceclaim "{name}" is being deleted')
            owner = claim.metadata.controller()
            if use.resource_claim_template_name is not None and (owner is None or owner.uid != pod.uid):
                raise ClaimError(
                    f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)"
                )
            found.append(claim)
        return found

    def _demands_of(self, claims: list[ResourceClaim]) -> Iterator[Demand]:
        """Return what must be allocated. Raises ClaimError if an allocation cannot be attempted."""
        for claim in claims:
            if claim.allocation is not None:
                continue
            if claim.metadata.uid in self.ledger.in_flight:
                raise ClaimError(f"resource claim {claim.key} is in the process of being allocated")
            for request in claim.spec.devices.requests:
                if request.exactly is None and not request.first_available:
                    raise ClaimError(
                        f"resource claim {claim.key}, request {request.name}: unknown request type"
                    )
            yield demand_of(claim, self._class)

    def _class(self, name: str, request: str) -> DeviceClass:
        found = self.handle.cluster.device_classes.get(name)
        if found is None:
            raise ClaimError(f"request {request}: device class {name} does not exist")
        return found

    def _wanted_on(self, found: PodClaims, pod: Pod, node: Node) -> NodeAllocation | Status:
        """All that has to be allocated on a node: claims, and extended resources it does not have itself."""
        wanted = NodeAllocation(found.demands, [])
        if found.special is None:
            return wanted
        if found.special.spec.devices.requests:
            return Status.unresolvable("cannot schedule extended resource claim")
        class_for = DeviceClassIndex.of(self.handle.cluster.device_classes).class_for
        allocatable, missing = node.allocatable, []
        for resource in device_resources(pod):
            if not allocatable.get(resource) and class_for(resource) is not None:
                missing.append(resource)
            elif resource not in allocatable:
                return Status.unresolvable("cannot fit resource")
        if missing:
            requests, wanted.mappings = requests_for(pod, missing, class_for)
            wanted.special = with_requests(found.special, requests)
            wanted.demands = [*found.demands, demand_of(wanted.special, self._class)]
        return wanted

    def _is_available(self, found: PodClaims, claim: ResourceClaim, node: Node) -> bool:
        """Whether an allocated claim can be used on a node."""
        terms = found.selectors.get(claim.key)
        if terms is not None and not any(term.matches(node.labels, node.name) for term in terms):
            return False
        if claim.allocation is None:
            return True
        return not has_failed(claim) and (is_ready(claim) or not self._is_overdue(claim.allocation))

    def _allocate(self, demands: list[Demand], node: Node, budget: DeviceBudget) -> list[Allocation] | str:
        slices, timeout = self.handle.cluster.resource_slices, self.args.filter_timeout
        if self._inventory[0] != slices.version:
            self._inventory = slices.version, Inventory(slices)
        end = self.handle.now() + timeout if timeout else float("inf")
        budget.searches_end = budget.searches_end or thread_time() + MAX_SEARCH_SECONDS
        return allocate(
            demands,
            node,
            self._inventory[1].pools_for(node),
            self.ledger.usage,
            is_late=lambda: self.handle.now() > end or thread_time() > budget.searches_end,
            budget=budget,
        )

    def _later(self, write: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self._writes.put_nowait(partial(write, *arguments))

    def _is_overdue(self, allocation: Allocation) -> bool:
        since = allocation.allocation_timestamp
        return since is not None and self.handle.now() > parse_time(since) + self.args.binding_timeout

    async def _wait(self, claims: list[ResourceClaim], pod: Pod) -> None:
        """Wait until drivers report that the devices are ready, and report each driver waited for."""
        began, outcome = self.handle.now(), ClaimError.outcome
        try:
            await self.writer.wait_until_ready(claims, self.args.binding_timeout)
            outcome = "success"
        except ClaimError as error:
            outcome = error.outcome
            raise
        finally:
            for driver in waited_for(claims):
                self.handle.record_device_wait(driver, pod.scheduler_name, outcome, self.handle.now() - began)

    async def _bind_claims(self, found: PodClaims, pod: Pod, node_name: str) -> None:
        """Writes what was decided: allocations, who uses them, and the claim for extended resources."""
        chosen = found.by_node[node_name]
        allocations = {
            demand.claim.metadata.uid: allocation
            for demand, allocation in zip(chosen.demands, chosen.allocations, strict=True)
        }
        for place, claim in enumerate(found.claims):
            if not claim.is_reserved_for(pod.uid):
                found.claims[place] = await self.writer.bind(claim, allocations.get(claim.metadata.uid), pod)
        if chosen.special is None:
            return
        uid = chosen.special.metadata.uid
        found.special = await self.writer.create(chosen.special)
        found.special = await self.writer.bind(found.special, allocations[uid], pod)
        self.ledger.release(uid)
        await self.writer.tell_pod(pod, found.special, chosen.mappings)


def _is_restricted(claim: ResourceClaim) -> bool:
    return claim.allocation is not None and claim.allocation.node_selector is not None


def _usable_on(claim: ResourceClaim) -> tuple[str, tuple[NodeTerm, ...]]:
    assert claim.allocation is not None
    assert claim.allocation.node_selector is not None
    terms = node_terms_of(claim.allocation.node_selector)
    if errors := [term.error for term in terms if term.error]:
        raise AllocationError(", ".join(errors))
    return claim.key, terms


def _preferences(chosen: NodeAllocation) -> int:
    return sum(
        _preference(demand.claim, allocation)
        for demand, allocation in zip(chosen.demands, chosen.allocations, strict=True)
    )


def _preference(claim: ResourceClaim, allocation: Allocation | None) -> int:
    """Points for the alternatives that were chosen: the earlier one stands in its list, the more."""
    chosen = {result.request for result in allocation.devices.results} if allocation else set()
    return sum(
        BEST_ALTERNATIVE - place
        for request in claim.spec.devices.requests
        for place, alternative in enumerate(request.first_available)
        if f"{request.name}/{alternative.name}" in chosen
    )


def _readable(claim: str, allocation: Allocation) -> dict[str, Any]:
    """An allocation as `stowplan decide --reserve` prints it."""
    found: dict[str, Any] = {"claim": claim, "results": [*map(_readable_result, allocation.devices.results)]}
    if allocation.node_selector is not None:
        found["nodeSelector"] = msgspec.to_builtins(allocation.node_selector)
    if allocation.devices.config:
        found["config"] = msgspec.json.decode(msgspec.json.encode(allocation.devices.config))
    return found


def _readable_result(result: DeviceAllocation) -> dict[str, Any]:
    found = {
        "request": result.request,
        "device": f"{result.driver}/{result.pool}/{result.device}",
        "adminAccess": result.admin_access,
        "shared": result.share_id is not None,
        "consumed": result.consumed_capacity,
        "bindingConditions": result.binding_conditions,
        "bindingFailureConditions": result.binding_failure_conditions,
        "tolerations": msgspec.to_builtins(result.tolerations),
    }
    return {name: value for name, value in found.items() if value}
