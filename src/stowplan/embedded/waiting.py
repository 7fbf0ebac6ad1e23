"""Waits until an object is as a test expects it; if it never is, says what is known about it and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from stowplan.api.meta import Json
from stowplan.apiserver import ApiServer
from stowplan.apiserver.store import Record
from stowplan.embedded.objects import resource_named
from stowplan.errors import InputError

Condition = str | Callable[[Json], object]

EXISTS, DELETED = "exists", "deleted"
MAX_EVENTS, MAX_PODS = 10, 3


class Which(NamedTuple):
    """An object, wherever it is stored."""

    kind: str
    plural: str
    collection: str
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {place}"


def which(server: ApiServer, thing: object, namespace: str) -> Which:
    """Find out which object is meant by `pod/web`, a manifest, or an object of a Python client."""
    kind, name, inside = _parts(thing)
    resource = resource_named(server, kind)
    place = (inside or namespace or "default") if resource.namespaced else ""
    return Which(resource.kind, resource.plural, resource.collection, place, name)


def _parts(thing: object) -> tuple[str, str, str]:
    """Kind, name and namespace."""
    if isinstance(thing, str):
        kind, found, name = thing.partition("/")
        if not found or not kind or not name or "/" in name:
            raise InputError(f'expected an object such as "pod/web", not {thing!r}')
        return kind, name, ""
    # Objects in lists of the official client do not know their kind, but their class is called V1Pod.
    known = thing.get("kind") if isinstance(thing, Mapping) else getattr(thing, "kind", None)
    known = known or type(thing).__name__.removeprefix("V1")
    meta: Any = thing.get("metadata") if isinstance(thing, Mapping) else getattr(thing, "metadata", None)
    named, inside = (
        meta.get(field) if isinstance(meta, Mapping) else getattr(meta, field, None)
        for field in ("name", "namespace")
    )
    if not isinstance(known, str) or not isinstance(named, str):
        raise InputError(f'expected an object such as "pod/web", a manifest or an object, not {thing!r:.100}')
    return known, named, inside or ""


def is_met(found: Json | None, condition: Condition) -> bool:
    """Whether the object, None if there is none, is as expected."""
    if condition == DELETED or found is None:
        return condition == DELETED and found is None
    if not isinstance(condition, str):
        return bool(condition(found))
    wanted, _, value = condition.partition("=")
    status: Json = found.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if condition == EXISTS or status.get("phase") == condition:
        return True
    if wanted in conditions:
        return bool(conditions[wanted] == (value or "True"))
    if "." in wanted and (at := _field(found, wanted)) is not None:
        return str(at).lower() == value.lower() if value else bool(at)
    return False


def _field(found: object, path: str) -> object:
    for part in path.strip(".").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def describe(condition: Condition) -> str:
    """As in "pod default/web is not …"."""
    if not isinstance(condition, str):
        name = getattr(condition, "__name__", "")
        return f"as {name}() expects" if name.isidentifier() else "as expected"
    return {EXISTS: "there", DELETED: "gone"}.get(condition, condition)


def report(server: ApiServer, about: Which, explain: Callable[[str, str], str]) -> str:
    """What is known about an object: its state, events, and if it is a pod, the scheduler's decision.

    For what owns pods, the same about a few of them that are not ready.
    """
    lines = _about(server, about, explain)
    record = find(server, about)
    if record is not None and about.kind != "Pod":
        waiting = [pod for pod in _pods_of(server, record) if not is_met(pod, "Ready")]
        for pod in waiting[:MAX_PODS]:
            meta = pod["metadata"]
            each = Which("Pod", "pods", "pods", meta["namespace"], meta["name"])
            lines += [f"{each}, which belongs to it:", *_indent(_about(server, each, explain))]
        if len(waiting) > MAX_PODS:
            lines.append(f"and {len(waiting) - MAX_PODS} more pods that are not ready")
    return "\n".join(_indent(lines))


def find(server: ApiServer, about: Which) -> Record | None:
    return server.store.collection(about.collection).records.get((about.namespace, about.name))


def _about(server: ApiServer, about: Which, explain: Callable[[str, str], str]) -> list[str]:
    record = find(server, about)
    if record is None:
        names = ["/".join(filter(None, key)) for key in server.store.collection(about.collection).records]
        return ["it does not exist", f"{about.plural} that exist: {', '.join(sorted(names)[:20]) or 'none'}"]
    found = record.data()
    meta, status = found["metadata"], found.get("status") or {}
    lines = [f"being deleted since {at}" for at in [meta.get("deletionTimestamp")] if at]
    lines += [f"finalizers: {', '.join(each)}" for each in [meta.get("finalizers")] if each]
    for field, value in status.items():
        if isinstance(value, str | int):
            lines.append(f"{field}: {value}")
    for each in status.get("conditions") or ():
        said = ": ".join(part for part in (each.get("reason"), each.get("message")) if part)
        lines.append(f"condition {each['type']}={each['status']}{f' ({said})' if said else ''}")
    for each in status.get("containerStatuses") or ():
        for state, more in (each.get("state") or {}).items():
            said = ": ".join(part for part in (more.get("reason"), more.get("message")) if part)
            lines.append(f"container {each['name']} is {state}{f' ({said})' if said else ''}")
    lines += _events(server, about)
    if about.kind == "Pod":
        try:
            lines += ["scheduler:", *_indent(explain(about.name, about.namespace).splitlines())]
        except LookupError:
            lines.append("scheduler: has not seen it")
    return lines


def _events(server: ApiServer, about: Which) -> list[str]:
    found: list[tuple[str, str]] = []
    for record in server.store.collection("events").records.values():
        event = record.data()
        subject = event.get("involvedObject") or {}
        names = (subject.get("kind"), subject.get("namespace", ""), subject.get("name"))
        if names == (about.kind, about.namespace, about.name):
            at = event.get("lastTimestamp") or event.get("eventTime") or ""
            found.append((at, f"event {event.get('type')} {event.get('reason')}: {event.get('message', '')}"))
    return [line for _, line in sorted(found)[-MAX_EVENTS:]] or ["no events"]


def _pods_of(server: ApiServer, owner: Record) -> list[Json]:
    """Pods that belong to the object, directly or through others such as ReplicaSets."""
    collections = server.store.collections.values()
    records = (record for each in collections for record in each.records.values())
    owned: dict[str, list[Json]] = {}
    for record in records:
        if record.key[0] == owner.key[0] and b'"ownerReferences"' in record.body:
            item = record.data()
            for reference in item["metadata"].get("ownerReferences") or ():
                owned.setdefault(reference["uid"], []).append(item)
    found, left = [], [owner.uid]
    while left:
        for item in owned.pop(left.pop(), ()):
            left.append(item["metadata"]["uid"])
            if item["kind"] == "Pod":
                found.append(item)
    return found


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
