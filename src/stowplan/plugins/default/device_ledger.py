"""What the scheduler itself did to claims and has not seen back yet.

An allocation is in flight from `reserve` until it is written; what was written counts as known until the
watch shows it, so that no device is given away twice in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from stowplan.api.resource import EXTENDED_RESOURCE_CLAIM, Allocation, ResourceClaim
from stowplan.framework import ClusterView, Handle
from stowplan.plugins.default.device_claims import Usage

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
        """Takes note of a claim as the API server answered it."""
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
