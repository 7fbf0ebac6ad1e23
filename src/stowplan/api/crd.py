"""CustomResourceDefinitions from structs: what `kubectl apply` takes so that an API server has the kind."""

from __future__ import annotations

from typing import Any

from msgspec import inspect as types

from stowplan.api.custom import Column, CustomResource, Definition
from stowplan.api.open_api import struct_schema
from stowplan.errors import InputError

Json = dict[str, Any]

PROTECTED = ("k8s.io", "kubernetes.io")
APPROVAL = "api-approved.kubernetes.io"
UNAPPROVED = "unapproved, experimental-only"
KUBERNETES_GROUPS = frozenset(
    f"{name}.k8s.io"
    for name in (
        "admissionregistration",
        "apiextensions",
        "apiregistration",
        "authentication",
        "authorization",
        "certificates",
        "coordination",
        "discovery",
        "events",
        "flowcontrol.apiserver",
        "networking",
        "node",
        "rbac.authorization",
        "resource",
        "scheduling",
        "storage",
        "storagemigration",
    )
)
AGE = Column("Age", ".metadata.creationTimestamp", "date")


def needs_crd(kind: type[CustomResource]) -> bool:
    """Whether an API server has the kind only by a CustomResourceDefinition."""
    group = kind.definition.group
    return "." in group and group not in KUBERNETES_GROUPS


def crd_of(kind: type[CustomResource]) -> Json:
    """The CustomResourceDefinition of a declared kind. InputError names a field that cannot be described."""
    where = kind.definition
    if not needs_crd(kind):
        raise InputError(
            f"{where.api_version} is one of Kubernetes' own; it needs no definition", what=where.kind
        )
    metadata: Json = {"name": f"{where.plural}.{where.group}"}
    if any(where.group == each or where.group.endswith(f".{each}") for each in PROTECTED):
        metadata["annotations"] = {APPROVAL: where.approval or UNAPPROVED}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": where.group,
            "scope": "Namespaced" if where.namespaced else "Cluster",
            "names": _names(where),
            "versions": [_version(kind)],
        },
    }


def _names(where: Definition) -> Json:
    names: Json = {
        "kind": where.kind,
        "listKind": f"{where.kind}List",
        "plural": where.plural,
        "singular": where.kind.lower(),
    }
    return names | ({"shortNames": list(where.short_names)} if where.short_names else {})


def _version(kind: type[CustomResource]) -> Json:
    where = kind.definition
    version: Json = {"name": where.version, "served": True, "storage": True}
    schema = _schema(kind)
    version["schema"] = {"openAPIV3Schema": schema}
    if "status" in schema["properties"]:
        version["subresources"] = {"status": {}}
    if where.columns:
        columns = (*where.columns, AGE)
        version["additionalPrinterColumns"] = [
            {"name": each.name, "type": each.type, "jsonPath": each.path} for each in columns
        ]
    return version


def _schema(kind: type[CustomResource]) -> Json:
    """Of a whole object; its metadata is the API server's own matter."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    own = types.StructType(kind, tuple(field for field in info.fields if field.encode_name != "metadata"))
    found = struct_schema(own, kind.__name__)
    found["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **found.get("properties", {}),
    }
    return found
