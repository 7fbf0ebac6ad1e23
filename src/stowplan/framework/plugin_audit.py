"""Finds everything that is wrong with plugins before they run: in files, folders and configurations."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import getsourcefile
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from stowplan.config import EXTENSION_POINTS, document, load
from stowplan.config.document import line_of
from stowplan.config.types import DEFAULT_PLUGINS
from stowplan.errors import ConfigError, InputError
from stowplan.framework.answers import short_path
from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_check import Fault, fault_at, faults_of, repeated_definitions
from stowplan.framework.registry import Registry, check_name, files_in, plugins_in, replacing
from stowplan.framework.resolve import resolve_profiles

_PATH = re.compile(r"profiles\[\d+\][\w.\[\]]*")
_DEFAULTS = frozenset(name for name, _ in DEFAULT_PLUGINS)


class Checked(NamedTuple):
    """The plugins that could be loaded, by name, and everything that is wrong."""

    classes: dict[str, type[Plugin]]
    faults: list[Fault]
    unread: list[Path]
    """Files that could not be loaded, whatever plugins they define."""


def check_folder(folder: Path) -> Checked:
    """All files of a folder of plugins; a fault of one does not hide those of the others."""
    return check_files(files_in(folder))


def check_files(files: Sequence[Path]) -> Checked:
    """Files of plugins, which may import modules in the same folder."""
    checked, seen = Checked({}, [], []), dict[str, Path]()
    installed = Registry.installed()
    for path in files:
        try:
            check_name(path, seen)
            seen[path.stem] = path
            with _importable(path.parent), replacing({path.stem: path.resolve()}):
                plugins = plugins_in(sys.modules[path.stem])
        except ConfigError as error:
            checked.faults.append(_fault(error))
            checked.unread.append(path)
            continue
        checked.faults.extend(repeated_definitions(path))
        if not plugins:
            checked.faults.append(
                Fault(short_path(str(path)), 0, "defines no class derived from stowplan.Plugin")
            )
        for plugin in plugins:
            checked.faults.extend(_same_name(plugin, checked.classes, installed) + faults_of(plugin))
            checked.classes.setdefault(plugin.__name__, plugin)
    return checked


def check_name_in(registry: Registry, name: str) -> list[Fault]:
    """A plugin as a configuration names it."""
    try:
        return faults_of(registry.find(name))
    except ConfigError as error:
        return [_fault(error) if error.where else _fault_of_import(name, error)]


def check_config(file: Path, registry: Registry, *, has_all: bool = True) -> list[Fault]:
    """The plugins that a configuration names, and the arguments that it gives them.

    Without `has_all`, a plugin that is not found may be in a file that could not be loaded, and is ignored.
    """
    try:
        text = file.read_bytes()
        plain = document.parse(text)
    except (OSError, ConfigError) as error:
        line = line_of(text, "") if isinstance(error, ConfigError) else 0
        return [
            Fault(
                short_path(str(file)), line, error.message if isinstance(error, ConfigError) else str(error)
            )
        ]
    faults = [
        Fault(short_path(str(file)), line_of(text, path), f"{path}: {said}")
        for path, said in _wrong_parts(plain, registry, has_all)
    ]
    if faults or not has_all:
        return faults
    try:
        profiles = resolve_profiles(load(file, registry).config, registry)
    except ConfigError as error:
        place = _PATH.search(error.message)
        return [Fault(short_path(str(file)), line_of(text, place.group()) if place else 0, error.message)]
    used = {name: kind for profile in profiles for name, kind in profile.classes.items()}
    return [fault for kind in dict.fromkeys(used.values()) for fault in faults_of(kind)]


def find_plugin(name: str, plugin_dirs: Sequence[Path] = ()) -> type[Plugin]:
    """A plugin by name, as `module:Class`, as a file with one plugin, or as `file.py:Class`."""
    file, _, wanted = name.partition(":")
    if not file.endswith(".py"):
        return Registry.installed(plugin_dirs).find(name)
    checked = check_files([Path(file)])
    for fault in checked.faults:
        raise InputError(fault.text, where=f"{fault.file}:{fault.line}")
    if wanted in checked.classes or (not wanted and len(checked.classes) == 1):
        return checked.classes[wanted or next(iter(checked.classes))]
    raise InputError(
        f"defines several plugins; name one of them: {file}:{f', {file}:'.join(checked.classes)}", where=file
    )


def _wrong_parts(plain: object, registry: Registry, has_all: bool) -> Iterator[tuple[str, str]]:
    """What is wrong in a configuration, by path."""
    for index, profile in _items(plain, "profiles"):
        configured = {_get(entry, "name") for _, entry in _items(profile, "pluginConfig")}
        for path, name in _enabled_plugins(profile, f"profiles[{index}]"):
            if said := _why_not(name, registry):
                if has_all or ":" in name:
                    yield f"{path}.name", said
            elif name not in configured and (kind := registry.args_type(name)) is not None:
                configured.add(name)  # each is reported once
                read = kind.read(name, None, "args")
                for fault in (*read.malformed, *read.faults):
                    yield f"{path}.name", f'initializing plugin "{name}": {fault}'
        for path, said in _wrong_args(profile, f"profiles[{index}]", registry):
            if has_all or not path.endswith(".name"):
                yield path, said


def _enabled_plugins(profile: object, path: str) -> Iterator[tuple[str, str]]:
    """The path and the name of each plugin that a profile enables."""
    for point in ("multiPoint", *EXTENSION_POINTS):
        for place, entry in _items(_get(_get(profile, "plugins"), point), "enabled"):
            if isinstance(name := _get(entry, "name"), str):
                yield f"{path}.plugins.{point}.enabled[{place}]", name


def _why_not(name: str, registry: Registry) -> str:
    try:
        registry.find(name)
    except ConfigError as error:
        close = get_close_matches(name, registry.names(), 1)
        return f'{error.message}; did you mean "{close[0]}"?' if close else error.message
    return ""


def _wrong_args(profile: object, profile_path: str, registry: Registry) -> Iterator[tuple[str, str]]:
    for place, entry in _items(profile, "pluginConfig"):
        name, args = _get(entry, "name"), _get(entry, "args")
        path = f"{profile_path}.pluginConfig[{place}].args"
        try:
            kind = registry.args_type(str(name))
        except ConfigError as error:
            yield path.removesuffix("args") + "name", error.message
            continue
        if kind is None:
            if args and name not in _DEFAULTS:  # parity: theirs are read by nobody, and accepted
                yield path, f"{name} takes no arguments"
            continue
        read = kind.read(str(name), args, path)
        yield from ((path, said) for said in read.malformed)
        for said in read.faults:
            where, _, what = said.partition(": ")
            yield where, what


def _same_name(plugin: type[Plugin], known: dict[str, type[Plugin]], installed: Registry) -> list[Fault]:
    name = plugin.__name__
    if name in known:
        other = short_path(sys.modules[known[name].__module__].__file__ or "")
        return [fault_at(plugin, "", f"{name} is also the name of a plugin in {other}; rename one of them")]
    if name in installed.names() and getsourcefile(installed.find(name)) != getsourcefile(plugin):
        return [fault_at(plugin, "", f"{name} is also the name of an installed plugin; rename it")]
    return []


def _fault(error: ConfigError, cause: BaseException | None = None) -> Fault:
    """From an error whose `where` is a file, or a file and a line; `cause` if it has none of its own."""
    file, _, line = error.where.rpartition(":")
    if not line.isdigit():
        file, line = error.where, "0"
    text = error.message
    if isinstance(cause or error.__cause__, ModuleNotFoundError):
        text += "; install it where stowplan is installed, or put it beside this file"
    return Fault(short_path(str(file)), int(line), text)


def _fault_of_import(name: str, error: ConfigError) -> Fault:
    """Report a plugin that cannot be loaded by name, at the failing line of its module if there is one."""
    cause = error.__cause__
    if isinstance(cause, SyntaxError) and cause.filename:
        return Fault(short_path(cause.filename), cause.lineno or 0, f"SyntaxError: {cause.msg}")
    try:
        spec = find_spec(name.partition(":")[0]) if cause else None
    except (ImportError, ValueError):
        spec = None
    frames = walk_tb(cause.__traceback__) if cause else ()
    lines = [line for frame, line in frames if spec and frame.f_code.co_filename == spec.origin]
    where = f"{spec.origin}:{lines[-1]}" if spec and lines else name
    text = f"{type(cause).__name__}: {cause}" if lines else error.message
    return _fault(ConfigError(text, where=where), cause) if lines else Fault(name, 0, text)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules in the folder can be imported meanwhile."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def _items(plain: object, name: str) -> list[tuple[int, Any]]:
    found = _get(plain, name)
    return list(enumerate(found)) if isinstance(found, list) else []


def _get(plain: object, name: str) -> object:
    return plain.get(name) if isinstance(plain, dict) else None
