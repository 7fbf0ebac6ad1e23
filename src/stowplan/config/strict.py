"""Decode plain data into structs strictly: every unknown field and every invalid value is reported.

msgspec alone stops at the first error. Here each struct is decoded field by field, and msgspec decodes only
the leaves. A leaf of the right type with a disallowed value is still stored, so that validation,
which knows more, can report it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec

from stowplan.config import field_errors
from stowplan.config.duration import Duration

T = TypeVar("T", bound=msgspec.Struct)
Hook = Callable[[type, Any], Any]
_UNUSABLE: Any = object()
_FIELDS: WeakKeyDictionary[type, dict[str, msgspec.structs.FieldInfo]] = WeakKeyDictionary()


def decode_hook(kind: type, value: object) -> object:
    """Decode types that msgspec does not know."""
    if kind is Duration:
        return Duration.parse(value)
    raise NotImplementedError(f"no decoder for {kind}")


class Decoder:
    """Decodes one document and collects its errors.

    `unknown` has the paths of unknown fields, `malformed` other decoding errors (a string instead of a
    number), `missing` required fields without a value, `rejected` values of the right type that are not
    allowed, by path. With `any_case`, field names are case-insensitive.
    """

    def __init__(self, hook: Hook = decode_hook, *, any_case: bool = False) -> None:
        self.hook, self.any_case = hook, any_case
        self.unknown: list[str] = []
        self.malformed: list[str] = []
        self.missing: list[str] = []
        self.rejected: dict[str, str] = {}

    @property
    def faults(self) -> list[str]:
        return [f'unknown field "{path}"' for path in self.unknown] + self.malformed

    def struct(self, kind: type[T], raw: Any, path: str = "") -> T:
        """Decode `raw` as `kind`. A field with an invalid value gets its default, or None."""
        if not isinstance(raw, dict):
            self._malformed_error(path, raw, f"expected an object, got {_kind_of(raw)}")
            raw = {}
        fields = _fields_of(kind)
        if self.any_case:
            names = {name.casefold(): name for name in fields}
            raw = {names.get(name.casefold(), name): value for name, value in raw.items()}
        self.unknown += [field_errors.child(path, name) for name in raw if name not in fields]
        values: dict[str, Any] = {}
        for name, field in fields.items():
            where = field_errors.child(path, name)
            found = _UNUSABLE if raw.get(name) is None else self.value(field.type, raw[name], where)
            if found is not _UNUSABLE:
                values[field.name] = found
            elif field.required:
                values[field.name] = None
                self.missing.append(field_errors.required(where))
        return kind(**values)

    def value(self, kind: object, raw: object, path: str) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            others = [argument for argument in arguments if argument is not type(None)]
            if len(others) == 1:
                return self.value(others[0], raw, path)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(kind, raw, path)
        elif origin is list or (origin is tuple and arguments[-1] is Ellipsis):
            return self._array(origin, arguments[0], raw, path)
        return self._leaf(kind, raw, path)

    def _array(self, origin: Any, kind: Any, raw: Any, path: str) -> Any:
        if not isinstance(raw, list):
            self._malformed_error(path, raw, f"expected an array, got {_kind_of(raw)}")
            return _UNUSABLE
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        # A null in a list of structs is an empty struct, as in Go.
        items = [{} if item is None and is_struct else item for item in raw]
        found = [self.value(kind, item, f"{path}[{index}]") for index, item in enumerate(items)]
        return origin(item for item in found if item is not _UNUSABLE)

    def _leaf(self, kind: object, raw: object, path: str) -> object:
        try:
            return msgspec.convert(raw, kind, dec_hook=self.hook)
        except msgspec.ValidationError as error:
            detail = str(error).partition(" - at `")[0].replace("`", "")
            detail = detail[:1].lower() + detail[1:]
        origin, choices = get_origin(kind), [choice for choice in get_args(kind) if isinstance(choice, str)]
        if origin is Literal and choices and isinstance(raw, str):
            self.rejected[path] = field_errors.unsupported(path, raw, choices)
        elif origin is Annotated and ", got " not in detail:
            self.rejected[path] = field_errors.invalid(path, raw, detail)
        else:
            self._malformed_error(path, raw, detail)
            return _UNUSABLE
        return raw

    def _malformed_error(self, path: str, raw: object, detail: str) -> None:
        self.malformed.append(field_errors.invalid(path or "<root>", raw, detail))


def _fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields by their names in a file; cached, because msgspec evaluates the annotations at each call."""
    if kind not in _FIELDS:
        _FIELDS[kind] = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    return _FIELDS[kind]


def _kind_of(raw: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(raw), "a number")
