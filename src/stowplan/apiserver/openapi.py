"""OpenAPI, in versions 2 and 3: the schemas of all resources, and the operations on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.api.protobuf import encode_message
from stowplan.apiserver.resources import Resource, Resources
from stowplan.apiserver.schemas import META, REF, data, gated_data, names, ref_of
from stowplan.apiserver.strategies.groups import are_served
from stowplan.http11.messages import Request, Response

OBJECT_META, LIST_META = META + "ObjectMeta", META + "ListMeta"
REFERENCE = "https://kubernetes.io/docs/reference/kubernetes-api/"
TYPE_META = {
    "apiVersion": {
        "type": "string",
        "description": "APIVersion defines which group and version the object follows, such as apps/v1.",
    },
    "kind": {"type": "string", "description": "Kind is the type of the object, such as Pod."},
}
_METADATA = {"description": "Standard object's metadata, such as its name, namespace and labels."}
_METADATA_FIELDS = {
    "annotations": "Annotations are notes of any length, by key; nothing is selected by them.",
    "creationTimestamp": "CreationTimestamp is a timestamp that the server sets when it creates the object.",
    "deletionGracePeriodSeconds": "Seconds that the object may take to end after it was deleted.",
    "deletionTimestamp": "When the object is to be gone; set by the server when it is deleted.",
    "finalizers": "Who must do something before the object is removed; the last one to leave lets it go.",
    "generateName": "The beginning of a name that the server completes if no name is given.",
    "generation": "How often what is wanted has changed; set by the server.",
    "labels": "Labels by key; objects are selected by them.",
    "managedFields": "Who manages which fields, for server-side apply.",
    "name": "The name, which no other object of this kind has in the namespace.",
    "namespace": "The namespace that the object is in.",
    "ownerReferences": "Objects that this one belongs to; it is removed when they are all gone.",
    "resourceVersion": "The version of the object, which changes with every write.",
    "uid": "A unique ID, which the server sets; a new object of the same name gets another one.",
}
_LIST_METADATA = {"description": "The version of the list, and how to continue it."}
_DEFINITIONS = "#/definitions/"
_TITLE = {"title": "Kubernetes", "version": "v1.36.4"}


def answer(resources: Resources, request: Request, parts: list[str]) -> Response | None:
    match parts:
        case ["openapi", "v3"]:
            return Response(200, _cached_document(resources, "v3", lambda: _index(resources)))
        case ["openapi", "v3", "version"]:
            return Response.of(200, _openapi_document({"/version/": {}}, {}))
        case ["openapi", "v3", *rest]:
            group_version = "/".join(rest[1:])
            served = [each for each in resources if each.group_version == group_version]
            if served and rest[0] == ("apis" if served[0].group else "api"):
                return Response(200, _cached_document(resources, group_version, lambda: _document(served)))
        case ["openapi", "v2"]:
            return _answer_v2(resources, request)
    return None


def _cached_document(resources: Resources, name: str, make: Any) -> bytes:
    """A document as JSON, made once and kept until the resources change."""
    found = resources.documents.get(name)
    if found is None:
        found = resources.documents[name] = msgspec.json.encode(make())
    return found


# Version 3.


def _index(resources: Resources) -> Json:
    found: Json = {}
    for each in resources:
        path = each.root.removeprefix("/")
        if path not in found:
            served = [other for other in resources if other.group_version == each.group_version]
            tag = "BUILTIN"
            if any(other.is_custom for other in served):
                document = _cached_document(
                    resources, each.group_version, lambda served=served: _document(served)
                )
                tag = hashlib.sha512(document).hexdigest().upper()
            found[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={tag}"}
    return {"paths": found}


def _document(served: list[Resource]) -> Json:
    schemas: Json = {}
    paths: Json = {}
    for resource in served:
        if name := ref_of(resource.schema):
            _collect(name, schemas)
            schemas[name] = {"description": _about(resource), **schemas[name]}
        else:
            schemas |= _custom_schemas(resource)
            _collect(OBJECT_META, schemas)
            _collect(LIST_META, schemas)
        for operation in _operations(resource):
            if operation.schema in data().schemas:
                _collect(operation.schema, schemas)
            paths.setdefault(operation.path, {})[operation.method] = _operation_v3(resource, operation)
    return _openapi_document(paths, schemas)


def _openapi_document(paths: Json, schemas: Json) -> Json:
    return {"openapi": "3.0.0", "info": _TITLE, "paths": paths, "components": {"schemas": schemas}}


def _about(resource: Resource) -> str:
    """Kubernetes' own descriptions are not carried over."""
    return f"{resource.kind} of {resource.group_version}. Its fields are described on {REFERENCE}"


def _collect(name: str, found: Json) -> None:
    """A schema and all that it refers to."""
    if name not in found:
        found[name] = _built_in_schema(name)
        _collect_below(found[name], found)


def _built_in_schema(name: str) -> Json:
    """A built-in schema; the metadata of all objects has descriptions of our own."""
    schema = data().schemas[name]
    if name != OBJECT_META:
        return schema
    properties = {
        key: {"description": _METADATA_FIELDS.get(key, ""), **each}
        for key, each in schema["properties"].items()
    }
    return {**schema, **_METADATA, "properties": properties}


def _collect_below(schema: object, found: Json) -> None:
    if isinstance(schema, dict):
        if isinstance(ref := schema.get("$ref"), str):
            _collect(ref.removeprefix(REF), found)
        for value in schema.values():
            _collect_below(value, found)
    elif isinstance(schema, list):
        for value in schema:
            _collect_below(value, found)


def _schema_name(resource: Resource) -> str:
    group = ".".join(reversed(resource.group.split(".")))
    return ref_of(resource.schema) or f"{group}.{resource.version}.{resource.kind}"


def _custom_schemas(resource: Resource) -> Json:
    """The schema of a custom resource, and that of its list."""
    name = _schema_name(resource)
    extensions: Json = {}
    if resource.strategy.fields:
        extensions["x-kubernetes-selectable-fields"] = [
            {"fieldPath": each} for each in resource.strategy.fields
        ]
    properties: Json = {
        **TYPE_META,
        "metadata": {**_LIST_METADATA, "allOf": [{"$ref": REF + LIST_META}]},
        "items": {
            "type": "array",
            "items": {"$ref": REF + name},
            "description": f"List of {resource.plural}.",
        },
    }
    listed = {
        "description": f"{resource.list_kind} is a list of {resource.kind}",
        "type": "object",
        "required": ["items"],
        "properties": properties,
    }
    declared = _publish_schema({key: value for key, value in resource.schema.items() if key != "properties"})
    own = {
        key: _publish_schema(each)
        for key, each in resource.schema["properties"].items()
        if key not in TYPE_META
    }
    own["metadata"] = _metadata()
    return {
        name: {**declared, "properties": TYPE_META | own, **_gvk(resource, resource.kind), **extensions},
        f"{name}List": {**listed, **_gvk(resource, resource.list_kind), **extensions},
    }


def _metadata() -> Json:
    return {**_METADATA, "allOf": [{"$ref": REF + OBJECT_META}]}


def _gvk(resource: Resource, kind: str) -> Json:
    gvk = {"group": resource.group, "version": resource.version, "kind": kind}
    return {"x-kubernetes-group-version-kind": [gvk]}


def _publish_schema(schema: object) -> Any:
    """A declared schema with what its extensions imply."""
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if value is not None}
    for key in ("items", "additionalProperties", "not"):
        if key in found:
            found[key] = _publish_schema(found[key])
    if "properties" in found:
        found["properties"] = {key: _publish_schema(each) for key, each in found["properties"].items()}
    if found.get("x-kubernetes-embedded-resource"):
        found["properties"] = {**TYPE_META, **found.get("properties", {}), "metadata": _metadata()}
        found["required"] = ["kind", "apiVersion", *found.get("required", [])]
    if found.get("x-kubernetes-int-or-string"):
        found.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    return found


# Operations, in both versions.

_PATCHES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_LIST = (
    "labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch",
    "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds", "watch",
)  # fmt: skip
_DELETE = ("dryRun", "gracePeriodSeconds", "propagationPolicy", "orphanDependents")
_TYPES = {
    **dict.fromkeys(("limit", "timeoutSeconds", "gracePeriodSeconds"), "integer"),
    **dict.fromkeys(
        ("watch", "allowWatchBookmarks", "sendInitialEvents", "force", "orphanDependents"), "boolean"
    ),
}


class Operation(NamedTuple):
    path: str
    method: str
    action: str
    schema: str
    """What it returns, and what is sent, if anything is."""
    parameters: tuple[str, ...] = ()


def _operations(resource: Resource) -> Iterator[Operation]:
    root, verbs, one = resource.root, resource.verbs, _schema_name(resource)
    many = f"{one}List" if f"{one}List" in data().schemas or resource.is_custom else one
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    collection = f"{root}/{scope}{resource.plural}"
    if "list" in verbs:
        yield Operation(collection, "get", "list", many, _LIST)
        if resource.namespaced:
            yield Operation(f"{root}/{resource.plural}", "get", "list", many, _LIST)
    if "create" in verbs:
        yield Operation(collection, "post", "post", one, _WRITE)
    if "deletecollection" in verbs:
        yield Operation(collection, "delete", "deletecollection", META + "Status", (*_LIST, *_DELETE))
    if "delete" in verbs:
        yield Operation(f"{collection}/{{name}}", "delete", "delete", META + "Status", _DELETE)
    yield from _operations_on(f"{collection}/{{name}}", verbs, one)
    for below, sub in resource.subresources.items():
        gvk = (sub.group or resource.group, sub.version or resource.version, sub.kind)
        schema = one if sub.kind == resource.kind else names().get(gvk, "")
        if schema:
            path = f"{collection}/{{name}}/{below}"
            yield from _operations_on(path, sub.verbs, schema)
            if "create" in sub.verbs:
                yield Operation(path, "post", "post", schema, _WRITE)


def _operations_on(path: str, verbs: tuple[str, ...], schema: str) -> Iterator[Operation]:
    if "get" in verbs:
        yield Operation(path, "get", "get", schema)
    if "update" in verbs:
        yield Operation(path, "put", "put", schema, _WRITE)
    if "patch" in verbs:
        yield Operation(path, "patch", "patch", schema, (*_WRITE, "force"))


def _patches(resource: Resource) -> tuple[str, ...]:
    """kubectl sends a strategic merge patch where it is offered: custom resources have none."""
    return _PATCHES if resource.is_custom else (*_PATCHES, _STRATEGIC)


def _facts(resource: Resource, operation: Operation) -> Json:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {"x-kubernetes-action": operation.action, "x-kubernetes-group-version-kind": kind}


def _operation_v3(resource: Resource, operation: Operation) -> Json:
    ref: Json = {"schema": {"$ref": REF + operation.schema}}
    found: Json = {
        **_facts(resource, operation),
        "parameters": [_parameter(name, {"schema": _type(name)}) for name in operation.parameters],
        "responses": {"200": {"description": "OK", "content": {"application/json": ref}}},
    }
    if operation.method in ("post", "put"):
        found["requestBody"] = {"content": {"application/json": ref}, "required": True}
    elif operation.method == "patch":
        content = {media: {"schema": {"type": "object"}} for media in _patches(resource)}
        found["requestBody"] = {"content": content, "required": True}
    return found


def _parameter(name: str, more: Json) -> Json:
    return {"name": name, "in": "query", **more}


def _type(name: str) -> Json:
    return {"type": _TYPES.get(name, "string"), "uniqueItems": True}


# Version 2.

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_MEDIA = ["application/json", "application/yaml"]


def _answer_v2(resources: Resources, request: Request) -> Response:
    if "proto-openapi.spec.v2" in request.headers.get("accept", ""):
        return Response(200, _protobuf(resources), PROTOBUF)
    body = _cached_document(resources, "v2", lambda: _document_v2(resources))
    tag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
    headers = (("ETag", tag), ("Vary", "Accept"))
    if request.headers.get("if-none-match") == tag:
        return Response(304, b"", headers=headers)
    return Response(200, body, headers=headers)


def _document_v2(resources: Resources) -> Json:
    hidden = gated_data().schemas if not are_served(resources.gates) else ()
    definitions = {name: _v2(_built_in_schema(name)) for name in data().schemas if name not in hidden}
    paths: Json = {}
    for resource in resources:
        if resource.is_custom:
            definitions |= {name: _v2(each) for name, each in _custom_schemas(resource).items()}
            if resource.schema.get("x-kubernetes-preserve-unknown-fields"):
                definitions[_schema_name(resource)] = {"type": "object", **_gvk(resource, resource.kind)}
        else:
            name = _schema_name(resource)
            definitions[name] = {"description": _about(resource), **definitions[name]}
        for operation in _operations(resource):
            paths.setdefault(operation.path, {})[operation.method] = _operation_v2(resource, operation)
    token = {"type": "apiKey", "name": "authorization", "in": "header"}
    return {
        "swagger": "2.0",
        "info": _TITLE,
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": token},
        "security": [{"BearerToken": []}],
    }


def _operation_v2(resource: Resource, operation: Operation) -> Json:
    ref = {"$ref": _DEFINITIONS + operation.schema}
    body: Json = {"name": "body", "in": "body", "required": True}
    patch = operation.method == "patch"
    sent: list[Json] = []
    if operation.method in ("post", "put", "patch"):
        sent = [body | {"schema": {"type": "object"} if patch else ref}]
    return {
        **_facts(resource, operation),
        "consumes": list(_patches(resource)) if patch else _MEDIA,
        "produces": _MEDIA,
        "schemes": ["https"],
        "parameters": sent + [_parameter(name, _type(name)) for name in operation.parameters],
        "responses": {"200": {"description": "OK", "schema": ref}},
    }


_NOT_IN_V2 = ("default", "nullable", "allOf", "anyOf", "oneOf", "not")
_OF_TYPE = ("type", "properties", "items", "additionalProperties", "required")


def _v2(schema: object) -> Any:
    """The schema in OpenAPI version 2; what version 2 cannot express is not restricted."""
    if not isinstance(schema, dict):
        return schema
    if name := ref_of(schema):
        return {
            **{key: schema[key] for key in ("description",) if key in schema},
            "$ref": _DEFINITIONS + name,
        }
    is_open = any(schema.get(f"x-kubernetes-{key}") for key in ("preserve-unknown-fields", "int-or-string"))
    dropped = _NOT_IN_V2 + (_OF_TYPE if schema.get("nullable") or is_open else ())
    found = {key: value for key, value in schema.items() if key not in dropped}
    if "oneOf" in schema and "type" not in schema and not is_open:
        found["type"] = "string"  # what may be a text or a number is written as the former
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _v2(found[key])
    if "properties" in found:
        found["properties"] = {key: _v2(each) for key, each in found["properties"].items()}
        absent = {key for key, each in schema["properties"].items() if each.get("nullable")}
        if "required" in found:
            found["required"] = [key for key in found["required"] if key not in absent]
    return found


_PATHS, _PATH, _PATCH, _PARAMETERS, _EXTENSION = 8, 2, 8, 8, 13


def _protobuf(resources: Resources) -> bytes:
    """What kubectl reads of version 2: which parameters the patches of each kind have."""
    paths = [(_PATH, _protobuf_path(each)) for each in resources if "patch" in each.verbs]
    info = encode_message((1, _TITLE["title"]), (2, _TITLE["version"]))
    return encode_message((1, "2.0"), (2, info), (_PATHS, encode_message(*paths)))


def _protobuf_path(resource: Resource) -> bytes:
    """The operation that patches an object, its parameters and its kind."""
    parameters = [
        (
            _PARAMETERS,
            encode_message(
                (1, encode_message((2, encode_message((3, encode_message((2, "query"), (4, name)))))))
            ),
        )
        for name in _WRITE
    ]
    kind = f'group: "{resource.group}"\nkind: {resource.kind}\nversion: {resource.version}\n'
    extension = encode_message((1, "x-kubernetes-group-version-kind"), (2, encode_message((2, kind))))
    operation = encode_message(*parameters, (_EXTENSION, extension))
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    where = f"{resource.root}/{scope}{resource.plural}/{{name}}"
    return encode_message((1, where), (2, encode_message((_PATCH, operation))))
