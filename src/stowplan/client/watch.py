"""List and watch: `read_cluster` reads every kind once; a Reflector follows one collection.

A Reflector reports every change once, whatever goes wrong on the way. It lists the collection in pages, then
follows its changes from that resourceVersion. A watch that ends, breaks or falls silent is resumed where it
was; only when the server no longer has that version is the collection listed again, and the differences from
what was known are reported.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.meta import UnreadableObject, decode
from stowplan.api.nesting import decode_deep
from stowplan.api.pod import Pod
from stowplan.api.workloads import PriorityClass
from stowplan.client.api import PODS, RESOURCES, ApiClient, Watched, WatchedResource, custom
from stowplan.client.errors import ApiError, Forbidden, Gone, NotFound, Unreachable, error_of
from stowplan.errors import InputError, StowplanError
from stowplan.http11.client import Reply

PAGE = 500
TRIES = 3
ESSENTIAL = ("Node", PODS.kind)
"""Kinds that a cluster cannot be read without."""
PRIORITY_CLASSES = WatchedResource(
    kind="PriorityClass",
    path="/apis/scheduling.k8s.io/v1/priorityclasses",
    decode=partial(decode, PriorityClass),
    namespaced=False,
)
"""No scheduler watches them, but manifests that the API server has not seen yet are completed from them."""
WORKLOADS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "ReplicationController": ("/api/v1", "replicationcontrollers"),
}
"""Where kinds that make pods live."""

T = TypeVar("T")
OnObject = Callable[[Watched], None]


class ListMeta(msgspec.Struct, rename={"continue_": "continue", "resource_version": "resourceVersion"}):
    resource_version: str = ""
    continue_: str = ""


class Page(msgspec.Struct):
    """A part of a collection, its objects still as text."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Identity(msgspec.Struct, gc=False):
    """The fields of an object that identify it."""

    metadata: Meta = msgspec.field(default_factory=Meta)

    @property
    def key(self) -> str:
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


page_of = msgspec.json.Decoder(Page).decode
identity_of = partial(decode, Identity)


class Reading(msgspec.Struct):
    """The contents of a cluster when it was read."""

    objects: list[Watched] = []
    on_object: OnObject | None = None
    missing: dict[str, ApiError] = {}
    """Collections, by the plural of their kind, that the server does not have or does not let us read."""
    missing_paths: set[str] = set()
    """The paths of the same: several API groups have a kind with the plural `podgroups`."""
    unserved: list[type[CustomResource]] = []
    """Requested kinds that are missing."""
    faults: list[InputError] = []
    """Objects that cannot be read, and are left out."""
    is_torn: bool = False
    """Whether a list had to start over: some objects that `on_object` was given may no longer exist."""


async def read_cluster(
    api: ApiClient, kinds: Iterable[type[CustomResource]] = (), on_object: OnObject | None = None
) -> Reading:
    """All objects that a scheduler looks at; `kinds` are those that its plugins watch besides.

    `on_object` has them as they arrive, so that work on them need not wait for the last.
    Raises the ApiError where nodes or pods cannot be read, or where the server cannot be asked at all; an
    InputError where the kubeconfig's credentials cannot be had.
    """
    reading, wanted = Reading(on_object=on_object), tuple(kinds)
    resources = (*RESOURCES, PRIORITY_CLASSES, *map(custom, wanted))
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_read(api, resource, reading)) for resource in resources]
    except* StowplanError as failures:
        raise failures.exceptions[0] from None
    for task in asked:  # in this order whichever came first, so that the same cluster reads the same
        reading.objects += task.result()
    reading.unserved += [kind for kind in wanted if custom(kind).path in reading.missing_paths]
    return reading


async def read_workload(api: ApiClient, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    """An object with a pod template, which no scheduler watches, as plain data; None if there is none."""
    group, plural = WORKLOADS[kind]
    try:
        found: dict[str, Any] = await api.get_json(
            f"{group}/namespaces/{quote(namespace, safe='')}/{plural}/{quote(name, safe='')}"
        )
    except NotFound:
        return None
    return found


async def pages(api: ApiClient, resource: WatchedResource, size: int = PAGE) -> AsyncIterator[Page]:
    """Yield the collection page by page, as it was when the first page was requested.

    The next page is requested before a page is yielded: the server prepares one while the other is decoded.
    """

    def request(**more: str) -> asyncio.Task[Reply]:
        query = resource.query(limit=str(size), **more)
        return asyncio.create_task(api.request("GET", resource.path, query=query))

    coming = request()
    try:
        while True:
            # Shielded: cancelling must end this one, whatever becomes of the request.
            page = decode_checked(page_of, (await asyncio.shield(coming)).data)
            if page.metadata.continue_:
                coming = request(**{"continue": page.metadata.continue_})
            yield page
            if not page.metadata.continue_:
                return
    finally:
        coming.cancel()
        coming.add_done_callback(_ignore_outcome)  # nobody waits for it any more


def _ignore_outcome(task: asyncio.Task[Reply]) -> None:
    if not task.cancelled():
        task.exception()


async def _read(api: ApiClient, resource: WatchedResource, reading: Reading) -> list[Watched]:
    for _ in range(TRIES - 1):
        try:
            return await _list(api, resource, reading)
        except Gone:  # so slow that the server no longer has what the first page was a part of
            reading.is_torn = True
    return await _list(api, resource, reading)


async def _list(api: ApiClient, resource: WatchedResource, reading: Reading) -> list[Watched]:
    found: list[Watched] = []
    try:
        async for page in pages(api, resource):
            found += _decode_page(resource, page, reading)
    except (NotFound, Forbidden) as error:
        if resource.kind in ESSENTIAL:
            raise
        reading.missing[resource.name] = error
        reading.missing_paths.add(resource.path)
    return found


def _decode_page(resource: WatchedResource, page: Page, reading: Reading) -> Iterator[Watched]:
    for raw in page.items or ():
        item, fault = read_object(resource, raw)
        if fault is not None:
            reading.faults.append(fault)
        if item is None or (isinstance(item, Pod) and item.fault and not item.node_name):
            continue  # a part of a pod is not what anyone wants placed
        if reading.on_object is not None:
            reading.on_object(item)
        yield item


def read_object(
    resource: WatchedResource, raw: bytes, known: Mapping[str, Watched] | None = None
) -> tuple[Watched | None, InputError | None]:
    """Decode an object; return it, or None, and what is wrong with it. No content makes it raise.

    `known` has objects by key as they were before, this one probably among them.
    """
    try:
        if known is not None and resource.decode_change is not None:
            return resource.decode_change(raw, known), None
        return resource.decode(raw), None
    except Exception as error:  # whatever is wrong with one object, the others are read
        fault = _fault_of(resource, raw, error)
    if resource.salvage is None:
        return None, fault
    try:
        return resource.salvage(raw, str(fault)), fault
    except Exception:
        return None, fault


def _fault_of(resource: WatchedResource, raw: bytes, error: Exception) -> InputError:
    try:
        name = identity_of(raw).key
    except InputError:
        name = "without a name"
    what = f"{resource.kind or resource.name} {name}"
    if isinstance(error, InputError):
        return InputError(error.message, what=what, field=error.field)
    return InputError(str(error) or type(error).__name__, what=what)


def decode_checked(decoder: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode_deep(decoder, data)
    except (ValueError, InputError) as error:
        raise Unreachable(f"unexpected response from the API server: {error}") from None


# A watch on a connection that broke without a word looks like one of a quiet collection. Bookmarks come only
# once a minute, but also two seconds before a watch ends: so watches are short, and each proves itself alive
# by its end. The next request goes over the same connection and costs the API server little.
WATCH_SECONDS = (25, 30)
SILENCE_SECONDS = 35.0
OVERDUE_SECONDS = 10.0  # after the end that the server was asked for
CHECKPOINT_SECONDS = 3  # the shortest watch that has a bookmark before its end
SHORT_WATCH_SECONDS = 1.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.8, 30.0
FAILURES_COUNTED = 8
FAILURES_UNREACHABLE = 3  # retrying a server that is down every few seconds is cheap
MISSING_SECONDS = (1.0, 3.0)  # between two looks for a kind that the server does not have yet

TOO_LARGE = "ResourceVersionTooLarge"

EventKind = Literal["added", "modified", "deleted"]
OnEvent = Callable[[EventKind, Watched | None, Watched | None], None]
OnServed = Callable[[ApiError | None], None]
OnUnreadable = Callable[[str, int], None]
"""Called with the number of unreadable objects of a resource whenever it changes."""
OnFault = Callable[[UnreadableObject], None]
"""Called with an object that cannot be read, but not again for a newer version with the same wrong field."""
MAX_REPORTED = 100
"""Of a kind, so many unreadable objects are reported one by one: an event for each of thousands would keep
those of pods waiting."""


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode
_EVENT = re.compile(rb'\{"type":"([A-Z]+)","object":(\{.*\})\}\s*', re.DOTALL)
"""A line as API servers write it."""


class Reflector:
    """`on_event` gets the kind of change with the object before and after it.

    Everything that was reported is in `objects`; `synced` is set once the whole first list was reported.
    `catch_up` proves that what is known is current.

    With `on_served` the server need not have the kind, or let us read it: `on_served` hears, as often as that
    shows, that it does (None) or the error, and while it does not, all objects count as deleted.
    """

    def __init__(
        self,
        api: ApiClient,
        resource: WatchedResource,
        *,
        on_event: OnEvent,
        on_served: OnServed | None = None,
        silence: float = SILENCE_SECONDS,
        first_backoff: float = FIRST_BACKOFF,
        missing: tuple[float, float] = MISSING_SECONDS,
        page_size: int = PAGE,
        short_watch: float = SHORT_WATCH_SECONDS,
        draw: random.Random | None = None,
        on_unreadable: OnUnreadable = lambda resource, count: None,
        on_fault: OnFault = lambda found: None,
    ) -> None:
        self.resource, self.synced = resource, asyncio.Event()
        self.objects: dict[str, Watched] = {}
        self.unreadable: dict[str, UnreadableObject] = {}
        """Objects that cannot be read, or only in part, by key."""
        self._api, self._on_event, self._on_served = api, on_event, on_served
        self._on_unreadable, self._on_fault = on_unreadable, on_fault
        self._silence, self._first_backoff, self._page_size = silence, first_backoff, page_size
        self._short_watch, self._missing = short_watch, missing
        self._draw = draw or random.Random()
        self.version = ""
        self._failures = 0
        self._listed_at = -math.inf
        self._is_listing = self._was_missing = False
        self._step = asyncio.timeout(None)
        """What `run` is doing; `catch_up` ends it early."""
        self._current: asyncio.Event | None = None
        """Set once everything is reported that the server had when `catch_up` was called."""
        self._checkpoint: int | None = None
        """The version that shows this, on the way to it."""

    async def run(self) -> None:
        """Run until cancelled; errors are logged and retried."""
        while True:
            try:
                async with asyncio.timeout(None) as self._step:
                    await self._follow()
            except TimeoutError:
                if not self._step.expired():  # then it was not `catch_up`
                    raise

    async def catch_up(self, since: float = math.inf) -> None:
        """Return once everything is reported that the server has now; at once if it was listed after `since`.

        A watch cannot show this: its connection may have broken without a word, or the server may be behind.
        """
        if self.is_listed_since(since):
            return
        if self._current is None:
            self._current, self._checkpoint = asyncio.Event(), None
            if not self._is_listing and self._step.when() is None:
                with suppress(RuntimeError):  # not running yet, or between two steps
                    self._step.reschedule(asyncio.get_running_loop().time())
        await self._current.wait()

    @property
    def is_listing(self) -> bool:
        """Whether changes are reported that a list shows, which may have happened long ago."""
        return self._is_listing

    def is_listed_since(self, moment: float) -> bool:
        """Whether everything is reported that the server had then, by the loop's clock."""
        return self._listed_at >= moment

    async def _follow(self) -> None:
        """List, if necessary, and watch until the watch ends."""
        is_missing = False
        try:
            if self._current is not None and len(self.objects) < self._page_size:
                self.version = ""  # one page is as quick as anything else, and proof enough
            if not self.version:
                await self._list()
            if self._current is None or len(self.objects) >= self._page_size:
                await self._watch()
        except Exception as error:  # a reader goes on whatever it is sent
            if not isinstance(error, (ApiError, InputError)):
                log.error(
                    "Watch failed; listing again",
                    error,
                    resource=self.resource.name,
                    stacktrace="".join(traceback.format_exception(error)),
                )
                error = Unreachable(f"{type(error).__name__}: {error}")
                self.version = ""
            if self._on_served is not None and isinstance(error, (NotFound, Forbidden)):
                is_missing = True
                if self._was_missing or not self.version:  # a server that starts may say so for a moment
                    self._be_without(error, self._on_served)
                await asyncio.sleep(self._draw.uniform(*self._missing))
            else:
                self._note(error)
                await self._back_off(error)
        finally:
            self._was_missing = is_missing

    async def _list(self) -> None:
        """Report the differences between what is known and what the server has."""
        wanted, began = self._current, asyncio.get_running_loop().time()
        self._is_listing = True
        try:
            await self._list_pages()
        finally:
            self._is_listing = False
        self._listed_at = began
        if self._current is wanted:  # asked for before this list was begun
            self._be_current()

    async def _list_pages(self) -> None:
        unseen, version = {*self.objects, *self.unreadable}, ""
        async for page in pages(self._api, self.resource, self._page_size):
            for raw in page.items or ():
                key, _ = self._put(raw)
                unseen.discard(key)
            version = page.metadata.resource_version
        for key in unseen:
            self._forget_fault(key)
            if (old := self.objects.pop(key, None)) is not None:
                self._tell("deleted", old, None)
        self.version = version
        self.synced.set()
        if self._on_served is not None:
            self._on_served(None)

    def _be_without(self, error: ApiError, on_served: OnServed) -> None:
        self.version = ""
        for key in tuple(self.unreadable):
            self._forget_fault(key)
        while self.objects:
            self._tell("deleted", self.objects.popitem()[1], None)
        on_served(error)
        self._need_not_wait()

    def _need_not_wait(self) -> None:
        """There is nothing to know of this kind, or no way to."""
        self._listed_at = asyncio.get_running_loop().time()
        self.synced.set()
        self._be_current()

    def _be_current(self) -> None:
        if self._current is not None:
            self._current.set()
        self._current = self._checkpoint = None

    async def _watch(self) -> None:
        """Follow the changes until the server ends the watch, as it does after half a minute."""
        if self._current is not None:
            await self._set_checkpoint()
        loop, version = asyncio.get_running_loop(), self.version
        opened_at: list[float] = []
        to_checkpoint = self._checkpoint is not None
        seconds = CHECKPOINT_SECONDS if to_checkpoint else self._draw.randint(*WATCH_SECONDS)
        query = self.resource.query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(seconds),
        )
        try:
            async with asyncio.timeout(
                seconds + OVERDUE_SECONDS
            ):  # whatever drips in: it is no watch of ours
                await self._api.stream(
                    self.resource.path,
                    self.on_line,
                    query=query,
                    silence=self._silence,
                    on_open=lambda: opened_at.append(loop.time()),
                )
        except TimeoutError:
            raise Unreachable(f"GET {self.resource.path}: the watch did not end at its time-out") from None
        finally:
            lasted = loop.time() - opened_at[0] if opened_at else 0
            is_sound = self.version != version or lasted >= self._short_watch
            if is_sound:
                self._failures = 0
        if to_checkpoint and self._checkpoint is not None:
            self.version = ""  # no bookmarks, or another server of several that is behind: list instead
        elif not is_sound:
            await self._back_off()

    async def _set_checkpoint(self) -> None:
        """Ask the server for its latest version: once that is reported, so is everything it had then."""
        answer = await self._api.request("GET", self.resource.path, query={"limit": "1"})
        latest = decode_checked(page_of, answer.data).metadata.resource_version
        if not (latest.isdecimal() and self.version.isdecimal()):
            self.version = ""  # versions that cannot be compared, before Kubernetes 1.35: list instead
            raise Gone(410, "Expired", "resource versions are not numbers")
        self._checkpoint = int(latest)
        self._look_at_checkpoint()

    def _look_at_checkpoint(self) -> None:
        if self._checkpoint is not None and int(self.version) >= self._checkpoint:
            self._be_current()

    def on_line(self, line: bytes) -> None:
        """Take one line of a watch's response: an event."""
        event = _event_of(line)
        if event.type == "ERROR":
            raise error_of(0, event.object)
        if event.type == "BOOKMARK":
            self.version = identity_of(event.object).metadata.resource_version
        elif event.type == "DELETED":
            self.version = self._remove(event.object)
        else:
            _, self.version = self._put(event.object, is_change=event.type == "MODIFIED")
        if self._checkpoint is not None:
            self._look_at_checkpoint()

    def _put(self, raw: msgspec.Raw, *, is_change: bool = False) -> tuple[str, str]:
        """Store an object as it is now; return its key and version."""
        item, fault = read_object(self.resource, raw, self.objects if is_change else None)
        identity = None if fault is None else self._identity_of(raw, fault)
        if item is not None:
            key, (uid, version) = item.key, _stamp(item)
        else:
            assert identity is not None
            key, version = identity.key, identity.metadata.resource_version or self.version
        if fault is None or identity is None:
            self._forget_fault(key)
        else:
            meta = identity.metadata
            self._note_fault(
                key, UnreadableObject(meta.namespace, meta.name, meta.uid, meta.resource_version, fault)
            )
        old = self.objects.get(key)
        if item is None:
            if old is not None:  # nothing must be decided by what it was before
                self._tell("deleted", self.objects.pop(key), None)
            return key, version
        old_uid, old_version = _stamp(old) if old is not None else ("", "")
        if old is not None and uid == old_uid and version == old_version:
            return key, version
        self.objects[key] = item
        if old is not None and uid != old_uid:  # deleted and made again while we were not looking
            self._tell("deleted", old, None)
            old = None
        self._tell("added" if old is None else "modified", old, item)
        return key, version

    def _remove(self, raw: msgspec.Raw) -> str:
        """Remove an object and report its last state; return the version of the deletion."""
        last, fault = read_object(self.resource, raw)
        identity = self._identity_of(raw, fault)
        key = identity.key if last is None else last.key
        self._forget_fault(key)
        old = self.objects.pop(key, None)
        if old is not None:
            self._tell("deleted", old if last is None else last, None)
        return identity.metadata.resource_version or self.version

    def _identity_of(self, raw: msgspec.Raw, fault: InputError | None) -> Identity:
        try:
            return identity_of(raw)
        except InputError as error:  # not even its name: there is nothing that it could be about
            log.error("Object without a name", fault or error, resource=self.resource.name)
            return Identity()

    def _note_fault(self, key: str, found: UnreadableObject) -> None:
        known, self.unreadable[key] = self.unreadable.get(key), found
        self._on_unreadable(self.resource.name, len(self.unreadable))
        is_new = known is None or (known.uid, known.fault.field) != (found.uid, found.fault.field)
        if is_new:
            log.error("Object cannot be read", found.fault, resource=self.resource.name, object=key)
            if len(self.unreadable) <= MAX_REPORTED:
                self._on_fault(found)

    def _forget_fault(self, key: str) -> None:
        if self.unreadable and self.unreadable.pop(key, None) is not None:
            self._on_unreadable(self.resource.name, len(self.unreadable))

    def _tell(self, kind: EventKind, old: Watched | None, new: Watched | None) -> None:
        try:
            self._on_event(kind, old, new)
        except Exception as error:  # tried again it would fail again, and the events after it matter too
            log.error(
                "Event handler failed; continuing with the next event",
                error,
                resource=self.resource.name,
                object=new or old,
                event=kind,
                stacktrace="".join(traceback.format_exception(error)),
            )

    def _note(self, error: ApiError | InputError) -> None:
        reason = error.explanation if isinstance(error, ApiError) else str(error)
        if _asks_for_a_new_list(error):
            self.version = ""
            log.log(1, "Listing again", resource=self.resource.name, reason=reason)
            return
        if self.version and not self._failures:  # it worked until now, and most likely will at once
            log.log(2, "Watch interrupted; resuming", resource=self.resource.name, err=reason)
            return
        log.warn("Watch failed; retrying", resource=self.resource.name, err=reason)
        if isinstance(error, NotFound) and not self.version:
            self._need_not_wait()  # the server does not have this resource at all
        elif self._on_served is not None and isinstance(error, ApiError) and error.status >= 500:
            self._need_not_wait()  # such as a conversion webhook that is down: no reason for all pods to wait

    async def _back_off(self, error: Exception | None = None) -> None:
        """Wait before the next attempt, longer each time; the first after a success comes at once."""
        wait = getattr(error, "retry_after", None) or 0.0
        if self._failures:
            longest = min(LONGEST_BACKOFF, 2 * self._first_backoff * 2 ** (self._failures - 1))
            wait = max(wait, self._draw.uniform(longest / 2, longest))
        await asyncio.sleep(wait)
        if self._failures < (FAILURES_UNREACHABLE if isinstance(error, Unreachable) else FAILURES_COUNTED):
            self._failures += 1


def _asks_for_a_new_list(error: Exception) -> bool:
    """The version we have is too old, or the server has gone back to before it (restored from a backup)."""
    return isinstance(error, Gone) or (
        isinstance(error, ApiError) and (error.status == 400 or TOO_LARGE in error.causes)
    )


def _event_of(line: bytes) -> _Event:
    try:
        return _event(line)
    except (ValueError, RecursionError):
        # An object that is nested too deep to be skipped is taken out as it stands, and decoded by itself.
        if found := _EVENT.fullmatch(line):
            return _Event(found[1].decode(), msgspec.Raw(found[2]))
        return decode_checked(_event, line)


def _stamp(item: Watched) -> tuple[str, str]:
    if isinstance(item, Pod):
        return item.uid, item.resource_version
    return item.metadata.uid, item.metadata.resource_version
