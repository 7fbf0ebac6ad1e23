"""What is wrong with a plugin's class, found before it runs: file, line, what was found, what would be right.

It looks at the class alone. What arguments a configuration gives is checked where configurations are read.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Hashable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from weakref import WeakSet

import msgspec
import numpy as np

from stowplan.api.custom import CustomResource, Definition
from stowplan.errors import ConfigError
from stowplan.framework import exports
from stowplan.framework.answers import describe, join_with_or, raise_interrupt, short_path
from stowplan.framework.args import args_of
from stowplan.framework.plugin import (
    ASYNC,
    MAY_YIELD,
    METHODS,
    METHODS_OF_POINT,
    NEEDS,
    PARAMETERS,
    Plugin,
    Reads,
    is_own,
    overrides,
)

EXTENSION_METHODS = tuple(method for methods in METHODS_OF_POINT.values() for method in methods)
OTHER_NAMES = {"less": "queue_sort", "normalize": "normalize_score", "prefilterextensions": "add_pod"}
"""What the methods are called elsewhere, in small letters and without underscores."""
CLOSE = 0.85
"""How alike two names must be for one to be a slip of the other."""


def faults_of(plugin: type[Plugin]) -> list[Fault]:
    """Everything that would keep the plugin from doing what its author means, by line."""
    found = [
        *_find_misspelt(plugin),
        *_wrong_methods(plugin),
        *_contradictions(plugin),
        *_wrong_attributes(plugin),
        *_wrong_args(plugin),
    ]
    if not found and not methods_of(plugin, EXTENSION_METHODS):
        found = [
            _fault(plugin, "", f"takes part in no extension point: define {join_with_or(EXTENSION_METHODS)}")
        ]
    return sorted(found)


_SOUND: WeakSet[type[Plugin]] = WeakSet()
"""Classes without faults: an inspection takes 5 ms, and every registry asks for the same classes again."""


def check_plugin(plugin: type[Plugin]) -> type[Plugin]:
    """The plugin, or a ConfigError with all that is wrong with it.

    Plugins that come with Stowplan are inspected by its tests, so that no start has to wait for that.
    """
    if is_own(plugin) or plugin in _SOUND:
        return plugin
    if faults := faults_of(plugin):
        first, *others = faults
        text = "; ".join([first.text, *map(str, others)])
        raise ConfigError(text, stage="framework", where=f"{first.file}:{first.line}")
    _SOUND.add(plugin)
    return plugin


def methods_of(plugin: type[Plugin], among: tuple[str, ...] = tuple(PARAMETERS)) -> list[str]:
    """Which of the methods the plugin has."""
    return [name for name in among if overrides(plugin, name)]


def _find_misspelt(plugin: type[Plugin]) -> Iterator[Fault]:
    for kind in _own_classes(plugin):
        for name, member in list(vars(kind).items()):  # Python 3.14 adds annotations once they are asked for
            if name.startswith("_") or name in PARAMETERS or not inspect.isroutine(_function(member)):
                continue
            if meant := _suggest(name):
                way_out = "start the name of a method of your own with an underscore"
                yield _fault(plugin, name, f"is not an extension point; did you mean {meant}? ({way_out})")


def _suggest(name: str) -> str | None:
    plain = name.replace("_", "").lower()
    for known in PARAMETERS:
        if plain == known.replace("_", ""):
            return known
    close = get_close_matches(name, PARAMETERS, 1, CLOSE)
    close = close or [known for known in PARAMETERS if sorted(known) == sorted(name)]  # filtre, scoer
    return OTHER_NAMES.get(plain) or (close[0] if close else None)


def _wrong_methods(plugin: type[Plugin]) -> Iterator[Fault]:
    for name, parameters in PARAMETERS.items():
        if not overrides(plugin, name):
            continue
        member = inspect.getattr_static(plugin, name)
        function = _function(member)
        if not callable(function):
            yield _fault(plugin, name, f"is not a method but {type(function).__name__}")
            continue
        taken = list(inspect.signature(function).parameters)
        given = taken[not isinstance(member, staticmethod) :]
        if not _takes(function, len(parameters) + (not isinstance(member, staticmethod))) or any(
            # Names of one's own are fine, but not those of parameters that stand elsewhere.
            one in parameters and one != other
            for one, other in zip(given, parameters, strict=False)
        ):
            call = f"{name}({', '.join(('self', *parameters))})"
            text = f"takes ({', '.join(taken)}); it is called with {call}"
            yield _fault(plugin, name, text)
        else:
            yield from (_fault(plugin, name, text) for text in _wrong_types(name, function, given))
        if text := _wrong_colour(name, inspect.unwrap(function)):
            yield _fault(plugin, name, text)
    if not _takes(plugin.__init__, 3):
        found = f"takes {inspect.signature(plugin.__init__)}"
        yield _fault(plugin, "__init__", f"{found}; it is called with (self, args, handle)")


def _wrong_colour(name: str, function: Callable[..., object]) -> str:
    """A method that is async and should not be, or yields and should return, or the other way round."""
    if name in ASYNC:
        return "" if inspect.iscoroutinefunction(function) else "is awaited: write `async def`"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is not awaited: write `def`, without async, and wait in `async def run`"
    if inspect.isgeneratorfunction(function) and name not in MAY_YIELD:
        return "yields, but what it returns is used: write `return`"
    return ""


def _contradictions(plugin: type[Plugin]) -> Iterator[Fault]:
    for one, other in (("filter", "filter_nodes"), ("score", "score_nodes")):
        if methods_of(plugin, (one, other)) == [one, other]:
            yield _fault(plugin, one, f"is never called because {other} is defined, too; keep one of them")
    for name, needed in NEEDS.items():
        if methods_of(plugin, (name,)) and not methods_of(plugin, needed):
            yield _fault(plugin, name, f"is never called without {join_with_or(needed)}")
    if not isinstance(reads := plugin.reads, Reads):
        yield _fault(plugin, "reads", f"is {reads!r}; expected Reads.ANYTHING, NODE, USAGE or OBJECTS")
        return
    signs, is_cacheable = methods_of(plugin, ("sign_pod",)), reads in (Reads.NODE, Reads.USAGE)
    if signs and not is_cacheable:
        yield _fault(plugin, "sign_pod", "is never called unless `reads` is Reads.NODE or Reads.USAGE")
    if signs and is_cacheable:
        for one in methods_of(plugin, ("filter", "score")):
            text = f"cannot be cached by sign_pod; define {one}_nodes instead, or remove sign_pod"
            yield _fault(plugin, one, text)
    if not signs and is_cacheable:
        yield _fault(plugin, "reads", "has no effect without sign_pod(self, pod): define it")


def _wrong_attributes(plugin: type[Plugin]) -> Iterator[Fault]:
    for name in ("budget", "bind_budget"):
        seconds: object = getattr(plugin, name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            yield _fault(plugin, name, f"is {seconds!r}; expected seconds, more than 0")
    watches: object = plugin.watches
    if not isinstance(watches, (tuple, list)):
        yield _fault(plugin, "watches", f"is {watches!r}; expected a tuple of classes: `(Kind,)`")
        return
    for kind in watches:
        if not (isinstance(kind, type) and issubclass(kind, CustomResource)):
            yield _fault(plugin, "watches", f"has {kind!r}; expected a class derived from CustomResource")
        elif not isinstance(getattr(kind, "definition", None), Definition):
            yield _fault(plugin, "watches", f"has {kind.__name__}, which has no `definition: ClassVar`")


def _wrong_args(plugin: type[Plugin]) -> Iterator[Fault]:
    if isinstance(given := inspect.getattr_static(plugin, "args", None), type):
        yield _fault(plugin, "args", f"is assigned a class; annotate it instead: `args: {given.__name__}`")
        return
    try:
        kind = args_of(plugin)
    except BaseException as error:  # what an annotation may raise is not ours to know
        raise_interrupt(error)
        yield _fault(plugin, "args", f"has an annotation that cannot be used: {_text(error)}")
        return
    try:
        kind.read(plugin.__name__, {}, "args")
    except BaseException as error:
        raise_interrupt(error)
        yield fault_at(kind, "validate", f"{kind.__name__} cannot be read: {describe(error)}")


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, (NameError, TypeError)) else describe(error)


def _own_classes(plugin: type[Plugin]) -> Iterator[type]:
    """The plugin and what it inherits from on the way to `Plugin`."""
    return (kind for kind in plugin.__mro__ if kind not in Plugin.__mro__)


def _function(member: object) -> object:
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _takes(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _wrong_types(name: str, function: Callable[..., object], parameters: list[str]) -> Iterator[str]:
    """Annotations that contradict the base class. Those that do not resolve are left to a type checker."""
    try:
        given = get_type_hints(inspect.unwrap(function))
    except Exception:  # a name that only a type checker knows, or anything else that an annotation may raise
        return
    expected = get_type_hints(METHODS[name], localns=vars(exports))
    for parameter, declared in zip(parameters, PARAMETERS[name], strict=False):
        found = given.get(parameter, Any)
        if not fits(expected[declared], found):
            yield f"takes {parameter}: {type_text(found)}; it is called with {type_text(expected[declared])}"
    answer, wanted = given.get("return", Any), expected["return"]
    if not fits(answer, wanted):
        yield f"returns {type_text(answer)}; expected {type_text(wanted)}"


def fits(given: object, wanted: object) -> bool:
    """Whether every value of one annotation is one of the other; where that is hard to tell, it is."""
    given, wanted = _expand_alias(given), _expand_alias(wanted)
    if Any in (given, wanted):
        return True
    if _members(given) != [given]:
        return all(fits(each, wanted) for each in _members(given))
    if _members(wanted) != [wanted]:
        return any(fits(given, each) for each in _members(wanted))
    one, other = get_origin(given) or given, get_origin(wanted) or wanted
    if not (isinstance(one, type) and isinstance(other, type)):
        return True
    if getattr(other, "_is_protocol", False) or other is Hashable:
        return one is not type(None) or other is Hashable
    if other is int and issubclass(one, np.integer):
        return True
    if not issubclass(one, other):
        return False
    # The elements of what is yielded or returned; the key and value of anything else are not looked at.
    mine, theirs = get_args(given), get_args(wanted)
    return one is np.ndarray or not (mine and theirs) or fits(mine[0], theirs[0])


def _expand_alias(kind: object) -> object:
    """What an alias of a `type` statement stands for; NumPy's NDArray is one from Python 3.12 on."""
    alias = get_origin(kind) or kind
    if not hasattr(alias, "__value__"):
        return kind
    return alias.__value__[get_args(kind)] if get_args(kind) else alias.__value__


def _members(kind: object) -> list[object]:
    return list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]


def type_text(kind: object) -> str:
    """The annotation as an author writes it."""
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    if members := _members(kind)[1:]:
        return " | ".join(map(type_text, [_members(kind)[0], *members]))
    if get_origin(_expand_alias(kind)) is np.ndarray:
        return "Scores" if kind == exports.Scores else "NDArray"
    return re.sub(r"\b(?:\w+\.)+", "", str(kind))


def _fault(plugin: type[Plugin], member: str, text: str) -> Fault:
    """A fault where the member is defined; the plugin inherits some of them."""
    owners = (kind for kind in _own_classes(plugin) if member in vars(kind) | inspect.get_annotations(kind))
    what = f"{plugin.__name__}.{member}" if member else plugin.__name__
    return fault_at(next(owners, plugin), member, f"{what} {text}")


# Where in a file a plugin, or the part of it that is wrong, is defined


class Fault(NamedTuple):
    """`line` is 0 where none is to be named."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


def fault_at(kind: type, member: str, text: str) -> Fault:
    """A fault of a class: at the line that defines the member, or else at the class's own."""
    file = inspect.getsourcefile(kind) or ""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):  # it was loaded, so it has changed or gone since
        return Fault(short_path(str(file)), 0, text)
    definition = _definition(tree, kind.__qualname__)
    lines = [part.lineno for part in definition.body if member in _names(part)] if definition else []
    return Fault(short_path(str(file)), next(iter(lines), definition.lineno if definition else 0), text)


def repeated_definitions(file: str | Path) -> Iterator[Fault]:
    """Classes of one name in a file, and methods of one name in a class: only the last one counts."""
    tree = ast.parse(Path(file).read_bytes())
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    scopes = [("", tree.body), *((f"{each.name}.", each.body) for each in classes)]
    for prefix, body in scopes:
        first: dict[str, int] = {}
        for part in body:
            if not isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if part.decorator_list:  # a property's setter, an overload
                continue
            if part.name in first:
                text = (
                    f"{prefix}{part.name} is already defined in line {first[part.name]}; rename one of them"
                )
                yield Fault(short_path(str(file)), part.lineno, text)
            first.setdefault(part.name, part.lineno)


def _definition(tree: ast.Module, qualified_name: str) -> ast.ClassDef | None:
    """The class of that name; the last one, which counts."""
    body, found = tree.body, None
    for name in qualified_name.split("."):
        if name == "<locals>":
            continue
        found = next((part for part in reversed(body) if getattr(part, "name", "") == name), None)
        body = getattr(found, "body", [])
    return found if isinstance(found, ast.ClassDef) else None


def _names(part: ast.stmt) -> set[str]:
    """What a statement of a class's body defines."""
    if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {part.name}
    targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


# What `stowplan plugin show` prints


class Argument(msgspec.Struct, rename="camel"):
    """As a configuration spells it; one without default is required."""

    name: str
    type: str
    required: bool
    default: object = None


class PluginFacts(msgspec.Struct, rename="camel"):
    name: str
    origin: str
    """A file and a line."""
    entry_point: str
    """`module:Class`, for an installed one."""
    says: str
    """The first line of what its class says of itself, or else of its module."""
    points: list[str]
    arguments: list[Argument]
    watches: list[str]
    """Plural, version and group of the kinds."""
    has_background_work: bool


def facts_of(name: str, plugin: type[Plugin], entry_point: str = "") -> PluginFacts:
    place = fault_at(plugin, "", "")
    about = plugin.__dict__.get("__doc__") or getattr(inspect.getmodule(plugin), "__doc__", None) or ""
    return PluginFacts(
        name,
        f"{place.file}:{place.line}",
        entry_point,
        inspect.cleandoc(about).partition("\n")[0],
        [point for point, methods in METHODS_OF_POINT.items() if methods_of(plugin, methods)],
        [_argument(field) for field in msgspec.structs.fields(args_of(plugin))],
        [kind.definition.event_resource for kind in plugin.watches],
        bool(methods_of(plugin, ("run",))),
    )


def _argument(field: msgspec.structs.FieldInfo) -> Argument:
    default: Any = None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        default = field.default
    plain = msgspec.json.decode(msgspec.json.encode(default, enc_hook=str))
    return Argument(field.encode_name, type_text(field.type), field.required, plain)
