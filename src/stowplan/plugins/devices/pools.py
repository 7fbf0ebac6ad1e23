"""Available devices: ResourceSlices combined to pools, and which of them a node can reach."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from stowplan.api.cel import (
    MAX_COST,
    Amount,
    DeviceVariable,
    Domains,
    Meter,
    Version,
    compilations,
    compile_cel,
)
from stowplan.api.node import Taint
from stowplan.api.quantity import NANO, Quantity, parse, units
from stowplan.api.resource import (
    CapacityRange,
    CapacityRequirements,
    Device,
    DeviceCapacity,
    NodeScope,
    ResourceSlice,
    ResourceSliceSpec,
)
from stowplan.api.selectors import node_terms_of
from stowplan.errors import CelError, StowplanError
from stowplan.framework import Node

Value = tuple[str, str | int | bool]
"""An attribute's type and value."""


class AllocationError(StowplanError):
    """Something in a slice, class or claim is so wrong that allocating must stop."""


class BrokenClaimError(AllocationError):
    """It is the claim, or its class: on nodes with the same devices the error is the same."""


MAX_ANSWERS = 32
"""Results of selectors kept for each device. Anyone who may create claims can create new selectors."""
MAX_ATTEMPT_COST = 5_000_000
"""What evaluating selectors may cost in one attempt to place a pod: one to three seconds."""
MAX_SEARCH_SECONDS = 3.0
"""Searching devices, on all nodes together, takes no longer in one attempt: no other pod is scheduled
meanwhile, and a leader that does not renew its lease for ten seconds loses it."""
COMPILE_COST = 100
"""The cost of compiling a selector, per character."""


class DeviceBudget:
    """What evaluating selectors and searching devices may still cost in an attempt.

    An expression may cost as much as an API server lets it, but not for thousands of devices at a stretch.
    Answers are kept: the next attempt begins where this one ended.
    """

    __slots__ = ("left", "searches_end")

    def __init__(self) -> None:
        self.left = MAX_ATTEMPT_COST
        self.searches_end = 0.0
        """When searches on all nodes must be over, by the CPU time of this thread; 0 before the first."""


class BudgetSpentError(AllocationError):
    """Selectors have cost too much in this attempt."""


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


class DeviceKind:
    """All that devices of one driver have in common which differ in nothing but their name and their nodes.

    It never changes, so the results of selectors are cached.
    """

    def __init__(self, driver: str, spec: Device) -> None:
        self.driver, self.spec = driver, spec
        taints = (Taint(taint.key, taint.value, taint.effect) for taint in spec.taints)
        self.hard_taints = tuple(taint for taint in taints if taint.is_hard)
        self._answers: dict[str, bool | str] = {}
        self._attributes: dict[str, Value | None] = {}

    @classmethod
    def of(cls, driver: str, spec: Device, known: Kinds) -> DeviceKind:
        content = (
            driver, spec.attributes, spec.capacity, spec.consumes_counters, spec.taints, spec.binds_to_node,
            spec.binding_conditions, spec.binding_failure_conditions, spec.allow_multiple_allocations,
        )  # fmt: skip
        key = _encode(content)
        found = known.get(key)
        if found is None:
            found = known[key] = cls(driver, spec)
        return found

    def satisfies(self, expression: str, budget: DeviceBudget | None = None) -> bool:
        """Evaluate a selector. Raises CelError, or BudgetSpentError if the budget is used up."""
        answer = self._answers.get(expression)
        if answer is None:
            if budget is not None and budget.left <= 0:
                raise BudgetSpentError
            if len(self._answers) >= MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
            answer = self._answers[expression] = self._ask(expression, budget or DeviceBudget())
        if isinstance(answer, str):
            raise CelError(answer)
        return answer

    def attribute(self, name: str) -> Value | None:
        """The value of a fully named attribute and its type; names without a domain are in the driver's."""
        if name not in self._attributes:
            domain, _, short = name.partition("/")
            found = self.spec.attributes.get(name)
            if found is None and domain == self.driver:
                found = self.spec.attributes.get(short)
            self._attributes[name] = found.typed_value if found is not None else None
        return self._attributes[name]

    def _ask(self, expression: str, budget: DeviceBudget) -> bool | str:
        known = compilations()
        try:
            program = compile_cel(expression)
            if program.kind not in (bool, object):
                return "CEL compile error: must evaluate to bool or the unknown type"
        except CelError as error:
            return f"CEL compile error: {error}"
        finally:
            if compilations() != known:
                budget.left -= COMPILE_COST * len(expression)
        meter = Meter(MAX_COST)
        try:
            answer = program.evaluate({"device": self._variable}, meter)
        except CelError as error:
            return f"CEL runtime error: {error}"
        finally:
            budget.left -= MAX_COST - meter.left
        return answer if isinstance(answer, bool) else "CEL runtime error: the result is not of type bool"

    @cached_property
    def _variable(self) -> DeviceVariable:
        attributes, capacity = Domains(), Domains()
        for name, attribute in self.spec.attributes.items():
            if (found := attribute.typed_value) is None:
                raise CelError(f"attribute {name}: unsupported attribute value")
            kind, value = found
            self._put(attributes, name, Version(str(value)) if kind == "version" else value)
        for name, amount in self.spec.capacity.items():
            self._put(capacity, name, Amount.of(amount.value))
        return DeviceVariable(self.driver, attributes, capacity, self.spec.allow_multiple_allocations)

    def _put(self, domains: Domains, name: str, value: object) -> None:
        domain, slash, short = name.partition("/")
        domains.setdefault(domain if slash else self.driver, {})[short if slash else name] = value


def _encode_amount(value: Any) -> str:
    return f"{int(value)}{'b' if value.is_binary else ''}"  # more than 64 bits


Kinds = WeakValueDictionary[bytes, DeviceKind]
"""By their content; as long as there are such devices."""
_encode = msgspec.msgpack.Encoder(enc_hook=_encode_amount).encode


class OfferedDevice:
    """A device of a slice."""

    __slots__ = ("has_own_scope", "id", "kind", "scope", "spec")

    def __init__(self, spec: Device, offer: ResourceSliceSpec, kinds: Kinds) -> None:
        self.id = DeviceId(offer.driver, offer.pool.name, spec.name)
        self.spec, self.kind = spec, DeviceKind.of(offer.driver, spec, kinds)
        self.scope: NodeScope = spec if offer.per_device_node_selection else offer
        self.has_own_scope = offer.per_device_node_selection


class ReachablePool:
    """A pool as one node sees it. Nothing is allocated from one that is incomplete or has a fault."""

    def __init__(self, pool: Pool, devices: tuple[OfferedDevice, ...], fault: str) -> None:
        self.pool, self.devices, self.fault = pool, devices, fault
        self.is_usable = pool.is_complete and not fault
        waits = any(device.spec.binding_conditions for device in devices)
        self.order = waits, pool.driver, pool.name
        """Devices that must be waited for after binding come last."""

    @cached_property
    def layout(self) -> Hashable:
        """Equal for pools of different nodes whose devices are the same in all but their names."""
        pool = self.pool
        counters = tuple((name, *sorted(each.items())) for name, each in sorted(pool.counters.items()))
        return (
            self.is_usable,
            bool(self.fault),
            self.order[0],
            tuple(device.kind for device in self.devices),
            (counters, tuple(device.kind for device in pool.counting_devices)) if counters else (),
        )


class Offer:
    """What a node can reach: its pools in the order in which they are allocated from."""

    def __init__(self, pools: Sequence[ReachablePool]) -> None:
        self.pools = pools
        self.devices = [(pool.pool, device) for pool in pools if pool.is_usable for device in pool.devices]
        self.has_fault = any(pool.fault for pool in pools)
        self._by_value: dict[str, dict[Value, list[int]]] = {}

    @cached_property
    def places(self) -> dict[DeviceId, int]:
        return {device.id: place for place, (_, device) in enumerate(self.devices)}

    def places_concerned(self, device: DeviceId) -> Sequence[int]:
        """The devices on offer for which it makes a difference whether this one is in use."""
        place = self.places.get(device)
        own = () if place is None else (place,)
        return self._counting_places.get(device[:2], own)

    @cached_property
    def _counting_places(self) -> dict[tuple[str, ...], list[int]]:
        """The devices of pools with counters, by driver and pool."""
        found: dict[tuple[str, ...], list[int]] = {}
        for place, (pool, device) in enumerate(self.devices):
            if pool.counters:
                found.setdefault(device.id[:2], []).append(place)
        return found

    def places_with(self, attribute: str, value: Value | None) -> Sequence[int]:
        """The devices with this value of an attribute."""
        found = self._by_value.get(attribute)
        if found is None:
            found = self._by_value[attribute] = {}
            for place, (_, device) in enumerate(self.devices):
                if (own := device.kind.attribute(attribute)) is not None:
                    found.setdefault(own, []).append(place)
        return found.get(value, ()) if value is not None else ()


class Pool:
    """The slices of the newest generation of a pool."""

    def __init__(self, slices: Sequence[ResourceSlice], kinds: Kinds) -> None:
        specs = [each.spec for each in sorted(slices, key=lambda each: each.name)]
        self.driver, self.name = specs[0].driver, specs[0].pool.name
        self.is_complete = len(specs) == specs[0].pool.resource_slice_count
        self.specs = specs
        self.offers = [
            () if spec.shared_counters else tuple(OfferedDevice(each, spec, kinds) for each in spec.devices)
            for spec in specs
        ]
        """By slice; slices with counters are there for their counters alone."""
        self.counters: dict[str, dict[str, int]] = {}
        self._fault = self._read_counters() or self._missing_counter()
        self._seen: dict[tuple[int, ...], ReachablePool] = {}

    @cached_property
    def nodes(self) -> frozenset[str] | None:
        """The names of the nodes to which the pool makes a difference; None if any may be one of them."""
        offering = [spec for spec in self.specs if not spec.shared_counters]
        if any(not spec.node_name or spec.per_device_node_selection for spec in offering):
            return None
        # Counters are seen from everywhere; without devices, they matter only where something is wrong.
        if len(offering) < len(self.specs) and (self._fault or not self.is_complete):
            return None
        return frozenset(spec.node_name for spec in offering)

    def seen_from(self, node: Node) -> ReachablePool | None:
        """The part of the pool that the node has access to; None if there is none."""
        reached = tuple(place for place, spec in enumerate(self.specs) if _is_reached(spec, node))
        if not reached:
            return None
        found = self._seen.get(reached)
        if found is None:
            devices = tuple(device for place in reached for device in self.offers[place])
            fault = _duplicate(devices) or self._fault
            found = self._seen[reached] = ReachablePool(self, devices, fault if self.is_complete else "")
        return found

    @cached_property
    def counting_devices(self) -> tuple[OfferedDevice, ...]:
        """All devices, whichever node they are for, that take from the pool's counters when allocated."""
        return tuple(device for offer in self.offers for device in offer if device.spec.consumes_counters)

    def _read_counters(self) -> str:
        for spec in self.specs:
            for counter_set in spec.shared_counters:
                if counter_set.name in self.counters:
                    return f"duplicate counter set name {counter_set.name}"
                self.counters[counter_set.name] = {
                    name: int(counter.value) for name, counter in counter_set.counters.items()
                }
        return ""

    def _missing_counter(self) -> str:
        for device in self.counting_devices:
            for consumption in device.spec.consumes_counters:
                counters = self.counters.get(consumption.counter_set)
                if counters is None:
                    return f"counter set {consumption.counter_set} not found"
                if missing := consumption.counters.keys() - counters.keys():
                    return f"counter {min(missing)} not found in counter set {consumption.counter_set}"
        return ""


PoolKey = tuple[str, str]
"""A pool's driver and name."""


class Inventory:
    """All pools of the cluster; those whose slices change are put together anew."""

    def __init__(self, slices: Iterable[ResourceSlice]) -> None:
        self._slices: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._stale: set[PoolKey] = set()
        self._kinds: Kinds = WeakValueDictionary()
        self.pools: dict[PoolKey, Pool] = {}
        self.everywhere: dict[PoolKey, Pool] = {}
        """The pools that any node might reach."""
        self.on_node: dict[str, dict[PoolKey, Pool]] = {}
        """The others, by the names of their nodes."""
        for each in slices:
            self.follow(None, each)

    def follow(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take note of a slice that was added, changed or removed."""
        if old is not None:
            self._slices[self._mark(old)].pop(old.name, None)
        if new is not None:
            self._slices.setdefault(self._mark(new), {})[new.name] = new

    def renew(self) -> tuple[set[str], bool]:
        """Put together the pools whose slices changed.

        Returns the names of the nodes concerned, and whether all nodes may be.
        """
        names: set[str] = set()
        concerns_all = False
        for key in self._stale:
            for pool in (self._remove(key), self._add(key)):
                if pool is not None:
                    concerns_all = concerns_all or pool.nodes is None
                    names |= pool.nodes or set()
        self._stale.clear()
        return names, concerns_all

    def pools_for(self, node: Node) -> list[ReachablePool]:
        """What a node can reach, in the order in which it is allocated from."""
        self.renew()
        pools = (*self.on_node.get(node.name, {}).values(), *self.everywhere.values())
        return sort_pools(seen for pool in pools if (seen := pool.seen_from(node)) is not None)

    def _mark(self, each: ResourceSlice) -> PoolKey:
        key = each.spec.driver, each.spec.pool.name
        self._stale.add(key)
        return key

    def _remove(self, key: PoolKey) -> Pool | None:
        pool = self.pools.pop(key, None)
        if pool is not None:
            self.everywhere.pop(key, None)
            for name in pool.nodes or ():
                del self.on_node[name][key]
                if not self.on_node[name]:
                    del self.on_node[name]
        return pool

    def _add(self, key: PoolKey) -> Pool | None:
        slices = self._slices[key].values()
        if not slices:
            del self._slices[key]
            return None
        newest = max(each.spec.pool.generation for each in slices)
        parts = [each for each in slices if each.spec.pool.generation == newest]
        pool = self.pools[key] = Pool(parts, self._kinds)
        if pool.nodes is None:
            self.everywhere[key] = pool
        for name in pool.nodes or ():
            self.on_node.setdefault(name, {})[key] = pool
        return pool


def sort_pools(pools: Iterable[ReachablePool]) -> list[ReachablePool]:
    """In the order in which they are allocated from."""
    return sorted(pools, key=lambda seen: seen.order)


def is_in_scope(scope: NodeScope, node: Node) -> bool:
    """Whether a node can reach what has this scope."""
    if scope.node_name:
        return scope.node_name == node.name
    if scope.all_nodes or scope.node_selector is None:
        return scope.all_nodes
    terms = node_terms_of(scope.node_selector)
    if errors := [term.error for term in terms if term.error]:
        raise AllocationError(f"failed to parse node selector: {', '.join(errors)}")
    return any(term.matches(node.labels, node.name) for term in terms)


def _is_reached(spec: ResourceSliceSpec, node: Node) -> bool:
    if spec.shared_counters:
        return True
    if spec.per_device_node_selection and not spec.is_given:
        return any(is_in_scope(device, node) for device in spec.devices)
    return is_in_scope(spec, node)


def _duplicate(devices: Sequence[OfferedDevice]) -> str:
    names = [device.spec.name for device in devices]
    if len(set(names)) == len(names):
        return ""
    return f"duplicate device name {next(name for name in names if names.count(name) > 1)}"


Taken = Mapping[str, int]


def consumption(device: Device, requirements: CapacityRequirements | None) -> dict[str, int] | None:
    """What a request takes of each capacity of the device; None if the device cannot serve it."""
    wanted = requirements.requests if requirements is not None else {}
    if wanted.keys() - device.capacity.keys():
        return None
    found: dict[str, int] = {}
    for name, capacity in device.capacity.items():
        amount = found[name] = _round_up(parse(wanted[name]) if name in wanted else None, capacity)
        if not _is_allowed(amount, capacity):
            return None
    return found


def has_room(device: Device, more: Taken, *taken: Taken) -> bool:
    """Whether the device has capacity for `more` in addition to what is already in use."""
    return all(
        sum(part.get(name, 0) for part in (more, *taken)) <= capacity.value
        for name, capacity in device.capacity.items()
    )


def _round_up(wanted: int | None, capacity: DeviceCapacity) -> int:
    policy = capacity.request_policy
    if wanted is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return wanted
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _next_step(wanted, policy.valid_range)
    return min((value for value in policy.valid_values if value >= wanted), default=wanted)


def _next_step(wanted: int, valid: CapacityRange) -> int:
    lowest = valid.min or 0
    if wanted < lowest:
        return lowest
    if not valid.step:
        return wanted
    steps = -(-(units(wanted) - units(lowest)) // units(valid.step))
    return Quantity.binary((units(lowest) + steps * units(valid.step)) * NANO)


def _is_allowed(amount: int, capacity: DeviceCapacity) -> bool:
    policy = capacity.request_policy
    if policy is None or amount == policy.default:
        return True
    if valid := policy.valid_range:
        if valid.max is not None and amount > valid.max:
            return False
        return not valid.step or (units(amount) - units(valid.min or 0)) % units(valid.step) == 0
    return not policy.valid_values or amount in policy.valid_values
