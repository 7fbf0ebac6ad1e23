"""OpenAPI v2 in protobuf: as much of it as tells kubectl which kinds the server validates by itself."""

from __future__ import annotations

from stowplan.api.protobuf import encode_message
from stowplan.apiserver.resources import Resource, Resources
from stowplan.http11.messages import Request, Response

CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_PATHS, _PATH, _PATCH, _PARAMETERS, _EXTENSION = 8, 2, 8, 8, 13


def answer(resources: Resources, request: Request, parts: list[str]) -> Response | None:
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
