"""`stowplan plugin`: create, list and check plugins."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from stowplan.cli.options import OUTPUT, PLUGIN_DIRS
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_audit import (
    check_config,
    check_files,
    check_folder,
    check_name_in,
)
from stowplan.framework.plugin_check import Argument, Fault, PluginFacts, facts_of
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.testing.new_plugin import write_plugin


@click.group()
def plugin() -> None:
    """Create, list and check plugins."""


@plugin.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder to write to; created if it does not exist.",
)
@click.option(
    "--kind", default="", help="Custom resource that the plugin reads, such as NodeUse (default: a label)."
)
def new(name: str, folder: Path, kind: str) -> None:
    """Create a plugin with a README, a test, a configuration, an example and manifests.

    NAME is the name of its class, such as GreenNodes. With --kind, its CustomResourceDefinition is written
    too. Existing files are not overwritten.
    """
    for path in write_plugin(name, folder, kind):
        click.echo(f"wrote {path}")


@plugin.command(name="list")
@PLUGIN_DIRS
@click.option(
    "--config", type=click.Path(path_type=Path), help="List only the plugins that this configuration uses."
)
@OUTPUT
def list_plugins(plugin_dirs: tuple[Path, ...], config: Path | None, output: str) -> None:
    """List the available plugins.

    For each: its origin, its extension points, its arguments with types and defaults, and the kinds it
    watches. With -o json, each is a JSON object on a line of its own.
    """
    registry = Registry.installed(plugin_dirs)
    for number, facts in enumerate(_facts(registry, config)):
        if output == "json":
            click.echo(json.dumps(msgspec.to_builtins(facts)))
        else:
            click.echo(("\n" if number else "") + "\n".join(_lines(facts)))


@plugin.command()
@click.argument("plugins", metavar="[PLUGIN]...", nargs=-1)
@PLUGIN_DIRS
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Check the plugins of this configuration and their arguments. Repeatable.",
)
def check(plugins: tuple[str, ...], plugin_dirs: tuple[Path, ...], configs: tuple[Path, ...]) -> None:
    """Check plugins for errors before they run.

    PLUGIN is a file, a folder, a name, or module:Class. Each error is printed on a line with its file and
    line number, and the exit status is 1.
    """
    if not (plugins or plugin_dirs or configs):
        raise click.UsageError("missing PLUGIN, --plugin-dir or --config")
    files = [Path(each) for each in plugins if each.endswith(".py")]
    folders = [Path(each) for each in plugins if Path(each).is_dir()]
    names = [each for each in plugins if Path(each) not in (*files, *folders)]
    checked = [check_files(files), *map(check_folder, (*folders, *plugin_dirs))]
    classes: dict[str, type[Plugin]] = {}
    for each in checked:
        classes |= each.classes
    registry = Registry.installed(classes=classes)
    faults = [fault for each in checked for fault in each.faults]
    faults += [fault for name in names for fault in check_name_in(registry, name)]
    has_all = not any(each.unread for each in checked)
    faults += [fault for config in configs for fault in check_config(config, registry, has_all=has_all)]
    _report(faults)
    if classes:
        click.echo("Types are not checked; run mypy --strict on your files for that.", err=True)


def _report(faults: list[Fault]) -> None:
    for fault in dict.fromkeys(faults):
        click.echo(str(fault))
    if faults:
        sys.exit(1)
    click.echo("no errors found")


def _facts(registry: Registry, config: Path | None) -> Iterator[PluginFacts]:
    names = registry.names()
    if config is not None:
        try:
            profiles = resolve_profiles(load(config, registry).config, registry)
        except ConfigError as error:
            raise ConfigError(error.message, stage=error.stage, where=error.where or str(config)) from None
        names = sorted({name for profile in profiles for name in profile.classes})
    for name in names:
        yield facts_of(name, registry.find(name), registry.entry_point(name))


def _lines(facts: PluginFacts) -> Iterator[str]:
    yield f"{facts.name}  {facts.entry_point or facts.origin}"
    if facts.says:
        yield f"  {facts.says}"
    yield f"  points: {', '.join(facts.points) or 'none'}"
    for argument in facts.arguments:
        yield f"  argument {_argument(argument)}"
    for kind in facts.watches:
        yield f"  watches {kind}"
    if facts.has_background_work:
        yield "  runs a background task"


def _argument(argument: Argument) -> str:
    if argument.required:
        return f"{argument.name}: {argument.type}, required"
    return f"{argument.name}: {argument.type} = {json.dumps(argument.default, ensure_ascii=False)}"
