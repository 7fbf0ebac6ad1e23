"""`stowplan crd`: print CustomResourceDefinitions for the kinds that plugins declare as structs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click
import yaml

from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.custom import CustomResource
from stowplan.api.group_crds import PUBLISHED
from stowplan.cli.options import PLUGIN_DIRS
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--kind",
    help="Print only the CRD of this kind, singular or plural, and name the kind as given here.",
)
@PLUGIN_DIRS
def crd(names: tuple[str, ...], kind: str | None, plugin_dirs: tuple[Path, ...]) -> None:
    """Print CustomResourceDefinitions for the kinds that plugins declare.

    NAME is a plugin, as named in a configuration, or a subclass of CustomResource as module:Class. For a
    plugin, the CRDs of all kinds that it watches are printed. The kinds of pod groups that other projects
    specify are known by name: podgroups.scheduling.x-k8s.io, elasticquotas.scheduling.x-k8s.io,
    podgroups.scheduling.volcano.sh, queues.scheduling.volcano.sh and hypernodes.topology.volcano.sh.

    With --kind, NAME may be left out: the kind is then looked up in all plugins.

    Pipe the output to `kubectl apply -f -`.
    """
    registry = Registry.installed(plugin_dirs)
    if kind is not None:
        definitions = [_rename_kind(kind, names or _with_crds(registry), registry)]
    elif names:
        found = {
            definition["metadata"]["name"]: definition
            for name in names
            for definition in _definitions(name, registry)
        }
        definitions = list(found.values())
    else:
        raise click.UsageError("Missing argument 'NAME...' or option '--kind'.")
    click.echo(yaml.dump_all(definitions, Dumper=_Dumper, sort_keys=False, explicit_start=True), nl=False)


def _with_crds(registry: Registry) -> tuple[str, ...]:
    plugins = {name: registry.find(name) for name in registry.names()}
    return tuple(name for name, plugin in plugins.items() if any(map(needs_crd, plugin.watches)))


def _rename_kind(kind: str, names: tuple[str, ...], registry: Registry) -> dict[str, object]:
    """The definition of this kind, under the name given: a manifest may spell it in the plural."""
    known: list[str] = []
    for definition in (each for name in names for each in _definitions(name, registry)):
        spec = definition["spec"]
        if kind.lower() in (spec["names"]["kind"].lower(), spec["names"]["plural"]):
            spelled = {**spec["names"], "kind": kind, "listKind": f"{kind}List"}
            return {**definition, "spec": {**spec, "names": spelled}}
        known.append(spec["names"]["kind"])
    raise InputError(f"unknown kind; known: {', '.join(sorted(set(known)))}", what=kind)


def _definitions(name: str, registry: Registry) -> list[dict[str, Any]]:
    return [PUBLISHED[name]] if name in PUBLISHED else [crd_of(kind) for kind in _kinds(name, registry)]


def _kinds(name: str, registry: Registry) -> tuple[type[CustomResource], ...]:
    struct = _struct(name) if ":" in name else None
    if struct is not None:
        return (struct,)
    kinds = tuple(kind for kind in watched_kinds([registry.find(name)]) if needs_crd(kind))
    if not kinds:
        raise InputError("watches no custom resources, so it needs no CRD", what=f"plugin {name}")
    return kinds


def _struct(name: str) -> type[CustomResource] | None:
    """The CustomResource of that name, or None."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, CustomResource) else None


class _Dumper(yaml.CSafeDumper):
    """Writes repeated values out instead of as YAML aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True
