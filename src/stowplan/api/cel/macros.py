"""Macros, which look like calls but are not: error-tolerant logic, `has`, `cel.bind`, loops, optionals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stowplan.api.cel.lists import sort_by_keys
from stowplan.api.cel.overloads import is_assignable, name_of
from stowplan.api.cel.parser import Literal, MapOf, Node, Select
from stowplan.api.cel.standard import value_of
from stowplan.api.cel.values import (
    DYN,
    FIELDS,
    MISSING,
    OPAQUE,
    Domains,
    Duration,
    Message,
    Optional,
    Timestamp,
    fields_of,
    format_value,
    has_key,
    item_type,
)
from stowplan.errors import CelError

if TYPE_CHECKING:
    from stowplan.api.cel.compiler import Compiler

Frame: TypeAlias = list[Any]
Run: TypeAlias = Callable[[Frame], Any]


class Typed(NamedTuple):
    kind: type
    run: Run
    is_constant: bool = False


def is_alike(left: type, right: type) -> bool:
    return is_assignable(left, right) or is_assignable(right, left) or _may_be_null(left, right)


def _may_be_null(left: type, right: type) -> bool:
    """Values of all but the plain types compare with null."""
    nullable = OPAQUE | {Optional, Duration, Timestamp}
    return (left is NoneType and right in nullable) or (right is NoneType and left in nullable)


def as_optional(value: object) -> Optional:
    if not isinstance(value, Optional):
        raise CelError(f"no such overload: {name_of(type(value))} is not optional")
    return value


def _both(compiler: Compiler, left: Node, right: Node) -> Typed:
    return _logic(compiler, left, right, "&&", decisive=False)


def _either(compiler: Compiler, left: Node, right: Node) -> Typed:
    return _logic(compiler, left, right, "||", decisive=True)


def _logic(compiler: Compiler, left: Node, right: Node, sign: str, *, decisive: bool) -> Typed:
    """One side may settle the matter whatever is wrong with the other."""
    first, second = compiler.flag(left, sign), compiler.flag(right, sign)

    def run(frame: Frame) -> bool:
        try:
            value = _flag(first(frame))
        except CelError:
            if _flag(second(frame)) is decisive:
                return decisive
            raise
        return value if value is decisive else _flag(second(frame))

    return Typed(bool, run)


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise CelError(f"no such overload: expected bool, found {name_of(type(value))}")
    return value


def _choice(compiler: Compiler, condition: Node, then: Node, otherwise: Node) -> Typed:
    test = compiler.flag(condition, "?:")
    left, right = compiler.compile(then), compiler.compile(otherwise)
    if not is_alike(left.kind, right.kind):
        kinds = f"bool, {name_of(left.kind)}, {name_of(right.kind)}"
        raise CelError(f"found no matching overload for '_?_:_' applied to '({kinds})'")
    yes, no = left.run, right.run
    kind = left.kind if left.kind is right.kind else DYN
    return Typed(kind, lambda frame: yes(frame) if _flag(test(frame)) else no(frame))


def _has(compiler: Compiler, node: Node) -> Typed:
    if not isinstance(node, Select) or node.optional:
        raise CelError("invalid argument to has() macro")
    operand, field = compiler.compile(node.operand), node.field
    if operand.kind in FIELDS:
        compiler.select(node)
        return Typed(bool, lambda frame: True)
    if (declared := fields_of(operand.kind)) is not None and field not in declared:
        raise CelError(f"undefined field '{field}'")
    holder_of = operand.run

    def run(frame: Frame) -> bool:
        holder = holder_of(frame)
        if type(holder) is Optional:
            holder = holder.value if isinstance(holder.value, dict) else {}
        if not isinstance(holder, dict):
            raise CelError(f"no such overload: {name_of(type(holder))} has no fields")
        return type(holder) is Domains or has_key(holder, field)

    return Typed(bool, run)


def bind(compiler: Compiler, name: Node, value: Node, body: Node) -> Typed:
    typed = compiler.compile(value)
    with compiler.variable(name, typed.kind) as slot:
        inner = compiler.compile(body)
    value_of_it, body_of_it = typed.run, inner.run

    def run(frame: Frame) -> object:
        try:
            frame[slot] = value_of_it(frame)
        except CelError as error:
            frame[slot] = error
        return body_of_it(frame)

    return Typed(inner.kind, run)


class _Loop(NamedTuple):
    """A macro over a list or map: its range, its variables and what is worked out for each item."""

    over: Run
    slots: tuple[int, ...]
    bodies: tuple[Run, ...]
    cost: int

    @classmethod
    def of(
        cls, compiler: Compiler, target: Node, names: tuple[Node, ...], bodies: tuple[Node, ...], flags: int
    ) -> _Loop:
        """The first `flags` bodies must be true or false."""
        over = compiler.compile(target)
        if not any(is_assignable(kind, over.kind) for kind in (list, dict)):
            raise CelError(f"expression of type '{name_of(over.kind)}' cannot be range of a comprehension")
        if len(names) == 2 and names[0] == names[1]:
            raise CelError("duplicate variable name")
        with compiler.body() as cost, ExitStack() as scopes:
            slots = tuple(
                scopes.enter_context(compiler.variable(name, kind))
                for name, kind in zip(names, _variable_types(over.kind, len(names)), strict=True)
            )
            runs = [
                compiler.flag(body, "loop condition") if position < flags else compiler.compile(body).run
                for position, body in enumerate(bodies)
            ]
        return cls(over.run, slots, tuple(runs), cost[0] + STEP)

    def steps(self, frame: Frame, kinds: tuple[type, ...] = (list, dict)) -> Iterator[Any]:
        """Set the variables to one item after another; yields the item (or key), and charges for the step.

        With two variables, the first is the index or key and the second the value.
        """
        meter, cost = frame[0], self.cost
        items: Any = self.over(frame)
        is_range = isinstance(items, kinds)
        if not is_range:
            raise CelError(f"no such overload: cannot iterate over {name_of(type(items))}")
        if len(self.slots) == 1:
            slot = self.slots[0]
            for item in items:
                meter.charge(cost)
                frame[slot] = item
                yield item
            return
        first, second = self.slots
        for key, value in items.items() if isinstance(items, dict) else enumerate(items):
            meter.charge(cost)
            frame[first], frame[second] = key, value
            yield key


def _variable_types(kind: type, count: int) -> tuple[type, ...]:
    """What the variables of a loop are: an item or key, or an index or key and its value."""
    if item_type(kind) is DYN and fields_of(kind) is None:
        return (DYN,) * count
    if issubclass(kind, list):
        return (item_type(kind),) if count == 1 else (int, item_type(kind))
    return (str,) if count == 1 else (str, item_type(kind))


STEP = 3
"""Cost of each loop step in addition to its body."""


def _quantifier(*, decisive: bool) -> Callable[..., Typed]:
    """`all` and `exists`: one item may settle it, whatever fails for the others."""

    def build(compiler: Compiler, target: Node, *arguments: Node) -> Typed:
        loop = _Loop.of(compiler, target, arguments[:-1], arguments[-1:], flags=1)
        (test,) = loop.bodies

        def run(frame: Frame) -> bool:
            failure = None
            for _ in loop.steps(frame):
                try:
                    if _flag(test(frame)) is decisive:
                        return decisive
                except CelError as error:
                    failure = error
            if failure:
                raise failure
            return not decisive

        return Typed(bool, run)

    return build


def _exists_one(compiler: Compiler, target: Node, *arguments: Node) -> Typed:
    loop = _Loop.of(compiler, target, arguments[:-1], arguments[-1:], flags=1)
    (test,) = loop.bodies
    return Typed(bool, lambda frame: sum(_flag(test(frame)) for _ in loop.steps(frame)) == 1)


def _filter(compiler: Compiler, target: Node, name: Node, condition: Node) -> Typed:
    loop = _Loop.of(compiler, target, (name,), (condition,), flags=1)
    (test,) = loop.bodies
    return Typed(list, lambda frame: [item for item in loop.steps(frame) if _flag(test(frame))])


def _transform(variables: int) -> Callable[..., Typed]:
    """`map` and `transformList`, with or without a condition before the result."""

    def build(compiler: Compiler, target: Node, *arguments: Node) -> Typed:
        names, bodies = arguments[:variables], arguments[variables:]
        loop = _Loop.of(compiler, target, names, bodies, flags=len(bodies) - 1)
        *tests, result_of = loop.bodies
        if not tests:
            return Typed(list, lambda frame: [result_of(frame) for _ in loop.steps(frame)])
        (test,) = tests
        return Typed(list, lambda frame: [result_of(frame) for _ in loop.steps(frame) if _flag(test(frame))])

    return build


def _transform_map(compiler: Compiler, target: Node, *arguments: Node) -> Typed:
    loop = _Loop.of(compiler, target, arguments[:2], arguments[2:], flags=len(arguments) - 3)
    *tests, value_for = loop.bodies

    def run(frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key in loop.steps(frame):
            if all(_flag(test(frame)) for test in tests):
                found[key] = value_for(frame)
        return found

    return Typed(dict, run)


def _transform_map_entry(compiler: Compiler, target: Node, *arguments: Node) -> Typed:
    loop = _Loop.of(compiler, target, arguments[:2], arguments[2:], flags=len(arguments) - 3)
    *tests, entries_for = loop.bodies

    def run(frame: Frame) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in loop.steps(frame):
            if not all(_flag(test(frame)) for test in tests):
                continue
            entries = entries_for(frame)
            if not isinstance(entries, dict):
                raise CelError(f"no such overload: {name_of(type(entries))} is not a map")
            frame[0].charge(len(entries))
            for key, value in entries.items():
                if has_key(found, key):
                    raise CelError(f"insert failed: key {format_value(key)} already exists")
                found[key] = value
        return found

    return Typed(dict, run)


def _sort_by(compiler: Compiler, target: Node, name: Node, key: Node) -> Typed:
    if isinstance(target, (Literal, MapOf)):
        raise CelError(
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    loop = _Loop.of(compiler, target, (name,), (key,), flags=0)
    (key_of,) = loop.bodies

    def run(frame: Frame) -> list[object]:
        pairs = [(item, key_of(frame)) for item in loop.steps(frame, (list,))]
        return sort_by_keys(frame[0], [item for item, _ in pairs], [key for _, key in pairs])

    return Typed(list, run)


def _or_value(compiler: Compiler, target: Node, fallback: Node) -> Typed:
    return _fallback(compiler, target, fallback, value_of)


def _or_optional(compiler: Compiler, target: Node, fallback: Node) -> Typed:
    return _fallback(compiler, target, fallback, as_optional, kind=Optional)


def _fallback(
    compiler: Compiler, target: Node, fallback: Node, result: Callable[[Any], Any], kind: type = DYN
) -> Typed:
    first, second = compiler.compile(target), compiler.compile(fallback)
    if not is_assignable(Optional, first.kind) or not is_assignable(kind, second.kind):
        raise CelError(f"found no matching overload for 'or' applied to '({name_of(first.kind)}, …)'")

    def run(frame: Frame) -> Any:
        found = first.run(frame)
        if kind is Optional and type(found) is not Optional:
            return found  # parity: a value of an unknown type counts as one that is present
        if as_optional(found).present:
            return result(found)
        other = second.run(frame)
        return other if kind is DYN else as_optional(other)

    return Typed(kind, run)


def _opt_map(compiler: Compiler, target: Node, name: Node, body: Node) -> Typed:
    return _on_present(compiler, target, name, body, Optional)


def _opt_flat_map(compiler: Compiler, target: Node, name: Node, body: Node) -> Typed:
    return _on_present(compiler, target, name, body, as_optional)


def _on_present(
    compiler: Compiler, target: Node, name: Node, body: Node, result: Callable[[object], Optional]
) -> Typed:
    first = compiler.compile(target)
    with compiler.variable(name) as slot:
        inner = compiler.compile(body)

    def run(frame: Frame) -> Optional:
        found = as_optional(first.run(frame))
        if not found.present:
            return MISSING
        frame[slot] = found.value
        return result(inner.run(frame))

    return Typed(Optional, run)


def _message(compiler: Compiler, name: Literal, fields: MapOf) -> Typed:
    """An object of a type that the variables declare, as a map."""
    variable = compiler.scope.get(name.value.partition(".")[0])
    if variable is None or variable.kind is not Message:
        raise CelError(f"undeclared reference to '{name.value}'")
    compiler.cost += 40
    parts = [
        (item.key.value, compiler.compile(item.value).run, item.optional)
        for item in fields.items
        if isinstance(item.key, Literal)
    ]

    def run(frame: Frame) -> dict[str, object]:
        found = {}
        for field, value_of_field, is_optional in parts:
            value = value_of_field(frame)
            if not is_optional:
                found[field] = value
            elif as_optional(value).present:
                found[field] = value.value
        return found

    return Typed(dict, run)


SPECIAL: dict[tuple[str, int], Callable[..., Typed]] = {
    ("&&", 2): _both,
    ("||", 2): _either,
    ("?:", 3): _choice,
    ("has", 1): _has,
    ("{}", 2): _message,
}
MACROS: dict[tuple[str, int], Callable[..., Typed]] = {
    ("all", 2): _quantifier(decisive=False),
    ("all", 3): _quantifier(decisive=False),
    ("exists", 2): _quantifier(decisive=True),
    ("exists", 3): _quantifier(decisive=True),
    ("exists_one", 2): _exists_one,
    ("exists_one", 3): _exists_one,
    ("existsOne", 2): _exists_one,
    ("existsOne", 3): _exists_one,
    ("filter", 2): _filter,
    ("map", 2): _transform(1),
    ("map", 3): _transform(1),
    ("transformList", 3): _transform(2),
    ("transformList", 4): _transform(2),
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_map_entry,
    ("transformMapEntry", 4): _transform_map_entry,
    ("sortBy", 2): _sort_by,
    ("orValue", 1): _or_value,
    ("or", 1): _or_optional,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_flat_map,
}
