"""Capacity of a device that several claims can share: how much a request takes of it.

Amounts are nano-units, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from stowplan.api.quantity import NANO, Quantity, parse, units
from stowplan.api.resource import CapacityRange, CapacityRequirements, Device, DeviceCapacity

Taken = Mapping[str, int]


def consumption(device: Device, requirements: CapacityRequirements | None) -> dict[str, int] | None:
    """What a request takes of each capacity of the device; None if the device cannot serve it."""
    wanted = requirements.requests if requirements is not None else {}
    if wanted.keys() - device.capacity.keys():
        return None
    found: dict[str, int] = {}
    for name, capacity in device.capacity.items():
        amount = found[name] = _rounded_up(parse(wanted[name]) if name in wanted else None, capacity)
        if not _is_allowed(amount, capacity):
            return None
    return found


def has_room(device: Device, more: Taken, *taken: Taken) -> bool:
    """Whether the device can give `more` on top of what is taken already."""
    return all(
        sum(part.get(name, 0) for part in (more, *taken)) <= capacity.value
        for name, capacity in device.capacity.items()
    )


def _rounded_up(wanted: int | None, capacity: DeviceCapacity) -> int:
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
