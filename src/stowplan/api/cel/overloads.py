"""Overloads: which function is called for a name and the types of its arguments, and what the call costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stowplan.api.cel.values import DYN, TYPE_NAMES
from stowplan.errors import CelError

MAX_COST = 1_000_000
"""What one evaluation may cost, in Kubernetes' units."""
COST_EXCEEDED = "operation cancelled: actual cost limit exceeded"


class CostLimitExceededError(Exception):
    """Ends an evaluation. Not a CelError, so that no operator of the expression can suppress it."""


class Meter:
    """What is left of the budget of one evaluation."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def charge(self, cost: int) -> None:
        """Count the cost of what comes next. Charge before the work is done, and for its result, too."""
        self.left -= cost
        if self.left < 0:
            raise CostLimitExceededError

    def charge_text(self, length: int) -> None:
        """For walking over a string, or making one."""
        if length >= 10:
            self.charge(length // 10)


class Overload(NamedTuple):
    parameters: tuple[type, ...]
    result: type
    function: Callable[..., Any]


class Function:
    """All overloads of one name. Called with values, it picks one by their types and remembers the pick.

    The overloads of a metered function take the meter as their first argument.
    """

    def __init__(self, name: str, is_metered: bool) -> None:
        self.name, self.is_metered = name, is_metered
        self.overloads: list[Overload] = []
        self.picked: dict[tuple[type, ...], Callable[..., Any]] = {}

    def __call__(self, *values: object) -> object:
        return self.pick(values)(*values)

    def call_metered(self, meter: Meter, *values: object) -> object:
        return self.pick(values)(meter, *values)

    def pick(self, values: tuple[object, ...]) -> Callable[..., Any]:
        types = tuple(map(type, values))
        function = self.picked.get(types)
        if function is None:
            found = self.find_matching(types)
            if not found:
                raise CelError(f"no such overload: {self.name}({', '.join(map(name_of, types))})")
            function = self.picked[types] = found[0].function
        return function

    def find_matching(self, types: Sequence[type]) -> list[Overload]:
        return [overload for overload in self.overloads if fits(overload.parameters, types)]

    def resolve(self, types: Sequence[type]) -> tuple[type, Callable[..., Any]]:
        """The type of the result, and what to call: the one overload if these types leave no choice."""
        found = self.find_matching(types)
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
        return result, only.function if is_settled else (self.call_metered if self.is_metered else self)


FUNCTIONS: dict[str, Function] = {}
"""Members are named `.name`, operators by their sign, all others plainly."""


def define(
    name: str, *parameters: type, result: type, function: Callable[..., object], is_metered: bool = False
) -> None:
    """Add an overload. A call costs 1; if metered, the function charges what it costs beyond that."""
    known = FUNCTIONS.setdefault(name, Function(name, is_metered))
    assert known.is_metered is is_metered, f"{name} has metered and unmetered overloads"
    known.overloads.append(Overload(parameters, result, function))


def define_on_text(name: str, *parameters: type, result: type, function: Callable[..., Any]) -> None:
    """Add a function that walks over its first argument once and whose result is not much longer."""

    def walk(meter: Meter, text: Any, *others: Any) -> Any:
        meter.charge_text(len(text))
        return function(text, *others)

    def call(meter: Meter, *values: object) -> object:
        return function(*values)

    has_length = parameters[0] in (str, bytes, list)
    define(name, *parameters, result=result, function=walk if has_length else call, is_metered=True)


def fits(parameters: tuple[type, ...], types: Sequence[type]) -> bool:
    return len(parameters) == len(types) and all(map(is_assignable, parameters, types))


def is_assignable(parameter: type, kind: type) -> bool:
    """bool and all our numbers are ints to Python, so only maps and lists may be of a subclass."""
    if parameter in (kind, DYN) or kind is DYN:
        return True
    return parameter in (dict, list) and issubclass(kind, parameter)


def name_of(kind: type) -> str:
    return TYPE_NAMES.get(kind, kind.__name__)
