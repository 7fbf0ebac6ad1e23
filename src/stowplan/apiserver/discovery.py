"""Discovery: which groups, versions and resources are served, plain and aggregated."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from stowplan.api.protobuf import encode_message
from stowplan.apiserver.resources import Resource, Resources
from stowplan.apiserver.schemas import REF, data, ref_of
from stowplan.http11.messages import Request, Response

Json = dict[str, Any]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def answer(resources: Resources, request: Request, parts: list[str]) -> Response | None:
    accept = request.headers.get("accept", "")
    match parts:
        case ["api"]:
            if version := _wants_aggregated(accept):
                return _aggregated(resources, [""], version, request)
            return Response.of(
                200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            )
        case ["apis"]:
            if version := _wants_aggregated(accept):
                return _aggregated(resources, _groups(resources), version, request)
            groups = [_group(resources, name) for name in _groups(resources)]
            return Response.of(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if group in _groups(resources):
            return Response.of(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(resources, group)})
        case ["api", version] if resources.serves("", version):
            return _plain(resources, "", version)
        case ["apis", group, version] if resources.serves(group, version):
            return _plain(resources, group, version)
    return None


def _groups(resources: Resources) -> list[str]:
    return list(dict.fromkeys(each.group for each in resources if each.group))


def _versions(resources: Resources, group: str) -> list[str]:
    found = dict.fromkeys(each.version for each in resources if each.group == group)
    return sorted(found, key=version_order)


def version_order(version: str) -> tuple[int, int, int, str]:
    """The newest stable version first, as the API orders them."""
    rest = version.removeprefix("v")
    for rank, word in enumerate(("", "beta", "alpha")):
        major, _, minor = rest.partition(word) if word else (rest, "", "0")
        if major.isdecimal() and (minor.isdecimal() if word else True):
            return (rank, -int(major), -int(minor or 0), "")
    return (3, 0, 0, version)


def _group(resources: Resources, name: str) -> Json:
    versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in _versions(resources, name)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _plain(resources: Resources, group: str, version: str) -> Response:
    found: list[Json] = []
    for each in _of(resources, group, version):
        entry: Json = {
            "name": each.plural,
            "singularName": each.singular,
            "namespaced": each.namespaced,
            "kind": each.kind,
            "verbs": list(each.verbs),
        }
        optional = {
            "shortNames": list(each.short_names),
            "categories": list(each.categories),
            "storageVersionHash": each.storage_hash,
        }
        found.append(entry | {key: value for key, value in optional.items() if value})
        for below, sub in each.subresources.items():
            entry = {
                "name": f"{each.plural}/{below}",
                "singularName": "",
                "namespaced": each.namespaced,
                "group": sub.group,
                "version": sub.version,
                "kind": sub.kind,
                "verbs": list(sub.verbs),
            }
            found.append({key: value for key, value in entry.items() if value != "" or key == "singularName"})
    group_version = f"{group}/{version}" if group else version
    document: Json = {"kind": "APIResourceList", "groupVersion": group_version, "resources": found}
    if group:
        document["apiVersion"] = "v1"
    return Response.of(200, document)


def _of(resources: Resources, group: str, version: str) -> list[Resource]:
    return [each for each in resources if (each.group, each.version) == (group, version)]


def _wants_aggregated(accept: str) -> str:
    """The version of aggregated discovery that the client prefers over the plain form; empty if none."""
    for part in accept.replace(" ", "").split(","):
        for version in ("v2", "v2beta1"):
            wanted = {f"v={version}", "g=apidiscovery.k8s.io", "as=APIGroupDiscoveryList"}
            if part.startswith("application/json") and wanted <= set(part.split(";")):
                return version
        if part in ("application/json", "*/*"):
            return ""
    return ""


def _aggregated(resources: Resources, groups: list[str], version: str, request: Request) -> Response:
    items = []
    for group in groups:
        versions = [
            {
                "version": each,
                "resources": [_discovered(resource) for resource in _of(resources, group, each)],
                "freshness": "Current",
            }
            for each in _versions(resources, group)
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": versions})
    document = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }
    body = msgspec.json.encode(document)
    tag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
    headers = (("ETag", tag), ("Vary", "Accept"))
    kind = AGGREGATED.format(version=version)
    if request.headers.get("if-none-match") == tag:
        return Response(304, b"", kind, headers)
    return Response(200, body, kind, headers)


def _discovered(resource: Resource) -> Json:
    empty = {"group": "", "version": ""}
    found: Json = {
        "resource": resource.plural,
        "responseKind": {**_served(resource), "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        found["shortNames"] = list(resource.short_names)
    if resource.categories:
        found["categories"] = list(resource.categories)
    if resource.subresources:
        found["subresources"] = [
            {
                "subresource": name,
                "responseKind": {
                    **(
                        {"group": sub.group, "version": sub.version}
                        if sub.group
                        else _served(resource) or empty
                    ),
                    "kind": sub.kind,
                },
                "verbs": list(sub.verbs),
            }
            for name, sub in resource.subresources.items()
        ]
    return found


def _served(resource: Resource) -> Json:
    """Built-in kinds leave out what the document already says; custom ones name their group."""
    if resource.is_custom:
        return {"group": resource.group, "version": resource.version}
    return {"group": "", "version": ""}


_PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_WRITE = ("dryRun", "fieldManager", "fieldValidation")


def answer_openapi(resources: Resources, request: Request, parts: list[str]) -> Response | None:
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


CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PATHS, _PATH, _PATCH, _PARAMETERS, _EXTENSION = 8, 2, 8, 8, 13


def answer_openapi_v2(resources: Resources, request: Request, parts: list[str]) -> Response | None:
    if parts != ["openapi", "v2"]:
        return None
    paths = [(_PATH, _path(each)) for each in resources if "patch" in each.verbs]
    info = encode_message((1, "Kubernetes"), (2, "v1.36.4"))
    return Response(
        200, encode_message((1, "2.0"), (2, info), (_PATHS, encode_message(*paths))), CONTENT_TYPE
    )


def _path(resource: Resource) -> bytes:
    """The operation that patches an object, its parameters and its kind."""
    parameters = [
        (_PARAMETERS, _query_parameter(name)) for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    kind = f'group: "{resource.group}"\nkind: {resource.kind}\nversion: {resource.version}\n'
    extension = encode_message((1, "x-kubernetes-group-version-kind"), (2, encode_message((2, kind))))
    operation = encode_message(*parameters, (_EXTENSION, extension))
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    where = f"{resource.root}/{scope}{resource.plural}/{{name}}"
    return encode_message((1, where), (2, encode_message((_PATCH, operation))))


def _query_parameter(name: str) -> bytes:
    """A parameter of a kind that is not in the body, but in the query."""
    return encode_message(
        (1, encode_message((2, encode_message((3, encode_message((2, "query"), (4, name)))))))
    )
