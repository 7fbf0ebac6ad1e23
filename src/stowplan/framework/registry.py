"""Plugins by the name that a configuration gives them, and what each of them can do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from inspect import get_annotations
from types import SimpleNamespace
from typing import Any, get_type_hints

from stowplan.config.load import ReadArgs
from stowplan.errors import ConfigError
from stowplan.framework.args import PluginArgs
from stowplan.framework.plugin import Plugin

ENTRY_POINTS = "stowplan.plugins"
METHODS_OF_POINT = {
    "preEnqueue": ("pre_enqueue",),
    "queueSort": ("queue_sort",),
    "preFilter": ("pre_filter",),
    "filter": ("filter", "filter_nodes"),
    "postFilter": ("post_filter",),
    "preScore": ("pre_score",),
    "score": ("score", "score_nodes"),
    "reserve": ("reserve",),
    "permit": ("permit",),
    "preBind": ("pre_bind",),
    "bind": ("bind",),
    "postBind": ("post_bind",),
}


class Registry:
    """Finds plugin classes: those given, those installed under the entry point group, `module:Class` names.

    A class is imported when it is first asked for.
    """

    def __init__(
        self, classes: Mapping[str, type[Plugin]], installed: Mapping[str, EntryPoint] | None = None
    ) -> None:
        self._classes = dict(classes)
        self._installed = dict(installed or {})

    @classmethod
    def installed(cls) -> Registry:
        return cls({}, {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)})

    def find(self, name: str) -> type[Plugin]:
        """The class of the plugin; ConfigError says why there is none."""
        if name not in self._classes:
            self._classes[name] = self._import(name)
        return self._classes[name]

    def args_type(self, name: str) -> type[PluginArgs] | None:
        """The struct that the plugin's arguments must fit; None for one that takes none."""
        plugin = self.find(name)
        owner = next(kind for kind in plugin.__mro__ if "args" in get_annotations(kind))
        try:
            # Only this one annotation: others may name what is imported for type checkers alone.
            hint = SimpleNamespace(__annotations__={"args": get_annotations(owner)["args"]})
            found: type[PluginArgs] = get_type_hints(hint, vars(sys.modules[owner.__module__]))["args"]
        except NameError as error:
            raise ConfigError(
                f'"{name}" has arguments of no known type: {error}', stage="framework"
            ) from None
        return None if found is PluginArgs else found

    def read_args(self, plugin: str, raw: Any, path: str) -> ReadArgs | None:
        try:
            kind = self.args_type(plugin)
        except ConfigError:
            return None  # Whoever enables it hears that it does not exist.
        return kind.read(plugin, raw, path) if kind else None

    def extends(self, name: str, point: str) -> bool:
        plugin = self.find(name)
        return any(callable(getattr(plugin, method, None)) for method in METHODS_OF_POINT[point])

    def _import(self, name: str) -> type[Plugin]:
        entry = self._installed.get(name)
        if entry is None and ":" not in name:
            raise ConfigError(f'"{name}" does not exist', stage="framework")
        try:
            found = entry.load() if entry else _attribute(name)
        except Exception as error:
            raise ConfigError(f'"{name}" cannot be imported: {error}', stage="framework") from error
        if not (isinstance(found, type) and issubclass(found, Plugin)):
            raise ConfigError(f'"{name}" is not a class derived from stowplan.Plugin', stage="framework")
        return found


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
