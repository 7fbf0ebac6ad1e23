"""CustomResourceDefinitions from structs: what `kubectl apply` takes so that an API server has the kind."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from msgspec import inspect as types

from stowplan.api.custom import Column, CustomResource, Definition
from stowplan.api.group_crds import PUBLISHED
from stowplan.api.meta import Json
from stowplan.api.quantity import Quantity, decode_hook, encode_hook
from stowplan.errors import InputError

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
ANYTHING: Json = {"x-kubernetes-preserve-unknown-fields": True}
INT_OR_STRING: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
QUANTITY = r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
PARTIAL = "stowplan.api."
"""Structs from here have the fields that a scheduler reads, not all that Kubernetes knows."""
UNKNOWN_TO_KUBERNETES = ("examples",)


def needs_crd(kind: type[CustomResource]) -> bool:
    """Whether an API server has the kind only by a CustomResourceDefinition."""
    group = kind.definition.group
    return "." in group and group not in KUBERNETES_GROUPS


def crd_of(kind: type[CustomResource]) -> Json:
    """The CustomResourceDefinition of a declared kind. InputError names a field that cannot be described."""
    where = kind.definition
    if not needs_crd(kind):
        raise InputError(
            f"{where.api_version} is built into Kubernetes and needs no definition", what=where.kind
        )
    if (name := f"{where.plural}.{where.group}") in PUBLISHED:  # plugins declare only what they read of it
        return PUBLISHED[name]
    metadata: Json = {"name": name}
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
    if where.has_status and "status" in schema["properties"]:
        version["subresources"] = {"status": {}}
    if where.columns:
        columns = (*where.columns, AGE)
        version["additionalPrinterColumns"] = [
            {"name": each.name, "type": each.type, "jsonPath": each.path} for each in columns
        ]
    return version


def _schema(kind: type[CustomResource]) -> Json:
    """The schema of a whole object. The API server validates metadata itself."""
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


def schema_of(info: types.Type, path: str, within: tuple[type, ...] = ()) -> Json:
    """`path` is for messages, `within` are the structs around: a schema cannot hold itself."""
    match info:
        case types.Metadata():
            extra = {
                name: value
                for name, value in (info.extra_json_schema or {}).items()
                if name not in UNKNOWN_TO_KUBERNETES
            }
            return schema_of(info.type, path, within) | extra
        case types.StructType():
            return struct_schema(info, path, within)
        case types.UnionType():
            return _union(info, path, within)
        case types.DictType():
            return _dict(info, path, within)
        case types.TupleType(item_types=(first, *others)) if all(each == first for each in others):
            count = len(info.item_types)
            return _array(first, path, within) | {"minItems": count, "maxItems": count}
        case types.SetType() | types.FrozenSetType():
            return _array(info.item_type, path, within) | {"x-kubernetes-list-type": "set"} | _items(info)
        case types.ListType() | types.VarTupleType() | types.CollectionType():
            return _array(info.item_type, path, within) | _items(info)
    return dict(_scalar(info, path))


def struct_schema(info: types.StructType, path: str, within: tuple[type, ...] = ()) -> Json:
    if info.cls in within:
        raise InputError(
            f"{info.cls.__name__} contains itself, which a schema cannot express; use dict[str, Any]",
            field=path,
        )
    within = (*within, info.cls)
    found: Json = {"type": "object"}
    if text := vars(info.cls).get("__doc__"):
        found["description"] = inspect.cleandoc(text)
    if required := [field.encode_name for field in info.fields if field.required]:
        found["required"] = required
    if info.fields:
        found["properties"] = {
            field.encode_name: _field(field, f"{path}.{field.encode_name}", within) for field in info.fields
        }
    return found | (ANYTHING if info.cls.__module__.startswith(PARTIAL) else {})


def _field(field: types.Field, path: str, within: tuple[type, ...]) -> Json:
    """With its default, unless that is nothing or zero, as which an absent field counts anyway."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    plain = None if default is msgspec.NODEFAULT else _plain(default)
    return schema_of(field.type, path, within) | ({"default": plain} if plain else {})


def _plain(default: object) -> object:
    """The default as plain data, without what a struct leaves at its own defaults."""
    plain = msgspec.to_builtins(default, enc_hook=encode_hook)
    if isinstance(default, msgspec.Struct):
        # Objects share it, so its dicts may be read-only by now; msgspec only leaves out plain empty dicts.
        fresh = msgspec.convert(plain, type(default), dec_hook=decode_hook)
        plain = msgspec.to_builtins(fresh, enc_hook=encode_hook)
    return plain


def _union(info: types.UnionType, path: str, within: tuple[type, ...]) -> Json:
    others = [each for each in info.types if not isinstance(each, types.NoneType)]
    nullable = {"nullable": True} if len(others) < len(info.types) else {}
    if len(others) == 1:
        return schema_of(others[0], path, within) | nullable
    if {type(each) for each in others} == {types.IntType, types.StrType}:
        return INT_OR_STRING | nullable
    raise InputError("is a union of types; only X | None and int | str are supported", field=path)


def _dict(info: types.DictType, path: str, within: tuple[type, ...]) -> Json:
    if not isinstance(info.key_type, types.StrType | types.LiteralType | types.EnumType):
        raise InputError("has keys that are not strings; use dict[str, …]", field=path)
    counts = _bounds(minProperties=info.min_length, maxProperties=info.max_length)
    if isinstance(info.value_type, types.AnyType):
        return {"type": "object"} | ANYTHING | counts
    values = schema_of(info.value_type, f"{path}[…]", within)
    return {"type": "object", "additionalProperties": values} | counts


def _array(item: types.Type, path: str, within: tuple[type, ...]) -> Json:
    return {"type": "array", "items": schema_of(item, f"{path}[]", within)}


def _items(info: Any) -> Json:
    return _bounds(minItems=info.min_length, maxItems=info.max_length)


def _scalar(info: types.Type, path: str) -> Json:
    match info:
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType():
            return {"type": "integer", "format": "int64"} | _range(info)
        case types.FloatType():
            return {"type": "number"} | _range(info)
        case types.StrType():
            texts = _bounds(minLength=info.min_length, maxLength=info.max_length, pattern=info.pattern)
            return {"type": "string"} | texts
        case types.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case types.BytesType():
            return {"type": "string", "format": "byte"}
        case types.LiteralType():
            return _enum(list(info.values))
        case types.EnumType():
            return _enum([each.value for each in info.cls])
        case types.AnyType() | types.RawType():
            return ANYTHING
        case types.CustomType() if info.cls is Quantity:
            return INT_OR_STRING | {"pattern": QUANTITY}
    kind = getattr(getattr(info, "cls", None), "__name__", type(info).__name__.removesuffix("Type").lower())
    raise InputError(f"has a type that a schema cannot express ({kind}); use Any", field=path)


def _enum(values: list[object]) -> Json:
    return {"type": "integer" if all(isinstance(each, int) for each in values) else "string", "enum": values}


def _range(info: types.IntType | types.FloatType) -> Json:
    """An exclusive bound is a flag beside the bound in OpenAPI v3."""
    found = _bounds(minimum=info.ge, maximum=info.le, multipleOf=info.multiple_of)
    if info.gt is not None:
        found |= {"minimum": info.gt, "exclusiveMinimum": True}
    if info.lt is not None:
        found |= {"maximum": info.lt, "exclusiveMaximum": True}
    return found


def _bounds(**limits: object) -> Json:
    return {name: limit for name, limit in limits.items() if limit is not None}
