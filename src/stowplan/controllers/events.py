"""Events of controllers and kubelets, as `kubectl describe` shows them: in the core API, with counts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from stowplan import log
from stowplan.api.meta import Json
from stowplan.client.api import MERGE_PATCH, METADATA_ALONE, ApiClient
from stowplan.client.errors import ApiError, NotFound
from stowplan.client.events import event_name, truncate
from stowplan.controllers.clock import Clock, wire_time

MAX_QUEUED = 1000
MAX_SERIES = 5000
BURST, PER_SECOND = 500.0, 50.0
"""All writers together; what exceeds it is dropped, as kubelets do under load."""
SENDERS = 4


class _Event(msgspec.Struct, eq=False):
    name: str
    body: Json
    count: int = 1
    sent: int = 0
    is_queued: bool = False


class Events:
    """`record` never waits and never fails; `run` sends until it is cancelled."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._series: OrderedDict[tuple[str, ...], _Event] = OrderedDict()
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(MAX_QUEUED)
        self._loop = asyncio.get_running_loop()
        self._tokens, self._filled_at = BURST, self._loop.time()

    def record(
        self, component: str, regarding: Json, kind: str, reason: str, message: str, host: str = ""
    ) -> None:
        """`regarding` is a reference to the object; `kind` is Normal or Warning."""
        message, now = truncate(message), self._clock.now()
        key = (component, regarding.get("uid", ""), regarding.get("fieldPath", ""), kind, reason, message)
        event = self._series.get(key)
        if event is None:
            if not self._has_budget():
                return
            namespace = regarding.get("namespace") or "default"
            name, at = event_name(regarding["name"], now), wire_time(now)
            body = {
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": regarding,
                "reason": reason,
                "message": message,
                "type": kind,
                "source": {"component": component, **({"host": host} if host else {})},
                "reportingComponent": component,
                "reportingInstance": host,
                "firstTimestamp": at,
                "lastTimestamp": at,
            }
            event = self._series[key] = _Event(name, body)
            if len(self._series) > MAX_SERIES:
                self._series.popitem(last=False)
        else:
            event.count += 1
            event.body["lastTimestamp"] = wire_time(now)
        if not event.is_queued and not self._queue.full():
            event.is_queued = True
            self._queue.put_nowait(event)

    def _has_budget(self) -> bool:
        now = self._loop.time()
        self._tokens = min(self._tokens + (now - self._filled_at) * PER_SECOND, BURST)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(self._send_all())

    async def _send_all(self) -> None:
        while True:
            event = await self._queue.get()
            event.is_queued = False
            try:
                await self._send(event)
            except ApiError as error:  # such as a namespace that is being deleted
                log.log(4, "Event dropped", name=event.name, err=error.message)

    async def _send(self, event: _Event) -> None:
        count, path = event.count, f"/api/v1/namespaces/{event.body['metadata']['namespace']}/events"
        if event.sent:
            change = {"count": count, "lastTimestamp": event.body["lastTimestamp"]}
            try:
                target = f"{path}/{event.name}"
                await self._api.request(
                    "PATCH", target, change, content_type=MERGE_PATCH, accept=METADATA_ALONE
                )
                event.sent = count
                return
            except NotFound:
                pass  # deleted meanwhile
        body = {"apiVersion": "v1", "kind": "Event", **event.body, "count": count}
        await self._api.request("POST", path, body, accept=METADATA_ALONE)
        event.sent = count
