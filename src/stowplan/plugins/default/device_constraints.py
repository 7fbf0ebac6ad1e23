"""Constraints of a claim: attributes that its devices must share, or must not."""

from __future__ import annotations

from stowplan.api.resource import ResourceClaim
from stowplan.plugins.default.device_pools import AllocationError, OfferedDevice, Value


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
