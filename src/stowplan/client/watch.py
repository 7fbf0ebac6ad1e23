"""List and watch: keeps up with one collection and tells of every change once, whatever happens on the way.

A Reflector lists the collection in pages, then follows its changes from that resourceVersion. A watch that
ends, breaks or falls silent is resumed where it was; only when the server no longer has that version is the
collection listed again, and the differences to what was known are told.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable
from typing import Literal

import msgspec

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError, Forbidden, Gone, NotFound, Unreachable, error_of
from stowplan.client.reading import PAGE, checked, identity_of, pages
from stowplan.client.resources import RESOURCES, Watched, WatchedResource
from stowplan.errors import InputError

__all__ = ["RESOURCES", "EventKind", "OnEvent", "OnServed", "Reflector", "WatchedResource"]

WATCH_SECONDS = (300, 600)
SILENCE_SECONDS = 150.0  # bookmarks come once a minute, the first of a watch after up to two
SHORT_WATCH_SECONDS = 1.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.8, 30.0
FAILURES_COUNTED = 8
FAILURES_UNREACHABLE = 3  # to ask a server that is down every few seconds costs nobody anything
MISSING_SECONDS = (1.0, 3.0)  # between two looks for a kind that the server does not have yet

TOO_LARGE = "Too large resource version"

EventKind = Literal["added", "modified", "deleted"]
OnEvent = Callable[[EventKind, Watched | None, Watched | None], None]
OnServed = Callable[[ApiError | None], None]


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_event = msgspec.json.Decoder(_Event).decode


class Reflector:
    """`on_event` gets the kind of change with the object before and after it.

    What has been told of is in `objects`; `synced` is set once the first list has been told of whole.

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
    ) -> None:
        self.resource, self.synced = resource, asyncio.Event()
        self.objects: dict[str, Watched] = {}
        self._api, self._on_event, self._on_served = api, on_event, on_served
        self._silence, self._first_backoff, self._page_size = silence, first_backoff, page_size
        self._short_watch, self._missing = short_watch, missing
        self._draw = draw or random.Random()
        self._version = ""
        self._failures = 0

    async def run(self) -> None:
        """Goes on until it is cancelled; what goes wrong is logged and tried again."""
        was_missing = False
        while True:
            is_missing = False
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (ApiError, InputError) as error:
                if self._on_served is not None and isinstance(error, (NotFound, Forbidden)):
                    is_missing = True
                    if was_missing or not self._version:  # a server that starts may say so for a moment
                        self._be_without(error, self._on_served)
                    await asyncio.sleep(self._draw.uniform(*self._missing))
                else:
                    self._note(error)
                    await self._back_off(error)
            was_missing = is_missing

    async def _list(self) -> None:
        """Tells of the differences between what is known and what the server has."""
        unseen, version = set(self.objects), ""
        async for page in pages(self._api, self.resource, self._page_size):
            for raw in page.items or ():
                key, _ = self._put(raw)
                unseen.discard(key)
            version = page.metadata.resource_version
        for key in unseen:
            self._tell("deleted", self.objects.pop(key), None)
        self._version = version
        self.synced.set()
        if self._on_served is not None:
            self._on_served(None)

    def _be_without(self, error: ApiError, on_served: OnServed) -> None:
        self._version = ""
        while self.objects:
            self._tell("deleted", self.objects.popitem()[1], None)
        on_served(error)
        self.synced.set()

    async def _watch(self) -> None:
        """Follows the changes until the server ends the watch, as it does after some minutes."""
        loop, version = asyncio.get_running_loop(), self._version
        opened_at: list[float] = []
        query = self.resource.query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(self._draw.randint(*WATCH_SECONDS)),
        )
        try:
            await self._api.stream(
                self.resource.path,
                self._on_line,
                query=query,
                silence=self._silence,
                on_open=lambda: opened_at.append(loop.time()),
            )
        finally:
            lasted = loop.time() - opened_at[0] if opened_at else 0
            is_sound = self._version != version or lasted >= self._short_watch
            if is_sound:
                self._failures = 0
        if not is_sound:
            await self._back_off()

    def _on_line(self, line: bytes) -> None:
        event = checked(_event, line)
        if event.type == "ERROR":
            raise error_of(0, event.object)
        if event.type == "BOOKMARK":
            self._version = identity_of(event.object).metadata.resource_version
        elif event.type == "DELETED":
            self._version = self._remove(event.object)
        else:
            _, self._version = self._put(event.object)

    def _put(self, raw: msgspec.Raw) -> tuple[str, str]:
        """Takes in an object as it is now; its key and version."""
        item = self._decoded(raw)
        if item is None:
            identity = identity_of(raw)
            return identity.key, identity.metadata.resource_version
        key, old, (uid, version) = item.key, self.objects.get(item.key), _stamp(item)
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
        """Lets go of an object, telling its last state; the version of the deletion."""
        identity, last = identity_of(raw), self._decoded(raw)
        old = self.objects.pop(last.key if last is not None else identity.key, None)
        if old is not None:
            self._tell("deleted", old if last is None else last, None)
        return identity.metadata.resource_version

    def _tell(self, kind: EventKind, old: Watched | None, new: Watched | None) -> None:
        try:
            self._on_event(kind, old, new)
        except Exception as error:  # tried again it would fail again, and the events after it matter too
            log.error(
                "Event handler failed; going on with the next event",
                error,
                resource=self.resource.name,
                object=new or old,
                event=kind,
                stacktrace="".join(traceback.format_exception(error)),
            )

    def _decoded(self, raw: msgspec.Raw) -> Watched | None:
        try:
            return self.resource.decode(raw)
        except Exception as error:  # whatever is wrong with one object, the others must go on
            log.error(
                "Object cannot be read; ignoring it",
                error,
                resource=self.resource.name,
                object=identity_of(raw).key,
            )
            return None

    def _note(self, error: ApiError | InputError) -> None:
        reason = error.explanation if isinstance(error, ApiError) else str(error)
        if _asks_for_a_new_list(error):
            self._version = ""
            log.log(1, "Listing again", resource=self.resource.name, reason=reason)
            return
        if self._version and not self._failures:  # it worked until now, and most likely will at once
            log.log(2, "Watch broke off; resuming", resource=self.resource.name, err=reason)
            return
        log.warn("Cannot watch; trying again", resource=self.resource.name, err=reason)
        if isinstance(error, NotFound) and not self._version:
            self.synced.set()  # the server does not have this resource at all: there is nothing to wait for
        elif self._on_served is not None and isinstance(error, ApiError) and error.status >= 500:
            self.synced.set()  # such as a conversion webhook that is down: no reason for all pods to wait

    async def _back_off(self, error: Exception | None = None) -> None:
        """Waits before the next try, longer each time; the first one after all was well comes at once."""
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
        isinstance(error, ApiError) and (error.status == 400 or TOO_LARGE in error.message)
    )


def _stamp(item: Watched) -> tuple[str, str]:
    if isinstance(item, Pod):
        return item.uid, item.resource_version
    return item.metadata.uid, item.metadata.resource_version
