"""Plugins by the name that a configuration gives them, and what each of them can do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from stowplan.config.load import ReadArgs
from stowplan.errors import ConfigError
from stowplan.framework.answers import describe, raise_interrupt
from stowplan.framework.args import PluginArgs, args_of
from stowplan.framework.plugin import METHODS_OF_POINT, Plugin, overrides
from stowplan.framework.plugin_check import check_plugin
from stowplan.framework.plugin_files import PluginFiles

ENTRY_POINTS = "stowplan.plugins"


@lru_cache(maxsize=4)
def _installed_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Kept by `sys.path`: looking through all installed packages takes longer than building a profile."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


class Registry:
    """Finds plugin classes: those given, those of files in folders, those installed under the entry point
    group, `module:Class` names.

    A class is imported when it is first asked for, except for those of folders.
    """

    def __init__(
        self,
        classes: Mapping[str, type[Plugin]],
        installed: Mapping[str, EntryPoint] | None = None,
        files: PluginFiles | None = None,
    ) -> None:
        self._given, self._installed = dict(classes), dict(installed or {})
        self._files = files or PluginFiles()
        for name, plugin in self._files.classes.items():
            if name in self._installed or name in self._given:
                raise ConfigError(
                    f'"{name}" is also the name of an installed plugin; rename the class',
                    stage="framework",
                    where=str(sys.modules[plugin.__module__].__file__),
                )
        self._classes = self._given | self._files.classes
        self._args_types: dict[str, type[PluginArgs] | None] = {}

    @classmethod
    def installed(
        cls, plugin_dirs: Sequence[str | Path] = (), classes: Mapping[str, type[Plugin]] | None = None
    ) -> Registry:
        """All plugins of this Python environment, of the files in these folders, and these classes."""
        files = PluginFiles([Path(folder) for folder in plugin_dirs])
        return cls(classes or {}, _installed_on(tuple(sys.path)), files)

    @property
    def has_changed(self) -> bool:
        """Whether a file has changed that plugins were loaded from."""
        return self._files.has_changed

    @contextmanager
    def reloading(self) -> Iterator[Registry]:
        """The same plugins, of the files as they are now; where this fails, all stays as it was."""
        with self._files.reloading() as files:
            yield Registry(self._given, self._installed, files)

    def names(self) -> list[str]:
        """All plugins that are here without being named as `module:Class`."""
        return sorted({*self._classes, *self._installed})

    def entry_point(self, name: str) -> str:
        """Where an installed plugin is, as `module:Class`; nothing for others."""
        return self._installed[name].value if name in self._installed else ""

    def find(self, name: str) -> type[Plugin]:
        """The class of the plugin; ConfigError says why there is none."""
        if name not in self._classes:
            self._classes[name] = self._import(name)
        return self._classes[name]

    def args_type(self, name: str) -> type[PluginArgs] | None:
        """The struct that the plugin's arguments must fit; None for one that takes none."""
        if name not in self._args_types:
            try:
                found = args_of(self.find(name))
            except (NameError, TypeError) as error:
                raise ConfigError(
                    f'"{name}" has args of an unknown type: {error}', stage="framework"
                ) from None
            self._args_types[name] = None if found is PluginArgs else found
        return self._args_types[name]

    def read_args(self, plugin: str, raw: Any, path: str) -> ReadArgs | None:
        try:
            kind = self.args_type(plugin)
        except ConfigError:
            return None  # Whoever enables it hears that it does not exist.
        return kind.read(plugin, raw, path) if kind else None

    def extends(self, name: str, point: str) -> bool:
        plugin = self.find(name)
        return overrides(plugin, *METHODS_OF_POINT[point])

    def _import(self, name: str) -> type[Plugin]:
        entry = self._installed.get(name)
        if entry is None and ":" not in name:
            raise ConfigError(f'"{name}" does not exist', stage="framework")
        try:
            found = entry.load() if entry else self._attribute(name)
        except BaseException as error:
            raise_interrupt(error)
            raise ConfigError(f'"{name}" cannot be imported: {_text(error)}', stage="framework") from error
        if not (isinstance(found, type) and issubclass(found, Plugin)):
            raise ConfigError(f'"{name}" is not a class derived from stowplan.Plugin', stage="framework")
        return check_plugin(found)

    def _attribute(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        self._files.follow(module)
        return found


def _text(error: BaseException) -> str:
    """An ImportError says all by itself; of others the type is needed, too."""
    return str(error) if isinstance(error, (ImportError, AttributeError)) else describe(error)
