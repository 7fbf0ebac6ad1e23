"""Plugins in files: folders whose files need no installation, and modules that are loaded anew when saved.

A folder's files are modules by their names and may import each other. When one of them changes, all of the
folder are executed anew; a module named in a configuration as `module:Class` is executed anew alone. Either
all of the new ones take their places in `sys.modules`, or the old ones stay.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import Any

from stowplan.errors import ConfigError
from stowplan.framework.answers import describe, raise_interrupt, short_path
from stowplan.framework.plugin import Plugin
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
                self.classes = self._found()

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
            fresh.classes = fresh._found()
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

    def _found(self) -> dict[str, type[Plugin]]:
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


@contextmanager
def replacing(files: Mapping[str, Path]) -> Iterator[None]:
    """Executes these files as modules of those names; if it fails, here or later, the old ones come back."""
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

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
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
    """The folder's files with plugins; their tests may stand beside them."""
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
