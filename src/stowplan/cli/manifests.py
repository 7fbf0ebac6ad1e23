"""`stowplan manifests`: print the manifests to deploy a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from stowplan.cli.options import PLUGIN_DIRS, log_level
from stowplan.deploy.manifests import manifests as objects_of
from stowplan.deploy.manifests import notes, with_setup
from stowplan.deploy.setup import JOURNAL_SIZE, Journal, Lease, Values, check_values, read_setup, read_values
from stowplan.deploy.static_pod import beside_static_pod, host_files, static_pod
from stowplan.deploy.template import as_yaml

DEFAULT = ParameterSource.DEFAULT
NOT_FOR_STATIC_PODS = (
    "name",
    "namespace",
    "replicas",
    "service_monitor",
    "prometheus_rule",
    "dashboard",
    "journal_claim",
    "controllers",
    "print_values",
)
SINGLE = ("shadow", "recorder")
"""Modes of one pod."""


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
@click.option(
    "--values",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Values file of the Helm chart, for tolerations, affinity, resources, pull secrets, labels and "
    "more. Other options take precedence.",
)
@click.option(
    "--print-values",
    is_flag=True,
    help="Print a values file for the Helm chart instead, with the configuration, its plugins and rights.",
)
@click.option("--service-monitor", is_flag=True, help="Add a ServiceMonitor for the Prometheus operator.")
@click.option("--prometheus-rule", is_flag=True, help="Add alerts for the Prometheus operator.")
@click.option("--dashboard", is_flag=True, help="Add a Grafana dashboard, in a ConfigMap for its sidecar.")
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
    "--replacement",
    "form",
    flag_value="replacement",
    help="Print a Deployment that takes over from kube-scheduler, with its lease.",
)
@click.option(
    "--extender",
    "form",
    flag_value="extender",
    help="Print `stowplan extender` instead, which serves the plugins to the stock kube-scheduler.",
)
@click.option(
    "--recorder",
    "form",
    flag_value="recorder",
    help="Print `stowplan record` instead, which records the cluster as a trace.",
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
    file: Path | None,
    print_values: bool,
    form: str | None,
    **chosen: object,
) -> None:
    """Print the manifests to deploy a scheduler with this configuration, for `kubectl apply -f -`.

    By default it runs beside kube-scheduler, for the pods whose schedulerName is that of a profile.
    """
    given = {name: each for name, each in chosen.items() if ctx.get_parameter_source(name) is not DEFAULT}
    if form in SINGLE and given.keys() & {"controllers", "replicas"}:
        raise click.UsageError(f"--controllers and --replicas cannot be used with --{form}")
    if form == "extender" and "controllers" in given:
        raise click.UsageError("--controllers cannot be used with --extender")
    if form in ("pod", "beside"):
        for option in NOT_FOR_STATIC_PODS:
            if ctx.get_parameter_source(option) is not DEFAULT:
                raise click.UsageError(f"--{option.replace('_', '-')} cannot be used for a static pod")
    setup = read_setup(config, plugin_dirs)
    if form == "beside":
        click.echo(as_yaml(beside_static_pod(setup)), nl=False)
        return
    read = read_values(file) if file else Values()
    is_named = bool(read.name) or "name" in given
    values = _values(read, given, form)
    documents: list[dict[str, object]]
    if form == "pod":
        documents, messages = [static_pod(setup, values)], [*setup.warnings, *host_files(setup)]
    else:
        documents, messages = objects_of(setup, values), list(notes(setup, values))
    if print_values:
        check_values(values)
        documents = [_values_to_write(with_setup(setup, values), is_named=is_named)]
    for note in messages:
        click.echo(f"{config}: {note}", err=True)
    click.echo(as_yaml(documents), nl=False)


def _values(values: Values, given: dict[str, Any], form: str | None) -> Values:
    """The values with those of the options that were given."""
    mode = form if form and form != "pod" else values.mode
    own = f"stowplan-{mode}" if mode in ("shadow", "extender", "recorder") else "stowplan"
    names = {"name": values.name or own, "namespace": values.namespace or "stowplan"}
    journal = {
        "enabled": given.pop("journal", values.journal.enabled) or "journal_size" in given,
        "claim": given.pop("journal_claim", values.journal.claim),
        "size": given.pop("journal_size", values.journal.size),
    }
    changed = Journal(**journal, volume_size=values.journal.volume_size)
    return msgspec.structs.replace(values, **names | given | {"mode": mode, "journal": changed})


def _values_to_write(values: Values, *, is_named: bool) -> dict[str, object]:
    """What a values file must contain; Helm knows the namespace, and a name if none is given."""
    lease = values.lease
    if (lease.name, lease.namespace) == (values.name, values.namespace):
        values = msgspec.structs.replace(values, lease=Lease())
    defaults, found = msgspec.to_builtins(Values()), msgspec.to_builtins(values)
    left_out = {"namespace"} if is_named else {"namespace", "name"}
    return {name: each for name, each in found.items() if each != defaults[name] and name not in left_out}
