"""Watches of the kinds that plugins ask for: one a kind, started and ended while the scheduler runs.

The API server need not have such a kind. Until it does, its store says so (`is_served`) and is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.client.api import ApiClient
from stowplan.client.core_tasks import CoreTasks
from stowplan.client.errors import ApiError, Forbidden
from stowplan.client.resources import custom
from stowplan.client.watch import MISSING_SECONDS, OnEvent, OnUnreadable, Reflector
from stowplan.cluster import Cluster

Kind = type[CustomResource]


class KindWatches:
    """`on_event` hears of every change; `on_served` that a kind, missing until then, is there."""

    def __init__(
        self,
        api: ApiClient,
        cluster: Cluster,
        *,
        on_event: OnEvent,
        on_served: Callable[[], None],
        missing: tuple[float, float] = MISSING_SECONDS,
        on_unreadable: OnUnreadable = lambda resource, count: None,
    ) -> None:
        self._retry, self._on_unreadable = missing, on_unreadable
        self._api, self._cluster, self._on_event, self._on_served = api, cluster, on_event, on_served
        self._reflectors: dict[Kind, Reflector] = {}
        self._tasks: dict[Kind, asyncio.Task[None]] = {}
        self._group: CoreTasks | None = None
        self._ended: set[Kind] = set()
        """Decisions under way may still look at these; they are forgotten with the next change."""
        self._missing: dict[Kind, type[ApiError]] = {}
        """What has been said of the kinds that are not there."""

    def watch(self, kinds: Iterable[Kind]) -> None:
        """From now on these kinds are watched, and no others."""
        wanted = dict.fromkeys(kinds)
        for kind in self._ended - wanted.keys():
            self._cluster.forget_kind(kind)
        self._ended = self._reflectors.keys() - wanted.keys()
        for kind in self._ended:
            del self._reflectors[kind]
            self._missing.pop(kind, None)
            if kind in self._tasks and self._group is not None:
                self._group.end(self._tasks.pop(kind))
        for kind in wanted:
            if kind not in self._reflectors:
                self._add(kind)

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        async with CoreTasks() as self._group:
            for kind in self._reflectors:
                self._start(kind, self._group)
            await asyncio.Event().wait()

    @property
    def reflectors(self) -> tuple[Reflector, ...]:
        return tuple(self._reflectors.values())

    async def synced(self) -> None:
        """Waits until all that there is has been told of, or is known to be missing."""
        for reflector in tuple(self._reflectors.values()):
            await reflector.synced.wait()

    def _add(self, kind: Kind) -> None:
        store = self._cluster.watched(kind)
        for item in tuple(store):
            self._cluster.remove(item)
        store.is_served = False
        self._reflectors[kind] = Reflector(
            self._api,
            custom(kind),
            on_event=self._on_event,
            on_served=partial(self._served, kind),
            missing=self._retry,
            on_unreadable=self._on_unreadable,
        )
        if self._group is not None:
            self._start(kind, self._group)

    def _start(self, kind: Kind, group: CoreTasks) -> None:
        self._tasks[kind] = group.start(f"watch of {kind.definition.plural}", self._reflectors[kind].run())

    def _served(self, kind: Kind, error: ApiError | None) -> None:
        store = self._cluster.watched(kind)
        store.is_served, was_served = error is None, store.is_served
        if error is not None:
            self._say_missing(kind, error)
        elif not was_served:
            if self._missing.pop(kind, None):
                log.log(0, "Kind is there now", kind=kind.definition.kind, objects=len(store))
            self._on_served()

    def _say_missing(self, kind: Kind, error: ApiError) -> None:
        """Once, and again only if it is missing for another reason."""
        if self._missing.get(kind) is type(error):
            return
        self._missing[kind] = type(error)
        where = kind.definition
        if isinstance(error, Forbidden):
            advice = (
                f"give this account the verbs get, list and watch of {where.plural} in the API group "
                f"{where.group!r}"
            )
        else:
            source = f"{kind.__module__}:{kind.__qualname__}"
            advice = f"install its CustomResourceDefinition: stowplan crd {source} | kubectl apply -f -"
        log.warn(
            "Kind is not served; plugins that watch it see none until it is",
            kind=where.kind,
            resource=f"{where.plural}.{where.group}/{where.version}",
            err=error.message,
            advice=advice,
        )
