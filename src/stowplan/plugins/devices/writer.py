"""Writes claims to the API: what `pre_bind` decided, and what must be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.api.resource import FINALIZER, Allocation, ConsumerReference, ResourceClaim
from stowplan.errors import StowplanError
from stowplan.framework import Handle
from stowplan.plugins.devices.claims import RequestMapping
from stowplan.plugins.devices.ledger import ClaimLedger

POLL_SECONDS = 5.0
WRITE_ATTEMPTS = 5
READ_ATTEMPTS = 5
MAX_CONSUMERS = 256
"""A claim cannot name more."""


class ClaimError(StowplanError):
    """The claims of a pod are invalid. `outcome` is the label in metrics."""

    outcome = "error"


class DeviceFailedError(ClaimError):
    outcome = "failure"


class DeviceTimeoutError(ClaimError):
    outcome = "timeout"


class ClaimWriter:
    def __init__(self, handle: Handle, ledger: ClaimLedger) -> None:
        self._handle, self._ledger = handle, ledger
        self.poll_seconds = POLL_SECONDS

    async def create(self, claim: ResourceClaim) -> ResourceClaim:
        """A claim that has existed in memory only; the server gives it a name.

        It has the finalizer from the start: it is created only to be allocated, and adding one is a write.
        """
        unnamed = replace(claim.metadata, name="", uid="", finalizers=(FINALIZER,))
        return self._note(await self._handle.api.create(replace(claim, metadata=unnamed)))

    async def bind(
        self,
        claim: ResourceClaim,
        allocation: Allocation | None,
        pod: Pod,
        consumer: ConsumerReference | None = None,
    ) -> ResourceClaim:
        """Reserves a claim for the pod, or for another consumer, and allocates it, if it is ours to allocate.

        A claim is written by one pod at a time, from what the one before it wrote. Pods that are to be bound
        and only need to be named as users of an allocated claim are all named in one write.
        """
        consumer = consumer or consumer_of(pod)
        if allocation is None:
            self._ledger.join(claim, consumer)
        try:
            async with self._ledger.turn(claim.key):
                written = await self._bind(claim, allocation, consumer)
        except StowplanError:
            if allocation is not None:
                self._ledger.write_failed(claim)
            raise
        finally:
            self._ledger.leave_joining(claim, consumer.uid)
        self._ledger.release(claim.metadata.uid)
        return written

    async def _bind(
        self,
        claim: ResourceClaim,
        allocation: Allocation | None,
        consumer: ConsumerReference,
    ) -> ResourceClaim:
        for _ in range(WRITE_ATTEMPTS):
            newest = self._ledger.get(claim.key) or claim
            is_as_decided = _is_as_decided(newest, claim, allocation)
            if is_as_decided and newest.is_reserved_for(consumer.uid):
                return newest
            self._check(claim, newest, allocation)
            # Another member of its group may have written the allocation.
            missing = None if is_as_decided else allocation
            wanted = (consumer, *(other for other in self._joining(newest) if other.uid != consumer.uid))
            try:
                return await self._bind_once(newest, missing, wanted)
            except ClaimError:
                raise
            except StowplanError:
                # It may have been changed by others: the watch brings its newest version.
                newest = self._ledger.get(claim.key) or newest
                for _ in range(READ_ATTEMPTS):
                    await asyncio.sleep(0.01)
                    if self._ledger.get(claim.key) not in (None, newest):
                        break
                else:
                    raise
        raise ClaimError(f"claim {claim.key} keeps being changed by others")

    def _joining(self, claim: ResourceClaim) -> Iterator[ConsumerReference]:
        """Others to name in the claim, but for those that wait on permit and may yet be rejected."""
        waiting = {each.pod.uid for each in self._handle.waiting_pods}
        return (other for other in self._ledger.joining(claim) if other.uid not in waiting)

    def _check(self, claim: ResourceClaim, newest: ResourceClaim, allocation: Allocation | None) -> None:
        """Raise ClaimError if a claim is not what it was when the node was chosen."""
        if newest.metadata.deletion_timestamp is not None or newest.metadata.uid != claim.metadata.uid:
            raise ClaimError(f"claim {claim.key} got deleted in the meantime")
        if newest.allocation is None and allocation is None:
            raise ClaimError(f"claim {claim.key} got deallocated in the meantime")
        if newest.allocation is not None and not _is_as_decided(newest, claim, allocation):
            raise ClaimError(f"claim {claim.key} got allocated elsewhere in the meantime")

    async def _bind_once(
        self, claim: ResourceClaim, allocation: Allocation | None, wanted: Sequence[ConsumerReference]
    ) -> ResourceClaim:
        if allocation is not None:
            if FINALIZER not in claim.metadata.finalizers:
                claim = await self._update(claim, (*claim.metadata.finalizers, FINALIZER))
            now = datetime.fromtimestamp(int(self._handle.now()), UTC)
            allocation = replace(allocation, allocation_timestamp=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        known = claim.status.reserved_for
        others = [each for each in wanted if not claim.is_reserved_for(each.uid)]
        consumers = (*known, *others[: max(1, MAX_CONSUMERS - len(known))])
        return await self._update_status(claim, allocation or claim.allocation, consumers)

    async def tell_pod(self, pod: Pod, claim: ResourceClaim, mappings: Sequence[RequestMapping]) -> None:
        """Lets the kubelet know which devices are for which container."""
        status = {
            "requestMappings": [mapping.as_json() for mapping in mappings],
            "resourceClaimName": claim.name,
        }
        await self._handle.api.patch_pod_status(pod, {"status": {"extendedResourceClaimStatus": status}})

    async def wait_until_ready(self, claims: Sequence[ResourceClaim], timeout: float) -> None:
        """Waits until drivers report that the devices of these claims can be used."""
        clock = asyncio.get_running_loop().time  # a monotonic clock: the time of day can be set
        end = clock() + timeout
        while True:
            newest = [self._ledger.get(claim.key) or claim for claim in claims]
            for claim in newest:
                if has_failed(claim):
                    raise DeviceFailedError(f"claim {claim.key}: a device cannot be bound")
            if all(map(is_ready, newest)):
                return
            if clock() >= end:
                raise DeviceTimeoutError("device binding timeout")
            await asyncio.sleep(self.poll_seconds)

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Give back the devices of a claim, unless another pod has come to use it."""
        async with self._ledger.turn(claim.key):
            newest = self._ledger.get(claim.key) or claim
            if newest.status.reserved_for == claim.status.reserved_for:
                await self._update_status(newest, None, ())

    async def give_up(self, claim: ResourceClaim, pod: Pod) -> None:
        """The pod does not use the claim after all, unless it was reserved again in the meantime."""
        async with self._ledger.turn(claim.key):
            if (claim.metadata.uid, pod.uid) not in self._ledger.leaving:
                return
            self._ledger.leaving.discard((claim.metadata.uid, pod.uid))
            claim = self._ledger.get(claim.key) or claim
            if not claim.is_reserved_for(pod.uid):
                return
            others = (consumer for consumer in claim.status.reserved_for if consumer.uid != pod.uid)
            await self._update_status(claim, claim.allocation, others)

    async def delete(self, claim: ResourceClaim) -> None:
        claim = self._ledger.get(claim.key) or claim
        if FINALIZER in claim.metadata.finalizers:
            others = (finalizer for finalizer in claim.metadata.finalizers if finalizer != FINALIZER)
            claim = await self._update(claim, others)
        await self._handle.api.delete(claim)
        self._ledger.deleted(claim)

    async def _update(self, claim: ResourceClaim, finalizers: Iterable[str]) -> ResourceClaim:
        metadata = replace(claim.metadata, finalizers=tuple(finalizers))
        return self._note(await self._handle.api.update(replace(claim, metadata=metadata)))

    async def _update_status(
        self, claim: ResourceClaim, allocation: Allocation | None, consumers: Iterable[ConsumerReference]
    ) -> ResourceClaim:
        status = replace(claim.status, allocation=allocation, reserved_for=tuple(consumers))
        return self._note(await self._handle.api.update_status(replace(claim, status=status)))

    def _note(self, written: Object) -> ResourceClaim:
        assert isinstance(written, ResourceClaim)
        self._ledger.wrote(written)
        return written


def consumer_of(pod: Pod) -> ConsumerReference:
    return ConsumerReference(resource="pods", name=pod.name, uid=pod.uid)


def _is_as_decided(newest: ResourceClaim, claim: ResourceClaim, planned: Allocation | None) -> bool:
    """Whether a claim has the allocation for which the pod's node was chosen: the planned one, with the time
    at which it was written, or the one it had then."""
    if newest.metadata.uid != claim.metadata.uid or newest.allocation is None:
        return False
    if planned is None:
        return newest.allocation == claim.allocation
    return replace(newest.allocation, allocation_timestamp=None) == planned


def is_ready(claim: ResourceClaim) -> bool:
    """Whether drivers have set all the conditions that allocated devices wait for."""
    results = claim.allocation.devices.results if claim.allocation else ()
    return all(
        any(status.is_of(result) and status.is_true(condition) for status in claim.status.devices)
        for result in results
        for condition in result.binding_conditions
    )


def drivers_to_await(claims: Iterable[ResourceClaim]) -> set[str]:
    """The drivers whose devices have conditions to be met before a pod can use them."""
    return {
        result.driver
        for claim in claims
        for result in (claim.allocation.devices.results if claim.allocation else ())
        if result.binding_conditions
    }


def has_failed(claim: ResourceClaim) -> bool:
    results = claim.allocation.devices.results if claim.allocation else ()
    return any(
        status.is_of(result) and status.is_true(condition)
        for result in results
        for condition in result.binding_failure_conditions
        for status in claim.status.devices
    )
