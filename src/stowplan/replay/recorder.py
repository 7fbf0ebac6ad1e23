"""Records a live cluster as a trace. Nothing is written to the cluster.

Events go to a file of JSON lines first, so that a crash loses no more than the last second. A file that has
grown large or old is rewritten as Parquet. A recorder that starts again in the same folder finds out what
it knew, lists the cluster, and records what changed meanwhile, with the time since which it may have."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.meta import Json, Object, parse_time
from stowplan.api.pod import LAST_APPLIED, Container, SecurityContext
from stowplan.client.api import RESOURCES, ApiClient, WatchedResource, custom
from stowplan.client.connection import Connection
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.errors import ApiError
from stowplan.client.watch import PRIORITY_CLASSES, EventKind, Reflector
from stowplan.errors import InputError, StowplanError
from stowplan.framework.answers import describe, stack_of
from stowplan.replay.trace import (
    PREEMPTION,
    Event,
    Trace,
    check_arrow,
    event_of,
    read_own,
    write_parquet,
)

FLUSH_SECONDS = 1.0
POLL_SECONDS = 0.1
STOP_SECONDS = 10.0
"""How long a scheduler that ends waits for the trace to be written."""
LIST_SECONDS = 10.0
"""How long the first lists wait for those of other kinds."""
ROTATE_BYTES, ROTATE_SECONDS = 64 * 2**20, 3600.0
OF_CONTAINERS, OF_SECURITY = (
    frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    for kind in (Container, SecurityContext)
)
"""The fields of a container and of its security context that are recorded, which are those that plugins can
read; others, such as its environment, may hold secrets."""
OF_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
    "generateName",
)
OF_POD_STATUS = ("resourceClaimStatuses", "startTime")
OF_NODES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
"""Labels that a pod gets from its node when it is bound."""
OF_NODE_STATUS = ("allocatable", "capacity", "images", "declaredFeatures")
_NAME = re.compile(r"trace-([0-9]+)\.parquet")


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """What is not recorded as it is. Hashes are the same for the same text and `key`."""

    hashes_names: bool = False
    """Names of pods and of their owners."""
    hashes_images: bool = False
    omits_annotations: bool = False
    key: bytes = b""

    def hashed(self, text: str) -> str:
        return "h" + hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()[:16]


class TraceFolder:
    """A folder of trace files to which events are appended.

    Full files are packed in a thread: it takes about a second, in which a scheduler that records must go on.
    If that fails, the next call that writes raises the error.
    """

    def __init__(self, folder: Path, *, size: float = ROTATE_BYTES, age: float = ROTATE_SECONDS) -> None:
        self._folder, self._size, self._age = folder, size, age
        self._packer = ThreadPoolExecutor(1, "trace packer")
        self._packing: deque[Future[None]] = deque()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in sorted(folder.glob("*.jsonl")):
                self._pack(left)
            names = (_NAME.fullmatch(each.name) for each in folder.iterdir())
            self._number = max((int(name[1]) for name in names if name), default=0)
            self._open()
        except OSError as error:
            raise self._error(error) from None

    def _open(self) -> None:
        self._number += 1
        self._file = self._folder / f"trace-{self._number:06}.jsonl"
        self._stream = self._file.open("ab")
        self._opened = time.monotonic()

    def write(self, event: Event) -> None:
        try:
            self._stream.write(msgspec.json.encode(event) + b"\n")
            if self._stream.tell() >= self._size:
                self.rotate()
        except OSError as error:
            raise self._error(error) from None

    def flush(self) -> None:
        try:
            self._raise_failed()
            self._stream.flush()
            if time.monotonic() - self._opened >= self._age and self._stream.tell():
                self.rotate()
        except OSError as error:
            raise self._error(error) from None

    def rotate(self) -> None:
        """Begin another file, and pack this one meanwhile."""
        self._raise_failed()
        self._stream.close()
        self._packing.append(self._packer.submit(self._pack, self._file))
        self._open()

    def close(self) -> None:
        """Pack what is left, and wait for that."""
        try:
            self._stream.close()
            self._packing.append(self._packer.submit(self._pack, self._file))
            self._packer.shutdown()
            self._raise_failed()
        except OSError as error:
            raise self._error(error) from None

    def _raise_failed(self) -> None:
        while self._packing and self._packing[0].done():
            self._packing.popleft().result()

    def _pack(self, file: Path) -> None:
        """Rewrite a file of JSON lines as Parquet; a last line that was not written to its end is left
        out. A file that is damaged, as after a power failure, is kept under another name."""
        data = file.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        damaged = 0

        def events() -> Iterator[Event]:
            nonlocal damaged
            decoder = msgspec.json.Decoder(Event)
            for number, line in enumerate(lines, 1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    damaged = number
                    return

        if lines:
            write_parquet(file.with_suffix(".parquet"), events())
        if not damaged:
            file.unlink()
            return
        kept = file.rename(file.with_suffix(".damaged"))
        log.warn("Trace file is damaged, events from this line on are left out", file=str(kept), line=damaged)

    def _error(self, error: OSError) -> InputError:
        return InputError(f"cannot be written: {error.strerror or error}", where=str(self._folder))


class SeenObject(Object, frozen=True):
    """An object with its JSON text."""

    data: bytes = b""


def decode_seen(data: bytes) -> SeenObject:
    return msgspec.structs.replace(_metadata(data), data=bytes(data))


_metadata = msgspec.json.Decoder(SeenObject).decode


class Recorder:
    """Makes events of changes and hands them to `write`."""

    def __init__(
        self,
        write: Callable[[Event], None],
        privacy: Privacy | None = None,
        now: Callable[[], float] = time.time,
        before: Trace | None = None,
    ) -> None:
        self._write, self._privacy, self.now = write, privacy or Privacy(), now
        self.written = 0
        self.fault: InputError | None = None
        """Why nothing can be written any more."""
        self._known: dict[tuple[str, str], tuple[str, bytes, str]] = {}
        """The uid, the recorded JSON and the node of each object that is there, by kind and key."""
        self.last = -1.0
        """The time of the last event."""
        self._left: dict[str, set[tuple[str, str]]] = {}
        """Objects that were there when recording ended, and were not seen since, by kind."""
        self._since: float | None = None
        """When recording ended, until the lists are complete."""
        self._earliest: float | None = None
        """Since when the change that is being recorded may have happened."""
        self._at = 0.0
        """When it was seen."""
        self._started: set[str] = set()
        """Pods, by uid, of which it is recorded that they started."""
        self._rejected: dict[str, tuple[str, str] | None] = {}
        """The message and the nominated node of pods, by uid, that a scheduler found no node for; None if
        that was recorded before a restart, since a trace does not have the message."""
        self._held: list[tuple[tuple[Any, ...], Callable[[], None]]] = []
        """What was seen while kinds are listed, with what it is sorted by."""
        self._held_since = 0.0
        self._held_watched: set[str] = set()
        """Kinds of which a change that a watch has shown is held back."""
        if before is not None and before.events:
            self._take_up(before)

    def _take_up(self, before: Trace) -> None:
        for event in before.events:
            key = _key_of(event.kind, event.namespace, event.name)
            if event.verb in ("delete", "finish"):
                self._known.pop(key, None)
                self._started.discard(event.uid)
                self._rejected.pop(event.uid, None)
            elif event.verb == "bind" and key in self._known:
                uid, data, _ = self._known[key]
                self._known[key] = (uid, data, event.node)
            elif event.verb in ("add", "update"):
                data = bytes(event.object)
                self._known[key] = (event.uid, data, _node_in(data))
                if _start_of(msgspec.json.decode(data)) is not None:
                    self._started.add(event.uid)
            elif event.verb == "start":
                self._started.add(event.uid)
            elif event.verb == "reject":
                self._rejected[event.uid] = None
        self.last = self._since = before.end
        for key in self._known:
            self._left.setdefault(key[0], set()).add(key)

    def see(
        self,
        resource: WatchedResource,
        old: SeenObject | None,
        new: SeenObject | None,
        since: float | None = None,
        *,
        is_listed: bool = False,
    ) -> None:
        """A change that a Reflector reports; after a gap in its watch, it may have happened since then.

        A list has objects in the order of their names, and each kind has its own. What was listed is held
        back until `release`, and so is all that follows: a replay wants nodes before pods, and pending pods
        in the order in which they came.
        """
        if not (is_listed or self._held):
            self._on_event(resource, old, new, since, self.now())
            return
        if not self._held:
            self._held_since = self.now()
        at = self._held_since if is_listed else self.now()
        if not is_listed:
            self._held_watched.add(resource.kind)
        # A list after such a change is newer than it.
        is_first = is_listed and resource.kind not in self._held_watched
        turn = _listed_turn(resource, new) if is_first and new is not None else (2,)
        self._held.append((turn, partial(self._on_event, resource, old, new, since, at)))

    def release(self, *, all_listed: bool) -> None:
        """Record what was held back, unless lists are still under way."""
        if self._held and (all_listed or self.now() - self._held_since >= LIST_SECONDS):
            held, self._held = sorted(self._held, key=itemgetter(0)), []
            self._held_watched.clear()
            for _, record_held in held:
                try:
                    record_held()
                except Exception as error:  # as a Reflector does
                    log.error("Object cannot be recorded; continuing with the next one", error)

    def _on_event(
        self,
        resource: WatchedResource,
        old: SeenObject | None,
        new: SeenObject | None,
        since: float | None,
        at: float,
    ) -> None:
        self._earliest, self._at = self._since if since is None else since, at
        item = old if new is None else new
        assert item is not None
        data = self._slim(resource, msgspec.json.decode(item.data))
        meta = data["metadata"]
        key = _key_of(resource.kind, meta.get("namespace", ""), meta["name"])
        self._left.get(resource.kind, set()).discard(key)
        known = self._known.get(key)
        if new is None:
            if known is not None:
                self._delete(data, key, PREEMPTION if _is_preempted(item.data) else "")
            return
        node = (data.get("spec") or {}).get("nodeName", "") if resource.kind == "Pod" else ""
        if known is not None and known[0] != meta.get("uid", ""):
            self._delete(data | {"metadata": meta | {"uid": known[0]}}, key)
            known = None
        if known is None:
            self._put("add", data, key, node)
            self._note_rejection(item, data)
        else:
            self._note_rejection(item, data)
            if node and not known[2]:
                by = (data.get("spec") or {}).get("schedulerName", "")
                self._emit(event_of(self._time(), "bind", data, node=node, by=by, earliest=self._earliest))
                self._known[key] = (known[0], known[1], node)
            if known[0] not in self._started and (started := _start_of(data)) is not None:
                self._started.add(known[0])
                at = self._time()
                self._emit(event_of(at, "start", data, earliest=min(started, at)))
            if _without_node(data) != _without_node(msgspec.json.decode(known[1])):
                self._put("update", data, key, node)

    def _note_rejection(self, item: SeenObject, data: Json) -> None:
        """Record an attempt that found no node: another message or another nominated node shows it."""
        found = _rejection_in(item.data) if data["kind"] == "Pod" else None
        uid = data["metadata"].get("uid", "")
        if found is None or found == self._rejected.get(uid):
            return
        is_recorded = uid in self._rejected and self._rejected[uid] is None
        self._rejected[uid] = found
        if is_recorded:
            return
        by = data["spec"].get("schedulerName", "")
        self._emit(event_of(self._time(), "reject", data, node=found[1], by=by, earliest=self._earliest))

    def on_synced(self, resource: WatchedResource) -> None:
        """The list of a kind is complete: what was there before and was not listed is gone."""
        if self._held:
            self._held.append(((2,), partial(self._on_synced, resource, self.now())))
        else:
            self._on_synced(resource, self.now())

    def _on_synced(self, resource: WatchedResource, at: float) -> None:
        self._earliest, self._at = self._since, at
        for key in sorted(self._left.pop(resource.kind, ())):
            uid, text, _ = self._known[key]
            data = msgspec.json.decode(text)
            self._delete(data | {"metadata": data["metadata"] | {"uid": uid}}, key)
        if not self._left:
            self._since = None

    def _put(self, verb: Any, data: Json, key: tuple[str, str], node: str) -> None:
        event = event_of(self._time(), verb, data, earliest=self._earliest)
        self._known[key] = (event.uid, bytes(event.object), node)
        if _start_of(data) is not None:
            self._started.add(event.uid)
        self._emit(event)

    def _delete(self, data: Json, key: tuple[str, str], by: str = "") -> None:
        uid = self._known.pop(key)[0]
        self._started.discard(uid)
        self._rejected.pop(uid, None)
        self._emit(event_of(self._time(), "delete", data, by=by, earliest=self._earliest))

    def _emit(self, event: Event) -> None:
        if self.fault is not None:
            return
        try:
            self._write(event)
            self.written += 1
        except InputError as error:  # a Reflector would log it and go on
            self.fault = error

    def _time(self) -> float:
        """When the change was seen; in a trace, the time never goes back."""
        self.last = max(self.last, self._at)
        return self.last

    def _slim(self, resource: WatchedResource, data: Json) -> Json:
        """What a scheduler reads of the object, and no secrets."""
        meta = {
            name: value for name, value in data.get("metadata", {}).items() if name in OF_METADATA and value
        }
        annotations = {
            name: value for name, value in (meta.get("annotations") or {}).items() if name != LAST_APPLIED
        }
        meta["annotations"] = {} if self._privacy.omits_annotations else annotations
        found = {name: value for name, value in data.items() if name not in ("metadata", "status")}
        found |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
        status = data.get("status") or {}
        if resource.kind == "Pod":
            found["spec"] = self._slim_spec(data.get("spec") or {})
            found["status"] = {name: status[name] for name in OF_POD_STATUS if name in status}
        elif resource.kind == "Node":
            found["status"] = {name: status[name] for name in OF_NODE_STATUS if name in status}
            if self._privacy.hashes_images and "images" in found["status"]:
                found["status"]["images"] = [self._hash_image(each) for each in found["status"]["images"]]
        else:
            found["status"] = status
        if resource.kind in ("ReplicaSet", "StatefulSet", "ReplicationController"):
            spec = data.get("spec") or {}
            found["spec"] = {name: spec[name] for name in ("selector", "replicas") if name in spec}
            found["status"] = {}
        if self._privacy.hashes_names:
            self._hash_names(resource.kind, meta)
        return found

    def _slim_spec(self, spec: Json) -> Json:
        found = dict(spec)
        for group in ("containers", "initContainers"):
            if group in found:
                found[group] = [self._slim_container(each) for each in found[group]]
        found.pop("ephemeralContainers", None)
        return found

    def _slim_container(self, container: Json) -> Json:
        found = {name: value for name, value in container.items() if name in OF_CONTAINERS}
        if context := found.pop("securityContext", None):
            found["securityContext"] = {name: context[name] for name in context.keys() & OF_SECURITY}
        if self._privacy.hashes_images and "image" in found:
            found["image"] = self._privacy.hashed(found["image"])
        return found

    def _hash_image(self, image: Mapping[str, Any]) -> Json:
        return {**image, "names": [self._privacy.hashed(each) for each in image.get("names") or ()]}

    def _hash_names(self, kind: str, meta: Json) -> None:
        hashed = self._privacy.hashed
        meta.pop("generateName", None)
        if kind in ("Pod", "ReplicaSet", "StatefulSet", "ReplicationController"):
            meta["name"] = hashed(meta["name"])
        if "ownerReferences" in meta:
            meta["ownerReferences"] = [
                {**each, "name": hashed(each.get("name", ""))} for each in meta["ownerReferences"]
            ]


def _listed_turn(resource: WatchedResource, item: SeenObject) -> tuple[Any, ...]:
    """Other kinds come before pods, and pods in the order of their creation.

    That has a precision of a second. Within it, the version decides: it is that of the creation unless the
    pod has changed since."""
    if resource.kind != "Pod":
        return (0,)
    meta = item.metadata
    return (1, meta.creation_timestamp or "", len(meta.resource_version), meta.resource_version)


def _key_of(kind: str, namespace: str, name: str) -> tuple[str, str]:
    return (kind, f"{namespace}/{name}")


def _node_in(data: bytes) -> str:
    found = msgspec.json.decode(data)
    return (found.get("spec") or {}).get("nodeName", "") if found.get("kind") == "Pod" else ""


def _is_preempted(data: bytes) -> bool:
    """Whether a scheduler evicted the pod."""
    if b"PreemptionByScheduler" not in data:
        return False
    conditions = (msgspec.json.decode(data).get("status") or {}).get("conditions") or ()
    return any(each.get("reason") == "PreemptionByScheduler" for each in conditions)


def _rejection_in(data: bytes) -> tuple[str, str] | None:
    """Why a scheduler found no node for a pod, and the node that it nominated; None if it did not say so."""
    if b'"Unschedulable"' not in data:
        return None
    found = msgspec.json.decode(data)
    status = found.get("status") or {}
    if (found.get("spec") or {}).get("nodeName"):
        return None
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable":
            return each.get("message", ""), status.get("nominatedNodeName", "")
    return None


def _start_of(data: Json) -> float | None:
    """When a pod started, if it did."""
    text = (data.get("status") or {}).get("startTime") if data.get("kind") == "Pod" else None
    return None if text is None else parse_time(text)


def _without_node(data: Json) -> Json:
    """The object without what a binding makes of it: a pod's node, where that is, when it started there."""
    if data.get("kind") != "Pod":
        return data
    meta = dict(data["metadata"])
    labels = meta.get("labels") or {}
    meta["labels"] = {name: value for name, value in labels.items() if name not in OF_NODES}
    meta["deletionTimestamp"] = "deletionTimestamp" in meta  # a kubelet sets it anew when the pod has ended
    spec = {name: value for name, value in data["spec"].items() if name != "nodeName"}
    status = {name: value for name, value in data["status"].items() if name != "startTime"}
    return data | {"metadata": meta, "spec": spec, "status": status}


async def record(
    api: ApiClient,
    folder: Path,
    *,
    kinds: Iterable[type[CustomResource]] = (),
    privacy: Privacy | None = None,
    size: float = ROTATE_BYTES,
    age: float = ROTATE_SECONDS,
    now: Callable[[], float] = time.time,
    on_progress: Callable[[int], None] = lambda written: None,
) -> None:
    """Record into a folder until cancelled. Raise InputError if it cannot be written to."""
    check_arrow()
    target = TraceFolder(folder, size=size, age=age)
    recorder: Recorder | None = None
    try:
        recorder = Recorder(target.write, privacy, now, read_own(folder))
        async with CoreTasks() as tasks:
            reflectors = []
            for resource in (*RESOURCES, PRIORITY_CLASSES, *map(custom, kinds)):
                reflectors.append(_reflector(api, resource, recorder))
                tasks.start(f"watch of {resource.name}", _follow(reflectors[-1], recorder))
            flush_at = 0.0
            while recorder.fault is None:
                await asyncio.sleep(POLL_SECONDS)
                listed = all(each.synced.is_set() and not each.is_listing for each in reflectors)
                recorder.release(all_listed=listed)
                if time.monotonic() >= flush_at:
                    flush_at = time.monotonic() + FLUSH_SECONDS
                    target.flush()
                    on_progress(recorder.written)
            raise recorder.fault
    finally:
        if recorder is not None:
            recorder.release(all_listed=True)
        target.close()


def _reflector(api: ApiClient, resource: WatchedResource, recorder: Recorder) -> Reflector:
    watched = msgspec.structs.replace(resource, decode=decode_seen, decode_change=None, salvage=None)

    def on_served(error: ApiError | None) -> None:
        if error is not None:
            log.log(1, "Not recorded, because the API server does not serve it", resource=resource.name)

    last_seen = recorder.now()

    def on_event(kind: EventKind, old: Any, new: Any) -> None:
        nonlocal last_seen
        is_late = reflector.is_listing and reflector.synced.is_set()
        since = last_seen if is_late else None
        recorder.see(resource, old, new, since, is_listed=reflector.is_listing)
        if not is_late:
            last_seen = recorder.now()

    reflector = Reflector(
        api,
        watched,
        on_event=on_event,
        on_served=on_served if resource.kind not in ("Pod", "Node") else None,
    )
    return reflector


async def _follow(reflector: Reflector, recorder: Recorder) -> None:
    async def note_synced() -> None:
        await reflector.synced.wait()
        recorder.on_synced(reflector.resource)

    async with asyncio.TaskGroup() as group:
        group.create_task(note_synced())
        group.create_task(reflector.run())


@asynccontextmanager
async def record_beside(
    connection: Connection,
    folder: Path,
    kinds: Iterable[type[CustomResource]],
    now: Callable[[], float] = time.time,
) -> AsyncIterator[None]:
    """Record while a scheduler runs; if recording fails, log it and let the scheduler go on.

    Raise InputError at once if full files could not be packed.
    """
    check_arrow()

    async def run() -> None:
        async with ApiClient(connection, qps=0, user_agent="stowplan/record") as api:
            try:
                await record(api, folder, kinds=kinds, now=now)
            except StowplanError as error:
                log.error("Recording failed; scheduling continues", error)
            except Exception as error:  # a fault of ours must not end the scheduler either
                log.error(
                    "Recording failed; scheduling continues", describe(error), stacktrace=stack_of(error)
                )

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=STOP_SECONDS)  # unlike `await task`, it can be cancelled itself
        if task.done() and not task.cancelled():
            task.result()
