"""Renders objects: JSON or YAML, whole, as tables or as metadata only, in the requested version."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import yaml

from stowplan.api.meta import Json
from stowplan.apiserver import tables
from stowplan.apiserver.failures import Failure
from stowplan.apiserver.options import Form
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.store import Record
from stowplan.apiserver.structural import prune
from stowplan.http11.messages import Headers, Response

WHOLE, TABLE, METADATA = "", "Table", "PartialObjectMetadata"
MAX_YAML = 1024 * 1024
"""Bytes of a response, as JSON; writing YAML takes a hundred times as long."""
_JSON_TYPES = ("*/*", "application/*", "application/json")


@lru_cache(256)
def form_of(accept: str, include: str = "", is_bare: bool = False) -> Form:
    """Return the first form in an Accept header that we support; raises a 406."""
    is_known = False
    for part in (accept or "*/*").split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        named = dict(each.split("=", 1) for each in parameters if "=" in each)
        is_yaml = media.lower() == "application/yaml"
        if media.lower() not in _JSON_TYPES and not is_yaml:
            continue
        is_known = True
        wanted = named.get("as", "")
        what = wanted.removesuffix("List")
        if named.get("stream", "watch") != "watch" or what not in (WHOLE, TABLE, METADATA):
            continue
        if what and (named.get("g") != "meta.k8s.io" or named.get("v") not in ("v1", "v1beta1")):
            continue
        version = f"meta.k8s.io/{named.get('v', 'v1')}"
        return Form(what, is_yaml, include or "Metadata", version, is_bare, wanted.endswith("List"))
    if is_known:
        raise not_acceptable(_MEDIA)
    message = (
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf, application/json;stream=watch, "
        "application/vnd.kubernetes.protobuf;stream=watch"
    )
    raise Failure(406, "NotAcceptable", message, details={})


_MEDIA = (
    "only the following media types are accepted: application/json, application/yaml, "
    "application/vnd.kubernetes.protobuf"
)


def not_acceptable(message: str) -> Failure:
    return Failure(406, "NotAcceptable", message)


def check_not_table(form: Form) -> None:
    """Raise a 406 about what no table can show."""
    if form.what == TABLE:
        raise not_acceptable(_MEDIA)


def _check_metadata(form: Form, resource: Resource, is_list: bool) -> None:
    """Metadata of one object and of a list have names of their own, and are not given for one another."""
    if form.what != METADATA or form.is_list is is_list:
        return
    package = "core" if resource.collection == "events" else resource.group.partition(".")[0] or "core"
    kind = f"{package}.{resource.kind}"
    kind = "unstructured.Unstructured" if resource.is_custom else kind
    if is_list:
        raise not_acceptable(
            f"you requested PartialObjectMetadata, but the requested object is a list (*{kind}List)"
        )
    raise not_acceptable(
        f"you requested PartialObjectMetadataList, but the requested object is not a list (*{kind})"
    )


def text_of(form: Form, resource: Resource, record: Record) -> bytes:
    """Encode an object in the version of the resource."""
    text = record.body if form.is_bare else record.full
    if text.startswith(resource.prefix) and record.version >= resource.since:
        return text
    return msgspec.json.encode(_to_served(resource, record, msgspec.json.decode(text)))


def render_object(
    form: Form, resource: Resource, record: Record, status: int = 200, headers: Headers = ()
) -> Response:
    _check_metadata(form, resource, is_list=False)
    return render(form, status, event_object(form, resource, record), headers)


def render_data(form: Form, status: int, data: Json) -> Response:
    """An object that is not stored, and that no table can show."""
    check_not_table(form)
    return render(form, status, msgspec.json.encode(_metadata_of(form, data) if form.what else data))


def event_object(form: Form, resource: Resource, record: Record, with_columns: bool = True) -> bytes:
    """Encode one object, for a response or an event."""
    if form.what == WHOLE:
        return text_of(form, resource, record)
    data = msgspec.json.decode(text_of(form, resource, record))
    if form.what == TABLE:
        return msgspec.json.encode(tables.table_of(resource, [data], form, data["metadata"], with_columns))
    return msgspec.json.encode(_metadata_of(form, data))


def render_list(form: Form, resource: Resource, records: list[Record], meta: Json) -> Response:
    """A list of objects."""
    _check_metadata(form, resource, is_list=True)
    if form.what == TABLE:
        rows = [msgspec.json.decode(text_of(form, resource, record)) for record in records]
        return render(form, 200, msgspec.json.encode(tables.table_of(resource, rows, form, meta)))
    if form.what == METADATA:
        texts = (text_of(form, resource, record) for record in records)
        items = [_metadata_of(form, msgspec.json.decode(text)) for text in texts]
        document = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": form.group_version,
            "metadata": meta,
            "items": items,
        }
        return render(form, 200, msgspec.json.encode(document))
    head = msgspec.json.encode(
        {"kind": resource.list_kind, "apiVersion": resource.group_version, "metadata": meta}
    )
    bodies = [text_of(form, resource, record) for record in records]
    if not resource.is_custom:  # items of built-in kinds do not repeat their kind
        skip = len(resource.prefix)
        bodies = [b"{" + text[skip:] for text in bodies]
    return render(form, 200, head[:-1] + b',"items":[' + b",".join(bodies) + b"]}")


def render(form: Form, status: int, body: bytes, headers: Headers = ()) -> Response:
    if form.yaml:
        if len(body) > MAX_YAML:
            said = f"406: Not Acceptable\n\nmore than {MAX_YAML} bytes are only written as JSON: use limit"
            raise Failure(406, "NotAcceptable", said, details={})
        text = yaml.dump(msgspec.json.decode(body), Dumper=yaml.CSafeDumper, sort_keys=True)
        return Response(status, text.encode(), "application/yaml", headers)
    return Response(status, body, headers=headers)


def _metadata_of(form: Form, data: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": form.group_version, "metadata": data["metadata"]}


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


def served(resource: Resource, record: Record) -> Json:
    """The object in the version of the resource; the caller may change it."""
    return _to_served(resource, record, record.data())


def _to_served(resource: Resource, record: Record, data: Json) -> Json:
    """Custom resources are pruned and get their defaults by the definition that is there now."""
    if resource.is_custom:
        stored = resource.stored_as or resource
        if record.version < stored.since or data["apiVersion"] != stored.group_version:
            data = to_storage(stored, data)
    return from_stored(resource, data)


def to_storage(resource: Resource, data: Json) -> Json:
    """Convert a custom resource to this version, in which it is stored; what both schemas have stays."""
    return {**resource.codec.normalize(data)[0], "apiVersion": resource.group_version}


AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
CONVERTED = ("events", AUTOSCALERS)
"""Collections whose objects look different in some of their versions."""
_PERCENTAGE, _CURRENT = "targetCPUUtilizationPercentage", "currentCPUUtilizationPercentage"


def _newer_autoscaler(data: Json) -> Json:
    """The parts of an autoscaler that version 2 has otherwise: version 1 knows the use of CPUs alone."""
    spec, status = dict(data.get("spec") or {}), dict(data.get("status") or {})
    if (share := spec.pop(_PERCENTAGE, None)) is not None:
        spec["metrics"] = [_cpu_metric("target", {"type": "Utilization", "averageUtilization": share})]
    if (share := status.pop(_CURRENT, None)) is not None:
        status["currentMetrics"] = [
            _cpu_metric("current", {"averageUtilization": share, "averageValue": "0"})
        ]
    return {name: part for name, part in (("spec", spec), ("status", status)) if name in data}


def _older_autoscaler(data: Json) -> Json:
    spec, status = dict(data.get("spec") or {}), dict(data.get("status") or {})
    for part, field, inner, name in (
        (spec, "metrics", "target", _PERCENTAGE),
        (status, "currentMetrics", "current", _CURRENT),
    ):
        for metric in part.pop(field, None) or ():
            resource = metric.get("resource") or {}
            share = (resource.get(inner) or {}).get("averageUtilization")
            if resource.get("name") == "cpu" and share is not None:
                part[name] = share
    spec.pop("behavior", None)
    status.pop("conditions", None)
    status.setdefault("currentReplicas", 0)
    return {name: part for name, part in (("spec", spec), ("status", status)) if name in data}


def _cpu_metric(field: str, value: Json) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", field: value}}


def to_stored(resource: Resource, data: Json) -> Json:
    """Convert an object to the version in which it is written; custom resources keep theirs until then."""
    if resource.name == "events.events.k8s.io":
        data = _rename_fields(_EVENT_FIELDS, data)
        data["apiVersion"] = STORED_EVENTS
    elif resource.collection == AUTOSCALERS and resource.version == "v1":
        data = {**data, "apiVersion": "autoscaling/v2", **_newer_autoscaler(data)}
    return data


def _rename_fields(names: dict[str, str], data: Json) -> Json:
    """The same fields by other names; every event passes here three times, so it is done without a loop."""
    return dict(zip(map(names.get, data, data), data.values(), strict=True))


def from_stored(resource: Resource, data: Json) -> Json:
    """Convert a stored object to the version of the resource."""
    if resource.stored_as is not None:
        data = prune(resource.schema, data, "", [])
    if resource.name == "events.events.k8s.io":
        data = _rename_fields(_BACK, data)
    elif resource.collection == AUTOSCALERS and resource.version == "v1":
        data = {**data, **_older_autoscaler(data)}
    data["apiVersion"] = resource.group_version
    return {"kind": data.pop("kind"), "apiVersion": data.pop("apiVersion"), **data}
