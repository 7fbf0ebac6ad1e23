"""How an object is written: decode, admit, validate, store, answer.

Create, update, patch and server-side apply take the same five steps. A `RequestContext` carries the request
through them; each step reads what the steps before it have filled in. Only `decode` depends on the verb: it
leaves the wanted object in `context.data`, and in `context.before` the one that it replaces, if any.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import admission, bodies, forms, managed, metadata, patches, times
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    already_exists,
    bad_request,
    internal,
    invalid_object,
    modified,
    other_uid,
)
from stowplan.apiserver.forms import from_stored, to_stored
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.security import template_in
from stowplan.apiserver.store import Record
from stowplan.apiserver.strategies.groups import drop_membership
from stowplan.http11.messages import Headers, Response

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = ("application/apply-patch+yaml", "application/apply-patch+cbor")
MAX_ERRORS = 500
"""Field errors reported at most: each takes half a page, and an object has room for very many."""
MAX_WARNINGS, MAX_WARNING_LENGTH, MAX_WARNING_LENGTHS = 100, 256, 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # none of them may end a header
_PLACES = {
    "nodes": "minions",
    "services": "services/specs",
    "endpoints": "services/endpoints",
    "replicationcontrollers": "controllers",
}
"""Where the API says that it keeps what it does not keep under its own name."""
_encode = msgspec.json.Encoder().encode


Decode = Callable[[RequestContext], None]


def run(context: RequestContext, decode: Decode | None = None) -> Response:
    """All five steps; a subresource with a body of its own decodes it itself."""
    form = context.form  # a client that accepts no form of ours learns it before anything is written
    (decode or _decode)(context)
    if context.before is None and context.verb != "create":
        admission.check_may_create(context)
    record = write(context)
    status = 200 if context.before is not None else 201
    return forms.render_object(form, context.resource, record, status, _warning_headers(context.warnings))


def write(context: RequestContext) -> Record:
    """The steps after decoding, for writes of the server's own as well."""
    admit(context)
    validate(context)
    admission.check(context)
    return store(context)


# Decode.


def _decode(context: RequestContext) -> None:
    if context.verb != "patch":
        decode_object(context)
    elif context.media in APPLY_PATCH:
        decode_apply(context)
    else:
        decode_patch(context)


def decode_object(context: RequestContext) -> None:
    """The whole object, from a create or an update."""
    resource, options = context.resource, context.read_options()
    data, context.warnings = bodies.read_object(
        context.request, resource.codec, resource.group_version, resource.kind, options.validation
    )
    if context.verb == "update":
        meta = data.setdefault("metadata", {})
        _check_name(context, meta)
        creates = resource.strategy.creates_on_update and not context.subresource
        if creates and context.objects.latest(resource, context.namespace, context.name) is None:
            meta.setdefault("name", context.name)
        else:
            context.load()
    context.data = to_stored(resource, data)


def decode_patch(context: RequestContext) -> None:
    """The object that is there with a patch applied to it."""
    resource, media = context.resource, context.media
    if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
        raise Failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    if media == STRATEGIC_PATCH and resource.is_custom:
        raise bodies.unsupported_patch()
    options, patch = context.read_options(), bodies.decode_patch(context.request.body)
    if media != JSON_PATCH:
        patches.check_is_map(patch)
    before = context.load()
    live = forms.served(resource, before)
    if b"managedFields" in context.request.body:
        live["metadata"]["managedFields"] = (
            msgspec.json.decode(before.managed.text()) if before.managed else []
        )
    if media == JSON_PATCH:
        new = patches.json_patch(live, patch)
    elif media == MERGE_PATCH:
        new = patches.merge_patch(live, patch)
    else:
        new = patches.strategic_patch(resource.schema, live, patch)

    def unfit(problem: str) -> Failure:
        return patches.unfit(patch, problem, None if media == STRATEGIC_PATCH else new)

    bodies.check_kind(new, resource.codec, resource.group_version, resource.kind)
    found, unknown = bodies.normalize(new, resource.codec, unfit)
    if options.validation == "Strict":
        word = "json patch duplicate field" if media == JSON_PATCH else "duplicate field"
        pairs = bodies.parse_pairs(context.request.body)
        problems = [f'{word} "{path}"' for path in bodies.duplicates(pairs)] + sorted(unknown)
        if problems:
            raise unfit(f"strict decoding error: {', '.join(problems[: bodies.MAX_PROBLEMS])}")
    if options.validation != "Ignore":
        context.warnings += unknown
    context.data = to_stored(resource, found)


def decode_apply(context: RequestContext) -> None:
    """Server-side apply: an applied configuration merged into the object, or a new object."""
    resource, options = context.resource, context.read_options(is_apply=True)
    request = context.request
    config = bodies.parse_body(request.body, resource.kind)
    if options.validation == "Strict":
        is_json = not request.duplicates and any(bodies.duplicates(bodies.parse_pairs(request.body)))
        if twice := bodies.yaml_to_json(request.body)[1] if is_json else request.duplicates:
            raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {twice}")
    _check_config(context, config)
    given = (config.get("metadata") or {}).get("namespace") or ""
    where = f"{given}/{context.name}; {resource.group or ''}/{resource.version}, Kind={resource.kind}"
    managed.check_declared(resource.schema, config, where)
    live: Json = {"kind": resource.kind, "apiVersion": resource.group_version}
    known: list[managed.Entry] = []
    if context.subresource or context.objects.latest(resource, context.namespace, context.name) is not None:
        before = context.load()
        live = forms.served(resource, before)
        known = before.managed.resolve() if before.managed is not None else []
        known = known or [managed.before_first(resource.schema, live, resource.group_version)]
    new, entries = managed.apply(
        resource.schema, live, config, known, context.manager, options.force, times.now()
    )
    found, _ = bodies.normalize(new, resource.codec, lambda problem: patches.unfit(config, problem, new))
    context.data, context.owners = to_stored(resource, found), managed.Resolved(entries)
    if context.before is None:
        context.data.setdefault("metadata", {})["name"] = context.name


def _check_config(context: RequestContext, config: Json) -> None:
    group, _, version = str(config.get("apiVersion", "")).rpartition("/")
    kind = config.get("kind") or ""
    resource = context.resource
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
    if meta.get("name"):
        _check_name(context, meta)
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")


def _check_name(context: RequestContext, meta: Json) -> None:
    if meta.get("name", context.name) != context.name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({context.name})"
        )


# Admit: defaults, admission, and what only the server may set.


def admit(context: RequestContext) -> None:
    resource, data = context.resource, context.data
    meta = data.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request("metadata must be an object")
    if not resource.namespaced:
        meta.pop("namespace", None)
    if meta.get("namespace") and meta["namespace"] != context.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if context.namespace:
        meta["namespace"] = context.namespace
    if context.before is None:
        _admit_new(context, meta)
    else:
        _admit_change(context, context.before, meta)


def _admit_new(context: RequestContext, meta: Json) -> None:
    resource, data, strategy = context.resource, context.data, context.resource.strategy
    if meta.get("resourceVersion"):
        raise internal("resourceVersion should not be set on objects to be created")
    meta.pop("managedFields", None)
    strategy.default(data)
    if context.owners is None:  # what admission adds is nobody's
        context.owners = first_owners(context)
    context.objects.check_namespace_accepts(resource, context.namespace, meta)
    if meta.get("generateName") and not meta.get("name"):
        metadata.generate_name(meta)
        if context.access is not None:  # it is the same one when the request is attempted again
            meta["name"] = context.request.memory.setdefault("name", meta["name"])
    strategy.admit(data, context.objects)
    admission.mutate(context)
    _drop_membership(context)
    strategy.prepare_create(data)
    metadata.fill_for_create(meta, context.namespace, strategy.has_generation)


def _admit_change(context: RequestContext, before: Record, meta: Json) -> None:
    resource, data, old, strategy = context.resource, context.data, context.old, context.resource.strategy
    meta.setdefault("name", context.name)
    _check_identity(context, before, meta)
    needs_version = strategy.updates_need_version and (resource.is_custom or not context.writes_status)
    if needs_version and not meta.get("resourceVersion"):
        error = FieldError("metadata.resourceVersion", "Invalid value", "0: must be specified for an update")
        raise invalid_object(resource.plural, context.name, [error], resource.group)
    given = managed.parse_entries(meta["managedFields"]) if meta.get("managedFields") is not None else None
    metadata.fill_for_update(meta, old["metadata"])
    meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    strategy.default(data)
    if context.writes_status:
        strategy.prepare_status_update(data, old)
    else:
        if context.subresource:
            strategy.prepare_part(data, old, context.subresource)
        strategy.admit_update(data, old, context.objects)
        admission.mutate(context)
        _drop_membership(context)
        strategy.prepare_update(data, old)
    if context.owners is None:
        context.owners = _owners_after(context, before, given)


def _drop_membership(context: RequestContext) -> None:
    """Without pod groups, pods and templates of pods name none."""
    name = context.resource.name
    if not context.objects.resources.has_groups and (pod := template_in(name, context.data)) is not None:
        drop_membership(pod, template_in(name, context.old))


def _check_identity(context: RequestContext, before: Record, meta: Json) -> None:
    """That the object meant is the one that is there, in the version it was read in."""
    resource, name, uid = context.resource, context.name, context.old["metadata"].get("uid")
    _check_name(context, meta)
    # Only an update sends all of the object, and with it the uid of the one that it means.
    if context.verb == "update" and meta.get("uid") and meta["uid"] != uid:
        place = _PLACES.get(resource.name, resource.name if resource.is_custom else resource.plural)
        parts = filter(None, (place, meta.get("namespace", ""), name))
        raise other_uid(name, resource.plural, resource.group, "/".join(parts), meta["uid"], str(uid))
    given = meta.get("resourceVersion")
    if given and given not in ("0", str(before.version)):
        if not given.isdecimal() or not given.isascii():
            error = FieldError(
                "metadata.resourceVersion",
                "Invalid value",
                f'"{given}": strconv.ParseUint: parsing "{given}": invalid syntax',
            )
            raise invalid_object(resource.kind, name, [error], resource.group)
        raise modified(name, resource.plural, resource.group)


def first_owners(context: RequestContext) -> managed.AnyManaged:
    """The managed fields of a new object: its creator manages all of them."""
    resource = context.resource
    new = _encode_served(resource, context.data)
    return managed.Updated(managed.NOBODY, resource.schema, resource.empty, new, context.manager, times.now())


def _owners_after(
    context: RequestContext, before: Record, given: list[managed.Entry] | None
) -> managed.AnyManaged:
    """Who manages the fields after the change; `given` are the entries that the client sent."""
    resource = context.resource
    owners = before.managed or managed.NOBODY
    if given is not None and given != owners.resolve():
        owners = managed.Resolved(given)
    elif resource.collection == "events":  # what was managed as an event of the other group is forgotten
        kept = [each for each in owners.resolve() if each.manager.api_version == resource.group_version]
        owners = managed.Resolved(kept)
    if context.data == context.old or (managed.is_nobody(owners) and resource.collection != "events"):
        return owners  # once nobody manages an object, only who applies it begins to
    parts = (_encode_served(resource, context.old), _encode_served(resource, context.data))
    return managed.Updated(owners, resource.schema, *parts, context.manager, times.now())


def _encode_served(resource: Resource, data: Json) -> bytes:
    """The object as its managers know it."""
    return _encode(from_stored(resource, dict(data)) if resource.collection in forms.CONVERTED else data)


# Validate.


def validate(context: RequestContext) -> None:
    resource, data, old, strategy = context.resource, context.data, context.old, context.resource.strategy
    meta = data["metadata"]
    errors: list[FieldError] = []
    if context.before is not None:
        changed = metadata.update_errors(meta, old["metadata"])
        errors += changed * 2 if strategy.checks_metadata_twice else changed
    if context.before is not None and context.writes_status:
        errors += strategy.status_errors(data, old)
    else:
        errors += metadata.errors_of(
            meta, type(strategy).name_errors, resource.namespaced, resource.is_custom
        )
        if context.before is None or not strategy.checks_updates_whole:
            errors += strategy.errors(data)
        if context.before is None:
            errors += strategy.create_errors(data)
        elif context.subresource:
            errors += strategy.part_errors(data, old, context.subresource)
        else:
            errors += strategy.update_errors(data, old)
    if errors:
        name = context.name if context.before is not None else meta.get("name", "")
        raise invalid_object(resource.kind, name, errors[:MAX_ERRORS], resource.error_group)
    if context.verb == "create":
        context.warnings += strategy.warnings(data)


# Store.


def store(context: RequestContext) -> Record:
    resource, data, before, objects = context.resource, context.data, context.before, context.objects
    meta = data["metadata"]
    key = (context.namespace, meta["name"])
    if before is None:
        if objects.collection(resource).latest(key) is not None:
            raise already_exists(meta["name"], resource.plural, resource.group)
    elif data == context.old and managed.is_same(before.managed, context.owners):
        return before  # nothing changed, so nothing is written
    if resource.stored_as is not None:
        data = forms.to_storage(resource.stored_as, data)
    if (
        before is not None
        and _is_finished(meta)
        and not resource.strategy.is_held(data)
        and not context.dry_run
    ):
        return objects.remove(resource, key, data, context.owners)
    return objects.put(resource, key, data, context.owners, dry_run=context.dry_run)


def _is_finished(meta: Json) -> bool:
    """Whether nothing holds back a deleted object any more."""
    if not meta.get("deletionTimestamp"):
        return False
    return not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


# Response.


def _warning_headers(warnings: list[str]) -> Headers:
    """Warnings as headers, no more of them and no longer than kube-apiserver's."""
    if not warnings:
        return ()
    warnings = warnings[:MAX_WARNINGS]
    if sum(map(len, warnings)) > MAX_WARNING_LENGTHS:
        warnings = [warning[:MAX_WARNING_LENGTH] for warning in warnings]
    texts = (_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", warning) for warning in warnings)
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return tuple(("Warning", f'299 - "{text}"') for text in quoted)
