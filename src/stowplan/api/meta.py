"""What all Kubernetes objects have in common, and the decoder for them.

Structs hold only the fields a scheduler reads; all others are skipped while decoding. Objects share
their parts, so mappings and lists cannot be changed; in all else they are a dict and a list, so that reading
them is as fast, and encoders know them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from stowplan.api import quantity
from stowplan.api.nesting import decode_deep, members
from stowplan.api.quantity import Quantity
from stowplan.errors import InputError, QuantityError

Json = dict[str, Any]
"""An object as JSON has it, with fields that nothing here has checked."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_ATOMS = frozenset((str, int, float, bool, bytes, type(None), Quantity))


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this object is shared and read-only; change a copy, for example dict(…) or list(…)")


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed; `dict(…)` makes a copy that can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __deepcopy__(self, _: object) -> FrozenDict[K, V]:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self),)


class FrozenList(list[T]):
    """A list that cannot be changed; `list(…)` makes a copy that can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> FrozenList[T]:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (list(self),)


class Memo(dict[K, V]):
    """Values derived from a shared object, each under its owner's key."""

    __slots__ = ()
    __delitem__ = __ior__ = __iter__ = __reversed__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    copy = items = keys = values = _refuse

    def __repr__(self) -> str:
        return "Memo()"


EMPTY: FrozenDict[Any, Any] = FrozenDict()
"""The default of fields: encoders that omit defaults know it by its identity."""


def freeze(value: T) -> T:
    """The same value, in which no mapping and no list can be changed any more; structs are kept."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        for field in _changeable_fields(kind):  # type: ignore[arg-type]
            part = getattr(value, field)
            if part.__class__ not in _ATOMS and part != ():
                frozen = freeze(part)
                if frozen is not part:
                    msgspec.structs.force_setattr(value, field, frozen)
        return value
    found: Any = value
    if kind is dict:
        if not found:
            return EMPTY  # type: ignore[return-value]
        is_flat = _ATOMS.issuperset(map(type, found.values()))
        found = FrozenDict(found if is_flat else zip(found, _freeze(found.values()), strict=True))
    elif kind is list:
        found = FrozenList(_freeze(found))
    elif kind is tuple:
        fresh = tuple(_freeze(found))
        found = value if all(a is b for a, b in zip(fresh, found, strict=True)) else fresh
    return found  # type: ignore[no-any-return]


@cache
def _changeable_fields(kind: type) -> tuple[str, ...]:
    """The fields that can hold something that can be changed, by their types; most structs have none."""
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    try:
        hints = get_type_hints(kind)
    except NameError:  # a class within a function
        return fields
    return tuple(field for field in fields if _is_changeable(hints.get(field, Any)))


def _is_changeable(hint: object) -> bool:
    if isinstance(hint, type) and not get_args(hint):
        if issubclass(hint, msgspec.Struct):
            return bool(_changeable_fields(hint))
        return not issubclass(hint, (str, int, float, bytes, type(None), msgspec.Raw))
    if get_origin(hint) in (tuple, Union, UnionType, Annotated):
        return any(_is_changeable(each) for each in get_args(hint) if each is not ...)
    return get_origin(hint) is not Literal


def _freeze(values: Iterable[object]) -> list[Any]:
    return [value if value.__class__ in _ATOMS else freeze(value) for value in values]


class ReadOnly:
    """Attributes can only be set with `assign`."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")


def assign(thing: ReadOnly, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(thing, name, value)


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
    labels: dict[str, str] = EMPTY
    annotations: dict[str, str] = EMPTY
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    generate_name: str = ""

    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class UnreadableObject(NamedTuple):
    """What is known of an object that cannot be read."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    fault: InputError
    """Names the object and the field."""


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
    match_labels: dict[str, str] = EMPTY
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


MAX_FAULTS = 100
"""An object with more faults than this is not read in part."""


def decode(kind: type[T], data: bytes | str | dict[str, Any]) -> T:
    """An object of `kind` from JSON text or plain data; a null counts as absent, as it does for Kubernetes.

    Raises InputError that names the field.
    """
    try:
        if isinstance(data, dict):
            return msgspec.convert(data, kind, dec_hook=quantity.decode_hook)
        decoder: msgspec.json.Decoder[T] = _decoder(kind)  # type: ignore[arg-type]
        try:
            return decoder.decode(data)
        except RecursionError:
            return decode_deep(decoder.decode, _as_text(data))
    except (ValueError, RecursionError):  # msgspec's errors, text that is not UTF-8, numbers without end
        plain = _read(kind, _as_text(data))
    try:
        return msgspec.convert(plain, kind, dec_hook=quantity.decode_hook)
    except msgspec.ValidationError as error:
        raise _with_field(error, kind, plain) from None


def decode_partly(kind: type[T], data: bytes) -> T:
    """What can be read of an object: fields with values of a wrong type are left out.

    Raises InputError if nothing remains.
    """
    plain = _read(kind, bytes(data))
    for _ in range(MAX_FAULTS):
        try:
            return msgspec.convert(plain, kind, dec_hook=quantity.decode_hook)
        except msgspec.ValidationError as error:
            if not _leave_out(plain, error):
                break
    raise InputError("cannot be read, not even in part")


def prepare(kind: type) -> None:
    """Do now what the first object of this kind would have to wait for.

    msgspec and `freeze` evaluate the annotations of all structs below it, which takes 4 ms for pods.
    """
    _decoder(kind)
    _changeable_fields(kind)


@lru_cache(maxsize=256)
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind, dec_hook=quantity.decode_hook)


def _as_text(data: bytes | str | dict[str, Any]) -> bytes:
    try:
        if isinstance(data, dict):
            return msgspec.json.encode(data, enc_hook=quantity.encode_hook)
        return data.encode() if isinstance(data, str) else bytes(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"is not JSON: {error}") from None


def _read(kind: type, text: bytes) -> object:
    """Plain data of the fields that `kind` has, without nulls; what it keeps as text is left as it is."""
    try:
        return decode_deep(lambda data: _plain(_info(kind), data), text)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}") from None


@lru_cache(maxsize=256)
def _info(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _plain(info: msgspec.inspect.Type, data: bytes) -> object:
    """Parse one level at a time, so that unused parts are not parsed."""
    text = bytes(data).strip()
    if isinstance(info, msgspec.inspect.RawType):
        return msgspec.Raw(text)
    parts = [info] if not isinstance(info, msgspec.inspect.UnionType) else list(info.types)
    if text[:1] == b"{":
        found = [
            part for part in parts if isinstance(part, (msgspec.inspect.StructType, msgspec.inspect.DictType))
        ]
        if len(found) == 1:
            present = {name: value for name, value in members(text).items() if bytes(value) != b"null"}
            if isinstance(found[0], msgspec.inspect.DictType):
                return {name: _plain(found[0].value_type, value) for name, value in present.items()}
            fields = {field.encode_name: field.type for field in found[0].fields}
            if found[0].forbid_unknown_fields:
                fields = dict.fromkeys(present, msgspec.inspect.AnyType()) | fields
            return {name: _plain(fields[name], value) for name, value in present.items() if name in fields}
    if text[:1] == b"[":
        lists = [
            part
            for part in parts
            if isinstance(part, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType))
        ]
        if len(lists) == 1:
            return [_plain(lists[0].item_type, item) for item in _elements(text) if bytes(item) != b"null"]
    return _without_nulls(msgspec.json.decode(text))


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _with_field(error: msgspec.ValidationError, kind: type, plain: object) -> InputError:
    """Make `… - at `$.spec.x[...]`` a field path, with the map's key where it can be found."""
    message, steps = _split_error(error)
    if message.startswith("Invalid enum value") and (choices := _choices(kind, steps)):
        message += f"; it is one of {', '.join(choices)}"
    if steps.endswith("[...]"):
        holder = _walk(plain, _split(steps.removesuffix("[...]")))
        for key, value in holder.items() if isinstance(holder, dict) else ():
            if _is_at_fault(value, message):
                steps = f"{steps.removesuffix('[...]')}.{key}"
                break
    return InputError(message, field=steps)


def _leave_out(plain: object, error: msgspec.ValidationError) -> bool:
    """Take the value that the error is about out of plain data; False if there is no such value."""
    message, field = _split_error(error)
    steps, entry, rest = field.partition("[...]")  # the error does not name the key in a map
    path = _split(steps)
    found = _walk(plain, path)
    if isinstance(found, dict) and entry and not rest:
        faults = [key for key, value in found.items() if _is_at_fault(value, message)]
        for key in faults:
            del found[key]
        if faults:
            return True
    holder, last = _walk(plain, path[:-1]), path[-1]
    if isinstance(holder, dict):
        return holder.pop(last, plain) is not plain
    if isinstance(holder, list) and last.isdecimal() and int(last) < len(holder):
        del holder[int(last)]
        return True
    return False


def _split_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """The message, and the path of the field: `spec.containers[0].ports`."""
    message, _, path = str(error).partition(" - at `")
    return message, path.rstrip("`").removeprefix("key` in `").removeprefix("$").lstrip(".")


def _is_at_fault(value: object, message: str) -> bool:
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
    info: object = msgspec.inspect.type_info(kind)
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


def _walk(plain: Any, path: list[str]) -> Any:
    for step in path:
        try:
            plain = plain[int(step)] if isinstance(plain, list) else plain.get(step)
        except (ValueError, IndexError, AttributeError):
            return None
    return plain


@lru_cache(maxsize=65536)
def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time; one before the year 1 or after 9999 counts as the nearest."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        # An API server keeps times in UTC, which can push them into the years 0 and 10000.
        if re.fullmatch(r"0000-[0-9T:.-]+Z", text, re.ASCII):
            return datetime.min.replace(tzinfo=UTC).timestamp()
        if re.fullmatch(r"[0-9]{5,}-[0-9T:.-]+Z", text, re.ASCII):
            return datetime.max.replace(tzinfo=UTC).timestamp()
        raise InputError(
            f"{text[:64]!r} is not a valid time; expected a format like 2026-01-31T12:00:00Z"
        ) from None
