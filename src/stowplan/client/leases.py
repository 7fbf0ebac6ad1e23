"""Leader election with a Lease: one of several schedulers works, the others stand by.

The Lease is kube-scheduler's own, so that either can stand by for the other. Nothing here compares clocks of
two machines: a standby waits until it has itself seen no change of the lease for as long as the lease lasts,
and the leader stops when its lease has run out by its own clock, whether or not it got to notice before.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import time
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from stowplan import config, log
from stowplan.api.meta import Json, ObjectMeta, decode
from stowplan.api.nesting import members
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound
from stowplan.client.events import event_name, micro_time
from stowplan.errors import ConfigError, InputError

JITTER: Final = 1.2
TOLERATED_SECONDS: Final = 20.0
"""How long a leader counts as healthy after its lease has expired."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
# Goes on while the machine sleeps, where the system has such a clock: a lease runs out meanwhile.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_FAILURES = (ApiError, InputError, ValueError)


def new_identity() -> str:
    """Return our identity in a lease: `<hostname>_<uuid>`."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def seconds_since_boot() -> float:
    return time.clock_gettime(_CLOCK)


class LeaderElection:
    """`run` it to take part; ask `is_leading` before every write that only a leader may make.

    `on_started` and `on_lost` are called from `run`, which returns after the second: a scheduler that lost
    its lease should end, as kube-scheduler does. `component` is who its events come from.
    """

    def __init__(
        self,
        api: ApiClient,
        identity: str,
        settings: config.LeaderElection,
        on_started: Callable[[], None],
        on_lost: Callable[[], None],
        *,
        component: str = "default-scheduler",
        clock: Callable[[], float] = seconds_since_boot,
        now: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
    ) -> None:
        _check(settings)
        self._api, self.identity, self._settings, self._component = api, identity, settings, component
        self._name, self._namespace = settings.resource_name, settings.resource_namespace
        self._key = f"{self._namespace}/{self._name}"
        self._on_started, self._on_lost = on_started, on_lost
        self._clock, self._now, self._draw = clock, now, draw
        self._lease: Json = {}
        self._observed_at = -math.inf
        self._expires_at = -math.inf
        self._leads = self._is_lost = False

    @property
    def is_leading(self) -> bool:
        """Whether we hold the lease now; false as soon as it has expired, noticed or not."""
        return self._leads and self._clock() < self._expires_at

    @property
    def holder(self) -> str:
        """The holder of the lease when we last saw it; empty if there was none."""
        return self._spec.get("holderIdentity") or ""

    def check(self) -> str | None:
        """For /healthz: the problem if we lost the lease, or have not renewed it for too long."""
        is_overdue = self._leads and self._clock() > self._expires_at + TOLERATED_SECONDS
        if self._is_lost or is_overdue:
            return f"failed election to renew leadership on lease {self._name}"
        return None

    async def run(self) -> None:
        """Stand by until we acquire the lease, then renew it; return when it is lost."""
        await self._acquire()
        self._leads = True
        log.log(0, "Became leader", lease=self._key, identity=self.identity)
        try:
            self._on_started()
            await self._record("became leader")
            while await self._renew():
                pass
            self._is_lost = True
        finally:
            self._leads = False
        log.warn("Stopped leading", lease=self._key, identity=self.identity, holder=self.holder)
        self._on_lost()
        await self._record("stopped leading")

    async def release(self) -> None:
        """Let others take the lease at once. For a host that stops: first it ends its work, then `run`."""
        self._leads = False
        try:
            if self.holder == self.identity:
                await self._write_released()
        except _FAILURES as error:
            log.error(
                "Cannot release the lease; other instances wait until it expires",
                self._explain(error),
                lease=self._key,
            )

    async def _acquire(self) -> None:
        while not await self._take_or_renew():
            await asyncio.sleep(self._settings.retry_period * (1 + JITTER * self._draw()))

    async def _renew(self) -> bool:
        """Renew after a pause, retrying until the deadline; False if the lease is lost."""
        await asyncio.sleep(self._settings.retry_period)
        deadline = min(self._clock() + self._settings.renew_deadline, self._expires_at)
        try:
            async with asyncio.timeout(deadline - self._clock()):
                while self.is_leading:
                    if await self._take_or_renew():
                        return self.is_leading
                    if self.holder not in ("", self.identity):
                        return False  # taken over: kube-scheduler would go on until its deadline
                    await asyncio.sleep(self._settings.retry_period)
        except TimeoutError:
            pass
        return False

    async def _take_or_renew(self) -> bool:
        """Try once to acquire or renew the lease; return whether we hold it."""
        try:
            if self._leads and await self._renew_unread():
                return True
            await self._read()
            if self.holder not in ("", self.identity) and not self._is_expired:
                return False
            await self._write(self._held_spec())
            return True
        except _FAILURES as error:
            log.error("Cannot acquire or renew the lease; retrying", self._explain(error), lease=self._key)
            return False

    def _explain(self, error: Exception) -> str:
        """The ClusterRoles of schedulers, which a Forbidden advises, are for kube-scheduler's lease alone."""
        if isinstance(error, Forbidden):
            return (
                f"{error.message}: in namespace {self._namespace} give this account the right to create "
                f"leases, and to get and update the one named {self._name}"
            )
        return error.explanation if isinstance(error, ApiError) else str(error)

    async def _renew_unread(self) -> bool:
        """Renew by one call, assuming that no one else has written the lease since we did."""
        try:
            await self._write(self._held_spec())
        except (Conflict, NotFound):
            return False
        return True

    async def _read(self) -> None:
        try:
            self._observe(await self._request("GET", self._name))
        except NotFound:
            self._observe({})

    async def _write(self, spec: Json) -> None:
        """Write the lease with this spec; rejected if anyone has written it since we last saw it."""
        sent_at = self._clock()
        if self._lease:
            written = await self._request("PUT", self._name, self._lease | {"spec": self._spec | spec})
        else:
            written = await self._request("POST", "", self._new_lease() | {"spec": spec})
        self._observe(written)
        # Counted from before the call: others count from when they see it, which is later.
        self._expires_at = sent_at + self._settings.lease_duration

    async def _write_released(self) -> None:
        try:
            await self._write(self._released_spec())
        except Conflict:  # a renewal cut off by the end of `run` may have come through
            await self._read()
            if self.holder == self.identity:
                await self._write(self._released_spec())

    def _observe(self, lease: Json) -> None:
        if lease.get("spec") != self._lease.get("spec"):
            self._observed_at = self._clock()
        self._lease = lease

    @property
    def _spec(self) -> Json:
        return self._lease.get("spec") or {}

    @property
    def _is_expired(self) -> bool:
        lasts = self._spec.get("leaseDurationSeconds") or self._settings.lease_duration
        return self._clock() >= self._observed_at + float(lasts)

    def _held_spec(self) -> Json:
        now, seen = micro_time(self._now()), self._spec
        is_ours = self.holder == self.identity
        transitions = seen.get("leaseTransitions") or 0
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._settings.lease_duration),
            "acquireTime": seen["acquireTime"] if is_ours and "acquireTime" in seen else now,
            "renewTime": now,
            "leaseTransitions": transitions if is_ours or not self._lease else transitions + 1,
        }

    def _released_spec(self) -> Json:
        now = micro_time(self._now())
        return {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}

    def _new_lease(self) -> Json:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
        }

    async def _request(self, method: str, name: str, body: Json | None = None) -> Json:
        path = _LEASES.format(self._namespace) + (f"/{name}" if name else "")
        answer = await self._api.request(method, path, body)
        # Only the spec is read. The rest goes back as it came, however large or deep someone made it.
        lease: Json = dict(members(answer.data))
        if "spec" in lease:
            lease["spec"] = msgspec.json.decode(lease["spec"])
        return lease

    async def _record(self, what: str) -> None:
        """Record a core/v1 event of the lease. One attempt, shorter than a pause between renewals."""
        now, metadata = self._now(), decode(ObjectMeta, self._lease.get("metadata", Raw(b"{}")))
        stamp = micro_time(now)[:19] + "Z"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name(self._name, now), "namespace": self._namespace},
            "involvedObject": {
                "kind": "Lease",
                "apiVersion": "coordination.k8s.io/v1",
                "namespace": self._namespace,
                "name": self._name,
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            },
            "reason": "LeaderElection",
            "message": f"{self.identity} {what}",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "type": "Normal",
        }
        path = f"/api/v1/namespaces/{self._namespace}/events"
        try:
            async with asyncio.timeout(self._settings.retry_period):
                await self._api.request("POST", path, event)
        except (ApiError, TimeoutError) as error:
            said = error.explanation if isinstance(error, ApiError) else error
            log.error("Leader election event not recorded", said, lease=self._key)


def _check(settings: config.LeaderElection) -> None:
    if settings.renew_deadline <= JITTER * settings.retry_period:
        fault = "renewDeadline must be greater than retryPeriod*JitterFactor"
        raise ConfigError(f"couldn't create leader elector: {fault}", stage="framework")
