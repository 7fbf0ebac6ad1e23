"""From tree to closures: names become slots of a frame, calls become the overload that the types allow.

A compiled node is a function of the frame (the list of variables). Types are followed as far as that is
cheap; what is only known when the expression runs is checked then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from stowplan.api.cel import kubernetes, standard, strings  # noqa: F401  (they define the functions)
from stowplan.api.cel.macros import MACROS, SPECIAL, Frame, Run, Typed, as_optional, bind, is_alike
from stowplan.api.cel.overloads import FUNCTIONS, is_assignable, name_of
from stowplan.api.cel.parser import Call, Index, Item, ListOf, Literal, MapOf, Name, Node, Select, parse
from stowplan.api.cel.standard import TYPE_CONSTANTS, is_key, item_of_list, item_of_map
from stowplan.api.cel.values import DYN, FIELDS, MISSING, DeviceVariable, Optional
from stowplan.errors import CelError

Declarations: TypeAlias = tuple[tuple[str, type], ...]
TOO_DEEP = "expression is nested too deeply"
DEVICE: Declarations = (("device", DeviceVariable),)


class Program:
    """A compiled expression; `kind` is the type of its result, `object` if that is not known beforehand."""

    __slots__ = ("_names", "_run", "_spare", "kind")

    def __init__(self, expression: str, declarations: Declarations) -> None:
        compiler = Compiler(declarations)
        try:
            typed = compiler.compile(parse(expression))
        except RecursionError:
            raise CelError(TOO_DEEP) from None
        self.kind, self._run = typed.kind, typed.run
        self._names = [name for name, _ in declarations]
        self._spare = [None] * (compiler.slots - len(declarations))

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value for these variables; CelError if there is none."""
        try:
            return self._run([*(variables[name] for name in self._names), *self._spare])
        except RecursionError:
            raise CelError(TOO_DEEP) from None


@lru_cache(maxsize=4096)
def compile_cel(expression: str, declarations: Declarations = DEVICE) -> Program:
    """The program of an expression over the declared variables; CelError if it makes no sense."""
    return Program(expression, declarations)


class _Variable(NamedTuple):
    kind: type
    slot: int


class Compiler:
    def __init__(self, declarations: Declarations) -> None:
        self.scope = {name: _Variable(kind, slot) for slot, (name, kind) in enumerate(declarations)}
        self.slots = len(declarations)

    def compile(self, node: Node) -> Typed:
        match node:
            case Literal(value):
                return Typed(type(value), lambda frame: value)
            case Name(name):
                return self.name(name)
            case Select():
                return self.select(node)
            case Index():
                return self.index(node)
            case Call():
                return self.call(node)
            case ListOf(items):
                return self.list_of(items)
            case MapOf(items):
                return self.map_of(items)

    def name(self, name: str) -> Typed:
        if variable := self.scope.get(name):
            return Typed(variable.kind, _load(variable.slot))
        if name in TYPE_CONSTANTS:
            constant = TYPE_CONSTANTS[name]
            return Typed(type, lambda frame: constant)
        raise CelError(f"undeclared reference to '{name}'")

    @contextmanager
    def variable(self, name: Node, kind: type = DYN) -> Iterator[int]:
        """A new slot that goes by the name for as long as the context lasts."""
        if not isinstance(name, Name):
            raise CelError("argument must be a simple name")
        slot, hidden = self.slots, self.scope.get(name.name)
        self.slots += 1
        self.scope[name.name] = _Variable(kind, slot)
        yield slot
        if hidden:
            self.scope[name.name] = hidden
        else:
            del self.scope[name.name]

    def select(self, node: Select) -> Typed:
        operand, field = self.compile(node.operand), node.field
        if fields := FIELDS.get(operand.kind):
            if field not in fields:
                raise CelError(f"undefined field '{field}'")
            kind, read = fields[field]
            run = operand.run
            found = Typed(kind, lambda frame: read(run(frame)))
            return _wrapped(found) if node.optional else found
        if not any(is_assignable(kind, operand.kind) for kind in (dict, Optional)):
            raise CelError(f"type '{name_of(operand.kind)}' does not support field selection")
        return _entry(operand, Typed(str, lambda frame: field), node.optional)

    def index(self, node: Index) -> Typed:
        operand, key = self.compile(node.operand), self.compile(node.key)
        if operand.kind is not Optional:
            FUNCTIONS["[]"].checked((operand.kind, key.kind))
        return _entry(operand, key, node.optional)

    def list_of(self, items: tuple[Item, ...]) -> Typed:
        values = [self.compile(item.value) for item in items]
        _check_alike(value.kind for value, item in zip(values, items, strict=True) if not item.optional)
        if not any(item.optional for item in items):
            runs = [value.run for value in values]
            return Typed(list, lambda frame: [run(frame) for run in runs])
        parts = [(value.run, item.optional) for value, item in zip(values, items, strict=True)]

        def run(frame: Frame) -> list[Any]:
            found = []
            for part, is_optional in parts:
                value = part(frame)
                if not is_optional:
                    found.append(value)
                elif as_optional(value).present:
                    found.append(value.value)
            return found

        return Typed(list, run)

    def map_of(self, items: tuple[Item, ...]) -> Typed:
        entries = [(self.compile(item.key), self.compile(item.value), item) for item in items if item.key]
        _check_alike(key.kind for key, _, _ in entries)
        _check_alike(value.kind for _, value, item in entries if not item.optional)
        parts = [(key.run, value.run, item.optional) for key, value, item in entries]

        def run(frame: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key_of, part, is_optional in parts:
                key, value = key_of(frame), part(frame)
                if not is_key(key) or type(key) is float:
                    raise CelError(f"unsupported key type: {name_of(type(key))}")
                if key in found:
                    raise CelError(f"Failed with repeated key: {key}")
                if not is_optional:
                    found[key] = value
                elif as_optional(value).present:
                    found[key] = value.value
            return found

        return Typed(dict, run)

    def call(self, node: Call) -> Typed:
        name, arguments, target = node
        if target is None:
            if special := SPECIAL.get((name, len(arguments))):
                return special(self, *arguments)
            return self.function(name, [self.compile(argument) for argument in arguments])
        if isinstance(target, Name) and target.name not in self.scope:
            if (f"{target.name}.{name}", len(arguments)) == ("cel.bind", 3):
                return bind(self, *arguments)
            if f"{target.name}.{name}" in FUNCTIONS:
                return self.function(
                    f"{target.name}.{name}", [self.compile(argument) for argument in arguments]
                )
        if macro := MACROS.get((name, len(arguments))):
            return macro(self, target, *arguments)
        return self.function(
            f".{name}", [self.compile(target), *(self.compile(argument) for argument in arguments)]
        )

    def function(self, name: str, arguments: list[Typed]) -> Typed:
        function = FUNCTIONS.get(name)
        if function is None:
            raise CelError(f"undeclared reference to '{name.removeprefix('.')}'")
        if name in ("==", "!=") and not is_alike(*(argument.kind for argument in arguments)):
            listed = ", ".join(name_of(argument.kind) for argument in arguments)
            raise CelError(f"found no matching overload for '{name}' applied to '({listed})'")
        kind, call = function.checked([argument.kind for argument in arguments])
        match [argument.run for argument in arguments]:
            case [only]:
                return Typed(kind, lambda frame: call(only(frame)))
            case [left, right]:
                return Typed(kind, lambda frame: call(left(frame), right(frame)))
            case runs:
                return Typed(kind, lambda frame: call(*[run(frame) for run in runs]))

    def flag(self, node: Node, where: str) -> Run:
        """Something that must turn out true or false."""
        typed = self.compile(node)
        if not is_assignable(bool, typed.kind):
            raise CelError(f"found no matching overload for '{where}' applied to '({name_of(typed.kind)})'")
        return typed.run


def _load(slot: int) -> Run:
    def run(frame: Frame) -> Any:
        value = frame[slot]
        if isinstance(
            value, CelError
        ):  # of a cel.bind whose value failed: only who uses it should hear of it
            raise value
        return value

    return run


def _check_alike(kinds: Iterable[type]) -> None:
    known = [kind for kind in kinds if kind is not DYN]
    for kind in known[1:]:
        if not is_alike(known[0], kind):
            raise CelError(f"expected type '{name_of(known[0])}' but found '{name_of(kind)}'")


def _wrapped(typed: Typed) -> Typed:
    run = typed.run
    return Typed(Optional, lambda frame: Optional(run(frame)))


def _entry(operand: Typed, key: Typed, optional: bool) -> Typed:
    """`operand[key]`. From an optional value on all further steps are optional, too."""
    holder_of, key_of = operand.run, key.run

    def run(frame: Frame) -> Any:
        holder = holder_of(frame)
        if optional or type(holder) is Optional:
            return _find(holder, key_of(frame))
        return _get(holder, key_of(frame))

    return Typed(Optional if optional or operand.kind is Optional else DYN, run)


def _get(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return item_of_map(holder, key)
    if type(holder) is list:
        return item_of_list(holder, key)
    raise CelError(f"no such overload: {name_of(type(holder))} has no entries")


def _find(holder: Any, key: Any) -> Optional:
    if type(holder) is Optional:
        return _find(holder.value, key) if holder.present else MISSING
    try:
        return Optional(_get(holder, key))
    except CelError:
        if isinstance(holder, (dict, list)):
            return MISSING
        raise
