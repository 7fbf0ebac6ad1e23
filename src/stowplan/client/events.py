"""What happens to pods, as events.k8s.io/v1 events that `kubectl describe` shows.

`record` never waits and never fails: it queues, and `run` sends. The same event again does not become a
second one: the API hears of the second occurrence, the others are counted here and told from time to time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.api import STRATEGIC_MERGE_PATCH, ApiClient
from stowplan.client.errors import ApiError, Conflict, NotFound

NOTE_BYTES: Final = 1024
QUEUED: Final = 10_000
MOST_SERIES: Final = 50_000
ATTEMPTS: Final = 12
RETRY_SECONDS: Final = 10.0
FINISH_SECONDS: Final = 6 * 60.0
FINISHES_A_REFRESH: Final = 5
"""Series are refreshed every 30 minutes: at every fifth look for finished ones."""

_SENDERS = 64  # as many as bindings can be under way: with fewer, events fall behind and are lost
_LONGEST_NAME = 253
_LONGEST_INSTANCE = 128
_SCHEDULED = "Scheduled"


def truncated(note: str) -> str:
    """The text as an event can hold it: of more than 1024 bytes the first 1020, at most, and ` ...`."""
    if len(note) <= NOTE_BYTES // 4:
        return note  # no character takes more than four bytes
    data = note.encode(errors="replace")
    if len(data) <= NOTE_BYTES:
        return note
    return data[: NOTE_BYTES - 4].decode(errors="ignore") + " ..."


def micro_time(seconds: float) -> str:
    """A time as Kubernetes reads it where it wants microseconds: always six digits of them."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micros:06}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def event_name(name: str, seconds: float) -> str:
    """`<name>.<hex nanoseconds>`, or something random where that is too long for a name."""
    found = f"{name}.{int(seconds * 1e9):x}"
    return found if len(found) <= _LONGEST_NAME else str(uuid.uuid4())


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pass


class _Metadata(_Part, frozen=True):
    name: str
    namespace: str


class _Regarding(_Part, frozen=True):
    namespace: str
    name: str
    uid: str
    resource_version: str
    kind: str = "Pod"
    api_version: str = "v1"


class _Series(_Part, frozen=True):
    count: int
    last_observed_time: str


class _SeriesPatch(_Part, frozen=True):
    series: _Series


class _Body(_Part, frozen=True):
    metadata: _Metadata
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: _Regarding
    note: str
    type: str
    series: _Series | msgspec.UnsetType = msgspec.UNSET
    kind: str = "Event"
    api_version: str = "events.k8s.io/v1"


class _Event(msgspec.Struct, gc=False, eq=False):
    """An event and how often it happened; the API knows of `sent` times."""

    regarding: _Regarding
    type: str
    reason: str
    action: str
    note: str
    name: str
    first: float
    last: float
    count: int = 1
    sent: int = 0
    is_queued: bool = False

    @property
    def path(self) -> str:
        return f"/apis/events.k8s.io/v1/namespaces/{self.regarding.namespace}/events"

    @property
    def series(self) -> _Series:
        return _Series(self.count, micro_time(self.last))


_Key = tuple[str, str, str, str, str, str]


class EventRecorder:
    """Events of one profile: `controller` is its scheduler name, `instance` says which process it is."""

    def __init__(self, api: ApiClient, controller: str, instance: str, now: Callable[[], float]) -> None:
        self._api, self._controller, self._now = api, controller, now
        self._instance = instance[:_LONGEST_INSTANCE]
        self._series: OrderedDict[_Key, _Event] = OrderedDict()
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(QUEUED)
        self.dropped = 0
        """Events lost because the queue was full."""

    def record(self, pod: Pod, kind: str, reason: str, action: str, note: str) -> None:
        """Say of `pod` what happened; `kind` is Normal or Warning."""
        now, note = self._now(), truncated(note)
        if reason == _SCHEDULED:  # happens to a pod once: there is no series to look for
            self._enqueue(_event_of(pod, kind, reason, action, note, now))
            return
        # The note counts: another reason for the same failure is news, not a repetition.
        key = (pod.uid, pod.resource_version, kind, reason, action, note)
        event = self._series.get(key)
        if event is None:
            event = _event_of(pod, kind, reason, action, note, now)
            if len(self._series) >= MOST_SERIES:
                self._series.popitem(last=False)
            self._series[key] = event
        else:
            event.count += 1
            event.last = now
        if event.sent < 2 and not event.is_queued:
            self._enqueue(event)

    async def run(self) -> None:
        """Send what is recorded, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_SENDERS):
                group.create_task(self._send_queued())
            group.create_task(self._tell_counts())

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was recorded is sent; False if that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._queue.join()
        except TimeoutError:
            return False
        return True

    def _enqueue(self, event: _Event) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1
        else:
            event.is_queued = True

    async def _send_queued(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._send(event)
            finally:
                event.is_queued = False
                self._queue.task_done()

    async def _tell_counts(self) -> None:
        """Tell the API of what was only counted: of finished series at once, of all now and then."""
        rounds = 0
        while True:
            await asyncio.sleep(FINISH_SECONDS)
            rounds += 1
            finished_before = self._now() - FINISH_SECONDS
            for key, event in list(self._series.items()):
                is_finished = event.last < finished_before
                if is_finished:
                    self._series.pop(key, None)
                if event.sent and (is_finished or rounds % FINISHES_A_REFRESH == 0):
                    await self._send(event)

    async def _send(self, event: _Event) -> None:
        """Tell the API what it does not know of the event. An event that cannot be told is given up."""
        try:
            if not event.sent:
                await self._create(event)
            if event.sent != event.count:  # it happened again, perhaps while the first was under way
                await self._patch(event)
        except ApiError as error:
            log.error("Event given up", error.explanation, pod=event.regarding, reason=event.reason)
        except Exception as error:  # whatever is wrong with one event, the others are sent
            log.error("Event not sent", error, pod=event.regarding, reason=event.reason)

    async def _create(self, event: _Event) -> None:
        count = event.count
        body = _Body(
            metadata=_Metadata(event.name, event.regarding.namespace),
            event_time=micro_time(event.first),
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=event.action,
            reason=event.reason,
            regarding=event.regarding,
            note=event.note,
            type=event.type,
            series=event.series if count > 1 else msgspec.UNSET,
        )
        with suppress(Conflict):  # of an attempt that seemed to fail and had come through
            await self._request("POST", event.path, body)
        event.sent = count

    async def _patch(self, event: _Event) -> None:
        count = event.count
        try:
            await self._request("PATCH", f"{event.path}/{event.name}", _SeriesPatch(event.series))
        except NotFound:
            await self._create(event)  # deleted, or older than the API server keeps events
        else:
            event.sent = count

    async def _request(self, method: str, path: str, body: _Body | _SeriesPatch) -> None:
        """Send it, again and again while the server cannot be reached or has no time for it."""
        content_type = STRATEGIC_MERGE_PATCH if method == "PATCH" else "application/json"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._api.request(method, path, body, content_type=content_type)
                return
            except ApiError as error:
                if attempt == ATTEMPTS or not error.may_pass:
                    raise
                await asyncio.sleep(error.retry_after or RETRY_SECONDS)


def _event_of(pod: Pod, kind: str, reason: str, action: str, note: str, now: float) -> _Event:
    regarding = _Regarding(pod.namespace, pod.name, pod.uid, pod.resource_version)
    return _Event(regarding, kind, reason, action, note, event_name(pod.name, now), now, now)
