"""Places as they change and are written: a slot of a StickyJob's status, or a whole StickyRecord."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from stowplan.api.meta import ObjectMeta, OwnerReference, parse_time
from stowplan.errors import InputError
from stowplan.framework import Handle
from stowplan.sticky.resources import (
    Place,
    RecordSpec,
    Slot,
    Stay,
    StickyJob,
    StickyJobStatus,
    StickyRecord,
)

LONGEST_SLUG = 200

P = TypeVar("P", bound=Place)


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
