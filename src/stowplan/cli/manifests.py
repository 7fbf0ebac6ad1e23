"""`stowplan manifests`: what brings a scheduler with this configuration into a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stowplan.cli.plugin_dirs import PLUGIN_DIRS
from stowplan.deploy.documents import as_yaml
from stowplan.deploy.manifests import manifests as second_scheduler
from stowplan.deploy.manifests import notes
from stowplan.deploy.options import JOURNAL_SIZE, DeployOptions
from stowplan.deploy.setup import read_setup
from stowplan.deploy.static_pod import beside_static_pod, host_files, static_pod

ONLY_OF_THE_SECOND = ("name", "namespace", "replicas", "service_monitor", "journal_claim")


@click.command()
@click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The scheduler's configuration."
)
@PLUGIN_DIRS
@click.option("--image", default="", help="The image that `make image` has built, as the nodes pull it.")
@click.option("--name", default="stowplan", show_default=True, help="Of all objects, and of the lease.")
@click.option("--namespace", "-n", default="stowplan", show_default=True, help="Where they are.")
@click.option("--replicas", default=2, show_default=True, help="One schedules, the others stand by.")
@click.option("--verbosity", "-v", default=0, show_default=True, help="The scheduler's -v.")
@click.option("--service-monitor", is_flag=True, help="Add a ServiceMonitor, for Prometheus' operator.")
@click.option(
    "--journal",
    is_flag=True,
    help="Keep all decisions on disk, too, in a volume that lasts as long as its pod.",
)
@click.option(
    "--journal-claim", metavar="NAME", default="", help="Keep them in this PersistentVolumeClaim instead."
)
@click.option(
    "--journal-size", metavar="SIZE", default="", help=f"How much they may take; {JOURNAL_SIZE} unless given."
)
@click.option(
    "--static-pod",
    "form",
    flag_value="pod",
    help="Print a static pod instead, to take kube-scheduler's place on a node of the control plane.",
)
@click.option(
    "--beside-static-pod",
    "form",
    flag_value="beside",
    help="Print what `kubectl apply` needs for such a pod instead: CRDs and rights of the plugins, and a "
    "role for people who shall see its page.",
)
@click.pass_context
def manifests(
    ctx: click.Context, /, config: Path, plugin_dirs: tuple[Path, ...], form: str | None, **chosen: Any
) -> None:
    """Print all that `kubectl apply` needs to run a scheduler with this configuration.

    That is a second scheduler beside kube-scheduler, for the pods whose schedulerName is that of a profile.
    """
    if form is not None:
        for option in ONLY_OF_THE_SECOND:
            if ctx.get_parameter_source(option) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"--{option.replace('_', '-')} does not go with a static pod")
    setup = read_setup(config, plugin_dirs)
    if form == "beside":
        click.echo(as_yaml(beside_static_pod(setup)), nl=False)
        return
    options = DeployOptions(**chosen)
    if form == "pod":
        documents, told = [static_pod(setup, options)], [*setup.warnings, *host_files(setup)]
    else:
        documents, told = second_scheduler(setup, options), list(notes(setup))
    for note in told:
        click.echo(f"{config}: {note}", err=True)
    click.echo(as_yaml(documents), nl=False)
