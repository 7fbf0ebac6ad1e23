"""What the scheduler itself did to claims and has not seen back yet.

An allocation is in flight from `reserve` until it is written; what was written counts as known until the
watch shows it, so that no device is given away twice in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.meta import NodeSelector
from stowplan.api.resource import EXTENDED_RESOURCE_CLAIM, Allocation, DeviceClass, ResourceClaim
from stowplan.api.selectors import node_terms_of
from stowplan.cluster.columns import Columns
from stowplan.errors import CelError
from stowplan.framework import ClusterView, Handle, NodeTable
from stowplan.plugins.devices.claims import Usage
from stowplan.plugins.devices.pools import OfferedDevice

GRACE_SECONDS = 120.0
"""How long a claim that we created may take to show up."""


class ClaimLedger:
    """One for each cluster: the profiles of a scheduler share it."""

    _ledgers: WeakKeyDictionary[ClusterView, ClaimLedger] = WeakKeyDictionary()

    @classmethod
    def of(cls, handle: Handle) -> ClaimLedger:
        return cls._ledgers.setdefault(handle.cluster, cls(handle))

    def __init__(self, handle: Handle) -> None:
        self._store, self._now = handle.cluster.resource_claims, handle.now
        self.in_flight: dict[str, Allocation] = {}
        """By the uid of the claim."""
        self._written: dict[str, tuple[ResourceClaim, float]] = {}
        self._usage: tuple[tuple[int, int], Usage] | None = None
        self._changes = 0

    def get(self, key: str) -> ResourceClaim | None:
        """A claim as we know it, which may be newer than what the watch has brought."""
        known = self._store.get(key)
        if key not in self._written:
            return known
        ours, since = self._written[key]
        if known is None:
            is_new = ours.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true"
            has_arrived = not is_new or self._now() - since > GRACE_SECONDS
        else:
            has_arrived = known.metadata.uid != ours.metadata.uid or _version(known) >= _version(ours)
        if has_arrived:
            del self._written[key]
            self._changes += 1
            return known
        return ours

    def __iter__(self) -> Iterator[ResourceClaim]:
        for claim in self._store:
            yield self.get(claim.key) or claim if self._written else claim
        for key in [key for key in self._written if self._store.get(key) is None]:
            if (ours := self.get(key)) is not None:
                yield ours

    def reserve(self, claim: ResourceClaim, allocation: Allocation) -> None:
        self.in_flight[claim.metadata.uid] = allocation
        self._changes += 1

    def release(self, uid: str) -> None:
        """Forgets an allocation that was not, or not only, in flight."""
        if self.in_flight.pop(uid, None) is not None:
            self._changes += 1

    def wrote(self, claim: ResourceClaim) -> None:
        """Record a claim as returned by the API server."""
        self._written[claim.key] = claim, self._now()
        self._changes += 1

    def deleted(self, claim: ResourceClaim) -> None:
        self._written.pop(claim.key, None)
        self._changes += 1

    @property
    def usage(self) -> Usage:
        """The devices that are taken, counting what is in flight."""
        if self._usage is None or self._usage[0] != (self._store.version, self._changes):
            allocations = [claim.allocation for claim in self if claim.allocation is not None]
            found = Usage.of([*allocations, *self.in_flight.values()])
            self._usage = (self._store.version, self._changes), found
        return self._usage[1]


def _version(claim: ResourceClaim) -> int:
    version = claim.metadata.resource_version
    return int(version) if version.isdecimal() else 0


Ints = NDArray[np.int64]
Selectors = tuple[str, ...]
Tally = list[int]
"""Devices of a class, those in use, and devices for which a selector failed."""
Tallies = tuple[dict[str, Tally], dict[NodeSelector | None, Tally]]
"""By the name of the only node with access to the devices; by the selector of their nodes (None: all)."""


class DeviceCounts:
    def __init__(self, handle: Handle) -> None:
        self._slices, self._ledger = handle.cluster.resource_slices, ClaimLedger.of(handle)
        self._seen: tuple[int, Usage] = -1, Usage.of(())
        self._version = 0
        self._devices: list[OfferedDevice] = []
        self._tallies: dict[Selectors, Tallies] = {}

    def follow(self) -> int:
        """Takes note of other devices and of other uses of them; the number grows where there are any."""
        now = self._slices.version, self._ledger.usage
        if self._seen != now:
            if self._seen[0] != now[0]:
                self._devices = [
                    OfferedDevice(device, each.spec) for each in self._slices for device in each.spec.devices
                ]
            self._seen = now
            self._tallies.clear()
            self._version += 1
        return self._version

    def columns(self, device_class: DeviceClass, nodes: NodeTable) -> tuple[Ints, Ints]:
        """For each node, the number of devices of the class and the number in use."""
        selectors = tuple(each.cel.expression for each in device_class.spec.selectors if each.cel is not None)
        key = self, self.follow(), selectors
        capacity, used = nodes.live.keep(key, lambda part: self._count(selectors, part))
        return capacity[nodes.rows], used[nodes.rows]

    def _count(self, selectors: Selectors, nodes: NodeTable) -> Columns:
        if selectors not in self._tallies:
            self._tallies[selectors] = self._tally(selectors)
        by_name, by_selector = self._tallies[selectors]
        counts = np.array([by_name.get(name, (0, 0, 0)) for name in nodes.names], np.int64).reshape(-1, 3)
        for selector, tally in by_selector.items():
            terms = () if selector is None else node_terms_of(selector)
            if any(term.error for term in terms):
                counts[:, 2] += 1
            else:
                counts[... if selector is None else nodes.match_terms(terms)] += tally
        capacity, used, unclear = counts.T
        return capacity * (unclear == 0), used * (unclear == 0)

    def _tally(self, selectors: Selectors) -> Tallies:
        by_name: dict[str, Tally] = {}
        by_selector: dict[NodeSelector | None, Tally] = {}
        for device in self._devices:
            scope = device.scope
            if scope.node_name:
                tally = by_name.setdefault(scope.node_name, [0, 0, 0])
            elif scope.is_given:
                tally = by_selector.setdefault(scope.node_selector, [0, 0, 0])
            else:
                continue
            try:
                if all(map(device.satisfies, selectors)):
                    tally[0] += 1
                    tally[1] += self._seen[1].includes(device.id)
            except CelError:
                tally[2] += 1
        return by_name, by_selector
