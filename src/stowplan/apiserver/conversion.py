"""Between the versions that an object is served in and the one that it is kept in."""

from __future__ import annotations

from typing import Any

from stowplan.apiserver.resources import Resource

Json = dict[str, Any]

STORED_EVENTS = "v1"
_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
_BACK = {stored: served for served, stored in _EVENT_FIELDS.items()}


def to_stored(resource: Resource, data: Json) -> Json:
    """An object as it came, as it is kept."""
    if resource.name == "events.events.k8s.io":
        data = {_EVENT_FIELDS.get(field, field): value for field, value in data.items()}
        data["apiVersion"] = STORED_EVENTS
    return data


def from_stored(resource: Resource, data: Json) -> Json:
    """An object as it is kept, in the version that the resource is."""
    if resource.name == "events.events.k8s.io":
        data = {_BACK.get(field, field): value for field, value in data.items()}
    data["apiVersion"] = resource.group_version
    return {"kind": data.pop("kind"), "apiVersion": data.pop("apiVersion"), **data}
