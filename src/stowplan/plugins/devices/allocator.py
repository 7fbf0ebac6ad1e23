"""Structured allocation: which devices of a node's pools serve a pod's claims.

A depth-first search over claims, requests and devices in a fixed order; the first solution is taken.
Selectors are asked of the devices of which kube-scheduler asks them, because one that fails ends the attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from stowplan.api.resource import ALL_DEVICES, EXACT_COUNT, ResourceClaim
from stowplan.errors import CelError, StowplanError
from stowplan.framework import Node
from stowplan.plugins.devices.claims import Ask, Demand, Held, Usage
from stowplan.plugins.devices.pools import (
    AllocationError,
    BrokenClaimError,
    BudgetSpentError,
    DeviceBudget,
    DeviceId,
    Offer,
    OfferedDevice,
    Pool,
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


def search(
    demands: Sequence[Demand],
    node: Node,
    offer: Offer,
    usage: Usage,
    tables: Tables,
    *,
    is_late: Callable[[], bool] = lambda: False,
    budget: DeviceBudget | None = None,
) -> list[list[Held]] | str:
    """Devices for all demands, in their order, or the reason why there are none.

    AllocationError if a claim, class or slice is broken, if `is_late()` says that it takes too long, or if
    the budget for selectors is spent. `tables` may be those of an earlier search for the same demands among
    the same devices.
    """
    found = _Search(demands, node, offer, usage, tables, is_late, budget)
    if found.run():
        return found.held
    return INVALID_POOLS if offer.has_fault else NO_SOLUTION


class TimedOutError(AllocationError):
    """The search takes too long."""


class HopelessError(StowplanError):
    """The search cannot succeed."""


class Table:
    """Which devices to consider for a request, as far as that does not depend on the search.

    A search may come to the same devices thousands of times, and the next pod's search again.
    """

    __slots__ = ("live", "selected", "unknown", "version")

    def __init__(self, length: int) -> None:
        self.live = bytearray(b"\1") * length
        """1 for devices to consider: free, and selected or not known to be. Bytes are searched fast."""
        self.selected = bytearray(length)
        self.unknown = bytearray(b"\1") * length
        """1 for devices of which selectors have not been asked."""
        self.version = -1
        """The version of the usage that the table was made from."""


Tables = dict[tuple[int, str], Table]
"""By claim and request."""


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
        offer: Offer,
        usage: Usage,
        tables: Tables,
        is_late: Callable[[], bool],
        budget: DeviceBudget | None,
    ) -> None:
        self.budget = budget
        self.demands, self.node, self.offer, self.usage = demands, node, offer, usage
        self.is_late, self.tables = is_late, tables
        self.devices = offer.devices
        self.held: list[list[Held]] = [[] for _ in demands]
        self.holders: dict[DeviceId, list[int]] = {}
        """Which claims hold a device by now; devices that can be shared are not listed."""
        self.consumed: dict[DeviceId, list[Mapping[str, int]]] = {}
        self.free_counters: dict[Pool, Counters | None] = {}
        """The remaining counters of a pool, not counting what this search has allocated; None if more is
        taken of one than there is."""
        self.counters: dict[Pool, Counters | None] = {}
        """The same, counting it."""
        self.up_to_date: set[tuple[int, str]] = set()
        self.matches: dict[tuple[int, str, DeviceId], bool] = {}
        self.all_devices: dict[tuple[int, str], list[int]] = {}
        self.kinds: dict[int, Hashable | None] = {}
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
            raise BrokenClaimError(
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
            raise BrokenClaimError(f"{where}: unsupported count mode {mode}")
        found = self.all_devices.get((claim, ask.name))
        if found is None:
            for pool in self.offer.pools:
                if not pool.is_usable:
                    state = "invalid" if pool.pool.is_complete else "being updated"
                    name = f"{pool.pool.driver}/{pool.pool.name}"
                    raise AllocationError(
                        f"{where}: asks for all devices, but resource pool {name} is currently {state}"
                    )
            found = self.all_devices[claim, ask.name] = [
                place
                for place, (_, device) in enumerate(self.devices)
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
        if self.is_in_use(claim, ask, self.devices[devices[place]][1]):
            return False
        if not self.take(claim, ask, devices[place], must=True):
            return False
        if self.take_all(number, ask, place + 1):
            return True
        self.give_back(claim)
        return False

    def choose(self, number: int, ask: Ask, start: int, wanted: int) -> bool:
        """Serves a request with `wanted` more devices from `start` on, in the order of the pools."""
        if not wanted:
            return self.request(number + 1)
        claim = self.steps[number].claim
        if wanted > 1 and not self.has_enough(claim, ask, start, wanted):
            return False
        failed: set[Hashable] = set()
        for place in self.candidates(claim, ask, start):
            if failed and self.likeness(place) in failed:
                continue  # no better than one that has led nowhere
            if not self.take(claim, ask, place):
                continue
            if self.choose(number, ask, place + 1, wanted - 1):
                return True
            self.give_back(claim)
            if (likeness := self.likeness(place)) is not None:
                failed.add(likeness)
        return False

    def candidates(self, claim: int, ask: Ask, start: int) -> Iterator[int]:
        """The devices from `start` on that are free and selected."""
        table = self.table(claim, ask)
        live, unknown = table.live, table.unknown
        places: Iterable[int] = _ones(live, start)
        if unknown.find(1) < 0:
            for constraint in self.constraints[claim]:
                if (
                    isinstance(constraint, MatchAttribute)
                    and constraint.count
                    and constraint.applies_to(ask.base, ask.name)
                ):
                    same = self.offer.places_with(constraint.attribute, constraint.value)
                    places = (place for place in same[bisect_left(same, start) :] if live[place])
                    break
        for place in places:
            holders = self.holders.get(self.devices[place][1].id, ()) if self.holders else ()
            if holders and (not ask.is_admin or claim in holders):
                continue
            if not unknown[place] or self.settle(claim, ask, table, place):
                yield place

    def table(self, claim: int, ask: Ask) -> Table:
        key = claim, ask.name
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = Table(len(self.devices))
        if key not in self.up_to_date:
            self.up_to_date.add(key)
            changed = None if table.version < 0 else self.usage.changed_since(table.version)
            places: Iterable[int] = range(len(self.devices))
            if changed is not None:
                places = {place for each in changed for place in self.offer.places_concerned(each)}
            for place in places:
                self.look_at(ask, table, place)
            table.version = self.usage.version
        return table

    def settle(self, claim: int, ask: Ask, table: Table, place: int) -> bool:
        """Ask the selectors of a device; whether it is worth trying."""
        table.selected[place] = self.is_selected(claim, ask, self.devices[place][1])
        table.unknown[place] = False
        return self.look_at(ask, table, place)

    def look_at(self, ask: Ask, table: Table, place: int) -> bool:
        pool, device = self.devices[place]
        is_live = ask.is_admin or device.id not in self.usage.taken
        if is_live and not table.unknown[place]:
            is_live = bool(table.selected[place]) and self.may_serve(ask, pool, device)
        table.live[place] = is_live
        return is_live

    def may_serve(self, ask: Ask, pool: Pool, device: OfferedDevice) -> bool:
        """Whether a free device can be allocated at all, before this search has allocated anything."""
        if not ask.tolerates(device) or self.consumption(ask, device, ()) is None:
            return False
        if not device.spec.consumes_counters or device.id in self.usage.shared:
            return True
        return _suffice(self.counters_of(pool), device)

    def likeness(self, place: int) -> Hashable | None:
        """Equal for devices that are interchangeable in the rest of the search; None if no other is.

        Without it, a search over many equal devices takes far too long to find that there are too few.
        """
        if place not in self.kinds:
            self.kinds[place] = self.kind_of(*self.devices[place])
        kind = self.kinds[place]
        return kind and (kind, tuple(self.holders.get(self.devices[place][1].id, ())))

    def kind_of(self, pool: Pool, device: OfferedDevice) -> Hashable | None:
        if device.spec.allow_multiple_allocations or self.is_order_relevant:
            return None
        answers: list[Hashable] = []
        try:
            for claim, asks, _ in self.steps:
                for ask in asks:
                    selected = self.is_selected(claim, ask, device)
                    has_room = self.consumption(ask, device, ()) is not None
                    answers.append((selected, has_room, ask.tolerates(device)))
        except AllocationError:
            return None
        attributes = tuple(
            device.kind.attribute(each.attribute) for found in self.constraints for each in found
        )
        counters = tuple(
            (each.counter_set, *sorted((name, int(counter.value)) for name, counter in each.counters.items()))
            for each in device.spec.consumes_counters
        )
        taken = device.id in self.usage.taken
        return (*answers, attributes, counters, pool if counters else None, taken)

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
        for place in self.candidates(claim, ask, start):
            device = self.devices[place][1]
            if all(constraint.accepts(device) for constraint in matching) and (
                self.capacity_left(ask, device) is not None
            ):
                wanted -= 1
                if not wanted:
                    return True
        return False

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
                raise BrokenClaimError(f"{where}: CEL expression empty (unsupported selector type?)")
            try:
                if not device.kind.satisfies(selector.cel.expression, self.budget):
                    return False
            except CelError as error:
                raise BrokenClaimError(f"{where}: {error}") from None
            except BudgetSpentError:
                raise BudgetSpentError(TIMED_OUT.format(self.node.name)) from None
        return True

    def capacity_left(self, ask: Ask, device: OfferedDevice) -> Mapping[str, int] | None:
        """What the request would consume of the device; None if the device does not have enough left."""
        return self.consumption(ask, device, self.consumed.get(device.id, ()))

    def consumption(
        self, ask: Ask, device: OfferedDevice, taken: Sequence[Mapping[str, int]]
    ) -> Mapping[str, int] | None:
        spec, requirements = device.spec, ask.details.capacity
        if requirements is None and not spec.allow_multiple_allocations:
            return {}  # uses the whole device
        consumed = consumption(spec, requirements)
        if consumed is None:
            return None
        return consumed if has_room(spec, consumed, self.usage.shared.get(device.id, {}), *taken) else None

    def take(self, claim: int, ask: Ask, place: int, *, must: bool = False) -> bool:
        """Gives a device to a request, unless its counters, its taints or a constraint rule it out."""
        self.tried += 1
        if self.tried % PATIENCE == 0:
            self.consider_giving_up()
        pool, device = self.devices[place]
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
        self.held[claim].append(Held(ask, device, place, consumed if is_shared else {}, is_shared, counted))
        return True

    def give_back(self, claim: int) -> None:
        """Undoes the last `take` for the claim."""
        ask, device, place, _, is_shared, counted = self.held[claim].pop()
        for constraint in self.constraints[claim]:
            if constraint.applies_to(ask.base, ask.name):
                constraint.remove(ask.base)
        if counted:
            self.charge(self.devices[place][0], device, 1)
        held = self.consumed if is_shared else self.holders
        held[device.id].pop()
        if not held[device.id]:
            del held[device.id]

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

    def counters_of(self, pool: Pool) -> Counters | None:
        if pool not in self.free_counters:
            self.free_counters[pool] = _counters_left(pool, self.usage)
        return self.free_counters[pool]

    def has_counters(self, pool: Pool, device: OfferedDevice) -> bool:
        if pool not in self.counters:
            free = self.counters_of(pool)
            self.counters[pool] = free and {name: dict(counters) for name, counters in free.items()}
        return _suffice(self.counters[pool], device)

    def charge(self, pool: Pool, device: OfferedDevice, sign: int) -> None:
        left = self.counters[pool]
        assert left is not None
        _charge(left, device, sign)

    def consider_giving_up(self) -> None:
        """Stop a long search early if there are too few suitable devices."""
        if self.is_late():
            raise TimedOutError(TIMED_OUT.format(self.node.name))
        if self.tried == PATIENCE and self.is_hopeless():
            raise HopelessError

    def is_hopeless(self) -> bool:
        """Whether there are too few suitable devices; False if a selector fails: the search reports that."""
        suitable: set[int] = set()
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
        values = (
            self.devices[place][1].kind.attribute(constraint.attribute) for place in self.suitable(claim, ask)
        )
        return max(Counter(value for value in values if value is not None).values(), default=0)

    def suitable(self, claim: int, ask: Ask) -> set[int]:
        table = self.table(claim, ask)
        for place in _ones(table.unknown, 0):
            if table.live[place]:
                self.settle(claim, ask, table, place)
        return set(_ones(table.live, 0))


def _ones(live: bytearray, start: int) -> Iterator[int]:
    place = live.find(1, start)
    while place >= 0:
        yield place
        place = live.find(1, place + 1)


Counters = dict[str, dict[str, int]]
"""What is left, by counter set and counter."""


def _counters_left(pool: Pool, usage: Usage) -> Counters | None:
    """None if more is taken of a counter than there is."""
    left = {name: dict(counters) for name, counters in pool.counters.items()}
    for device in pool.counting_devices:
        if usage.includes(device.id):
            _charge(left, device, -1)
    # parity: one counter below zero blocks all devices that take from any counter of the pool
    is_overdrawn = any(amount < 0 for counters in left.values() for amount in counters.values())
    return None if is_overdrawn else left


def _charge(left: Counters, device: OfferedDevice, sign: int) -> None:
    for each in device.spec.consumes_counters:
        counters = left[each.counter_set]
        for name, counter in each.counters.items():
            counters[name] += sign * counter.value


def _suffice(left: Counters | None, device: OfferedDevice) -> bool:
    return left is not None and all(
        left[each.counter_set][name] >= counter.value
        for each in device.spec.consumes_counters
        for name, counter in each.counters.items()
    )


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
        value = device.kind.attribute(self.attribute)
        return value is not None and (not self.count or value == self.value)

    def add(self, base: str, device: OfferedDevice) -> bool:
        if not self.accepts(device):
            return False
        self.value = device.kind.attribute(self.attribute)
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
        value = device.kind.attribute(self.attribute)
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
            raise BrokenClaimError(
                f"claim {claim.key}, constraint #{position}: empty constraint (unsupported constraint type?)"
            )
    return found
