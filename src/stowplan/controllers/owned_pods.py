"""Pods and their controllers: created from a template, adopted when they match, released when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from stowplan.api.meta import Json, LabelSelector, decode, parse_time
from stowplan.api.selectors import NOTHING, Selector, selector_of, selector_of_map
from stowplan.client.errors import NAMESPACE_TERMINATING, ApiError
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import K, Kind, Known, Plain, PodView, plain
from stowplan.controllers.stores import Store, by_namespace, owner_keys

T = TypeVar("T")


def selector_in(spec: Json) -> Selector:
    """The selector of a spec: that of a ReplicationController is a map of labels."""
    found = spec.get("selector")
    if found is None:
        return NOTHING
    if any(isinstance(value, str) for value in found.values()):
        return selector_of_map(found)
    return selector_of(decode(LabelSelector, found))


def owner_of(kind: Kind[K], item: Known) -> Json:
    """The reference that makes `item` the controller of what carries it."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": item.name,
        "uid": item.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from(template: Json, kind: Kind[K], owner: Known, **meta: object) -> Json:
    """A pod of the template; `meta` says its name, or what it begins with."""
    given = template.get("metadata") or {}
    metadata = {
        **{field: given[field] for field in ("labels", "annotations", "finalizers") if given.get(field)},
        "namespace": owner.namespace,
        "ownerReferences": [owner_of(kind, owner)],
        **meta,
    }
    return {"metadata": metadata, "spec": template.get("spec") or {}}


class OwnedPods:
    """The pods managed by one kind of controller; the owner of a changed pod goes to its queue."""

    def __init__(self, controller: Controller, owners: Store[Plain], pods: Store[PodView]) -> None:
        self._kind, self.store, self._enqueue = owners.kind, pods, controller.queue.add
        self._record = partial(controller.record, owners.kind)
        self._index, self._owners = pods.index(owner_keys), owners.index(by_namespace)
        owners.listen_keys(self._enqueue)
        pods.listen(self._on_change)

    def of(self, owner: Known) -> list[PodView]:
        return self._index.of(owner.uid)

    async def create(self, owner: Plain, pod: Json) -> PodView:
        """Create a pod, and write an event of its owner about it."""
        try:
            made = await self.store.create(owner.namespace, pod)
        except ApiError as error:
            if NAMESPACE_TERMINATING not in error.causes:
                self._record(owner, "FailedCreate", f"Error creating: {error.message}", "Warning")
            raise
        self._record(owner, "SuccessfulCreate", f"Created pod: {made.name}")
        return made

    async def delete(self, owner: Plain, pod: PodView) -> None:
        await self.store.delete(pod)
        self._record(owner, "SuccessfulDelete", f"Deleted pod: {pod.name}")

    async def claim(self, owner: Plain) -> list[PodView]:
        """The owner's pods, after those that match have been adopted and the others let go."""
        selector = selector_in(owner.spec)
        kept = []
        for pod in self.of(owner):
            if selector.matches(pod.labels) or pod.is_terminating:
                kept.append(pod)
            elif not owner.is_terminating:
                others = without_owners(pod, {owner.uid})
                await self.store.patch(pod, {"metadata": {"ownerReferences": others}})
        if owner.is_terminating:
            return kept
        for pod in self._index.of(f"free/{owner.namespace}"):
            if pod.is_active and selector.matches(pod.labels):
                owners = [*plain(pod.metadata.owner_references), owner_of(self._kind, owner)]
                kept.append(await self.store.patch(pod, {"metadata": {"ownerReferences": owners}}))
        return kept

    def _on_change(self, old: PodView | None, new: PodView | None) -> None:
        for pod in (old, new):
            owner = pod.metadata.controller() if pod is not None else None
            if pod is not None and owner is not None and owner.kind == self._kind.name:
                self._enqueue(f"{pod.namespace}/{owner.name}")
        if new is not None and new.metadata.controller() is None and _may_match_now(old, new):
            for owner_there in self._owners.of(new.namespace):
                self._enqueue(owner_there.key)


def _may_match_now(old: PodView | None, new: PodView) -> bool:
    was_free = old is not None and old.metadata.controller() is None
    return new.is_active and not (was_free and old is not None and old.labels == new.labels)


async def one_then_all(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """The first alone, so that what fails for all of them fails once; then the others together."""
    if not jobs:
        return []
    first = await jobs[0]()
    results = await asyncio.gather(*(job() for job in jobs[1:]), return_exceptions=True)
    errors = [each for each in results if isinstance(each, BaseException)]
    if errors:
        raise next((each for each in errors if not isinstance(each, ApiError)), errors[0])
    return [first, *(each for each in results if not isinstance(each, BaseException))]


def available_in(pod: PodView, min_ready_seconds: int, now: float) -> float | None:
    """Seconds until the pod counts as available, 0 if it does now; None if it is not ready."""
    if not pod.is_ready or pod.is_terminating:
        return None
    ready = pod.condition("Ready")
    if not min_ready_seconds or ready is None or not ready.last_transition_time:
        return 0.0
    return max(parse_time(ready.last_transition_time) + min_ready_seconds - now, 0.0)


def share_of(value: int | str | None, total: int, *, round_up: bool) -> int:
    """A number or a percentage of a total."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    part = int(value.removesuffix("%")) * total
    return -(-part // 100) if round_up else part // 100


def with_condition(
    conditions: Iterable[Json], kind: str, status: str, reason: str, message: str, at: str
) -> list[Json]:
    """Return the conditions with this one updated; its transition time changes only with its status."""
    known = {each["type"]: each for each in conditions}
    old = known.get(kind, {})
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    if any(old.get(field) != value for field, value in new.items()):
        since = old.get("lastTransitionTime", at) if old.get("status") == status else at
        known[kind] = {**old, **new, "lastTransitionTime": since}
    return list(known.values())


def without_owners(item: Known, uids: set[str]) -> list[Json]:
    found: list[Json] = plain([each for each in item.metadata.owner_references if each.uid not in uids])
    return found


def differs(known: Json, wanted: Json) -> bool:
    """Whether a field is not as wanted; the API server leaves out what is empty or zero."""
    return any(_bare(known.get(field)) != _bare(value) for field, value in wanted.items())


def _bare(value: object) -> object:
    if isinstance(value, dict):
        value = {name: inner for name, each in value.items() if (inner := _bare(each)) is not None}
    return value or None
