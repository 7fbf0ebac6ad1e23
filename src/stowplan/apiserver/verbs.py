"""The generic verbs on one object or on a collection, from the request to the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from stowplan.apiserver import applying, bodies, forms, managed, nesting, patches, times
from stowplan.apiserver.conversion import from_stored, to_stored
from stowplan.apiserver.failures import Failure, bad_request, not_found
from stowplan.apiserver.forms import Form
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.messages import Answer, Headers, Query, Request
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.options import WriteOptions, delete_options, list_options, write_options
from stowplan.apiserver.reading import selection_of
from stowplan.apiserver.resources import Resource, Resources
from stowplan.apiserver.store import Record

Json = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MAX_WARNINGS, MAX_WARNING_LENGTH, MAX_WARNING_LENGTHS = 100, 256, 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # none of them may end a header
APPLY_PATCH = ("application/apply-patch+yaml", "application/apply-patch+cbor")


class Target:
    """What a request is about."""

    def __init__(self, resource: Resource, namespace: str, name: str, request: Request, query: Query) -> None:
        self.resource, self.namespace, self.name = resource, namespace, name
        self.request, self.query = request, query

    @cached_property
    def media(self) -> str:
        return bodies.media_type(self.request.headers.get("content-type", ""))

    @cached_property
    def form(self) -> Form:
        request = self.request
        return forms.form_of(request.headers.get("accept", ""), self.query("includeObject"), request.is_bare)


class Verbs:
    """`token` is the one that a TokenReview accepts."""

    def __init__(self, objects: Objects, resources: Resources) -> None:
        self.objects, self.resources = objects, resources
        self.token = ""

    def resource_of(self, collection: str) -> Resource:
        found = self.resources.kept_in(collection)
        if found is None:
            raise LookupError(f"nothing is kept as {collection}")
        return found

    def get(self, target: Target) -> Answer:
        form = target.form
        return forms.one(
            form, target.resource, self.objects.published(target.resource, target.namespace, target.name)
        )

    def create(self, target: Target) -> Answer:
        form, resource = target.form, target.resource
        options = write_options(target.request, target.query, "CreateOptions")
        data, problems = self.read(target, options)
        record = self.objects.create(
            resource,
            target.namespace,
            to_stored(resource, data),
            _updater(target, options),
            dry_run=options.dry_run,
        )
        warnings = [*problems, *resource.strategy.warnings(data)]
        return forms.one(form, resource, record, 201, _warned(warnings))

    def update(self, target: Target, subresource: str = "") -> Answer:
        form, resource = target.form, target.resource
        options = write_options(target.request, target.query, "UpdateOptions")
        data, problems = self.read(target, options)
        meta = data.get("metadata") or {}
        if meta.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
            )
        manager = _updater(target, options, subresource)
        stored = to_stored(resource, data)
        status = 200
        try:
            record = self.objects.update(
                resource,
                target.namespace,
                target.name,
                lambda old: stored,
                manager,
                dry_run=options.dry_run,
                is_whole=True,
            )
        except Failure as failure:
            if failure.code != 404 or not resource.strategy.creates_on_update or subresource:
                raise
            meta.setdefault("name", target.name)
            record = self.objects.create(resource, target.namespace, stored, manager, dry_run=options.dry_run)
            status = 201
        return forms.one(form, resource, record, status, _warned(problems))

    def patch(self, target: Target, subresource: str = "") -> Answer:
        form, media = target.form, target.media
        is_apply = media in APPLY_PATCH
        if not is_apply and media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
            raise Failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
        if media == STRATEGIC_PATCH and target.resource.is_custom:
            raise bodies.unsupported_patch()
        options = write_options(target.request, target.query, "PatchOptions", is_apply)
        if is_apply:
            return self._apply(target, options, subresource, form)
        problems: list[str] = []
        patch = decoded_patch(target.request.body)
        change = self._change(target, options, media, patch, problems)
        record = self.objects.update(
            target.resource,
            target.namespace,
            target.name,
            change,
            _updater(target, options, subresource),
            dry_run=options.dry_run,
        )
        return forms.one(form, target.resource, record, 200, _warned(problems))

    def _change(
        self, target: Target, options: WriteOptions, media: str, patch: Any, problems: list[str]
    ) -> Callable[[Json], Json]:
        """What the patch makes of an object."""
        resource = target.resource
        if media != JSON_PATCH:
            patches.check_is_map(patch)

        def change(stored: Json) -> Json:
            old = from_stored(resource, stored)
            if b"managedFields" in target.request.body:
                record = self.objects.get(resource, target.namespace, target.name)
                old["metadata"]["managedFields"] = (
                    msgspec.json.decode(record.managed.text()) if record.managed else []
                )
            if media == JSON_PATCH:
                new = patches.json_patch(old, patch)
            elif media == MERGE_PATCH:
                new = patches.merge_patch(old, patch)
            else:
                new = patches.strategic_patch(resource.schema, old, patch)

            def unfit(said: str) -> Failure:
                return patches.unfit(patch, said, None if media == STRATEGIC_PATCH else new)

            bodies.check_kind(new, resource.group_version, resource.kind)
            found, unknown = bodies.in_form(new, resource.codec, unfit)
            if unknown and options.validation == "Strict":
                raise unfit(f"strict decoding error: {', '.join(unknown)}")
            if options.validation != "Ignore":
                problems.extend(unknown)
            return to_stored(resource, found)

        return change

    def _apply(self, target: Target, options: WriteOptions, subresource: str, form: Form) -> Answer:
        """Server-side apply; an object that is not there is created."""
        resource = target.resource
        config = bodies.parsed(target.request.body, resource.kind)
        _check_config(target, config)
        given = (config.get("metadata") or {}).get("namespace") or ""
        where = f"{given}/{target.name}; {resource.group or ''}/{resource.version}, Kind={resource.kind}"
        applying.check_declared(resource.schema, config, where)
        manager = Manager(options.manager, "Apply", resource.group_version, subresource)
        kept: list[managed.Entry] = []

        def change(stored: Json) -> Json:
            live = from_stored(resource, stored)
            record = self.objects.collection(resource).latest((target.namespace, target.name))
            known = record.managed.resolve() if record is not None and record.managed is not None else []  # type: ignore[attr-defined]
            if record is not None and not known:
                known = [applying.before_first(resource.schema, live, resource.group_version)]
            new, entries = applying.apply(
                resource.schema, live, config, known, manager, options.force, times.now()
            )
            kept[:] = entries
            found, _ = bodies.in_form(new, resource.codec, lambda said: patches.unfit(config, said, new))
            return to_stored(resource, found)

        key = (target.namespace, target.name)
        if self.objects.collection(resource).latest(key) is None:
            if subresource:
                raise not_found(target.name, resource.plural, resource.group)
            data = change({"kind": resource.kind, "apiVersion": resource.group_version})
            data.setdefault("metadata", {})["name"] = target.name
            record = self.objects.create(
                resource,
                target.namespace,
                data,
                manager,
                dry_run=options.dry_run,
                prior=managed.Resolved(list(kept)),
            )
            return forms.one(form, resource, record, 201)
        record = self.objects.update(
            resource,
            target.namespace,
            target.name,
            change,
            manager,
            dry_run=options.dry_run,
            owners=lambda before, data: managed.Resolved(list(kept)),
        )
        return forms.one(form, resource, record, 200)

    def delete(self, target: Target) -> Answer:
        form, resource = target.form, target.resource
        options = delete_options(target.request, target.query)
        record, is_gone = self.objects.delete(resource, target.namespace, target.name, options)
        if is_gone and not resource.strategy.returns_deleted:
            details = {
                "name": target.name,
                "group": resource.group,
                "kind": resource.plural,
                "uid": record.uid,
            }
            return Answer.of(
                200,
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Success",
                    "details": {key: value for key, value in details.items() if value},
                },
            )
        return forms.one(form, resource, record)

    def deletecollection(self, target: Target) -> Answer:
        form, resource = target.form, target.resource
        options = delete_options(target.request, target.query)
        selection = selection_of(resource, target.namespace, list_options(target.query))
        collection = self.objects.collection(resource)
        chosen = [record for record in collection.all_latest() if selection.takes(record)]
        chosen.sort(key=lambda record: record.key)
        for record in chosen:
            self.objects.delete(resource, *record.key, options)
        return forms.many(form, resource, chosen, {"resourceVersion": str(self.objects.store.version)})

    def read(self, target: Target, options: WriteOptions) -> tuple[Json, list[str]]:
        resource = target.resource
        return bodies.read_object(
            target.request.body,
            target.media,
            resource.codec,
            resource.group_version,
            resource.kind,
            options.validation,
        )


def _updater(target: Target, options: WriteOptions, subresource: str = "") -> Manager:
    return Manager(options.manager, "Update", target.resource.group_version, subresource)


def _warned(problems: list[str]) -> Headers:
    """Warnings as headers, no more of them and no longer than kube-apiserver's."""
    problems = problems[:MAX_WARNINGS]
    if sum(map(len, problems)) > MAX_WARNING_LENGTHS:
        problems = [problem[:MAX_WARNING_LENGTH] for problem in problems]
    texts = (_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", problem) for problem in problems)
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return tuple(("Warning", f'299 - "{text}"') for text in quoted)


def decoded_patch(body: bytes) -> Any:
    if nesting.is_too_deep(body):
        raise bad_request(f"error decoding patch: {nesting.WORDS}")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"error decoding patch: {bodies.json_error(error)}") from error


def _check_config(target: Target, config: Json) -> None:
    group, _, version = str(config.get("apiVersion", "")).rpartition("/")
    kind = config.get("kind") or ""
    resource = target.resource
    if not kind or not version:
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind}")
    if (group, version, kind) != (resource.group, resource.version, resource.kind):
        raise bad_request(
            f"incorrect object type, expected {resource.group_version}, Kind={resource.kind}, "
            f"got {config['apiVersion']}, Kind={kind}"
        )
    meta = config.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request(f".metadata: expected map, got {type(meta).__name__}")
    if meta.get("name") and meta["name"] != target.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
        )
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")


__all__ = ["Record", "Target", "Verbs"]
