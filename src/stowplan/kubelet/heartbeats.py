"""Signs of life of all nodes: leases renewed in turn, a few at a time, and now and then the whole status.

However many nodes there are, and however fast their time passes, there are no more than so many renewals in
a second; what follows from that for who watches them is `grace_seconds`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from stowplan import log
from stowplan.api.node import NodeObject
from stowplan.client.api import MERGE_PATCH, METADATA_ALONE, STRATEGIC_MERGE_PATCH, ApiClient
from stowplan.client.errors import ApiError, NotFound
from stowplan.controllers.clock import Clock
from stowplan.kubelet.machine import Machine
from stowplan.kubelet.statuses import heartbeat_of, lease_of, renewal

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 10.0
STATUS_SECONDS = 300.0
GRACE_SECONDS = 50.0
TICK_SECONDS = 0.1
MOST_A_SECOND = 250.0


class Heartbeats:
    def __init__(
        self,
        api: ApiClient,
        clock: Clock,
        machines: Mapping[str, Machine],
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._api, self._clock, self._machines, self._seconds = api, clock, machines, seconds
        self._turns: deque[str] = deque()
        self._reported: dict[str, float] = {}
        """When each node's whole status was last written."""

    @property
    def grace_seconds(self) -> float:
        return max(GRACE_SECONDS, 3 * self._round_seconds() * max(self._clock.speed, 1.0))

    def _round_seconds(self) -> float:
        """Of real time, in which every node has its turn."""
        wanted = self._seconds / self._clock.speed if self._clock.speed > 0 else self._seconds
        return max(wanted, len(self._machines) / MOST_A_SECOND)

    async def run(self) -> None:
        credit = 0.0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            credit += len(self._machines) * TICK_SECONDS / self._round_seconds()
            due = []
            while credit >= 1:
                credit -= 1
                if (node := self._next()) is not None:
                    due.append(node)
            await asyncio.gather(*map(self._beat, due))

    def _next(self) -> NodeObject | None:
        """The node whose turn it is, if it lives."""
        if not self._turns:
            self._turns.extend(self._machines)
        machine = self._machines.get(self._turns.popleft()) if self._turns else None
        return machine.node if machine is not None and not machine.is_dead else None

    async def _beat(self, node: NodeObject) -> None:
        now = self._clock.now()
        try:
            await self._renew_lease(node, now)
            if now - self._reported.setdefault(node.name, now) >= STATUS_SECONDS:
                self._reported[node.name] = now
                path, status = f"/api/v1/nodes/{node.name}/status", heartbeat_of(node, now)
                await self._api.request(
                    "PATCH", path, status, content_type=STRATEGIC_MERGE_PATCH, accept=METADATA_ALONE
                )
        except NotFound:
            return  # deleted, which its own event says
        except ApiError as error:  # the next round makes up for it
            log.warn("No heartbeat", node=node.name, err=error.explanation)

    async def _renew_lease(self, node: NodeObject, now: float) -> None:
        try:
            patch, path = {"spec": renewal(now)}, f"{LEASES}/{node.name}"
            await self._api.request("PATCH", path, patch, content_type=MERGE_PATCH, accept=METADATA_ALONE)
        except NotFound:
            await self._api.request("POST", LEASES, lease_of(node, now), accept=METADATA_ALONE)
