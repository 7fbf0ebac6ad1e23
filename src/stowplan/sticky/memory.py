"""What is stored about a pod's workload: its slot or key, its policy and its last place.

Reading makes no request, because all of it is watched. Pods that this scheduler bound are known at once.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeVar, get_args

import msgspec

from stowplan.api.meta import Object, ObjectMeta, OwnerReference, parse_time
from stowplan.errors import InputError
from stowplan.framework import Handle, PluginArgs, Pod
from stowplan.sticky.resources import (
    ENABLED,
    GRACE,
    GROUP,
    INDEX_LABEL,
    KEY,
    MODE,
    NODE,
    SCOPE,
    VERSION,
    BatchJob,
    Mode,
    OnNodeDeleted,
    Place,
    RecordSpec,
    Slot,
    Stay,
    Stickiness,
    StickyJob,
    StickyJobStatus,
    StickyRecord,
    kinds_in,
)

MODES: tuple[str, ...] = get_args(Mode)
MAX_OWN_PLACES = 50_000
"""How many places of our own are kept until the watch shows them."""
ORDINALS = {
    "StatefulSet": "apps.kubernetes.io/pod-index",
    "Job": "batch.kubernetes.io/job-completion-index",
}
"""The label with a pod's number, by kind of owner."""
API_VERSIONS = {"StatefulSet": "apps/v1", "Job": "batch/v1"}
MAX_SLUG = 200

P = TypeVar("P", bound=Place)


class StickyArgs(PluginArgs):
    group: str = GROUP
    version: str = VERSION
    mode: Mode = "Preferred"
    weight: int = 100
    record_store: Literal["StickyJob", "StickyRecord", "both"] = "both"
    max_nodes_in_history: int = 3
    on_node_deleted: OnNodeDeleted = "Forget"
    forget_after_seconds: int | None = None
    half_life_seconds: int | None = None
    trust_node_name: bool = False

    def validate(self, path: str) -> Iterator[str]:
        if not 1 <= self.weight <= 100:
            yield f"{path}.weight: Invalid value: {self.weight}: must be between 1 and 100"
        if not 1 <= self.max_nodes_in_history <= 10:
            found = self.max_nodes_in_history
            yield f"{path}.maxNodesInHistory: Invalid value: {found}: must be between 1 and 10"
        if self.forget_after_seconds is not None and self.forget_after_seconds < 0:
            found = self.forget_after_seconds
            yield f"{path}.forgetAfterSeconds: Invalid value: {found}: must not be negative"
        if self.half_life_seconds is not None and self.half_life_seconds < 1:
            yield f"{path}.halfLifeSeconds: Invalid value: {self.half_life_seconds}: must be at least 1"


class Key(NamedTuple):
    """One slot of a StickyJob, or one key in a namespace."""

    kind: Literal["StickyJob", "StickyRecord"]
    namespace: str
    name: str
    """The object that stores the place."""
    part: str
    """The slot's index, or the key as it was given."""

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}"


class Memory(msgspec.Struct, frozen=True):
    key: Key
    policy: Stickiness
    place: Place


class Memories:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._args, self._handle = args, handle
        self.kinds = kinds_in(args.group, args.version)
        self._own: OrderedDict[Key, Place] = OrderedDict()
        """Where this scheduler bound pods, until the watch shows it."""

    def of(self, pod: Pod) -> Memory | None:
        """None for a pod that is not sticky."""
        key = self.key_of(pod)
        if key is None:
            return None
        if key.kind == "StickyRecord":
            record = self._handle.watched(self.kinds.record).get(key.path)
            return Memory(key, self._policy(pod), self._newest(key, record.spec if record else Place()))
        job = self._handle.watched(self.kinds.job).get(key.path)
        if job is None or pod.controller is None or job.metadata.uid != pod.controller.uid:
            return None
        slots = {str(slot.index): slot for slot in job.status.slots}
        first = Place(last_node=job.status.last_node) if key.part == "0" else Place()
        policy = job.spec.stickiness
        if self._args.trust_node_name:
            policy = msgspec.structs.replace(policy, trust_node_name=True)
        return Memory(key, policy, self._newest(key, slots.get(key.part, first)))

    def key_of(self, pod: Pod) -> Key | None:
        """Must stay cheap: it runs for every pod."""
        owner, stores = pod.controller, self._args.record_store
        job = self.kinds.job.definition
        if owner is not None and owner.kind == job.kind and owner.api_version == job.api_version:
            index = pod.labels.get(INDEX_LABEL, "")
            if stores == "StickyRecord" or not index.isdecimal():
                return None
            return Key("StickyJob", pod.namespace, owner.name, str(int(index)))
        if stores == "StickyJob":
            return None
        text = pod.annotations.get(KEY) or (self._default_key(pod, owner) if owner is not None else "")
        return Key("StickyRecord", pod.namespace, record_name(text), text) if text else None

    def owners_of_record(self, pod: Pod) -> tuple[OwnerReference, ...]:
        """The owner whose deletion deletes the record: the one that the key was derived from."""
        if KEY in pod.annotations or pod.controller is None:
            return ()
        return (msgspec.structs.replace(pod.controller, controller=None),)

    def is_served(self, key: Key) -> bool:
        kind = self.kinds.job if key.kind == "StickyJob" else self.kinds.record
        return self._handle.watched(kind).is_served

    def remember(self, key: Key, place: Place) -> None:
        self._own[key] = place
        if len(self._own) > MAX_OWN_PLACES:
            self._own.popitem(last=False)

    def forget(self, key: Key, pod: Pod) -> None:
        if (place := self._own.get(key)) is not None and place.pod_uid == pod.uid:
            del self._own[key]

    def own(self, key: Key) -> Place | None:
        return self._own.get(key)

    def _newest(self, key: Key, stored: Place) -> Place:
        own = self._own.get(key)
        if own is None:
            return stored
        if own.pod_uid == stored.pod_uid or own.last_bind_time < stored.last_bind_time:
            del self._own[key]
            return stored
        return own

    def _policy(self, pod: Pod) -> Stickiness:
        """The policy in the pod's annotations; invalid ones are ignored, so that no pod can do harm."""
        args, said = self._args, pod.annotations
        mode, grace = said.get(MODE, ""), said.get(GRACE, "")
        return Stickiness(
            mode=mode if mode in MODES else args.mode,  # type: ignore[arg-type]
            grace_seconds=int(grace) if _is_seconds(grace) else 0,
            scope=said.get(SCOPE) or NODE,
            history_limit=args.max_nodes_in_history,
            forget_after_seconds=args.forget_after_seconds,
            on_node_deleted=args.on_node_deleted,
            weight=args.weight,
            half_life_seconds=args.half_life_seconds,
            trust_node_name=args.trust_node_name,
        )

    def _default_key(self, pod: Pod, owner: OwnerReference) -> str:
        """`StatefulSet/web/0`, if the owner or the namespace enables stickiness."""
        if API_VERSIONS.get(owner.kind) != owner.api_version:
            return ""
        cluster, path = self._handle.cluster, f"{pod.namespace}/{owner.name}"
        holder: Object | None
        if owner.kind == "StatefulSet":
            holder = cluster.stateful_sets.get(path)
        else:
            holder = self._handle.watched(BatchJob).get(path)
        if not (_is_enabled(holder) or _is_enabled(cluster.namespaces.get(pod.namespace))):
            return ""
        ordinal = pod.labels.get(ORDINALS[owner.kind]) or pod.annotations.get(ORDINALS[owner.kind], "")
        if not ordinal and owner.kind == "StatefulSet":
            ordinal = pod.name.rpartition("-")[2]
        return f"{owner.kind}/{owner.name}/{ordinal}" if ordinal.isdecimal() else ""


def invalid_annotations(pod: Pod) -> list[str]:
    """An error for each invalid annotation of the pod."""
    mode, grace = pod.annotations.get(MODE, ""), pod.annotations.get(GRACE, "")
    found = [] if not mode or mode in MODES else [f"{MODE}: {mode!r} is not one of {', '.join(MODES)}"]
    if grace and not _is_seconds(grace):
        found.append(f"{GRACE}: {grace[:20]!r} is not a whole number of seconds below 1000000000")
    return found


def _is_seconds(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _is_enabled(item: Object | None) -> bool:
    if item is None:
        return False
    meta = item.metadata
    return "true" in (meta.labels.get(ENABLED), meta.annotations.get(ENABLED))


def record_name(key: str) -> str:
    """An object name for any key; distinct keys get distinct names."""
    slug = re.sub("[^a-z0-9]+", "-", key.lower()).strip("-")[:MAX_SLUG]
    return "-".join(filter(None, (slug.strip("-"), hashlib.sha256(key.encode()).hexdigest()[:10])))


def record_binding(place: P, stay: Stay, *, domain: str, pod_name: str, limit: int) -> P:
    """The place after another pod was bound there."""
    others = [each for each in place.history if each.pod_uid != stay.pod_uid]
    return msgspec.structs.replace(
        place,
        last_node=stay.node,
        last_node_uid=stay.node_uid,
        domain=domain,
        last_bind_time=stay.bound_at,
        pod_name=pod_name,
        pod_uid=stay.pod_uid,
        history=(stay, *others)[:limit],
    )


def record_end(place: P, uid: str, outcome: str, at: str) -> P:
    """The place after its pod finished or was deleted."""
    history = tuple(
        msgspec.structs.replace(stay, finished_at=at, outcome=outcome)
        if stay.pod_uid == uid and not stay.finished_at
        else stay
        for stay in place.history
    )
    return msgspec.structs.replace(place, history=history)


def wire_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(time: str | None) -> float | None:
    """None if there is no valid time."""
    try:
        return parse_time(time) if time else None
    except InputError:
        return None


async def write_slot(
    handle: Handle, kind: type[StickyJob], owner: OwnerReference, namespace: str, index: int, place: Place
) -> None:
    """Apply a binding to one slot of the status. The controller writes the history.

    Each slot has its own field manager: with a shared one, applying a slot would remove those applied before.
    """
    slot = Slot(
        index=index,
        last_node=place.last_node,
        last_node_uid=place.last_node_uid,
        domain=place.domain,
        last_bind_time=place.last_bind_time,
        pod_name=place.pod_name,
        pod_uid=place.pod_uid,
    )
    item = kind(
        metadata=ObjectMeta(name=owner.name, namespace=namespace, uid=owner.uid),
        status=StickyJobStatus(last_node=place.last_node if index == 0 else "", slots=(slot,)),
    )
    await handle.api.apply(item, field_manager=f"stowplan-slot-{index}", subresource="status")


async def write_record(
    handle: Handle,
    kind: type[StickyRecord],
    namespace: str,
    key: str,
    owners: tuple[OwnerReference, ...],
    place: Place,
) -> None:
    """Apply the whole record, and create it if needed. It is deleted with its owners."""
    spec = RecordSpec(key=key, **{name: getattr(place, name) for name in Place.__struct_fields__})
    meta = ObjectMeta(name=record_name(key), namespace=namespace, owner_references=owners)
    await handle.api.apply(kind(metadata=meta, spec=spec), field_manager="stowplan-sticky")
