"""`stowplan config`: show, check, convert and resolve scheduler configurations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from stowplan.cli.options import PLUGIN_DIRS
from stowplan.cli.terminal import paint
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.document import parse_json
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import ResolvedProfile, resolve_profiles

FILE = click.argument("file", type=click.Path(path_type=Path))
POLICY = click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy, or ConfigMap with a Policy, that an older configuration refers to.",
)
TOP_LEVEL = (
    "clientConnection",
    "enableContentionProfiling",
    "enableProfiling",
    "extenders",
    "leaderElection",
    "parallelism",
    "percentageOfNodesToScore",
    "podInitialBackoffSeconds",
    "podMaxBackoffSeconds",
)


@click.group()
def config() -> None:
    """Show, check and convert scheduler configurations.

    FILE is a KubeSchedulerConfiguration of any version from v1alpha1 to v1, or a legacy Policy, as YAML or
    JSON. It may also be a ConfigMap that contains one.
    """


@config.command()
@FILE
@POLICY
@PLUGIN_DIRS
def show(file: Path, policy: Path | None, plugin_dirs: tuple[Path, ...]) -> None:
    """Show the plugins of each profile by extension point.

    Plugins are listed in the order in which they run, with their weights and arguments.
    """
    found, profiles = _resolve(file, policy, plugin_dirs)
    click.echo(paint("\n\n".join("\n".join(_profile_lines(profile)) for profile in profiles)))
    for extender in found.extenders:
        verbs = (extender.filter_verb, extender.prioritize_verb, extender.preempt_verb, extender.bind_verb)
        click.echo(f"\nextender {extender.url_prefix}: {', '.join(filter(None, verbs))}")


@config.command()
@FILE
@POLICY
@PLUGIN_DIRS
def check(file: Path, policy: Path | None, plugin_dirs: tuple[Path, ...]) -> None:
    """Check a configuration for errors.

    Print nothing and exit with status 0 if it is valid.
    """
    _resolve(file, policy, plugin_dirs)


@config.command()
@FILE
@POLICY
@PLUGIN_DIRS
def convert(file: Path, policy: Path | None, plugin_dirs: tuple[Path, ...]) -> None:
    """Convert a configuration to v1 and print it as YAML."""
    found = _load(file, Registry.installed(plugin_dirs), policy)
    click.echo(yaml.safe_dump(found.without_defaults(), sort_keys=False, allow_unicode=True), nl=False)


@config.command()
@POLICY
def resolve(policy: Path | None) -> None:
    """Resolve configurations read from standard input, for use by programs.

    Each line of input is a JSON object with "name" and "config". Each line of output is a JSON object with
    the plugins and arguments of the profiles, or with the stage at which the configuration was rejected and
    the error. The exit status is 1 if a line was not valid JSON.
    """
    registry = Registry.installed()
    unreadable = False
    for line in filter(bytes.strip, sys.stdin.buffer):
        try:
            name, plain = _case(line)
        except ConfigError as error:
            unreadable = True
            answer = {"name": None, "stage": error.stage, "error": error.message}
        else:
            answer = {"name": name, **_answer(name, plain, registry, policy)}
        click.echo(json.dumps(answer, ensure_ascii=False))
    if unreadable:
        raise SystemExit(1)


def _resolve(
    file: Path, policy: Path | None, plugin_dirs: tuple[Path, ...]
) -> tuple[KubeSchedulerConfiguration, list[ResolvedProfile]]:
    registry = Registry.installed(plugin_dirs)
    found = _load(file, registry, policy)
    try:
        return found, resolve_profiles(found, registry)
    except ConfigError as error:
        raise ConfigError(error.message, stage=error.stage, where=str(file)) from None


def _load(file: Path, registry: Registry, policy: Path | None) -> KubeSchedulerConfiguration:
    loaded = load(file, registry, policy=policy)
    for warning in loaded.warnings:
        click.echo(f"{file}: {warning}", err=True)
    return loaded.config


def _case(line: bytes) -> tuple[Any, dict[str, object]]:
    case = parse_json(line)
    if not isinstance(case, dict) or not isinstance(case.get("config"), dict):
        raise ConfigError('expected a JSON object with "name" and "config"')
    return case.get("name"), case["config"]


def _answer(
    name: object, plain: dict[str, object], registry: Registry, policy: Path | None
) -> dict[str, Any]:
    try:
        loaded = load(plain, registry, policy=policy)
        for warning in loaded.warnings:
            click.echo(f"{name}: {warning}", err=True)
        profiles = resolve_profiles(loaded.config, registry)
    except ConfigError as error:
        return {"stage": error.stage, "error": error.message}
    shown = []
    for profile, configured in zip(profiles, loaded.config.profiles, strict=True):
        answer = profile.as_json()
        if configured.percentage_of_nodes_to_score is not None:
            answer["percentageOfNodesToScore"] = configured.percentage_of_nodes_to_score
        shown.append(answer)
    return {"stage": "ok", "profiles": shown, "topLevel": _top_level(loaded.config)}


def _top_level(found: KubeSchedulerConfiguration) -> dict[str, object]:
    plain = found.as_json()
    return {name: plain[name] for name in TOP_LEVEL if name != "extenders" or plain[name]}


def _profile_lines(profile: ResolvedProfile) -> Iterator[str]:
    yield f"profile {profile.scheduler_name}"
    if profile.percentage_of_nodes_to_score:
        yield f"scores {profile.percentage_of_nodes_to_score}% of the nodes"
    yield ""
    rows = [
        (point if index == 0 else "", name, str(weight) if point == "score" else "")
        for point, entries in profile.points.items()
        for index, (name, weight) in enumerate(entries)
    ]
    yield from _table([("POINT", "PLUGIN", "WEIGHT"), *rows])
    yield ""
    yield from _table([("PLUGIN", "ARGUMENTS"), *_argument_rows(profile.as_json()["args"])])


def _argument_rows(arguments: dict[str, dict[str, object]]) -> Iterator[tuple[str, str]]:
    for plugin, args in arguments.items():
        first = plugin
        for field, value in args.items():
            if field not in ("apiVersion", "kind"):
                yield first, f"{field}: {value if isinstance(value, str) else json.dumps(value)}"
                first = ""


def _table(rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
