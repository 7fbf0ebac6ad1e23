"""Mappings and lists that cannot be changed, for objects that many share.

They are a dict and a list in all else, so that reading them is as fast, and encoders know them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
    raise TypeError("this is shared and read-only; make a copy to change it, such as dict(…) or list(…)")


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
    """What is worked out from an object that many share. Whoever has no key of its own finds nothing."""

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
    if kind in _ATOMS:
        return value
    if isinstance(value, msgspec.Struct):
        for field in kind.__struct_fields__:  # type: ignore[attr-defined]
            part = getattr(value, field)
            if part.__class__ not in _ATOMS and part != ():
                frozen = freeze(part)
                if frozen is not part:
                    msgspec.structs.force_setattr(value, field, frozen)
        return value
    found: Any = value
    if kind is dict:
        found = FrozenDict(zip(found, _frozen(found.values()), strict=True)) if found else EMPTY
    elif kind is list:
        found = FrozenList(_frozen(found))
    elif kind is tuple:
        fresh = tuple(_frozen(found))
        found = value if all(a is b for a, b in zip(fresh, found, strict=True)) else fresh
    return found  # type: ignore[no-any-return]


def _frozen(values: Iterable[Any]) -> list[Any]:
    return [value if value.__class__ in _ATOMS else freeze(value) for value in values]


class ReadOnly:
    """Attributes are set by `assign` alone."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")


def assign(thing: ReadOnly, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(thing, name, value)
