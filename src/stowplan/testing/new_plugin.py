"""Writes a new plugin: its file, its test, its configuration, an example that it decides, and manifests."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from stowplan import framework
from stowplan.deploy.manifests import custom_resource_definitions, manifests
from stowplan.deploy.setup import Values, read_setup
from stowplan.deploy.template import as_yaml
from stowplan.errors import InputError
from stowplan.framework.registry import Registry

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
IMPORTED = ("ClassVar", "Iterator", "Literal")
"""What the templates import besides the names of the plugin API."""


def write_plugin(name: str, folder: Path, kind: str = "") -> list[Path]:
    """Write a plugin that reads a label or, if a `kind` is given, a custom resource of that kind.

    Returns the files that were written. None is if a name is invalid or a file exists; a README.md is kept.
    """
    module = _WORD_ENDS.sub("_", name).lower()
    if fault := _name_fault(name, module):
        raise InputError(fault, what=f"plugin {name!r}")
    if kind and (fault := _class_name_fault(kind) or ("is the plugin's name, too" if kind == name else "")):
        raise InputError(fault, what=f"kind {kind!r}")
    prefix = "kind_" if kind else ""
    templates = {
        f"{module}.py": f"{prefix}plugin.py.txt",
        f"test_{module}.py": f"{prefix}test_plugin.py.txt",
        "scheduler.yaml": f"{prefix}scheduler.yaml.txt",
        "example.yaml": f"{prefix}example.yaml.txt",
    }
    generated = ["manifests.yaml", *(["crd.yaml"] if kind else [])]
    for path in (folder / each for each in (*templates, *generated)):
        if path.exists():
            raise InputError("already exists; choose another folder with --dir", where=str(path))
    if not (folder / "README.md").exists():
        templates["README.md"] = "README.md.txt"
    words = _words(name, module, kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in templates.items():
            text = files("stowplan.testing").joinpath("template", template).read_text()
            (folder / file).write_text(Template(text).substitute(words))
        setup = read_setup(folder / "scheduler.yaml", [folder])
        values = Values(image=words["image"], name=words["kebab"], namespace=words["kebab"])
        (folder / "manifests.yaml").write_text(as_yaml(manifests(setup, values)))
        if kind:
            (folder / "crd.yaml").write_text(as_yaml(custom_resource_definitions(setup)))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from None
    return [folder / each for each in (*templates, *generated)]


def _words(name: str, module: str, kind: str) -> dict[str, str]:
    """What the templates leave open."""
    rows = [
        (f"{module}.py", "the plugin"),
        (f"test_{module}.py", "its tests"),
        ("scheduler.yaml", "a configuration that enables it"),
        ("example.yaml", "three nodes and a pod to try it on"),
        ("manifests.yaml", "what `kubectl apply` needs to run it in a cluster"),
    ]
    if kind:
        rows.append(("crd.yaml", f"the CustomResourceDefinition of {kind}"))
    return {
        "Name": name,
        "module": module,
        "kebab": module.replace("_", "-"),
        "Kind": kind,
        "snake_kind": _WORD_ENDS.sub("_", kind).lower(),
        "plural": f"{kind.lower()}s",
        "source": kind or f"label `{module.replace('_', '-')}`",
        "files": "\n".join(f"| `{file}` | {what} |" for file, what in rows),
        "apply_crd": "kubectl apply -f crd.yaml\n" if kind else "",
        "image": f"registry.example/stowplan:{version('stowplan')}",
    }


def _class_name_fault(name: str) -> str:
    if keyword.iskeyword(name) or name in IMPORTED or hasattr(framework, name):
        return "is a name that plugins import or that Python reserves; choose another name"
    if re.fullmatch(r"[A-Z][A-Za-z0-9]{0,61}", name):
        return ""
    plain = "".join(each for each in unicodedata.normalize("NFKD", name) if not unicodedata.combining(each))
    words = re.findall(r"[A-Za-z][A-Za-z0-9]*", plain)
    better = "".join(word[0].upper() + word[1:] for word in words) or "GreenNodes"
    return f"is not a class name; use CapWords, such as {better}"


def _name_fault(name: str, module: str) -> str:
    if fault := _class_name_fault(name):
        return fault
    if name in Registry.installed().names():
        return "is the name of an installed plugin; choose another name"
    if module in sys.stdlib_module_names or find_spec(module):
        return f"would be written to {module}.py, but a module {module} already exists; choose another name"
    return ""
