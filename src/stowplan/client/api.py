"""Requests to one API server: the paths of the kinds we know, and the writes that a scheduler makes.

Replies are bytes; the caller decodes what it needs of them. Every rejection is an ApiError.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Raw

from stowplan.api import protobuf
from stowplan.api.custom import CustomResource
from stowplan.api.kinds import KINDS
from stowplan.api.meta import Object, Wire, decode, decode_partly
from stowplan.api.nesting import decode_deep, members
from stowplan.api.pod import Pod, PodObject
from stowplan.api.quantity import encode_hook
from stowplan.api.resource import ResourceClaim, ResourceClaimStatus
from stowplan.client import claim_edits
from stowplan.client.connection import Connection, Pool
from stowplan.client.errors import ApiError, NotAllowed, NotFound, Unreachable, error_of
from stowplan.http11.client import Reply

Watched = Pod | Object


class WatchedResource(msgspec.Struct, frozen=True, kw_only=True):
    """A kind as one collection over all namespaces. Anything with a decoder can be watched, CRDs included."""

    path: str
    """Path of the collection, such as /apis/apps/v1/replicasets."""
    decode: Callable[[bytes], Watched]
    struct: type[Object] | None = None
    """What `decode` reads objects into, if that can be prepared before there are any."""
    decode_change: Callable[[bytes, Mapping[str, Watched]], Watched] | None = None
    """Decodes an object that may be known, by key, as it was before; None if `decode` does that, too."""
    salvage: Callable[[bytes, str], Watched] | None = None
    """Reads what it can of an object that cannot be decoded, for the reason given. For kinds that hold what
    others must not get, so that they count whatever is wrong with them; all others count as deleted."""
    namespaced: bool = True
    field_selector: str = ""
    label_selector: str = ""
    kind: str = ""

    @property
    def name(self) -> str:
        """The plural that paths and permissions use."""
        return self.path.rpartition("/")[2]

    @property
    def api_version(self) -> str:
        return self.path.removeprefix("/api/").removeprefix("/apis/").rpartition("/")[0]

    def collection(self, namespace: str) -> str:
        if not self.namespaced:
            return self.path
        group, _, plural = self.path.rpartition("/")
        return f"{group}/namespaces/{namespace}/{plural}"

    def item(self, namespace: str, name: str) -> str:
        return f"{self.collection(namespace)}/{name}"

    def query(self, **others: str) -> dict[str, str]:
        """What a request for the collection says besides its path."""
        if self.field_selector:
            others["fieldSelector"] = self.field_selector
        if self.label_selector:
            others["labelSelector"] = self.label_selector
        return others


CORE, STORAGE, DEVICES = "/api/v1", "/apis/storage.k8s.io/v1", "/apis/resource.k8s.io/v1"


def _resource(
    kind: str,
    path: str,
    *,
    namespaced: bool = True,
    salvage: Callable[[bytes, str], Watched] | None = None,
) -> WatchedResource:
    return WatchedResource(
        kind=kind,
        path=path,
        decode=partial(decode, KINDS[kind]),
        struct=KINDS[kind],
        salvage=salvage,
        namespaced=namespaced,
    )


def _salvage_claim(data: bytes, fault: str) -> Watched:
    """Devices that the claim holds must not be given to others."""
    return decode_partly(ResourceClaim, data)


PODS = WatchedResource(
    kind="Pod",
    path=f"{CORE}/pods",
    decode=Pod.decode,
    struct=PodObject,
    decode_change=Pod.decode_change,
    salvage=Pod.salvage,
    field_selector="status.phase!=Succeeded,status.phase!=Failed",
)

RESOURCES = (
    # Nodes and namespaces first: a pod means little before they are known.
    _resource("Namespace", f"{CORE}/namespaces", namespaced=False),
    _resource("Node", f"{CORE}/nodes", namespaced=False),
    PODS,
    _resource("PersistentVolume", f"{CORE}/persistentvolumes", namespaced=False),
    _resource("PersistentVolumeClaim", f"{CORE}/persistentvolumeclaims"),
    _resource("ReplicationController", f"{CORE}/replicationcontrollers"),
    _resource("Service", f"{CORE}/services"),
    _resource("ReplicaSet", "/apis/apps/v1/replicasets"),
    _resource("StatefulSet", "/apis/apps/v1/statefulsets"),
    _resource("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets"),
    _resource("CSIDriver", f"{STORAGE}/csidrivers", namespaced=False),
    _resource("CSINode", f"{STORAGE}/csinodes", namespaced=False),
    _resource("CSIStorageCapacity", f"{STORAGE}/csistoragecapacities"),
    _resource("StorageClass", f"{STORAGE}/storageclasses", namespaced=False),
    _resource("VolumeAttachment", f"{STORAGE}/volumeattachments", namespaced=False),
    _resource("DeviceClass", f"{DEVICES}/deviceclasses", namespaced=False),
    _resource("ResourceClaim", f"{DEVICES}/resourceclaims", salvage=_salvage_claim),
    _resource("ResourceSlice", f"{DEVICES}/resourceslices", namespaced=False),
)
"""Everything that a scheduler watches."""
FOLLOWED = tuple(
    msgspec.structs.replace(PODS, field_selector=f"{PODS.field_selector},spec.nodeName!=")
    if resource is PODS
    else resource
    for resource in RESOURCES
)
"""The same without pods that have no node, for processes that schedule none."""

_BY_TYPE: dict[type, WatchedResource] = {
    Pod: PODS,
    PodObject: PODS,
    **{KINDS[resource.kind]: resource for resource in RESOURCES if resource is not PODS},
}


def resource_of(item: Watched) -> WatchedResource:
    """Return the resource of an object."""
    return custom(type(item)) if isinstance(item, CustomResource) else _BY_TYPE[type(item)]


@lru_cache(maxsize=256)
def custom(kind: type[CustomResource]) -> WatchedResource:
    """Return the resource of a kind that is declared as a struct."""
    where = kind.definition
    return WatchedResource(
        kind=where.kind,
        path=where.path,
        decode=partial(decode, kind),
        struct=kind,
        namespaced=where.namespaced,
        label_selector=where.label_selector,
    )


JSON = "application/json"
METADATA_ALONE = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""Accept header for writes whose response is ignored: it saves the server encoding the whole object."""
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
RETRIES = 10
OPEN_SECONDS = 10.0
"""Time limit for the head of a watch's response; an API server sends it at once."""
MAX_QUEUED, FEW_QUEUED = 32, 16
"""With so many requests queued, `wait_for_capacity` waits until so few are left: those go at once."""
ANSWERS_KEPT = 256
_OTHER_UID = re.compile("UID in (the )?precondition|metadata.uid: Invalid value")

T = TypeVar("T", bound=Object)


class RateLimit:
    """A token bucket: `qps` requests a second, and `burst` at once after a pause; no limit if qps is 0."""

    def __init__(self, qps: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.qps, self.burst = qps, max(burst, 1)
        self._clock = clock
        self._tokens, self._filled_at = float(self.burst), clock()

    def take(self) -> float:
        """Return how many seconds to wait before sending the next request."""
        if self.qps <= 0:
            return 0.0
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._filled_at) * self.qps) - 1
        self._filled_at = now
        return max(-self._tokens / self.qps, 0.0)  # taken in advance, so that whoever asks next waits longer


class UserInfo(Wire, frozen=True):
    """The user that a token belongs to."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenReviewStatus(Wire, frozen=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()


class _TokenReview(Wire, frozen=True):
    status: _TokenReviewStatus = _TokenReviewStatus()


class _AccessReviewStatus(Wire, frozen=True):
    allowed: bool = False


class _AccessReview(Wire, frozen=True):
    status: _AccessReviewStatus = _AccessReviewStatus()


class _Binding(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    metadata: _BindingMetadata
    target: _Target
    api_version: str = "v1"
    kind: str = "Binding"

    def as_protobuf(self) -> bytes:
        pod, encode = self.metadata, protobuf.encode_message
        metadata = encode((1, pod.name), (3, pod.namespace), (5, pod.uid))
        target = encode((1, self.target.kind), (3, self.target.name))
        return protobuf.encode_object(self.api_version, self.kind, encode((1, metadata), (2, target)))


class _BindingMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str
    namespace: str
    uid: str


class _Target(msgspec.Struct, frozen=True, gc=False):
    name: str
    kind: str = "Node"


class ApiClient:
    """A client of one API server, open inside its `async with`. Each client has its own rate limit.

    `stored` finds the last seen version of an object; with it an update needs no read before its write.
    `may_write` is asked at the last moment before a request that changes something, after all waiting for
    its turn; if it says no, the request is not sent but is a NotAllowed. With `uses_protobuf`, bindings and
    events are sent as protobuf once the server has answered in it, which saves it a tenth of the CPU.
    `beside` is another client of the same server, open for longer, whose connections are used.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        qps: float = 50,
        burst: int = 100,
        user_agent: str = "stowplan",
        timeout: float = 60,
        stored: Callable[[Object], Object | None] = lambda item: None,
        may_write: Callable[[], bool] = lambda: True,
        uses_protobuf: bool = False,
        beside: ApiClient | None = None,
    ) -> None:
        self.connection, self.timeout, self.stored = connection, timeout, stored
        self._beside = beside
        self._may_write = may_write
        self._asks_for_protobuf, self._sends_protobuf = uses_protobuf, False
        self._limit = RateLimit(qps, burst)
        self._user_agent = ("User-Agent", user_agent)
        self._pool: Pool | None = None
        self._under_way, self._has_capacity = 0, asyncio.Event()
        self._answers: OrderedDict[tuple[type, str], Object] = OrderedDict()

    async def __aenter__(self) -> ApiClient:
        beside = self._beside
        self._pool = self.connection.open() if beside is None else beside._open_pool().beside()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def wait_for_capacity(self) -> None:
        """Wait until few enough requests are queued, before making more of them."""
        if self._count_queued() >= MAX_QUEUED:
            self._has_capacity.clear()
            await self._has_capacity.wait()

    def _count_queued(self) -> int:
        return 0 if self._pool is None else self._under_way - self._pool.at_once

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request, with the body as JSON unless it is bytes; retry when the server asks for that."""
        plain, as_protobuf = body, getattr(body, "as_protobuf", None) if self._asks_for_protobuf else None
        if as_protobuf is not None:
            accept = protobuf.OR_JSON
            if self._sends_protobuf:
                body, content_type = as_protobuf(), protobuf.CONTENT_TYPE
        is_ready = body is None or isinstance(body, bytes)
        data = body if is_ready else msgspec.json.encode(body, enc_hook=encode_hook)
        self.on_request(method, len(data or b""))
        kind = () if data is None else (("Content-Type", content_type),)
        target = _target(path, query)
        before = _nothing if method == "GET" else self._check_may_write
        retries, renewed = RETRIES, False
        began, status, size = time.perf_counter(), 0, 0
        self._under_way += 1
        try:
            while True:
                if seconds := self._take_turn(method):
                    await asyncio.sleep(seconds)
                identity = self.connection.fixed_headers
                if identity is None:
                    identity = await self.connection.headers()
                headers = (self._user_agent, ("Accept", accept), *identity, *kind)
                reply = await self._open_pool().request(
                    method, target, headers, data, timeout=self.timeout, before=before
                )
                is_busy = reply.status == 429 or reply.status >= 500
                if as_protobuf is not None and reply.status != 429:  # which is not about the request
                    self._sends_protobuf = reply.data.startswith(protobuf.MAGIC)
                    is_of_proxy = content_type == protobuf.CONTENT_TYPE and not self._sends_protobuf
                    if reply.status in (406, 415) or (is_of_proxy and reply.status in (400, 403)):
                        # From a proxy, say, that knows only JSON. Nothing was done, so send it again as JSON.
                        self._asks_for_protobuf, status = False, reply.status
                        return await self.request(method, path, plain, query=query)
                if reply.status < 300:
                    status, size = reply.status, len(reply.data)
                    return reply
                if reply.status == 401 and not renewed and await self.connection.renew():
                    renewed = True
                    continue
                if not is_busy or reply.retry_after is None or not retries:
                    raise error_of(*reply)
                retries -= 1
                await asyncio.sleep(reply.retry_after)
        except ApiError as error:
            status = error.status
            raise
        finally:
            self._under_way -= 1
            if self._count_queued() <= FEW_QUEUED:
                self._has_capacity.set()
            self.on_answered(method, status, size, time.perf_counter() - began)

    async def stream(
        self,
        path: str,
        on_line: Callable[[bytes], None],
        *,
        query: Mapping[str, str],
        silence: float,
        open_seconds: float = OPEN_SECONDS,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_open` when the response begins, then `on_line` with each line until the server ends it.

        That nothing comes for `silence` seconds is an Unreachable, as a broken connection is, and that the
        answer does not begin within `open_seconds`. A last line without its end is not handed on: the
        connection was cut in the middle of it.
        """
        unfinished: list[bytes] = []

        def split(data: bytes) -> None:
            if not data:
                on_open()
            first, *others = data.split(b"\n")
            unfinished.append(first)
            if others:
                for line in (b"".join(unfinished), *others[:-1]):
                    on_line(line)
                unfinished[:] = [others[-1]]

        if seconds := self._take_turn("GET"):
            await asyncio.sleep(seconds)
        headers = (self._user_agent, ("Accept", JSON), *await self.connection.headers())
        target = _target(path, query)
        reply = await self._open_pool().stream(
            target, headers, split, silence=silence, open_seconds=open_seconds
        )
        if reply.status == 401:
            await self.connection.renew()  # for the next try
        if reply.status >= 300:
            raise error_of(*reply)

    async def open_ahead(self, count: int) -> None:
        """Open so many connections, so that the next requests need not wait for handshakes."""
        if self._pool is not None:
            await self._pool.open_ahead(count, timeout=self.timeout)

    def drop_idle(self) -> None:
        """Close idle connections, so that the next requests open new ones: the old ones may be dead."""
        if self._pool is not None:
            self._pool.drop_idle()

    async def get_json(self, path: str) -> Any:
        return decode_deep(msgspec.json.decode, (await self.request("GET", path)).data)

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        body = _Binding(_BindingMetadata(pod.name, pod.namespace, pod.uid), _Target(node_name))
        await self.request("POST", f"{PODS.item(pod.namespace, pod.name)}/binding", body)

    async def patch_pod(self, pod: Pod, patch: dict[str, Any], subresource: str = "") -> None:
        """Patch exactly this pod; if a newer one has its name, raise NotFound and leave that alone."""
        path = PODS.item(pod.namespace, pod.name) + subresource
        body = {**patch, "metadata": {**patch.get("metadata", {}), "uid": pod.uid}}
        with _other_uid_is_not_found():
            await self.request("PATCH", path, body, content_type=STRATEGIC_MERGE_PATCH, accept=METADATA_ALONE)

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        await self.patch_pod(pod, patch, "/status")

    async def create(self, item: T) -> T:
        resource = resource_of(item)
        answer = await self.request("POST", resource.collection(item.namespace), _whole(item))
        return self._remember(decode(type(item), answer.data))

    async def apply(self, item: T, *, field_manager: str, subresource: str = "") -> T:
        """Server-side apply, with force, of all fields that differ from their defaults.

        Fields that the same manager applied before and that are not in the item any more are removed.
        """
        path = resource_of(item).item(item.namespace, item.name) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": field_manager, "force": "true"}
        answer = await self.request("PATCH", path, _whole(item), content_type=APPLY_PATCH, query=query)
        return self._remember(decode(type(item), answer.data))

    async def update(self, item: T) -> T:
        """Write all changes but those of the status; raise Conflict if the object has changed since."""
        return await self._write(item, "", lambda field: field != "status")

    async def update_status(self, item: T) -> T:
        is_apart = not isinstance(item, CustomResource) or item.definition.has_status
        return await self._write(item, "/status" if is_apart else "", lambda field: field == "status")

    async def delete(self, item: Pod | Object, *, grace_seconds: int | None = None) -> None:
        """Delete exactly this object; if a newer one has its name, raise NotFound and leave that alone."""
        uid = item.uid if isinstance(item, Pod) else item.metadata.uid
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        with _other_uid_is_not_found():
            path = resource_of(item).item(item.namespace, item.name)
            await self.request("DELETE", path, options, accept=METADATA_ALONE)

    async def review_token(self, token: str) -> UserInfo | None:
        """Return the user that the token belongs to; None if the API server rejects it."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        answer = await self.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
        status = decode(_TokenReview, answer.data).status
        return status.user if status.authenticated else None

    async def review_access(self, user: str, groups: Sequence[str], path: str, verb: str) -> bool:
        """Whether the API server allows this user this verb on a non-resource path."""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": list(groups),
                "nonResourceAttributes": {"path": path, "verb": verb},
            },
        }
        answer = await self.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return decode(_AccessReview, answer.data).status.allowed

    async def _write(self, item: T, subresource: str, concerns: Callable[[str], bool]) -> T:
        """Send a merge patch of the differences, so that fields we do not decode stay as they are."""
        path = resource_of(item).item(item.namespace, item.name)
        base = await self._base_of(item, path)
        answer: Reply | None = None
        if subresource and _is_first_status(base, item):
            answer = await self.request("PUT", path + subresource, _status_alone(item))
        elif claim_edits.must_edit(base, item, status=bool(subresource)):
            answer = await self._edit(item, path, subresource)
        if answer is None:
            # A part at its defaults now may still have fields that we do not decode: it is not removed.
            parts = dict.fromkeys(("metadata", "spec", "status"), Raw(b"{}"))
            before, after = parts | _fields(base), parts | _fields(item)
            patch = {field: value for field, value in _difference(before, after).items() if concerns(field)}
            patch.setdefault("metadata", {})["resourceVersion"] = item.metadata.resource_version
            answer = await self.request("PATCH", path + subresource, patch, content_type=MERGE_PATCH)
        return self._remember(decode(type(item), answer.data))

    async def _edit(self, item: Object, path: str, subresource: str) -> Reply | None:
        """Write a claim as protobuf; None if the server does not support it."""
        data = (await self.request("GET", path, accept=protobuf.OR_JSON)).data
        if not data.startswith(protobuf.MAGIC):
            return None
        body = claim_edits.edit_claim(data, item, status=bool(subresource))
        return await self.request("PUT", path + subresource, body, content_type=protobuf.CONTENT_TYPE)

    async def _base_of(self, item: T, path: str) -> Object:
        """Return the object as it was before the caller changed it, from memory if possible."""
        for known in (self._answers.get((type(item), item.key)), self.stored(item)):
            if known is not None and known.metadata.resource_version == item.metadata.resource_version:
                return known
        return decode(type(item), (await self.request("GET", path)).data)

    def _remember(self, item: T) -> T:
        """Keep the object for the next write, which often comes before the watch has delivered this one."""
        self._answers[type(item), item.key] = item
        if len(self._answers) > ANSWERS_KEPT:
            self._answers.popitem(last=False)
        return item

    def _check_may_write(self) -> None:
        if not self._may_write():
            raise NotAllowed("this scheduler is no longer the leader, so nothing is written")

    def on_request(self, method: str, size: int) -> None:
        """Called before a request is sent, with the size of its body in bytes."""

    def on_throttled(self, method: str, seconds: float) -> None:
        """Called with the time that a request waits because of the rate limit, mostly zero."""

    def on_answered(self, method: str, status: int, size: int, seconds: float) -> None:
        """Called after a request with the status and size of the response; zero if there was none."""

    def _take_turn(self, method: str) -> float:
        """How many seconds to wait before the next request, for the rate limit."""
        seconds = self._limit.take()
        self.on_throttled(method, seconds)
        return seconds

    def _open_pool(self) -> Pool:
        if self._pool is None:
            raise Unreachable("the client is closed; use it within `async with`")
        return self._pool


@contextmanager
def _other_uid_is_not_found() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if _OTHER_UID.search(error.message):
            raise NotFound(404, "NotFound", error.message) from error
        raise


def _nothing() -> None:
    pass


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _fields(item: Object) -> dict[str, Raw]:
    """The fields that differ from their defaults, as JSON text, which keeps opaque parameters as they are."""
    return members(msgspec.json.encode(item, enc_hook=encode_hook))


def _whole(item: Object) -> dict[str, Any]:
    resource = resource_of(item)
    return {"apiVersion": resource.api_version, "kind": resource.kind, **_fields(item)}


def _is_first_status(base: Object, item: Object) -> bool:
    """Whether a claim gets its first status: there is nothing to keep, and a PUT costs the server less."""
    return (
        isinstance(base, ResourceClaim)
        and isinstance(item, ResourceClaim)
        and base.status == ResourceClaimStatus() != item.status
    )


def _status_alone(item: Object) -> dict[str, Any]:
    """The body of a PUT of the status: the API server takes the spec from the stored object."""
    return {field: value for field, value in _whole(item).items() if field != "spec"}


def _difference(before: dict[str, Raw], after: dict[str, Raw]) -> dict[str, Any]:
    """Return the JSON merge patch from one to the other."""
    patch: dict[str, Any] = {field: None for field in before if field not in after}
    for field, value in after.items():
        old = before.get(field)
        if old is not None and _is_object(value) and _is_object(old):
            if inner := _difference(members(old), members(value)):
                patch[field] = inner
        elif value != old:
            patch[field] = value
    return patch


def _is_object(value: Raw) -> bool:
    return bytes(value)[:1] == b"{"
