"""`stowplan extender`: our plugins, or plain functions, behind another scheduler's extender protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml

from stowplan.cli.plugin_dirs import PLUGIN_DIRS
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import InputError
from stowplan.extender.functions import load_functions, with_settings
from stowplan.extender.options import PATHS, VERBS, ExtenderOptions, checked_paths
from stowplan.extender.serve import run
from stowplan.extender.stanza import StanzaOptions, configuration, extenders, policy
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.log import configure, warn

FILE = click.Path(exists=True, dir_okay=False)


@click.group(invoke_without_command=True)
@click.option("--config", type=FILE, help="KubeSchedulerConfiguration whose profiles are served.")
@PLUGIN_DIRS
@click.option(
    "--functions",
    "sources",
    metavar="FILE|MODULE",
    multiple=True,
    help="Serve the functions decorated there. May be given again.",
)
@click.option(
    "--set", "settings", metavar="FUNCTION.OPTION=VALUE", multiple=True, help="An option of a function."
)
@click.option(
    "--verb", "verbs", multiple=True, type=click.Choice(VERBS), help="Serve these verbs alone.  [all]"
)
@click.option("--filter-path", default=PATHS["filter"], show_default=True)
@click.option("--prioritize-path", default=PATHS["prioritize"], show_default=True)
@click.option("--preempt-path", default=PATHS["preempt"], show_default=True)
@click.option("--bind-path", default=PATHS["bind"], show_default=True)
@click.option(
    "--scores", "most", type=click.Choice(["10", "100"]), default="10", show_default=True, help="The highest."
)
@click.option("--kubeconfig", type=FILE, help="The cluster to follow.  [that of --config, or the pod's own]")
@click.option(
    "--follow", "is_following", is_flag=True, help="Follow the cluster we run in, also for functions alone."
)
@click.option("--address", default="0.0.0.0", show_default=True)
@click.option("--port", default=8888, show_default=True)
@click.option("--health-port", default=0, help="Health and metrics in plain HTTP, here too.")
@click.option(
    "--time-budget", "budget", default=4.0, show_default=True, help="Seconds for an answer; then it fails."
)
@click.option("--max-body", "mib", default=100, show_default=True, help="MiB that a request may have.")
@click.option("--tls-cert-file", type=FILE)
@click.option("--tls-private-key-file", type=FILE)
@click.option("--client-ca-file", type=FILE, help="Answer only clients with a certificate of this CA.")
@click.option(
    "-v", "--v", "verbosity", default=0, show_default=True, help="How much is logged; 4: every answer."
)
@click.pass_context
def extender(ctx: click.Context, /, **given: Any) -> None:
    """Serve plugins or functions to a kube-scheduler, as its extender."""
    registry = Registry.installed(given.pop("plugin_dirs"))
    verbosity, file = given.pop("verbosity"), given.pop("config")
    configure(verbosity=verbosity)
    options = _options(given, _config(file, registry))
    if ctx.invoked_subcommand is None:
        run(options, registry)
    else:
        ctx.obj = (options, registry)


@extender.command("config")
@click.option("--url", required=True, help="Where kube-scheduler reaches the extender.")
@click.option("--weight", default=1, show_default=True, help="Of the scores.")
@click.option(
    "--managed-resource", "managed_resources", multiple=True, help="Ask only for pods that want it."
)
@click.option("--ignored-by-scheduler", is_flag=True, help="kube-scheduler itself does not count these.")
@click.option("--ignorable", is_flag=True, help="Schedule without the extender where it fails.")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds that kube-scheduler waits.")
@click.option("--ca-file", default="", help="The CA of the extender's certificate.")
@click.option("--cert-file", default="", help="kube-scheduler's own certificate.")
@click.option("--key-file", default="")
@click.option("--policy", "is_policy", is_flag=True, help="The legacy Policy, for kube-scheduler up to 1.22.")
@click.pass_obj
def config(obj: tuple[ExtenderOptions, Registry], /, *, is_policy: bool, **given: Any) -> None:
    """Print what makes kube-scheduler use this extender."""
    options, registry = obj
    profiles = resolve_profiles(options.config, registry) if options.config is not None else []
    checked_paths(options, [each.scheduler_name for each in profiles])
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
        raise InputError("nothing to serve: give --config for plugins, or --functions")
    return ExtenderOptions(
        config=config,
        functions=tuple(with_settings(functions, settings)),
        verbs=verbs,
        paths={verb: given.pop(f"{verb}_path") for verb in VERBS},
        most=int(given.pop("most")),
        max_body=given.pop("mib") * 2**20,
        **{name: value for name, value in given.items() if value is not None},
    )
