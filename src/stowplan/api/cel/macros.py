"""What looks like a call but is not: forgiving logic, `has`, `cel.bind`, loops and optional values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stowplan.api.cel.overloads import is_assignable, name_of
from stowplan.api.cel.parser import Node, Select
from stowplan.api.cel.standard import value_of
from stowplan.api.cel.values import DYN, FIELDS, MISSING, Domains, Optional, has_key
from stowplan.errors import CelError

if TYPE_CHECKING:
    from stowplan.api.cel.compiler import Compiler

Frame: TypeAlias = list[Any]
Run: TypeAlias = Callable[[Frame], Any]


class Typed(NamedTuple):
    kind: type
    run: Run


def is_alike(left: type, right: type) -> bool:
    return is_assignable(left, right) or is_assignable(right, left)


def as_optional(value: Any) -> Optional:
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


def _flag(value: Any) -> bool:
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
    holder_of = operand.run

    def run(frame: Frame) -> bool:
        holder = holder_of(frame)
        if type(holder) is Optional:
            holder = holder.value if holder.present else {}
        if not isinstance(holder, dict):
            raise CelError(f"no such overload: {name_of(type(holder))} has no fields")
        return type(holder) is Domains or has_key(holder, field)

    return Typed(bool, run)


def bind(compiler: Compiler, name: Node, value: Node, body: Node) -> Typed:
    typed = compiler.compile(value)
    with compiler.variable(name, typed.kind) as slot:
        inner = compiler.compile(body)
    value_of_it, body_of_it = typed.run, inner.run

    def run(frame: Frame) -> Any:
        try:
            frame[slot] = value_of_it(frame)
        except CelError as error:
            frame[slot] = error
        return body_of_it(frame)

    return Typed(inner.kind, run)


def _items(value: Any) -> Iterable[Any]:
    """What a macro walks over: the items of a list, the keys of a map."""
    if not isinstance(value, (list, dict)):
        raise CelError(f"no such overload: cannot iterate over {name_of(type(value))}")
    return value


class _Loop(NamedTuple):
    over: Run
    slot: int
    bodies: tuple[Run, ...]

    @classmethod
    def of(cls, compiler: Compiler, target: Node, name: Node, bodies: tuple[Node, ...], flags: int) -> _Loop:
        """The first `flags` bodies must be true or false."""
        over = compiler.compile(target)
        if not any(is_assignable(kind, over.kind) for kind in (list, dict)):
            raise CelError(f"expression of type '{name_of(over.kind)}' cannot be range of a comprehension")
        with compiler.variable(name) as slot:
            runs = [
                compiler.flag(body, "loop condition") if position < flags else compiler.compile(body).run
                for position, body in enumerate(bodies)
            ]
        return cls(over.run, slot, tuple(runs))


def _quantifier(*, decisive: bool) -> Callable[..., Typed]:
    """`all` and `exists`: one item may settle it, whatever fails for the others."""

    def build(compiler: Compiler, target: Node, name: Node, condition: Node) -> Typed:
        over, slot, (test,) = _Loop.of(compiler, target, name, (condition,), flags=1)

        def run(frame: Frame) -> bool:
            failure = None
            for frame[slot] in _items(over(frame)):  # noqa: B020
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


def _exists_one(compiler: Compiler, target: Node, name: Node, condition: Node) -> Typed:
    found = _filter(compiler, target, name, condition).run
    return Typed(bool, lambda frame: len(found(frame)) == 1)


def _filter(compiler: Compiler, target: Node, name: Node, condition: Node) -> Typed:
    over, slot, (test,) = _Loop.of(compiler, target, name, (condition,), flags=1)

    def run(frame: Frame) -> list[Any]:
        found = []
        for frame[slot] in _items(over(frame)):  # noqa: B020
            item = frame[slot]
            if _flag(test(frame)):
                found.append(item)
        return found

    return Typed(list, run)


def _map(compiler: Compiler, target: Node, name: Node, *bodies: Node) -> Typed:
    over, slot, runs = _Loop.of(compiler, target, name, bodies, flags=len(bodies) - 1)
    *tests, result_of = runs

    def run(frame: Frame) -> list[Any]:
        found = []
        for frame[slot] in _items(over(frame)):  # noqa: B020
            if all(_flag(test(frame)) for test in tests):
                found.append(result_of(frame))
        return found

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
        found = as_optional(first.run(frame))
        if found.present:
            return result(found)
        other = second.run(frame)
        return other if kind is DYN else as_optional(other)

    return Typed(kind, run)


def _opt_map(compiler: Compiler, target: Node, name: Node, body: Node) -> Typed:
    return _on_present(compiler, target, name, body, Optional)


def _opt_flat_map(compiler: Compiler, target: Node, name: Node, body: Node) -> Typed:
    return _on_present(compiler, target, name, body, as_optional)


def _on_present(
    compiler: Compiler, target: Node, name: Node, body: Node, result: Callable[[Any], Optional]
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


SPECIAL: dict[tuple[str, int], Callable[..., Typed]] = {
    ("&&", 2): _both,
    ("||", 2): _either,
    ("?:", 3): _choice,
    ("has", 1): _has,
}
MACROS: dict[tuple[str, int], Callable[..., Typed]] = {
    ("all", 2): _quantifier(decisive=False),
    ("exists", 2): _quantifier(decisive=True),
    ("exists_one", 2): _exists_one,
    ("existsOne", 2): _exists_one,
    ("filter", 2): _filter,
    ("map", 2): _map,
    ("map", 3): _map,
    ("orValue", 1): _or_value,
    ("or", 1): _or_optional,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_flat_map,
}
