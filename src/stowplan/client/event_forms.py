"""Events on the wire: of events.k8s.io/v1, and of v1 for API servers too old to have that."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

import msgspec


def micro_time(seconds: float) -> str:
    """A time as Kubernetes reads it where it wants microseconds: always six digits of them."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micros:06}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


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
    """An event and how often it happened; the API knows of `sent` times."""

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
        """Where it is kept: that of its object, if that has one."""
        return self.regarding.namespace or "default"


class EventForm(Protocol):
    def path(self, event: Event) -> str: ...
    def body(self, event: Event, controller: str, instance: str) -> Part: ...
    def patch(self, event: Event) -> Part:
        """What makes a known event one that happened so often."""


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
