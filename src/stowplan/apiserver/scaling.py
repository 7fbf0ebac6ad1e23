"""Scale: the one number of a workload that autoscalers and `kubectl scale` know."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.apiserver import forms, patches, tables
from stowplan.apiserver.bodies import BuiltIn, in_form, read_object
from stowplan.apiserver.failures import Failure, bad_request, invalid, invalid_object, modified
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.messages import Answer
from stowplan.apiserver.options import write_options
from stowplan.apiserver.resources import ScalePaths
from stowplan.apiserver.store import Record
from stowplan.apiserver.verbs import Target, Verbs, decoded_patch

Json = dict[str, Any]

SCHEMA = "io.k8s.api.autoscaling.v1.Scale"
GROUP_VERSION = "autoscaling/v1"


def scale(verbs: Verbs, target: Target, verb: str) -> Answer:
    resource = target.resource
    look = verbs.objects.published if verb == "get" else verbs.objects.get
    before = look(resource, target.namespace, target.name)
    paths = resource.scale_paths
    now = scale_of(before, paths)
    if verb == "get":
        return forms.answer(target.form, 200, msgspec.json.encode(now))
    options = write_options(
        target.request, target.query, "UpdateOptions" if verb == "update" else "PatchOptions"
    )
    if verb == "update":
        sent, _ = read_object(
            target.request.body, target.media, BuiltIn(SCHEMA), GROUP_VERSION, "Scale", options.validation
        )
    else:
        sent = _patched(target, now)
    _check(resource.kind, target.name, sent, before, resource.plural, resource.group)
    wanted = (sent.get("spec") or {}).get("replicas", 0)

    def change(data: Json) -> Json:
        *way, last = paths.wanted.strip(".").split(".")
        holder = data
        for part in way:
            holder = holder.setdefault(part, {})
        holder[last] = wanted
        return data

    manager = Manager(options.manager, "Update", resource.group_version, "scale")
    record = verbs.objects.update(
        resource, target.namespace, target.name, change, manager, dry_run=options.dry_run
    )
    return forms.answer(target.form, 200, msgspec.json.encode(scale_of(record, paths)))


def scale_of(record: Record, paths: ScalePaths) -> Json:
    data = record.data()
    meta = data["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = _read(data, paths.selector) if paths.selector else None
    status: Json = {"replicas": _read(data, paths.current) or 0}
    if text := _selector_text(selector):
        status["selector"] = text
    wanted = _read(data, paths.wanted) or 0
    return {
        "kind": "Scale",
        "apiVersion": GROUP_VERSION,
        "metadata": {field: meta[field] for field in kept if field in meta},
        "spec": {"replicas": wanted} if wanted else {},
        "status": status,
    }


def _selector_text(selector: Any) -> str:
    if isinstance(selector, dict) and ("matchLabels" in selector or "matchExpressions" in selector):
        return tables.selector_text(selector)
    if isinstance(selector, dict):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    return selector or ""


def _read(data: Any, path: str) -> Any:
    for part in filter(None, path.strip(".").split(".")):
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _patched(target: Target, now: Json) -> Json:
    patch = decoded_patch(target.request.body)
    match target.media:
        case "application/json-patch+json":
            new = patches.json_patch(now, patch)
        case "application/merge-patch+json" | "application/strategic-merge-patch+json":
            new = patches.merge_patch(now, patches.check_is_map(patch))
        case _:
            raise Failure(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    found, _ = in_form(new, BuiltIn(SCHEMA), lambda said: patches.unfit(patch, said, new))
    return found


def _check(kind: str, name: str, sent: Json, before: Record, plural: str, group: str) -> None:
    meta = sent.get("metadata") or {}
    if meta.get("name") and meta["name"] != name:
        raise bad_request(
            f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
        )
    if meta.get("resourceVersion") and meta["resourceVersion"] != str(before.version):
        raise modified(name, plural, group)
    wanted = (sent.get("spec") or {}).get("replicas", 0)
    if wanted < 0:
        error = invalid("spec.replicas", wanted, "must be greater than or equal to 0")
        raise invalid_object("Scale", name, [error], "autoscaling")
