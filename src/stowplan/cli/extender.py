"""`stowplan extender`: serve plugins or functions to kube-scheduler with its extender protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml

from stowplan.cli.options import PLUGIN_DIRS, log_level
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import InputError
from stowplan.extender.functions import load_functions, with_settings
from stowplan.extender.options import (
    PATHS,
    VERBS,
    ExtenderOptions,
    StanzaOptions,
    check_paths,
    configuration,
    extenders,
    policy,
)
from stowplan.extender.service import run
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.log import configure, warn

FILE = click.Path(exists=True, dir_okay=False)


@click.group(invoke_without_command=True)
@click.option("--config", type=FILE, help="KubeSchedulerConfiguration with the profiles to serve.")
@PLUGIN_DIRS
@click.option(
    "--functions",
    "sources",
    metavar="FILE|MODULE",
    multiple=True,
    help="Serve the decorated functions of this file or module. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    metavar="FUNCTION.OPTION=VALUE",
    multiple=True,
    help="Set an option of a function. Repeatable.",
)
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice(VERBS),
    help="Serve only this verb (default: all). Repeatable.",
)
@click.option("--filter-path", default=PATHS["filter"], show_default=True, help="Path of the filter verb.")
@click.option(
    "--prioritize-path", default=PATHS["prioritize"], show_default=True, help="Path of the prioritize verb."
)
@click.option("--preempt-path", default=PATHS["preempt"], show_default=True, help="Path of the preempt verb.")
@click.option("--bind-path", default=PATHS["bind"], show_default=True, help="Path of the bind verb.")
@click.option(
    "--scores",
    "max_score",
    type=click.Choice(["10", "100"]),
    default="10",
    show_default=True,
    help="Maximum score: scores range from 0 to this.",
)
@click.option(
    "--kubeconfig",
    type=FILE,
    help="Kubeconfig of the cluster to watch (default: that of --config, or in-cluster).",
)
@click.option(
    "--follow",
    "is_following",
    is_flag=True,
    help="Watch the cluster this runs in, even to serve only functions.",
)
@click.option("--address", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option("--port", default=8888, show_default=True, help="Port to listen on.")
@click.option("--health-port", default=0, help="Also serve health and metrics over plain HTTP on this port.")
@click.option(
    "--time-budget",
    "budget",
    default=4.0,
    show_default=True,
    help="Time limit for an answer, in seconds.",
)
@click.option("--max-body", "mib", default=100, show_default=True, help="Maximum size of a request in MiB.")
@click.option("--tls-cert-file", type=FILE, help="Certificate of the HTTPS server.")
@click.option("--tls-private-key-file", type=FILE, help="Private key of --tls-cert-file.")
@click.option("--client-ca-file", type=FILE, help="Accept only clients with a certificate of this CA.")
@log_level("Log level; 4 logs every answer.")
@click.pass_context
def extender(ctx: click.Context, /, **given: Any) -> None:
    """Serve plugins or functions to kube-scheduler as an extender."""
    registry = Registry.installed(given.pop("plugin_dirs"))
    verbosity, file = given.pop("verbosity"), given.pop("config")
    configure(verbosity=verbosity)
    options = _options(given, _config(file, registry))
    if ctx.invoked_subcommand is None:
        run(options, registry)
    else:
        ctx.obj = (options, registry)


@extender.command("config")
@click.option("--url", required=True, help="URL at which kube-scheduler reaches the extender.")
@click.option("--weight", default=1, show_default=True, help="Weight of the extender's scores.")
@click.option(
    "--managed-resource",
    "managed_resources",
    multiple=True,
    help="Call the extender only for pods that request this resource. Repeatable.",
)
@click.option(
    "--ignored-by-scheduler", is_flag=True, help="Let kube-scheduler ignore these resources itself."
)
@click.option("--ignorable", is_flag=True, help="Schedule without the extender when it fails.")
@click.option(
    "--timeout", default=5.0, show_default=True, help="Seconds that kube-scheduler waits for an answer."
)
@click.option("--ca-file", default="", help="CA certificate that kube-scheduler verifies the extender with.")
@click.option("--cert-file", default="", help="Client certificate of kube-scheduler.")
@click.option("--key-file", default="", help="Private key of --cert-file.")
@click.option(
    "--policy", "is_policy", is_flag=True, help="Print a legacy Policy, for kube-scheduler up to 1.22."
)
@click.pass_obj
def config(obj: tuple[ExtenderOptions, Registry], /, *, is_policy: bool, **given: Any) -> None:
    """Print the configuration that makes kube-scheduler use this extender."""
    options, registry = obj
    profiles = resolve_profiles(options.config, registry) if options.config is not None else []
    check_paths(options, [each.scheduler_name for each in profiles])
    found = list(extenders(options, StanzaOptions(**given), profiles))
    if is_policy:
        click.echo(json.dumps(policy(found), indent=2))
    else:
        click.echo(yaml.safe_dump(configuration(found), sort_keys=False), nl=False)


def _config(file: str | None, registry: Registry) -> KubeSchedulerConfiguration | None:
    if file is None:
        return None
    loaded = load(Path(file), registry)
    for warning in loaded.warnings:
        warn(f"{file}: {warning}")
    return loaded.config


def _options(given: dict[str, Any], config: KubeSchedulerConfiguration | None) -> ExtenderOptions:
    sources, settings, verbs = given.pop("sources"), given.pop("settings"), given.pop("verbs")
    functions = [each for source in sources for each in load_functions(source)]
    if config is None and not functions:
        raise InputError("nothing to serve: use --config to serve plugins, or --functions")
    return ExtenderOptions(
        config=config,
        functions=tuple(with_settings(functions, settings)),
        verbs=verbs,
        paths={verb: given.pop(f"{verb}_path") for verb in VERBS},
        max_score=int(given.pop("max_score")),
        max_body=given.pop("mib") * 2**20,
        **{name: value for name, value in given.items() if value is not None},
    )
