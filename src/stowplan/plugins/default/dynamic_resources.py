"""DynamicResources: keeps pods on nodes where devices for their claims are available, and allocates them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stowplan.api.groups import IN_TREE
from stowplan.api.meta import parse_time
from stowplan.api.pod import Pod
from stowplan.api.resource import (
    Allocation,
    ConsumerReference,
    DeviceAllocation,
    DeviceClassIndex,
    ResourceClaim,
)
from stowplan.api.selectors import NodeTerm, node_terms_of
from stowplan.config.gates import EXTENDED_RESOURCE, WORKLOAD_CLAIMS
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
    NodeTable,
    Reads,
    Reject,
    Resource,
    Right,
    Scores,
    Status,
    scale_to_max,
)
from stowplan.framework.plugin import FilterError, Mask, ReservingPlugin
from stowplan.plugins.args import DynamicResourcesArgs
from stowplan.plugins.devices.cases import FITS, REASONS
from stowplan.plugins.devices.claims import (
    NOT_YET_NAMED,
    Demand,
    demand_of,
    device_resources,
    special_claim,
)
from stowplan.plugins.devices.ledger import ClaimLedger
from stowplan.plugins.devices.pools import AllocationError
from stowplan.plugins.devices.solver import NO_CLAIMS, DeviceSolver, PodClaims, preference
from stowplan.plugins.devices.writer import (
    ClaimError,
    ClaimWriter,
    consumer_of,
    drivers_to_await,
    has_failed,
    is_ready,
)
from stowplan.plugins.volumes import claim_name


class DynamicResources(ReservingPlugin):
    args: DynamicResourcesArgs
    reservation_name = "allocations"
    reads = Reads.OBJECTS
    hints_by_claim = True
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
        self.solver = DeviceSolver(handle, self.ledger, args.filter_timeout)
        self._writes: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    async def run(self) -> None:
        """Carries out the writes that post_filter and unreserve, which cannot wait, have asked for."""
        while True:
            write = await self._writes.get()
            await write()

    def pre_enqueue(self, pod: Pod) -> Status | None:
        try:
            claims = self._claims_of(pod)
        except ClaimError as error:
            return Status.unresolvable(str(error))
        claim = self._find_awaited(pod, claims)
        if claim is not None:
            self.ledger.hold(pod, claim)
            return Status.unresolvable(_in_flight(claim))
        return None

    def awaits_write(self, pod: Pod) -> bool:
        try:
            return self._find_awaited(pod, self._claims_of(pod)) is not None
        except ClaimError:
            return False  # the attempt will say what is wrong with it

    def _find_awaited(self, pod: Pod, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
        """A claim of the pod that will soon be allocated for another pod.

        Pods of a group share such claims. If a claim could not be written, the next write may fail as well,
        and each failure would wake all pods that wait for the claim.
        """
        for claim in claims:
            holder = None if claim.allocation is not None else self.ledger.reserved_by(claim)
            if holder is None or self.handle.cluster.groups.key_of(pod) is not None:
                continue
            if claim.metadata.uid not in self.ledger.unwritable and not self._may_take_minutes(holder):
                return claim
        return None

    def _may_take_minutes(self, pod: Pod) -> bool:
        """Whether something else comes before the pod's claims are written: its group or another plugin has
        to permit it, or its volumes are bound."""
        return (
            self.handle.cluster.groups.key_of(pod) is not None
            or any(claim_name(pod, volume) is not None for volume in pod.spec.volumes)
            or any(waiting.pod.uid == pod.uid for waiting in self.handle.waiting_pods)
        )

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        state.write(NO_CLAIMS)
        if not pod.spec.resource_claims and not len(self.handle.cluster.device_classes):
            return self._nothing_to_do(state)
        classes = DeviceClassIndex.of(self.handle.cluster.device_classes)
        may_be_special = bool(classes) and EXTENDED_RESOURCE not in self.handle.disabled_gates
        uses_special = may_be_special and any(map(classes.class_for, device_resources(pod)))
        try:
            claims = self._claims_of(pod)
            special = special_claim(pod, self.ledger.extended_claims(pod.uid)) if uses_special else None
            if not claims and special is None:
                return self._nothing_to_do(state)
            shared = self._share(pod, claims)
            demands = list(self._demands_of(claims))
            selectors = dict(map(_usable_on, filter(_is_restricted, claims)))
        except ClaimError as error:
            return Status.unresolvable(str(error))
        except AllocationError as error:
            return Status.error(str(error))
        state.write(PodClaims(pod, claims, special, demands, selectors, shared=shared))
        return None

    def _share(self, pod: Pod, claims: list[ResourceClaim]) -> dict[str, Allocation]:
        """Count claims as allocated that another member of the pod's group allocates; returns how."""
        found: dict[str, Allocation] = {}
        for place, claim in enumerate(claims):
            if claim.allocation is None and claim.metadata.uid in self.ledger.in_flight:
                planned = self.ledger.shared_with(claim, self.handle.cluster.groups.key_of(pod))
                if planned is not None:
                    found[claim.metadata.uid] = planned
                    claims[place] = replace(claim, status=replace(claim.status, allocation=planned))
        return found

    def _nothing_to_do(self, state: CycleState) -> Status:
        state.skipped_scores.add(self.name)  # they would be zero for all nodes
        return Status.skip()

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        found = state.read(PodClaims)
        if found.special is not None and found.special.spec.devices.requests:
            everywhere = np.ones(len(nodes), np.bool_)
            yield Reject(everywhere, "cannot schedule extended resource claim", unresolvable=True)
            return
        asked = np.ones(len(nodes), np.bool_) if state.passing is None else state.passing.copy()
        lacking = self.solver.find_lacking(found, nodes)
        if lacking is not None:
            yield Reject(lacking, "cannot fit resource", unresolvable=True)
            asked &= ~lacking
        errors: dict[int, str] = {}
        for wanted, rows in self.solver.wanted_on(found, nodes):
            if not wanted.demands:
                continue
            here = asked if rows is None else asked & rows
            numbers, answers = self.solver.find_devices(found, wanted, nodes, here, errors)
            codes = answers.codes[numbers]
            unfit = here & (codes > FITS)
            if unfit.any():
                for code, reason in REASONS.items():
                    yield Reject(unfit & (codes == code), reason, unresolvable=True)
                asked &= ~unfit
        if errors:
            asked[list(errors)] = False
        away = None
        for claim in found.claims:
            if claim.allocation is not None:
                unavailable = asked & ~self._available(found, claim, claim.allocation, nodes)
                if unavailable.any():
                    found.unavailable[claim.key] = claim
                    away = unavailable if away is None else away | unavailable
        if away is not None:
            yield Reject(away, "resourceclaim not available on the node", unresolvable=True)
        if errors:
            raise FilterError(dict(sorted(errors.items())))

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
        allocated = sum(preference(claim, _requests_in(claim)) for claim in found.claims)
        scores = np.zeros(len(nodes), np.int64)
        for wanted, rows in self.solver.wanted_on(found, nodes):
            # parity: claims that are allocated already count only where another one is allocated with them
            if not wanted.demands or not (allocated or wanted.has_alternatives):
                continue
            here = np.ones(len(nodes), np.bool_) if rows is None else rows
            numbers, answers = self.solver.find_devices(found, wanted, nodes, here, {})
            fitting = here & (answers.codes[numbers] == FITS)
            scores = np.where(fitting, allocated + answers.points[numbers], scores)
        return scores

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_max(scores)

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return None
        chosen = self.solver.allocation_on(found, node_name)
        if chosen is None:
            return Status.error("claim allocation not found for node")
        found.by_node[node_name] = chosen
        for demand, allocation in zip(chosen.wanted.demands, chosen.allocations, strict=True):
            self.ledger.reserve(demand.claim, allocation, pod)
        group = self.handle.cluster.groups.key_of(pod)
        for claim in found.claims:
            self.ledger.leaving.discard((claim.metadata.uid, pod.uid))
            if group is None:
                if claim.allocation is not None and not claim.is_reserved_for(pod.uid):
                    self.ledger.join(claim, consumer_of(pod))
            elif claim.metadata.uid in self.ledger.in_flight:
                self.ledger.share(claim, group, pod)
        return None

    def reservation(self, state: CycleState, node_name: str) -> list[dict[str, object]]:
        """What `reserve` would allocate on a node, for people to read."""
        found = state.find(PodClaims)
        chosen = None if found is None or found.is_empty else self.solver.allocation_on(found, node_name)
        if chosen is None:
            return []
        special = chosen.wanted.special
        return [
            _readable("<extended>" if demand.claim is special else demand.claim.key, allocation)
            for demand, allocation in zip(chosen.wanted.demands, chosen.allocations, strict=True)
        ]

    def assume_written(self, state: CycleState, pod: Pod, node_name: str) -> None:
        found = state.find(PodClaims)
        chosen = None if found is None else found.by_node.get(node_name)
        if found is None or chosen is None:
            return
        planned = zip(chosen.wanted.demands, chosen.allocations, strict=True)
        allocations = {demand.claim.key: allocation for demand, allocation in planned}
        of_group = self._claims_of_group(pod)
        for claim in found.claims:
            consumer = of_group.get(claim.name) or consumer_of(pod)
            self.ledger.assume_written(claim, allocations.get(claim.key, claim.allocation), consumer)

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        found = state.find(PodClaims)
        if found is None or found.is_empty:
            return
        for demand in found.by_node[node_name].wanted.demands if node_name in found.by_node else ():
            self.ledger.leave(demand.claim, pod)
        for claim in found.claims:
            self.ledger.leave_joining(claim, pod.uid)
            if claim.metadata.uid in found.shared:
                self.ledger.leave(claim, pod)
            # Another pod may have written this one's name, too, or may just be writing it.
            newest = self.ledger.get(claim.key) or claim
            is_named = newest.is_reserved_for(pod.uid) or self.ledger.is_being_written(claim.key)
            if newest.allocation is not None and is_named:
                self.ledger.leaving.add((newest.metadata.uid, pod.uid))
                self._later(self.writer.give_up, newest, pod)
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
        is_given_back = new.has_lost_allocation(old)
        if not is_given_back:
            if pod.namespace != new.namespace or new.name not in pod.claim_names:
                return False
            if old is not None and old.status == new.status:
                return False
        try:
            claims = self._claims_of(pod)
        except ClaimError:
            return False
        return is_given_back or any(claim.metadata.uid == new.metadata.uid for claim in claims)

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
            if use.resource_claim_template_name is not None and (
                owner is None or (owner.uid != pod.uid and not self._is_of_group(pod, claim, owner.uid))
            ):
                raise ClaimError(
                    f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)"
                )
            found.append(claim)
        return found

    def _is_of_group(self, pod: Pod, claim: ResourceClaim, owner: str) -> bool:
        """Whether the claim was made for the pod's group."""
        consumer = self._claims_of_group(pod).get(claim.name)
        return consumer is not None and consumer.uid == owner

    def _claims_of_group(self, pod: Pod) -> dict[str, ConsumerReference]:
        """The claims that the pod shares with its whole group, by name: they are reserved for the group."""
        groups = self.handle.cluster.groups
        key = groups.key_of(pod) if WORKLOAD_CLAIMS in self.handle.gates else None
        group = None if key is None else groups.find(key)
        if key is None or group is None or not group.claims:
            return {}
        consumer = ConsumerReference(IN_TREE, "podgroups", key.name, group.uid)
        shared = {
            (each.name, each.resource_claim_name, each.resource_claim_template_name) for each in group.claims
        }
        uses = (
            (use.name, use.resource_claim_name, use.resource_claim_template_name)
            for use in pod.spec.resource_claims
        )
        names = zip(uses, pod.claim_names, strict=True)
        return {name: consumer for use, name in names if name is not None and use in shared}

    def _demands_of(self, claims: list[ResourceClaim]) -> Iterator[Demand]:
        """Return what must be allocated. Raises ClaimError if an allocation cannot be attempted."""
        for claim in claims:
            if claim.allocation is not None:
                continue
            if claim.metadata.uid in self.ledger.in_flight:
                raise ClaimError(_in_flight(claim))
            for request in claim.spec.devices.requests:
                if request.exactly is None and not request.first_available:
                    raise ClaimError(
                        f"resource claim {claim.key}, request {request.name}: unknown request type"
                    )
            yield demand_of(claim, self.solver.class_of)

    def _available(
        self, found: PodClaims, claim: ResourceClaim, allocation: Allocation, nodes: NodeTable
    ) -> Mask:
        """The nodes where an allocated claim can be used."""
        if has_failed(claim) or (not is_ready(claim) and self._is_overdue(allocation)):
            return np.zeros(len(nodes), np.bool_)
        terms = found.selectors.get(claim.key)
        return np.ones(len(nodes), np.bool_) if terms is None else nodes.match_terms(terms)

    def _later(self, write: Callable[..., Awaitable[None]], *arguments: object) -> None:
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
            for driver in drivers_to_await(claims):
                self.handle.record_device_wait(driver, pod.scheduler_name, outcome, self.handle.now() - began)

    async def _bind_claims(self, found: PodClaims, pod: Pod, node_name: str) -> None:
        """Writes the decision: allocations, their users, and the claim for extended resources."""
        chosen = found.by_node[node_name]
        allocations = {
            demand.claim.metadata.uid: allocation
            for demand, allocation in zip(chosen.wanted.demands, chosen.allocations, strict=True)
        }
        allocations |= found.shared
        of_group = self._claims_of_group(pod)
        for place, claim in enumerate(found.claims):
            # Also if it names the pod already: it may be written at this moment, or have changed.
            allocation, consumer = allocations.get(claim.metadata.uid), of_group.get(claim.name)
            found.claims[place] = await self.writer.bind(claim, allocation, pod, consumer)
        special = chosen.wanted.special
        if special is None:
            return
        uid = special.metadata.uid
        found.special = await self.writer.create(special)
        found.special = await self.writer.bind(found.special, allocations[uid], pod)
        self.ledger.release(uid)
        await self.writer.tell_pod(pod, found.special, chosen.wanted.mappings)


def _in_flight(claim: ResourceClaim) -> str:
    return f"resource claim {claim.key} is in the process of being allocated"


def _is_restricted(claim: ResourceClaim) -> bool:
    return claim.allocation is not None and claim.allocation.node_selector is not None


def _usable_on(claim: ResourceClaim) -> tuple[str, tuple[NodeTerm, ...]]:
    assert claim.allocation is not None
    assert claim.allocation.node_selector is not None
    terms = node_terms_of(claim.allocation.node_selector)
    if errors := [term.error for term in terms if term.error]:
        raise AllocationError(", ".join(errors))
    return claim.key, terms


def _requests_in(claim: ResourceClaim) -> set[str]:
    """The requests, or alternatives of requests, that an allocated claim has devices for."""
    return {result.request for result in claim.allocation.devices.results} if claim.allocation else set()


def _readable(claim: str, allocation: Allocation) -> dict[str, object]:
    """An allocation as `stowplan decide --reserve` prints it."""
    found: dict[str, object] = {
        "claim": claim,
        "results": [*map(_readable_result, allocation.devices.results)],
    }
    if allocation.node_selector is not None:
        found["nodeSelector"] = msgspec.to_builtins(allocation.node_selector)
    if allocation.devices.config:
        found["config"] = msgspec.json.decode(msgspec.json.encode(allocation.devices.config))
    return found


def _readable_result(result: DeviceAllocation) -> dict[str, object]:
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
