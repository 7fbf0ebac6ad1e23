"""Reads a cluster once: every kind that a scheduler watches, in pages, and nothing is ever written.

For commands that answer a question and end. What must keep up with a cluster uses `watch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from stowplan.api.custom import CustomResource
from stowplan.api.meta import decode
from stowplan.api.nesting import decode_deep
from stowplan.api.pod import Pod
from stowplan.api.workloads import PriorityClass
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError, Forbidden, Gone, NotFound, Unreachable
from stowplan.client.resources import PODS, RESOURCES, Watched, WatchedResource, custom
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
    unserved: list[type[CustomResource]] = []
    """Requested kinds that are missing."""
    faults: list[InputError] = []
    """Objects that cannot be read, and are left out."""
    is_torn: bool = False
    """Whether a list had to be started over: of what `on_object` had, some may be gone."""


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
    reading.unserved += [kind for kind in wanted if custom(kind).name in reading.missing]
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
            page = decode_checked(page_of, (await coming).data)
            if page.metadata.continue_:
                coming = request(**{"continue": page.metadata.continue_})
            yield page
            if not page.metadata.continue_:
                return
    finally:
        coming.cancel()
        with suppress(Exception, asyncio.CancelledError):  # one that nobody waits for any more
            await coming


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


def read_object(resource: WatchedResource, raw: bytes) -> tuple[Watched | None, InputError | None]:
    """Decode an object; return it, or None, and what is wrong with it. No content makes it raise."""
    try:
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
