"""Compiles a tree to closures: names become slots of a frame, calls the overload that matches the types.

A compiled node is a function of the frame (the list of variables). Types are followed as far as that is
cheap; what is only known when the expression runs is checked then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from stowplan.api.cel import formats, kubernetes, lists, networks, standard, strings, times  # noqa: F401  (they define the functions)
from stowplan.api.cel.lists import is_key, item_of_list, item_of_map
from stowplan.api.cel.macros import MACROS, SPECIAL, Frame, Run, Typed, as_optional, bind, is_alike
from stowplan.api.cel.overloads import (
    COST_EXCEEDED,
    FUNCTIONS,
    MAX_COST,
    CostLimitExceededError,
    Meter,
    is_assignable,
    name_of,
)
from stowplan.api.cel.parser import (
    Call,
    Index,
    Item,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    Select,
    parse_with_places,
)
from stowplan.api.cel.standard import TYPE_CONSTANTS
from stowplan.api.cel.strings import LITERAL, MAX_PATTERN_SIZE, literal_pattern
from stowplan.api.cel.values import (
    DYN,
    FIELDS,
    MISSING,
    NUMBERS,
    DeviceVariable,
    Optional,
    fields_of,
    item_type,
)
from stowplan.errors import CelError

Declarations: TypeAlias = tuple[tuple[str, type], ...]
TOO_DEEP = "expression is nested too deeply"
ROOM = 5000
"""Frames for a tree of MAX_DEPTH: compiling takes up to seven for a level, running one or two."""
CONVERSIONS = frozenset({
    "int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp", "quantity", "semver",
})  # fmt: skip
DEVICE: Declarations = (("device", DeviceVariable),)


class Program:
    """A compiled expression; `kind` is the type of its result, `object` if that is not known beforehand."""

    __slots__ = ("_cost", "_is_deep", "_names", "_run", "_spare", "kind")

    def __init__(self, expression: str, declarations: Declarations) -> None:
        compiler = Compiler(declarations)
        try:
            with _room():
                node, compiler.places = parse_with_places(expression)
                typed = compiler.compile(node)
        except RecursionError:
            raise CelError(TOO_DEEP) from None
        self.kind, self._run, self._cost = typed.kind, typed.run, compiler.cost
        self._is_deep = compiler.deepest > 50
        self._names = [name for name, _ in declarations]
        self._spare = [None] * (compiler.slots - 1 - len(declarations))

    def evaluate(self, variables: Mapping[str, object], meter: Meter | None = None) -> object:
        """The value for these variables; CelError if there is none.

        `meter` tells afterwards what is left of the budget; one evaluation has a budget of MAX_COST.
        """
        meter = meter or Meter(MAX_COST)
        try:
            meter.charge(self._cost)
            frame = [meter, *[variables[name] for name in self._names], *self._spare]
            if self._is_deep:
                with _room():
                    return self._run(frame)
            return self._run(frame)
        except CostLimitExceededError:
            raise CelError(COST_EXCEEDED) from None
        except RecursionError:
            raise CelError(TOO_DEEP) from None


@contextmanager
def _room() -> Iterator[None]:
    """Lets Python nest calls as deeply as an API server lets expressions nest."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, ROOM))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def compile_cel(expression: str, declarations: Declarations = DEVICE) -> Program:
    """The program of an expression over the declared variables; CelError if it makes no sense."""
    program = _compile_cached(expression, declarations)
    if isinstance(program, str):
        raise CelError(program)
    return program


def compilations() -> int:
    """How often an expression had to be compiled."""
    return _compile_cached.cache_info().misses


@lru_cache(maxsize=128)
def _compile_cached(expression: str, declarations: Declarations) -> Program | str:
    """A program, or why there is none: a rejected expression is not compiled again for every device."""
    try:
        return Program(expression, declarations)
    except CelError as error:
        return str(error)


class _Variable(NamedTuple):
    kind: type
    slot: int


class Compiler:
    def __init__(self, declarations: Declarations) -> None:
        self.scope = {name: _Variable(kind, slot) for slot, (name, kind) in enumerate(declarations, 1)}
        self.slots = len(declarations) + 1  # the first slot has the meter
        self.cost = 0  # of what is compiled at present, as far as it does not depend on values
        self.depth = self.deepest = 0
        self.is_formatting = False
        self.pattern_size = 0
        self.places: dict[int, int] = {}

    def compile(self, node: Node) -> Typed:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        try:
            typed = self.compile_node(node)
        except CelError as error:
            if error.offset is None:  # the innermost node is the one at fault
                error.offset = self.places.get(id(node))
            raise
        self.depth -= 1
        return typed

    def compile_node(self, node: Node) -> Typed:
        match node:
            case Literal(value):
                return Typed(type(value), lambda frame: value, is_constant=True)
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
            self.cost += 1
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

    @contextmanager
    def body(self) -> Iterator[list[int]]:
        """What is compiled within the context runs many times; its cost is in the list afterwards."""
        outer, self.cost, cost = self.cost, 0, [0]
        yield cost
        cost[0], self.cost = self.cost, outer

    def select(self, node: Select) -> Typed:
        if (name := _qualify(node)) in TYPE_CONSTANTS and name.partition(".")[0] not in self.scope:
            return self.name(name)
        self.cost += 1
        operand, field = self.compile(node.operand), node.field
        if fields := FIELDS.get(operand.kind):
            if field not in fields:
                raise CelError(f"undefined field '{field}'")
            kind, read = fields[field]
            run = operand.run
            found = Typed(kind, lambda frame: read(run(frame)))
            return _wrap(found) if node.optional else found
        if (declared := fields_of(operand.kind)) is not None:
            if field not in declared:
                raise CelError(f"undefined field '{field}'")
            found = _entry(operand, Typed(str, lambda frame: field), node.optional)
            return found if node.optional else found._replace(kind=declared[field])
        if not any(is_assignable(kind, operand.kind) for kind in (dict, Optional)):
            raise CelError(f"type '{name_of(operand.kind)}' does not support field selection")
        return _entry(operand, Typed(str, lambda frame: field), node.optional)

    def index(self, node: Index) -> Typed:
        self.cost += 1
        operand, key = self.compile(node.operand), self.compile(node.key)
        if operand.kind is not Optional:
            FUNCTIONS["[]"].resolve((operand.kind, key.kind))
        return _entry(operand, key, node.optional)

    def list_of(self, items: tuple[Item, ...]) -> Typed:
        if items and all(isinstance(item.value, Literal) and not item.optional for item in items):
            constant = [item.value.value for item in items if isinstance(item.value, Literal)]
            self.check_alike(type(value) for value in constant)
            return Typed(list, lambda frame: constant)
        self.cost += 10
        values = [self.compile(item.value) for item in items]
        self.check_alike(value.kind for value, item in zip(values, items, strict=True) if not item.optional)
        if not any(item.optional for item in items):
            runs = [value.run for value in values]
            return Typed(list, lambda frame: [run(frame) for run in runs])
        parts = [(value.run, item.optional) for value, item in zip(values, items, strict=True)]

        def run(frame: Frame) -> list[object]:
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
        self.cost += 30
        entries = [(self.compile(item.key), self.compile(item.value), item) for item in items if item.key]
        self.check_alike(key.kind for key, _, _ in entries)
        self.check_alike(value.kind for _, value, item in entries if not item.optional)
        parts = [(key.run, value.run, item.optional) for key, value, item in entries]

        def run(frame: Frame) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key_of, part, is_optional in parts:
                key, value = key_of(frame), part(frame)
                if not is_key(key) or type(key) is float:
                    raise CelError(f"unsupported key type: {name_of(type(key))}")
                if not is_optional:
                    found[key] = value
                elif as_optional(value).present:
                    found[key] = value.value
            return found

        return Typed(dict, run)

    def check_alike(self, kinds: Iterable[type]) -> None:
        """The items of a list or map are of one type, unless they are to be formatted."""
        known = [kind for kind in kinds if kind is not DYN]
        for kind in known[1:]:
            if not is_alike(known[0], kind) and not self.is_formatting:
                raise CelError(f"expected type '{name_of(known[0])}' but found '{name_of(kind)}'")

    def call(self, node: Call) -> Typed:
        if node.name == "format" and node.target is not None:
            outer, self.is_formatting = self.is_formatting, True
            typed = self.plain_call(node)
            self.is_formatting = outer
            return typed
        return self.plain_call(node)

    def plain_call(self, node: Call) -> Typed:
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
        if f"{LITERAL}{name}" in FUNCTIONS and len(arguments) > 1 and arguments[1].is_constant:
            name = self.with_pattern(name, arguments[1])
        function = FUNCTIONS.get(name)
        if function is None:
            raise CelError(f"undeclared reference to '{name.removeprefix('.')}'")
        if name in ("==", "!=") and not is_alike(*(argument.kind for argument in arguments)):
            listed = ", ".join(name_of(argument.kind) for argument in arguments)
            raise CelError(f"found no matching overload for '{name}' applied to '({listed})'")
        kind, call = function.resolve([argument.kind for argument in arguments])
        self.cost += 1
        if function.is_metered:
            typed = Typed(kind, _meter(call, [argument.run for argument in arguments]))
            is_constant = name in CONVERSIONS and all(argument.is_constant for argument in arguments)
            return _fold(typed) if is_constant else typed
        match [argument.run for argument in arguments]:
            case [only]:
                return Typed(kind, lambda frame: call(only(frame)))
            case [left, right]:
                return Typed(kind, lambda frame: call(left(frame), right(frame)))
            case runs:
                return Typed(kind, lambda frame: call(*[run(frame) for run in runs]))

    def with_pattern(self, name: str, form: Typed) -> str:
        """The name of the function for a pattern that is known beforehand."""
        if form.kind is not str:
            return name
        self.pattern_size += literal_pattern(form.run([])).size
        if self.pattern_size > MAX_PATTERN_SIZE:
            raise CelError("the regular expressions are too complex")
        return f"{LITERAL}{name}"

    def flag(self, node: Node, where: str) -> Run:
        """Compile an expression that must be true or false."""
        typed = self.compile(node)
        if not is_assignable(bool, typed.kind):
            raise CelError(f"found no matching overload for '{where}' applied to '({name_of(typed.kind)})'")
        return typed.run


def _qualify(node: Node) -> str:
    """`a.b.c` as one name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.optional and len(parts) < 3:
        parts.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(parts)]) if isinstance(node, Name) else ""


def _fold(typed: Typed) -> Typed:
    """Evaluate a constant once for all devices. Leave it unchanged if it fails: it may never be needed."""
    try:
        value = typed.run([Meter(1000)])
    except (CelError, CostLimitExceededError):
        return typed
    return Typed(typed.kind, lambda frame: value, is_constant=True)


def _meter(call: Callable[..., object], arguments: list[Run]) -> Run:
    match arguments:
        case [only]:
            return lambda frame: call(frame[0], only(frame))
        case [left, right]:
            return lambda frame: call(frame[0], left(frame), right(frame))
    return lambda frame: call(frame[0], *[run(frame) for run in arguments])


def _load(slot: int) -> Run:
    def run(frame: Frame) -> object:
        value = frame[slot]
        if isinstance(
            value, CelError
        ):  # of a cel.bind whose value failed: only who uses it should hear of it
            raise value
        return value

    return run


def _wrap(typed: Typed) -> Typed:
    run = typed.run
    return Typed(Optional, lambda frame: Optional(run(frame)))


def _entry(operand: Typed, key: Typed, optional: bool) -> Typed:
    """`operand[key]`. From an optional value on all further steps are optional, too."""
    holder_of, key_of = operand.run, key.run

    def run(frame: Frame) -> object:
        holder = holder_of(frame)
        if optional or type(holder) is Optional:
            return _find(holder, key_of(frame))
        return _get(holder, key_of(frame))

    return Typed(Optional if optional or operand.kind is Optional else item_type(operand.kind), run)


def _get(holder: object, key: object) -> object:
    if isinstance(holder, dict):
        return item_of_map(holder, key)
    if type(holder) is list:
        return item_of_list(holder, key)
    raise CelError(f"no such overload: {name_of(type(holder))} has no entries")


def _find(holder: object, key: object) -> Optional:
    if type(holder) is Optional:
        return _find(holder.value, key) if isinstance(holder.value, (dict, list)) else MISSING
    if isinstance(holder, list) and type(key) not in NUMBERS:
        raise CelError(f"unsupported index type '{name_of(type(key))}' in list")
    try:
        return Optional(_get(holder, key))
    except CelError:
        if isinstance(holder, (dict, list)):
            return MISSING
        raise
