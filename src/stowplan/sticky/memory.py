"""What is remembered of a pod's workload: which slot or key is it, how does it stick, where was it last.

Nothing here asks the API server: all of it is watched. What this scheduler has bound itself is known at once.
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
OWN_PLACES = 50_000
"""How many places are remembered before a watch shows them."""
ORDINALS = {
    "StatefulSet": "apps.kubernetes.io/pod-index",
    "Job": "batch.kubernetes.io/job-completion-index",
}
"""The label that numbers the pods of an owner whose pods keep their numbers."""
API_VERSIONS = {"StatefulSet": "apps/v1", "Job": "batch/v1"}
LONGEST_SLUG = 200

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
    """Of the object that remembers."""
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
        """Where this scheduler has put pods, until a watch shows it."""

    def of(self, pod: Pod) -> Memory | None:
        """None for a pod that does not stick to anything."""
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
        """Cheap: it is asked of every pod."""
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
        """Who takes the record along when it goes: the owner that the key was made from."""
        if KEY in pod.annotations or pod.controller is None:
            return ()
        return (msgspec.structs.replace(pod.controller, controller=None),)

    def is_served(self, key: Key) -> bool:
        kind = self.kinds.job if key.kind == "StickyJob" else self.kinds.record
        return self._handle.watched(kind).is_served

    def remember(self, key: Key, place: Place) -> None:
        self._own[key] = place
        if len(self._own) > OWN_PLACES:
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
        """By annotation; what cannot be understood counts as not said, so that no pod can do harm."""
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
        """`StatefulSet/web/0`, if the owner or the namespace wants its pods to stick."""
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
    """What a pod's annotations say that nobody understands."""
    mode, grace = pod.annotations.get(MODE, ""), pod.annotations.get(GRACE, "")
    found = [] if not mode or mode in MODES else [f"{MODE}: {mode!r} is none of {', '.join(MODES)}"]
    if grace and not _is_seconds(grace):
        found.append(f"{GRACE}: {grace[:20]!r} is no whole number of seconds below a thousand million")
    return found


def _is_seconds(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _is_enabled(item: Object | None) -> bool:
    if item is None:
        return False
    meta = item.metadata
    return "true" in (meta.labels.get(ENABLED), meta.annotations.get(ENABLED))


def record_name(key: str) -> str:
    """A name for an object from a key of any form; other keys have other names."""
    slug = re.sub("[^a-z0-9]+", "-", key.lower()).strip("-")[:LONGEST_SLUG]
    return "-".join(filter(None, (slug.strip("-"), hashlib.sha256(key.encode()).hexdigest()[:10])))


def bound(place: P, stay: Stay, *, domain: str, pod_name: str, limit: int) -> P:
    """The place after another pod was bound."""
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


def ended(place: P, uid: str, outcome: str, at: str) -> P:
    """The place after a pod that was there is gone or has finished."""
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
    """None where there is no time, or something else in its place."""
    try:
        return parse_time(time) if time else None
    except InputError:
        return None


async def write_slot(
    handle: Handle, kind: type[StickyJob], owner: OwnerReference, namespace: str, index: int, place: Place
) -> None:
    """Server-side apply of what a bind says of one slot. The history is the controller's.

    Each slot has a manager of its own: applied by the same one, a slot would remove those applied before.
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
    """Server-side apply of a whole record, which is made if there is none; it goes with its owners."""
    spec = RecordSpec(key=key, **{name: getattr(place, name) for name in Place.__struct_fields__})
    meta = ObjectMeta(name=record_name(key), namespace=namespace, owner_references=owners)
    await handle.api.apply(kind(metadata=meta, spec=spec), field_manager="stowplan-sticky")
