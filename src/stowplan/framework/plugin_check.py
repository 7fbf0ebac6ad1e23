"""What is wrong with a plugin's class, found before it runs: file, line, what was found, what would be right.

It looks at the class alone. What arguments a configuration gives is checked where configurations are read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from stowplan.api.custom import CustomResource, Definition
from stowplan.errors import ConfigError
from stowplan.framework.answers import describe, raise_interrupt
from stowplan.framework.args import args_of
from stowplan.framework.plugin import Plugin, Reads
from stowplan.framework.plugin_source import Fault, fault_at
from stowplan.framework.points import ASYNC, MAY_YIELD, METHODS_OF_POINT, NEEDS, PARAMETERS

EXTENSION_METHODS = tuple(method for methods in METHODS_OF_POINT.values() for method in methods)
OTHER_NAMES = {"less": "queue_sort", "normalize": "normalize_score", "prefilterextensions": "add_pod"}
"""What the methods are called elsewhere, in small letters and without underscores."""
CLOSE = 0.85
"""How alike two names must be for one to be a slip of the other."""


def faults_of(plugin: type[Plugin]) -> list[Fault]:
    """Everything that would keep the plugin from doing what its author means, by line."""
    found = [
        *_misspelt(plugin),
        *_wrong_methods(plugin),
        *_contradictions(plugin),
        *_wrong_attributes(plugin),
        *_wrong_args(plugin),
    ]
    if not found and not methods_of(plugin, EXTENSION_METHODS):
        found = [_fault(plugin, "", f"takes part in no extension point: define {_listed(EXTENSION_METHODS)}")]
    return sorted(found)


def checked(plugin: type[Plugin]) -> type[Plugin]:
    """The plugin, or a ConfigError with all that is wrong with it."""
    if faults := faults_of(plugin):
        first, *others = faults
        text = "; ".join([first.text, *map(str, others)])
        raise ConfigError(text, stage="framework", where=f"{first.file}:{first.line}")
    return plugin


def methods_of(plugin: type[Plugin], among: tuple[str, ...] = tuple(PARAMETERS)) -> list[str]:
    """Which of the methods the plugin has."""
    return [name for name in among if callable(getattr(plugin, name, None))]


def _misspelt(plugin: type[Plugin]) -> Iterator[Fault]:
    for kind in _own_classes(plugin):
        for name, member in vars(kind).items():
            if name.startswith("_") or name in PARAMETERS or not inspect.isroutine(_function(member)):
                continue
            if meant := _meant(name):
                way_out = "a method of your own that is called so starts with an underscore"
                yield _fault(plugin, name, f"is no extension point; {meant} is one ({way_out})")


def _meant(name: str) -> str | None:
    plain = name.replace("_", "").lower()
    for known in PARAMETERS:
        if plain == known.replace("_", ""):
            return known
    close = get_close_matches(name, PARAMETERS, 1, CLOSE)
    return OTHER_NAMES.get(plain) or (close[0] if close else None)


def _wrong_methods(plugin: type[Plugin]) -> Iterator[Fault]:
    for name, parameters in PARAMETERS.items():
        if (member := inspect.getattr_static(plugin, name, None)) is None:
            continue
        function = _function(member)
        if not callable(function):
            yield _fault(plugin, name, f"is no method but {type(function).__name__}")
            continue
        if not _takes(function, len(parameters) + (not isinstance(member, staticmethod))):
            found = f"takes {inspect.signature(function)}"
            yield _fault(plugin, name, f"{found}; it is called with {_call(name, parameters)}")
        if text := _wrong_colour(name, inspect.unwrap(function)):
            yield _fault(plugin, name, text)
    if not _takes(plugin.__init__, 3):
        found = f"takes {inspect.signature(plugin.__init__)}"
        yield _fault(plugin, "__init__", f"{found}; it is called with (self, args, handle)")


def _wrong_colour(name: str, function: Callable[..., Any]) -> str:
    """A method that is async and should not be, or yields and should return, or the other way round."""
    if name in ASYNC:
        return "" if inspect.iscoroutinefunction(function) else "is awaited: write `async def`"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is not awaited: write `def`, without async; what must wait goes into `async def run`"
    if inspect.isgeneratorfunction(function) and name not in MAY_YIELD:
        return "yields, but what it returns is used: write `return`"
    return ""


def _contradictions(plugin: type[Plugin]) -> Iterator[Fault]:
    for one, other in (("filter", "filter_nodes"), ("score", "score_nodes")):
        if methods_of(plugin, (one, other)) == [one, other]:
            yield _fault(plugin, one, f"is never called, since there is {other} too: keep one of them")
    for name, needed in NEEDS.items():
        if methods_of(plugin, (name,)) and not methods_of(plugin, needed):
            yield _fault(plugin, name, f"is never called without {_listed(needed)}")
    if not isinstance(reads := plugin.reads, Reads):
        yield _fault(plugin, "reads", f"is {reads!r}; expected Reads.ANYTHING, NODE or USAGE")
        return
    signs = methods_of(plugin, ("sign_pod",))
    if signs and reads is Reads.ANYTHING:
        yield _fault(
            plugin, "sign_pod", "is never called unless the class says `reads = Reads.NODE` or Reads.USAGE"
        )
    if signs and reads is not Reads.ANYTHING:
        for one in methods_of(plugin, ("filter", "score")):
            text = f"is kept by sign_pod, which takes columns: write {one}_nodes, or leave sign_pod out"
            yield _fault(plugin, one, text)
    if not signs and reads is not Reads.ANYTHING:
        yield _fault(plugin, "reads", "has no effect without sign_pod(self, pod): define it")


def _wrong_attributes(plugin: type[Plugin]) -> Iterator[Fault]:
    for name in ("budget", "bind_budget"):
        seconds: Any = getattr(plugin, name)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            yield _fault(plugin, name, f"is {seconds!r}; expected seconds, more than 0")
    watches: Any = plugin.watches
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
        yield _fault(plugin, "args", f"has a value; to name its type write `args: {given.__name__}`")
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


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _call(name: str, parameters: tuple[str, ...]) -> str:
    return f"{name}({', '.join(('self', *parameters))})"


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _fault(plugin: type[Plugin], member: str, text: str) -> Fault:
    """A fault where the member is defined; the plugin inherits some of them."""
    owners = (kind for kind in _own_classes(plugin) if member in vars(kind) | inspect.get_annotations(kind))
    what = f"{plugin.__name__}.{member}" if member else plugin.__name__
    return fault_at(next(owners, plugin), member, f"{what} {text}")
