"""Mappings and lists that cannot be changed, for objects that many share.

They are a dict and a list in all else, so that reading them is as fast, and encoders know them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from stowplan.api.quantity import Quantity

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_ATOMS = frozenset((str, int, float, bool, bytes, type(None), Quantity))


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class FrozenList(list[T]):
    """A list that cannot be changed; `list(…)` makes a copy that can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> FrozenList[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
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


def _is_changeable(hint: Any) -> bool:
    if isinstance(hint, type) and not get_args(hint):
        if issubclass(hint, msgspec.Struct):
            return bool(_changeable_fields(hint))
        return not issubclass(hint, (str, int, float, bytes, type(None), msgspec.Raw))
    if get_origin(hint) in (tuple, Union, UnionType, Annotated):
        return any(_is_changeable(each) for each in get_args(hint) if each is not ...)
    return get_origin(hint) is not Literal


def _freeze(values: Iterable[Any]) -> list[Any]:
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
