"""Objects in the store: finding, keeping and deleting them.

This is the layer below the HTTP verbs: it knows resources, strategies and the store, but no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stowplan.api.meta import Json
from stowplan.apiserver import times
from stowplan.apiserver.failures import Failure, conflict, forbidden_request, not_found
from stowplan.apiserver.managed import AnyManaged
from stowplan.apiserver.options import DeleteOptions
from stowplan.apiserver.resources import Resource, Resources
from stowplan.apiserver.store import Collection, Key, Record, Store

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


class Objects:
    """All objects, and the rules for changing them."""

    def __init__(self, store: Store, resources: Resources) -> None:
        self.store, self.resources = store, resources
        self.on_written: dict[str, Callable[[Record, bool], None]] = {}
        """By collection: called with what was written, published or not, and whether that was its removal."""

    # What strategies may ask. Writers see the latest state, which may not be published yet.

    def find(self, collection: str, name: str, namespace: str = "") -> Record | None:
        return self.store.collection(collection).latest((namespace, name))

    def all(self, collection: str) -> Iterable[Record]:
        return self.store.collection(collection).all_latest()

    def has_any(self, collection: str) -> bool:
        found = self.store.collections[collection]
        return bool(found.records or found.staged)

    # For the verbs.

    def collection(self, resource: Resource) -> Collection:
        return self.store.collection(resource.collection, resource.fields_of)

    def published(self, resource: Resource, namespace: str, name: str) -> Record:
        """The object as it is served; a 404 if there is none."""
        found = self.collection(resource).records.get((namespace, name))
        if found is None:
            raise not_found(name, resource.plural, resource.group)
        return found

    def latest(self, resource: Resource, namespace: str, name: str) -> Record | None:
        """The object as it is about to be changed."""
        return self.collection(resource).latest((namespace, name))

    def get(self, resource: Resource, namespace: str, name: str) -> Record:
        """The same; a 404 if there is none."""
        found = self.latest(resource, namespace, name)
        if found is None:
            raise not_found(name, resource.plural, resource.group)
        return found

    def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[Record, bool]:
        """Delete the object, or mark it as being deleted; return its record and whether it is gone."""
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
            if options.dry_run:
                return Record(before.key, data, before.version, before.managed, before.fields), True
            return self.remove(resource, before.key, data), True
        old = before.data()
        if finalizers:
            meta["finalizers"] = finalizers
        self._mark(data, grace or 0, known)
        if data == old:
            return before, False
        return self.put(resource, before.key, data, before.managed, dry_run=options.dry_run), False

    def _end_namespace(
        self, resource: Resource, before: Record, data: Json, options: DeleteOptions
    ) -> tuple[Record, bool]:
        """Mark a namespace as terminating; it stays until its finalizers are removed."""
        meta = data["metadata"]
        if not meta.get("deletionTimestamp"):
            meta["deletionTimestamp"] = times.now()
            data.setdefault("status", {})["phase"] = "Terminating"
            return self.put(resource, before.key, data, before.managed, dry_run=options.dry_run), False
        return before, False

    @staticmethod
    def _mark(data: Json, grace: int, known: bool) -> Json:
        """Set the deletion timestamp of the object."""
        meta: Json = data["metadata"]
        if not known or meta.get("deletionGracePeriodSeconds") != grace:
            if "generation" in meta and not known:
                meta["generation"] += 1
            meta["deletionTimestamp"] = times.later(grace)
            meta["deletionGracePeriodSeconds"] = grace
        return meta

    def put(
        self,
        resource: Resource,
        key: Key,
        data: Json,
        owners: AnyManaged | None,
        *,
        dry_run: bool = False,
    ) -> Record:
        """Keep this as the new state of an object; `owners` manage its fields."""
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

    def remove(self, resource: Resource, key: Key, data: Json, owners: AnyManaged | None = None) -> Record:
        """Take an object out that has nothing to wait for; `data` is the last that watches see of it."""
        record = self.collection(resource).remove(key, data, owners)
        self._tell(resource, record, True)
        return record

    def _tell(self, resource: Resource, record: Record, is_removal: bool) -> None:
        react = self.on_written.get(resource.collection)
        if react is not None:
            react(record, is_removal)

    def check_namespace_accepts(self, resource: Resource, namespace: str, meta: Json) -> None:
        """Raise unless the namespace exists and is not being deleted."""
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


def _check_conditions(resource: Resource, record: Record, options: DeleteOptions) -> None:
    def refused(what: str, given: str, found: object, end: str) -> Failure:
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
    """The same for namespaces, which the API deletes differently."""
    for what, given, found in (
        ("UID", options.uid, record.uid),
        ("ResourceVersion", options.version, str(record.version)),
    ):
        if given and given != found:
            why = f"Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}"
            raise conflict(record.key[1], resource.plural, resource.group, why)


def _finalizers(meta: Json, options: DeleteOptions, orphans: bool) -> list[str]:
    """The finalizers of an object to delete, with the one for its dependents."""
    found = list(meta.get("finalizers") or [])
    unsaid = not options.propagation and options.orphan is None
    orphan = options.propagation == "Orphan" or options.orphan is True or (unsaid and orphans)
    foreground = options.propagation == "Foreground"
    said = not unsaid or orphans
    if said:
        found = [each for each in found if each not in (ORPHAN, FOREGROUND)]
        found += [ORPHAN] if orphan else [FOREGROUND] if foreground else []
    return found
