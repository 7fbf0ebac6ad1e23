"""What happens to pods and other objects, as events that `kubectl describe` shows.

`record` never waits and never fails: it queues, and `run` sends. The same event again does not become a
second one: the second occurrence is sent to the API, the others are counted here and sent from time to time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from stowplan import log
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.api.protobuf import encode_message, encode_object
from stowplan.client.api import JSON, STRATEGIC_MERGE_PATCH, ApiClient, resource_of
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound

NOTE_BYTES: Final = 1024
QUEUED: Final = 10_000
MAX_SERIES: Final = 50_000
ATTEMPTS: Final = 12
RETRY_SECONDS: Final = 10.0
MAX_FORBIDDEN: Final = 5
FORBIDDEN_SECONDS: Final = 1.0
"""An API server that has just started rejects everybody until it has read its roles, for some seconds."""
COLLECT_SECONDS: Final = 0.05
"""After an event that a pod was scheduled, those of others are collected for so long: sent together, they
take less CPU time."""
FINISH_SECONDS: Final = 6 * 60.0
FINISHES_A_REFRESH: Final = 5
"""Series are refreshed every 30 minutes: at every fifth look for finished ones."""

_SENDERS = 64  # as many as requests can be under way: with fewer, events fall behind and are lost
_LONGEST_NAME = 253
_LONGEST_INSTANCE = 128
_SCHEDULED = "Scheduled"


def truncate(text: str, limit: int = NOTE_BYTES) -> str:
    """Shorten a text to so many bytes, with ` ...` at its end, without cutting a character in half."""
    if len(text) <= limit // 4 and text.isascii():
        return text  # no character takes more than four bytes
    data = text.encode(errors="replace")  # half of a surrogate pair is no text that can be sent
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 4].decode(errors="ignore") + " ..."


def event_name(name: str, seconds: float) -> str:
    """`<name>.<hex nanoseconds>`, or something random where that is too long for a name."""
    found = f"{name}.{int(seconds * 1e9):x}"
    return found if len(found) <= _LONGEST_NAME else str(uuid.uuid4())


_Key = tuple[str, str, str, str, str, str]


class EventRecorder:
    """Records events of one profile: `controller` is its scheduler name, `instance` names the process."""

    def __init__(self, api: ApiClient, controller: str, instance: str, now: Callable[[], float]) -> None:
        self._api, self._controller, self._now = api, controller, now
        self._instance = instance[:_LONGEST_INSTANCE]
        self._form: EventForm = NEW_FORM  # until a server says that it is too old for it
        self._series: OrderedDict[_Key, Event] = OrderedDict()
        self._collected: list[Event] = []
        self._is_collecting = asyncio.Event()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.dropped = 0
        """Events lost because the queue was full."""

    def record(self, item: Pod | Object | Regarding, kind: str, reason: str, action: str, note: str) -> None:
        """Record an event of a pod or any other object; `kind` is Normal or Warning."""
        now, note = self._now(), truncate(note)
        if reason == _SCHEDULED:  # happens to a pod once: there is no series to look for
            self._collect(_event_of(_regarding(item), kind, reason, action, note, now))
            return
        # The note counts: another reason for the same failure is news, not a repetition.
        regarding = _regarding(item)
        key = (regarding.uid, regarding.resource_version, kind, reason, action, note)
        event = self._series.get(key)
        if event is None:
            event = _event_of(regarding, kind, reason, action, note, now)
            if len(self._series) >= MAX_SERIES:
                self._series.popitem(last=False)
            self._series[key] = event
        else:
            event.count += 1
            event.last = now
        if event.sent < 2 and not event.is_queued:
            self._enqueue(event)

    async def run(self) -> None:
        """Send what is recorded, until cancelled."""
        async with CoreTasks() as tasks:
            tasks.start("collecting events", self._hand_over_collected())
            for _ in range(_SENDERS):
                tasks.start("sending events", self._send_queued())
            tasks.start("counts of events", self._tell_counts())

    async def drain(self, timeout: float) -> bool:
        """Wait until all that was recorded is sent; False if that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._hand_over()
                    await self._queue.join()
                    if not self._collected:
                        break
        except TimeoutError:
            return False
        return True

    def _enqueue(self, event: Event) -> None:
        if self._has_room():
            self._queue.put_nowait(event)
            event.is_queued = True

    def _collect(self, event: Event) -> None:
        if self._has_room():
            self._collected.append(event)
            self._is_collecting.set()

    def _has_room(self) -> bool:
        has_room = len(self._collected) + self._queue.qsize() < QUEUED
        self.dropped += not has_room
        return has_room

    async def _hand_over_collected(self) -> None:
        while True:
            await self._is_collecting.wait()
            self._hand_over()
            await asyncio.sleep(COLLECT_SECONDS)

    def _hand_over(self) -> None:
        """Let the senders have what was collected."""
        for event in self._collected:
            self._queue.put_nowait(event)
        self._collected.clear()
        self._is_collecting.clear()

    async def _send_queued(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._send(event)
            finally:
                event.is_queued = False
                self._queue.task_done()

    async def _tell_counts(self) -> None:
        """Send the counts of repeated events: of finished series at once, of the others now and then."""
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

    async def _send(self, event: Event) -> None:
        """Create or update the event on the API server; drop it if that fails."""
        try:
            if not event.sent:
                await self._create(event)
            if event.sent != event.count:  # it happened again, perhaps while the first was under way
                await self._patch(event)
        except ApiError as error:
            log.error("Event dropped", error.explanation, pod=event.regarding, reason=event.reason)
        except Exception as error:  # whatever is wrong with one event, the others are sent
            log.error("Event not sent", error, pod=event.regarding, reason=event.reason)

    async def _create(self, event: Event) -> None:
        count, form = event.count, self._form
        try:
            await self._request("POST", form.path(event), form.body(event, self._controller, self._instance))
        except Conflict:
            pass  # of an attempt that seemed to fail and had come through
        except NotFound as error:
            if error.reason or form is CORE_FORM:
                raise  # it is the namespace that is not there
            self._form = CORE_FORM
            await self._create(event)
            return
        event.sent = count

    async def _patch(self, event: Event) -> None:
        count = event.count
        try:
            await self._request("PATCH", f"{self._form.path(event)}/{event.name}", self._form.patch(event))
        except NotFound:
            await self._create(event)  # deleted, or older than the API server keeps events
        else:
            event.sent = count

    async def _request(self, method: str, path: str, body: Part) -> None:
        """Send a request, and retry while the server cannot be reached or is not ready."""
        content_type = STRATEGIC_MERGE_PATCH if method == "PATCH" else JSON
        forbidden = 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._api.request(method, path, body, content_type=content_type)
                return
            except ApiError as error:
                is_forbidden = isinstance(error, Forbidden)
                forbidden += is_forbidden
                may_pass = forbidden < MAX_FORBIDDEN if is_forbidden else error.may_pass
                if attempt == ATTEMPTS or not may_pass:
                    raise
                await asyncio.sleep(FORBIDDEN_SECONDS if is_forbidden else error.retry_after or RETRY_SECONDS)


def _regarding(item: Pod | Object | Regarding) -> Regarding:
    if isinstance(item, Regarding):
        return item
    if isinstance(item, Pod):
        return Regarding(item.namespace, item.name, item.uid, item.resource_version)
    meta, where = item.metadata, resource_of(item)
    return Regarding(
        meta.namespace, meta.name, meta.uid, meta.resource_version, where.kind, where.api_version
    )


def _event_of(regarding: Regarding, kind: str, reason: str, action: str, note: str, now: float) -> Event:
    return Event(regarding, kind, reason, action, note, event_name(regarding.name, now), now, now)


def micro_time(seconds: float) -> str:
    """Format a time as Kubernetes' MicroTime, which always has six decimal places."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micros:06}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _time_message(text: str) -> bytes:
    """A time that `micro_time` has formatted."""
    return _whole_seconds(text[:19]) + encode_message((2, int(text[20:26]) * 1000))


@lru_cache(maxsize=16)
def _whole_seconds(text: str) -> bytes:
    return encode_message((1, int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())))


@lru_cache(maxsize=64)
def _alike(controller: str, instance: str, action: str, reason: str, kind: str) -> bytes:
    """The fields that events of a kind have in common."""
    return encode_message((4, controller), (5, instance), (6, action), (7, reason), (11, kind))


class Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pass


class Regarding(Part, frozen=True):
    """The object that an event is about."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    kind: str = "Pod"
    api_version: str = "v1"


class Event(msgspec.Struct, gc=False, eq=False):
    """An event and how often it happened; the API server knows of `sent` times."""

    regarding: Regarding
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
    def namespace(self) -> str:
        """The namespace of the event: that of its object, if it has one."""
        return self.regarding.namespace or "default"


class EventForm(Protocol):
    def path(self, event: Event) -> str: ...
    def body(self, event: Event, controller: str, instance: str) -> Part: ...
    def patch(self, event: Event) -> Part:
        """The patch that sets how often a known event has happened."""


class _Metadata(Part, frozen=True):
    name: str
    namespace: str


class _Series(Part, frozen=True):
    count: int
    last_observed_time: str


class _SeriesPatch(Part, frozen=True):
    series: _Series


class _NewBody(Part, frozen=True):
    metadata: _Metadata
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: Regarding
    note: str
    type: str
    series: _Series | msgspec.UnsetType = msgspec.UNSET
    kind: str = "Event"
    api_version: str = "events.k8s.io/v1"

    def as_protobuf(self) -> bytes:
        of = self.regarding
        object_reference = encode_message(
            (1, of.kind),
            (2, of.namespace),
            (3, of.name),
            (4, of.uid),
            (5, of.api_version),
            (6, of.resource_version),
        )
        message = encode_message(
            (1, encode_message((1, self.metadata.name), (3, self.metadata.namespace))),
            (2, _time_message(self.event_time)),
            (8, object_reference),
            (10, self.note),
        )
        message += _alike(
            self.reporting_controller, self.reporting_instance, self.action, self.reason, self.type
        )
        if isinstance(self.series, _Series):
            last = _time_message(self.series.last_observed_time)
            message += encode_message((3, encode_message((1, self.series.count), (2, last))))
        return encode_object(self.api_version, self.kind, message)


class _NewForm:
    def path(self, event: Event) -> str:
        return f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"

    def body(self, event: Event, controller: str, instance: str) -> Part:
        return _NewBody(
            metadata=_Metadata(event.name, event.namespace),
            event_time=micro_time(event.first),
            reporting_controller=controller,
            reporting_instance=instance,
            action=event.action,
            reason=event.reason,
            regarding=event.regarding,
            note=event.note,
            type=event.type,
            series=_series(event) if event.count > 1 else msgspec.UNSET,
        )

    def patch(self, event: Event) -> Part:
        return _SeriesPatch(_series(event))


def _series(event: Event) -> _Series:
    return _Series(event.count, micro_time(event.last))


class _Source(Part, frozen=True):
    component: str


class _Count(Part, frozen=True):
    count: int
    last_timestamp: str


class _CoreBody(Part, frozen=True):
    metadata: _Metadata
    involved_object: Regarding
    reason: str
    message: str
    type: str
    source: _Source
    count: int
    first_timestamp: str
    last_timestamp: str
    kind: str = "Event"
    api_version: str = "v1"


class _CoreForm:
    def path(self, event: Event) -> str:
        return f"/api/v1/namespaces/{event.namespace}/events"

    def body(self, event: Event, controller: str, instance: str) -> Part:
        return _CoreBody(
            metadata=_Metadata(event.name, event.namespace),
            involved_object=event.regarding,
            reason=event.reason,
            message=event.note,
            type=event.type,
            source=_Source(controller),
            count=event.count,
            first_timestamp=f"{_second(int(event.first))}Z",
            last_timestamp=f"{_second(int(event.last))}Z",
        )

    def patch(self, event: Event) -> Part:
        return _Count(event.count, f"{_second(int(event.last))}Z")


NEW_FORM, CORE_FORM = _NewForm(), _CoreForm()
