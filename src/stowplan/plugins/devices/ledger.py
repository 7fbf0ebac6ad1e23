"""Changes to claims that the scheduler made itself and the watch has not reported yet.

An allocation is in flight from `reserve` until it is written; what was written counts as known until the
watch shows it, so that no device is given away twice in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stowplan.api.groups import GroupKey
from stowplan.api.meta import NodeSelector
from stowplan.api.pod import Pod
from stowplan.api.resource import (
    EXTENDED_RESOURCE_CLAIM,
    Allocation,
    ConsumerReference,
    DeviceClass,
    NodeScope,
    ResourceClaim,
)
from stowplan.api.selectors import node_terms_of
from stowplan.cluster.columns import Columns
from stowplan.cluster.sealed import unseal
from stowplan.errors import CelError
from stowplan.framework import ClusterView, Handle, NodeTable
from stowplan.plugins.devices.claims import Usage
from stowplan.plugins.devices.pools import DeviceId, Kinds, OfferedDevice

GRACE_SECONDS = 120.0
"""How long a claim that we created may take to show up."""


class ClaimLedger:
    """One for each cluster: the profiles of a scheduler share it."""

    _ledgers: WeakKeyDictionary[ClusterView, ClaimLedger] = WeakKeyDictionary()

    @classmethod
    def of(cls, handle: Handle) -> ClaimLedger:
        cluster = unseal(handle.cluster)
        found = cls._ledgers.get(cluster)
        if found is None:
            found = cls._ledgers[cluster] = cls(cluster, handle.now, handle.activate)
        return found

    def __init__(
        self,
        cluster: ClusterView,
        now: Callable[[], float],
        activate: Callable[[Iterable[Pod]], None],
    ) -> None:
        self._store, self._now, self._activate = cluster.resource_claims, now, activate
        self.in_flight: dict[str, Allocation] = {}
        """By the uid of the claim."""
        self._reserved_by: dict[str, Pod] = {}
        """The pod for which a claim in flight is allocated, by the uid of the claim."""
        self.unwritable: set[str] = set()
        """The uids of claims whose allocation could not be written the last time."""
        self._waiting: dict[str, dict[str, Pod]] = {}
        """Pods that are held back until a claim is no longer in flight, by its uid and theirs."""
        self._sharing: dict[str, tuple[GroupKey, set[str]]] = {}
        """The group whose members share an allocation in flight, and the uids of these pods, by claim."""
        self._written: dict[str, tuple[ResourceClaim, float]] = {}
        self._created: set[str] = set()
        """The keys of claims that we created and that have not shown up yet."""
        self._held: dict[str, Allocation] = {}
        """The allocations that are counted in the usage, by the key of the claim."""
        self._extended: dict[str, dict[str, None]] = {}
        """The keys of claims for extended resources, by the uid of the pod."""
        self._joining: dict[str, dict[str, tuple[ConsumerReference, Allocation | None]]] = {}
        """Pods that are still to be named in an allocated claim, by the uid of the claim and theirs, with the
        allocation for which they chose their nodes."""
        self.leaving: set[tuple[str, str]] = set()
        """The uids of claims, and of pods that are to be named in them no more."""
        self._turns: dict[str, list[asyncio.Lock]] = {}
        self._usage = Usage()
        for claim in self._store:
            self._follow(None, claim)
        self._store.follow(self._follow)

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Wait until no other write of the claim is under way."""
        waiting = self._turns.setdefault(key, [])
        lock = waiting[0] if waiting else asyncio.Lock()
        waiting.append(lock)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self._turns[key]

    def is_being_written(self, key: str) -> bool:
        return key in self._turns

    def join(self, claim: ResourceClaim, consumer: ConsumerReference) -> None:
        """The claim is to name this pod as well; whoever writes the claim next may do that."""
        self._joining.setdefault(claim.metadata.uid, {})[consumer.uid] = consumer, claim.allocation

    def joining(self, claim: ResourceClaim) -> Iterator[ConsumerReference]:
        """Pods to name in the claim, unless it was allocated anew since they chose their nodes."""
        for consumer, allocation in self._joining.get(claim.metadata.uid, {}).values():
            if allocation == claim.allocation:
                yield consumer

    def leave_joining(self, claim: ResourceClaim, uid: str) -> None:
        """The claim names this pod, or need not any more."""
        found = self._joining.get(claim.metadata.uid, {})
        found.pop(uid, None)
        if not found:
            self._joining.pop(claim.metadata.uid, None)

    def get(self, key: str) -> ResourceClaim | None:
        """A claim as we know it, which may be newer than what the watch has brought."""
        known = self._store.get(key)
        if key not in self._written:
            return known
        ours, since = self._written[key]
        if known is None:
            has_arrived = key not in self._created or self._now() - since > GRACE_SECONDS
        else:
            has_arrived = known.metadata.uid != ours.metadata.uid or _version(known) >= _version(ours)
        if has_arrived:
            self._forget(key)
            return known
        return ours

    def extended_claims(self, uid: str) -> Iterator[ResourceClaim]:
        """The claims for extended resources that were made for the pod with this uid."""
        for key in tuple(self._extended.get(uid, ())):
            if (claim := self.get(key)) is not None:
                yield claim

    def reserve(self, claim: ResourceClaim, allocation: Allocation, pod: Pod) -> None:
        self.release(claim.metadata.uid)
        self.in_flight[claim.metadata.uid] = allocation
        self._reserved_by[claim.metadata.uid] = pod
        self._usage.add(allocation)

    def reserved_by(self, claim: ResourceClaim) -> Pod | None:
        """The pod for which a claim is being allocated; None if it is not in flight."""
        return self._reserved_by.get(claim.metadata.uid)

    def hold(self, pod: Pod, claim: ResourceClaim) -> None:
        """Have the pod attempted again as soon as the claim is no longer in flight."""
        self._waiting.setdefault(claim.metadata.uid, {})[pod.uid] = pod

    def share(self, claim: ResourceClaim, group: GroupKey, pod: Pod) -> None:
        """A member of the group uses the allocation in flight: others of the group may use it, too."""
        known = self._sharing.setdefault(claim.metadata.uid, (group, set()))
        known[1].add(pod.uid)

    def shared_with(self, claim: ResourceClaim, group: GroupKey | None) -> Allocation | None:
        """The allocation in flight that members of this group may use."""
        found = self._sharing.get(claim.metadata.uid)
        if found is None or found[0] != group:
            return None
        return self.in_flight.get(claim.metadata.uid)

    def leave(self, claim: ResourceClaim, pod: Pod) -> None:
        """The pod does not use the allocation in flight any more; the last one releases it."""
        uid = claim.metadata.uid
        users = self._sharing[uid][1] if uid in self._sharing else set()
        users.discard(pod.uid)
        if not users:
            self.release(uid)

    def release(self, uid: str) -> None:
        """Forgets an allocation that was not, or not only, in flight."""
        self._sharing.pop(uid, None)
        self._reserved_by.pop(uid, None)
        allocation = self.in_flight.pop(uid, None)
        if allocation is not None:
            self._usage.remove(allocation)
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            self._activate(waiting.values())

    def wrote(self, claim: ResourceClaim) -> None:
        """Record a claim as returned by the API server."""
        self._written[claim.key] = claim, self._now()
        if self._store.get(claim.key) is None and _is_extended(claim):
            self._created.add(claim.key)
        if claim.allocation is not None:
            self.unwritable.discard(claim.metadata.uid)
        self._count(claim.key, None, claim)

    def write_failed(self, claim: ResourceClaim) -> None:
        """The claim could not be allocated."""
        known = self.get(claim.key)
        if known is not None and known.metadata.uid == claim.metadata.uid:
            self.unwritable.add(claim.metadata.uid)

    def assume_written(
        self, claim: ResourceClaim, allocation: Allocation | None, consumer: ConsumerReference
    ) -> None:
        """Count a claim as allocated, and reserved for the consumer, where nothing is written."""
        newest = self.get(claim.key) or claim
        known = newest.status.reserved_for
        users = known if newest.is_reserved_for(consumer.uid) else (*known, consumer)
        metadata = replace(newest.metadata, resource_version=str(_version(newest) + 1))
        status = replace(newest.status, allocation=allocation, reserved_for=users)
        self.wrote(replace(newest, metadata=metadata, status=status))
        self.leave_joining(claim, consumer.uid)
        self.release(claim.metadata.uid)

    def deleted(self, claim: ResourceClaim) -> None:
        self._forget(claim.key)

    @property
    def usage(self) -> Usage:
        """The devices that are taken, counting what is in flight. It is kept up to date, not replaced."""
        for key in tuple(self._created):
            self.get(key)
        return self._usage

    def _follow(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """The watch has brought a claim, or that it is gone."""
        claim = old if new is None else new
        assert claim is not None
        if new is not None:
            self._created.discard(claim.key)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.unwritable.discard(old.metadata.uid)
        self._count(claim.key, old, self.get(claim.key))

    def _forget(self, key: str) -> None:
        """The watch has reported what we wrote."""
        ours, _ = self._written.pop(key, (None, 0.0))
        self._created.discard(key)
        self._count(key, ours, self._store.get(key))

    def _count(self, key: str, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        before, now = self._held.get(key), None if new is None else new.allocation
        if old is not None and _is_extended(old):
            for owner in old.metadata.owner_references:
                self._extended.get(owner.uid, {}).pop(key, None)
                if not self._extended.get(owner.uid, True):
                    del self._extended[owner.uid]
        if new is not None and _is_extended(new):
            for owner in new.metadata.owner_references:
                self._extended.setdefault(owner.uid, {})[key] = None
        if before == now:
            return
        if now is not None:  # first, so that nothing is free in between
            self._held[key] = now
            self._usage.add(now)
        else:
            del self._held[key]
        if before is not None:
            self._usage.remove(before)


def _is_extended(claim: ResourceClaim) -> bool:
    return claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true"


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
        self._seen = -1, -1
        self._version = 0
        self._devices: dict[DeviceId, list[OfferedDevice]] = {}
        self._used: set[DeviceId] = set()
        self._kinds: Kinds = WeakValueDictionary()
        self._tallies: dict[Selectors, Tallies] = {}

    def follow(self) -> int:
        """Takes note of other devices and of other uses of them; the number grows where there are any."""
        usage = self._ledger.usage
        now = self._slices.version, usage.version
        if self._seen != now:
            if self._seen[0] != now[0]:
                self._devices = {}
                for each in self._slices:
                    for spec in each.spec.devices:
                        device = OfferedDevice(spec, each.spec, self._kinds)
                        self._devices.setdefault(device.id, []).append(device)
            changed = usage.changed_since(self._seen[1]) if self._seen[0] == now[0] else None
            self._seen = now
            self._version += 1
            if changed is None:
                self._tallies.clear()
                self._used = {id_ for id_ in self._devices if usage.includes(id_)}
            else:
                self._recount({id_ for id_ in changed if usage.includes(id_) != (id_ in self._used)})
        return self._version

    def _recount(self, changed: set[DeviceId]) -> None:
        """Count devices as used that were not, and the reverse."""
        for id_ in changed & self._devices.keys():
            change = -1 if id_ in self._used else 1
            for device in self._devices[id_]:
                for selectors, (by_name, by_selector) in self._tallies.items():
                    tally = _tally_of(device.scope, by_name, by_selector)
                    if tally is not None and _is_selected(device, selectors):
                        tally[1] += change
        self._used ^= changed & self._devices.keys()

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
        for device in chain.from_iterable(self._devices.values()):
            tally = _tally_of(device.scope, by_name, by_selector)
            if tally is None:
                continue
            is_selected = _is_selected(device, selectors)
            if is_selected is None:
                tally[2] += 1
            elif is_selected:
                tally[0] += 1
                tally[1] += device.id in self._used
        return by_name, by_selector


def _tally_of(
    scope: NodeScope, by_name: dict[str, Tally], by_selector: dict[NodeSelector | None, Tally]
) -> Tally | None:
    """The tally of the nodes that can reach a device; None if none can."""
    if scope.node_name:
        return by_name.setdefault(scope.node_name, [0, 0, 0])
    return by_selector.setdefault(scope.node_selector, [0, 0, 0]) if scope.is_given else None


def _is_selected(device: OfferedDevice, selectors: Selectors) -> bool | None:
    """None if a selector fails."""
    try:
        return all(map(device.kind.satisfies, selectors))
    except CelError:
        return None
