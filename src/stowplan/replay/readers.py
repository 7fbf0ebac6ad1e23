"""Readers for other trace formats: CSV files by a mapping, folders of manifests, audit logs, SimKube.

Each makes a `Trace` of what it finds. What it cannot read is an InputError with file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stowplan.api.defaults import default_storage_class, with_defaults, with_namespace
from stowplan.api.kinds import describe, object_of
from stowplan.api.manifests import SUFFIXES, WORKLOADS, objects_in
from stowplan.api.meta import Json, parse_time
from stowplan.api.storage import StorageClass
from stowplan.api.workloads import PriorityClass
from stowplan.config.duration import Duration
from stowplan.errors import InputError, StowplanError
from stowplan.replay.trace import Event, Trace, event_of, read_own

ARRIVAL, RUN = "stowplan.dev/arrival", "stowplan.dev/run-time"
"""Annotations of manifests: when an object is created, and how long a pod runs, as `90s` or `1h30m`."""
SIMKUBE_VERSION = 2
MAX_COPIES = 100_000
"""Pods that a row or an owner may stand for: one number must not fill the memory."""
_COLUMN = re.compile(r"\{([^{}]*)\}")


def read_trace(path: Path, mapping: Path | None = None) -> Trace:
    """Read a trace of any kind that is known by its name: see docs/traces.md."""
    if mapping is not None:
        return read_csv(path, mapping)
    if not path.exists():
        raise InputError("does not exist", where=str(path))
    name = path.name.removesuffix(".gz")
    if path.is_dir():
        names = {each.suffix for each in path.iterdir()}
        if names & {".parquet", ".jsonl"}:
            return read_own(path)
        if names & set(SUFFIXES):
            return read_manifests(path)
        raise InputError("contains neither *.parquet or *.jsonl files nor manifests", where=str(path))
    if name.endswith(".sktrace"):
        return read_simkube(path)
    if name.endswith(".log"):
        return read_audit_log(path)
    if name.endswith(SUFFIXES):
        return read_manifests(path)
    if name.endswith((".parquet", ".jsonl")):
        return read_own(path)
    if name.endswith(".csv"):
        raise InputError("a CSV file needs --mapping, which says what its columns are", where=str(path))
    known = ".parquet, .jsonl, .sktrace, .log (audit log), .csv (with --mapping), .yaml or .json"
    raise InputError(f"unknown file type; expected a name that ends in {known}", where=str(path))


# CSV


class Table(msgspec.Struct, forbid_unknown_fields=True):
    """How the rows of a CSV file become objects: texts with `{column}` in the place of values.

    A column that a file need not have is written `{column?}`. Times may be the name of a column alone.
    """

    object: Json
    """A manifest. A field whose text is empty for a row is left out of that row's object."""
    file: str = ""
    """The file, relative to the trace; of `pods`, the trace itself."""
    arrival: str = ""
    """When the object is created, in seconds; by default the time of the first row, or 0."""
    start: str = ""
    """When the pod was bound, in seconds."""
    end: str = ""
    """When the pod ended, in seconds: it ran from `start`, or from `arrival`, to then."""
    run: str = ""
    """How long the pod ran, in seconds, instead of `end`."""
    node: str = ""
    """The node that the pod was bound to."""
    count: str = ""
    """How many equal objects a row stands for, each with `-0`, `-1` and so on after its name."""


class CsvMapping(msgspec.Struct, forbid_unknown_fields=True):
    pods: Table
    nodes: Table | None = None
    others: list[Table] = []


def read_csv(path: Path, mapping: Path) -> Trace:
    """Read a CSV file of pods, and those that the mapping names."""
    found = read_mapping(mapping)
    events = list(_rows_of(path, found.pods, "Pod"))
    start = min((event.time for event in events), default=0.0)
    for table, kind in ((found.nodes, "Node"), *((each, "") for each in found.others)):
        if table is not None:
            if not table.file:
                raise InputError("is required", where=str(mapping), what=kind or "others", field="file")
            before = start if not table.arrival else None
            events += _rows_of(path.parent / table.file, table, kind, before)
    events.sort(key=lambda event: (event.time, event.kind == "Pod"))
    return Trace(events, str(path))


def read_mapping(file: Path) -> CsvMapping:
    try:
        return msgspec.convert(yaml.safe_load(file.read_bytes()), CsvMapping)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InputError(f"is not a mapping: {' '.join(str(error).split())}", where=str(file)) from None


def _rows_of(file: Path, table: Table, kind: str, arrival: float | None = None) -> Iterator[Event]:
    template = {"apiVersion": "v1", **({"kind": kind} if kind else {}), **table.object}
    fill, checked = _filler_of(template), set[bytes]()
    for number, row in _csv_rows(file):
        place = f"line {number}"

        def seconds(text: str, field: str, row: Mapping[str, str] = row, place: str = place) -> float | None:
            if not text or not (value := _fill(text, row, str(file), place)):
                return None
            try:
                return float(value)
            except ValueError:
                raise InputError(
                    f"{value!r} is not a number of seconds", where=str(file), what=place, field=field
                ) from None

        at = arrival if arrival is not None else seconds(table.arrival, "arrival")
        data = template if fill is None else fill(row, str(file), place)
        count = int(seconds(table.count, "count") or 1) if table.count else 1
        if count > MAX_COPIES:
            text = f"{count:,} is more than {MAX_COPIES:,}"
            raise InputError(text, where=str(file), what=place, field="count")
        for index in range(count):
            own = data if not table.count else _number_name(data, index)
            node = _fill(table.node, row, str(file), place) if table.node else ""
            yield from _row_events(own, table, at or 0.0, seconds, node, str(file), place, checked)


def _row_events(
    data: Json,
    table: Table,
    at: float,
    seconds: Any,
    node: str,
    where: str,
    place: str,
    checked: set[bytes],
) -> Iterator[Event]:
    start, end, run = (seconds(getattr(table, name), name) for name in ("start", "end", "run"))
    if run is None and end is not None:
        run = end - (at if start is None else start)
    what = f"{place}: {describe(data)}"
    if run is not None and run < 0:
        raise InputError(
            f"the pod ends {-run:g} seconds before it starts", where=where, what=what, field="end"
        )
    if start is not None and start < at:
        raise InputError("the pod starts before it arrives", where=where, what=what, field="start")
    data = _complete(data, {}, None, where, place, checked)
    yield event_of(at, "add", data, run_seconds=run)
    if node:
        yield event_of(at if start is None else start, "bind", data, node=node, by="recorded")


def _csv_rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.reader(stream)
            names = next(reader, None)
            if not names:
                raise InputError("is empty; expected a line with the names of the columns", where=str(file))
            for values in reader:
                if values and len(values) != len(names):
                    text = f"has {len(values)} values for {len(names)} columns; the file may be cut off here"
                    raise InputError(text, where=str(file), what=f"line {reader.line_num}")
                if values:
                    yield reader.line_num, dict(zip(names, values, strict=True))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"is not CSV: {error}", where=str(file)) from None


def _fill(text: str, row: Mapping[str, str], where: str, place: str) -> str:
    """The text with the row's values; empty if one of them is."""
    if "{" not in text:
        return row.get(text, text)
    values = {}
    for name in _columns_in(text):
        column = name.removesuffix("?")
        if column not in row and column == name:
            raise InputError(
                f"there is no column {name!r}; there is {', '.join(row)}", where=where, what=place
            )
        values[name] = row.get(column, "")
    if not all(values.values()):
        return ""
    for name, value in values.items():
        if len(name) + 2 == len(text):
            return value
    return _COLUMN.sub(lambda match: values[match.group(1)], text)


@lru_cache(maxsize=1000)
def _columns_in(text: str) -> tuple[str, ...]:
    return tuple(_COLUMN.findall(text))


Filler = Callable[[Mapping[str, str], str, str], Any]
"""Fills in a part of a template with the values of a row; the texts say where that is, for errors."""


def _filler_of(template: object) -> Filler | None:
    """None for a part without columns, which is the same for all rows."""
    if isinstance(template, str):
        return partial(_fill, template) if "{" in template else None
    if not isinstance(template, (dict, list)):
        return None
    names = list(template) if isinstance(template, dict) else range(len(template))
    parts = [(name, template[name], _filler_of(template[name])) for name in names]

    def fill(row: Mapping[str, str], where: str, place: str) -> object:
        filled = [
            (name, plain if filler is None else filler(row, where, place)) for name, plain, filler in parts
        ]
        kept = [(name, each) for name, each in filled if each or not isinstance(each, (str, dict, list))]
        return dict(kept) if isinstance(template, dict) else [each for _, each in kept]

    has_columns = any(filler is not None for _, _, filler in parts)
    return fill if has_columns or not _is_full(template) else None


def _is_full(value: object) -> bool:
    """Whether no part of it is empty, which would be left out."""
    if isinstance(value, (dict, list)):
        return bool(value) and all(map(_is_full, value.values() if isinstance(value, dict) else value))
    return bool(value != "")


def _number_name(data: Json, index: int) -> Json:
    return data | {"metadata": data["metadata"] | {"name": f"{data['metadata']['name']}-{index}"}}


def _complete(
    data: Json,
    classes: Mapping[str, PriorityClass],
    storage_class: str | None,
    where: str,
    place: str,
    checked: set[bytes] | None = None,
) -> Json:
    """The object with the defaults that an API server fills in, checked; of those in `checked`, only the
    first."""
    try:
        data = dict(with_defaults(with_namespace(data, "default"), classes, storage_class))
        content = b"" if checked is None else msgspec.json.encode((data.get("spec"), data.get("status")))
        if checked is None or content not in checked:
            object_of(data)
            if checked is not None:
                checked.add(content)
        return data
    except StowplanError as error:
        text = error.message if isinstance(error, InputError) else str(error)
        field = error.field if isinstance(error, InputError) else ""
        raise InputError(text, where=where, what=f"{place}: {describe(data)}", field=field) from None


# Manifests


def read_manifests(path: Path) -> Trace:
    """Read objects with their arrival and run time in annotations; without one, they are there at the
    start."""
    faults: list[InputError] = []
    found = objects_in([str(path)], io.BytesIO(), faults)
    if faults:
        raise faults[0]
    ignored: Counter[str] = Counter()
    classes: dict[str, PriorityClass] = {}
    storage: list[StorageClass] = []
    for each in found:
        if isinstance(each.data, dict) and each.data.get("kind") in ("PriorityClass", "StorageClass"):
            item = object_of(each.data)
            if isinstance(item, PriorityClass):
                classes[item.name] = item
            elif isinstance(item, StorageClass):
                storage.append(item)
    events: list[Event] = []
    for each in found:
        data = each.data
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise InputError("is not a Kubernetes object", where=each.file, what=each.place)
        if data["kind"] in WORKLOADS and data["kind"] not in (
            "ReplicaSet",
            "StatefulSet",
            "ReplicationController",
        ):
            ignored[data["kind"]] += 1
            continue
        annotations = (data.get("metadata") or {}).get("annotations") or {}
        at = _annotation_seconds(annotations, ARRIVAL, each.file, describe(data)) or 0.0
        run = _annotation_seconds(annotations, RUN, each.file, describe(data))
        data = _complete(data, classes, default_storage_class(storage), each.file, each.place)
        events.append(event_of(at, "add", data, run_seconds=run))
    events.sort(key=lambda event: (event.time, event.kind == "Pod"))
    return Trace(events, str(path), ignored=ignored)


def _annotation_seconds(annotations: Mapping[str, Any], key: str, where: str, what: str) -> float | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return float(text) if re.fullmatch(r"[0-9.]+", str(text)) else Duration.parse(str(text))
    except (ValueError, StowplanError):
        message = f"{text!r} is not a duration; expected one like 90s or 1h30m"
        raise InputError(message, where=where, what=what, field=f"metadata.annotations[{key}]") from None


# Kubernetes audit logs


class _Reference(msgspec.Struct, rename="camel"):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    api_group: str = msgspec.field(default="", name="apiGroup")


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class _AuditEvent(msgspec.Struct, rename="camel"):
    stage: str = ""
    verb: str = ""
    user: _User = _User()
    object_ref: _Reference = msgspec.field(default_factory=_Reference)
    response_status: _Status = _Status()
    request_object: Any = None
    response_object: Any = None
    request_received_timestamp: str = ""
    stage_timestamp: str = ""


_KIND_OF = {"pods": "Pod", "nodes": "Node"}


def read_audit_log(path: Path) -> Trace:
    """Read creations, changes, bindings and deletions of pods and nodes from an audit log (JSON lines).

    Objects are in the log only at the levels Request and RequestResponse; what is logged with less is left
    out."""
    decoder = msgspec.json.Decoder(_AuditEvent)
    trace = Trace([], str(path))
    known: dict[tuple[str, str], str] = {}
    for number, line in _lines(path):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            text = f"is not an audit event: {error}"
            trace.faults.append(InputError(text, where=str(path), what=place))
            break
        reference = entry.object_ref
        is_done = entry.stage == "ResponseComplete" and entry.response_status.code < 300
        if not is_done or reference.resource not in _KIND_OF or reference.api_group:
            continue
        try:
            trace.events += _events_of_entry(entry, known, trace.ignored)
        except InputError as error:
            trace.faults.append(InputError(error.message, where=str(path), what=place, field=error.field))
            break
    trace.events.sort(key=attrgetter("time"))
    return trace


def _events_of_entry(
    entry: _AuditEvent, known: dict[tuple[str, str], str], ignored: Counter[str]
) -> Iterator[Event]:
    reference, kind = entry.object_ref, _KIND_OF[entry.object_ref.resource]
    time = parse_time(entry.stage_timestamp or entry.request_received_timestamp)
    data = entry.response_object if _is_of(entry.response_object, kind) else None
    if data is None and entry.verb == "create" and _is_of(entry.request_object, kind):
        data = entry.request_object
    if data is not None:
        data = {"apiVersion": "v1", "kind": kind, **data}
    meta = (data or {}).get("metadata") or {}
    name = reference.name or meta.get("name", "")
    key = (kind, f"{reference.namespace}/{name}")
    base: Json = {"time": time, "kind": kind, "name": name, "namespace": reference.namespace}
    if reference.subresource == "binding":
        target = (entry.request_object or {}).get("target") or {}
        if not target.get("name"):
            ignored["binding without an object: log pods/binding at level Request"] += 1
        elif key in known:
            yield Event(verb="bind", uid=known[key], node=target["name"], by=entry.user.username, **base)
        return
    if reference.subresource not in ("", "status") or entry.verb not in (
        "create",
        "update",
        "patch",
        "delete",
    ):
        return
    if entry.verb == "delete":
        if key in known:
            yield Event(verb="delete", uid=known.pop(key), **base)
        return
    if data is None:
        if not reference.subresource:
            ignored[
                f"{entry.verb} of {reference.resource} without an object: log them at level RequestResponse"
            ] += 1
        return
    if key not in known:
        known[key] = meta.get("uid") or f"{reference.namespace}/{name}/{time}"
        yield event_of(time, "add", _with_identity(data, name, reference.namespace, known[key]))
    elif kind == "Pod" and (data.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        yield Event(verb="finish", uid=known[key], **base)
    elif not reference.subresource or kind == "Node":
        yield event_of(time, "update", _with_identity(data, name, reference.namespace, known[key]))


def _with_identity(data: Json, name: str, namespace: str, uid: str) -> Json:
    own = {"name": name, "uid": uid} | ({"namespace": namespace} if namespace else {})
    return data | {"metadata": (data.get("metadata") or {}) | own}


def _is_of(data: object, kind: str) -> bool:
    return (
        isinstance(data, dict)
        and data.get("kind", kind) == kind
        and isinstance(data.get("metadata", {}), dict)
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield from enumerate(stream, 1)
    except (OSError, EOFError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None


# SimKube


class _Tracked(msgspec.Struct, rename="camel"):
    pod_spec_template_path: str | None = None


class _Config(msgspec.Struct, rename="camel"):
    tracked_objects: dict[str, _Tracked] = {}


class _SimKubeEvent(msgspec.Struct):
    ts: int
    applied_objs: list[Json] = []
    deleted_objs: list[Json] = []


class _SimKube(msgspec.Struct):
    version: int
    config: _Config
    events: list[_SimKubeEvent]
    pod_lifecycles: dict[tuple[Any, str], dict[int, list[object]]] = {}


def read_simkube(path: Path) -> Trace:
    """Read a SimKube trace of version 2: owners of pods are recorded, and their pods are made of them.

    A pod runs as long as the recorded pod of the same owner and number.
    """
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=_SimKube)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except msgspec.ValidationError as error:
        raise InputError(f"is not a SimKube trace of version 2: {error}", where=str(path)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"is not msgpack, or is cut off: {error}", where=str(path)) from None
    if found.version != SIMKUBE_VERSION:
        raise InputError(
            f"is a SimKube trace of version {found.version}; expected version 2", where=str(path)
        )
    return _SimKubeReader(path, found).read()


class _SimKubeReader:
    def __init__(self, path: Path, found: _SimKube) -> None:
        self._found, self._trace = found, Trace([], str(path))
        self._templates = {
            _gvk(name): tracked.pod_spec_template_path
            for name, tracked in found.config.tracked_objects.items()
        }
        self._lives: dict[tuple[str, str], list[tuple[float, float | None]]] = {
            (_gvk(gvk), name): [
                life for lives in by_hash.values() for life in map(_life, lives) if life is not None
            ]
            for (gvk, name), by_hash in found.pod_lifecycles.items()
        }
        self._pods: dict[tuple[str, str], list[Event]] = {}
        """The pods of each owner that are there."""
        self._made: Counter[tuple[str, str]] = Counter()

    def read(self) -> Trace:
        trace, last = self._trace, None
        for number, event in enumerate(self._found.events, 1):
            if last is not None and event.ts < last:
                text = f"the time goes back from {last} to {event.ts}"
                trace.faults.append(InputError(text, where=trace.source, what=f"event {number}"))
                break
            last = event.ts
            for data in event.applied_objs:
                self._apply(float(event.ts), data, f"event {number}")
            for data in event.deleted_objs:
                self._resize(float(event.ts), data, 0, f"event {number}")
        return trace

    def _apply(self, time: float, data: Json, place: str) -> None:
        gvk = _gvk(f"{data.get('apiVersion', 'v1')}.{data.get('kind')}")
        if data.get("kind") == "Pod":
            self._trace.events.append(
                event_of(time, "add", _complete(data, {}, None, self._trace.source, place))
            )
        elif gvk not in self._templates or self._templates[gvk] is None:
            self._trace.ignored[str(data.get("kind"))] += 1
        else:
            spec = data.get("spec") or {}
            size = spec.get("replicas", spec.get("parallelism", 1))
            size = size if isinstance(size, int) else 1
            if size > MAX_COPIES:
                what = f"{place}: {describe(data)}"
                text = f"{size:,} pods are more than {MAX_COPIES:,}"
                raise InputError(text, where=self._trace.source, what=what, field="spec.replicas")
            self._resize(time, data, size, place)

    def _resize(self, time: float, data: Json, size: int, place: str) -> None:
        meta = data.get("metadata") or {}
        namespace, name = meta.get("namespace", "default"), meta.get("name", "")
        gvk = _gvk(f"{data.get('apiVersion', 'v1')}.{data.get('kind')}")
        owner = (gvk, f"{namespace}/{name}")
        pods = self._pods.setdefault(owner, [])
        while len(pods) > size:
            gone = pods.pop()
            more: Json = {
                "time": time,
                "kind": "Pod",
                "name": gone.name,
                "namespace": namespace,
                "uid": gone.uid,
            }
            self._trace.events.append(Event(verb="delete", **more))
        template = _at(data, self._templates.get(gvk) or "") if size else None
        while template is not None and len(pods) < size:
            number = self._made[owner]
            self._made[owner] += 1
            lives = self._lives.get(owner, [])
            begin, end = lives[number % len(lives)] if lives else (0.0, None)
            made = _pod_of(template, data, f"{name}-{number}", namespace)
            made = _complete(made, {}, None, self._trace.source, place)
            run = None if end is None else max(end - begin, 0.0)
            pods.append(event_of(time, "add", made, run_seconds=run))
            self._trace.events.append(pods[-1])


def _gvk(value: object) -> str:
    """`apps/v1.Deployment`, however it is written."""
    if isinstance(value, Mapping):
        group = f"{value['group']}/" if value.get("group") else ""
        return f"{group}{value.get('version')}.{value.get('kind')}"
    return str(value).removeprefix("/")


def _life(value: object) -> tuple[float, float | None] | None:
    """The times of `{"Running": start}`, `{"Finished": [start, end]}`; None for `Empty`."""
    if isinstance(value, Mapping):
        times = next(iter(value.values()))
        times = times if isinstance(times, list) else [times]
        return (float(times[0]), float(times[1]) if len(times) > 1 else None)
    return None


def _at(data: object, pointer: str) -> Any:
    """What a JSON pointer such as /spec/template leads to; None if it is not there."""
    for step in pointer.strip("/").split("/"):
        if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
            data = data[int(step)]
        elif isinstance(data, dict) and step in data:
            data = data[step]
        else:
            return None
    return data


def _pod_of(template: Json, owner: Json, name: str, namespace: str) -> Json:
    meta = owner["metadata"]
    reference = {"controller": True, "kind": owner["kind"], "apiVersion": owner.get("apiVersion", "v1")}
    reference |= {"name": meta["name"], "uid": meta.get("uid", "")}
    own = {
        "name": name,
        "namespace": namespace,
        "uid": f"{owner['kind']}/{namespace}/{name}",
        "ownerReferences": [reference],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": (template.get("metadata") or {}) | own,
        "spec": template.get("spec") or {},
    }
