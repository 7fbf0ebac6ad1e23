"""Functions as an extender: a predicate accepts or rejects a node for a pod, a priority scores it, a
preemption accepts or rejects a node where pods would be evicted.

    @priority
    def image_score(pod, node, *, scale: bool = False) -> int: ...

Keyword-only parameters are options, set with `--set image_score.scale=true`. An async function decorated with
`background` runs at the same time, for example to fetch data for the others.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

import msgspec

from stowplan.api.node import NodeObject
from stowplan.errors import InputError
from stowplan.framework.answers import describe, raise_interrupt

Node = NodeObject
"""The node that a function gets."""
Kind = Literal["predicate", "priority", "preemption", "background"]
PREFIXES = {"predicate": "/predicates", "priority": "/priorities", "preemption": "/preemption"}
Call = Callable[..., Any]


class Function:
    """A decorated function, which can still be called."""

    def __init__(self, kind: Kind, call: Call, path: str, name: str) -> None:
        self.kind, self.call, self.name = kind, call, name or call.__name__
        self.path = path or f"{PREFIXES.get(kind, '')}/{self.name}"
        self.module = getattr(call, "func", call).__module__
        self.__doc__ = call.__doc__

    def __call__(self, *args: object, **options: object) -> object:
        return self.call(*args, **options)

    def with_options(self, given: Mapping[str, str]) -> Function:
        """Return the function with these options, converted to the types of its parameters."""
        parameters = inspect.signature(self.call).parameters.values()
        known = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        types, options = typing.get_type_hints(self.call), {}
        for name, text in given.items():
            if name not in known:
                takes = f"it takes {', '.join(known)}" if known else "it takes none"
                raise InputError(f"{self.name} has no option {name!r}; {takes}", what="--set")
            try:
                options[name] = msgspec.convert(text, types.get(name, str), strict=False)
            except msgspec.ValidationError as error:
                raise InputError(f"{self.name}.{name}={text}: {error}", what="--set") from None
        return Function(self.kind, partial(self.call, **options), self.path, self.name)


@overload
def predicate(call: Call, /) -> Function: ...
@overload
def predicate(*, path: str = "", name: str = "") -> Callable[[Call], Function]: ...
def predicate(
    call: Call | None = None, /, *, path: str = "", name: str = ""
) -> Function | Callable[[Call], Function]:
    """`f(pod, node)`: True accepts the node; False, or a reason as text, rejects it."""
    return _decorate("predicate", call, path, name)


@overload
def priority(call: Call, /) -> Function: ...
@overload
def priority(*, path: str = "", name: str = "") -> Callable[[Call], Function]: ...
def priority(
    call: Call | None = None, /, *, path: str = "", name: str = ""
) -> Function | Callable[[Call], Function]:
    """`f(pod, node)`: a whole number; kube-scheduler expects 0 to 10. It is returned unchanged."""
    return _decorate("priority", call, path, name)


@overload
def preemption(call: Call, /) -> Function: ...
@overload
def preemption(*, path: str = "", name: str = "") -> Callable[[Call], Function]: ...
def preemption(
    call: Call | None = None, /, *, path: str = "", name: str = ""
) -> Function | Callable[[Call], Function]:
    """`f(pod, node_name, victims)`: whether pods with the uids `victims` may be evicted from the node."""
    return _decorate("preemption", call, path, name)


def background(call: Call) -> Function:
    """`async def f()`: runs as long as the extender, and is restarted if it fails."""
    return Function("background", call, "", "")


def _decorate(kind: Kind, call: Call | None, path: str, name: str) -> Function | Callable[[Call], Function]:
    if call is not None:
        return Function(kind, call, path, name)
    return lambda call: Function(kind, call, path, name)


def load_functions(source: str) -> list[Function]:
    """The decorated functions of a file (`rules.py`) or an importable module (`acme.rules`)."""
    module = _from_file(Path(source)) if source.endswith(".py") else _import_module(source)
    found = list(dict.fromkeys(each for each in vars(module).values() if isinstance(each, Function)))
    if not any(each.kind != "background" for each in found):
        raise InputError(
            "contains no function decorated with @predicate, @priority or @preemption", where=source
        )
    return found


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise_interrupt(error)
        raise InputError(f"cannot be imported: {describe(error)}", where=name) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError("no such file", where=str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise_interrupt(error)
        raise InputError(f"cannot be loaded: {describe(error)}", where=str(path)) from error
    return module


def with_settings(functions: Sequence[Function], settings: Iterable[str]) -> list[Function]:
    """Return the functions with the options of `--set FUNCTION.OPTION=VALUE`."""
    given: dict[str, dict[str, str]] = {}
    for setting in settings:
        place, is_set, value = setting.partition("=")
        function, has_option, option = place.partition(".")
        if not (is_set and has_option):
            raise InputError(f"expected FUNCTION.OPTION=VALUE, got {setting!r}", what="--set")
        given.setdefault(function, {})[option] = value
    if unknown := given.keys() - {each.call.__name__ for each in functions}:
        known = ", ".join(each.call.__name__ for each in functions)
        raise InputError(f"unknown function {', '.join(sorted(unknown))} (known: {known})", what="--set")
    return [
        each.with_options(given[each.call.__name__]) if each.call.__name__ in given else each
        for each in functions
    ]
