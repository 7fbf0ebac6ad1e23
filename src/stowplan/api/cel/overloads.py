"""Which function a name and the types of its arguments stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stowplan.api.cel.values import DYN, TYPE_NAMES
from stowplan.errors import CelError


class Overload(NamedTuple):
    parameters: tuple[type, ...]
    result: type
    function: Callable[..., Any]


class Function:
    """All overloads of one name. Called with values, it picks one by their types and remembers the pick."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.overloads: list[Overload] = []
        self.picked: dict[tuple[type, ...], Callable[..., Any]] = {}

    def __call__(self, *values: Any) -> Any:
        types = tuple(map(type, values))
        function = self.picked.get(types)
        if function is None:
            found = self.fitting(types)
            if not found:
                raise CelError(f"no such overload: {self.name}({', '.join(map(name_of, types))})")
            function = self.picked[types] = found[0].function
        return function(*values)

    def fitting(self, types: Sequence[type]) -> list[Overload]:
        return [overload for overload in self.overloads if fits(overload.parameters, types)]

    def checked(self, types: Sequence[type]) -> tuple[type, Callable[..., Any]]:
        """The type of the result, and what to call: the one overload if these types leave no choice."""
        found = self.fitting(types)
        if not found:
            listed = ", ".join(map(name_of, types))
            raise CelError(f"found no matching overload for '{self.name}' applied to '({listed})'")
        results = {overload.result for overload in found}
        result = results.pop() if len(results) == 1 else DYN
        only = found[0]
        is_settled = len(found) == 1 and all(
            kind is parameter or parameter is DYN
            for kind, parameter in zip(types, only.parameters, strict=True)
        )
        return result, only.function if is_settled else self


FUNCTIONS: dict[str, Function] = {}
"""Members are named `.name`, operators by their sign, all others plainly."""


def define(name: str, *parameters: type, result: type, function: Callable[..., Any]) -> None:
    FUNCTIONS.setdefault(name, Function(name)).overloads.append(Overload(parameters, result, function))


def fits(parameters: tuple[type, ...], types: Sequence[type]) -> bool:
    return len(parameters) == len(types) and all(map(is_assignable, parameters, types))


def is_assignable(parameter: type, kind: type) -> bool:
    """bool and all our numbers are ints to Python, so only maps may be of a subclass."""
    return parameter in (kind, DYN) or kind is DYN or (parameter is dict and issubclass(kind, dict))


def name_of(kind: type) -> str:
    return TYPE_NAMES.get(kind, kind.__name__)
