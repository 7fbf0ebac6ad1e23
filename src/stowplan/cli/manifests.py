"""`stowplan manifests`: print the manifests to deploy a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stowplan.cli.options import PLUGIN_DIRS, log_level
from stowplan.deploy.manifests import as_yaml, notes
from stowplan.deploy.manifests import controllers as group_controllers
from stowplan.deploy.manifests import manifests as second_scheduler
from stowplan.deploy.manifests import shadow as beside_live_scheduler
from stowplan.deploy.setup import JOURNAL_SIZE, DeployOptions, read_setup
from stowplan.deploy.static_pod import beside_static_pod, host_files, static_pod

DEFAULT = ParameterSource.DEFAULT
DEPLOYMENT_OPTIONS = ("name", "namespace", "replicas", "service_monitor", "journal_claim", "controllers")


@click.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="KubeSchedulerConfiguration of the scheduler.",
)
@PLUGIN_DIRS
@click.option("--image", default="", help="Image built by `make image`, as the nodes pull it.")
@click.option(
    "--name", default="stowplan", show_default=True, help="Name for the rendered objects and the lease."
)
@click.option(
    "--namespace", "-n", default="stowplan", show_default=True, help="Namespace for the rendered objects."
)
@click.option(
    "--replicas", default=2, show_default=True, help="Number of replicas; one is active, the others stand by."
)
@log_level("Log level of the scheduler.")
@click.option("--service-monitor", is_flag=True, help="Add a ServiceMonitor for the Prometheus operator.")
@click.option(
    "--journal",
    is_flag=True,
    help="Write decisions to a journal in an emptyDir volume, which is lost with its pod.",
)
@click.option(
    "--journal-claim",
    metavar="NAME",
    default="",
    help="Write the journal to this PersistentVolumeClaim instead.",
)
@click.option(
    "--journal-size",
    metavar="SIZE",
    default="",
    help=f"Maximum size of the journal (default: {JOURNAL_SIZE}).",
)
@click.option(
    "--controllers",
    is_flag=True,
    help="Also deploy `stowplan controllers`, which write the status of pod groups, quotas and queues.",
)
@click.option(
    "--shadow",
    "form",
    flag_value="shadow",
    help="Print `stowplan shadow` instead, which compares the configuration with the live scheduler and may "
    "only read the cluster.",
)
@click.option(
    "--static-pod",
    "form",
    flag_value="pod",
    help="Print a static pod that replaces kube-scheduler on a control plane node.",
)
@click.option(
    "--beside-static-pod",
    "form",
    flag_value="beside",
    help="Print the objects that such a static pod needs: CRDs and permissions of the plugins, and a role "
    "for users of its web page.",
)
@click.pass_context
def manifests(
    ctx: click.Context,
    /,
    config: Path,
    plugin_dirs: tuple[Path, ...],
    controllers: bool,
    form: str | None,
    **chosen: Any,
) -> None:
    """Print the manifests to deploy a scheduler with this configuration, for `kubectl apply -f -`.

    By default it runs beside kube-scheduler, for the pods whose schedulerName is that of a profile.
    """
    if form == "shadow" and (controllers or ctx.get_parameter_source("replicas") is not DEFAULT):
        raise click.UsageError("--controllers and --replicas cannot be used with --shadow")
    if form in ("pod", "beside"):
        for option in DEPLOYMENT_OPTIONS:
            if ctx.get_parameter_source(option) is not DEFAULT:
                raise click.UsageError(f"--{option.replace('_', '-')} cannot be used for a static pod")
    setup = read_setup(config, plugin_dirs)
    if form == "beside":
        click.echo(as_yaml(beside_static_pod(setup)), nl=False)
        return
    if form == "shadow" and ctx.get_parameter_source("name") is DEFAULT:
        chosen["name"] = "stowplan-shadow"
    options = DeployOptions(**chosen | ({"replicas": 1} if form == "shadow" else {}))
    if form == "pod":
        documents, messages = [static_pod(setup, options)], [*setup.warnings, *host_files(setup)]
    elif form == "shadow":
        documents, messages = beside_live_scheduler(setup, options), list(setup.warnings)
    else:
        documents, messages = second_scheduler(setup, options), list(notes(setup))
        documents += group_controllers(options) if controllers else []
    for note in messages:
        click.echo(f"{config}: {note}", err=True)
    click.echo(as_yaml(documents), nl=False)
