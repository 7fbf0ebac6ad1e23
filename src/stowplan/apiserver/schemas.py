"""The structure of the kinds that are built in, and the form in which objects are stored.

Every kind becomes a msgspec struct whose fields are left out of JSON exactly when Go leaves them out, so that
one pass in C checks names and types of all fields and brings an object into the API's own form. Only when
that fails is the object walked in Python, to say what is wrong as the API says it (`diagnosis.py`).
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver.amounts import canonical as canonical_quantity
from stowplan.apiserver.times import canonical as canonical_time
from stowplan.apiserver.times import canonical_micro

REF = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
RECURSIVE = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
"""Schemas inside schemas are checked by the code that uses them."""


class SchemaData(msgspec.Struct):
    resources: list[Json]
    schemas: dict[str, Json]
    fields: dict[str, dict[str, tuple[str, int, int]]]
    """Per field: Go's type, when JSON leaves it out (0 never, 1 empty, 2 zero), and its protobuf number."""
    parts: dict[str, dict[str, str]]
    """Messages whose fields are inlined into the enclosing object in JSON, by protobuf number."""
    bootstrap: list[Json] = []
    """The roles and bindings that every cluster has."""


@cache
def data() -> SchemaData:
    """What is always served, with the schemas of what feature gates add."""
    found, more = _read("schemas.json.gz"), gated_data()
    found.schemas |= more.schemas
    found.fields |= more.fields
    found.parts |= more.parts
    return found


@cache
def gated_data() -> SchemaData:
    """What feature gates add; of the bootstrap objects, those that are new or replace another."""
    return _read("gated_schemas.json.gz")


def _read(name: str) -> SchemaData:
    packed = files("stowplan.apiserver").joinpath(name).read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=SchemaData)


@cache
def names() -> dict[tuple[str, str, str], str]:
    """The schema's name by group, version and kind."""
    return {
        (each["group"], each["version"], each["kind"]): name
        for name, schema in data().schemas.items()
        for each in schema.get("x-kubernetes-group-version-kind", ())
    }


class Quantity(str):
    __slots__ = ()


class Time(str):
    __slots__ = ()


class MicroTime(str):
    __slots__ = ()


_SPECIAL: dict[str, Any] = {
    QUANTITY: Quantity,
    META + "Time": Time,
    META + "MicroTime": MicroTime,
    INT_OR_STRING: int | str,
}
_HOOKS: dict[type, Callable[[Any], str]] = {
    Quantity: canonical_quantity,
    Time: canonical_time,
    MicroTime: canonical_micro,
}
_INT32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


def normalize(name: str, value: object) -> Json:
    """The object in the form that is kept; raises ValueError if a field is unknown or of another type."""
    built = msgspec.convert(value, struct_of(name), dec_hook=_decode)
    plain: Json = msgspec.to_builtins(built, enc_hook=str)
    return plain


def decode(name: str, body: bytes) -> Json:
    """As `normalize`, of JSON text, for text that has no nulls."""
    built = _decoder(name).decode(body)
    plain: Json = msgspec.to_builtins(built, enc_hook=str)
    return plain


def without_nulls(value: object) -> Any:
    """Remove nulls, which mean absent fields."""
    # Most values are texts and numbers: none of them costs a call.
    if isinstance(value, dict):
        return {
            key: without_nulls(each) if isinstance(each, (dict, list)) else each
            for key, each in value.items()
            if each is not None
        }
    if isinstance(value, list):
        return [without_nulls(each) if isinstance(each, (dict, list)) else each for each in value]
    return value


def ref_of(schema: Json) -> str:
    """The name of the schema that this one refers to, empty if it refers to none."""
    ref = schema.get("$ref") or next((part.get("$ref", "") for part in schema.get("allOf", ())), "")
    return str(ref).removeprefix(REF)


def is_bounded(schema: Json) -> bool:
    """Whether the schema limits how deeply objects are nested: only managed fields take any value."""
    if name := ref_of(schema):
        return _is_bounded(name)
    match schema.get("type"):
        case "string" | "boolean" | "integer" | "number":
            return True
        case "array":
            return is_bounded(schema["items"])
        case "object" if "additionalProperties" in schema:
            return is_bounded(schema["additionalProperties"])
    return False


@cache
def _is_bounded(name: str) -> bool:
    if name in _SPECIAL or name == META + "FieldsV1":
        return True
    properties = data().schemas[name].get("properties", {})
    return bool(properties) and name != RECURSIVE and all(map(is_bounded, properties.values()))


def resolve_ref(schema: Json) -> Json:
    name = ref_of(schema)
    return data().schemas[name] if name else schema


@cache
def struct_of(name: str) -> Any:
    properties = data().schemas[name].get("properties", {})
    go = data().fields.get(name, {})
    fields, rename = [], {}
    for index, (key, schema) in enumerate(properties.items()):
        kind = _type_of(schema)
        default = _default(kind, schema, *go.get(key, ("", 1, 0))[:2])
        fields.append((f"f{index}", kind | None if kind is not Any else Any, default))
        rename[f"f{index}"] = key
    return msgspec.defstruct(
        re.sub(r"\W", "_", name),
        fields,
        rename=rename,
        omit_defaults=True,
        forbid_unknown_fields=True,
        gc=False,
    )


def _type_of(schema: Json) -> Any:
    if name := ref_of(schema):
        if name in _SPECIAL:
            return _SPECIAL[name]
        if name == RECURSIVE or "properties" not in data().schemas[name]:
            return Any
        return struct_of(name)
    match schema.get("type"):
        case "string":
            return str
        case "boolean":
            return bool
        case "integer":
            return _INT32 if schema.get("format") == "int32" else int
        case "number":
            return int | float
        case "array":
            return list[_type_of(schema["items"])]  # type: ignore[misc]
        case "object" if "additionalProperties" in schema:
            return dict[str, _type_of(schema["additionalProperties"])]  # type: ignore[misc]
    return Any


def _default(kind: object, schema: Json, go: str, omission: int) -> Any:
    """What a field is that was not given: a plain default is left out of JSON, a made one is not."""
    made, left_out = msgspec.field, {"default": None}
    if go.startswith("*") or (omission == 2 and kind in (Time, MicroTime)):
        return msgspec.field(**left_out) if omission else made(default_factory=_null)
    if go.startswith(("[]", "map[")) and schema.get("format") != "byte":
        empty = dict if go.startswith("map[") else list
        return made(default_factory=empty if omission else _null)
    zero = _zero(kind, schema)
    if callable(zero):
        return made(default_factory=zero)
    return made(default=zero) if omission else made(default_factory=lambda: zero)


def _zero(kind: object, schema: Json) -> Any:
    """The zero of a type that is no pointer: a value, or what makes one that is never left out."""
    if kind is Quantity:
        return lambda: "0"
    if kind in (Time, MicroTime) or (kind is Any and ref_of(schema)):
        return _null
    if kind == int | str:
        return lambda: 0
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return {"string": "", "boolean": False, "integer": 0, "number": 0}.get(schema.get("type", ""))


def _null() -> None:
    return None


def _decode(kind: type, value: object) -> Any:
    return kind(_HOOKS[kind](value))


@cache
def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(struct_of(name), dec_hook=_decode)
