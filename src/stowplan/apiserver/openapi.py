"""OpenAPI v3, one document per group version: schemas without words, and the paths that kubectl looks for."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from stowplan.apiserver.resources import Resource, Resources
from stowplan.apiserver.schemas import REF, data, ref_of
from stowplan.http11.messages import Request, Response

Json = dict[str, Any]

_PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")


def answer(resources: Resources, request: Request, parts: list[str]) -> Response | None:
    match parts:
        case ["openapi", "v3"]:
            return Response.of(200, {"paths": _index(resources)})
        case ["openapi", "v3", *rest]:
            group_version = "/".join(rest[1:])
            served = [each for each in resources if each.group_version == group_version]
            if served and rest[0] == ("apis" if served[0].group else "api"):
                return Response(200, document(resources, served))
            if rest == ["version"]:
                return Response.of(200, _wrapped({"/version/": {}}, {}))
    return None


def _index(resources: Resources) -> Json:
    found: Json = {}
    for each in resources:
        path = each.root.removeprefix("/")
        if path not in found:
            served = [other for other in resources if other.group_version == each.group_version]
            tag = (
                hashlib.sha512(document(resources, served)).hexdigest().upper()
                if each.is_custom
                else "BUILTIN"
            )
            found[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={tag}"}
    return found


def document(resources: Resources, served: list[Resource]) -> bytes:
    paths: Json = {}
    schemas: Json = {}
    for resource in served:
        name = schema_name(resource)
        if ref_of(resource.schema):
            _collect(ref_of(resource.schema), schemas)
        else:
            schemas[name] = {**resource.schema, **_gvk(resource)}
            _collect("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", schemas)
        paths |= _paths(resource, name)
    return msgspec.json.encode(_wrapped(paths, schemas))


def schema_name(resource: Resource) -> str:
    if name := ref_of(resource.schema):
        return name
    group = ".".join(reversed(resource.group.split(".")))
    return f"{group}.{resource.version}.{resource.kind}"


def _wrapped(paths: Json, schemas: Json) -> Json:
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.4"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _collect(name: str, found: Json) -> None:
    """A schema and all that it refers to."""
    if name in found:
        return
    found[name] = data().schemas[name]
    _collect_below(found[name], found)


def _collect_below(schema: Any, found: Json) -> None:
    if isinstance(schema, dict):
        if isinstance(ref := schema.get("$ref"), str):
            _collect(ref.removeprefix(REF), found)
        for value in schema.values():
            _collect_below(value, found)
    elif isinstance(schema, list):
        for value in schema:
            _collect_below(value, found)


def _gvk(resource: Resource) -> Json:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {"x-kubernetes-group-version-kind": [kind]}


def _paths(resource: Resource, name: str) -> Json:
    collection = f"{resource.root}/{resource.plural}"
    if resource.namespaced:
        collection = f"{resource.root}/namespaces/{{namespace}}/{resource.plural}"
    ref = {"$ref": REF + name}
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}

    def operation(action: str, body: Json | None = None, parameters: tuple[str, ...] = ()) -> Json:
        found: Json = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": kind,
            "parameters": [
                {"name": each, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
                for each in parameters
            ],
            "responses": {"200": {"content": {"application/json": {"schema": ref}}}},
        }
        if body is not None:
            found["requestBody"] = {"content": body}
        return found

    whole: Json = {"application/json": {"schema": ref}}
    patch: Json = {media: {"schema": {"type": "object"}} for media in _PATCHES}
    on_collection: Json = {}
    on_object: Json = {}
    verbs = resource.verbs
    if "list" in verbs:
        on_collection["get"] = operation(
            "list", None, ("labelSelector", "fieldSelector", "limit", "continue", "watch")
        )
    if "create" in verbs:
        on_collection["post"] = operation("post", whole, _WRITE)
    if "get" in verbs:
        on_object["get"] = operation("get")
    if "update" in verbs:
        on_object["put"] = operation("put", whole, _WRITE)
    if "patch" in verbs:
        on_object["patch"] = operation("patch", patch, (*_WRITE, "force"))
    if "delete" in verbs:
        on_object["delete"] = operation("delete", None, ("dryRun", "gracePeriodSeconds", "propagationPolicy"))
    found = {collection: on_collection}
    if on_object:
        found[f"{collection}/{{name}}"] = on_object
    if resource.namespaced and "list" in verbs:
        found[f"{resource.root}/{resource.plural}"] = {"get": operation("list")}
    return found
