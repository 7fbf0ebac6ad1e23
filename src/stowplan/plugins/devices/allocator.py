"""Structured allocation: which devices of a node's pools serve a pod's claims.

A depth-first search over claims, requests and devices in a fixed order; the first solution is taken.
Selectors are asked of the devices of which kube-scheduler asks them, because one that fails ends the attempt.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from stowplan.api.resource import ALL_DEVICES, EXACT_COUNT, Allocation, ResourceClaim
from stowplan.errors import CelError, StowplanError
from stowplan.framework import Node
from stowplan.plugins.devices.claims import Ask, Demand, Held, Usage, allocation_of
from stowplan.plugins.devices.pools import (
    AllocationError,
    BudgetSpentError,
    DeviceBudget,
    DeviceId,
    OfferedDevice,
    Pool,
    ReachablePool,
    Value,
    consumption,
    has_room,
    is_in_scope,
)

MAX_DEVICES = 32
"""More than so many devices do not fit into a claim's status."""
PATIENCE = 64
"""Number of devices tried after which to check whether the search can succeed at all."""
TIMED_OUT = "node {}: timed out trying to allocate devices"
NO_SOLUTION = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"


def allocate(
    demands: Sequence[Demand],
    node: Node,
    pools: Sequence[ReachablePool],
    usage: Usage,
    *,
    is_late: Callable[[], bool] = lambda: False,
    budget: DeviceBudget | None = None,
    new_share_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> list[Allocation] | str:
    """Devices for all demands, in their order, or the reason why there are none.

    AllocationError if a claim, class or slice is broken, if `is_late()` says that it takes too long, or if
    the budget for selectors is spent.
    """
    search = _Search(demands, node, pools, usage, is_late, new_share_id, budget)
    if search.run():
        return [allocation_of(demand, held, node) for demand, held in zip(demands, search.held, strict=True)]
    return INVALID_POOLS if any(pool.fault for pool in pools) else NO_SOLUTION


class TimedOutError(AllocationError):
    """The search takes too long."""


class HopelessError(StowplanError):
    """The search cannot succeed."""


class _Step(NamedTuple):
    """A request of a claim; requests are allocated one after the other."""

    claim: int
    asks: tuple[Ask, ...]
    fewest_after: int
    """How many devices the requests after it need at least, in the same claim."""


class _Search:
    def __init__(
        self,
        demands: Sequence[Demand],
        node: Node,
        pools: Sequence[ReachablePool],
        usage: Usage,
        is_late: Callable[[], bool],
        new_share_id: Callable[[], str],
        budget: DeviceBudget | None,
    ) -> None:
        self.budget = budget
        self.demands, self.node, self.pools, self.usage = demands, node, pools, usage
        self.is_late, self.new_share_id = is_late, new_share_id
        self.devices = [(pool.pool, device) for pool in pools if pool.is_usable for device in pool.devices]
        self.held: list[list[Held]] = [[] for _ in demands]
        self.holders: dict[DeviceId, list[int]] = {}
        """Which claims hold a device by now; devices that can be shared are not listed."""
        self.consumed: dict[DeviceId, list[Mapping[str, int]]] = {}
        self.counters: dict[Pool, dict[str, dict[str, int]]] = {}
        """The remaining counters of a pool, not counting what this search has allocated."""
        self.overdrawn: set[Pool] = set()
        """Pools of whose counters more is taken than there is."""
        self.matches: dict[tuple[int, str, DeviceId], bool] = {}
        self.all_devices: dict[tuple[int, str], list[tuple[Pool, OfferedDevice]]] = {}
        self.constraints: list[list[Constraint]] = []
        self.steps: list[_Step] = []
        self.tried = 0

    def run(self) -> bool:
        for number, demand in enumerate(self.demands):
            self.prepare(number, demand)
        try:
            return self.request(0)
        except HopelessError:
            return False

    def prepare(self, number: int, demand: Demand) -> None:
        """Checks a claim and lays out the steps for it."""
        fewest = [min(self.size(number, ask) for ask in asks) for asks in demand.requests]
        if sum(fewest) > MAX_DEVICES:
            raise AllocationError(
                f"claim {demand.claim.key}: number of requested devices {sum(fewest)} exceeds "
                f"the claim limit of {MAX_DEVICES}"
            )
        self.constraints.append(constraints_of(demand.claim))
        self.steps += [
            _Step(number, asks, sum(fewest[place + 1 :])) for place, asks in enumerate(demand.requests)
        ]

    def size(self, claim: int, ask: Ask) -> int:
        """How many devices a request is for; for all of them it must be known which."""
        mode = ask.details.allocation_mode
        if mode == EXACT_COUNT:
            return ask.details.count
        where = f"claim {self.demands[claim].claim.key}, request {ask.name}"
        if mode != ALL_DEVICES:
            raise AllocationError(f"{where}: unsupported count mode {mode}")
        found = self.all_devices.get((claim, ask.name))
        if found is None:
            for pool in self.pools:
                if not pool.is_usable:
                    state = "invalid" if pool.pool.is_complete else "being updated"
                    name = f"{pool.pool.driver}/{pool.pool.name}"
                    raise AllocationError(
                        f"{where}: asks for all devices, but resource pool {name} is currently {state}"
                    )
            found = self.all_devices[claim, ask.name] = [
                (pool, device)
                for pool, device in self.devices
                if self.is_selected(claim, ask, device) and self.capacity_left(ask, device) is not None
            ]
        return len(found)

    def request(self, number: int) -> bool:
        """Serves a request and all that come after it, by the first of its alternatives that works out."""
        if number == len(self.steps):
            return True
        step = self.steps[number]
        for ask in step.asks:
            size = self.size(step.claim, ask)
            if len(self.held[step.claim]) + size + step.fewest_after > MAX_DEVICES:
                continue
            if ask.details.allocation_mode == ALL_DEVICES:
                if size and self.take_all(number, ask, 0):
                    return True
            elif self.choose(number, ask, 0, size):
                return True
        return False

    def take_all(self, number: int, ask: Ask, place: int) -> bool:
        claim = self.steps[number].claim
        devices = self.all_devices[claim, ask.name]
        if place == len(devices):
            return self.request(number + 1)
        pool, device = devices[place]
        if self.is_in_use(claim, ask, device) or not self.take(claim, ask, pool, device, must=True):
            return False
        if self.take_all(number, ask, place + 1):
            return True
        self.give_back(claim, pool)
        return False

    def choose(self, number: int, ask: Ask, start: int, wanted: int) -> bool:
        """Serves a request with `wanted` more devices from `start` on, in the order of the pools."""
        if not wanted:
            return self.request(number + 1)
        claim = self.steps[number].claim
        if wanted > 1 and not self.has_enough(claim, ask, start, wanted):
            return False
        failed: set[Hashable] = set()
        for place in range(start, len(self.devices)):
            pool, device = self.devices[place]
            if not self.is_candidate(claim, ask, device):
                continue
            if failed and self.likeness(pool, device) in failed:
                continue  # no better than one that has led nowhere
            if not self.take(claim, ask, pool, device):
                continue
            if self.choose(number, ask, place + 1, wanted - 1):
                return True
            self.give_back(claim, pool)
            if (likeness := self.likeness(pool, device)) is not None:
                failed.add(likeness)
        return False

    def likeness(self, pool: Pool, device: OfferedDevice) -> Hashable | None:
        """Equal for devices that can stand for each other in what is left to do; None if no other can.

        Without it, it takes ages to find that half of many like devices cannot be had.
        """
        if device.spec.allow_multiple_allocations or self.is_order_relevant:
            return None
        answers: list[Hashable] = []
        try:
            for claim, asks, _ in self.steps:
                for ask in asks:
                    selected = self.is_selected(claim, ask, device)
                    has_room = self.capacity_left(ask, device) is not None
                    answers.append((selected, has_room, ask.tolerates(device)))
        except AllocationError:
            return None
        attributes = tuple(device.attribute(each.attribute) for found in self.constraints for each in found)
        counters = tuple(
            (each.counter_set, *sorted((name, int(counter.value)) for name, counter in each.counters.items()))
            for each in device.spec.consumes_counters
        )
        holders = tuple(self.holders.get(device.id, ()))
        taken = device.id in self.usage.taken
        return (*answers, attributes, counters, pool if counters else None, holders, taken)

    @cached_property
    def is_order_relevant(self) -> bool:
        """Whether it depends on the order of devices if they are different enough."""
        return any(isinstance(each, DistinctAttribute) for found in self.constraints for each in found)

    def has_enough(self, claim: int, ask: Ask, start: int, wanted: int) -> bool:
        """A cheap look ahead. It asks selectors of no more devices than the search itself would come to."""
        matching = [
            constraint
            for constraint in self.constraints[claim]
            if isinstance(constraint, MatchAttribute) and constraint.applies_to(ask.base, ask.name)
        ]
        for _, device in self.devices[start:]:
            if (
                self.is_candidate(claim, ask, device)
                and all(constraint.accepts(device) for constraint in matching)
                and ask.tolerates(device)
            ):
                wanted -= 1
                if not wanted:
                    return True
        return False

    def is_candidate(self, claim: int, ask: Ask, device: OfferedDevice) -> bool:
        return (
            not self.is_in_use(claim, ask, device)
            and self.is_selected(claim, ask, device)
            and self.capacity_left(ask, device) is not None
        )

    def is_in_use(self, claim: int, ask: Ask, device: OfferedDevice) -> bool:
        holders = self.holders.get(device.id, ())
        if ask.is_admin:
            return claim in holders
        return bool(holders) or device.id in self.usage.taken

    def is_selected(self, claim: int, ask: Ask, device: OfferedDevice) -> bool:
        key = (claim, ask.name, device.id)
        found = self.matches.get(key)
        if found is None:
            found = self.matches[key] = self.passes(ask, device) and (
                not device.has_own_scope or is_in_scope(device.scope, self.node)
            )
        return found

    def passes(self, ask: Ask, device: OfferedDevice) -> bool:
        for where, selector in ask.selectors:
            if selector.cel is None:
                raise AllocationError(f"{where}: CEL expression empty (unsupported selector type?)")
            try:
                if not device.satisfies(selector.cel.expression, self.budget):
                    return False
            except CelError as error:
                raise AllocationError(f"{where}: {error}") from None
            except BudgetSpentError:
                raise BudgetSpentError(TIMED_OUT.format(self.node.name)) from None
        return True

    def capacity_left(self, ask: Ask, device: OfferedDevice) -> Mapping[str, int] | None:
        """What the request would consume of the device; None if the device does not have enough left."""
        spec, requirements = device.spec, ask.details.capacity
        if requirements is None and not spec.allow_multiple_allocations:
            return {}  # uses the whole device
        consumed = consumption(spec, requirements)
        taken = (self.usage.shared.get(device.id, {}), *self.consumed.get(device.id, ()))
        return consumed if consumed is not None and has_room(spec, consumed, *taken) else None

    def take(self, claim: int, ask: Ask, pool: Pool, device: OfferedDevice, *, must: bool = False) -> bool:
        """Gives a device to a request, unless its counters, its taints or a constraint speak against it."""
        self.tried += 1
        if self.tried % PATIENCE == 0:
            self.consider_giving_up()
        is_shared = device.spec.allow_multiple_allocations
        is_charged = is_shared and (device.id in self.usage.shared or device.id in self.consumed)
        counted = bool(device.spec.consumes_counters) and not is_charged
        if not ask.tolerates(device) or (counted and not self.has_counters(pool, device)):
            return False
        consumed = self.capacity_left(ask, device)
        if consumed is None or not self.meets_constraints(claim, ask, device, must):
            return False
        if counted:
            self.charge(pool, device, -1)
        if is_shared:
            self.consumed.setdefault(device.id, []).append(consumed)
        else:
            self.holders.setdefault(device.id, []).append(claim)
        share_id = self.new_share_id() if is_shared else None
        self.held[claim].append(Held(ask, device, consumed if is_shared else {}, share_id, counted))
        return True

    def give_back(self, claim: int, pool: Pool) -> None:
        """Undoes the last `take` for the claim."""
        ask, device, _, share_id, counted = self.held[claim].pop()
        for constraint in self.constraints[claim]:
            if constraint.applies_to(ask.base, ask.name):
                constraint.remove(ask.base)
        if counted:
            self.charge(pool, device, 1)
        if share_id is None:
            self.holders[device.id].pop()
            return
        self.consumed[device.id].pop()
        if not self.consumed[device.id]:
            del self.consumed[device.id]

    def meets_constraints(self, claim: int, ask: Ask, device: OfferedDevice, must: bool) -> bool:
        added: list[Constraint] = []
        for constraint in self.constraints[claim]:
            if not constraint.applies_to(ask.base, ask.name):
                continue
            if constraint.add(ask.base, device):
                added.append(constraint)
                continue
            if must:
                raise AllocationError(
                    f"claim {self.demands[claim].claim.key}, request {ask.name}: "
                    f"cannot add device {device.id} because a claim constraint would not be satisfied"
                )
            for earlier in added:
                earlier.remove(ask.base)
            return False
        return True

    def has_counters(self, pool: Pool, device: OfferedDevice) -> bool:
        left = self.counters.get(pool)
        if left is None:
            left = self.counters[pool] = {name: dict(counters) for name, counters in pool.counters.items()}
            for other in pool.counting_devices:
                if self.usage.includes(other.id):
                    self.charge(pool, other, -1)
            if any(amount < 0 for counters in left.values() for amount in counters.values()):
                self.overdrawn.add(pool)
        # parity: one counter below zero blocks all devices that take from any counter of the pool
        return pool not in self.overdrawn and all(
            left[each.counter_set][name] >= counter.value
            for each in device.spec.consumes_counters
            for name, counter in each.counters.items()
        )

    def charge(self, pool: Pool, device: OfferedDevice, sign: int) -> None:
        for each in device.spec.consumes_counters:
            counters = self.counters[pool][each.counter_set]
            for name, counter in each.counters.items():
                counters[name] += sign * counter.value

    def consider_giving_up(self) -> None:
        """Stop a long search early if there are too few suitable devices."""
        if self.is_late():
            raise TimedOutError(TIMED_OUT.format(self.node.name))
        if self.tried == PATIENCE and self.is_hopeless():
            raise HopelessError

    def is_hopeless(self) -> bool:
        """Whether requests need more devices than would do; a selector that fails leaves it to the search."""
        suitable: set[DeviceId] = set()
        needed = 0
        try:
            for claim, asks, _ in self.steps:
                choices = [self.suitable(claim, ask) for ask in asks]
                sizes = [self.size(claim, ask) for ask in asks]
                if all(len(found) < size for found, size in zip(choices, sizes, strict=True)):
                    return True
                if not asks[0].is_admin:
                    suitable.update(*choices)
                    needed += min(sizes)
            if any(self.lacks_match(claim) for claim in range(len(self.demands))):
                return True
        except AllocationError:
            return False
        is_shared = any(device.spec.allow_multiple_allocations for _, device in self.devices)
        return needed > len(suitable) and not is_shared

    def lacks_match(self, claim: int) -> bool:
        """Whether a request of the claim needs more devices with one value of an attribute than there are."""
        for constraint in self.constraints[claim]:
            for number, asks, _ in self.steps:
                if (
                    number == claim
                    and isinstance(constraint, MatchAttribute)
                    and all(constraint.applies_to(ask.base, ask.name) for ask in asks)
                    and all(self.most_alike(claim, ask, constraint) < self.size(claim, ask) for ask in asks)
                ):
                    return True
        return False

    def most_alike(self, claim: int, ask: Ask, constraint: MatchAttribute) -> int:
        """How many of the devices that would do have the same value at most."""
        suitable = self.suitable(claim, ask)
        values = (
            device.attribute(constraint.attribute) for _, device in self.devices if device.id in suitable
        )
        return max(Counter(value for value in values if value is not None).values(), default=0)

    def suitable(self, claim: int, ask: Ask) -> set[DeviceId]:
        return {
            device.id
            for _, device in self.devices
            if (ask.is_admin or device.id not in self.usage.taken)
            and self.is_selected(claim, ask, device)
            and ask.tolerates(device)
        }


class _OnRequests:
    """Follows the devices that are given to a claim: one `remove` for each `add` that said yes."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        self.requests, self.attribute = requests, attribute

    def applies_to(self, base: str, name: str) -> bool:
        """`base` is the request, `name` that or `request/alternative`."""
        return not self.requests or base in self.requests or name in self.requests


class MatchAttribute(_OnRequests):
    """All devices have the same value."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        super().__init__(requests, attribute)
        self.value: Value | None = None
        self.count = 0

    def accepts(self, device: OfferedDevice) -> bool:
        value = device.attribute(self.attribute)
        return value is not None and (not self.count or value == self.value)

    def add(self, base: str, device: OfferedDevice) -> bool:
        if not self.accepts(device):
            return False
        self.value = device.attribute(self.attribute)
        self.count += 1
        return True

    def remove(self, base: str) -> None:
        self.count -= 1


class DistinctAttribute(_OnRequests):
    """All devices have different values, but see below."""

    def __init__(self, requests: tuple[str, ...], attribute: str) -> None:
        super().__init__(requests, attribute)
        # parity: one value a request, the last one; and taking back a device forgets it altogether
        self.values: dict[str, Value] = {}

    def add(self, base: str, device: OfferedDevice) -> bool:
        value = device.attribute(self.attribute)
        if value is None or value in self.values.values():
            return False
        self.values[base] = value
        return True

    def remove(self, base: str) -> None:
        self.values.pop(base, None)


Constraint = MatchAttribute | DistinctAttribute


def constraints_of(claim: ResourceClaim) -> list[Constraint]:
    found: list[Constraint] = []
    for position, constraint in enumerate(claim.spec.devices.constraints):
        if constraint.match_attribute is not None:
            found.append(MatchAttribute(constraint.requests, constraint.match_attribute))
        elif constraint.distinct_attribute is not None:
            found.append(DistinctAttribute(constraint.requests, constraint.distinct_attribute))
        else:
            raise AllocationError(
                f"claim {claim.key}, constraint #{position}: empty constraint (unsupported constraint type?)"
            )
    return found
