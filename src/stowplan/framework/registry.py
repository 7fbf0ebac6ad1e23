"""Plugins by the name that a configuration gives them, and the files that they are loaded from.

A folder's files are modules by their names and may import each other. When one of them changes, all files of
the folder are executed again; a module that a configuration names as `module:Class` is executed again alone.
Either all new modules take their places in `sys.modules`, or the old ones stay.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from weakref import WeakKeyDictionary

from stowplan.config.load import ReadArgs
from stowplan.errors import ConfigError
from stowplan.framework.answers import describe, raise_interrupt, short_path
from stowplan.framework.args import PluginArgs, args_of
from stowplan.framework.plugin import METHODS_OF_POINT, Plugin, overrides
from stowplan.framework.plugin_check import check_plugin

Stamp = tuple[int, int, int]
"""Tells one content of a file from the next: when it was written, its size and its number on the disk."""


class PluginFiles:
    """Folders of plugins, and modules that were imported by name; it notices when their files change."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = tuple(folders)
        self.classes: dict[str, type[Plugin]] = {}
        """The plugins of the folders, by name."""
        self._modules: dict[str, Path] = {}
        self._seen = self._stamps()
        if self.folders:
            with replacing(self._folder_files()):
                self.classes = self._find_classes()

    def follow(self, module: str) -> None:
        """From now on a change of this module's file is noticed."""
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and file.endswith(".py") and Path(file) not in self._seen:
            self._modules[module] = Path(file)
            self._seen[Path(file)] = stamp_of(Path(file))

    @property
    def has_changed(self) -> bool:
        return self._stamps() != self._seen

    @contextmanager
    def reloading(self) -> Iterator[PluginFiles]:
        """The files as they are now. If this fails, or what is done with them, the old modules stay.

        Either way the change is not noticed again.
        """
        now, before = self._stamps(), self._seen
        self._seen = now
        changed = {path for path in {*now, *before} if now.get(path) != before.get(path)}
        files = {name: path for name, path in self._modules.items() if path in changed}
        if any(path.parent in self.folders for path in changed):
            files |= self._folder_files()
        fresh = PluginFiles()
        fresh.folders, fresh._modules, fresh._seen = self.folders, dict(self._modules), now
        with replacing(files):
            fresh.classes = fresh._find_classes()
            yield fresh

    def _stamps(self) -> dict[Path, Stamp | None]:
        files = list(self._modules.values())
        for folder in self.folders:
            with suppress(ConfigError):  # who loads the folder hears of it
                files += files_in(folder)
        return {path: stamp_of(path) for path in files}

    def _folder_files(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            for path in files_in(folder):
                check_name(path, found)
                found[path.stem] = path
        return found

    def _find_classes(self) -> dict[str, type[Plugin]]:
        found: dict[str, type[Plugin]] = {}
        for name, path in self._folder_files().items():
            for plugin in plugins_in(sys.modules[name]):
                known = found.get(plugin.__name__)
                if known is not None:
                    other = Path(sys.modules[known.__module__].__file__ or "")
                    text = f'"{plugin.__name__}" is the name of a plugin in {other}; rename one of them'
                    raise ConfigError(text, stage="framework", where=str(path))
                found[plugin.__name__] = check_plugin(plugin)
        return found


def plugins_in(module: ModuleType) -> list[type[Plugin]]:
    """The plugins that a module defines; a name that begins with _ is for those it derives others from."""
    return [
        found
        for name, found in vars(module).items()
        if isinstance(found, type)
        and issubclass(found, Plugin)
        and found.__module__ == module.__name__
        and found.__name__ == name
        and not name.startswith("_")
    ]


_REPLACING = threading.RLock()


@contextmanager
def replacing(files: Mapping[str, Path]) -> Iterator[None]:
    """Executes these files as modules of those names; if it fails, here or later, the old ones come back."""
    with _REPLACING:  # `stowplan mcp` answers several questions at a time
        before = {name: sys.modules.pop(name, None) for name in files}
        known = dict(_FINDER.files)
        _FINDER.files.update(files)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        try:
            for name, path in files.items():
                import_file(name, path)
            yield
        except BaseException:
            _FINDER.files = known
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module
            raise


def import_file(name: str, path: Path) -> ModuleType:
    """Imports a module; a ConfigError says in which line of which file it fails."""
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise_interrupt(error)
        text = f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else describe(error)
        raise ConfigError(text, stage="framework", where=_place(error, path)) from error


def stamp_of(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class _Uncached(SourceFileLoader):
    """Without bytecode on disk: that knows the time of a change only to the second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder(MetaPathFinder):
    """Finds the modules that were loaded from files, also when they import each other."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        # Absolute, but not resolved: logs and tracebacks find plugins by file, and a ConfigMap's are links.
        file = file.absolute()
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(
            fullname, file, loader=_Uncached(fullname, str(file)), submodule_search_locations=folders
        )


_FINDER = _Finder()


def files_in(folder: Path) -> list[Path]:
    """The folder's files with plugins; their tests may be in the same folder."""
    try:
        files = [path for path in folder.iterdir() if path.suffix == ".py" and not path.is_dir()]
        return sorted(path for path in files if not path.name.startswith(("test_", "conftest.")))
    except OSError as error:
        text = f"the folder of plugins cannot be read: {error.strerror}"
        raise ConfigError(text, stage="framework", where=str(folder)) from None


def check_name(path: Path, found: Mapping[str, Path]) -> None:
    name = path.stem
    fault = ""
    if not name.isidentifier():
        fault = "is not a name that Python can import; use letters, digits and _ alone"
    elif name in found:
        fault = f"has the same name as {found[name]}; rename one of them"
    elif name in sys.stdlib_module_names or _is_taken(name, path):
        fault = "has the name of a module that is in use already; rename the file"
    if fault:
        raise ConfigError(fault, stage="framework", where=str(path))


def _is_taken(name: str, path: Path) -> bool:
    """By a module of another file; a test may have imported this very one."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) or ""
    return module is not None and name not in _FINDER.files and Path(file).resolve() != path.resolve()


def _place(error: BaseException, path: Path) -> str:
    """`file:line`, of the file at fault: the deepest of ours that the traceback shows."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short_path(error.filename)}:{error.lineno}"
    ours = {str(file.absolute()) for file in (*_FINDER.files.values(), path)}
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_code.co_filename in ours
    ]
    return f"{short_path(lines[-1][0])}:{lines[-1][1]}" if lines else short_path(str(path))


ENTRY_POINTS = "stowplan.plugins"


@lru_cache(maxsize=4)
def _find_installed(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Kept by `sys.path`: looking through all installed packages takes longer than building a profile."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


_POINTS: WeakKeyDictionary[type[Plugin], frozenset[str]] = WeakKeyDictionary()
"""The extension points that a class takes part in: a profile asks hundreds of times."""


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
        return cls(classes or {}, _find_installed(tuple(sys.path)), files)

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
        """The names of the plugins that are installed or in a plugin folder."""
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

    def read_args(self, plugin: str, raw: object, path: str) -> ReadArgs | None:
        try:
            kind = self.args_type(plugin)
        except ConfigError:
            return None  # Whoever enables it hears that it does not exist.
        return kind.read(plugin, raw, path) if kind else None

    def extends(self, name: str, point: str) -> bool:
        plugin = self.find(name)
        points = _POINTS.get(plugin)
        if points is None:
            points = _POINTS[plugin] = frozenset(
                each for each, methods in METHODS_OF_POINT.items() if overrides(plugin, *methods)
            )
        return point in points

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

    def _attribute(self, name: str) -> object:
        module, _, attribute = name.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        self._files.follow(module)
        return found


def _text(error: BaseException) -> str:
    """An ImportError says all by itself; of others the type is needed, too."""
    return str(error) if isinstance(error, (ImportError, AttributeError)) else describe(error)
