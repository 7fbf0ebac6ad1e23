"""Traces: what happened in a cluster, as a list of events in order of time.

A trace is a Parquet file, a file of JSON lines, or a folder of both whose names give the order. The columns
and the JSON fields are those of `Event`. Each event is checked when it is read; an error says in which file
and row, and the events before it are kept (`Trace.faults`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from stowplan.errors import InputError, missing_extra

FORMAT_KEY, FORMAT = b"stowplan.trace", b"1"
Verb = Literal["add", "update", "delete", "reject", "bind", "start", "finish"]
VERBS: frozenset[str] = frozenset(get_args(Verb))
GROUP_ROWS = 20_000
NO_OBJECT = msgspec.Raw()
PREEMPTION = "preemption"


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One change of one object."""

    time: float
    """In seconds: since 1970, or since any other moment, as long as it is the same for all events."""
    verb: Verb
    """`reject` says that a scheduler found no node for a pod, `bind` gives it its node, `start` says that its
    kubelet has it, at `earliest` by the kubelet's clock, and `finish` that it succeeded or failed."""
    kind: str
    name: str
    namespace: str = ""
    api_version: str = "v1"
    uid: str = ""
    """Unique over the whole trace, unlike a name; by default `namespace/name`."""
    object: msgspec.Raw = NO_OBJECT
    """The object as JSON, for `add` and `update`."""
    node: str = ""
    """The node that a pod is bound to; of a rejected pod, the one that is nominated for it."""
    by: str = ""
    """Who bound the pod; of a deleted pod, `preemption` if a scheduler evicted it."""
    run_seconds: float | None = None
    """How long the pod runs once it is bound, where the trace has no event that ends it."""
    earliest: float | None = None
    """After a gap in the recording: the event happened between this time and `time`."""

    @property
    def id(self) -> str:
        return self.uid or f"{self.namespace or 'default'}/{self.name}"


def event_of(time: float, verb: Verb, data: Mapping[str, Any], **more: Any) -> Event:
    """The event of an object given as plain data."""
    meta = data.get("metadata") or {}
    with_object = verb in ("add", "update")
    return Event(
        time=time,
        verb=verb,
        kind=data["kind"],
        api_version=data.get("apiVersion", "v1"),
        name=meta.get("name", ""),
        namespace=meta.get("namespace", ""),
        uid=meta.get("uid", ""),
        object=msgspec.Raw(msgspec.json.encode(data)) if with_object else NO_OBJECT,
        **more,
    )


class _Placed(msgspec.Struct):
    node_name: str = msgspec.field(default="", name="nodeName")


class _OnlyNode(msgspec.Struct):
    spec: _Placed = msgspec.field(default_factory=_Placed)


_only_node = msgspec.json.Decoder(_OnlyNode).decode


def node_of(event: Event) -> str:
    """The node that a pod had already when it was added; empty if it had none."""
    data = bytes(event.object)
    if b'"nodeName"' not in data:  # nearly always, and much faster
        return ""
    try:
        return _only_node(data).spec.node_name
    except (msgspec.DecodeError, RecursionError):  # whoever decodes the whole pod says why
        return ""


class _Owner(msgspec.Struct):
    uid: str = ""
    controller: bool = False


class _Meta(msgspec.Struct, rename="camel"):
    owner_references: tuple[_Owner, ...] = ()
    deletion_timestamp: str | None = None

    @property
    def controller(self) -> str:
        return next((each.uid for each in self.owner_references if each.controller), "")


class _OnlyMeta(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


def _only_meta(data: msgspec.Raw) -> _OnlyMeta:
    try:
        return msgspec.json.decode(data, type=_OnlyMeta)
    except (msgspec.DecodeError, RecursionError):  # whoever decodes the whole pod says why
        return _OnlyMeta()


class Trace(msgspec.Struct):
    events: list[Event]
    source: str = ""
    """The file or folder, for messages."""
    faults: list[InputError] = []
    """Why reading stopped early; `events` has what came before."""
    ignored: Counter[str] = msgspec.field(default_factory=Counter)
    """What a reader left out, by kind or reason."""

    @property
    def start(self) -> float:
        return self.events[0].time if self.events else 0.0

    @property
    def end(self) -> float:
        return self.events[-1].time if self.events else 0.0

    def run_times(self) -> dict[str, float]:
        """How long each pod ran after it was bound, by id; pods that never ran or never ended are missing.

        So are those that were preempted: how long they would have run is not known.
        """
        found: dict[str, float] = {}
        started: dict[str, float] = {}
        for event in self.events:
            if event.kind != "Pod":
                continue
            if event.verb == "add":
                if event.run_seconds is not None:
                    found[event.id] = event.run_seconds
                if node_of(event):
                    started[event.id] = event.time
            elif event.verb == "bind":
                started[event.id] = event.time
            elif event.verb in ("delete", "finish") and event.id in started and event.by != PREEMPTION:
                found.setdefault(event.id, event.time - started[event.id])
        return found

    def preempted(self) -> set[str]:
        """The ids of pods that a scheduler evicted."""
        return {event.id for event in self.events if event.verb == "delete" and event.by == PREEMPTION}

    def replacements(self) -> dict[str, str]:
        """The pods that controllers made in the place of preempted ones, by the id of those.

        A preempted pod that nothing was made for is missing; in the values, each pod is there once.
        """
        preempted = self.preempted()
        owners: dict[str, str] = {}
        waiting: dict[str, list[str]] = {}
        found: dict[str, str] = {}
        for event in self.events if preempted else ():
            if event.kind != "Pod":
                continue
            is_gone = event.verb == "delete"
            if event.verb == "add" or event.id in preempted:
                meta = None if is_gone else _only_meta(event.object).metadata
                if meta is not None and event.verb == "add":
                    owners[event.id] = owner = meta.controller
                    if owner and waiting.get(owner):
                        found[waiting[owner].pop(0)] = event.id
                owner = owners.get(event.id, "")
                is_ending = is_gone or (meta is not None and meta.deletion_timestamp is not None)
                if owner and is_ending and event.id in preempted:
                    preempted.discard(event.id)
                    waiting.setdefault(owner, []).append(event.id)
        return found

    def starts(self) -> dict[str, tuple[float, float]]:
        """When each pod started, and how long after its binding, by id."""
        bound: dict[str, float] = {}
        found: dict[str, tuple[float, float]] = {}
        for event in self.events:
            if event.verb == "bind":
                bound[event.id] = event.time
            elif event.verb == "start" and event.id in bound:
                started = event.time if event.earliest is None else event.earliest
                found[event.id] = (started, started - bound[event.id])
        return found


class Checker:
    """Checks events one by one, against those before them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._time = -math.inf
        self._pods: set[str] = set()

    def check(self, event: Event, place: str) -> None:
        """Raise InputError if the event cannot be replayed; `place` says where in the file it is."""
        what = f"{place}: {event.kind} {event.namespace}/{event.name}".replace(" /", " ")
        if event.verb not in VERBS:
            self._fail(
                f"unknown verb {event.verb!r}; expected one of {', '.join(sorted(VERBS))}", what, "verb"
            )
        if not math.isfinite(event.time):
            self._fail(f"{event.time} is not a time", what, "time")
        if event.time < self._time:
            text = f"the time goes back from {self._time:.6f} to {event.time:.6f}; sort the events by time"
            self._fail(text, what, "time")
        if not event.kind or not event.name:
            self._fail("is required", what, "name" if event.kind else "kind")
        if event.run_seconds is not None and not event.run_seconds >= 0:
            text = f"the pod ends {-event.run_seconds:g} seconds before it starts"
            self._fail(text, what, "run_seconds")
        if event.earliest is not None and event.earliest > event.time:
            self._fail("is later than the time of the event", what, "earliest")
        if event.verb in ("add", "update") and not bytes(event.object):
            self._fail(f"is required for the verb {event.verb}", what, "object")
        if event.kind == "Pod":
            self._check_pod(event, what)
        self._time = event.time

    def _check_pod(self, event: Event, what: str) -> None:
        if event.verb == "add":
            if event.id in self._pods:
                self._fail("the pod is added twice; give each pod a uid of its own", what, "uid")
            self._pods.add(event.id)
            return
        if event.id not in self._pods:
            self._fail(f"the verb {event.verb} comes before the pod was added", what)
        if event.verb == "delete":
            self._pods.discard(event.id)
        if event.verb == "bind" and not event.node:
            self._fail("is required for the verb bind", what, "node")

    def _fail(self, message: str, what: str, field: str = "") -> None:
        raise InputError(message, where=self.where, what=what, field=field)


def read_own(path: Path) -> Trace:
    """Read a trace in the format of this module."""
    trace = Trace([], str(path))
    checker = Checker("")
    for file in _files(path):
        checker.where = str(file)
        try:
            rows = _json_rows(file) if file.suffix == ".jsonl" else _parquet_rows(file)
            for place, event in rows:
                checker.check(event, place)
                trace.events.append(event)
        except InputError as error:
            trace.faults.append(error)
            break
    return trace


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.suffix in (".parquet", ".jsonl"))


def _json_rows(file: Path) -> Iterator[tuple[str, Event]]:
    decoder = msgspec.json.Decoder(Event)
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            place = f"line {number}"
            try:
                yield place, decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                is_cut = not isinstance(error, msgspec.ValidationError) and not line.endswith(b"\n")
                cut = "; the file seems to be cut off here" if is_cut else ""
                raise InputError(f"is not an event: {error}{cut}", where=str(file), what=place) from None


def check_arrow() -> None:
    """Raise InputError if pyarrow is missing, without the time that its import takes."""
    if find_spec("pyarrow") is None:
        raise missing_extra("a trace", "pyarrow", "journal")


def arrow() -> Any:
    """pyarrow with its Parquet module."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise missing_extra("a Parquet file", "pyarrow", "journal") from None
    return pyarrow


def _schema() -> object:
    pa = arrow()
    types = {"time": pa.float64(), "run_seconds": pa.float64(), "earliest": pa.float64()}
    fields = [(name, types.get(name, pa.string())) for name in Event.__struct_fields__]
    return pa.schema(fields, metadata={FORMAT_KEY: FORMAT})


def _parquet_rows(file: Path) -> Iterator[tuple[str, Event]]:
    pa = arrow()
    try:
        opened = pa.parquet.ParquetFile(file)
    except FileNotFoundError:
        raise InputError("does not exist", where=str(file)) from None
    except Exception as error:  # whatever a damaged or foreign file makes pyarrow raise
        text = f"is not a Parquet file, or is cut off: {error}"
        raise InputError(text, where=str(file)) from None
    with opened:
        _check_columns(file, opened.schema_arrow)
        row = 0
        for group in range(opened.num_row_groups):
            try:
                rows = opened.read_row_group(group).to_pylist()
            except Exception as error:
                place = f"row {row + 1}"
                raise InputError(f"is damaged: {error}", where=str(file), what=place) from None
            for values in rows:
                row += 1
                try:
                    yield f"row {row}", _event_of_row(values)
                except (TypeError, ValueError, msgspec.ValidationError) as error:
                    raise InputError(
                        f"is not an event: {error}", where=str(file), what=f"row {row}"
                    ) from None


def _check_columns(file: Path, schema: Any) -> None:
    found = (schema.metadata or {}).get(FORMAT_KEY)
    if found is None:
        text = "is a Parquet file, but not a trace: its metadata has no stowplan.trace"
        raise InputError(text, where=str(file))
    if found != FORMAT:
        given = found.decode(errors="replace")
        text = f"is a trace of format {given}; this version reads format {FORMAT.decode()}"
        raise InputError(text, where=str(file))
    known = set(Event.__struct_fields__)
    if unknown := [name for name in schema.names if name not in known]:
        raise InputError(f"unknown column {unknown[0]!r}", where=str(file))
    if missing := [name for name in ("time", "verb", "kind", "name") if name not in schema.names]:
        raise InputError(f"has no column {missing[0]!r}", where=str(file))


def _event_of_row(values: dict[str, Any]) -> Event:
    given = {name: value for name, value in values.items() if value is not None}
    raw = given.pop("object", "")
    event = msgspec.convert(given, Event)
    return msgspec.structs.replace(event, object=msgspec.Raw(raw.encode())) if raw else event


def write_parquet(file: Path, events: Iterable[Event]) -> None:
    """Write a whole file, or none: it has its name only once it is complete."""
    pa = arrow()
    schema, unfinished = _schema(), file.with_name(f"{file.name}.part")
    try:
        with pa.parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            batch: list[Event] = []
            for event in events:
                batch.append(event)
                if len(batch) == GROUP_ROWS:
                    writer.write_table(_table(batch, schema))
                    batch = []
            if batch:
                writer.write_table(_table(batch, schema))
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(file)) from None


def _table(events: list[Event], schema: Any) -> Any:
    pa = arrow()
    columns: dict[str, list[object]] = {
        name: [getattr(event, name) for event in events]
        for name in Event.__struct_fields__
        if name != "object"
    }
    columns["object"] = [bytes(event.object).decode() or None for event in events]
    return pa.table(
        {name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema=schema
    )


def write_trace(path: Path, events: Iterable[Event]) -> None:
    """Write JSON lines to a file named `*.jsonl`, and Parquet to any other."""
    if path.suffix != ".jsonl":
        write_parquet(path, events)
        return
    try:
        with path.open("wb") as stream:
            for event in events:
                stream.write(msgspec.json.encode(event) + b"\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
