"""Writes claims to the API: what `pre_bind` decided, and what must be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
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
        """A claim that has existed in memory only; the server gives it a name."""
        unnamed = replace(claim.metadata, name="", uid="")
        return self._note(await self._handle.api.create(replace(claim, metadata=unnamed)))

    async def bind(self, claim: ResourceClaim, allocation: Allocation | None, pod: Pod) -> ResourceClaim:
        """Reserves a claim for the pod and, if it is ours to allocate, allocates it."""
        for _ in range(WRITE_ATTEMPTS):
            try:
                written = await self._bind_once(claim, allocation, pod)
                break
            except ClaimError:
                raise
            except StowplanError:
                # The claim may have changed in the meantime: read its newest version.
                await asyncio.sleep(0.01)
                latest = self._ledger.get(claim.key)
                if latest is None or latest == claim:
                    raise
                claim = latest
        else:
            raise ClaimError(f"claim {claim.key} keeps being changed by others")
        self._ledger.release(claim.metadata.uid)
        return written

    async def _bind_once(
        self, claim: ResourceClaim, allocation: Allocation | None, pod: Pod
    ) -> ResourceClaim:
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f"claim {claim.key} got deleted in the meantime")
        if allocation is not None:
            if claim.allocation is not None:
                raise ClaimError(f"claim {claim.key} got allocated elsewhere in the meantime")
            if FINALIZER not in claim.metadata.finalizers:
                claim = await self._update(claim, (*claim.metadata.finalizers, FINALIZER))
            now = datetime.fromtimestamp(int(self._handle.now()), UTC)
            allocation = replace(allocation, allocation_timestamp=now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        consumer = ConsumerReference(resource="pods", name=pod.name, uid=pod.uid)
        consumers = (*claim.status.reserved_for, consumer)
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
        await self._update_status(claim, None, ())

    async def give_up(self, claim: ResourceClaim, pod: Pod) -> None:
        """The pod does not use the claim after all."""
        claim = self._ledger.get(claim.key) or claim
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


def is_ready(claim: ResourceClaim) -> bool:
    """Whether drivers have set all the conditions that allocated devices wait for."""
    results = claim.allocation.devices.results if claim.allocation else ()
    return all(
        any(status.is_of(result) and status.is_true(condition) for status in claim.status.devices)
        for result in results
        for condition in result.binding_conditions
    )


def waited_for(claims: Iterable[ResourceClaim]) -> set[str]:
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
