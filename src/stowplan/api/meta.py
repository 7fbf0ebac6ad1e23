"""What all Kubernetes objects have in common, and the decoder for them.

Structs hold only the fields a scheduler reads; all others are skipped while decoding.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from stowplan.api import quantity
from stowplan.errors import InputError, QuantityError


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, kw_only=True):
    """A part of an object as the API spells it: camelCase names, absent means default."""


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    generate_name: str = ""

    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Object(Wire, frozen=True):
    """A top-level object; `kind` names it even where a list left the kind out."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone for what has no namespace."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class LabelSelectorRequirement(Wire, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class NodeSelectorRequirement(Wire, frozen=True):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Wire, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None


T = TypeVar("T")


def decode(kind: type[T], data: bytes | str | dict[str, Any]) -> T:
    """An object of `kind` from JSON text or plain data; a null counts as absent, as it does for Kubernetes.

    Raises InputError that names the field.
    """
    try:
        if isinstance(data, dict):
            return msgspec.convert(data, kind, dec_hook=quantity.decode_hook)
        decoder: msgspec.json.Decoder[T] = _decoder(kind)  # type: ignore[arg-type]
        return decoder.decode(data)
    except msgspec.DecodeError:
        plain = data if isinstance(data, dict) else _parsed(data)
    try:
        return msgspec.convert(_without_nulls(plain), kind, dec_hook=quantity.decode_hook)
    except msgspec.ValidationError as error:
        raise _with_field(error, kind, plain) from None


@lru_cache(maxsize=256)
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, dec_hook=quantity.decode_hook)


def _parsed(text: bytes | str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(f"is not JSON: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _with_field(error: msgspec.ValidationError, kind: type, plain: Any) -> InputError:
    """Make `… - at `$.spec.x[...]`` a field path, with the map's key where it can be found."""
    message, _, path = str(error).partition(" - at `")
    steps = path.rstrip("`").removeprefix("key` in `").removeprefix("$").lstrip(".")
    if message.startswith("Invalid enum value") and (choices := _choices(kind, steps)):
        message += f"; it is one of {', '.join(choices)}"
    if steps.endswith("[...]"):
        holder = _walk(plain, steps.removesuffix("[...]"))
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if _is_at_fault(value, message):
                steps = f"{steps.removesuffix('[...]')}.{key}"
                break
    return InputError(message, field=steps)


def _is_at_fault(value: Any, message: str) -> bool:
    """Whether it is this value, in a map of texts or of quantities, that the message is about."""
    if message.startswith("Expected `str"):
        return not isinstance(value, str)
    try:
        quantity.parse(value)
    except (QuantityError, TypeError):
        return True
    return False


def _choices(kind: type, steps: str) -> list[str]:
    """The values that the field at the end of the path may have, if it has a choice of them."""
    info: Any = msgspec.inspect.type_info(kind)
    for step in _split(steps):
        for part in getattr(info, "types", (info,)):  # of an optional one, what it is when it is there
            if isinstance(part, msgspec.inspect.StructType):
                info = next((field.type for field in part.fields if field.encode_name == step), None)
            elif isinstance(part, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
                info = part.item_type
    values = [value for part in getattr(info, "types", (info,)) for value in getattr(part, "values", ())]
    return [str(value) for value in values]


def _split(steps: str) -> list[str]:
    return steps.replace("[", ".").replace("]", "").split(".")


def _walk(plain: Any, steps: str) -> Any:
    for step in _split(steps):
        try:
            plain = plain[int(step)] if isinstance(plain, list) else plain.get(step)
        except (ValueError, IndexError, AttributeError):
            return None
    return plain


@lru_cache(maxsize=65536)
def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise InputError(f"{text!r} is not a time like 2026-01-31T12:00:00Z") from None
