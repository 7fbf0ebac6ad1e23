"""What lies below an object: its status, its scale, and what is done to a pod by writing there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.apiserver import forms
from stowplan.apiserver.binding import bind
from stowplan.apiserver.bodies import BuiltIn, read_object
from stowplan.apiserver.eviction import evict
from stowplan.apiserver.failures import conflict
from stowplan.apiserver.messages import Answer
from stowplan.apiserver.options import write_options
from stowplan.apiserver.scaling import scale
from stowplan.apiserver.verbs import Target, Verbs

Json = dict[str, Any]
Subresource = Callable[[Verbs, Target, str], Answer]


def status(verbs: Verbs, target: Target, verb: str) -> Answer:
    return _part(verbs, target, verb, "status")


def resize(verbs: Verbs, target: Target, verb: str) -> Answer:
    return _part(verbs, target, verb, "resize")


def ephemeral_containers(verbs: Verbs, target: Target, verb: str) -> Answer:
    return _part(verbs, target, verb, "ephemeralcontainers")


def _part(verbs: Verbs, target: Target, verb: str, name: str) -> Answer:
    if verb == "get":
        return verbs.get(target)
    return verbs.update(target, name) if verb == "update" else verbs.patch(target, name)


def finalize(verbs: Verbs, target: Target, verb: str) -> Answer:
    """A namespace goes when the last of its finalizers is taken off."""
    resource = target.resource
    options = write_options(target.request, target.query, "UpdateOptions")
    sent, _ = verbs.read(target, options)
    before = verbs.objects.get(resource, target.namespace, target.name)
    version = (sent.get("metadata") or {}).get("resourceVersion")
    if version and version != str(before.version):
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise conflict(target.name, resource.plural, resource.group, why)
    data = before.data()
    data["spec"] = {key: value for key, value in (sent.get("spec") or {}).items() if value}
    meta = data["metadata"]
    if meta.get("deletionTimestamp") and not data["spec"] and not meta.get("finalizers"):
        return forms.one(target.form, resource, verbs.objects.remove(resource, before.key, data))
    return forms.one(
        target.form, resource, verbs.objects.write(resource, before, data, dry_run=options.dry_run)
    )


def binding(verbs: Verbs, target: Target, verb: str) -> Answer:
    return bind(verbs, target, _sent(target, "io.k8s.api.core.v1.Binding", "v1", "Binding"))


def eviction(verbs: Verbs, target: Target, verb: str) -> Answer:
    return evict(verbs, target, _sent(target, "io.k8s.api.policy.v1.Eviction", "policy/v1", "Eviction"))


def _sent(target: Target, schema: str, group_version: str, kind: str) -> Json:
    options = write_options(target.request, target.query, "CreateOptions")
    data, _ = read_object(
        target.request.body, target.media, BuiltIn(schema), group_version, kind, options.validation
    )
    return data


SUBRESOURCES: dict[str, Subresource] = {
    "status": status,
    "scale": scale,
    "binding": binding,
    "eviction": eviction,
    "finalize": finalize,
    "resize": resize,
    "ephemeralcontainers": ephemeral_containers,
}
