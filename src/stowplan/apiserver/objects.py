"""Writing objects: create, update and delete, with all that happens to an object before it is kept.

This is the core below the HTTP verbs: it knows resources, strategies and the store, but no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stowplan.apiserver import managed as managing
from stowplan.apiserver import metadata, times
from stowplan.apiserver.conversion import from_stored
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    already_exists,
    bad_request,
    conflict,
    forbidden_request,
    internal,
    invalid_object,
    modified,
    not_found,
    other_uid,
)
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.options import DeleteOptions
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.schemas import ref_of
from stowplan.apiserver.store import Collection, Key, Record, Store

Json = dict[str, Any]
Change = Callable[[Json], Json]
"""Makes the new object of the one that is there."""

_encode = msgspec.json.Encoder().encode
GENERATE_TRIES = 8
MAX_ERRORS = 500
"""Field errors told at most: each has half a page of words, and an object has room for very many."""
_PLACES = {
    "nodes": "minions",
    "services": "services/specs",
    "endpoints": "services/endpoints",
    "replicationcontrollers": "controllers",
}
"""Where the API says that it keeps what it does not keep under its own name."""
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


class Objects:
    """All objects, and the rules for changing them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.on_written: dict[str, Callable[[Record, bool], None]] = {}
        """By collection: called with what was written, published or not, and whether that was its removal."""

    # What strategies may ask. Writers see the latest state, which may not be published yet.

    def find(self, collection: str, name: str, namespace: str = "") -> Record | None:
        return self.store.collection(collection).latest((namespace, name))

    def all(self, collection: str) -> Iterable[Record]:
        return self.store.collection(collection).all_latest()

    # Reading.

    def collection(self, resource: Resource) -> Collection:
        return self.store.collection(resource.collection, resource.fields_of)

    def published(self, resource: Resource, namespace: str, name: str) -> Record:
        """The object as it is served."""
        found = self.collection(resource).records.get((namespace, name))
        if found is None:
            raise not_found(name, resource.plural, resource.group)
        return found

    # Writing.

    def get(self, resource: Resource, namespace: str, name: str) -> Record:
        """The object as it is about to be changed."""
        found = self.collection(resource).latest((namespace, name))
        if found is None:
            raise not_found(name, resource.plural, resource.group)
        return found

    def create(
        self,
        resource: Resource,
        namespace: str,
        data: Json,
        manager: Manager,
        *,
        dry_run: bool = False,
        prior: managing.AnyManaged | None = None,
    ) -> Record:
        strategy, meta = resource.strategy, _metadata(data)
        _check_namespace(resource, namespace, meta)
        if meta.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        meta.pop("managedFields", None)
        strategy.default(data)
        owners = prior or self._first_owners(resource, data, manager)
        self._check_namespace_takes(resource, namespace, meta)
        metadata.generate_name(meta)
        strategy.admit(data, self)
        strategy.prepare_create(data)
        metadata.fill_for_create(meta, namespace, strategy.has_generation)
        errors = metadata.errors_of(meta, type(strategy).name_errors, resource.namespaced)
        self._refuse(resource, meta.get("name", ""), [*errors, *strategy.errors(data)])
        collection = self.collection(resource)
        key = (namespace, meta["name"])
        if collection.latest(key) is not None:
            raise already_exists(meta["name"], resource.plural, resource.group)
        return self._put(resource, key, data, owners, dry_run)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Change,
        manager: Manager,
        *,
        dry_run: bool = False,
        is_whole: bool = False,
        owners: Callable[[Record, Json], managing.AnyManaged] | None = None,
    ) -> Record:
        """Write what `change` makes of the object; `manager.subresource` says which part that may be.

        `is_whole`: the client sent all of it, so that its uid must be the one of the object that is there.
        """
        before = self.get(resource, namespace, name)
        old = before.data()
        data = change(before.data())
        strategy, meta = resource.strategy, _metadata(data)
        _check_namespace(resource, namespace, meta)
        meta.setdefault("name", name)
        _check_identity(resource, name, meta, old["metadata"], before.version, is_whole)
        is_main = manager.subresource != "status"
        if is_main and strategy.updates_need_version and not meta.get("resourceVersion"):
            error = FieldError(
                "metadata.resourceVersion", "Invalid value", "0: must be specified for an update"
            )
            raise invalid_object(resource.plural, name, [error], resource.group)
        given = managing.parsed(meta.get("managedFields")) if meta.get("managedFields") is not None else None
        metadata.fill_for_update(meta, old["metadata"])
        meta["resourceVersion"] = old["metadata"]["resourceVersion"]
        strategy.default(data)
        if is_main:
            strategy.admit_update(data, old, self)
            strategy.prepare_update(data, old)
            errors = [*strategy.errors(data), *strategy.update_errors(data, old)]
        else:
            strategy.prepare_status_update(data, old)
            errors = list(strategy.status_errors(data, old))
        common = metadata.errors_of(meta, type(strategy).name_errors, resource.namespaced) if is_main else []
        self._refuse(
            resource,
            name,
            [*_doubled(resource, metadata.update_errors(meta, old["metadata"])), *common, *errors],
        )
        ended = _is_finished(meta) and not strategy.is_held(data) and not dry_run
        base = self._owners_before(resource, before, given)
        if owners is not None:
            new_owners = owners(before, data)
        elif data == old or (managing.is_nobody(base) and resource.collection != "events"):
            new_owners = base  # once nobody manages an object, only who applies it begins to
        else:
            parts = (_served(resource, old), _served(resource, data))
            new_owners = managing.Updated(base, resource.schema, *parts, manager, times.now())
        if data == old and (new_owners is before.managed or _same(before.managed, new_owners)):
            return before  # nothing changed, so nothing is written
        if ended:
            return self._remove(resource, before.key, data, new_owners)
        return self._put(resource, before.key, data, new_owners, dry_run)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[Record, bool]:
        """Delete the object, or begin to; the record, and whether it is gone."""
        before = self.get(resource, namespace, name)
        _check_conditions(resource, before, options)
        data = before.data()
        meta = data["metadata"]
        if resource.strategy.is_held(data):
            return self._end_namespace(resource, before, data, options)
        grace = resource.strategy.grace_seconds(data, options.grace)
        finalizers = _finalizers(meta, options, resource.strategy.orphans_by_default)
        known = meta.get("deletionTimestamp") is not None
        waits = bool(finalizers) or bool(grace)
        if known and grace is not None and meta.get("deletionGracePeriodSeconds") is not None:
            grace = min(grace, meta["deletionGracePeriodSeconds"])  # it can only become shorter
            waits = bool(finalizers) or bool(grace)
        if not waits:
            meta = self._mark(data, grace, known) if grace is not None else meta
            return (
                (Record(before.key, data, before.version, before.managed, before.fields), True)
                if options.dry_run
                else (
                    self._remove(resource, before.key, data),
                    True,
                )
            )
        old = before.data()
        if finalizers:
            meta["finalizers"] = finalizers
        self._mark(data, grace or 0, known)
        if data == old:
            return before, False
        return self._put(resource, before.key, data, before.managed, options.dry_run), False  # type: ignore[arg-type]

    def _end_namespace(
        self, resource: Resource, before: Record, data: Json, options: DeleteOptions
    ) -> tuple[Record, bool]:
        """A namespace stays until its own finalizers are taken off."""
        meta = data["metadata"]
        if not meta.get("deletionTimestamp"):
            meta["deletionTimestamp"] = times.now()
            data.setdefault("status", {})["phase"] = "Terminating"
            return self._put(resource, before.key, data, before.managed, options.dry_run), False  # type: ignore[arg-type]
        return before, False

    def write(self, resource: Resource, before: Record, data: Json, *, dry_run: bool = False) -> Record:
        """Keep what a subresource of its own rules made of an object; nobody manages those fields."""
        return self._put(resource, before.key, data, before.managed, dry_run)  # type: ignore[arg-type]

    def remove(self, resource: Resource, key: Key, data: Json) -> Record:
        """Take an object out that has nothing to wait for; `data` is the last that is told of it."""
        return self._remove(resource, key, data)

    @staticmethod
    def _mark(data: Json, grace: int, known: bool) -> Json:
        """Note on the object that it is to go."""
        meta: Json = data["metadata"]
        if not known or meta.get("deletionGracePeriodSeconds") != grace:
            if "generation" in meta and not known:
                meta["generation"] += 1
            meta["deletionTimestamp"] = times.later(grace)
            meta["deletionGracePeriodSeconds"] = grace
        return meta

    def _put(
        self, resource: Resource, key: Key, data: Json, owners: managing.AnyManaged | None, dry_run: bool
    ) -> Record:
        data["kind"], data["apiVersion"] = data.pop("kind"), data.pop("apiVersion")
        ordered = {"kind": data.pop("kind"), "apiVersion": data.pop("apiVersion"), **data}
        collection = self.collection(resource)
        if dry_run:
            before = collection.latest(key)
            record = Record(key, ordered, before.version if before else 0, owners, {})
            if not before:
                record.body = record.body.replace(b',"resourceVersion":"0"', b"", 1)
            return record
        record = collection.put(key, ordered, owners)
        self._tell(resource, record, False)
        return record

    def _remove(
        self, resource: Resource, key: Key, data: Json, owners: managing.AnyManaged | None = None
    ) -> Record:
        record = self.collection(resource).remove(key, data, owners)
        self._tell(resource, record, True)
        return record

    def first_entries(self, resource: Resource, data: Json, manager: Manager) -> list[Json]:
        """The managedFields of an object that is only answered with, and not kept."""
        entries: list[Json] = msgspec.json.decode(self._first_owners(resource, data, manager).text())
        return entries

    def _first_owners(self, resource: Resource, data: Json, manager: Manager) -> managing.AnyManaged:
        zero, new = self._zero(resource), _served(resource, data)
        return managing.Updated(managing.NOBODY, resource.schema, zero, new, manager, times.now())

    @staticmethod
    def _owners_before(
        resource: Resource, before: Record, given: list[managing.Entry] | None
    ) -> managing.AnyManaged:
        """Who managed the object until now: who the client says, if it says so, else who is known."""
        owners: managing.AnyManaged = before.managed or managing.NOBODY  # type: ignore[assignment]
        if given is not None and given != owners.resolve():
            return managing.Resolved(given)
        if resource.collection == "events":  # what was managed as an event of the other group is forgotten
            return managing.Resolved(
                [each for each in owners.resolve() if each.manager.api_version == resource.group_version]
            )
        return owners

    def _tell(self, resource: Resource, record: Record, is_removal: bool) -> None:
        react = self.on_written.get(resource.collection)
        if react is not None:
            react(record, is_removal)

    def _check_namespace_takes(self, resource: Resource, namespace: str, meta: Json) -> None:
        """Only a namespace that is there, and stays, takes new objects."""
        if not namespace:
            return
        found = self.find("namespaces", namespace)
        if found is None:
            raise not_found(namespace, "namespaces")
        if b'"deletionTimestamp"' in found.body and found.data()["metadata"].get("deletionTimestamp"):
            name = meta.get("name") or meta.get("generateName", "")
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            failure = forbidden_request(name, resource.plural, resource.group, why)
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            failure.status["details"]["causes"] = [cause]
            raise failure

    @staticmethod
    def _refuse(resource: Resource, name: str, errors: list[FieldError]) -> None:
        if errors:
            raise invalid_object(resource.kind, name, errors[:MAX_ERRORS], resource.error_group)

    @staticmethod
    def _zero(resource: Resource) -> bytes:
        """The object of this kind about which nothing is said."""
        if not ref_of(resource.schema):
            return b"{}"
        return _encode(resource.codec.in_form({})[0])


def _served(resource: Resource, data: Json) -> bytes:
    """The object as its managers know it."""
    return _encode(from_stored(resource, dict(data)) if resource.collection == "events" else data)


def _metadata(data: Json) -> Json:
    meta = data.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request("metadata must be an object")
    return meta


def _check_namespace(resource: Resource, namespace: str, meta: Json) -> None:
    if not resource.namespaced:
        meta.pop("namespace", None)
    given = meta.get("namespace")
    if given and given != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if namespace:
        meta["namespace"] = namespace


def _check_identity(
    resource: Resource, name: str, meta: Json, old: Json, version: int, is_whole: bool
) -> None:
    """That the object meant is the one that is there, in the version it was read in."""
    if meta["name"] != name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
        )
    given = meta.get("resourceVersion")
    if is_whole and meta.get("uid") and meta["uid"] != old["uid"]:
        place = _PLACES.get(resource.name, resource.name if resource.is_custom else resource.plural)
        parts = filter(None, (place, meta.get("namespace", ""), name))
        raise other_uid(name, resource.plural, resource.group, "/".join(parts), meta["uid"], old["uid"])
    if given and given not in ("0", str(version)):
        if not given.isdecimal() or not given.isascii():
            error = FieldError(
                "metadata.resourceVersion",
                "Invalid value",
                f'"{given}": strconv.ParseUint: parsing "{given}": invalid syntax',
            )
            raise invalid_object(resource.kind, name, [error], resource.group)
        raise modified(name, resource.plural, resource.group)


def _doubled(resource: Resource, errors: list[FieldError]) -> list[FieldError]:
    return errors * 2 if resource.strategy.checks_metadata_twice else errors


def _check_conditions(resource: Resource, record: Record, options: DeleteOptions) -> None:
    def refused(what: str, given: str, found: Any, end: str) -> Failure:
        why = (
            f"the {what} in the precondition ({given}) does not match the {what} in record ({found}). "
            f"The object might have been {end}"
        )
        return conflict(record.key[1], resource.kind, resource.error_group, why)

    if resource.strategy.is_held(record.data()):
        _check_held(resource, record, options)
    if options.uid and options.uid != record.uid:
        raise refused("UID", options.uid, record.uid, "deleted and then recreated")
    if options.version and options.version != str(record.version):
        raise refused("ResourceVersion", options.version, record.version, "modified")


def _check_held(resource: Resource, record: Record, options: DeleteOptions) -> None:
    """The same for namespaces, which the API deletes in a way of its own."""
    for what, given, found in (
        ("UID", options.uid, record.uid),
        ("ResourceVersion", options.version, str(record.version)),
    ):
        if given and given != found:
            why = f"Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}"
            raise conflict(record.key[1], resource.plural, resource.group, why)


def _finalizers(meta: Json, options: DeleteOptions, orphans: bool) -> list[str]:
    """The finalizers an object waits for; what is to become of its dependents is one of them."""
    found = list(meta.get("finalizers") or [])
    unsaid = not options.propagation and options.orphan is None
    orphan = options.propagation == "Orphan" or options.orphan is True or (unsaid and orphans)
    foreground = options.propagation == "Foreground"
    said = not unsaid or orphans
    if said:
        found = [each for each in found if each not in (ORPHAN, FOREGROUND)]
        found += [ORPHAN] if orphan else [FOREGROUND] if foreground else []
    return found


def _is_finished(meta: Json) -> bool:
    """Whether nothing holds back a deleted object any more."""
    if not meta.get("deletionTimestamp"):
        return False
    return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def _same(before: Any, after: Any) -> bool:
    return [each.manager for each in _known(before)] == [each.manager for each in _known(after)] and [
        each.fields for each in _known(before)
    ] == [each.fields for each in _known(after)]


def _known(owners: Any) -> list[managing.Entry]:
    return owners.resolve() if owners is not None else []
