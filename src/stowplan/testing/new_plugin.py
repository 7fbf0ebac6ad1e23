"""Writes a new plugin: its file, its test, its configuration, and an example that it decides."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from stowplan.errors import InputError
from stowplan.framework.registry import Registry

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def write_plugin(name: str, folder: Path) -> list[Path]:
    """The files that were written. None is, where the name will not do or one of them is there already."""
    module = _WORD_ENDS.sub("_", name).lower()
    if fault := _name_fault(name, module):
        raise InputError(fault, what=f"plugin {name!r}")
    words = {"Name": name, "module": module, "kebab": module.replace("_", "-")}
    targets = {
        folder / f"{module}.py": "plugin.py.txt",
        folder / f"test_{module}.py": "test_plugin.py.txt",
        folder / "scheduler.yaml": "scheduler.yaml.txt",
        folder / "example.yaml": "example.yaml.txt",
    }
    for path in targets:
        if path.exists():
            raise InputError("already exists; choose another folder with --dir", where=str(path))
    templates = files("stowplan.testing").joinpath("template")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in targets.items():
            path.write_text(Template(templates.joinpath(template).read_text()).substitute(words))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from None
    return list(targets)


def _name_fault(name: str, module: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]{0,62}", name):
        words = re.findall(r"[A-Za-z][A-Za-z0-9]*", name)
        better = "".join(word[0].upper() + word[1:] for word in words) or "GreenNodes"
        return f"is not a class name; use CapWords, such as {better}"
    if name == "Plugin" or name in Registry.installed().names():
        return "is the name of an installed plugin; choose another name"
    if module in sys.stdlib_module_names or find_spec(module):
        return f"would be written to {module}.py, but a module {module} already exists; choose another name"
    return ""
